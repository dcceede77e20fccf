"""Listings of a job on a folder from outside: the sites of all workers, and no secrets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from gossamer.frontier.folder.frontier import FolderFrontier, open_folder
from gossamer.model import Heartbeat
from gossamer.settings import Settings
from gossamer.testing.harness import note, outcomes, page
from gossamer.testing.harnesses import FolderHarness


async def queues(visitor: FolderFrontier) -> list[tuple[str, int, int]]:
    """The sites in their order, with what is queued and stored; the same however they are asked for."""
    sites = await visitor.sites(10)
    json.dumps(sites)
    found = [(site["site"], site["queued"], site["stored"]) for site in sites]
    for name, queued, _ in found:
        site = await visitor.site(name)
        assert site is not None
        assert site["queued"] == queued, name
    every, _ = await visitor.every_site("", 10)
    assert sorted((site["site"], site["queued"], site["stored"]) for site in every) == sorted(found)
    return found


def test_a_visitor_sees_the_queues_of_all_workers_of_the_dead_and_of_those_that_left(tmp_path: Path) -> None:
    async def run() -> None:
        harness = FolderHarness(tmp_path, Settings(lease_seconds=10.0, delay=0.0, robots=False), shards=4)
        visitor, worker = await harness.open("", ""), await harness.open("worker", "")
        await worker.owner.run_round()
        names = "aaabbc"
        await worker.add([page(n, site=f"{name}.example") for n, name in enumerate(names, 1)])
        (lease,) = (await worker.lease(1, batch=1, seconds=10.0)).leases
        await worker.complete(outcomes(lease), notes=[note(lease, robots={"http://a.example": b"\xff"})])
        first = lease.site
        expected = {f"{name}.example": names.count(name) for name in "abc"}
        expected[first] -= 1
        wanted = sorted(((name, queued, int(name == first)) for name, queued in expected.items()), key=lambda x: -x[1])

        def same(found: list[tuple[str, int, int]]) -> bool:
            return [queued for _, queued, _ in found] == [queued for _, queued, _ in wanted] and set(found) == set(
                wanted
            )

        await worker.beat(Heartbeat(worker="worker"))
        assert same(await queues(visitor)), "of a live worker, as it reported"
        output = list((visitor.owner.share.root / "told").iterdir())
        worker.owner.abort()
        harness.clock.advance(60.0)
        await visitor.owner.look()
        harness.clock.advance(60.0)
        assert same(await queues(visitor)), "of one that was killed, as it is written down"
        heir = await harness.open("heir", "")
        for _ in range(4):
            harness.clock.advance(1.25)
            await heir.owner.run_round()
        await heir.beat(Heartbeat(worker="heir"))
        assert same(await queues(visitor))
        await heir.aclose()
        harness.clock.advance(1.25)
        assert same(await queues(visitor)), "of one that left"
        assert list((visitor.owner.share.root / "told").iterdir()) == output
        await visitor.aclose()

    asyncio.run(run())


def test_a_record_with_a_password_in_it_is_for_its_user_alone(tmp_path: Path) -> None:
    """H66, on the disk of all machines."""

    async def mode(settings: Settings) -> int:
        frontier = await open_folder(f"folder:{tmp_path}?shards=1", "job", settings)
        await frontier.aclose()
        return (frontier.owner.share.root / "job.json").stat().st_mode & 0o777

    assert asyncio.run(mode(Settings())) & 0o044
    assert asyncio.run(mode(Settings(sink=("postgresql://user:password@db/pages",)))) == 0o600
    assert asyncio.run(mode(Settings(headers={"Authorization": "Bearer abc"}))) == 0o600
