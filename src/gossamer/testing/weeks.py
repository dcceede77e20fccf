"""A continuous crawl of twelve weeks on any frontier, in virtual time, with checks of its revisits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any, cast

from gossamer.engine.commit import FleetStore
from gossamer.engine.links import Linker, RecentKeys
from gossamer.extract.spider import Spider
from gossamer.frontier.base import Frontier
from gossamer.jobs.worker import build_worker
from gossamer.lab.virtual_time import LoopClock, patiently
from gossamer.lab.virtual_web import DAY, WEEK, ChangingWeb
from gossamer.model import Counts, Grant
from gossamer.settings import Settings

SetClock = Callable[[float], Awaitable[None]]
"""Sets a store's clock to an epoch time."""

SLACK = 600.0
"""Allowed lateness of a visit in seconds: one delay for each page before it, and the commit."""
LIVES = ((3.4 * WEEK, 0), (6.5 * WEEK, 30), (12 * WEEK - DAY, 0))
"""When the worker is killed, in seconds and further visits: during a quiet time, during a hundred visits, and at the
end of the twelve weeks."""
DEAD, BACK = "/p3", 5 * WEEK
"""A page that does not exist at first."""


def settings(**values: Any) -> Settings:
    """Settings for months in virtual time, with long leases, so that few renewals have to be simulated."""
    return Settings(
        **{
            "recrawl": "table",
            "delay": 0.2,
            "lease_seconds": DAY,
            "commit_seconds": 1.0,
            "robots_seconds": 400 * DAY,
            **values,
        }
    )


def changing_web(clock: LoopClock) -> ChangingWeb:
    """Four sites of pages that change twice a week, monthly, and hardly ever."""
    return ChangingWeb(
        clock,
        sites=4,
        pages=24,
        days_per_change=lambda page: (3.0, 10.0, 30.0, 400.0)[page % 4],
        answers=lambda path, at: 404 if path == DEAD and at < BACK else None,
    )


class TimelessFrontier:
    """A frontier whose calls take no virtual time.

    `set_clock` sets the clock of a store before each call. It requires a single worker, which is idle until it has done
    something itself or something is due."""

    def __init__(self, frontier: Frontier, clock: LoopClock, set_clock: SetClock | None = None) -> None:
        self._frontier = frontier
        self._clock = clock
        self._set_clock = set_clock
        self._set_at = -1.0
        self._changed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._frontier, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            if name == "lease":
                self._changed.clear()
            try:
                return await patiently(self._on_time(found(*args, **named)))
            finally:
                if name != "lease":
                    self._changed.set()

        return call

    async def _on_time(self, call: Awaitable[Any]) -> Any:
        if self._set_clock is not None and self._clock.epoch() > self._set_at:
            self._set_at = self._clock.epoch()
            await self._set_clock(self._set_at)
        return await call

    async def idle(self, grant: Grant) -> None:
        if self._set_clock is None:
            await self._frontier.idle(grant)
            return
        try:
            async with asyncio.timeout(grant.wait):
                await self._changed.wait()
        except TimeoutError:
            pass


async def live(
    fleet: Frontier,
    web: ChangingWeb,
    clock: LoopClock,
    *,
    secret: bytes,
    until: tuple[float, int],
    chosen: Settings,
    set_clock: SetClock | None = None,
) -> Counts:
    """Let one worker crawl until a time, in seconds since the web began, and so many visits more, and kill it: nothing
    is given back. What the frontier counts then."""
    frontier = cast(Frontier, TimelessFrontier(fleet, clock, set_clock))
    linker = Linker(chosen, secret, RecentKeys())
    await frontier.add([linker.seed(url) for url in web.seeds])
    spider = Spider()
    spider.fetch_middleware = [web.middleware]
    async with build_worker(
        frontier, FleetStore(frontier, []), settings=chosen, secret=secret, clock=clock, spider=spider
    ) as engine:
        running = asyncio.create_task(engine.run())
        await clock.sleep(until[0] - web.now)
        if until[1]:
            await web.more(until[1])
        assert not running.done(), "a continuous crawl does not end by itself"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return await frontier.counts()


def check_table(web: ChangingWeb, *, kills: Sequence[float] = (), late: float = 0.0) -> None:
    """Check that the intervals between visits of every page follow the table, with at most `late` seconds of delay.

    A page that was being fetched at a kill may be fetched twice, after the dead worker's lease."""
    for url in (*web.seeds, *web.changes):
        table = [2, 4, 1, 1, 1, 1, 1] if url.endswith(DEAD) else [1] * 11
        times = web.times(url)
        again = [later for at, later in pairwise(times) if later - at < WEEK]
        assert all(any(0 <= at - kill <= DAY + SLACK for kill in kills) for at in again), (url, times)
        visits = [at for at in times if at not in again]
        assert len(visits) == len(table) + 1, (url, times)
        for (at, later), weeks in zip(pairwise(visits), table, strict=True):
            was_killed = any(at - DAY < kill <= later for kill in kills)
            allowed = SLACK + late + (DAY if was_killed else 0.0)
            assert weeks * WEEK <= later - at <= weeks * WEEK + allowed, (url, at, later, weeks)


def check_freshness(web: ChangingWeb, predicted: float | None) -> None:
    """Check that the freshness is within a tenth of the prediction."""
    measured = web.freshness(5 * WEEK, web.now)
    assert predicted is not None
    assert abs(predicted - measured) <= 0.1 * measured, (predicted, measured)
