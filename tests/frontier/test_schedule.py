from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.clock import ManualClock
from gossamer.frontier import policy
from gossamer.frontier.embedded.frontier import open_memory
from gossamer.frontier.embedded.journal import DONE
from gossamer.frontier.embedded.schedule import Lane, Queue, Schedule
from gossamer.frontier.policy import SiteQuota
from gossamer.model import RegionView
from gossamer.settings import Settings
from gossamer.testing.harness import outcomes, page


class CountingSchedule(Schedule):
    """Counts how many lanes are looked at."""

    looked = 0

    def _ready_at(self, lane: Lane) -> float | None:
        self.looked += 1
        return super()._ready_at(lane)


def test_a_lease_does_not_walk_over_the_sites() -> None:
    async def run() -> None:
        clock = ManualClock()
        frontier = open_memory(Settings(), clock=clock, secret=b"0" * 16)
        await frontier.add([page(2 * site + n, f"{site}.example") for site in range(20_000) for n in (0, 1)])
        schedule = frontier._state.schedule
        schedule.__class__ = CountingSchedule
        assert isinstance(schedule, CountingSchedule)
        for number in range(1000):
            clock.advance(0.01)
            (lease,) = (await frontier.lease(1, batch=1, seconds=60)).leases
            if number % 2:
                await frontier.release([lease])
            else:
                await frontier.complete(outcomes(lease))
        assert schedule.looked < 20 * 1000
        schedule.looked = 0
        clock.advance(1e6)
        assert len((await frontier.lease(100, batch=1, seconds=60)).leases) == 100
        assert schedule.looked < 20 * (1000 + 100)

    asyncio.run(run())


def test_the_last_requests_of_a_site_go_to_all_of_its_lanes() -> None:
    async def run() -> None:
        settings = Settings(delay=0, robots=False, per_site=8)
        frontier = open_memory(settings, clock=ManualClock(), secret=b"0" * 16)
        await frontier.add([page(number, "one.example") for number in range(1, 65)])
        leases = (await frontier.lease(8, batch=32, seconds=60)).leases
        assert len(leases) == 8
        assert max(len(lease.requests) for lease in leases) == 8

    asyncio.run(run())


def test_waiting_sites_cost_an_idle_worker_nothing() -> None:
    schedule = CountingSchedule(Settings())
    for number in range(1, 5001):
        site = schedule.site(f"{number}.example", number)
        site.hold_until = 100.0 + number
        schedule.push(site, number, 0)
    schedule.looked = 0
    for _ in range(100):
        assert list(schedule.due(50.0)) == []
        assert schedule.next_due() == 101.0
    assert schedule.looked < 1000


def test_an_entry_that_is_too_early_moves_to_its_time() -> None:
    schedule = Schedule(Settings())
    first, second = schedule.site("a", 1), schedule.site("b", 2, ready_at=5.0)
    schedule.push(first, 1, 0)
    schedule.push(second, 2, 0)
    first.hold_until = 9.0
    assert schedule.next_due() == 5.0
    assert [lane.site.name for lane in schedule.due(7.0)] == ["b"]
    assert schedule.next_due() == 9.0
    schedule.close(first, "dark")
    assert schedule.next_due() is None


def test_the_heap_holds_each_lane_about_once() -> None:
    schedule = Schedule(Settings(delay=1.0))
    site = schedule.site("a", 1)
    for number in range(1, 1001):
        schedule.push(site, number, 0)
    assert len(schedule._heap) == 1
    for now in range(1, 501):
        (lane,) = schedule.due(float(now))
        batch = {key: key for key in schedule.take(site, 1, float(now), suspect=True)}
        schedule.hold(lane, batch, token=now, expires_at=now + 0.5, worker="")
        for key in list(batch):
            schedule.finish(lane, key)
        schedule.free(lane, now - 0.5)
    assert len(schedule._heap) < 20


