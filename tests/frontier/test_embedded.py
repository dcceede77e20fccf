from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

import pytest

from gossamer.clock import ManualClock
from gossamer.errors import Unavailable
from gossamer.frontier import policy
from gossamer.frontier.embedded.frontier import EmbeddedFrontier, open_memory
from gossamer.frontier.embedded.journal import Change, JournalSite, MemoryJournal, Past
from gossamer.lab import virtual_time
from gossamer.model import Request, SiteNote
from gossamer.settings import Settings
from gossamer.testing.harness import keys, note, outcome, outcomes, page, pages


def play(scene: Callable[[EmbeddedFrontier, ManualClock], Coroutine[Any, Any, None]], **settings: Any) -> None:
    clock = ManualClock()
    asyncio.run(scene(open_memory(Settings(**settings), clock=clock, secret=b"0" * 16), clock))


def test_a_lane_does_not_expire_while_its_results_are_stored() -> None:
    """A slow disk between the check of the tokens and the commit; also for what is only noted of a site."""

    async def scene(frontier: EmbeddedFrontier, clock: ManualClock) -> None:
        await frontier.add(pages(1) + pages(2, site="b.example"))
        first, second = (await frontier.lease(2, batch=1, seconds=10)).leases
        async with frontier.settling(outcomes(first), notes=[note(second, memo={"x": 1})]) as settlement:
            clock.advance(1000.0)
            assert (await frontier.lease(5, batch=5, seconds=10)).leases == ()
            receipt = await settlement.commit({"pages.jsonl": 5})
        assert (receipt.accepted, receipt.stale) == (1, 0)
        (again,) = (await frontier.lease(5, batch=5, seconds=10)).leases
        assert (keys(again), again.memo) == ([2], {"x": 1})

    play(scene)


def test_the_last_pages_of_the_limit_do_not_expire_while_stored() -> None:
    async def scene(frontier: EmbeddedFrontier, clock: ManualClock) -> None:
        await frontier.add(pages(1) + pages(2, site="b.example"))
        (lease,) = (await frontier.lease(2, batch=1, seconds=10)).leases
        async with frontier.settling(outcomes(lease)) as settlement:
            clock.advance(1000.0)
            assert (await frontier.lease(5, batch=5, seconds=10)).leases == ()
            assert (await settlement.commit()).accepted == 1
        counts = await frontier.counts()
        assert (counts.done, counts.stored, counts.finished) == (1, 1, True)

    play(scene, max_pages=1)


def test_results_that_could_not_be_stored_count_for_nothing() -> None:
    async def scene(frontier: EmbeddedFrontier, clock: ManualClock) -> None:
        await frontier.add(pages(1))
        (lease,) = (await frontier.lease(1, batch=1, seconds=10)).leases
        late = outcome(lease, 99)
        with pytest.raises(OSError, match="disk"):  # noqa: PT012
            async with frontier.settling([*outcomes(lease, links=(page(2, "b.example"),)), late]):
                clock.advance(1000.0)
                raise OSError("disk")
        counts = await frontier.counts()
        assert (counts.known, counts.done, counts.leased, counts.stale) == (1, 0, 1, 0)
        (again,) = (await frontier.lease(1, batch=1, seconds=10)).leases
        assert again.token > lease.token
        assert (await frontier.complete(outcomes(again, links=(page(2, "b.example"),)))).accepted == 1
        assert (await frontier.counts()).queued == 1

    play(scene)


def test_an_idle_worker_wakes_if_results_could_not_be_stored() -> None:
    """Meanwhile the lane could not expire, so the worker waited for news only."""

    async def scene(frontier: EmbeddedFrontier, clock: ManualClock) -> None:
        await frontier.add(pages(1))
        (lease,) = (await frontier.lease(1, batch=1, seconds=10)).leases
        with pytest.raises(OSError, match="disk"):  # noqa: PT012
            async with frontier.settling(outcomes(lease)):
                clock.advance(1000.0)
                grant = await frontier.lease(1, batch=1, seconds=10)
                assert (grant.leases, grant.wait) == ((), None)
                raise OSError("disk")
        async with asyncio.timeout(20):
            await frontier.idle(grant)

    play(scene)


class HeldPast(Past):
    """A site on hold until a time far ahead, because the clock was set back since."""

    def sites(self) -> Iterator[tuple[int, str, JournalSite | None]]:
        yield 1, "a.example", JournalSite(0.0, 1e12, {}, {}, "")


def test_a_clock_that_was_set_back_makes_no_hold_endless() -> None:
    async def scene() -> None:
        frontier = EmbeddedFrontier(MemoryJournal(), HeldPast(), settings=Settings(), clock=ManualClock())
        site = await frontier.site("a.example")
        assert site is not None
        assert site["hold"] == policy.HOLD_MAX_SECONDS

    asyncio.run(scene())


