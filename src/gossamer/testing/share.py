"""The quota of sites, as tests of a frontier: no site above its share while others are ready, none waits in vain."""

from __future__ import annotations

from collections import Counter
from itertools import count, islice

from gossamer.frontier.base import Frontier
from gossamer.frontier.placement import shard_of
from gossamer.settings import SiteSettings
from gossamer.testing.harness import Harness, Suite, note, outcomes, pages, scenario

BIG = "big.example"
ROBOTS = {f"http://{BIG}": b"any"}


def neighbours(sites: int) -> list[str]:
    """Names of sites that share two shards of eight, or any of seven, and leave the big one alone in its own."""
    two = [shard for shard in range(8) if shard != shard_of(BIG, 8)][:2]
    names = (f"{number}.example" for number in count())
    fit = (name for name in names if shard_of(name, 8) in two and shard_of(name, 7) != shard_of(BIG, 7))
    return list(islice(fit, sites))


class Shares(Suite):
    """Which part of the requests a site is handed."""

    async def _fill(self, frontier: Frontier, *, sites: int, each: int, big: int) -> None:
        await frontier.add(pages(*range(1_000_000, 1_000_000 + big), site=BIG))
        for number, site in enumerate(neighbours(sites)):
            await frontier.add(pages(*range(number * 1000, number * 1000 + each), site=site))

    async def _dispatch(self, frontier: Frontier, calls: int, *, batch: int = 1, limit: int = 1) -> Counter[str]:
        """Lease and settle again and again; how many requests each site was handed."""
        handed: Counter[str] = Counter()
        for _ in range(calls):
            leases = (await self.lease(frontier, limit, batch=batch)).leases
            for lease in leases:
                handed[lease.site] += len(lease.requests)
                learned = [note(lease, robots=ROBOTS)] if lease.site == BIG and not lease.robots else []
                await frontier.complete(outcomes(lease), notes=learned)
            if not leases:
                break
        return handed

    @scenario(delay=0.0, per_site=8, site_share=0.1, share_window=100)
    async def test_no_site_gets_more_than_its_share_while_others_are_ready(self, harness: Harness) -> None:
        """Eight lanes would get more than a third of the turns; and so would one shard of three."""
        await self._fill(harness.frontier, sites=15, each=60, big=300)
        await self._dispatch(harness.frontier, 20)
        for _ in range(3):
            handed = await self._dispatch(harness.frontier, 100)
            assert handed.total() == 100
            assert 5 <= handed[BIG] <= 15
            assert max(handed.values()) <= 15

    @scenario(delay=0.0, site_share=0.1, share_window=100)
    async def test_a_large_batch_is_cut_to_the_share(self, harness: Harness) -> None:
        await self._fill(harness.frontier, sites=15, each=60, big=300)
        handed = await self._dispatch(harness.frontier, 10, batch=60)
        assert max(handed.values()) <= 10

    @scenario(delay=0.0, site_share=0.1, share_window=100)
    async def test_a_crawl_of_one_site_is_not_slowed(self, harness: Harness) -> None:
        await self._fill(harness.frontier, sites=0, each=0, big=300)
        assert (await self._dispatch(harness.frontier, 300, batch=1))[BIG] == 300
        assert (await harness.frontier.counts()).finished

    @scenario(delay=0.0, site_share=0.1, share_window=100)
    async def test_batches_are_whole_when_nobody_else_is_ready(self, harness: Harness) -> None:
        await self._fill(harness.frontier, sites=0, each=0, big=300)
        await self._dispatch(harness.frontier, 20)
        (lease,) = (await self.lease(harness.frontier, batch=50)).leases
        assert len(lease.requests) == 50

    @scenario(delay=0.0, site_share=0.1, share_window=100)
    async def test_few_sites_share_what_there_is(self, harness: Harness) -> None:
        await self._fill(harness.frontier, sites=2, each=100, big=100)
        handed = await self._dispatch(harness.frontier, 150)
        assert handed.total() == 150
        assert min(handed.values()) >= 30

    @scenario(delay=0.0, per_site=8, site_share=0.1, share_window=100)
    async def test_what_waits_for_its_share_is_never_dropped(self, harness: Harness) -> None:
        await self._fill(harness.frontier, sites=12, each=20, big=200)
        handed = await self._dispatch(harness.frontier, 10_000, batch=4, limit=3)
        assert (handed[BIG], handed.total()) == (200, 200 + 12 * 20)
        counts = await harness.frontier.counts()
        assert (counts.done, counts.finished) == (handed.total(), True)

    @scenario(site_share=0.1, share_window=100, sites={BIG: SiteSettings(delay=0.0)})
    async def test_a_site_over_its_share_gets_what_others_leave(self, harness: Harness) -> None:
        """The others rest for one delay after each page; meanwhile the big one goes on."""
        await self._fill(harness.frontier, sites=3, each=20, big=200)
        handed = await self._dispatch(harness.frontier, 60)
        assert handed.total() == 60
        assert handed[BIG] == 57

    @scenario(delay=0.0, site_share=0.1, share_window=100)
    async def test_a_lease_that_ends_is_noticed_though_its_site_is_over_its_share(self, harness: Harness) -> None:
        await self._fill(harness.frontier, sites=12, each=60, big=40)
        while (lease := (await self.lease(harness.frontier, 1, batch=20)).leases[0]).site != BIG:
            await harness.frontier.complete(outcomes(lease))
        assert len(lease.requests) == 10
        await harness.advance(11 * self.tick)
        again = await self.lease(harness.frontier, 100, batch=1)
        assert BIG in {found.site for found in again.leases}
        assert (await harness.frontier.complete(outcomes(lease))).stale == 10
