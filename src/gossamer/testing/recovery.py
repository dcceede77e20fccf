"""The promises P7, P9 and P10 of a frontier, as tests: what survives, and how work comes back."""

from __future__ import annotations

import asyncio

from gossamer.model import Lease
from gossamer.testing.harness import LEASE, Harness, Suite, keys, note, outcome, outcomes, page, pages, scenario


class Recovery(Suite):
    """P7, P9 and P10: what survives, and how work comes back."""

    @scenario()
    async def test_p7_everything_acknowledged_survives(self, harness: Harness) -> None:
        self.must_be_durable(harness)
        await harness.frontier.add(pages(*range(1, 8)) + pages(11, site="b.example"))
        first, other = (await self.lease(harness.frontier, batch=5)).leases
        await harness.frontier.complete(
            [
                outcome(first, 1, links=(page(21), page(22, "c.example"))),
                outcome(first, 2, "failed", reason="x"),
                outcome(first, 3, "skipped"),
                outcome(first, 4, "retry", again_in=30 * self.tick),
            ],
            notes=[note(first, memo={"a": 1}, robots={"http://a.example": b"\x00\xff"})],
        )
        await harness.frontier.complete([], notes=[note(first, memo={"b": [2]}, robots={"https://a.example": b"s"})])
        await harness.frontier.complete([], notes=[note(other, close="gone")])
        before = await harness.frontier.counts()
        await harness.reopen()
        after = await harness.frontier.counts()
        assert (after.done, after.failed, after.skipped, after.delayed, after.known, after.sites, after.stored) == (
            1, before.failed + 1, 1, 1, 10, 3, 2,
        )  # fmt: skip
        assert (after.queued, after.leased) == (5, 0)
        await harness.advance(1.1 * self.tick)
        leases = {lease.site: lease for lease in (await self.lease(harness.frontier)).leases}
        assert sorted(leases) == ["a.example", "c.example"]
        again = leases["a.example"]
        assert (again.memo, again.robots) == (
            {"a": 1, "b": [2]},
            {"http://a.example": b"\x00\xff", "https://a.example": b"s"},
        )
        assert sorted(keys(again)) == [5, 6, 7, 21]

    @scenario()
    async def test_p7_all_notes_of_one_call_count(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        lease = await self.one(harness.frontier, batch=1)
        told = [
            note(lease, robots={"http://a.example": b"any"}, delay=5 * self.tick),
            note(lease, memo={"a": 1}, hold=20 * self.tick),
            note(lease, memo={"b": 2}),
        ]
        await harness.frontier.complete(outcomes(lease), notes=told)
        if harness.durable:
            await harness.reopen()
        await self.past(harness, 20)
        lease = await self.one(harness.frontier)
        assert (lease.robots, lease.memo) == ({"http://a.example": b"any"}, {"a": 1, "b": 2})
        assert lease.delay == 5 * self.tick

    @scenario()
    async def test_p7_marks_survive(self, harness: Harness) -> None:
        self.must_be_durable(harness)
        assert await harness.marks() == {}
        await harness.frontier.add(pages(1))
        lease = await self.one(harness.frontier)
        await harness.frontier.complete(outcomes(lease), marks={"pages.jsonl": 10, "items.jsonl": 3})
        await harness.frontier.complete([], marks={"pages.jsonl": 1 << 40})
        await harness.reopen()
        assert await harness.marks() == {"pages.jsonl": 1 << 40, "items.jsonl": 3}

    @scenario()
    async def test_p9_a_dead_workers_lane_comes_back_within_lease_and_delay(self, harness: Harness) -> None:
        dead, other = await harness.worker("dead"), await harness.worker("other")
        await dead.add(pages(1, 2))
        lease = await self.one(dead)
        await dead.complete([outcome(lease, 1)])
        wait = (await self.none(other)).wait
        assert wait is not None, "an idle worker must know when to look again"
        assert wait <= (LEASE + 1.01) * self.tick
        await harness.advance((LEASE + 1.1) * self.tick)
        assert keys(await self.one(other)) == [2]

    @scenario()
    async def test_p9_a_lease_cut_short_ends_early(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        lease = await self.one(harness.frontier, ticks=1000)
        assert len(await harness.frontier.extend([lease], seconds=5 * self.tick)) == 1
        await harness.advance(6.1 * self.tick)
        await self.one(harness.frontier)

    @scenario(max_pages=2)
    async def test_p9_the_last_pages_are_not_lost_with_their_worker(self, harness: Harness) -> None:
        """All that may still be fetched is in the hands of a dead worker."""
        dead, other = await harness.worker("dead"), await harness.worker("other")
        await dead.add(pages(1, 2, 3) + pages(4, site="b.example"))
        await self.one(dead, batch=2)
        grant = await self.none(other)
        assert grant.wait is not None
        assert 0 < grant.wait <= (LEASE + 1.01) * self.tick
        await harness.advance((LEASE + 1.1) * self.tick)
        assert len(keys(*(await self.lease(other)).leases)) == 2

    @scenario(max_pages=1, delay=5.0)
    async def test_p9_the_last_pages_rest_one_delay_too(self, harness: Harness) -> None:
        """All that may still be fetched is in the hands of a dead worker, who may just have asked for it."""
        dead, other = await harness.worker("dead"), await harness.worker("other")
        await dead.add(pages(1, 2))
        await self.one(dead, batch=1)
        await harness.advance(LEASE * self.tick)
        await self.none(other)
        await self.past(harness, 5)
        await self.one(other)

    @scenario(delay=3.0)
    async def test_p9_a_worker_that_is_seen_to_die_gives_its_lanes_back_at_once(self, harness: Harness) -> None:
        dead = await harness.worker("dead")
        await dead.add(pages(1, 2) + pages(3, site="b.example"))
        assert len((await self.lease(dead, ticks=10_000)).leases) == 2
        await harness.lose(dead)
        await self.past(harness, 3)
        leases = (await self.lease(harness.frontier, ticks=1000)).leases
        assert sorted(keys(*leases)) == [1, 2, 3]
        assert not any(lease.suspect for lease in leases), "nobody was handling them"

    @scenario(delay=0.0)
    async def test_p9_a_worker_that_dies_in_the_middle_of_a_call_costs_nothing(self, harness: Harness) -> None:
        for key in range(1, 12):
            worker = await harness.worker(f"dies-{key}")
            await worker.add(pages(key))
            lease = await self.one(worker)
            calling = asyncio.ensure_future(worker.complete(outcomes(lease, links=(page(key + 100),))))
            for _ in range(key):
                await asyncio.sleep(0)
            await harness.lose(worker)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            while (grant := await self.lease(harness.frontier)).job != "finished":
                for lease in grant.leases:
                    links = (page(key + 100),) if keys(lease) == [key] else ()
                    await harness.frontier.complete(outcomes(lease, links=links))
            counts = await harness.frontier.counts()
            assert (counts.done, counts.known) == (2 * key, 2 * key)
        if harness.durable:
            await harness.reopen()
            counts = await harness.frontier.counts()
            assert (counts.done, counts.queued, counts.known, counts.finished) == (22, 0, 22, True)


class Poison(Suite):
    """P10: requests that kill their workers."""

    async def _expire(self, harness: Harness) -> Lease:
        lease = await self.one(harness.frontier)
        await harness.advance((LEASE + 1.1) * self.tick)
        return lease

    @scenario(max_deliveries=4)
    async def test_p10_poison_is_isolated_then_parked(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2, 3))
        for _ in range(2):
            lease = await self._expire(harness)
            assert (keys(lease), lease.suspect) == ([1, 2, 3], False)
        await harness.frontier.add(pages(4))
        delivered: list[int] = []
        while (grant := await self.lease(harness.frontier)).job != "finished":
            assert len(delivered) < 8
            for lease in grant.leases:
                delivered += keys(lease)
                assert lease.suspect == (keys(lease) != [4])
                if keys(lease) == [2]:
                    await harness.advance((LEASE + 1.1) * self.tick)
                else:
                    await harness.frontier.complete(outcomes(lease))
            await harness.advance(1.1 * self.tick)
        assert sorted(delivered) == [1, 2, 2, 3, 4], "two more deliveries for the poison, one for each other"
        for _ in range(2 if harness.durable else 1):
            counts = await harness.frontier.counts()
            assert (counts.parked, counts.done, counts.finished) == (1, 3, True)
            if harness.durable:
                await harness.reopen()

    @scenario(max_deliveries=4)
    async def test_p10_lost_deliveries_are_counted_over_crashes(self, harness: Harness) -> None:
        self.must_be_durable(harness)
        await harness.frontier.add(pages(1, 2))
        for _ in range(2):
            await self._expire(harness)
        assert (await self.one(harness.frontier)).suspect
        await harness.reopen()
        await harness.advance(1.1 * self.tick)
        lease = await self._expire(harness)
        assert (keys(lease), lease.suspect) == ([1], True)
        assert keys(await self._expire(harness)) == [2]
        assert keys(await self._expire(harness)) == [1]
        assert keys(await self.one(harness.frontier)) == [2]
        assert (await harness.frontier.counts()).parked == 1
        await harness.reopen()
        counts = await harness.frontier.counts()
        assert (counts.parked, counts.queued) == (1, 1)

    @scenario(max_deliveries=3)
    async def test_p10_an_answer_ends_the_suspicion(self, harness: Harness) -> None:
        """Only losses in a row count, also over a crash; and a request that was tried before can be parked too."""
        await harness.frontier.add(pages(1))
        for _ in range(2):
            for _ in range(2):
                await self._expire(harness)
            lease = await self.one(harness.frontier)
            assert lease.suspect
            await harness.frontier.complete(outcomes(lease, "retry", again_in=2 * self.tick))
            if harness.durable:
                await harness.reopen()
            await harness.advance(2.1 * self.tick)
            lease = await self.one(harness.frontier)
            assert not lease.suspect
            await harness.frontier.release([lease])
            await harness.advance(1.1 * self.tick)
        for _ in range(3):
            await self._expire(harness)
        assert (await self.none(harness.frontier)).job == "finished"
        for _ in range(2 if harness.durable else 1):
            counts = await harness.frontier.counts()
            assert (counts.parked, counts.delayed, counts.queued, counts.finished) == (1, 0, 0, True)
            if harness.durable:
                # Parking was seen by the last `lease`, which has returned.
                await harness.reopen()

    @scenario(max_deliveries=5)
    async def test_p10_a_worker_has_one_suspect_and_leaves_the_others_to_others(self, harness: Harness) -> None:
        first, second = await harness.worker("one"), await harness.worker("two")
        await first.add(pages(1) + pages(2, site="b.example") + pages(3, site="c.example"))
        for _ in range(2):
            assert len((await self.lease(first)).leases) == 3
            await harness.advance((LEASE + 1.1) * self.tick)
        one = await self.one(first)
        grant = await self.none(first)
        assert grant.wait is None or grant.wait > 0, "it would ask again and again"
        two = await self.one(second)
        assert one.suspect
        assert two.suspect
        assert one.site != two.site
        await self.none(second)
        await first.complete(outcomes(one))
        three = await self.one(first)
        assert {one.site, two.site, three.site} == {"a.example", "b.example", "c.example"}
