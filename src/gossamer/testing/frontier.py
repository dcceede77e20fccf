"""Conformance suite for frontiers: subclass `FrontierSuite`, implement `open` for your backend, and run pytest."""

from __future__ import annotations

import asyncio

import msgspec

from gossamer.frontier.base import Frontier
from gossamer.model import Counts, Lease
from gossamer.settings import SiteSettings
from gossamer.testing.frontier_behavior import ControlTests, LimitsTests, OrderTests, RoundTripTests
from gossamer.testing.harness import LEASE, Harness, Suite, keys, note, outcome, outcomes, page, pages, scenario


class KeyTests(Suite):
    """P1 and P2: each key is queued once, and a lane has one holder."""

    @scenario()
    async def test_p1_a_key_is_queued_once(self, harness: Harness) -> None:
        frontier = harness.frontier
        assert await frontier.add(pages(1, 2, 2)) == 2
        assert await frontier.add(pages(1, 3)) == 1
        assert keys(await self.one(frontier)) == [1, 2, 3]
        assert await frontier.add(pages(1)) == 0, "it is in flight"
        assert (await frontier.counts()).known == 3

    @scenario()
    async def test_p1_a_link_found_on_two_pages_is_queued_once(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(1, 2))
        lease = await self.one(frontier)
        await frontier.complete(outcomes(lease, links=(page(3), page(3), page(1))))
        assert (await frontier.counts()).queued == 1
        await harness.advance(1.1 * self.tick)
        assert keys(await self.one(frontier)) == [3]

    @scenario()
    async def test_p1_a_done_key_is_not_queued_again(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(1))
        await frontier.complete(outcomes(await self.one(frontier), links=(page(1),)))
        assert await frontier.add(pages(1)) == 0
        counts = await frontier.counts()
        assert (counts.done, counts.queued, counts.finished) == (1, 0, True)

    @scenario()
    async def test_h39_text_in_any_script_comes_back_the_same(self, harness: Harness) -> None:
        """H39: text of a page in a request's meta: four-byte characters, right-to-left, and zero-width."""
        text = "\U0001f600 \u202eabc\u200b \u65e5\u672c \u00e9 \ufffe ' \" \\ \n %s {} \x00"
        request = msgspec.structs.replace(page(1), label="\u00e9\U0001f600", meta={"title": text, text[:9]: 1})
        await harness.frontier.add([request])
        found = (await self.one(harness.frontier)).requests[0]
        assert (found.label, found.meta, found.url) == (request.label, request.meta, request.url)

    @scenario()
    async def test_p2_workers_hold_different_lanes_and_keys(self, harness: Harness) -> None:
        first, second = await harness.worker("one"), await harness.worker("two")
        for number in range(4):
            await first.add(pages(number * 10 + 1, number * 10 + 2, site=f"{number}.example"))
        grants = await asyncio.gather(self.lease(first, 2), self.lease(second, 2))
        leases = [lease for grant in grants for lease in grant.leases]
        assert len({lease.site for lease in leases}) == len({lease.token for lease in leases}) == 4
        assert len(keys(*leases)) == len(set(keys(*leases))) == 8
        await self.none(first)
        await self.none(second)

    @scenario(per_site=3)
    async def test_p2_a_site_has_one_lane_until_its_robots_are_known(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(*range(1, 10)))
        lease = await self.one(frontier, batch=1)
        assert (lease.lanes, lease.delay) == (1, self.tick)
        await harness.advance(5 * self.tick)
        await self.none(frontier)
        await frontier.complete(outcomes(lease), notes=[note(lease, robots={"http://a.example": b"any"})])
        await harness.advance(3.1 * self.tick)
        self._are_three_lanes((await self.lease(frontier, batch=2)).leases)

    @scenario(per_site=3, robots=False)
    async def test_p2_lanes_of_one_site_have_different_requests(self, harness: Harness) -> None:
        await harness.frontier.add(pages(*range(1, 10)))
        await harness.advance(4 * self.tick)
        leases = (await self.lease(harness.frontier, batch=2)).leases
        self._are_three_lanes(leases)
        await self.none(harness.frontier)

    def _are_three_lanes(self, leases: tuple[Lease, ...]) -> None:
        assert sorted(lease.lane for lease in leases) == [0, 1, 2]
        assert {(lease.lanes, lease.delay) for lease in leases} == {(3, 3 * self.tick)}
        found = keys(*leases)
        assert len(found) >= 3
        assert len(found) == len(set(found))

    @scenario(delay=0.0)
    async def test_p8_many_workers_fetch_everything_once(self, harness: Harness) -> None:
        workers = [await harness.worker(f"w{number}") for number in range(5)]
        for site in range(7):
            await workers[site % 5].add(pages(*range(site * 100, site * 100 + 9), site=f"{site}.example"))
        done = await asyncio.gather(*(self._drain(worker) for worker in workers))
        found = [key for keys_of_one in done for key in keys_of_one]
        assert sorted(found) == [site * 100 + number for site in range(7) for number in range(9)]
        counts = await harness.frontier.counts()
        assert (counts.done, counts.stale, counts.finished) == (63, 0, True)

    async def _drain(self, worker: Frontier) -> list[int]:
        found: list[int] = []
        while (grant := await self.lease(worker, 2, batch=2)).job != "finished":
            for lease in grant.leases:
                found += keys(lease)
                await worker.complete(outcomes(lease))
            await asyncio.sleep(0)
        return found


