"""Twelve weeks of a continuous crawl on any frontier, in virtual time, and what must have come of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from gossamer.assemble import worker
from gossamer.engine.handle import Linker
from gossamer.engine.recent import Recent
from gossamer.engine.store import FleetStore
from gossamer.extract.spider import Spider
from gossamer.frontier.base import Frontier
from gossamer.settings import Settings
from gossamer.testing.changing import DAY, WEEK, ChangingWeb
from gossamer.testing.virtual import LoopClock, VirtualLoop

SLACK = 600.0
"""Seconds by which a visit may be late: the site's delay, once for each page before it, and the commit."""
LIVES = (3.4 * WEEK, 7.00002 * WEEK, 12 * WEEK - DAY)
"""When the worker of a life is killed, or the twelve weeks are over: amid a quiet time, and amid a hundred visits."""
DEAD, BACK = "/p3", 5 * WEEK
"""A page that is not there until some time."""


def settings(**values: Any) -> Settings:
    """Settings for months in virtual time: long leases, so that few renewals are to be lived through."""
    return Settings(
        **{"recrawl": "table", "lease_seconds": DAY, "commit_seconds": 1.0, "robots_seconds": 400 * DAY, **values}
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


class Patient:
    """A frontier during whose calls virtual time stands still: for stores behind sockets."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._frontier, name)
        if name == "idle" or not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            loop = cast(VirtualLoop, asyncio.get_running_loop())
            loop.busy += 1
            try:
                return await found(*args, **named)
            finally:
                loop.busy -= 1

        return call


async def live(
    frontier: Frontier, web: ChangingWeb, clock: LoopClock, *, secret: bytes, until: float, chosen: Settings
) -> None:
    """Let one worker crawl until a time, in seconds since the web began, and kill it: nothing is given back."""
    frontier = cast(Frontier, Patient(frontier))
    linker = Linker(chosen, secret, Recent())
    await frontier.add([linker.seed(url) for url in web.seeds])
    spider = Spider()
    spider.fetch_middleware = [web.middleware]
    async with worker(
        frontier, FleetStore(frontier, []), settings=chosen, secret=secret, clock=clock, spider=spider
    ) as engine:
        running = asyncio.create_task(engine.run())
        await clock.sleep(until - web.now)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def check_table(web: ChangingWeb, *, kills: Sequence[float] = ()) -> None:
    """The visits of every page follow the table; a page that was under way at a kill may have been fetched twice."""
    for url in (*web.seeds, *web.changes):
        expected = [0, 2, 6, 7, 8, 9, 10, 11] if url.endswith(DEAD) else list(range(12))
        times = web.times(url)
        assert all(at % WEEK <= SLACK + (DAY if kills else 0.0) for at in times), (url, times)
        weeks = [int(at // WEEK) for at in times]
        assert sorted(set(weeks)) == expected, (url, weeks)
        assert len(weeks) <= len(expected) + len(kills), (url, weeks)


def check_freshness(web: ChangingWeb, predicted: float | None, *, start: float = 5 * WEEK) -> None:
    """The copies are as fresh as was predicted, within a tenth."""
    measured = web.freshness(start, web.now)
    assert predicted is not None
    assert abs(predicted - measured) <= 0.1 * measured, (predicted, measured)