class FaultyJournal(MemoryJournal):
    """Cannot read one of its requests for a while."""

    unreadable = 0

    def load(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        if self.unreadable in numbers:
            raise Unavailable("a bad sector")
        return super().load(numbers, visits)


def test_a_read_error_takes_nothing_out_of_the_hands_of_others() -> None:
    async def scene() -> None:
        journal = FaultyJournal()
        frontier = EmbeddedFrontier(journal, Past(), settings=Settings(), clock=ManualClock())
        await frontier.add(pages(1) + pages(2, site="b.example") + pages(3, site="c.example"))
        journal.unreadable = 2
        found = [keys(*(await frontier.lease(9, batch=1, seconds=60)).leases) for _ in range(2)]
        assert found == [[1], [3]], "what was taken before is handed out"
        with pytest.raises(Unavailable):
            await frontier.lease(9, batch=1, seconds=60)
        journal.unreadable = 0
        assert keys(*(await frontier.lease(9, batch=1, seconds=60)).leases) == [2]

    asyncio.run(scene())


class FullJournal(MemoryJournal):
    """Cannot be written to for a while; knows how often each request was lost, as a file would."""

    is_full = False

    def __init__(self) -> None:
        super().__init__()
        self.lapses: dict[int, int] = {}
        self.is_quick = asyncio.Event()
        self.is_quick.set()

    async def write(self, change: Change) -> Sequence[int]:
        if self.is_full:
            raise Unavailable("no room")
        await self.is_quick.wait()
        self.lapses.update(change.lapses)
        return await super().write(change)


def test_a_loss_written_late_does_not_count_against_a_completed_request() -> None:
    async def scene() -> None:
        journal, clock = FullJournal(), ManualClock()
        frontier = EmbeddedFrontier(journal, Past(), settings=Settings(), clock=clock)
        await frontier.add(pages(1))
        await frontier.lease(1, batch=1, seconds=10)
        clock.advance(1000.0)
        journal.is_full = True
        (lease,) = (await frontier.lease(1, batch=1, seconds=10)).leases
        journal.is_full = False
        await frontier.complete(outcomes(lease, "retry"))
        await frontier.add(pages(2))
        assert journal.lapses == {1: 0}

    asyncio.run(scene())


def test_a_loss_during_the_write_of_another_is_counted() -> None:
    async def scene() -> None:
        journal, clock = FullJournal(), ManualClock()
        frontier = EmbeddedFrontier(journal, Past(), settings=Settings(), clock=clock)
        await frontier.add(pages(1))
        await frontier.lease(1, batch=1, seconds=10)
        journal.is_quick.clear()
        leasing = []
        for _ in range(2):
            clock.advance(1000.0)
            leasing.append(asyncio.create_task(frontier.lease(1, batch=1, seconds=10)))
            await asyncio.sleep(0.01)
        journal.is_quick.set()
        await asyncio.gather(*leasing)
        await frontier.aclose()
        assert journal.lapses == {1: 2}

    asyncio.run(scene())


def test_control_and_lookups() -> None:
    async def scene(frontier: EmbeddedFrontier, clock: ManualClock) -> None:
        await frontier.add(pages(1, 2, 3) + pages(4, site="b.example"))
        (lease,) = (await frontier.lease(1, batch=2, seconds=60)).leases
        await frontier.complete([outcome(lease, 1, "retry", again_in=50.0)], notes=[note(lease, hold=20.0)])
        clock.advance(5.0)
        first, second = await frontier.sites()
        assert (first["site"], first["queued"], first["delayed"], first["leased"], first["hold"]) == (
            "a.example",
            1,
            1,
            1,
            15.0,
        )
        assert second["site"] == "b.example"
        assert len(await frontier.sites(limit=1)) == 1
        assert await frontier.lookup("http://nowhere.example/") is None

    play(scene)


def test_cookies_are_stored_for_workers_and_never_shown() -> None:
    """H66: the memo of a site is readable, the cookies in it are not."""

    async def main() -> None:
        frontier = open_memory(Settings(), clock=ManualClock(), secret=b"k" * 16)
        await frontier.add([Request("http://a.test/", key=1, site="a.test")])
        (lease,) = (await frontier.lease(1, batch=1, seconds=60)).leases
        kept = {"cookies": [1.0, [["a", "hush", "a.test", "/", 1, None]]], "failures": 2}
        await frontier.complete([], notes=[SiteNote(site="a.test", lane=lease.lane, token=lease.token, memo=kept)])
        assert "hush" not in repr(await frontier.sites())
        assert "'failures': 2" in repr(await frontier.sites())
        await frontier.release([lease])
        await frontier.aclose()

    asyncio.run(main())


def test_p4_a_lease_does_not_wait_for_the_write_of_losses() -> None:
    """Where many write, that could take longer than the lease lasts: its lane would be another's when it arrives."""

    class Slow(MemoryJournal):
        def __init__(self) -> None:
            super().__init__()
            self.may_write = asyncio.Event()
            self.lapses: dict[int, int] = {}

        async def write(self, change: Change) -> Sequence[int]:
            await self.may_write.wait()
            self.lapses.update(change.lapses)
            return await super().write(change)

    async def main() -> None:
        clock, journal, past = ManualClock(), Slow(), Past()
        past.secret = b"0" * 16
        frontier = EmbeddedFrontier(journal, past, settings=Settings(delay=0.0, robots=False), clock=clock)
        journal.may_write.set()
        await frontier.add(pages(1))
        lost = (await frontier.lease(1, batch=1, seconds=10)).leases[0]
        journal.may_write.clear()
        adding = asyncio.create_task(frontier.add(pages(2)))
        await asyncio.sleep(0)
        clock.advance(11)
        async with asyncio.timeout(30):
            grant = await frontier.lease(1, batch=1, seconds=10)
        assert grant.leases[0].token > lost.token
        assert not adding.done()
        journal.may_write.set()
        await frontier.aclose()
        assert list(journal.lapses.values()) == [1]

    asyncio.run(main())


def test_only_as_many_idle_workers_wake_as_are_needed() -> None:
    """And none is slept through: a worker that was woken and is gone, or may not have what is due, is followed."""

    async def main() -> None:
        clock, asked = virtual_time.LoopClock(), 0
        frontier = open_memory(Settings(delay=10.0, robots=False), clock=clock, secret=b"0" * 16)
        await frontier.add(pages(1, 2, 3, 4, 5, 6))

        async def work(lives: int) -> None:
            nonlocal asked
            while lives:
                lives -= 1
                asked += 1
                grant = await frontier.lease(1, batch=1, seconds=60)
                for lease in grant.leases:
                    await frontier.complete(outcomes(lease))
                if grant.job == "finished":
                    return
                await frontier.idle(grant)

        await asyncio.gather(*(work(2 if number < 5 else 100) for number in range(40)))
        assert (await frontier.counts()).done == 6
        assert asked < 40 + 40 + 40, "each asks when it comes and when it is over; these are for six pages in between"
        assert 50.0 <= clock.monotonic() < 52.0

    virtual_time.run(main())


def test_news_while_something_is_due_wakes_one_worker_and_not_all() -> None:
    """Calls take time: the woken worker has not asked yet when the next results are stored."""

    async def main() -> None:
        clock, asked, workers = virtual_time.LoopClock(), 0, 200
        frontier = open_memory(Settings(delay=1.0, robots=False), clock=clock, secret=b"0" * 16)
        await frontier.add([page(100 * site + number, f"{site}.example") for site in range(20) for number in range(5)])

        async def work() -> None:
            nonlocal asked
            while True:
                asked += 1
                await asyncio.sleep(0.05)
                grant = await frontier.lease(1, batch=1, seconds=60)
                for number, lease in enumerate(grant.leases):
                    await asyncio.sleep(0.3 + number / 7)
                    await frontier.complete(outcomes(lease))
                if grant.job == "finished":
                    return
                await frontier.idle(grant)

        await asyncio.gather(*(work() for _ in range(workers)))
        assert (await frontier.counts()).done == 100
        assert asked < 2 * workers + 500, "when it comes, when it is over, and some for each of a hundred pages"

    virtual_time.run(main())


def test_a_key_is_known_once_written_and_new_again_if_the_write_fails() -> None:
    class Slow(MemoryJournal):
        fails = False

        async def write(self, change: Change) -> Sequence[int]:
            await asyncio.sleep(1.0)
            if self.fails:
                raise Unavailable("no disk")
            return await super().write(change)

    async def main() -> None:
        journal = Slow()
        frontier = EmbeddedFrontier(journal, Past(), settings=Settings(), clock=virtual_time.LoopClock())
        for journal.fails, left in ((True, {1, 2}), (False, {2})):
            adding = asyncio.ensure_future(frontier.add(pages(1)))
            await asyncio.sleep(0.5)
            assert frontier.unknown([1, 2]) == {1, 2}
            await asyncio.wait([adding])
            assert frontier.unknown([1, 2]) == left
            assert (adding.exception() is None) is not journal.fails

    virtual_time.run(main())


def test_the_set_of_unwritten_keys_releases_its_memory() -> None:
    """Each page is compared with it: a set that keeps the room of a large change would be walked through each time."""

    async def scene(frontier: EmbeddedFrontier, clock: ManualClock) -> None:
        await frontier.add(pages(*range(1, 20_000)))
        assert frontier.unknown(range(1, 20_000)) == set()
        assert sys.getsizeof(frontier._state.unwritten) == sys.getsizeof(set())

    play(scene)