class OutcomeTests(Suite):
    """P3 and P4: which outcomes are committed."""

    @scenario()
    async def test_p3_an_outcome_lands_with_its_links(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(1, 2))
        lease = await self.one(frontier)
        receipt = await frontier.complete([outcome(lease, 1, links=(page(3), page(4, "b.example")))])
        assert (receipt.accepted, receipt.stale, receipt.repeated) == (1, 0, 0)
        counts = await frontier.counts()
        assert (counts.done, counts.leased, counts.queued, counts.known, counts.sites) == (1, 1, 2, 4, 2)
        assert keys(await self.one(frontier)) == [4], "the site's other request is still in hand"

    @scenario()
    async def test_p3_repeating_a_complete_changes_nothing(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(1))
        lease = await self.one(frontier)
        twice = outcomes(lease, links=(page(2),)) * 2
        assert (await frontier.complete(twice)).accepted == 1
        before = await frontier.counts()
        for _ in range(2):
            receipt = await frontier.complete(twice)
            assert (receipt.accepted, receipt.stale, receipt.repeated) == (0, 0, 2)
        assert await frontier.counts() == before
        await harness.advance(1.1 * self.tick)
        after = await self.one(frontier)
        assert keys(after) == [2]
        assert (await frontier.complete(twice)).accepted == 0
        assert (await frontier.complete(outcomes(after))).accepted == 1

    @scenario(delay=0.0)
    async def test_p3_a_cancelled_complete_counts_whole_or_not_at_all(self, harness: Harness) -> None:
        """Cancel at any moment; the next call finds a consistent state."""
        frontier = harness.frontier
        await frontier.add(pages(1))
        for key in range(1, 40):
            lease = await self.one(frontier)
            calling = asyncio.ensure_future(frontier.complete(outcomes(lease, links=(page(key + 1),))))
            await asyncio.sleep(0 if key % 2 else key * 1e-4)
            for _ in range(key // 4):
                await asyncio.sleep(0)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            receipt = await frontier.complete(outcomes(lease, links=(page(key + 1),)))
            assert receipt.accepted + receipt.repeated == 1
            counts = await frontier.counts()
            assert (counts.done, counts.queued, counts.known) == (key, 1, key + 1)
        if harness.durable:
            await harness.reopen()
            again = await harness.frontier.counts()
            assert (again.done, again.queued, again.known) == (39, 1, 40)

    @scenario(delay=0.0)
    async def test_p3_an_add_whose_caller_went_away_adds_each_key_once(self, harness: Harness) -> None:
        frontier = harness.frontier
        for key in range(1, 30):
            calling = asyncio.ensure_future(frontier.add(pages(key)))
            await asyncio.sleep(0 if key % 2 else key * 1e-4)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            await frontier.add(pages(key))
        if harness.durable:
            await harness.reopen()
        assert (await harness.frontier.counts()).queued == 29
        assert sorted(keys(await self.one(harness.frontier))) == list(range(1, 30))

    @scenario(delay=10.0)
    async def test_p4_a_lease_that_has_ended_is_not_extended(self, harness: Harness) -> None:
        """Also while its lane is in its delay, and no other worker leases it."""
        await harness.frontier.add(pages(1))
        lease = await self.one(harness.frontier)
        await harness.advance((LEASE + 1) * self.tick)
        assert await harness.frontier.extend([lease], seconds=99 * self.tick) == []
        await self.past(harness, 9)
        assert (await self.one(harness.frontier)).token > lease.token

    @scenario()
    async def test_p4_a_late_worker_changes_nothing(self, harness: Harness) -> None:
        late, other = await harness.worker("late"), await harness.worker("other")
        await late.add(pages(1, 2, 3))
        old = await self.one(late)
        await harness.advance((LEASE + 1.1) * self.tick)
        new = await self.one(other)
        assert keys(new) == [1, 2, 3]
        assert new.token > old.token
        before = await late.counts()
        receipt = await late.complete(
            outcomes(old, links=(page(9),)),
            notes=[note(old, hold=500 * self.tick, delay=50 * self.tick, close="no", memo={"x": 1})],
        )
        assert (receipt.accepted, receipt.stale) == (0, 3)
        assert await late.extend([old], seconds=99 * self.tick) == []
        await late.release([old])
        assert await late.counts() == msgspec.structs.replace(before, stale=before.stale + 3)
        assert (await other.complete(outcomes(new))).accepted == 3
        assert (await late.complete(outcomes(old))).stale == 3
        counts = await late.counts()
        assert (counts.done, counts.stale, counts.finished) == (3, 6, True)
        await other.add(pages(4))
        await harness.advance(1.1 * self.tick)
        assert (await self.one(other)).memo == {}

    @scenario()
    async def test_p4_a_stale_outcome_takes_nothing_from_a_good_one_beside_it(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add([*pages(1), *pages(2, site="b.example")])
        leases = {lease.site: lease for lease in (await self.lease(frontier)).leases}
        stale, good = leases["a.example"], leases["b.example"]
        await frontier.release([stale])
        late = outcome(stale, 1, links=(page(11), page(12)))
        receipt = await frontier.complete([late, outcome(good, 2, links=(page(21, "b.example"),))])
        assert (receipt.accepted, receipt.stale) == (1, 1)
        await harness.advance(1.1 * self.tick)
        assert sorted(keys(*(await self.lease(frontier)).leases)) == [1, 21]

    @scenario()
    async def test_p4_a_token_is_stale_after_release_and_after_parking(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(1))
        lease = await self.one(frontier)
        await frontier.release([lease])
        assert (await frontier.complete(outcomes(lease))).stale == 1
        counts = await frontier.counts()
        assert (counts.stale, counts.done, counts.queued) == (1, 0, 1)

    @scenario()
    async def test_p4_tokens_only_grow(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1) + pages(2, site="b.example"))
        tokens: list[int] = []
        for life in range(4 if harness.durable else 1):
            for _ in range(3):
                await harness.advance(1.1 * self.tick)
                leases = (await self.lease(harness.frontier)).leases
                tokens += sorted(lease.token for lease in leases)
                await harness.frontier.release(leases)
            if harness.durable:
                if life == 1:
                    await harness.set_back(86_400 * self.tick)
                await harness.reopen()
        assert len(tokens) >= 6
        assert tokens == sorted(set(tokens))

    @scenario()
    async def test_p4_tokens_of_a_former_life_are_stale(self, harness: Harness) -> None:
        self.must_be_durable(harness)
        await harness.frontier.add(pages(1))
        old = await self.one(harness.frontier)
        await harness.reopen()
        assert (await harness.frontier.complete(outcomes(old))).stale == 1
        await harness.advance(1.1 * self.tick)
        new = await self.one(harness.frontier)
        assert new.token > old.token
        assert (await harness.frontier.complete(outcomes(old))).stale == 1
        assert (await harness.frontier.complete(outcomes(new))).accepted == 1


class PolitenessTests(Suite):
    """P5: the delay between requests to a site."""

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
        # A store that keeps the lanes' clocks does not change a delay that has already begun.
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
            # The last check may find a lane a moment after it became ready.
            await self.past(harness, 0.9 if number else 1)
            await self.one(harness.frontier, batch=1)

    @scenario(sites={"a.example": SiteSettings(delay=0.0)}, delay=5.0)
    async def test_p5_without_delay_a_site_is_ready_at_once(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        for _ in range(2):
            await harness.frontier.complete(outcomes(await self.one(harness.frontier, batch=1)))
        assert (await harness.frontier.counts()).finished


class FinishTests(Suite):
    """P6: a job is finished only when nothing is left."""

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
        """Queued, delayed, released, and later discovered requests fail; none of them is leased."""
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


class RecoveryTests(Suite):
    """P7, P9, and P10: what survives a crash, and how lost work is leased again."""

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
        notes = [
            note(lease, robots={"http://a.example": b"any"}, delay=5 * self.tick),
            note(lease, memo={"a": 1}, hold=20 * self.tick),
            note(lease, memo={"b": 2}),
        ]
        await harness.frontier.complete(outcomes(lease), notes=notes)
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
        """A dead worker leases the last remaining requests."""
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
        """A dead worker, which may just have sent a request, leases the last remaining requests."""
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
        assert not any(lease.suspect for lease in leases), "no worker was processing them"

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


class SuspectTests(Suite):
    """P10: requests that crash their workers."""

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
        """Only consecutive losses count, also across a crash; a request with earlier tries can be parked too."""
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
                # The last `lease` has parked the request.
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


class DataLossTests(Suite):
    """P3 to P7 after the store lost acknowledged writes, as with an unsynced append-only file or a promoted replica
    that had not caught up."""

    @scenario()
    async def test_p7_a_forgotten_page_comes_again_and_its_links_are_new_again(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        lease = await self.one(harness.frontier, batch=1)
        await harness.remember()
        before = await harness.frontier.complete([outcome(lease, 1, links=(page(11), page(12, "c.example")))])
        assert before.accepted == 1
        await self._forget(harness)
        frontier = harness.frontier
        found = [lease for lease in (await self.lease(frontier)).leases if lease.site == "a.example"]
        assert keys(*found) == [1, 2]
        after = await frontier.complete(outcomes(found[0], links=(page(11), page(12, "c.example"))))
        assert after.accepted == 2
        assert (await frontier.counts()).known == 4

    @scenario()
    async def test_p7_run_changes_after_the_store_may_have_forgotten(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2) + pages(21, site="b.example"))
        grant = await self.lease(harness.frontier, limit=1, batch=1)
        receipt = await harness.frontier.complete(outcomes(grant.leases[0]))
        await harness.remember()
        asked = harness.frontier
        again = await self.lease(asked, limit=0)
        assert grant.run == receipt.run == again.run
        await harness.forget()
        if asked is not harness.frontier:
            # The store is a process, and its run ends with it.
            return
        assert (await self.lease(asked, limit=0)).run != again.run
        await self._rest(harness)
        found = await self.lease(asked)
        assert (await asked.complete(outcomes(found.leases[0]))).run == found.run != again.run

    @scenario()
    async def test_p5_a_forgotten_lease_ends_before_its_site_is_leased_again(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        # Let the store know that leases of this length exist.
        await harness.frontier.release([await self.one(harness.frontier, batch=1)])
        await harness.advance(1.1 * self.tick)
        await harness.remember()
        await self.one(harness.frontier, batch=1)
        await harness.forget()
        await self.none(harness.frontier)
        # If the store is a process, its workers die with it; otherwise they continue until their leases expire.
        await self.past(harness, 1.0 if harness.rests_after_crash else LEASE + 1 + harness.rest_beyond_lease)
        assert len(await self._all_keys(harness)) == 2

    @scenario()
    async def test_p4_tokens_grow_over_what_was_forgotten(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        await harness.remember()
        forgotten = await self.one(harness.frontier, batch=1)
        await self._forget(harness)
        lease = await self.one(harness.frontier, batch=1)
        assert lease.token > forgotten.token
        receipt = await harness.frontier.complete([outcome(forgotten, 1, links=(page(11),))])
        assert (receipt.accepted, receipt.stale) == (0, 1)
        assert (await harness.frontier.counts()).known == 2

    @scenario()
    async def test_p6_a_job_whose_last_page_was_forgotten_is_not_finished(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        lease = await self.one(harness.frontier)
        await harness.remember()
        await harness.frontier.complete(outcomes(lease))
        assert (await harness.frontier.counts()).finished
        await harness.forget()
        assert not (await harness.frontier.counts()).finished
        await self._rest(harness)
        await harness.frontier.complete(outcomes(await self.one(harness.frontier)))
        assert (await harness.frontier.counts()).finished

    async def _forget(self, harness: Harness) -> None:
        await harness.forget()
        await self._rest(harness)

    async def _rest(self, harness: Harness) -> None:
        """Sites rest from the moment the loss is noticed until all lost leases have expired."""
        await self.none(harness.frontier)
        await harness.advance((LEASE + harness.rest_beyond_lease + 2) * self.tick)

    async def _all_keys(self, harness: Harness) -> list[int]:
        return keys(*(await self.lease(harness.frontier)).leases)


class FrontierSuite(
    KeyTests,
    OutcomeTests,
    PolitenessTests,
    FinishTests,
    RecoveryTests,
    SuspectTests,
    DataLossTests,
    OrderTests,
    LimitsTests,
    ControlTests,
    RoundTripTests,
):
    """All promises of a frontier; each test's name has the number of its promise.

    Implement `open`, an async context manager that yields a `Harness`:

        class TestMyFrontier(FrontierSuite):
            def open(self, settings):
                return my_harness(settings)
    """
