"""Parses in the worker, interrupts what takes long, and moves such pages to a parser process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from gossamer.engine.budget import Budget, Guard, Slice, Slow
from gossamer.engine.links import Aside
from gossamer.engine.parsing import Extracted, Extractor
from gossamer.engine.supervision import CrashMarker
from gossamer.errors import TooCostly
from gossamer.model import Request, Response
from gossamer.settings import Settings

if TYPE_CHECKING:
    from gossamer.engine.parser_pool import ParserPool


log = logging.getLogger("gossamer.engine")
SLICE_SECONDS = 0.5
_SHORT_SECONDS = 0.1
"""The slice while another page has just used up its own: many slow sites at once block no longer than one."""
_SHORT_FOR_SECONDS = 5.0
_LARGE_BYTES = 8 * 1024 * 1024
"""Markup of this size is parsed elsewhere from the start."""
_QUICK_SECONDS = 0.1
_QUICK_PAGES = 16
"""So many pages in a row under that CPU time have the pages of a site handled here again."""
_MOST_SITES = 10_000


class Careful:
    """Extracts pages here while that is quick.

    A page that is not done after its slice is begun again in another process, with its whole budget. The next pages
    of its site go there at once, as do large pages and those that a worker may have died of. With a `spider` of the
    program's own, which other processes do not have, pages get their whole budget here."""

    def __init__(
        self,
        extractor: Extractor,
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
        """One for the sites that have had a page that was too costly, so that others do not wait behind them."""
        self._suspects = frozenset(suspects)
        self._slow_sites: dict[str, int] = {}
        """Sites with a page that took too long for a slice, and how many quick ones have come since."""
        self._costly_sites: dict[str, None] = {}
        self._short_until = 0.0
        # Leases have to be renewed in the meantime.
        self._most_seconds = settings.lease_seconds / 10
        self._is_stopping = False

    def interrupt(self) -> None:
        """Have the page in hand interrupted in a moment."""
        self._guard.stop()

    def stop(self) -> None:
        """The crawl is to end, and pages in hand have a moment left."""
        self._is_stopping = True
        self._guard.hurry()
        for pool in self._pools.values():
            pool.stop()

    async def aclose(self) -> None:
        """End the process, if one was needed."""
        for pool in self._pools.values():
            await pool.aclose()
        self._guard.close()

    async def extract(
        self, request: Request, response: Response, *, suspect: bool = False, aside: Aside | None = None
    ) -> Extracted:
        """As Extractor.extract, here or elsewhere."""
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
                log.info(
                    "%s takes long to handle: it and others of its site are handled by another process", request.url
                )
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
        """Have the pages of a site back here once a row of them was quick."""
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
