"""Repair queues exactly the pages without a record again, and all counts stay correct."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gossamer import urls
from gossamer.frontier.backends import create_fleet, open_fleet
from gossamer.frontier.base import FleetFrontier
from gossamer.jobs.repair import Repaired, repair
from gossamer.jobs.results_folder import compare, count_records, mark
from gossamer.model import Lease, Outcome, PageRow, Record, Request, SiteNote
from gossamer.settings import Settings
from gossamer.storage.segments import SegmentSink

SERVERS = {"redis": "redis_server", "postgresql": "postgres_server", "mariadb": "maria_server"}
SHARDS = 3


@pytest.fixture(params=["folder", *SERVERS])
def frontier(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = str(request.param)
    if kind == "folder":
        return f"folder:{tmp_path}/share?shards={SHARDS}"
    return str(request.getfixturevalue(SERVERS[kind]).url)


class Job:
    """A job whose pages are stored by hand, so that a test knows what each of them came to."""

    def __init__(self, frontier: str, folder: Path, **values: Any) -> None:
        self.frontier = frontier
        self.folder = folder
        self.name = f"repair-{uuid4().hex[:8]}"
        self.settings = Settings(
            delay=0.0, robots=False, lease_seconds=30.0, sink=(f"jsonl:{folder}",), results_id=mark(folder, self.name),
            **values,
        )  # fmt: skip

    async def open(self, worker: str = "", settings: Settings | None = None) -> FleetFrontier:
        shards = "" if self.frontier.startswith("folder:") or settings is None else f"0-{SHARDS - 1}/{SHARDS}"
        if settings is None:
            return await open_fleet(self.frontier, self.name, worker=worker)
        return await create_fleet(self.frontier, self.name, settings, worker=worker, shards=shards)

    async def begin(self, found: list[str], **values: Any) -> None:
        """Make it, with these URLs."""
        fleet = await self.open(settings=self.settings)
        try:
            await fleet.add([self.request(fleet, url, **values) for url in found])
        finally:
            await fleet.aclose()

    def request(self, fleet: FleetFrontier, url: str, **values: Any) -> Request:
        key = urls.fingerprint(fleet.secret, url, values.get("method", "GET"), values.get("body", b""))
        return Request(url, key, urls.host_port(url), **values)

    async def work(self, worker: str, most: int, **outcome: Any) -> list[Request]:
        """Store up to so many pages as one worker, in segments of its own."""
        fleet, sink = await self.open(worker), SegmentSink(self.folder, worker)
        done: list[Request] = []
        try:
            for _ in range(200):
                grant = await fleet.lease(4, batch=2, seconds=30.0)
                for lease in grant.leases:
                    some = lease.requests[: most - len(done)]
                    await self.store(fleet, sink, lease, some, **outcome)
                    done += some
                await fleet.release(grant.leases)
                if len(done) >= most or grant.job == "finished":
                    return done
                if not grant.leases:
                    await asyncio.sleep(0.05)
            return done
        finally:
            await sink.aclose()
            await fleet.aclose()

    async def store(self, fleet: FleetFrontier, sink: SegmentSink, lease: Lease, some: Any, **outcome: Any) -> None:
        rows = [PageRow(url=one.url, status=200, depth=one.depth, links=1, fetched_at=1.0) for one in some]
        await sink.write([
            Record(key=one.key, token=lease.token, page=row) for one, row in zip(some, rows, strict=True)
        ])  # fmt: skip
        output = {"status": "done", "code": 200, **outcome}
        await fleet.complete([
            Outcome(site=lease.site, lane=lease.lane, token=lease.token, key=one.key, **output) for one in some
        ])  # fmt: skip

    def lose(self, worker: str) -> None:
        for path in (self.folder / "segments").glob(f"{worker}-*"):
            path.unlink()

    async def repair(self, *seeds: str, **how: Any) -> Repaired:
        return await repair(self.frontier, self.name, self.folder, seeds=seeds, **how)

    async def counts(self) -> Any:
        fleet = await self.open()
        try:
            return await fleet.counts()
        finally:
            await fleet.aclose()

    async def missing(self) -> int:
        fleet = await self.open()
        try:
            return (await compare(fleet, self.folder)).missing
        finally:
            await fleet.aclose()


async def a_lease(fleet: FleetFrontier, batch: int) -> Lease:
    while True:
        for lease in (await fleet.lease(1, batch=batch, seconds=30.0)).leases:
            return lease
        await asyncio.sleep(0.05)


def sites(count: int, each: int) -> list[str]:
    return [f"https://s{site}.example/{page}" for page in range(each) for site in range(count)]


def test_exactly_the_lost_pages_of_all_shards_are_queued_again(frontier: str, tmp_path: Path) -> None:
    """In the middle of a job: what waits stays in the queue once."""

    async def scenario() -> None:
        job, found = Job(frontier, tmp_path / "results"), sites(5, 8)
        await job.begin(found)
        lost = await job.work("one", 14)
        kept = await job.work("two", 11)
        assert (len(lost), len(kept)) == (14, 11)
        before = await job.counts()
        job.lose("one")
        assert await job.missing() == 14
        repaired = await job.repair(*found)
        assert (repaired.requeued.queued, repaired.lost, repaired.written_off) == (14, 0, 0)
        after = await job.counts()
        assert after.stored == before.stored - 14 == 11
        assert (after.done, after.known) == (11, before.known)
        assert after.queued == before.queued + 14 == 29
        assert await job.missing() == 0
        again = await job.work("three", 100)
        assert len(again) == len({one.key for one in again}) == 29
        assert {one.key for one in lost} <= {one.key for one in again}
        over = await job.counts()
        assert (over.finished, over.stored, over.queued) == (True, 40, 0)
        assert count_records(job.folder) == 40

    asyncio.run(scenario())


def test_a_record_without_an_outcome_hides_nothing_from_a_repair(frontier: str, tmp_path: Path) -> None:
    """A killed worker leaves records of pages that are still queued: no alarm, and no lost page is hidden."""

    async def scenario() -> None:
        job, found = Job(frontier, tmp_path / "results"), sites(3, 6)
        await job.begin(found)
        await job.work("one", 8)
        fleet, sink = await job.open("killed"), SegmentSink(job.folder, "killed")
        lease = await a_lease(fleet, 2)
        rows = [Record(key=one.key, token=lease.token, page=PageRow(url=one.url)) for one in lease.requests]
        await sink.write(rows)
        await fleet.release([lease])
        await sink.aclose()
        await fleet.aclose()
        assert await job.missing() == 0
        assert (await job.repair(*found)).requeued.queued == 0
        job.lose("one")
        queued = (await job.counts()).queued
        repaired = await job.repair(*found)
        assert repaired.requeued.queued == 8
        assert (await job.counts()).queued == queued + 8
        again = await job.work("three", 100)
        assert len(again) == len({one.key for one in again}) == 18
        assert count_records(job.folder) == 18
        assert await job.missing() == 0

    asyncio.run(scenario())


def test_pages_that_failed_are_repaired_and_those_without_a_record_by_right_are_not(
    frontier: str, tmp_path: Path
) -> None:
    """Skipped pages and those that were given up with their site have no record: that is no loss."""

    async def scenario() -> None:
        job, found = Job(frontier, tmp_path / "results"), sites(4, 5)
        await job.begin(found)
        await job.work("failed", 4, status="failed", code=404)
        await job.work("timeouts", 2, status="failed", code=0)
        fleet = await job.open("skips")
        lease = await a_lease(fleet, 2)
        await fleet.complete([
            Outcome(site=lease.site, lane=lease.lane, token=lease.token, key=one.key, status="skipped")
            for one in lease.requests
        ])  # fmt: skip
        await fleet.aclose()
        assert await job.missing() == 0
        job.lose("failed")
        job.lose("timeouts")
        assert await job.missing() == 6
        repaired = await job.repair(*[url for url in found if urls.fingerprint(fleet.secret, url) not in
                                      {one.key for one in lease.requests}])  # fmt: skip
        assert (repaired.requeued.queued, repaired.written_off) == (6, 0)
        counts = await job.counts()
        assert (counts.stored, counts.failed, counts.skipped) == (0, 0, len(lease.requests))
        await job.work("again", 100)
        assert (await job.counts()).finished
        assert await job.missing() == 0

    asyncio.run(scenario())


def test_lost_pages_of_closed_sites_are_written_off_without_an_alarm(frontier: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        job, found = Job(frontier, tmp_path / "results"), sites(2, 8)
        await job.begin(found)
        fleet, sink = await job.open("closer"), SegmentSink(job.folder, "closer")
        lease = await a_lease(fleet, 3)
        await job.store(fleet, sink, lease, lease.requests[:2])
        close = SiteNote(site=lease.site, lane=lease.lane, token=lease.token, close="robots-unreachable")
        await fleet.complete([], notes=[close])
        await fleet.release([lease])
        await sink.aclose()
        await fleet.aclose()
        await job.work("other", 100)
        counts = await job.counts()
        assert (counts.finished, counts.stored) == (True, 10)
        assert await job.missing() == 0
        job.lose("closer")
        assert await job.missing() == 2
        repaired = await job.repair(*found)
        if not frontier.startswith("redis"):
            assert (repaired.requeued.queued, repaired.requeued.closed) == (0, 2)
        assert (await job.counts()).finished
        assert await job.missing() == 0

    asyncio.run(scenario())


def test_a_repaired_page_on_a_folder_has_all_that_its_request_had(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = Job(f"folder:{tmp_path}/share?shards=2", tmp_path / "results")
        await job.begin(["https://a.example/1"], label="detail", meta={"x": 1}, method="POST", body=b"q")
        (first,) = await job.work("one", 1)
        job.lose("one")
        await job.repair()
        (again,) = await job.work("two", 1)
        assert again == first
        assert (again.label, again.meta, again.method, again.body) == ("detail", {"x": 1}, "POST", b"q")

    asyncio.run(scenario())


@pytest.mark.parametrize("server", ["postgres_server", "maria_server"])
def test_lost_pages_a_database_cannot_name_are_written_off_and_reported(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def scenario() -> None:
        job = Job(str(request.getfixturevalue(server).url), tmp_path / "results")
        await job.begin(["https://a.example/1"], method="POST", body=b"q")
        await job.work("one", 1)
        job.lose("one")
        repaired = await job.repair()
        assert (repaired.requeued.unnamed, repaired.requeued.queued, repaired.written_off) == (1, 0, 1)
        assert await job.missing() == 0
        assert (await job.counts()).finished

    asyncio.run(scenario())


@pytest.mark.parametrize("place", ["folder", "postgres_server", "maria_server"])
def test_lost_pages_that_wait_for_their_next_visit_are_visited_now(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def scenario() -> None:
        at = f"folder:{tmp_path}/share?shards=2" if place == "folder" else str(request.getfixturevalue(place).url)
        job, found = Job(at, tmp_path / "results", recrawl="table"), sites(2, 4)
        await job.begin(found)
        seen = {"again_in": 9e5, "state": {"etag": "x", "digest": "d"}}
        lost = await job.work("one", 5, **seen)
        await job.work("two", 3, **seen)
        assert await job.missing() == 0
        job.lose("one")
        assert await job.missing() == 5
        assert (await job.repair()).requeued.queued == 5
        again = await job.work("three", 5, **seen)
        assert {one.key for one in again} == {one.key for one in lost}
        # Otherwise the server would answer that nothing has changed, and nothing would be stored.
        assert not any(one.state for one in again)
        counts = await job.counts()
        assert (counts.stored, counts.revisits, counts.queued) == (8, 8, 0)
        assert await job.missing() == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("place", ["redis_server", "postgres_server", "maria_server"])
def test_many_thousand_pages_are_repaired_in_parts(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async def scenario() -> None:
        job, found = Job(str(request.getfixturevalue(place).url), tmp_path / "results", batch=500), sites(30, 200)
        await job.begin(found)
        fleet = await job.open("one")
        try:
            done = 0
            while done < len(found):
                grant = await fleet.lease(30, batch=500, seconds=30.0)
                for lease in grant.leases:
                    output: dict[str, Any] = {
                        "site": lease.site,
                        "lane": lease.lane,
                        "token": lease.token,
                        "status": "done",
                        "code": 200,
                    }
                    await fleet.complete([Outcome(key=one.key, **output) for one in lease.requests])
                    done += len(lease.requests)
        finally:
            await fleet.aclose()
        (job.folder / "segments").mkdir()
        assert await job.missing() == 6000
        assert (await job.repair(*found)).requeued.queued == 6000
        counts = await job.counts()
        assert (counts.queued, counts.stored, counts.done, counts.known) == (6000, 0, 0, 6000)

    asyncio.run(scenario())
