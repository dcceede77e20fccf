"""Several owners of one shared folder, in virtual time: ownership of shards, and valid writes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gossamer.errors import ConfigError, Held, JobMissing, SchemaMismatch
from gossamer.frontier.folder.claims import Claims, SessionHeartbeat
from gossamer.frontier.folder.files import SharedFolder
from gossamer.frontier.folder.frontier import FolderFrontier, open_folder
from gossamer.frontier.folder.owner import BalanceView, is_running, state_and_start, this_process, to_give, to_take
from gossamer.frontier.folder.record import Layout
from gossamer.model import Lease
from gossamer.settings import Settings
from gossamer.testing.harness import keys, note, outcome, outcomes, page, pages
from gossamer.testing.harnesses import JOB, FolderHarness

LEASE = 10.0
SHARDS = 7
LAYOUT = Layout(SHARDS)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: these tests sync thousands of times."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="gossamer-", dir="/dev/shm") as name:
        yield Path(name)


class Fleet(FolderHarness):
    """Workers on machines of their own; each does a round only when the test says so, or when it leases."""

    def __init__(self, folder: Path, **values: Any) -> None:
        super().__init__(folder, Settings(lease_seconds=LEASE, **{"delay": 0.0, **values}), shards=SHARDS)
        self.all: list[FolderFrontier] = []

    async def hire(self, name: str, region: str = "") -> FolderFrontier:
        worker = await self.open(name, region)
        self.all.append(worker)
        return worker

    async def rounds(self, *workers: FolderFrontier, count: int = 4) -> None:
        """Let time pass, with all of them alive."""
        for _ in range(count):
            self.clock.advance(1.25)
            for worker in workers:
                await worker.owner.run_round()


def play(test: Callable[[Fleet], Coroutine[Any, Any, None]], folder: Path, **values: Any) -> None:
    async def run() -> None:
        fleet = Fleet(folder, **values)
        try:
            await test(fleet)
        finally:
            for worker in fleet.all:
                worker.owner.abort()

    asyncio.run(run())


async def lease(worker: FolderFrontier, **options: Any) -> list[Lease]:
    return list((await worker.lease(100, **{"batch": 100, "seconds": LEASE, **options})).leases)


async def drain(*workers: FolderFrontier) -> list[int]:
    """Fetch all there is, in turns; the keys in their order."""
    found: list[int] = []
    over: set[str] = set()
    for _ in range(200):
        for worker in workers:
            grant = await worker.lease(2, batch=3, seconds=LEASE)
            for each in grant.leases:
                found += keys(each)
                assert (await worker.complete(outcomes(each))).accepted == len(each.requests)
            over = over | {worker.worker} if grant.job == "finished" else over - {worker.worker}
            worker.owner.clock._clock.advance(0.3)  # type: ignore[attr-defined]
        if len(over) == len(workers):
            return found
    raise AssertionError("it does not end")


async def fetch(worker: FolderFrontier) -> list[int]:
    """Fetch what it has, though the job be not over; the keys."""
    found: list[int] = []
    while leases := await lease(worker):
        for each in leases:
            found += keys(each)
            await worker.complete(outcomes(each))
    return found


def owners(*workers: FolderFrontier) -> list[int]:
    return [len(worker.owner.shards) for worker in workers]


def site_in(shard: int) -> str:
    return next(f"{n}.example" for n in range(1000) if LAYOUT.shard_of(f"{n}.example") == shard)


def test_a_claim_after_one_that_was_swept_long_ago_takes_nothing(tmp_path: Path) -> None:
    share = SharedFolder(tmp_path)
    share.make_folders("claims", "tmp")
    quick, late = Claims(share, 1), Claims(share, 1)
    for number in range(12):
        assert quick.take(0, number, "quick", 1) == number + 1
    assert not (tmp_path / "claims" / "0000-0000000002").exists()
    assert late.take(0, 1, "late", 2) == 0
    late.look(fresh=True)
    assert (late.newest[0].number, late.newest[0].claim.session) == (12, "quick")


def test_workers_share_out_the_shards_and_a_new_one_gets_its_part(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one = await fleet.hire("one")
        assert owners(one) == [SHARDS]
        two = await fleet.hire("two")
        await fleet.rounds(one, two)
        assert sorted(owners(one, two)) == [3, 4]
        three = await fleet.hire("three")
        await fleet.rounds(one, two, three)
        assert sorted(owners(one, two, three)) == [2, 2, 3]
        held = [number for worker in (one, two, three) for number in worker.owner.shards]
        assert sorted(held) == list(range(SHARDS))
        await three.aclose()
        await fleet.rounds(one, two)
        assert sum(owners(one, two)) == SHARDS

    play(run, tmp_path)


def test_p8_workers_on_their_own_machines_fetch_everything_once(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one, two, three = [await fleet.hire(name) for name in ("one", "two", "three")]
        wanted: list[Any] = []
        for site in range(20):
            numbers = range(site * 100, site * 100 + 9)
            wanted += numbers
            await (one, two, three)[site % 3].add(pages(*numbers, site=f"{site}.example"))
        found = await drain(one, two, three)
        assert sorted(found) == sorted(wanted)
        for worker in (one, two, three):
            counts = await worker.counts()
            assert (counts.done, counts.queued, counts.known, counts.finished) == (180, 0, 180, True)

    play(run, tmp_path)


def test_p9_a_dead_workers_shards_are_taken_over_within_lease_and_delay(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        dead = await fleet.hire("dead")
        await dead.add(pages(1, 2, 3))
        (old,) = await lease(dead, batch=2)
        await dead.complete([outcome(old, 1)])
        other = await fleet.hire("other")
        assert await lease(other) == []
        await fleet.rounds(other, count=7)
        assert owners(other) == [0], "its claim stands until its time is over"
        await fleet.rounds(other, count=2)
        assert owners(other) == [SHARDS]
        fleet.clock.advance(2.0)
        (new,) = await lease(other)
        assert keys(new) == [2, 3]
        assert new.token > old.token

    play(run, tmp_path, delay=2.0)


def test_p5_the_sites_of_a_shard_rest_when_it_changes_hands(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one = await fleet.hire("one")
        await one.add(pages(1, 2))
        await one.release(await lease(one))
        await one.aclose()
        two = await fleet.hire("two")
        fleet.clock.advance(1.9)
        assert await lease(two) == []
        fleet.clock.advance(0.2)
        assert len(await lease(two)) == 1

    play(run, tmp_path, delay=2.0)


def test_p4_a_late_worker_changes_nothing(tmp_path: Path) -> None:
    """It was stopped for longer than its lease, and goes on as if nothing had been."""

    async def run(fleet: Fleet) -> None:
        late = await fleet.hire("late")
        await late.add(pages(1, 2, 3))
        (old,) = await lease(late)
        other = await fleet.hire("other")
        await lease(other)
        await fleet.rounds(other, count=9)
        (new,) = await lease(other)
        receipt = await late.complete(outcomes(old, links=(page(9), page(10, "b.example"))), notes=[note(old, hold=99)])
        assert (receipt.accepted, receipt.stale) == (0, 3)
        assert await late.extend([old], seconds=LEASE) == []
        await late.release([old])
        assert (await other.complete(outcomes(new))).accepted == 3
        counts = await other.counts()
        assert (counts.done, counts.known, counts.held_sites) == (3, 3, 0)
        assert owners(late) == [0]

    play(run, tmp_path)


def test_p4_a_late_worker_whose_shards_nobody_wanted_goes_on(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        late = await fleet.hire("late")
        await late.add(pages(1))
        (old,) = await lease(late, seconds=100 * LEASE)
        fleet.clock.advance(5 * LEASE)
        assert (await late.complete(outcomes(old))).accepted == 1
        assert (await late.counts()).finished

    play(run, tmp_path)


def test_p4_what_a_late_owner_writes_after_the_take_over_is_never_read(tmp_path: Path) -> None:
    """The claim is lost between the check before a write and the write itself: the bytes are in the old log."""

    async def run(fleet: Fleet) -> None:
        late = await fleet.hire("late")
        await late.add(pages(1))
        (old,) = await lease(late)
        number = LAYOUT.shard_of("a.example")
        shard = late.owner.shards[number]
        append = shard.journal._append
        taken: list[FolderFrontier] = []

        def stopped(data: bytes, end: int) -> None:
            # The process is stopped here, for longer than its lease; meanwhile everything is taken over.
            fleet.clock.advance(LEASE + 0.1)
            asyncio.run_coroutine_threadsafe(take_over(), loop).result(20)
            append(data, end)

        async def take_over() -> None:
            other = await fleet.hire("other")
            await fleet.rounds(other, count=2)
            taken.append(other)

        loop = asyncio.get_running_loop()
        shard.journal._append = stopped  # type: ignore[method-assign]
        receipt = await late.complete(outcomes(old, links=(page(2),)))
        assert (receipt.accepted, receipt.stale) == (0, 1), "what it wrote counts for nobody, and it must know"
        (new,) = await lease(taken[0])
        assert keys(new) == [1]
        await taken[0].complete(outcomes(new))
        taken[0].owner.abort()
        third = await fleet.hire("third")
        await third.abandon("other")
        counts = await third.counts()
        assert (counts.done, counts.known, counts.finished) == (1, 1, True)

    play(run, tmp_path)


def test_tokens_grow_over_all_owners(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        last = 0
        previous = ""
        for life in range(5):
            worker = await fleet.hire(f"life-{life}")
            if previous:
                await worker.abandon(previous)
            await worker.add(pages(1) + pages(2, site="b.example"))
            found = sorted(one.token for one in await lease(worker))
            assert found[0] > last
            last, previous = found[-1], worker.worker
            worker.owner.abort()

    play(run, tmp_path)


async def _two_halves(fleet: Fleet) -> tuple[FolderFrontier, FolderFrontier, str, str]:
    """Two workers, and a site of each."""
    one, two = await fleet.hire("one"), await fleet.hire("two")
    await fleet.rounds(one, two)
    assert all(owners(one, two))
    return one, two, site_in(min(one.owner.shards)), site_in(min(two.owner.shards))


def test_p3_links_to_other_workers_arrive_and_name_their_page(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one, two, here, there = await _two_halves(fleet)
        await one.add([page(1, here)])
        (held,) = await lease(one)
        await one.complete(outcomes(held, links=(page(2, there), page(3, here))))
        await fleet.rounds(one, two, count=1)
        (arrived,) = await lease(two)
        assert [(request.key, request.referrer) for request in arrived.requests] == [(2, f"http://{here}/1")]
        await one.complete(outcomes((await lease(one))[0], links=(page(2, there),)))
        await two.complete(outcomes(arrived))
        await fleet.rounds(one, two)
        assert (await two.counts()).known == 3

    play(run, tmp_path)


def test_p3_links_of_a_dead_worker_are_sent_by_its_successor(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one, two, here, there = await _two_halves(fleet)
        await one.add([page(1, here)])
        (held,) = await lease(one)
        assert (await one.complete(outcomes(held, links=(page(2, there),)))).accepted == 1
        one.owner.abort()
        await two.abandon("one")
        assert not (await two.counts()).finished
        assert await drain(two) == [2]

    play(run, tmp_path)


def test_p6_a_job_is_not_finished_while_links_are_on_their_way(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one, two, here, there = await _two_halves(fleet)
        await one.add([page(1, here)])
        (held,) = await lease(one)
        await one.complete(outcomes(held, links=(page(2, there),)))
        for _ in range(3):
            # It is in the log of one, then in the inbox, then with two.
            for worker in (one, two):
                assert not (await worker.counts()).finished
                assert (await worker.lease(0, batch=1, seconds=LEASE)).job == "running"
            await one.owner.links.deliver()
        fleet.clock.advance(1.25)
        assert (await one.lease(0, batch=1, seconds=LEASE)).job == "running", "two has not said what it found"
        assert await drain(one, two) == [2]

    play(run, tmp_path)


def test_p6_a_job_is_not_finished_while_shards_of_a_dead_worker_wait(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one, two, here, _ = await _two_halves(fleet)
        await fleet.rounds(one, two)
        await one.add([page(1, here)])
        one.owner.abort()
        for _ in range(3):
            assert (await two.lease(1, batch=1, seconds=LEASE)).job == "running"
            fleet.clock.advance(LEASE / 4)
        await two.abandon("one")
        assert await drain(two) == [1]

    play(run, tmp_path)


def test_a_visitor_can_add_count_and_control_but_not_lease(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        visitor = await fleet.hire("")
        assert await visitor.add(pages(1, 2)) == 2
        assert not (await visitor.counts()).finished
        worker = await fleet.hire("worker")
        await worker.owner.run_round()
        assert (await visitor.counts()).queued == 2
        await visitor.steer("paused")
        fleet.clock.advance(1.25)
        assert (await worker.lease(9, batch=9, seconds=LEASE)).job == "paused"
        await visitor.steer("running")
        fleet.clock.advance(1.25)
        assert await drain(worker) == [1, 2]
        assert (await visitor.counts()).finished
        assert owners(visitor) == [0]
        assert [heartbeat.worker for heartbeat in await visitor.workers()] == ["worker"]
        await worker.aclose()
        counts = await visitor.counts()
        assert (counts.done, counts.finished) == (2, True)
        assert len(await visitor.shards()) == SHARDS
        story = await visitor.lookup("http://a.example/1")
        assert story is None, "the key of a page in this test is not that of its URL"

    play(run, tmp_path)


def test_what_failed_is_counted_when_all_workers_have_left(tmp_path: Path) -> None:
    """Walking over the sites was dear the last time, so it is long until the next; but for the last word."""

    async def check(fleet: Fleet) -> None:
        worker = await fleet.hire("one")
        await worker.add(pages(1, 2))
        (leased,) = await lease(worker)
        for shard in worker.owner.shards.values():
            shard._counting_seconds = 1e9
        await worker.complete([outcome(leased, 1, "failed"), outcome(leased, 2)])
        await worker.aclose()
        counts = await (await fleet.hire("")).counts()
        assert (counts.done, counts.failed, counts.stored, counts.finished) == (1, 1, 2, True)

    play(check, tmp_path)


def test_an_idle_worker_is_given_work_by_those_who_have_more(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one, two, _, _ = await _two_halves(fleet)
        for shard in list(one.owner.shards):
            await one.add(pages(*range(shard * 100, shard * 100 + 50), site=site_in(shard)))
        assert await lease(two) == []
        for _ in range(4):
            await fleet.rounds(one, two, count=1)
            if found := await lease(two):
                break
        assert found, "one had several shards with work, two none"

    play(run, tmp_path)


@asynccontextmanager
async def opened(fleet: Fleet, life: int) -> AsyncIterator[FolderFrontier]:
    worker = await fleet.hire(f"life-{life}")
    await worker.abandon(f"life-{life - 1}")
    yield worker
    worker.owner.abort()


def log_files(root: Path) -> list[Path]:
    return sorted((root / "shards" / f"{LAYOUT.shard_of('a.example'):04}").iterdir())


@pytest.mark.parametrize("damage", ["cut", "zeros", "garbage"])
def test_p7_a_torn_tail_is_cut_and_what_was_acknowledged_is_there(tmp_path: Path, damage: str) -> None:
    """F47: the owner died in the middle of a write."""

    async def run(fleet: Fleet) -> None:
        async with opened(fleet, 0) as worker:
            await worker.add(pages(1, 2))
            before = log_files(fleet.root)[-1].stat().st_size
            await worker.add(pages(3))
        log = log_files(fleet.root)[-1]
        whole = log.read_bytes()
        if damage == "cut":
            log.write_bytes(whole[: before + 5])
        else:
            log.write_bytes(whole + (bytes(200) if damage == "zeros" else os.urandom(200)))
        known = 2 if damage == "cut" else 3
        for life in (1, 2):
            async with opened(fleet, life) as worker:
                assert (await worker.counts()).known == known
                known += 1
                assert await worker.add(pages(100 + life)) == 1

    play(run, tmp_path)


def test_p7_a_log_that_lost_acknowledged_bytes_is_refused_with_words(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        for life in (0, 1):
            async with opened(fleet, life) as worker:
                await worker.add(pages(life))
        first = log_files(fleet.root)[0]
        first.write_bytes(first.read_bytes()[:-9])
        with pytest.raises(SchemaMismatch, match="had"):
            async with opened(fleet, 2):
                pass

    play(run, tmp_path)


def test_p7_a_long_past_is_made_short_and_says_the_same(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        counts = None
        for life in range(14):
            async with opened(fleet, life) as worker:
                if counts is not None:
                    assert await worker.counts() == counts
                await worker.add(pages(*range(life * 10, life * 10 + 4)))
                (held,) = await lease(worker, batch=3)
                assert all(request.state in (None, {"n": 1}) for request in held.requests)
                first, second, third = keys(held)
                await worker.complete(
                    [
                        outcome(held, first, again_in=0.0, state={"n": 1}),
                        outcome(held, second, "retry", again_in=5000.0),
                        outcome(held, third, "failed", reason="x"),
                    ],
                    notes=[note(held, memo={"life": life})],
                )
                counts = await worker.counts()
        names = [path.name for path in log_files(fleet.root)]
        assert len(names) <= 7, "logs that nothing refers to are swept"
        assert any(name.startswith("past-") for name in names)
        assert not list((fleet.root / "tmp").iterdir())

    play(run, tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        url = f"folder:{tmp_path}"
        with pytest.raises(JobMissing):
            await open_folder(url, JOB, worker="one")
        for wrong in ("folder:relative", f"{url}?shards=0", f"{url}?shards=x", f"{url}?colour=red"):
            with pytest.raises(ConfigError):
                await open_folder(wrong, JOB, Settings())
        await (await fleet.hire("one")).aclose()
        record = fleet.root / "job.json"
        whole = json.loads(record.read_text())
        for text in ("", "{}", "[1, 2", json.dumps({**whole, "format": 99})):
            record.write_text(text)
            with pytest.raises(SchemaMismatch):
                await open_folder(url, JOB, Settings(), worker="one")
            assert record.read_text() == text, "it was left as it is"

    play(run, tmp_path)


def test_an_unreadable_letter_is_moved_aside(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        worker = await fleet.hire("one")
        await worker.add(pages(1))
        (fleet.root / "inbox" / f"{LAYOUT.shard_of('a.example'):04}-bad").write_bytes(b"\xc1")
        await fleet.rounds(worker, count=1)
        assert [path.name[5:] for path in (fleet.root / "refused").iterdir()] == ["bad"]
        assert await drain(worker) == [1]

    play(run, tmp_path)


def test_many_letters_are_read_in_parts(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        visitor = await fleet.hire("")
        for number in range(5):
            await visitor.add(pages(2 * number, 2 * number + 1))
        post = visitor.owner.inbox
        waiting = post.waiting()[LAYOUT.shard_of("a.example")]
        requests, taken = post.read(waiting, 3)
        assert ([request.key for request in requests], taken) == ([0, 1, 2, 3], waiting[:2])

    play(run, tmp_path)


def scene(me: str, holders: dict[int, str], work: dict[int, int] | None = None, **more: Any) -> BalanceView:
    work, leased = work or {}, more.get("leased", ())
    return BalanceView(me, more.get("live", "abc"), more.get("hungry", ""), holders, work, range(9), leased)


def test_a_fair_number_is_taken_and_kept() -> None:
    holders = dict.fromkeys(range(5), "a")
    assert len(to_take(scene("b", holders))) == 3
    assert len(to_give(scene("a", holders))) == 2
    uneven = {**dict.fromkeys(range(4), "a"), **dict.fromkeys(range(4, 8), "b"), 8: "c"}
    assert [len(to_give(scene(me, uneven))) for me in "abc"] == [1, 1, 0]
    del uneven[3]
    assert [len(to_take(scene(me, uneven))) for me in "abc"] == [0, 0, 1], "not back to who has just given it"
    assert to_take(scene("a", holders)) == []
    fair = {shard: "abc"[shard % 3] for shard in range(9)}
    for me in "abc":
        assert to_give(scene(me, fair, dict.fromkeys(range(9), 100))) == to_take(scene(me, fair)) == []
    assert to_take(scene("b", {}, {4: 1}))[0] == 4, "where there is work first"
    assert len(to_take(scene("a", {}, live="a"))) == 9


def test_shards_without_work_are_given_before_others() -> None:
    assert 0 not in to_give(scene("a", dict.fromkeys(range(5), "a"), {0: 5}))


def test_work_moves_to_workers_that_have_less() -> None:
    fair = {shard: "abc"[shard % 3] for shard in range(9)}
    work = {0: 200, 3: 100, 6: 100, 1: 200}
    assert to_give(scene("a", fair, work)) == [0], "as much as it has too much"
    assert to_give(scene("a", fair, work, leased=(0,))) == [3, 6], "first what is not in anybody's hands"
    assert to_give(scene("b", fair, work)) == to_give(scene("c", fair, work)) == []
    assert to_give(scene("a", fair, {0: 9, 3: 5})) == [], "too little to be moved"
    assert to_take(scene("c", {shard: who for shard, who in fair.items() if shard}, work)) == [0]
    assert to_take(scene("a", {shard: who for shard, who in fair.items() if shard}, {**work, 3: 400})) == []


def test_each_lease_is_read_once_and_sites_keep_their_turn(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        worker = await fleet.hire("one")
        here = [f"{n}.example" for n in range(200) if LAYOUT.shard_of(f"{n}.example") == 0][:12]
        for turn, site in enumerate(here):
            await worker.add(pages(turn * 10, turn * 10 + 1, site=site))
        journal, reads = worker.owner.shards[0].journal, []
        fetch = journal.fetch

        async def counted(numbers: Sequence[int], visits: Mapping[int, int]) -> None:
            reads.append(numbers)
            await fetch(numbers, visits)

        journal.fetch = counted  # type: ignore[method-assign]
        held = list((await worker.lease(5, batch=100, seconds=LEASE)).leases)
        assert ([each.site for each in held], len(reads)) == (here[:5], 5)

    play(run, tmp_path)


def test_shards_about_to_be_given_away_count_as_given(tmp_path: Path) -> None:
    """Its leases are waited for, and meanwhile the shards that stay grow: no more of them are given for that."""

    async def run(fleet: Fleet) -> None:
        one = await fleet.hire("one")
        for shard in range(SHARDS):
            await one.add(pages(*range(shard * 1000, shard * 1000 + 30), site=site_in(shard)))
        assert len(await lease(one, batch=5)) == SHARDS
        two = await fleet.hire("two")
        for turn in range(5):
            await fleet.rounds(one, two, count=1)
            await lease(two)
            leaving = [shard.number for shard in one.owner.shards.values() if shard.leaving]
            for shard in set(range(SHARDS)) - set(leaving):
                await one.add(pages(shard * 1000 + 100 + turn, site=site_in(shard)))
        assert len(leaving) <= 4

    play(run, tmp_path)


def test_leases_of_the_last_work_are_short_if_others_are_there(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one = await fleet.hire("one")
        await one.add(pages(*range(40)))
        (alone,) = await lease(one, batch=30)
        assert len(alone.requests) == 30
        await one.release([alone])
        two = await fleet.hire("two")
        await fleet.rounds(two, one, count=1)
        (held,) = [*await lease(one, batch=30), *await lease(two, batch=30)]
        assert len(held.requests) == 8

    play(run, tmp_path)


def test_the_sites_of_a_region_wait_for_its_workers(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        visitor = await fleet.hire("")
        await visitor.add([page(1, "a.eu"), page(2, "b.us"), page(3, "c.example")])
        anybody, eu = await fleet.hire("anybody"), await fleet.hire("here", "eu")
        await fleet.rounds(anybody, eu)
        assert sorted(await fetch(eu) + await fetch(anybody)) == [1, 3]
        await fleet.rounds(anybody, eu)
        assert (await anybody.lease(1, batch=1, seconds=LEASE)).job == "running"
        for worker in (anybody, eu, visitor):
            views = [view.regions["us"] for view in await worker.shards() if "us" in view.regions]
            assert (len(views), sum(view.ready for view in views)) == (SHARDS, 1), "somebody is missing"
        us = await fleet.hire("there", "us")
        await fleet.rounds(anybody, eu, us)
        (held,) = await lease(us)
        assert keys(held) == [2]
        await us.complete(outcomes(held, links=(page(4, "plain.example"), page(5, "a.us"))))
        await fleet.rounds(anybody, eu, us)
        assert (await fetch(anybody), await fetch(eu), await fetch(us)) == ([], [4], [5])
        await fleet.rounds(anybody, eu, us)
        assert (await us.lease(1, batch=1, seconds=LEASE)).job == "finished"
        assert {eu.owner.layout.region(number) for number in eu.owner.shards} == {"eu", ""}

    play(run, tmp_path, regions={"eu": ("*.eu", "plain.example"), "us": ("*.us",)})


def test_the_regions_of_a_job_stay_as_they_were(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        await (await fleet.hire("one")).aclose()
        url = f"folder:{tmp_path}"
        others: list[dict[str, tuple[str, ...]]] = [{}, {"eu": ("*.eu", "*.fr")}, {"eu": ("*.eu",), "us": ("*",)}]
        for other in others:
            with pytest.raises(ConfigError, match="cannot change the regions"):
                await open_folder(url, JOB, Settings(regions=other))
        with pytest.raises(ConfigError, match="does not support region_by auto"):
            await open_folder(url, "another", Settings(region_by="auto"))
        with pytest.raises(ConfigError, match="more than"):
            await open_folder(f"{url}?shards=4096", "another", Settings(regions={"eu": ("*.eu",), "us": ("*",)}))
        assert not (tmp_path / "frontier" / "another").exists()

    play(run, tmp_path, regions={"eu": ("*.eu",)})


@pytest.mark.parametrize("seed", range(20))
def test_shards_come_to_rest_with_fair_shares_of_the_work(seed: int) -> None:
    """Workers come one by one; whatever the shards weigh, there is an end to giving and taking."""
    chance = random.Random(seed)
    shards = range(64)
    work = {shard: chance.choice((0, 1, chance.randrange(40), chance.randrange(40))) for shard in shards}
    holders: dict[int, str] = {}
    live: list[str] = []
    for name in "abcdefghij":
        live.append(name)
        for _ in range(30):
            moved = False
            for me in chance.sample(live, len(live)):
                seen = BalanceView(me, tuple(live), (), dict(holders), {s: w for s, w in work.items() if w}, shards)
                given, taken = to_give(seen), to_take(seen)
                moved = moved or bool(given or taken)
                holders = {shard: who for shard, who in holders.items() if shard not in given}
                holders |= {shard: me for shard in taken if shard not in holders}
            if not moved:
                break
        else:
            pytest.fail(f"{len(live)} workers: it goes on and on")
    assert set(holders) == set(shards)
    shares = [sum(work[shard] for shard, who in holders.items() if who == name) for name in live]
    assert max(shares) <= 1.5 * sum(shares) / len(shares) + 16
    assert min(shares) >= sum(shares) / len(shares) / 2 - 16


def test_a_claim_that_others_have_followed_is_lost(tmp_path: Path) -> None:
    """Two see the same shard without an owner; the slower one decides by what it saw, not by what is there now."""

    async def run(fleet: Fleet) -> None:
        first = await fleet.hire("first")
        await first.owner.give(0)
        await first.owner.look()
        seen = first.owner.claims.newest[0].number
        fleet.clock.advance(0.1)
        second = await fleet.hire("second")
        assert 0 in second.owner.shards
        await first.owner.look()
        assert await first.owner.take({0: seen}) == []
        assert 0 in second.owner.shards
        await second.add(pages(1, site=site_in(0)))
        assert len(await lease(second)) == 1

    play(run, tmp_path)


def test_pages_that_are_there_already_are_known_and_not_fetched(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        visitor = await fleet.hire("")
        await visitor.adopt(pages(1, 2))
        await visitor.add(pages(2, 3))
        worker = await fleet.hire("worker")
        await fleet.rounds(worker, count=1)
        await worker.adopt(pages(4))
        assert await worker.add(pages(1, 4)) == 0
        for _ in range(2):
            counts = await worker.counts()
            assert (counts.skipped, counts.stored, counts.queued, counts.known) == (3, 0, 1, 4)
            worker.owner.abort()
            previous, worker = worker, await fleet.hire(f"{worker.worker}+")
            await worker.abandon(previous.worker)
        assert await drain(worker) == [3]

    play(run, tmp_path)


def test_a_second_worker_of_a_living_ones_name_is_refused(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one = await fleet.hire("one")
        await one.add(pages(1, 2))
        (held,) = await lease(one)
        with pytest.raises(Held, match="'one'"):
            await fleet.hire("one")
        # On another machine it is known only by its heart.
        one.owner.life = "elsewhere"
        await one.owner.renew()
        second = asyncio.create_task(fleet.hire("one"))
        while not second.done():
            await one.owner.renew()
        with pytest.raises(Held):
            await second
        assert (await one.complete(outcomes(held))).accepted == 2
        await one.aclose()
        again = await fleet.hire("one")
        assert (await again.counts()).done == 2

    play(run, tmp_path)


def test_a_dead_worker_of_the_same_name_is_followed_at_once_if_its_end_can_be_seen(tmp_path: Path) -> None:
    """Otherwise when its lease is over: it may only be asleep, and then what it says still counts."""

    with subprocess.Popen(["true"]) as process:
        life = this_process().replace(f" {os.getpid()} ", f" {process.pid} ")

    async def run(fleet: Fleet) -> None:
        waited = []
        for seen in (life, "", "other-boot pid:[1] 1 1"):
            old = await fleet.hire("one")
            old.owner.life = seen
            await old.owner.renew()
            before = fleet.clock.monotonic()
            new = await fleet.hire("one")
            await new.abandon("one")
            waited.append(fleet.clock.monotonic() - before)
            assert owners(new) == [SHARDS]
            await new.aclose()
        assert waited[0] == 0.0
        assert min(waited[1:]) >= LEASE

    play(run, tmp_path)


def test_a_repair_waits_until_those_who_were_killed_must_be_dead(tmp_path: Path) -> None:
    """To a new worker, the heartbeat that they leave behind looks like that of a live worker."""

    with subprocess.Popen(["true"]) as process:
        life = this_process().replace(f" {os.getpid()} ", f" {process.pid} ")

    async def run(fleet: Fleet) -> None:
        waited = []
        for number, seen in enumerate((life, "", "other-boot pid:[1] 1 1")):
            killed = await fleet.hire(f"one-{number}")
            await killed.add(pages(1))
            assert await fetch(killed) == [1]
            killed.owner.life = seen
            await killed.owner.renew()
            killed.owner.abort()
            repairer, before = await fleet.hire("repair"), fleet.clock.monotonic()
            assert (await repairer.requeue_lost(lambda key: False)).queued == 1
            waited.append(fleet.clock.monotonic() - before)
            # A round before that would have given it shards, which are as many as those of the living.
            assert not repairer.owner.has_other_workers
            await repairer.aclose()
        assert min(waited) >= LEASE

    play(run, tmp_path)


def test_a_repair_takes_no_shard_of_a_living_worker(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        living = await fleet.hire("one")
        await living.add(pages(1))
        assert await fetch(living) == [1]
        repairer = await fleet.hire("repair")
        for life in (living.owner.life, "elsewhere"):
            living.owner.life = life
            await living.owner.renew()
            repairing = asyncio.create_task(repairer.requeue_lost(lambda key: False))
            while not repairing.done():
                await living.owner.renew()
            with pytest.raises(Held, match="other workers are running"):
                await repairing
        await living.aclose()
        assert (await repairer.requeue_lost(lambda key: False)).queued == 1

    play(run, tmp_path)


def test_a_process_differs_from_its_successor() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        started = state_and_start(str(process.pid))[1]
        boot, space, _, _ = this_process().split()
        life = f"{boot} {space} {process.pid}"
        assert is_running(this_process())
        assert is_running(f"{life} {started}")
        assert is_running(f"{life} {int(started) - 1}") is False, "the number was given away again"
        assert is_running(f"other {space} {process.pid} {started}") is None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_running(f"{life} {started}") is False, "dead, though nobody has asked after it"
    assert is_running(f"{life} {started}") is False
    assert is_running("") is None


def test_adopted_pages_come_again_in_a_continuous_job(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        worker = await fleet.hire("one")
        await worker.adopt(pages(1, 2))
        for life in ("two", "three"):
            assert await lease(worker) == []
            counts = await worker.counts()
            assert (counts.skipped, counts.revisits, counts.stored, counts.finished) == (2, 2, 0, False)
            worker.owner.abort()
            previous, worker = worker, await fleet.hire(life)
            await worker.abandon(previous.worker)
            fleet.clock.advance(40.0)
        fleet.clock.advance(40.0)
        (held,) = await lease(worker)
        assert sorted(keys(held)) == [1, 2]
        assert [request.state for request in held.requests] == [None, None]
        await worker.complete(outcomes(held))
        counts = await worker.counts()
        assert (counts.skipped, counts.done, counts.stored) == (0, 2, 2)
        await worker.adopt(pages(3))
        assert await lease(worker) == []
        fleet.clock.advance(101.0)
        assert keys(*await lease(worker)) == [3]

    play(run, tmp_path, recrawl="table", revisit_seconds=100.0)


def test_adopted_pages_do_not_count_against_max_pages(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        worker = await fleet.hire("one")
        await worker.adopt(pages(*range(10)))
        await worker.add(pages(*range(20)))
        assert len(await drain(worker)) == 5
        counts = await worker.counts()
        assert (counts.stored, counts.queued, counts.finished) == (5, 5, True)

    play(run, tmp_path, max_pages=5)


def test_max_pages_is_exact_over_workers_on_their_own_machines(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one, two, _, _ = await _two_halves(fleet)
        for shard in range(SHARDS):
            await one.add(pages(*range(shard * 100, shard * 100 + 20), site=site_in(shard)))
        await fleet.rounds(one, two, count=2)
        held = [*await lease(one), *await lease(two)]
        assert len(keys(*held)) <= 30, "never more in hand and stored than may be stored"
        for worker in (one, two):
            mine = [each for each in held if LAYOUT.shard_of(each.site) in worker.owner.shards]
            await worker.complete([found for each in mine for found in outcomes(each)[:1]])
            await worker.release(mine)
        done = len(held)
        two.owner.abort()
        await one.abandon("two")
        done += len(await drain(one))
        counts = await one.counts()
        assert (done, counts.stored, counts.finished) == (30, 30, True)
        assert counts.queued == SHARDS * 20 - 30

    play(run, tmp_path, max_pages=30)


def test_a_jump_of_the_servers_clock_kills_nobody(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one, two, _, _ = await _two_halves(fleet)
        before = owners(one, two)
        await fleet.set_back(-3600.0)
        fleet.clock.advance(1.25)
        await two.owner.run_round()
        await one.owner.run_round()
        await fleet.rounds(one, two)
        assert owners(one, two) == before
        assert max(standing.number for standing in two.owner.claims.newest.values()) <= 3, "nothing has changed hands"

    play(run, tmp_path)


def test_a_shard_that_is_leaving_is_given_when_its_leases_have_expired(tmp_path: Path) -> None:
    """All workers were stopped past their leases: what a lost visit had in hand is never completed nor returned."""

    async def run(fleet: Fleet) -> None:
        one = await fleet.hire("one")
        for shard in range(SHARDS):
            await one.add(pages(*range(shard * 100, shard * 100 + 30), site=site_in(shard)))
        assert len(await lease(one, batch=5)) == SHARDS
        two = await fleet.hire("two")
        await lease(two)
        await fleet.rounds(two, one, count=1)
        leaving = {number for number, shard in one.owner.shards.items() if shard.leaving}
        assert leaving
        fleet.clock.advance(1.5 * LEASE)
        await fleet.rounds(one, two, count=8)
        assert leaving & two.owner.shards.keys()
        assert not any(shard.leaving for shard in one.owner.shards.values())

    play(run, tmp_path)


def test_workers_that_were_stopped_together_take_nothing_from_one_another(tmp_path: Path) -> None:
    """All clocks went on meanwhile: the one that wakes up first must not hold the others for dead."""

    async def run(fleet: Fleet) -> None:
        one, two, _, _ = await _two_halves(fleet)
        before = sorted(two.owner.shards)
        for _ in range(5):
            fleet.clock.advance(1.5 * LEASE)
            await fleet.rounds(two, one, count=1)
            assert sorted(two.owner.shards) == before

    play(run, tmp_path)


def test_what_was_fetched_before_all_workers_were_stopped_is_completed(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one, two, here, _ = await _two_halves(fleet)
        await one.add(pages(1, 2, site=here))
        (held,) = await lease(one)
        await two.owner.look()
        fleet.clock.advance(1.5 * LEASE)
        await fleet.rounds(two, one, count=1)
        assert (await one.complete([outcome(held, 1)])).accepted == 1
        await fleet.rounds(two, one, count=4)
        assert keys(*await lease(one)) == [2]

    play(run, tmp_path)


def test_no_page_is_parked_because_its_worker_was_stopped(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        worker = await fleet.hire("one")
        await worker.add(pages(1))
        for _ in range(10):
            (held,) = await lease(worker)
            assert not held.suspect
            fleet.clock.advance(1.5 * LEASE)
            await fleet.rounds(worker)
        assert await drain(worker) == [1]
        assert (await worker.counts()).parked == 0

    play(run, tmp_path)


def test_a_worker_that_was_stopped_in_the_middle_of_a_heartbeat_does_not_lag_behind(tmp_path: Path) -> None:
    """It was stopped between the server's answer and its own look at the clock: what it read is no longer the time."""

    async def run(fleet: Fleet) -> None:
        one = await fleet.hire("one")
        tell = one.owner.peers.write_heartbeat

        def stopped(beat: SessionHeartbeat) -> float:
            server_time = tell(beat)
            fleet.clock.advance(1.5 * LEASE)
            return server_time

        one.owner.peers.write_heartbeat = stopped  # type: ignore[method-assign]
        await one.owner.renew()
        assert one.owner.clock.epoch() == fleet.clock.epoch()

    play(run, tmp_path)


