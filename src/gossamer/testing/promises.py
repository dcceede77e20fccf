"""The promises P1 to P4 and P8 of a frontier, as tests: who has what, and what counts."""

from __future__ import annotations

import asyncio

import msgspec

from gossamer.frontier.base import Frontier
from gossamer.model import Lease
from gossamer.testing.harness import LEASE, Harness, Suite, keys, note, outcome, outcomes, page, pages, scenario


class Keys(Suite):
    """P1 and P2: who has what."""

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
        """H39: what a page says may be in the meta of a request: four bytes a character, right to left, no width."""
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


class Outcomes(Suite):
    """P3 and P4: what counts."""

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
        """Whenever its caller goes away; and the next call finds everything in order."""
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
        """Also while its lane still rests, and nobody else has it."""
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
