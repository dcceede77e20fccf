"""When a page is visited again: by table, by observed change, or within a budget; and freshness.

A visit leaves a `VisitOutcome` for the next one: it goes into `Outcome.state`, and comes back in `Request.state`.

A page changes at a rate r (a Poisson process) and is visited every I seconds. Its copy is then fresh for a share of

    F = (1 - e^-rI) / rI

of the time. Given so many visits a second for all pages, the sum of F is largest where one visit more would gain
as much on every page (Cho and Garcia-Molina, 2003). That gain is the *price* p of a visit, and it fixes every interval:

    1 - (1 + rI) e^-rI = p r

Pages with p r >= 1 change too fast to be worth a visit, and wait as long as is allowed."""

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
"""Keys of a site's memo that hold what is known of its pages, one for each lane: a lane has one writer."""
_BINS = 24
_STEPS = 20


def freshness(rate: float, interval: float) -> float:
    """The share of the time during which a copy is fresh, if its page changes at `rate` and is visited so often."""
    expected = rate * interval
    return -math.expm1(-expected) / expected if expected > 1e-9 else 1.0


def interval_at(price: float, rate: float, *, shortest: float, longest: float) -> float:
    """The best time between two visits of a page that changes at `rate`, where a visit costs `price`."""
    wanted = price * rate
    if wanted >= 1.0:
        return longest
    # The gain is at most half the square of the changes: this is a good guess for few, and a bound for many.
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
    """The price at which groups of pages (how many, their rate) take so many visits a second altogether."""

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
    """Changes a second of a page that was found changed `changes` times in `looks`; never 0.

    Several changes between two looks are seen as one, which the logarithm makes up for. It is as if there had been one
    look more, after `prior_seconds` and with half a change: so little is not taken for much."""
    still = (looks - changes + 0.5) / (looks + 1.0)
    return -math.log(still) * (looks + 1.0) / (watched_seconds + prior_seconds)


def tallied(
    tally: Mapping[str, Any], old: tuple[float, float] | None, new: tuple[float, float] | None
) -> dict[str, Any]:
    """A lane's tally after a page had `old` and has `new`, each (rate, freshness); None is no page.

    `n` pages, the sum `f` of their freshness, and in `b`, by size of the rate, their number and the sum of rates."""
    bins = {name: list(entry) for name, entry in tally.get("b", {}).items()}
    count, fresh = tally.get("n", 0), tally.get("f", 0.0)
    for page, by in ((old, -1), (new, 1)):
        if page is not None:
            rate, share = page
            count, fresh = count + by, fresh + by * share
            entry = bins.setdefault(_bin(rate), [0, 0.0])
            entry[0] += by
            entry[1] += by * rate
    # Pages move between lanes, so a lane's own sums may be negative; only their total means something.
    kept = {name: entry for name, entry in bins.items() if entry[0] or abs(entry[1]) > 1e-12}
    return {"n": count, "f": round(fresh, 6), "b": kept}


def summed(memo: Mapping[str, Any]) -> tuple[int, int]:
    """Pages, and millionths of their freshness, in the tallies of a memo or of a part of it.

    In whole numbers, so that a store that keeps the sums of all sites takes out what it has put in."""
    tallies = [tally for name, tally in memo.items() if name.startswith(TALLY)]
    return sum(tally.get("n", 0) for tally in tallies), sum(round(tally.get("f", 0.0) * 1e6) for tally in tallies)


def share_of(pages: int, millionths: int) -> float | None:
    """The predicted freshness by such sums; None while no page is known."""
    return min(1.0, max(0.0, millionths / 1e6 / pages)) if pages >= 1 else None


def mean(counts: Iterable[Counts]) -> float | None:
    """The predicted freshness of several shards together."""
    known = [(found.freshness, max(found.revisits, 1)) for found in counts if found.freshness is not None]
    return sum(fresh * pages for fresh, pages in known) / sum(pages for _, pages in known) if known else None


def _bin(rate: float) -> str:
    return str(max(-_BINS, min(_BINS, math.floor(math.log2(max(rate, 1e-12) * DAY_SECONDS)))))