def test_a_worker_that_leaves_in_the_middle_of_a_round_keeps_no_shard(tmp_path: Path) -> None:
    """The other has just given up its shards, and this one was about to take them."""

    async def run(fleet: Fleet) -> None:
        one, two, _, _ = await _two_halves(fleet)
        await two.aclose()
        fleet.clock.advance(10.0)
        claimed, go_on = threading.Event(), threading.Event()
        claim = one.owner.share.claim

        def slow(name: str, data: bytes, **options: Any) -> bool:
            made = claim(name, data, **options)
            if name.startswith("claims/"):
                claimed.set()
                assert go_on.wait(20)
            return made

        one.owner.share.claim = slow  # type: ignore[method-assign]
        one.owner.every_seconds = 0.0
        one.start()
        while not claimed.is_set():
            await asyncio.sleep(0.001)
        leaving = asyncio.create_task(one.aclose())
        await asyncio.sleep(0)
        go_on.set()
        await leaving
        visitor = await fleet.hire("")
        assert {number: found.claim.session for number, found in visitor.owner.claims.newest.items()} == dict.fromkeys(
            range(SHARDS), ""
        )
        assert (await visitor.counts()).finished

    play(run, tmp_path)


@pytest.mark.parametrize("with_heartbeat", [True, False])
def test_a_finished_job_stays_finished_if_its_workers_were_killed(tmp_path: Path, with_heartbeat: bool) -> None:
    async def run(fleet: Fleet) -> None:
        worker = await fleet.hire("one")
        await worker.add(pages(1, 2))
        assert sorted(await drain(worker)) == [1, 2]
        await worker.add(pages(3))
        worker.owner.abort()
        visitor = await fleet.hire("")
        if not with_heartbeat:
            visitor.owner.peers.forget(worker.owner.session)
        fleet.clock.advance(5 * LEASE)
        for _ in range(10):
            fleet.clock.advance(1.0)
            counts = await visitor.counts()
        assert (counts.done, counts.queued, counts.finished) == (2, 1, False), "never while work is left"
        heir = await fleet.hire("heir")
        await heir.abandon("one")
        assert await drain(heir) == [3]
        heir.owner.abort()
        if not with_heartbeat:
            visitor.owner.peers.forget(heir.owner.session)
        fleet.clock.advance(5 * LEASE)
        for _ in range(10):
            fleet.clock.advance(1.0)
            counts = await visitor.counts()
        assert (counts.done, counts.queued, counts.job, counts.finished) == (3, 0, "finished", True)

    play(run, tmp_path)


def test_heartbeats_of_older_workers_are_read() -> None:
    older = {"session": "s", "worker": "w", "at": 1.0, "pulse": {"worker": "w", "pages": 7}}
    found = msgspec.json.decode(msgspec.json.encode(older), type=SessionHeartbeat)
    assert found.heartbeat is not None
    assert found.heartbeat.pages == 7
    assert b'"pulse"' in msgspec.json.encode(found)
