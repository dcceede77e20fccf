"""Conformance tests for order, limits, control, round trips, site quota, and revisits of a frontier."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count, islice
from typing import Any
from unittest import SkipTest

import msgspec

from gossamer.frontier.base import Frontier
from gossamer.frontier.placement import shard_of
from gossamer.model import Counts
from gossamer.settings import SiteSettings
from gossamer.testing.harness import Harness, Suite, keys, note, outcome, outcomes, page, pages, scenario

_GUARD_SECONDS = 20.0
"""Timeout of a waiting test, far above its normal duration."""


class OrderTests(Suite):
    """The order in which requests are leased."""

    async def _take_all(self, frontier: Frontier, *, batch: int = 100) -> list[int]:
        """The keys of a site without delay, in the order of leasing."""
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
    """Limits on leases, batches, budgets, and pages."""

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


class ControlTests(Suite):
    """Pause, resume, and stop; waking of idle workers."""

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
    async def test_an_idle_worker_learns_that_the_job_is_over(self, harness: Harness) -> None:
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


class RoundTripTests(Suite):
    """Round trips: requests, state, and notes come back unchanged."""

    def strings(self) -> list[str]:
        """Strings that often break programs."""
        return [
            "",
            " ",
            "\x00",
            "\x7f\x1b[31m",
            "'; DROP TABLE urls; --",
            "\u202eabc",
            "é\U0001f577",
            '{}[]"\\',
            "a" * 5000,
        ]

    @scenario(delay=0.0)
    async def test_a_request_comes_out_as_it_was_put_in(self, harness: Harness) -> None:
        wanted = {}
        for key, text in enumerate(self.strings(), 1):
            wanted[key] = page(
                key,
                f"{key % 7}.example",
                priority=key % 3 - 1,
                depth=key % 4,
                referrer=f"http://r.example/{text}",
                label=text,
                meta={text: [text, {"deep": None}], "n": 1.5, "big": 1 << 60, "yes": True},
                method="POST" if key % 2 else "PUT",
                headers={"X-Text": text},
                body=text.encode(),
            )
        await harness.frontier.add(list(wanted.values()))
        if harness.durable:
            await harness.reopen()
        found: dict[int, Any] = {}
        while (grant := await self.lease(harness.frontier)).leases:
            for lease in grant.leases:
                found |= {request.key: request for request in lease.requests}
                await harness.frontier.complete(outcomes(lease))
        assert found == wanted

    @scenario(delay=0.0)
    async def test_a_link_names_the_page_that_it_was_found_on(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(1))
        lease = await self.one(frontier)
        links = (page(2), page(3, referrer="http://other.example/"), page(4, label="x"))
        await frontier.complete(outcomes(lease, links=links))
        if harness.durable:
            await harness.reopen()
        found = {request.key: request.referrer for request in (await self.one(harness.frontier)).requests}
        parent = "http://a.example/1"
        assert found == {2: parent, 3: "http://other.example/", 4: parent}

    @scenario(delay=0.0)
    async def test_what_a_visit_leaves_is_there_at_the_next(self, harness: Harness) -> None:
        """Also when a try in between stored no state."""
        await harness.frontier.add(pages(1))
        states = [{"etag": text, "n": number} for number, text in enumerate(self.strings()[:20])]
        before: dict[str, Any] | None = None
        for number, state in enumerate(states):
            for _ in range(2):
                lease = await self.one(harness.frontier)
                assert lease.requests[0].state == before
                await harness.frontier.complete(outcomes(lease, "retry", again_in=0.0))
                if harness.durable and number in (1, 3):
                    await harness.reopen()
            lease = await self.one(harness.frontier)
            assert lease.requests[0].state == before
            await harness.frontier.complete(outcomes(lease, "done", again_in=0.0, state=state))
            before = state

    @scenario(delay=0.0)
    async def test_what_is_noted_of_a_site_comes_with_its_lease(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        lease = await self.one(harness.frontier, batch=1)
        memo = {text: text for text in self.strings()} | {"cookies": [1, [["in", "hush"]]], "cookies.1": ["hush"]}
        robots = {f"http://a.example/{number}": text.encode() for number, text in enumerate(self.strings())}
        await harness.frontier.complete(outcomes(lease), notes=[note(lease, memo=memo, robots=robots)])
        if harness.durable:
            await harness.reopen()
        again = await self.one(harness.frontier)
        assert (again.memo, again.robots) == (memo, robots)
        steering: Any = harness.frontier
        if hasattr(steering, "site"):
            # Cookies are credentials.
            assert "hush" not in repr(await steering.site(again.site))
        more = note(again, memo={"": "new", "more": [1]}, robots={"http://a.example/0": b"new"})
        await harness.frontier.complete([], notes=[more])
        await harness.frontier.release([again])
        again = await self.one(harness.frontier)
        assert again.memo == {**memo, "": "new", "more": [1]}
        assert again.robots == {**robots, "http://a.example/0": b"new"}

    @scenario()
    async def test_a_job_has_a_view_of_an_unknown_lane(self, harness: Harness) -> None:
        """Outcomes, notes, and leases with unknown lanes are stale, not errors."""
        frontier = harness.frontier
        await frontier.add(pages(1))
        lease = await self.one(frontier)
        nobody = msgspec.structs.replace(lease, token=lease.token + 1000, lane=77, site="nowhere.example")
        receipt = await frontier.complete(outcomes(nobody, links=(page(5),)), notes=[note(nobody, close="x")])
        assert (receipt.accepted, receipt.stale) == (0, 1)
        assert await frontier.extend([nobody], seconds=self.tick) == []
        await frontier.release([nobody])
        counts = await frontier.counts()
        # Links to another shard are sent before the token of the outcome is checked.
        known = 1 if harness.one_store else 2
        assert (counts.leased, counts.known, counts.stale) == (1, known, 1)


BIG = "big.example"
ROBOTS = {f"http://{BIG}": b"any"}


def neighbors(sites: int) -> list[str]:
    """Names of sites that share two shards of eight, or any of seven, none of them the big site's shard."""
    two = [shard for shard in range(8) if shard != shard_of(BIG, 8)][:2]
    names = (f"{number}.example" for number in count())
    fit = (name for name in names if shard_of(name, 8) in two and shard_of(name, 7) != shard_of(BIG, 7))
    return list(islice(fit, sites))


