"""Parses pages in the worker, interrupts slow ones, and moves those to a parser process.

Parsing in the worker is the fast path: no copy, no process switch. But a slow page blocks the loop, which has to renew
leases while other sites wait. So a page gets a slice of at most half a second, and less right after another page has
used up its slice. A page that is not done by then is interrupted, and parsed again in a parser process with its whole
budget. The spider sees such a page twice, but nothing of the first try is committed.

Some pages go to a parser process at once: large pages, the next pages of a site that had a slow one, and suspects,
which may have killed a worker (P10). After several quick pages in a row, the site's pages are parsed in the worker
again. Sites with a page that was too costly use a second process, so that merely slow sites do not wait behind them.

While a page is handled in the worker, the crash marker holds its key. A parser process needs no marker: if it dies,
only its page is lost, and the worker records which one it was."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from gossamer.engine.budget import Budget, Guard, Slice, Slow
from gossamer.engine.parsing import Aside, Extracted, SpiderRunner
from gossamer.engine.supervision import CrashMarker
from gossamer.errors import TooCostly
from gossamer.model import Request, Response
from gossamer.settings import Settings

if TYPE_CHECKING:
    from gossamer.engine.parser_pool import ParserPool


log = logging.getLogger("gossamer.engine")
SLICE_SECONDS = 0.5
_SHORT_SECONDS = 0.1
"""The slice for some seconds after a page has used up its own, so that many slow sites together block little more."""
_SHORT_FOR_SECONDS = 5.0
_LARGE_BYTES = 8 * 1024 * 1024
"""Markup of this size goes to a parser process from the start."""
_QUICK_SECONDS = 0.1
_QUICK_PAGES = 16
"""Number of quick pages in a row after which a site's pages are parsed in the worker again."""
_MOST_SITES = 10_000


class GuardedParser:
    """Parses pages in this process while that is quick, and in parser processes otherwise.

    Without `start` all pages get their whole budget here: the calling program passed a spider object that other
    processes cannot have."""

    def __init__(
        self,
        extractor: SpiderRunner,
        settings: Settings,
        *,
        guard: Guard,
        marker: CrashMarker,
        start: Callable[[], ParserPool] | None,
        suspects: Collection[int] = (),
    ) -> None:
        self._extractor = extractor
        self._settings = settings
        self._guard = guard
        self._marker = marker
        self._start = start
        self._pools: dict[bool, ParserPool] = {}
        """Whether it is for sites with a page that was too costly."""
        self._suspects = frozenset(suspects)
        self._slow_sites: dict[str, int] = {}
        """Sites with a page that was too slow for its slice, and the number of quick pages since."""
        self._costly_sites: dict[str, None] = {}
        self._short_until = 0.0
        # The loop must turn often enough to renew leases.
        self._most_seconds = settings.lease_seconds / 10
        self._is_stopping = False

    def interrupt(self) -> None:
        """Interrupt the page in hand in a moment; called by a signal handler."""
        self._guard.stop()

    def stop(self) -> None:
        """Give pages in hand a moment, here and in parser processes."""
        self._is_stopping = True
        self._guard.hurry()
        for pool in self._pools.values():
            pool.stop()

    async def aclose(self) -> None:
        """Close the parser processes, if any were started."""
        for pool in self._pools.values():
            await pool.aclose()
        self._guard.close()

    async def extract(
        self, request: Request, response: Response, *, suspect: bool = False, aside: Aside | None = None
    ) -> Extracted:
        """Extract a page as `SpiderRunner.extract`, here or in a parser process."""
        if self._start is not None and (
            suspect or request.key in self._suspects or request.site in self._slow_sites or _is_large(response)
        ):
            return await self._elsewhere(request, response, aside)
        self._marker.name(request.key)
        try:
            if self._start is None:
                return await self._extractor.extract(
                    request, response, meter=Budget(self._settings, len(response.body))
                )
            meter = Slice(self._settings, self._slice_seconds())
            return await self._extractor.extract(request, response, meter=meter)
        except Slow:
            self._marker.name(0)
            self._short_until = time.monotonic() + _SHORT_FOR_SECONDS
            if not self._slow_sites:
                log.info("%s is slow to handle: moving the pages of its site to a parser process", request.url)
            if len(self._slow_sites) >= _MOST_SITES:
                del self._slow_sites[next(iter(self._slow_sites))]
            self._slow_sites[request.site] = 0
            return await self._elsewhere(request, response, aside)
        finally:
            self._marker.name(0)

    def _slice_seconds(self) -> float:
        is_short = self._short_until and time.monotonic() < self._short_until
        return min(_SHORT_SECONDS if is_short else SLICE_SECONDS, self._most_seconds)

    async def _elsewhere(self, request: Request, response: Response, aside: Aside | None) -> Extracted:
        is_costly = request.site in self._costly_sites
        pool = self._pools.get(is_costly)
        if pool is None:
            assert self._start is not None
            pool = self._pools[is_costly] = self._start()
            if self._is_stopping:
                pool.stop()
        found = await pool.extract(request, response, aside=aside)
        self._learn(request.site, found)
        return found

    def _learn(self, site: str, found: Extracted) -> None:
        """Record the cost of a slow site's page; after enough quick pages, parse the site's pages here again."""
        if found.kind == TooCostly.kind:
            self._costly_sites[site] = None
            if len(self._costly_sites) > _MOST_SITES:
                del self._costly_sites[next(iter(self._costly_sites))]
        if (row := self._slow_sites.get(site)) is None:
            return
        row = row + 1 if found.seconds < _QUICK_SECONDS and found.kind != TooCostly.kind else 0
        if row < _QUICK_PAGES:
            self._slow_sites[site] = row
        else:
            del self._slow_sites[site]


def _is_large(response: Response) -> bool:
    if len(response.body) < _LARGE_BYTES:
        return False
    kind = response.header("content-type")
    return not kind or "html" in kind or "xml" in kind
