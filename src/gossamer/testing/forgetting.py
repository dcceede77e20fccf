"""A store that forgets what it acknowledged last, as tests: nothing is lost, and nobody is hurried."""

from __future__ import annotations

from gossamer.testing.harness import LEASE, Harness, Suite, keys, outcome, outcomes, page, pages, scenario


class Forgetting(Suite):
    """P3, P4, P5, P6 and P7, where the store falls back to an earlier state of its own: an append-only file that was
    not synced, a replica that was promoted before it had caught up."""

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
    async def test_p7_whoever_asks_is_told_that_the_store_may_have_forgotten(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2) + pages(21, site="b.example"))
        grant = await self.lease(harness.frontier, limit=1, batch=1)
        receipt = await harness.frontier.complete(outcomes(grant.leases[0]))
        await harness.remember()
        asked = harness.frontier
        again = await self.lease(asked, limit=0)
        assert grant.run == receipt.run == again.run
        await harness.forget()
        if asked is not harness.frontier:
            # The store is a process, and all that was told of it dies with it.
            return
        assert (await self.lease(asked, limit=0)).run != again.run
        await self._rest(harness)
        found = await self.lease(asked)
        assert (await asked.complete(outcomes(found.leases[0]))).run == found.run != again.run

    @scenario()
    async def test_p5_a_forgotten_lease_ends_before_its_site_is_leased_again(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        # So that leases of this length are known to the store.
        await harness.frontier.release([await self.one(harness.frontier, batch=1)])
        await harness.advance(1.1 * self.tick)
        await harness.remember()
        await self.one(harness.frontier, batch=1)
        await harness.forget()
        await self.none(harness.frontier)
        # Where the store is a process, its workers die with it; elsewhere they go on until their leases end.
        await self.past(harness, 1.0 if harness.rests_after_crash else LEASE + 1)
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
        """Sites rest from the moment at which somebody notices, until all forgotten leases have ended."""
        await self.none(harness.frontier)
        await harness.advance((LEASE + 2) * self.tick)

    async def _all_keys(self, harness: Harness) -> list[int]:
        return keys(*(await self.lease(harness.frontier)).leases)
