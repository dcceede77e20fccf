"""Continuous crawls, as tests of a frontier: what is done comes again, and the job waits for it."""

from __future__ import annotations

from unittest import SkipTest

from gossamer.model import Counts
from gossamer.testing.harness import Harness, Suite, keys, note, outcome, outcomes, page, pages, scenario

WEEK = 500.0
"""In ticks: any time that is much longer than a lease."""


class Revisits(Suite):
    """Revisits, in jobs with the setting `recrawl` and in others."""

    @scenario(recrawl="table")
    async def test_a_continuous_job_waits_for_its_revisits(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        lease = await self.one(harness.frontier)
        await harness.frontier.complete(
            [
                outcome(lease, 1, again_in=WEEK * self.tick, state={"etag": "x"}),
                outcome(lease, 2, "failed", again_in=2 * WEEK * self.tick),
            ]
        )
        if harness.durable:
            await harness.reopen()
            await harness.advance(2 * self.tick)
        grant = await self.none(harness.frontier)
        assert grant.job == "running"
        assert grant.wait is not None
        assert 0.9 * WEEK * self.tick < grant.wait <= WEEK * self.tick
        counts = await harness.frontier.counts()
        assert (counts.done, counts.failed, counts.revisits, counts.finished) == (1, 1, 2, False)
        await harness.advance(WEEK * self.tick)
        (request,) = (await self.one(harness.frontier)).requests
        assert (request.key, request.state) == (1, {"etag": "x"})

    @scenario(recrawl="table")
    async def test_a_hint_of_a_change_brings_a_visit_forward(self, harness: Harness) -> None:
        if not harness.hastens:
            raise SkipTest("this backend visits pages at their time, whatever it hears")
        await harness.frontier.add(pages(1, 2, 3, 4))
        lease = await self.one(harness.frontier)
        state = {"seen_at": 10.0, "etag": "x"}
        ends = [outcome(lease, key, again_in=WEEK * self.tick, state=state) for key in (1, 2, 3)]
        late = outcome(lease, 4, "failed", again_in=WEEK * self.tick, state={**state, "failures": 1})
        await harness.frontier.complete([*ends, late])
        await harness.advance(2 * self.tick)
        await self.none(harness.frontier)
        heard = {1: 20.0, 2: 5.0, 3: 1e12, 4: 20.0}
        hints = [page(key, meta={"lastmod": lastmod}) for key, lastmod in heard.items()]
        assert await harness.frontier.add([*hints, page(5, "b.example")]) == 1
        if harness.durable:
            await harness.reopen()
        await harness.advance(2 * self.tick)
        leases = (await self.lease(harness.frontier)).leases
        first, second = sorted(leases, key=lambda lease: lease.site)
        assert keys(second) == [5]
        assert keys(first) == [1], "not what was seen since, lies ahead, or has failed"
        assert first.requests[0].state == {**state, "hint": 20.0}
        counts = await harness.frontier.counts()
        assert (counts.revisits, counts.known, counts.leased) == (3, 5, 2)
        # Links tell it too, and what is brought forward twice comes once.
        await harness.frontier.complete([outcome(first, 1, again_in=WEEK * self.tick, state=state)])
        await harness.frontier.complete(outcomes(second, links=tuple(hints[:1] * 2)))
        await harness.advance(2 * self.tick)
        assert keys(await self.one(harness.frontier)) == [1]

    @scenario(recrawl="table", revisit_min_seconds=1e10, revisit_max_seconds=1e10)
    async def test_a_hint_puts_no_visit_off(self, harness: Harness) -> None:
        """Pages are not to be visited so soon again because of it; but this one is to come for other reasons."""
        await harness.frontier.add(pages(1))
        state = {"seen_at": 10.0}
        lease = await self.one(harness.frontier)
        await harness.frontier.complete(outcomes(lease, again_in=20 * self.tick, state=state))
        await harness.frontier.add([page(1, meta={"lastmod": 20.0})])
        await self.past(harness, 20)
        (request,) = (await self.one(harness.frontier)).requests
        assert request.state == state, "it did not bring the visit forward"

    @scenario(recrawl="table")
    async def test_a_visit_that_leaves_no_state_ends_the_one_before(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        for state, seen in (({"etag": "x"}, None), (None, {"etag": "x"}), (None, None)):
            lease = await self.one(harness.frontier)
            assert lease.requests[0].state == seen
            await harness.frontier.complete(outcomes(lease, again_in=5 * self.tick, state=state))
            if harness.durable:
                await harness.reopen()
            await harness.advance(6 * self.tick)

    @scenario(recrawl="table")
    async def test_a_continuous_job_without_revisits_is_finished(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        await harness.frontier.complete(outcomes(await self.one(harness.frontier), "failed"))
        assert (await self.none(harness.frontier)).job == "finished"
        assert (await harness.frontier.counts()).finished

    @scenario(recrawl="table", max_pages=2)
    async def test_a_continuous_job_ends_when_max_pages_are_stored(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        for _ in range(2):
            await harness.frontier.complete(outcomes(await self.one(harness.frontier), again_in=5 * self.tick))
            await harness.advance(6 * self.tick)
        if harness.durable:
            await harness.reopen()
            await harness.advance(2 * self.tick)
        assert (await self.none(harness.frontier)).job == "finished"

    @scenario()
    async def test_p6_a_revisit_that_is_due_on_a_held_site_is_not_finished(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        lease = await self.one(harness.frontier)
        await harness.frontier.complete(
            outcomes(lease, again_in=10 * self.tick), notes=[note(lease, hold=100 * self.tick)]
        )
        assert (await harness.frontier.counts()).finished, "it is not due"
        await harness.advance(20 * self.tick)
        for _ in range(2):
            assert not (await harness.frontier.counts()).finished
            grant = await self.none(harness.frontier)
            assert grant.job == "running"
            assert grant.wait is not None
            assert 70 * self.tick < grant.wait < 81 * self.tick
            if harness.durable:
                await harness.reopen()
        await harness.advance(81 * self.tick)
        assert keys(await self.one(harness.frontier)) == [1]

    @scenario(recrawl="table", site_budget=3, delay=0.0)
    async def test_visits_are_stored_pages_before_and_after_a_restart(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        lease = await self.one(harness.frontier)
        await harness.frontier.complete(outcomes(lease, again_in=5 * self.tick))
        await harness.advance(6 * self.tick)
        assert (await harness.frontier.counts()).stored == 2
        if harness.durable:
            await harness.reopen()
            assert (await harness.frontier.counts()).stored == 2
        lease = await self.one(harness.frontier)
        assert len(lease.requests) == 1, "the budget has room for one more visit"
        await harness.frontier.complete(outcomes(lease, again_in=5 * self.tick))
        assert (await harness.frontier.counts()).stored == 3
        if harness.durable:
            await harness.reopen()
        await harness.advance(50 * self.tick)
        await self.none(harness.frontier)
        counts = await harness.frontier.counts()
        assert (counts.stored, counts.finished) == (3, True)

    @scenario(recrawl="table", delay=0.0)
    async def test_a_revisit_that_is_retried_keeps_its_state(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        await harness.frontier.complete(
            outcomes(await self.one(harness.frontier), again_in=5 * self.tick, state={"digest": "a"})
        )
        await harness.advance(6 * self.tick)
        for tries in (1, 2):
            await harness.frontier.complete(outcomes(await self.one(harness.frontier), "retry", again_in=2 * self.tick))
            if harness.durable:
                await harness.reopen()
            await harness.advance(3 * self.tick)
            lease = await self.one(harness.frontier)
            assert (lease.requests[0].state, lease.requests[0].tries) == ({"digest": "a"}, tries)
            await harness.frontier.release([lease])
        lease = await self.one(harness.frontier)
        await harness.frontier.complete(outcomes(lease, again_in=5 * self.tick, state={"digest": "b"}))
        await harness.advance(6 * self.tick)
        (request,) = (await self.one(harness.frontier)).requests
        assert (request.state, request.tries) == ({"digest": "b"}, 0)

    @scenario(recrawl="table", delay=0.0)
    async def test_what_was_skipped_may_come_again(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        await harness.frontier.complete(
            outcomes(await self.one(harness.frontier), "skipped", again_in=5 * self.tick, reason="robots")
        )
        self._are(await harness.frontier.counts(), done=0, skipped=1, stored=0)
        await harness.advance(6 * self.tick)
        await harness.frontier.complete(outcomes(await self.one(harness.frontier)))
        self._are(await harness.frontier.counts(), done=1, skipped=0, stored=1)

    @scenario(recrawl="table", delay=0.0)
    async def test_links_of_a_revisit_are_queued_once(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1))
        found: list[int] = []
        for visit in range(3):
            grant = await self.lease(harness.frontier)
            for lease in grant.leases:
                found += keys(lease)
                links = (page(2), page(3 + visit))
                await harness.frontier.complete(
                    [
                        outcome(
                            lease, key, again_in=5 * self.tick if key == 1 else None, links=links if key == 1 else ()
                        )
                        for key in keys(lease)
                    ]
                )
            await harness.advance(6 * self.tick)
        assert sorted(found) == [1, 1, 1, 2, 3, 4]

    @scenario(recrawl="table", delay=0.0)
    async def test_freshness_is_that_of_the_tallies_of_all_sites(self, harness: Harness) -> None:
        assert (await harness.frontier.counts()).freshness is None
        await harness.frontier.add(pages(1, 2) + pages(3, 4, site="b.example"))
        tallies = {"a.example": (2, 1.5), "b.example": (2, 0.7)}
        for lease in (await self.lease(harness.frontier)).leases:
            number, fresh = tallies[lease.site]
            rough = {"rates.0": {"n": 9, "f": 8.1, "b": {}}, "other": "text"}
            exact = {"rates.0": {"n": number - 1, "f": fresh, "b": {"1": [1, 1e-5]}}, "rates.1": {"n": 1, "b": {}}}
            first, second = outcomes(lease, again_in=WEEK * self.tick)
            await harness.frontier.complete([first], notes=[note(lease, memo=rough)])
            await harness.frontier.complete([second], notes=[note(lease, memo=exact)])
            await harness.frontier.complete([second], notes=[note(lease, memo=rough)])
        for _ in range(2):
            found = (await harness.frontier.counts()).freshness
            assert found is not None
            assert abs(found - 0.55) < 1e-6, "each tally counts as it was last, and one that came too late does not"
            if harness.durable:
                await harness.reopen()

    def _are(self, counts: Counts, **values: int) -> None:
        assert {name: getattr(counts, name) for name in values} == values
