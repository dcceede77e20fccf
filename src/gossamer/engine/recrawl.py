"""Recrawling: conditional requests, the visit state of a page, and the time of its next visit."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gossamer.clock import Clock
from gossamer.cut import drops_text
from gossamer.engine.verdict import Verdict, is_in_chain
from gossamer.frontier import recrawl
from gossamer.frontier.recrawl import VisitOutcome
from gossamer.model import Lease, Request, Response
from gossamer.settings import Settings

_WORLD = "world"
"""Key of a site's memo: number of pages of the whole crawl, price of a visit, and the time of that estimate."""
_ESTIMATE_SECONDS = 7 * 86_400.0
_WORKED_OUT_AGAIN = 1.02
"""Factor by which the number of pages must change for a new price."""


class PageFingerprint(NamedTuple):
    """What a visit got: digests of the body and of the main text, and what was cut of the page."""

    digest: str = ""
    text: str = ""
    cut: Mapping[str, int | None] = {}


class NextVisit(NamedTuple):
    """The next visit of a page, and the changes to its site's state."""

    again_in: float | None
    state: dict[str, Any] | None = None
    memo: dict[str, Any] | None = None


class RecrawlPlanner:
    """Plans the revisits of one worker.

    A budget depends on the number of all pages. The planner learns it from the sites that it leases, and from the
    estimates that other workers, which may have seen more, left in the memos."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._population = recrawl.Population()
        self._rule = recrawl.parse_rule(settings.recrawl)
        self._price = 0.0
        self._priced_pages = 0
        self._priced_at = 0.0
        self._estimate: tuple[int, float, float] = (0, 0.0, 0.0)

    def learn(self, lease: Lease) -> None:
        """Learn from the memo of a leased site."""
        if not self._rule.kind or not lease.memo:
            return
        self._population.learn(lease.site, lease.memo)
        world = lease.memo.get(_WORLD)
        if world and (world[0] >= self._estimate[0] or self._clock.epoch() > self._estimate[2] + _ESTIMATE_SECONDS):
            self._estimate = (world[0], world[1], world[2])

    def conditional(self, request: Request) -> Request:
        """Return the request with the validators of the last visit (ETag, Last-Modified), for a conditional GET."""
        if not self._rule.kind or request.state is None or request.method != "GET" or self._settings.cache:
            return request
        visited = recrawl.read(request.state)
        headers = {}
        if visited.etag:
            headers["If-None-Match"] = visited.etag
        if visited.modified:
            headers["If-Modified-Since"] = visited.modified
        return msgspec.structs.replace(request, headers=headers | (request.headers or {})) if headers else request

    def plan(
        self,
        lease: Lease,
        memo: dict[str, Any],
        request: Request,
        verdict: Verdict,
        *,
        answer: Response | None,
        seen: PageFingerprint | None,
    ) -> NextVisit:
        """Return the time of the page's next visit, and the state to store until then."""
        rule, settings = self._rule, self._settings
        if not rule.kind or verdict.status == "retry" or is_in_chain(request, request.url):
            # Behind a cookie wall, or a redirect to another spelling, the page comes again under the key that it had
            # before.
            return NextVisit(verdict.again_in)
        before = recrawl.read(request.state)
        if verdict.status == "done" and answer is not None:
            after = self._succeeded(before, request, answer, seen or PageFingerprint())
        else:
            after = recrawl.failed(before, answer.status if answer is not None else 0)
        price, longest = self._price_and_limit() if rule.kind == "budget" else (0.0, 0.0)
        wait = recrawl.again_in(after, rule, settings, price=price, longest=longest)
        after = recrawl.counted(after, wait, settings)
        changes = self._counted(lease, memo, before, after)
        if (
            before.hint
            and verdict.status == "done"
            and answer is not None
            and not drops_text((seen or PageFingerprint()).cut)
        ):
            key = f"{recrawl.HINTS}{lease.lane}"
            found = recrawl.compared(before, digest=after.digest, text=after.text)
            changes[key] = recrawl.tally_hint(memo.get(key, {}), found)
        if wait is not None and rule.kind == "budget" and not before.seen_at and not after.failures:
            # All pages are new in the first hours of a crawl: their second visits are spread out, as far as the budget
            # requires for the pages known by then.
            spread = max(wait, min(settings.revisit_seconds, longest))
            wait = max(random.random() * spread, settings.revisit_min_seconds)
        return NextVisit(wait, recrawl.written(after), changes)

    def _succeeded(
        self, before: VisitOutcome, request: Request, answer: Response, seen: PageFingerprint
    ) -> VisitOutcome:
        now, settings = self._clock.epoch(), self._settings
        if answer.status == 304:
            return recrawl.succeeded(before, "same", settings, now=now)
        if drops_text(seen.cut):
            # The next visit is compared with the last one that got the whole page.
            return recrawl.fetched_part(before, settings, now=now)
        found = recrawl.compared(before, digest=seen.digest, text=seen.text)
        modified = recrawl.validator(answer.header("last-modified"))
        after = recrawl.succeeded(before, found, settings, now=now, lastmod=_lastmod(request, modified))
        if seen.cut:
            # A "not modified" answer would keep the dropped links from ever being followed.
            return msgspec.structs.replace(after, etag="", modified="", digest=seen.digest, text=seen.text)
        return msgspec.structs.replace(
            after,
            etag=recrawl.validator(answer.header("etag")) if answer.status == 200 else "",
            modified=modified if answer.status == 200 else "",
            digest=seen.digest,
            text=seen.text,
        )

    def _counted(self, lease: Lease, memo: dict[str, Any], before: VisitOutcome, after: VisitOutcome) -> dict[str, Any]:
        old = (before.rate, before.fresh) if before.rate else None
        new = (after.rate, after.fresh) if after.rate else None
        if old == new:
            return {}
        key = f"{recrawl.TALLY}.{lease.lane}"
        changes: dict[str, Any] = {key: recrawl.tallied(memo.get(key, {}), old, new)}
        self._population.learn(lease.site, changes)
        if self._rule.kind == "budget":
            changes[_WORLD] = self._estimate if self._uses_shared_estimate() else self._own_estimate()
        return changes

    def _own_estimate(self) -> tuple[int, float, float]:
        return self._priced_pages, float(f"{self._price:.4g}"), round(self._priced_at)

    def _uses_shared_estimate(self) -> bool:
        pages, _, worked_out_at = self._estimate
        is_recent = self._clock.epoch() < worked_out_at + _ESTIMATE_SECONDS
        return is_recent and self._population.pages < 0.7 * pages

    def _price_and_limit(self) -> tuple[float, float]:
        """Return the present price of a visit, and the longest time between two visits."""
        if self._uses_shared_estimate():
            return self._estimate[1], recrawl.longest_wait(self._estimate[0], self._rule, self._settings)
        now, pages, settings = self._clock.epoch(), max(self._population.pages, 1), self._settings
        grown = max(pages, self._priced_pages) / max(min(pages, self._priced_pages), 1)
        longest = recrawl.longest_wait(pages, self._rule, settings)
        if not self._price or grown > _WORKED_OUT_AGAIN or now > self._priced_at + 3600.0:
            self._price = recrawl.price_of(
                self._population.groups(),
                self._rule.visits_per_second,
                shortest=settings.revisit_min_seconds,
                longest=longest,
            )
            self._priced_pages, self._priced_at = pages, now
        return self._price, longest


def _lastmod(request: Request, modified: str) -> float | None:
    """Return when the page last changed: by its sitemap, or by its Last-Modified."""
    if (hint := recrawl.hint_of(request)) is not None:
        return hint
    if not modified:
        return None
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(modified).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