def test_lanes_are_distinguished_by_when_they_are_ready() -> None:
    schedule = Schedule(Settings())
    for number, ready_at in enumerate((0.0, 30.0, 500.0), 1):
        schedule.push(schedule.site(f"{number}.example", number, ready_at=ready_at), number, 0)
    (lane,) = schedule.site("held.example", 4).lanes
    schedule.hold(lane, {4: 4}, token=1, expires_at=1000.0, worker="")
    assert schedule.lanes(10.0) == RegionView(ready=1, later=3, soon=2, due_in=20.0)


ranks = st.sampled_from([-5, 0, 0, 3])


@pytest.mark.parametrize("strategy", ["bfs", "dfs", "random"])
@given(steps=st.lists(st.one_of(ranks, st.sampled_from(["pop", "back", "drop"])), max_size=80))
def test_a_queue_gives_each_request_once_and_the_lowest_rank_first(strategy: str, steps: list[int | str]) -> None:
    queue, number = Queue(), 0
    waiting: dict[int, int] = {}
    front: list[int] = []
    for step in steps:
        if isinstance(step, int):
            number += 1
            queue.push(number, step)
            waiting[number] = step
        elif step == "drop" and waiting:
            gone = max(waiting)
            assert queue.discard(gone)
            assert not queue.discard(gone)
            del waiting[gone]
        elif step == "back" and len(waiting) >= 2 and not front:
            front = [queue.pop(strategy), queue.pop(strategy)]
            queue.put_back(front)
            for one in front:
                waiting[one] = policy.HEAD
        elif step == "pop" and waiting:
            found = queue.pop(strategy)
            assert waiting[found] == min(waiting.values())
            del waiting[found]
            front = [one for one in front if one != found and one in waiting]
        assert queue.size == len(waiting)
    assert sorted(queue.pop(strategy) for _ in range(queue.size)) == sorted(waiting)
    assert (queue.size, queue.ranks, queue.levels, queue.front) == (0, [], {}, [])


def test_a_long_queue_is_first_in_first_out_and_gives_its_memory_back() -> None:
    queue = Queue()
    for number in range(10_000):
        queue.push(number, 0)
    assert [queue.pop("bfs") for _ in range(9_000)] == list(range(9_000))
    assert len(queue.levels[0].ids) < 3_000
    queue.push(10_000, 0)
    assert [queue.pop("bfs") for _ in range(1_001)] == list(range(9_000, 10_001))


def test_a_share_looks_back_over_the_half_that_is_being_filled_and_the_one_before() -> None:
    share = SiteQuota(Settings(site_share=0.5, share_window=8))
    assert [share.count("a", 2), share.count("b", 1), share.left("a")] == [False, False, 2]
    assert share.count("b", 1), "a half is full with its last request"
    assert (share.left("a"), share.left("b"), share.turns) == (2, 2, 1)
    assert share.count("b", 9)
    assert (share.left("a"), share.left("b")) == (4, 0)
    assert [share.count("a", 3), share.count("a", 1), share.left("b")] == [False, True, 4], "a half begins at nothing"


def test_closing_a_site_drops_its_queue_and_keeps_the_counts() -> None:
    schedule = Schedule(Settings())
    site, other = schedule.site("a", 1), schedule.site("b", 2)
    schedule.lapses[3] = 2
    for number in (1, 2, 3):
        schedule.push(site, number, 0)
    schedule.push_later(site, 4, 50.0)
    schedule.push_later(site, 5, 60.0)
    schedule.revisits[5] = 1
    schedule.push_later(other, 6, 60.0)
    assert schedule.close(site, "dark") == 4
    assert (schedule.queued, schedule.delayed, len(schedule.revisits)) == (0, 1, 0)


def test_a_withdrawn_request_is_not_queued() -> None:
    schedule = Schedule(Settings())
    site = schedule.site("a", 1)
    schedule.lapses[2] = 2
    schedule.push(site, 1, 0)
    schedule.push(site, 2, 0)
    schedule.push_later(site, 3, 5.0)
    schedule.revisits[3] = DONE
    assert [schedule.withdraw(site, number) for number in (1, 2, 3, 3, 4)] == [True, True, True, False, False]
    assert (schedule.queued, schedule.delayed, schedule.next_due()) == (0, 0, None)
    assert (schedule.revisits, schedule.returned) == ({}, {DONE: 1})
