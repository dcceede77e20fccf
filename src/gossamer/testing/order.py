"""What comes when, how much of it, and as what: order, limits, steering, waiting and faithful copies, as tests."""

from __future__ import annotations

import asyncio
from typing import Any

from gossamer.frontier.base import Frontier
from gossamer.settings import SiteSettings
from gossamer.testing.harness import Harness, Suite, keys, outcome, outcomes, page, pages, scenario

_GUARD_SECONDS = 20.0
"""When a test that waits gives up; nothing here takes that long unless it hangs."""


class OrderTests(Suite):
    """Which request comes first."""

    async def _take_all(self, frontier: Frontier, *, batch: int = 100) -> list[int]:
        """The keys of a site without delay, in the order in which they are handed out."""
        found: list[int] = []
        while (grant := await self.lease(frontier, batch=batch)).leases:
            for lease in grant.leases:
                found += keys(lease)
                await frontier.complete(outcomes(lease))
        return found

    def _mixed(self) -> list[Any]:
        return [
            page(1, depth=2), page(2), page(3, priority=5, depth=9), page(4, depth=1), page(5, priority=-1),
            page(6), page(7, priority=5, depth=1), page(8, depth=2),
        ]  # fmt: skip

    @scenario(delay=0.0)
    async def test_order_is_priority_then_depth_then_age(self, harness: Harness) -> None:
        await harness.frontier.add(self._mixed())
        if harness.durable:
            await harness.reopen()
        assert await self._take_all(harness.frontier, batch=3) == [7, 3, 2, 6, 4, 1, 8, 5]

    @scenario(delay=0.0, strategy="best")
    async def test_order_of_best_is_priority_then_age(self, harness: Harness) -> None:
        await harness.frontier.add(self._mixed())
        assert await self._take_all(harness.frontier, batch=3) == [3, 7, 1, 2, 4, 6, 8, 5]

    @scenario(delay=0.0, strategy="dfs")
    async def test_order_of_dfs_is_priority_then_the_deepest(self, harness: Harness) -> None:
        await harness.frontier.add(self._mixed())
        found = await self._take_all(harness.frontier, batch=1)
        assert (found[:2], set(found[2:4]), found[4], set(found[5:7]), found[7]) == ([3, 7], {1, 8}, 4, {2, 6}, 5)

    @scenario(delay=0.0, strategy="random")
    async def test_order_of_random_is_priority_then_anything(self, harness: Harness) -> None:
        await harness.frontier.add(self._mixed())
        found = await self._take_all(harness.frontier, batch=2)
        assert (set(found[:2]), set(found[2:7]), found[7]) == ({3, 7}, {1, 2, 4, 6, 8}, 5)

    @scenario(delay=0.0)
    async def test_the_next_hop_of_a_redirect_is_at_the_head(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add([*pages(1, 2), page(3, priority=9)])
        lease = await self.one(frontier, batch=2)
        assert keys(lease) == [3, 1]
        await frontier.complete([outcome(lease, 3, links=(page(4, hops=1, priority=-5),)), outcome(lease, 1)])
        (hop,) = (await self.one(frontier, batch=1)).requests
        assert (hop.key, hop.hops, hop.priority) == (4, 1, -5)

    @scenario(delay=0.0)
    async def test_what_is_given_back_comes_first_in_its_order(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(*range(1, 7)))
        lease = await self.one(frontier, batch=4)
        await frontier.complete([outcome(lease, 2)])
        await frontier.release([lease])
        assert keys(await self.one(frontier)) == [1, 3, 4, 5, 6]

    @scenario()
    async def test_sites_that_have_been_ready_longest_come_first(self, harness: Harness) -> None:
        self.must_be_one_store(harness)
        frontier = harness.frontier
        await frontier.add(pages(1, 2))
        lease = await self.one(frontier, batch=1)
        await harness.advance(self.tick)
        await frontier.complete(outcomes(lease))
        for number in range(3):
            await harness.advance(2 * self.tick)
            await frontier.add(pages(10 + number, site=f"{number}.example"))
        found = [keys(*(await self.lease(frontier, 1)).leases) for _ in range(4)]
        assert found == [[2], [10], [11], [12]], "new sites do not push in"

    @scenario(delay=0.0)
    async def test_a_retry_comes_when_it_is_due_and_not_before(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(1, 2, 3, 4))
        lease = await self.one(frontier, batch=3)
        await frontier.complete(
            [outcome(lease, key, "retry", again_in=(60 - 10 * key) * self.tick) for key in keys(lease)]
        )
        lease = await self.one(frontier, batch=1)
        assert keys(lease) == [4], "others do not wait for it"
        await frontier.complete(outcomes(lease))
        assert (await frontier.counts()).delayed == 3
        if harness.durable:
            await harness.reopen()
            frontier = harness.frontier
        grant = await self.none(frontier)
        assert grant.wait is not None
        assert grant.wait <= 30.01 * self.tick
        await harness.advance(29 * self.tick)
        await self.none(frontier)
        await harness.advance(12 * self.tick)
        assert keys(await self.one(frontier)) == [3, 2], "in the order in which they were due"

    @scenario(delay=0.0)
    async def test_tries_are_counted(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        for tries in range(4):
            lease = await self.one(harness.frontier)
            assert lease.requests[0].tries == tries
            await harness.frontier.release([lease])
            lease = await self.one(harness.frontier)
            assert lease.requests[0].tries == tries, "giving back is no try"
            await harness.frontier.complete(outcomes(lease, "retry"))
            if harness.durable and tries == 1:
                await harness.reopen()


class LimitsTests(Suite):
    """How much is handed out."""

    @scenario()
    async def test_limit_and_batch_are_kept(self, harness: Harness) -> None:
        frontier = harness.frontier
        for number in range(4):
            await frontier.add(pages(*range(number * 10, number * 10 + 5), site=f"{number}.example"))
        leases = (await self.lease(frontier, 3, batch=2)).leases
        assert [len(lease.requests) for lease in leases] == [2, 2, 2]
        assert (await self.lease(frontier, 0)).leases == ()
        assert len((await self.lease(frontier, 3, batch=2)).leases) == 1

    @scenario(site_budget=1, delay=50.0)
    async def test_a_job_does_not_wait_for_a_site_whose_budget_is_used_up(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        await harness.frontier.complete(outcomes(await self.one(harness.frontier)))
        counts = await harness.frontier.counts()
        assert (counts.done, counts.skipped, counts.queued, counts.finished) == (1, 1, 0, True)

    @scenario(site_budget=3, delay=0.0, sites={"b.example": SiteSettings(budget=1)})
    async def test_a_sites_budget_is_exact(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(*range(1, 9)) + pages(11, 12, site="b.example"))
        stored = []
        lease = next(lease for lease in (await self.lease(frontier)).leases if lease.site == "a.example")
        assert len(lease.requests) == 3
        await frontier.complete([outcome(lease, 1, "retry", again_in=500 * self.tick), outcome(lease, 2, "skipped")])
        await frontier.release([lease])
        if harness.durable:
            await harness.reopen()
            frontier = harness.frontier
        await harness.advance((1 + 20) * self.tick)
        while (grant := await self.lease(frontier)).leases:
            assert all(len(lease.requests) <= 3 for lease in grant.leases)
            for lease in grant.leases:
                stored += keys(lease)
                await frontier.complete(outcomes(lease))
        assert len([key for key in stored if key < 10]) == 3
        assert len([key for key in stored if key > 10]) == 1
        assert grant.job == "finished", "a request that waits has no place left to wait for"
        counts = await frontier.counts()
        assert (counts.done, counts.skipped, counts.delayed, counts.finished) == (4, 6, 0, True)

    @scenario(site_budget=3, delay=0.0, per_site=4, robots=False)
    async def test_lanes_share_the_budget_of_their_site(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(*range(1, 9)))
        leases = (await self.lease(frontier, batch=2)).leases
        assert len(keys(*leases)) == 3, "never more in hand and stored than may be stored"
        await frontier.complete(outcomes(leases[0]))
        await self.none(frontier)
        await frontier.release(leases[1:])
        assert len(keys(*(await self.lease(frontier)).leases)) == 3 - len(leases[0].requests)

    @scenario(max_pages=5, delay=0.0)
    async def test_max_pages_is_exact(self, harness: Harness) -> None:
        workers = [await harness.worker("one"), await harness.worker("two")]
        for number in range(4):
            await workers[0].add(pages(*range(number * 10, number * 10 + 4), site=f"{number}.example"))
        leases = (await self.lease(workers[0], 2, batch=2)).leases
        leases += (await self.lease(workers[1], 10, batch=2)).leases
        in_hand = len(keys(*leases))
        assert in_hand == 5 or (not harness.one_store and in_hand < 5), "never more in hand than may be stored"
        if harness.one_store:
            await self.none(workers[0])
        first, second, *others = leases
        await workers[0].complete(outcomes(first, "skipped"))
        await workers[0].complete(outcomes(second, "failed"))
        await workers[1].release(others)
        stored = len(second.requests)
        assert (await workers[0].counts()).stored == stored
        while (grant := await self.lease(workers[1])).leases:
            for lease in grant.leases:
                stored += len(lease.requests)
                await workers[1].complete(outcomes(lease))
        assert stored == 5
        assert grant.job == "finished"
        counts = await workers[0].counts()
        assert (counts.stored, counts.finished) == (5, True)
        assert counts.queued > 0
        await self._raise_max_pages(harness)

    async def _raise_max_pages(self, harness: Harness) -> None:
        if not harness.durable:
            return
        await harness.reopen()
        assert (await self.none(harness.frontier)).job == "finished"
        await harness.reopen(self.settings(max_pages=7, delay=0.0))
        grant = await self.lease(harness.frontier)
        assert grant.job == "running"
        stored = len(keys(*grant.leases))
        assert stored == 2 or not harness.one_store
        while grant.leases:
            for lease in grant.leases:
                await harness.frontier.complete(outcomes(lease))
            grant = await self.lease(harness.frontier)
            stored += len(keys(*grant.leases))
        assert (stored, grant.job) == (2, "finished")


class Steering(Suite):
    """Pause, resume, stop; and sleeping until there is something to do."""

    @scenario(delay=0.0)
    async def test_a_paused_job_hands_out_nothing_and_takes_what_is_under_way(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        lease = await self.one(harness.frontier, batch=1)
        await harness.steer("paused")
        assert (await self.none(harness.frontier)).job == "paused"
        assert (await harness.frontier.complete(outcomes(lease))).accepted == 1
        if harness.durable:
            await harness.reopen()
            await harness.advance(1.1 * self.tick)
            assert (await self.none(harness.frontier)).job == "paused"
        await harness.steer("running")
        assert keys(await self.one(harness.frontier)) == [2]

    @scenario(delay=0.0)
    async def test_a_stopped_job_goes_on_in_the_next_run(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        await harness.steer("stopping")
        assert (await self.none(harness.frontier)).job == "stopping"
        if harness.durable:
            await harness.reopen()
            await harness.advance(1.1 * self.tick)
            assert (await self.lease(harness.frontier)).job == "running"

    @scenario()
    async def test_an_idle_worker_is_woken_by_news(self, harness: Harness) -> None:
        idle, busy = await harness.worker("idle"), await harness.worker("busy")
        await busy.add(pages(1, 2))
        lease = await self.one(busy, batch=1, ticks=100_000)
        grant = await self.none(idle)
        for event in (
            busy.add(pages(9, site="b.example")),
            busy.complete(outcomes(lease)),
            harness.steer("paused"),
        ):
            async with asyncio.timeout(_GUARD_SECONDS):
                waiting = asyncio.ensure_future(idle.idle(grant))
                await asyncio.sleep(0)
                await event
                await waiting
            grant = await self.lease(idle, 0)

    @scenario()
    async def test_an_idle_worker_does_not_miss_what_happens_before_it_sleeps(self, harness: Harness) -> None:
        idle, busy = await harness.worker("idle"), await harness.worker("busy")
        await busy.add(pages(1))
        lease = await self.one(busy, ticks=100_000)
        grant = await self.none(idle)
        await busy.release([lease])
        async with asyncio.timeout(_GUARD_SECONDS):
            await idle.idle(grant)

    @scenario(delay=0.0, site_budget=1)
    async def test_an_idle_worker_is_told_that_the_job_is_over(self, harness: Harness) -> None:
        idle, busy = await harness.worker("idle"), await harness.worker("busy")
        await busy.add(pages(1, 2))
        lease = await self.one(busy, ticks=100_000)
        async with asyncio.timeout(_GUARD_SECONDS):
            watching = asyncio.ensure_future(self._until_finished(idle))
            await asyncio.sleep(0)
            await busy.complete(outcomes(lease))
            assert (await self.none(busy)).job == "finished"
            await watching

    async def _until_finished(self, idle: Frontier) -> None:
        while (grant := await self.lease(idle, 0)).job != "finished":
            await idle.idle(grant)

    @scenario(delay=0.05)
    async def test_an_idle_worker_looks_again_when_something_is_due(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        await harness.frontier.complete(outcomes(await self.one(harness.frontier, batch=1)))
        grant = await self.none(harness.frontier)
        assert grant.wait is not None
        assert 0 < grant.wait <= 0.051 * self.tick
        async with asyncio.timeout(_GUARD_SECONDS):
            await harness.frontier.idle(grant)

    @scenario()
    async def test_counts_changes_nothing(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        lease = await self.one(harness.frontier, batch=1)
        await harness.frontier.complete(outcomes(lease, "retry", again_in=self.tick))
        await harness.advance(5 * self.tick)
        assert await harness.frontier.counts() == await harness.frontier.counts()
        assert sorted(keys(await self.one(harness.frontier))) == [1, 2]
