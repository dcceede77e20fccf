"""Shortening a shard's log while its owner works, with kills and failures in between."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import Unavailable
from gossamer.frontier.folder.frontier import FolderFrontier, open_folder
from gossamer.frontier.folder.log import decode_request
from gossamer.frontier.folder.record import place_of
from gossamer.settings import Settings
from gossamer.testing.harness import keys, note, outcome, outcomes, page, pages
from gossamer.testing.harnesses import JOB, MachineClock, TimedShare

LEASE = 10.0
PAGES = 90


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: these tests sync thousands of times."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="gossamer-", dir="/dev/shm") as name:
        yield Path(name)


class StepShare(TimedShare):
    """A folder that counts what is done to the logs, and fails at one step, or from it on."""

    def __init__(self, root: Path, clock: MachineClock) -> None:
        super().__init__(root, clock)
        self.steps: list[str] = []
        self.fails_at = -1
        self.stays_gone = False
        self.lost_answer = -1
        self._puts = 0

    def arm(self, *, fails_at: int = -1, stays_gone: bool = False, lost_answer: int = -1) -> None:
        self.steps.clear()
        self.fails_at, self.stays_gone, self.lost_answer, self._puts = fails_at, stays_gone, lost_answer, 0

    def touched(self, what: str, name: str) -> None:
        if not name.startswith("shards/"):
            return
        step = len(self.steps)
        self.steps.append(f"{what} {name}")
        if step == self.fails_at or (self.stays_gone and step > self.fails_at >= 0):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def put(self, name: str, data: bytes, **options: Any) -> float:
        written_at = super().put(name, data, **options)
        if name.startswith("shards/"):
            self._puts += 1
            if self._puts == self.lost_answer + 1:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        return written_at


async def opened(folder: Path, clock: MachineClock, worker: str) -> tuple[FolderFrontier, StepShare]:
    url = f"folder:{folder}?shards=1"
    share = StepShare(place_of(url, JOB)[0], clock)
    settings = Settings(delay=0.0, lease_seconds=LEASE, recrawl="table", share_window=1_000_000)
    return await open_folder(url, JOB, settings, worker=worker, clock=clock, share=share, rounds=False), share


async def visit(frontier: FolderFrontier, clock: MachineClock, number: int) -> None:
    """Fetch all pages once more: each comes with what its last visit left. A third is tried in vain first."""
    for tries in (0, 1):
        clock.advance(0.01)
        (lease,) = (await frontier.lease(1, batch=PAGES, seconds=LEASE)).leases
        assert len(lease.requests) == (len(range(0, PAGES, 3)) if tries else PAGES)
        assert {(request.state or {}).get("visit", 0) for request in lease.requests} == {number - 1}
        assert {request.tries for request in lease.requests} == {tries}
        settled = [
            outcome(lease, key, "retry", again_in=0.0, reason="timeout")
            if key % 3 == 0 and not tries
            else outcome(lease, key, again_in=0.005 + 0.01 * (not tries), state={"visit": number})
            for key in keys(lease)
        ]
        await frontier.complete(settled, notes=[note(lease, memo={"visit": number})])


async def until_long(frontier: FolderFrontier, clock: MachineClock) -> int:
    """Visit pages until the next change makes the log short; how often."""
    await frontier.add(pages(*range(PAGES)))
    number = 0
    while not frontier.owner.shards[0].journal.is_long:
        number += 1
        await visit(frontier, clock, number)
    return number


async def left(folder: Path, clock: MachineClock, before: str, worker: str) -> dict[int, int]:
    """What an heir finds: each page with its last visit."""
    heir, _ = await opened(folder, clock, worker)
    await heir.abandon(before)
    clock.advance(1.0)
    found: dict[int, int] = {}
    while leases := (await heir.lease(9, batch=1000, seconds=LEASE)).leases:
        for lease in leases:
            found |= {request.key: (request.state or {}).get("visit", 0) for request in lease.requests}
            await heir.complete(outcomes(lease))
    heir.owner.abort()
    return found


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/shards/0000/*"))


def test_a_log_stays_short_in_the_hands_of_one_worker(tmp_path: Path) -> None:
    async def run() -> None:
        clock = MachineClock()
        frontier, _ = await opened(tmp_path, clock, "one")
        await frontier.add(pages(*range(PAGES)))
        largest = 0
        for number in range(1, 31):
            await visit(frontier, clock, number)
            largest = max(largest, sum(path.stat().st_size for path in files(tmp_path)))
        assert largest < 200_000
        assert [path.name.partition("-")[0] for path in files(tmp_path)] == ["log", "past"]
        counts = await frontier.counts()
        assert counts.stored == 30 * PAGES
        found = await frontier.owner.shards[0].find(3)
        frontier.owner.abort()
        heir, _ = await opened(tmp_path, clock, "heir")
        await heir.abandon("one")
        assert await heir.counts() == counts
        assert await heir.owner.shards[0].find(3) == found
        await visit(heir, clock, 31)
        heir.owner.abort()

    asyncio.run(run())


def test_large_notes_do_not_make_a_log_long(tmp_path: Path) -> None:
    """A note has all that is known of a site, its robots.txt too, each time; only the last one matters."""

    async def run() -> None:
        clock = MachineClock()
        frontier, _ = await opened(tmp_path, clock, "one")
        await frontier.add(pages(*range(100)))
        (lease,) = (await frontier.lease(1, batch=100, seconds=LEASE)).leases
        robots = {"https://a.example": b"x" * 500_000}
        for key in keys(lease)[:-1]:
            await frontier.complete([outcome(lease, key)], notes=[note(lease, robots=robots, memo={"last": key})])
        assert sum(path.stat().st_size for path in files(tmp_path)) < 40_000_000
        frontier.owner.abort()
        heir, _ = await opened(tmp_path, clock, "heir")
        await heir.abandon("one")
        clock.advance(1.0)
        (lease,) = (await heir.lease(1, batch=1, seconds=LEASE)).leases
        assert (lease.memo, lease.robots) == ({"last": 98}, robots)
        heir.owner.abort()

    asyncio.run(run())


@pytest.mark.parametrize("ending", ["dies", "fails once", "loses an answer"])
def test_a_log_that_is_made_short_survives_a_kill_or_a_fault_at_any_step(tmp_path: Path, ending: str) -> None:
    """F47 F49: at each operation in turn the worker ends, or the operation fails, or its answer gets lost."""

    reached: set[str] = set()

    async def run(folder: Path, step: int) -> bool:
        clock = MachineClock()
        frontier, share = await opened(folder, clock, "one")
        visits = await until_long(frontier, clock)
        if ending == "loses an answer":
            share.arm(lost_answer=step)
        else:
            share.arm(fails_at=step, stays_gone=ending == "dies")
        added: set[int] = set()
        for key in (1001, 1002, 1003):
            for _ in range(1 if ending == "dies" else 3):
                try:
                    await frontier.add([page(key)])
                    added.add(key)
                    break
                except Unavailable:
                    clock.advance(0.1)
        was_reached = step < (share._puts if ending == "loses an answer" else len(share.steps))
        reached.update(share.steps)
        assert added == {1001, 1002, 1003} or ending == "dies"
        frontier.owner.abort()
        found = await left(folder, clock, "one", "heir")
        assert {key: found.get(key) for key in range(PAGES)} == dict.fromkeys(range(PAGES), visits)
        assert added <= found.keys()
        return was_reached

    for step in range(50):
        if not asyncio.run(run(tmp_path / str(step), step)):
            break
    assert (2 if ending == "loses an answer" else 8) <= step < 50
    assert {"read", "rename", "list", "remove", "append", "fsync"} <= {step.partition(" ")[0] for step in reached}


def test_links_to_other_shards_go_out_though_the_log_was_made_short(tmp_path: Path) -> None:
    """P3: those that had gone out when nobody had written that down yet may go once more; none is left out."""

    async def run() -> None:
        clock = MachineClock()
        frontier, _ = await opened(tmp_path, clock, "one")
        shard = frontier.owner.shards[0]
        journal = shard.journal
        journal.staged = [page(key, "b.example") for key in (2001, 2002, 2003, 2004, 2005)]
        await shard.add([page(1)])
        journal.staged = []
        journal.sent(2)
        await until_long(frontier, clock)
        journal.sent(1)
        await shard.add([page(1001)])
        assert not journal.is_long
        await shard.add([page(1002)])
        left = list(journal.outgoing)
        frontier.owner.abort()
        heir, _ = await opened(tmp_path, clock, "heir")
        await heir.abandon("one")
        assert [decode_request(link).key for link in left] == [2004, 2005]
        assert heir.owner.shards[0].journal.outgoing == left
        heir.owner.abort()

    asyncio.run(run())


def test_a_late_owner_that_makes_its_log_short_changes_nothing(tmp_path: Path) -> None:
    """P4: its new log comes after the take-over, and is never read."""

    async def run() -> None:
        clock = MachineClock()
        frontier, share = await opened(tmp_path, clock, "one")
        visits = await until_long(frontier, clock)
        share.arm(lost_answer=1)
        with pytest.raises(Unavailable):
            await frontier.add([page(1001)])
        clock.advance(3 * LEASE)
        heir, _ = await opened(tmp_path, clock, "heir")
        await heir.abandon("one")
        assert await heir.add([page(1002)]) == 1
        share.arm()
        with pytest.raises(Unavailable):
            await frontier.owner.shards[0].add([page(1003)])
        assert any(step.startswith("rename") for step in share.steps)
        assert await heir.add([page(1004)]) == 1
        frontier.owner.abort()
        heir.owner.abort()
        found = await left(tmp_path, clock, "heir", "third")
        assert found == {**dict.fromkeys(range(PAGES), visits), 1002: 0, 1004: 0}

    asyncio.run(run())
