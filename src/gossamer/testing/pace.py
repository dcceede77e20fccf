"""The promises P5 and P6 of a frontier, as tests: the gap between requests, and the end of a job."""

from __future__ import annotations

from gossamer.frontier.base import Frontier
from gossamer.model import Counts
from gossamer.settings import SiteSettings
from gossamer.testing.harness import LEASE, Harness, Suite, keys, note, outcome, outcomes, page, pages, scenario


class PolitenessTests(Suite):
    """P5: the gap."""

    @scenario()
    async def test_p5_a_lane_rests_one_delay_after_completion(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        await harness.frontier.complete(outcomes(await self.one(harness.frontier, batch=1)))
        await self.past(harness, 1)
        await self.one(harness.frontier)

    @scenario()
    async def test_p5_a_lane_rests_one_delay_after_release(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        await harness.advance(100 * self.tick)
        await harness.frontier.release([await self.one(harness.frontier)])
        await self.past(harness, 1)
        await self.one(harness.frontier)

    @scenario(delay=3.0)
    async def test_p5_a_lane_rests_one_delay_after_its_lease_expired(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        await self.one(harness.frontier)
        await harness.advance(LEASE * self.tick)
        await self.past(harness, 3)
        await self.one(harness.frontier)

    @scenario(delay=3.0)
    async def test_p5_a_lane_rests_one_delay_after_its_extended_lease_expired(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        lease = await self.one(harness.frontier)
        await harness.advance(LEASE / 2 * self.tick)
        (longer,) = await harness.frontier.extend([lease], seconds=LEASE * self.tick)
        assert (longer.token, longer.ttl) == (lease.token, LEASE * self.tick)
        await harness.advance(LEASE * self.tick)
        await self.past(harness, 3)
        await self.one(harness.frontier)

    @scenario(delay=3.0)
    async def test_p5_every_site_rests_one_delay_after_a_crash(self, harness: Harness) -> None:
        self.must_be_durable(harness)
        await harness.frontier.add(pages(1, 2) + pages(3, site="b.example"))
        assert len((await self.lease(harness.frontier)).leases) == 2
        await harness.reopen()
        await self.past(harness, 3)
        assert len((await self.lease(harness.frontier)).leases) == 2

    @scenario(delay=2.0, per_site=2, robots=False)
    async def test_p5_lanes_start_one_delay_apart_after_a_crash(self, harness: Harness) -> None:
        self.must_rest_after_a_crash(harness)
        await harness.frontier.add(pages(*range(1, 9)))
        lease = await self.one(harness.frontier, batch=1)
        await harness.frontier.complete(outcomes(lease), notes=[note(lease, delay=6 * self.tick)])
        await harness.reopen()
        await self.past(harness, 6)
        await self.one(harness.frontier, batch=1)
        await self.past(harness, 5.8)
        await self.one(harness.frontier, batch=1)

    @scenario()
    async def test_p5_a_hold_is_kept_by_all_and_over_a_crash(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(1, 2))
        lease = await self.one(frontier)
        await frontier.complete(
            [outcome(lease, 1, "retry", again_in=2 * self.tick)], notes=[note(lease, hold=50 * self.tick)]
        )
        await frontier.release([lease])
        assert (await frontier.counts()).held_sites == 1
        await harness.advance(10 * self.tick)
        if harness.durable:
            await harness.reopen()
            assert (await harness.frontier.counts()).held_sites == 1
        await self.past(harness, 40)
        assert sorted(keys(await self.one(harness.frontier))) == [1, 2]

    @scenario()
    async def test_p5_a_shorter_hold_does_not_end_a_longer_one(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        lease = await self.one(harness.frontier)
        for ticks in (50, 5):
            await harness.frontier.complete([], notes=[note(lease, hold=ticks * self.tick)])
        await harness.frontier.release([lease])
        await self.past(harness, 50)
        await self.one(harness.frontier)

    @scenario()
    async def test_p5_what_is_noted_later_does_not_end_a_hold_over_a_crash(self, harness: Harness) -> None:
        self.must_be_durable(harness)
        await harness.frontier.add(pages(1))
        lease = await self.one(harness.frontier)
        for later in (note(lease, hold=50 * self.tick), note(lease, hold=5 * self.tick), note(lease, memo={"a": 1})):
            await harness.frontier.complete([], notes=[later])
        await harness.frontier.release([lease])
        await harness.reopen()
        await self.past(harness, 50)
        await self.one(harness.frontier)

    @scenario()
    async def test_p5_a_learned_delay_is_kept_and_over_a_crash(self, harness: Harness) -> None:
        await harness.frontier.add(pages(*range(1, 9)))
        lease = await self.one(harness.frontier, batch=1)
        await harness.frontier.complete(outcomes(lease), notes=[note(lease, delay=5 * self.tick)])
        await self.past(harness, 5)
        lease = await self.one(harness.frontier, batch=1)
        assert lease.delay == 5 * self.tick
        await harness.frontier.complete(outcomes(lease))
        if harness.durable:
            await harness.reopen()
        await self.past(harness, 5)
        lease = await self.one(harness.frontier, batch=1)
        assert lease.delay == 5 * self.tick
        await harness.frontier.complete(outcomes(lease), notes=[note(lease, delay=2 * self.tick)])
        await self.past(harness, 2)
        assert (await self.one(harness.frontier)).delay == 2 * self.tick

    @scenario(delay=8.0)
    async def test_p5_a_lower_delay_in_the_settings_counts_where_no_site_asked_for_more(self, harness: Harness) -> None:
        self.must_be_durable(harness)
        await harness.frontier.add(pages(1, 2))
        lease = await self.one(harness.frontier, batch=1)
        await harness.frontier.complete(outcomes(lease), notes=[note(lease, robots={"http://a.example": b"any"})])
        await harness.reopen(self.settings(delay=2.0))
        # A store that keeps its lanes' clocks lets the rest that has begun go on as it was.
        await self.past(harness, 2 if harness.rests_after_crash else 8)
        assert (await self.one(harness.frontier)).delay == 2 * self.tick

    @scenario(per_site=2, robots=False)
    async def test_p5_each_of_n_lanes_keeps_n_delays(self, harness: Harness) -> None:
        await harness.frontier.add(pages(*range(1, 9)))
        await harness.advance(3 * self.tick)
        first, second = (await self.lease(harness.frontier, batch=1)).leases
        await harness.frontier.complete(outcomes(first))
        await self.past(harness, 2)
        assert (await self.one(harness.frontier, batch=1)).lane == first.lane
        await harness.frontier.complete(outcomes(second))
        await self.past(harness, 2)
        assert (await self.one(harness.frontier, batch=1)).lane == second.lane

    @scenario(per_site=2, robots=False, delay=5.0)
    async def test_p5_a_lane_rests_after_its_lease_though_another_is_ready(self, harness: Harness) -> None:
        await harness.frontier.add(pages(*range(1, 9)))
        await self.one(harness.frontier, batch=1)
        await self.past(harness, 5)
        other = await self.one(harness.frontier, batch=1)
        await harness.frontier.complete(outcomes(other))
        await self.past(harness, 10)
        assert (await self.one(harness.frontier, batch=1)).lane == other.lane

    @scenario(per_site=2)
    async def test_p5_lanes_open_when_the_lease_that_paced_the_site_alone_ends(self, harness: Harness) -> None:
        await harness.frontier.add(pages(*range(1, 9)))
        lease = await self.one(harness.frontier, batch=3)
        await harness.frontier.complete([outcome(lease, 1)], notes=[note(lease, robots={"http://a.example": b"any"})])
        await harness.advance(6 * self.tick)
        await self.none(harness.frontier)
        await harness.frontier.complete([outcome(lease, 2), outcome(lease, 3)])
        await harness.advance(2.1 * self.tick)
        assert len((await self.lease(harness.frontier)).leases) == 2

    @scenario(per_site=2)
    async def test_p5_a_site_whose_rules_are_not_known_has_one_lane(self, harness: Harness) -> None:
        await harness.frontier.add(pages(*range(1, 9)))
        for _ in range(2):
            lease = await self.one(harness.frontier, batch=1)
            assert (lease.lanes, lease.delay) == (1, self.tick)
            await harness.frontier.complete(outcomes(lease))
            await self.past(harness, 1)

    @scenario(per_site=3, robots=False)
    async def test_p5_the_lanes_of_a_new_site_start_one_delay_apart(self, harness: Harness) -> None:
        await harness.frontier.add(pages(*range(1, 9)))
        await self.one(harness.frontier, batch=1)
        await self._one_in_each_delay(harness, 2)

    @scenario(per_site=3)
    async def test_p5_lanes_that_open_start_one_delay_apart(self, harness: Harness) -> None:
        await harness.frontier.add(pages(*range(1, 9)))
        lease = await self.one(harness.frontier, batch=1)
        await harness.frontier.complete(outcomes(lease), notes=[note(lease, robots={"http://a.example": b"any"})])
        await self._one_in_each_delay(harness, 3)

    @scenario(per_site=3)
    async def test_p5_lanes_that_open_when_a_lease_expires_start_one_delay_apart(self, harness: Harness) -> None:
        await harness.frontier.add(pages(*range(1, 9)))
        lease = await self.one(harness.frontier, batch=2)
        await harness.frontier.complete([outcome(lease, 1)], notes=[note(lease, robots={"http://a.example": b"any"})])
        await harness.advance(LEASE * self.tick)
        await self._one_in_each_delay(harness, 3)

    async def _one_in_each_delay(self, harness: Harness, lanes: int) -> None:
        for number in range(lanes):
            # Where the last look found a lane, it was a moment after that had been ready.
            await self.past(harness, 0.9 if number else 1)
            await self.one(harness.frontier, batch=1)

    @scenario(sites={"a.example": SiteSettings(delay=0.0)}, delay=5.0)
    async def test_p5_without_delay_a_site_is_ready_at_once(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        for _ in range(2):
            await harness.frontier.complete(outcomes(await self.one(harness.frontier, batch=1)))
        assert (await harness.frontier.counts()).finished


class Endings(Suite):
    """P6: when a job is finished."""

    @scenario()
    async def test_p6_finished_means_that_nothing_is_left(self, harness: Harness) -> None:
        frontier = harness.frontier
        assert (await self.none(frontier)).job == "finished"
        await frontier.add(pages(1))
        assert await self._is_going_on(frontier), "it is queued"
        lease = await self.one(frontier)
        assert await self._is_going_on(frontier), "it is leased"
        await frontier.complete(outcomes(lease, "retry", again_in=20 * self.tick))
        assert await self._is_going_on(frontier), "it is delayed"
        await harness.advance(21 * self.tick)
        lease = await self.one(frontier)
        await frontier.complete([], notes=[note(lease, hold=20 * self.tick)])
        await frontier.release([lease])
        assert await self._is_going_on(frontier), "it is held"
        if harness.durable:
            await harness.reopen()
            frontier = harness.frontier
            assert await self._is_going_on(frontier), "it is held, and everybody was killed"
        await harness.advance(21 * self.tick)
        await frontier.complete(outcomes(await self.one(frontier), "skipped"))
        assert (await frontier.counts()).finished
        assert (await self.none(frontier)).job == "finished"

    async def _is_going_on(self, frontier: Frontier) -> bool:
        counts = await frontier.counts()
        assert counts.queued + counts.delayed + counts.leased == 1
        return not counts.finished and counts.job == "running"

    @scenario()
    async def test_p6_closing_a_site_fails_what_waits_there(self, harness: Harness) -> None:
        """The queue, what is delayed, what its holder gives back, and what is found later; nothing of it is leased."""
        frontier = harness.frontier
        await frontier.add(pages(*range(1, 8)))
        lease = await self.one(frontier, batch=1)
        await frontier.complete(outcomes(lease, "retry", again_in=30 * self.tick))
        await harness.advance(1.1 * self.tick)
        lease = await self.one(frontier, batch=3)
        await frontier.complete([outcome(lease, 2, "failed")], notes=[note(lease, close="dark")])
        await frontier.release([lease])
        await self._is_closed(frontier, failed=7)
        assert await frontier.add(pages(8)) == 1
        await self._is_closed(frontier, failed=8)
        if harness.durable:
            await harness.reopen()
            await self._is_closed(harness.frontier, failed=8)
            await harness.advance(40 * self.tick)
            await self._is_closed(harness.frontier, failed=8)

    async def _is_closed(self, frontier: Frontier, *, failed: int) -> None:
        counts = await frontier.counts()
        assert (counts.failed, counts.queued, counts.delayed, counts.leased) == (failed, 0, 0, 0)
        assert counts.finished
        await self.none(frontier)

    @scenario()
    async def test_p6_closing_a_site_leaves_other_sites_and_its_done_pages_alone(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(1, 2))
        await frontier.complete(outcomes(await self.one(frontier, batch=1), again_in=5000 * self.tick))
        await harness.advance(1.1 * self.tick)
        lease = await self.one(frontier)
        await frontier.complete(
            outcomes(lease, "retry", again_in=self.tick, links=(page(3, "b.example"),)),
            notes=[note(lease, close="dark")],
        )
        for _ in range(2):
            counts = await harness.frontier.counts()
            assert (counts.done, counts.failed, counts.queued, counts.finished) == (1, 1, 1, False)
            if harness.durable:
                await harness.reopen()
                await harness.advance(1.1 * self.tick)
        await harness.frontier.complete(outcomes(await self.one(harness.frontier)))
        assert (await harness.frontier.counts()).finished

    @scenario()
    async def test_p6_future_revisits_do_not_keep_a_job_from_being_finished(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2, 3))
        lease = await self.one(harness.frontier)
        week = 500 * self.tick
        await harness.frontier.complete(
            [
                outcome(lease, 1, again_in=week, state={"etag": "x"}),
                outcome(lease, 2, "failed", again_in=2 * week),
                outcome(lease, 3),
            ]
        )
        for _ in range(2 if harness.durable else 1):
            self._are(await harness.frontier.counts(), done=2, failed=1, revisits=2, finished=True)
            if harness.durable:
                await harness.reopen()
        await harness.advance(week * 1.1)
        assert not (await harness.frontier.counts()).finished, "one is due"
        lease = await self.one(harness.frontier)
        assert [(request.key, request.state) for request in lease.requests] == [(1, {"etag": "x"})]
        self._are(await harness.frontier.counts(), done=1, failed=1, revisits=1, finished=False)
        await harness.frontier.complete(outcomes(lease))
        self._are(await harness.frontier.counts(), done=2, failed=1, revisits=1, finished=True)
        await harness.advance(week)
        lease = await self.one(harness.frontier)
        assert keys(lease) == [2]
        self._are(await harness.frontier.counts(), done=2, failed=0, revisits=0, finished=False)
        await harness.frontier.complete(outcomes(lease))
        self._are(await harness.frontier.counts(), done=3, failed=0, revisits=0, finished=True)

    def _are(self, counts: Counts, *, done: int, failed: int, revisits: int, finished: bool) -> None:
        assert (counts.done, counts.failed, counts.revisits, counts.finished) == (done, failed, revisits, finished)
