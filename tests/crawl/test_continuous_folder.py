"""A continuous crawl on a shared folder, in virtual time, with kills."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gossamer.frontier.folder import open_folder
from gossamer.frontier.folder_share import Share
from gossamer.testing import weeks
from gossamer.testing.virtual import LoopClock, run


class ThreadClock(LoopClock):
    """The loop's time, for its threads too."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def monotonic(self) -> float:
        return self._loop.time()


class LoopShare(Share):
    """A folder whose server lives in the loop's time."""

    def __init__(self, root: Path, clock: LoopClock) -> None:
        super().__init__(root)
        self._clock = clock

    def clock_of(self, handle: int) -> float:
        return self._clock.epoch()


@pytest.mark.parametrize("recrawl", ["table", "adaptive", "budget=20/d"])
def test_twelve_weeks_on_a_folder_with_kills(tmp_path: Path, recrawl: str) -> None:
    random.seed(1)

    async def weeks_go_by() -> None:
        clock = ThreadClock()
        web, chosen = weeks.changing_web(clock), weeks.settings(recrawl=recrawl)
        url, root = f"folder:{tmp_path}?shards=3", tmp_path / "frontier" / "job"
        for life, until in enumerate(weeks.LIVES):
            frontier = await open_folder(
                url, "job", chosen, worker=f"life-{life}", clock=clock, share=LoopShare(root, clock), tending=False
            )
            await frontier.abandon(f"life-{life - 1}")
            await weeks.live(frontier, web, clock, secret=frontier.secret, until=until, chosen=chosen)
            counts = await frontier.counts()
            frontier.owner.abort()
        assert not counts.finished
        assert counts.known == 4 * 25
        if recrawl == "table":
            weeks.check_table(web, kills=weeks.LIVES[:-1])
        weeks.check_freshness(web, counts.freshness)

    run(weeks_go_by())
