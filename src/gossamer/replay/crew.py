"""The processes of a replay: each is given part after part, and what they give is taken in the order of parts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence

import msgspec

from gossamer import settings as configuration
from gossamer.errors import ExtractError, WorkersDie
from gossamer.replay.orders import Done, Setup
from gossamer.replay.worker import ReplayProcess
from gossamer.settings import Settings
from gossamer.storage.base import Which
from gossamer.storage.reader import Stored
from gossamer.storage.warc.reader import ReadPart

log = logging.getLogger("gossamer.engine")
_AHEAD = 4
"""Parts that are worked on or wait for their turn, for each process."""


class ReplayPool:
    """Runs the spider that the settings name over all that is stored. No network: nobody here has a downloader."""

    def __init__(
        self,
        stored: Stored,
        settings: Settings,
        *,
        processes: int = 0,
        all_visits: bool = False,
        where: Sequence[str] = (),
    ) -> None:
        self._stored = stored
        # What only a crawl wants to know of a page is not worked out: whether it changed, or is one of a row of copies.
        self._settings = msgspec.structs.replace(settings, recrawl="", alike_pages=0, dedupe=False)
        self._count = processes or os.cpu_count() or 1
        self._which: Which = "all" if all_visits else "last"
        self._where = list(where)
        self._processes = [ReplayProcess(self._setup()) for _ in range(self._count)]

    def hatch(self) -> None:
        """Begin the processes now, as copies of this one, which has loaded what they need; not from among threads."""
        for process in self._processes:
            process.hatch(self._processes)

    async def run(self, take: Callable[[Done], None]) -> None:
        """Work through all parts; `take` gets what each gave, in the order of what is stored."""
        try:
            await self._work(take)
        except BaseException:
            for failure in await self._close():
                log.error("%s", failure)
            raise
        if failures := await self._close():
            raise failures[0]

    async def _close(self) -> list[BaseException]:
        """Close all processes; what went wrong."""
        ended = await asyncio.gather(*(process.aclose() for process in self._processes), return_exceptions=True)
        return [failure for failure in ended if failure is not None]

    async def _work(self, take: Callable[[Done], None]) -> None:
        idle: asyncio.Queue[ReplayProcess] = asyncio.Queue()
        processes = self._processes
        for process in processes:
            idle.put_nowait(process)

        async def do(part: ReadPart) -> Done:
            process = await idle.get()
            try:
                return await process.do(part)
            finally:
                idle.put_nowait(process)

        under_way: list[asyncio.Task[Done]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for part in self._stored.parts(self._which):
                    under_way.append(group.create_task(do(part)))
                    if len(under_way) >= _AHEAD * self._count:
                        take(await under_way.pop(0))
                for task in under_way:
                    take(await task)
        except* (WorkersDie, ExtractError) as group_of:
            raise group_of.exceptions[0] from None

    def _setup(self) -> Setup:
        return Setup(
            configuration.dump(self._settings),
            [str(path) for path in self._stored.warcs],
            [(str(tree), str(folder)) for tree, folder in self._stored.trees],
            str(self._stored.drafts),
            self._where,
        )