class Population:
    """The pages of a crawl by how they change, from the tallies of the sites that were met; its size is bounded."""

    def __init__(self, most: int = 50_000) -> None:
        self._most = most
        self._one_of = 1
        self._tallies: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._count = self._fresh = 0.0
        self._bins: dict[str, list[float]] = {}

    def learn(self, site: str, memo: Mapping[str, Any]) -> None:
        """Take up what a site's memo, or a part of it, says."""
        for name, tally in memo.items():
            if not name.startswith(TALLY) or not self._is_kept(site):
                continue
            self._add(self._tallies.get((site, name), {}), -1)
            self._tallies[site, name] = tally
            self._add(tally, 1)
        if len(self._tallies) > self._most:
            self._thin_out()

    def _is_kept(self, site: str) -> bool:
        # Of very many sites every other one, every fourth, ... stands for all.
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
        """About how many pages there are."""
        return round(max(self._count, 0.0)) * self._one_of

    def groups(self) -> list[tuple[float, float]]:
        """The pages as groups: how many, and their mean rate."""
        return [
            (count * self._one_of, rates / count) for count, rates in self._bins.values() if count > 0 and rates > 0
        ]

    def freshness(self) -> float | None:
        """The predicted share of copies that are fresh at any moment; None while no page is known."""
        return min(1.0, max(0.0, self._fresh / self._count)) if self._count >= 1 else None


Found = Literal["new", "same", "changed"]
GONE = frozenset((404, 410))
FASTER, SLOWER = 0.8, 1.4
"""What a change, and a visit without one, make of an adaptive interval."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LONGEST_VALIDATOR = 300
_HINTS_IN_AN_INTERVAL = 7
_FEW_LIES = 10
HINTS = "hints."
"""Keys of a site's memo that hold how true its sitemaps are, one for each lane: a lane has one writer."""
PART = "-"
"""The digest of a page of which no visit has got the whole: nothing is compared with it."""
_MEMORY = 64
"""Looks after which older ones begin to fade."""


class Rule(NamedTuple):
    """How a crawl comes again; `visits_per_second` is the budget."""

    kind: Literal["", "table", "adaptive", "budget"]
    visits_per_second: float = 0.0


class VisitOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a page from its visits; at most 1 KB when it is written down."""

    etag: str = ""
    modified: str = ""
    """The Last-Modified header, as it came."""
    digest: str = ""
    """SHA-1 of the body."""
    text: str = ""
    """Digest of the main text: what counts as a change is a change of this."""
    seen_at: float = 0.0
    """Epoch seconds of the last visit that found the page."""
    interval: float = 0.0
    """Seconds to the next visit, as they were last chosen after a success."""
    failures: int = 0
    """Failures in a row."""
    gone: int = 0
    """Visits in a row that found the page gone."""
    looks: float = 0.0
    """Visits that could be compared with the one before."""
    changes: float = 0.0
    """Of these, visits that found a change."""
    watched: float = 0.0
    """Seconds that lay between them."""
    rate: float = 0.0
    """Changes a second, as they were last estimated; 0 for a page that does not count in its site's tally."""
    fresh: float = 0.0
    """Predicted freshness, as it was last counted."""
    hint: float = 0.0
    """When the page has changed since then, as a sitemap says, if this brought the next visit forward."""


def rule_of(recrawl: str) -> Rule:
    """What the setting `recrawl` says."""
    if recrawl.startswith("budget="):
        number, _, unit = recrawl.removeprefix("budget=").partition("/")
        return Rule("budget", float(number) / _SECONDS[unit])
    return Rule(recrawl if recrawl in ("table", "adaptive") else "")  # type: ignore[arg-type]


def read(state: dict[str, Any] | None) -> VisitOutcome:
    """What the last visit left; a state that is none of ours counts as no visit."""
    try:
        return msgspec.convert(state, VisitOutcome) if state else VisitOutcome()
    except msgspec.ValidationError:
        return VisitOutcome()


def was_seen(state: dict[str, Any] | None) -> bool:
    """Whether a page was ever found; one that was only skipped, or failed, was not."""
    return bool(state and state.get("seen_at"))


def written(visited: VisitOutcome) -> dict[str, Any]:
    """The state to give with an outcome."""
    plain: dict[str, Any] = msgspec.to_builtins(visited)
    return plain


def validator(value: str) -> str:
    """An ETag or Last-Modified that can be kept and sent back; empty if it cannot."""
    return value if len(value) <= _LONGEST_VALIDATOR and value.isascii() and value.isprintable() else ""


