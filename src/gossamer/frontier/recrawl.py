"""Recrawl scheduling: when to visit a page again by table, observed change, or budget; and predicted freshness.

A visit produces a `VisitOutcome` for the next one: it is stored as `Outcome.state`, and returned as `Request.state`.

A page changes at a rate r (a Poisson process) and is visited every I seconds. The stored copy is then fresh for a share

    F = (1 - e^-rI) / rI

of the time. For a fixed number of visits a second over all pages, the sum of F is largest where one more visit would
gain equally on every page (Cho and Garcia-Molina, 2003). That gain is the *price* p of a visit, and determines every
interval:

    1 - (1 + rI) e^-rI = p r

Pages with p r >= 1 change too fast to be worth a visit, and wait for the longest allowed interval."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from gossamer.model import Counts, Request
from gossamer.settings import Settings

DAY_SECONDS = 86_400.0
TALLY = "rates"
"""Prefix of the keys of a site's memo that hold its page statistics, one key for each lane: a lane has one writer."""
_BINS = 24
_STEPS = 20


def freshness(rate: float, interval: float) -> float:
    """Return the share of the time in which a copy is fresh if its page changes at `rate` and is visited at
    `interval`."""
    expected = rate * interval
    return -math.expm1(-expected) / expected if expected > 1e-9 else 1.0


def interval_at(price: float, rate: float, *, shortest: float, longest: float) -> float:
    """Return the optimal seconds between two visits of a page that changes at `rate`, given the `price` of a visit."""
    wanted = price * rate
    if wanted >= 1.0:
        return longest
    # The gain is at most half the square of the changes: a good estimate for few changes, and a bound for many.
    low = high = math.sqrt(2.0 * wanted)
    while _gain(high) < wanted:
        high = 1.5 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _gain(middle) < wanted else (low, middle)
    return min(max(high / rate, shortest), longest)


def _gain(changes: float) -> float:
    return -math.expm1(-changes) - changes * math.exp(-changes)


def price_of(
    groups: Sequence[tuple[float, float]], visits_per_second: float, *, shortest: float, longest: float
) -> float:
    """Return the price at which groups of pages (number, rate) take this many visits a second in total."""

    def demand(price: float) -> float:
        return sum(
            count / interval_at(price, rate, shortest=shortest, longest=longest) for count, rate in groups if rate > 0
        )

    low, high = 1e-12, longest * 4.0
    if demand(low) <= visits_per_second:
        return low
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if demand(middle) > visits_per_second else (low, middle)
    return high


def estimated_rate(looks: float, changes: float, watched_seconds: float, *, prior_seconds: float) -> float:
    """Estimate the changes a second of a page that was found changed `changes` times in `looks` visits; never 0.

    Several changes between two visits are seen as one, which the logarithm corrects. The prior is one more visit after
    `prior_seconds` with half a change, so that a few visits do not count for too much."""
    still = (looks - changes + 0.5) / (looks + 1.0)
    return -math.log(still) * (looks + 1.0) / (watched_seconds + prior_seconds)


def tallied(
    tally: Mapping[str, Any], old: tuple[float, float] | None, new: tuple[float, float] | None
) -> dict[str, Any]:
    """Return a lane's tally after a page changed from `old` to `new`, each (rate, freshness), or None for no page.

    A tally has `n`, the number of pages; `f`, the sum of their freshness; and `b`, which maps the magnitude of the rate
    to the number of pages and the sum of their rates."""
    bins = {name: list(entry) for name, entry in tally.get("b", {}).items()}
    count, fresh = tally.get("n", 0), tally.get("f", 0.0)
    for page, by in ((old, -1), (new, 1)):
        if page is not None:
            rate, share = page
            count, fresh = count + by, fresh + by * share
            entry = bins.setdefault(_bin(rate), [0, 0.0])
            entry[0] += by
            entry[1] += by * rate
    # Pages move between lanes, so a lane's own sums may be negative; only the total over all lanes is meaningful.
    kept = {name: entry for name, entry in bins.items() if entry[0] or abs(entry[1]) > 1e-12}
    return {"n": count, "f": round(fresh, 6), "b": kept}


