"""When a continuous crawl visits a page again, as pure functions: by the table, by observed change, or by a budget.

What a visit leaves for the next one is a `Visited`; it goes into `Outcome.state` and comes back in `Request.state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from gossamer.frontier.freshness import estimated_rate, freshness, interval_at
from gossamer.model import Request
from gossamer.settings import Settings

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