class QuotaTests(Suite):
    """The quota: the share of recent requests that a site gets."""

    async def _fill(self, frontier: Frontier, *, sites: int, each: int, big: int) -> None:
        await frontier.add(pages(*range(1_000_000, 1_000_000 + big), site=BIG))
        for number, site in enumerate(neighbors(sites)):
            await frontier.add(pages(*range(number * 1000, number * 1000 + each), site=site))

    async def _dispatch(self, frontier: Frontier, calls: int, *, batch: int = 1, limit: int = 1) -> Counter[str]:
        """Lease and complete repeatedly; returns the number of requests per site."""
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
        """Without the quota, eight lanes, or one shard of three, would get more than a third."""
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
        """While other sites rest for one delay after each page, the big one continues."""
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


WEEK = 500.0
"""Ticks until a revisit: much longer than a lease."""


class RevisitTests(Suite):
    """Revisits, in jobs with and without the setting `recrawl`."""

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
            raise SkipTest("this backend ignores hints of changes")
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
        # Links carry hints too, and a visit that is advanced twice happens once.
        await harness.frontier.complete([outcome(first, 1, again_in=WEEK * self.tick, state=state)])
        await harness.frontier.complete(outcomes(second, links=tuple(hints[:1] * 2)))
        await harness.advance(2 * self.tick)
        assert keys(await self.one(harness.frontier)) == [1]

    @scenario(recrawl="table", revisit_min_seconds=1e10, revisit_max_seconds=1e10)
    async def test_a_hint_puts_no_visit_off(self, harness: Harness) -> None:
        """A hint never delays a visit that is due earlier for another reason."""
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