def summed(memo: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of pages, and their freshness in millionths, in the tallies of a memo or a part of it.

    Whole numbers, so that a store that adds up all sites subtracts exactly what it has added."""
    tallies = [tally for name, tally in memo.items() if name.startswith(TALLY)]
    return sum(tally.get("n", 0) for tally in tallies), sum(round(tally.get("f", 0.0) * 1e6) for tally in tallies)


def share_of(pages: int, millionths: int) -> float | None:
    """Return the predicted freshness for these sums; None while no page is known."""
    return min(1.0, max(0.0, millionths / 1e6 / pages)) if pages >= 1 else None


def mean(counts: Iterable[Counts]) -> float | None:
    """Return the predicted freshness of several shards together."""
    known = [(found.freshness, max(found.revisits, 1)) for found in counts if found.freshness is not None]
    return sum(fresh * pages for fresh, pages in known) / sum(pages for _, pages in known) if known else None


def _bin(rate: float) -> str:
    return str(max(-_BINS, min(_BINS, math.floor(math.log2(max(rate, 1e-12) * DAY_SECONDS)))))


class Population:
    """The pages of a crawl, grouped by rate of change, from the tallies of leased sites; bounded in size."""

    def __init__(self, most: int = 50_000) -> None:
        self._most = most
        self._one_of = 1
        self._tallies: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._count = self._fresh = 0.0
        self._bins: dict[str, list[float]] = {}

    def learn(self, site: str, memo: Mapping[str, Any]) -> None:
        """Add the tallies in a site's memo, or in a part of it."""
        for name, tally in memo.items():
            if not name.startswith(TALLY) or not self._is_kept(site):
                continue
            self._add(self._tallies.get((site, name), {}), -1)
            self._tallies[site, name] = tally
            self._add(tally, 1)
        if len(self._tallies) > self._most:
            self._thin_out()

    def _is_kept(self, site: str) -> bool:
        # For very many sites, every second, fourth, ... site represents all of them.
        return zlib.crc32(site.encode()) % self._one_of == 0

    def _thin_out(self) -> None:
        self._one_of *= 2
        for site, name in list(self._tallies):
            if not self._is_kept(site):
                self._add(self._tallies.pop((site, name)), -1)

    def _add(self, tally: Mapping[str, Any], by: int) -> None:
        self._count += by * tally.get("n", 0)
        self._fresh += by * tally.get("f", 0.0)
        for name, (count, rates) in tally.get("b", {}).items():
            entry = self._bins.setdefault(name, [0.0, 0.0])
            entry[0] += by * count
            entry[1] += by * rates

    @property
    def pages(self) -> int:
        """Return the approximate number of pages."""
        return round(max(self._count, 0.0)) * self._one_of

    def groups(self) -> list[tuple[float, float]]:
        """Return the pages as groups: number of pages, and their mean rate."""
        return [
            (count * self._one_of, rates / count) for count, rates in self._bins.values() if count > 0 and rates > 0
        ]

    def freshness(self) -> float | None:
        """Return the predicted share of copies that are fresh at any moment; None while no page is known."""
        return min(1.0, max(0.0, self._fresh / self._count)) if self._count >= 1 else None


Found = Literal["new", "same", "changed"]
GONE = frozenset((404, 410))
FASTER, SLOWER = 0.8, 1.4
"""Factors of an adaptive interval after a visit that found a change, and after one that found none."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LONGEST_VALIDATOR = 300
_HINTS_IN_AN_INTERVAL = 7
_FEW_LIES = 10
HINTS = "hints."
"""Prefix of the keys of a site's memo that count how often its sitemaps were right, one key for each lane."""
PART = "-"
"""The digest of a page that no visit has fetched completely: nothing is compared with it."""
_MEMORY = 64
"""Visits after which older ones begin to fade."""


class Rule(NamedTuple):
    """The setting `recrawl`, parsed; `visits_per_second` is the budget."""

    kind: Literal["", "table", "adaptive", "budget"]
    visits_per_second: float = 0.0


class VisitOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the visits of a page have shown; at most 1 KB when it is stored."""

    etag: str = ""
    modified: str = ""
    """The Last-Modified header, unchanged."""
    digest: str = ""
    """SHA-1 of the body."""
    text: str = ""
    """Digest of the main text: a page counts as changed if this has changed."""
    seen_at: float = 0.0
    """Epoch seconds of the last visit that found the page."""
    interval: float = 0.0
    """Seconds to the next visit, as chosen after the last success."""
    failures: int = 0
    """Failures in a row."""
    gone: int = 0
    """Visits in a row that found the page gone (404, 410)."""
    looks: float = 0.0
    """Number of visits that could be compared with the one before."""
    changes: float = 0.0
    """Number of these that found a change."""
    watched: float = 0.0
    """Total seconds between them."""
    rate: float = 0.0
    """Last estimate of changes a second; 0 for a page that does not count in its site's tally."""
    fresh: float = 0.0
    """Predicted freshness when it was last counted."""
    hint: float = 0.0
    """Time of change that a sitemap reported, if that brought the next visit forward."""


def parse_rule(recrawl: str) -> Rule:
    """Parse the setting `recrawl`."""
    if recrawl.startswith("budget="):
        number, _, unit = recrawl.removeprefix("budget=").partition("/")
        return Rule("budget", float(number) / _SECONDS[unit])
    return Rule(recrawl if recrawl in ("table", "adaptive") else "")  # type: ignore[arg-type]


def read(state: dict[str, Any] | None) -> VisitOutcome:
    """Decode the state of the last visit; a state in another format counts as no visit."""
    try:
        return msgspec.convert(state, VisitOutcome) if state else VisitOutcome()
    except msgspec.ValidationError:
        return VisitOutcome()


def was_seen(state: dict[str, Any] | None) -> bool:
    """Return whether a page was ever fetched; one that was only skipped, or failed, was not."""
    return bool(state and state.get("seen_at"))


def written(visited: VisitOutcome) -> dict[str, Any]:
    """Encode the visit state that goes with an outcome."""
    plain: dict[str, Any] = msgspec.to_builtins(visited)
    return plain


def validator(value: str) -> str:
    """Return an ETag or Last-Modified value if it can be stored and sent back; else an empty text."""
    return value if len(value) <= _LONGEST_VALIDATOR and value.isascii() and value.isprintable() else ""


def compared(visited: VisitOutcome, *, digest: str, text: str) -> Found:
    """Compare a fetched page with the last visit: by the main text, or by the bytes if there is no main text."""
    if not visited.seen_at or visited.digest == PART:
        return "new"
    same = text == visited.text if text and visited.text else digest == visited.digest
    return "same" if same else "changed"


def succeeded(
    visited: VisitOutcome, found: Found, settings: Settings, *, now: float, lastmod: float | None = None
) -> VisitOutcome:
    """Return the state after a visit that found the page.

    `lastmod` is when the page last changed by its own headers, or by its sitemap: a hint."""
    looks, changes, watched = visited.looks, visited.changes, visited.watched
    if found != "new":
        fade = 0.5 if looks >= _MEMORY else 1.0
        looks, changes = looks * fade + 1, changes * fade + (found == "changed")
        watched = watched * fade + max(now - visited.seen_at, 0.0)
    return msgspec.structs.replace(
        visited,
        seen_at=now,
        interval=_adapted(visited, found, settings, now=now, lastmod=lastmod),
        failures=0,
        gone=0,
        hint=0.0,
        looks=looks,
        changes=changes,
        watched=watched,
    )


def fetched_part(visited: VisitOutcome, settings: Settings, *, now: float) -> VisitOutcome:
    """Return the state after a visit that got only a part of the page: the rest stays, and the next visit asks for
    all."""
    after = succeeded(visited, "new", settings, now=now)
    return msgspec.structs.replace(
        after,
        etag="",
        modified="",
        digest=visited.digest if visited.seen_at else PART,
        interval=visited.interval or after.interval,
    )


def _adapted(visited: VisitOutcome, found: Found, settings: Settings, *, now: float, lastmod: float | None) -> float:
    if found == "new" or not visited.interval:
        # A page that changed an hour ago will change again sooner than one that has not changed for a year.
        age = settings.revisit_seconds if lastmod is None or lastmod > now else now - lastmod
        return _clamped(min(age, settings.revisit_seconds), settings)
    return _clamped(visited.interval * (FASTER if found == "changed" else SLOWER), settings)


def failed(visited: VisitOutcome, code: int) -> VisitOutcome:
    """Return the state after a visit that failed for good: no tries are left, or the error is final."""
    gone = visited.gone + 1 if code in GONE else 0
    return msgspec.structs.replace(visited, failures=visited.failures + 1, gone=gone, hint=0.0)


def hint_of(request: Request) -> float | None:
    """Return when a request's page has changed according to the `lastmod` (epoch seconds) in its meta."""
    hint = request.meta.get("lastmod") if request.meta else None
    return float(hint) if isinstance(hint, int | float) else None


def hastened(visited: VisitOutcome, hint: float, settings: Settings, *, now: float) -> float | None:
    """Return the seconds to the next visit of a page that changed at `hint` by its sitemap; None to keep the schedule.

    Sitemaps may be wrong. So a page is never visited more often than every seventh of the usual interval, a page with
    failures keeps its schedule, and a time in the future does not count."""
    if not visited.seen_at or visited.failures or not visited.seen_at < hint <= now:
        return None
    soonest = max(settings.revisit_min_seconds, settings.revisit_seconds / _HINTS_IN_AN_INTERVAL)
    return max(0.0, visited.seen_at + soonest - now)


def tally_hint(tally: Mapping[str, Any], found: Found) -> dict[str, Any]:
    """Return a tally of hints after one more visit that a hint brought forward: how many were true, and how many
    false."""
    fade = 0.5 if tally.get("true", 0) + tally.get("false", 0) >= _MEMORY else 1.0
    kept = {word: tally.get(word, 0) * fade for word in ("true", "false")}
    word = "false" if found == "same" else "true"
    return {**kept, word: kept[word] + 1}


def trusts_hints(memo: Mapping[str, Any]) -> bool:
    """Return whether most hints of a site's sitemaps were true, by the tallies in its memo."""
    tallies = [tally for name, tally in memo.items() if name.startswith(HINTS)]
    true, false = (sum(tally.get(word, 0) for tally in tallies) for word in ("true", "false"))
    return bool(false < _FEW_LIES or false <= 2 * true)


def rate(visited: VisitOutcome, settings: Settings) -> float:
    """Return the estimated changes a second of a page."""
    return estimated_rate(visited.looks, visited.changes, visited.watched, prior_seconds=settings.revisit_seconds)


def longest_wait(pages: int, rule: Rule, settings: Settings) -> float:
    """Return the longest time between two visits under a budget: eight times the mean, so that no page is abandoned."""
    return min(settings.revisit_max_seconds, max(8.0 * pages / rule.visits_per_second, settings.revisit_min_seconds))


def again_in(
    visited: VisitOutcome, rule: Rule, settings: Settings, *, price: float = 0.0, longest: float = 0.0
) -> float | None:
    """Return the seconds to the next visit; None for no further visit.

    Under a budget, `price` is the price of a visit."""
    if not rule.kind or visited.gone >= settings.gone_visits:
        return None
    if visited.failures:
        return settings.revisit_failures[min(visited.failures, len(settings.revisit_failures)) - 1]
    if rule.kind == "adaptive":
        return visited.interval
    if rule.kind == "table":
        return settings.revisit_seconds
    return interval_at(
        price,
        rate(visited, settings),
        shortest=settings.revisit_min_seconds,
        longest=longest or settings.revisit_max_seconds,
    )


def counted(visited: VisitOutcome, wait: float | None, settings: Settings) -> VisitOutcome:
    """Return the page with the rate and freshness that its site's tally now has; a page without next visit has
    neither."""
    if wait is None or not visited.seen_at:
        return msgspec.structs.replace(visited, rate=0.0, fresh=0.0)
    now = rate(visited, settings)
    # Rounded here, so that exactly what was added to a tally is subtracted later.
    return msgspec.structs.replace(visited, rate=float(f"{now:.4g}"), fresh=round(freshness(now, wait), 4))


def _clamped(interval: float, settings: Settings) -> float:
    return min(max(interval, settings.revisit_min_seconds), settings.revisit_max_seconds)