def compared(visited: VisitOutcome, *, digest: str, text: str) -> Found:
    """What a visit that got a page found. The main text decides; where there is none, the bytes do."""
    if not visited.seen_at or visited.digest == PART:
        return "new"
    same = text == visited.text if text and visited.text else digest == visited.digest
    return "same" if same else "changed"


def succeeded(
    visited: VisitOutcome, found: Found, settings: Settings, *, now: float, lastmod: float | None = None
) -> VisitOutcome:
    """The page was there. `lastmod` is when it last changed by its own account, or by its sitemap's: a hint."""
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


def saw_a_part(visited: VisitOutcome, settings: Settings, *, now: float) -> VisitOutcome:
    """The page was there, and only a part of it came: what is known of the whole stays, and the next visit asks for all
    of it."""
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
        # What changed an hour ago changes again sooner than what has stood for a year.
        age = settings.revisit_seconds if lastmod is None or lastmod > now else now - lastmod
        return _clamped(min(age, settings.revisit_seconds), settings)
    return _clamped(visited.interval * (FASTER if found == "changed" else SLOWER), settings)


def failed(visited: VisitOutcome, code: int) -> VisitOutcome:
    """The visit failed for good: its tries are used up, or the error is final."""
    gone = visited.gone + 1 if code in GONE else 0
    return msgspec.structs.replace(visited, failures=visited.failures + 1, gone=gone, hint=0.0)


def hint_of(request: Request) -> float | None:
    """When the page of a request has changed, if whoever found it says so: `lastmod`, epoch seconds, in its meta."""
    hint = request.meta.get("lastmod") if request.meta else None
    return float(hint) if isinstance(hint, int | float) else None


def hastened(visited: VisitOutcome, hint: float, settings: Settings, *, now: float) -> float | None:
    """Seconds to the next visit of a page that has changed at `hint`, as its sitemap says; None for no reason to hurry.

    A sitemap may lie. So a page is never visited more than once in a seventh of the usual time, a failure keeps its
    time, and what lies ahead is no change."""
    if not visited.seen_at or visited.failures or not visited.seen_at < hint <= now:
        return None
    soonest = max(settings.revisit_min_seconds, settings.revisit_seconds / _HINTS_IN_AN_INTERVAL)
    return max(0.0, visited.seen_at + soonest - now)


def witnessed(tally: Mapping[str, Any], found: Found) -> dict[str, Any]:
    """A tally of hints after one more visit that followed one: how many were true, how many false."""
    fade = 0.5 if tally.get("true", 0) + tally.get("false", 0) >= _MEMORY else 1.0
    kept = {word: tally.get(word, 0) * fade for word in ("true", "false")}
    word = "false" if found == "same" else "true"
    return {**kept, word: kept[word] + 1}


def trusts_hints(memo: Mapping[str, Any]) -> bool:
    """Whether a site's sitemaps have mostly told the truth, as far as the tallies in its memo say."""
    tallies = [tally for name, tally in memo.items() if name.startswith(HINTS)]
    true, false = (sum(tally.get(word, 0) for tally in tallies) for word in ("true", "false"))
    return bool(false < _FEW_LIES or false <= 2 * true)


def rate(visited: VisitOutcome, settings: Settings) -> float:
    """Changes a second, as far as the visits tell."""
    return estimated_rate(visited.looks, visited.changes, visited.watched, prior_seconds=settings.revisit_seconds)


def longest_wait(pages: int, rule: Rule, settings: Settings) -> float:
    """The longest time between two visits under a budget: eight times the mean, so that nothing is ever given up."""
    return min(settings.revisit_max_seconds, max(8.0 * pages / rule.visits_per_second, settings.revisit_min_seconds))


def again_in(
    visited: VisitOutcome, rule: Rule, settings: Settings, *, price: float = 0.0, longest: float = 0.0
) -> float | None:
    """Seconds to the next visit; None if there is to be none. For a budget, `price` is what a visit costs."""
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
    """The page with the rate and the freshness that it now has in its site's tally; a dropped page has none."""
    if wait is None or not visited.seen_at:
        return msgspec.structs.replace(visited, rate=0.0, fresh=0.0)
    now = rate(visited, settings)
    # Rounded here, so that what is taken out of a tally later is what was put in.
    return msgspec.structs.replace(visited, rate=float(f"{now:.4g}"), fresh=round(freshness(now, wait), 4))


def _clamped(interval: float, settings: Settings) -> float:
    return min(max(interval, settings.revisit_min_seconds), settings.revisit_max_seconds)
