"""The service on a fleet's frontier: submitted jobs, remote workers, and changed limits."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from service_process import serving

from gossamer.clock import ManualClock
from gossamer.engine.heartbeat import HeartbeatSender, heartbeats
from gossamer.engine.links import Linker, RecentKeys
from gossamer.frontier.backends import create_fleet
from gossamer.frontier.folder.frontier import FolderFrontier
from gossamer.frontier.sharded import Sharded
from gossamer.jobs.fleet import FleetJob
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Heartbeat, Lease
from gossamer.settings import build
from gossamer.testing.servers import RedisServer, SqlServer

PASSWORD = "open-sesame"
pytestmark = pytest.mark.skipif(
    not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
)


def test_fleet_api_and_changed_limits_reach_workers(tmp_path: Path) -> None:
    """H66: the frontier's password appears nowhere."""
    settings = ("--allow-private", "--delay", "0.02", "--sink", f"jsonl:{tmp_path}/shared", "--robots")
    with (
        RedisServer(password=PASSWORD) as server,
        SimWeb(sites=3, pages_per_site=60, page_bytes=2000) as web,
        serving(tmp_path, *settings, GOSSAMER_FRONTIER=server.url) as served,
    ):
        made = served.post("/api/jobs", {"job": "shop", "urls": web.seeds, "delay": 0.3, "max_pages": 150}, 201)
        assert (made["place"], made["state"]) == ("fleet", "resting")
        assert made["warnings"] == ["no worker is running: start one with gossamer worker FRONTIER --job NAME"]
        assert served.get("/api/jobs/shop/scale")["workers"] == 1
        assert served.post("/api/jobs", {"job": "shop", "urls": web.seeds}, 409)["error"] == "conflict"
        words = ["worker", "--job", "shop", "--name", "first"]
        environment = {**os.environ, "GOSSAMER_FRONTIER": server.url}
        worker = subprocess.Popen([sys.executable, "-m", "gossamer", *words], env=environment)
        try:
            (found,) = served.until(lambda: served.get("/api/jobs/shop/workers")["workers"])
            assert (found["worker"], found["live"], found["pid"]) == ("first", True, worker.pid)
            assert found["memory_bytes"] > 1_000_000
            served.state("shop", "running")
            paused = served.post("/api/jobs/shop/pause")["counts"]
            changed = served.ask("PATCH", "/api/jobs/shop/limits", json={"delay": 0.03, "max_pages": 120})
            assert (changed["delay"], changed["max_pages"], changed["in_force"]) == (0.03, 120, "now")
            served.ask("PATCH", "/api/jobs/shop/limits", json={"site_delays": {"elsewhere.example": 2}})
            (region,) = served.get("/api/jobs/shop/regions")["regions"]
            assert (region["region"], region["workers"]) == ("", 1)
            assert len(served.get("/api/jobs/shop/shards")["shards"]) == 1
            served.post("/api/jobs/shop/resume")
            assert worker.wait(60) == 0
        finally:
            worker.kill()
            worker.wait()
        stored = served.state("shop", "finished")["counts"]["stored"]
        # What the worker had in hand was not taken from it.
        assert 120 <= stored <= max(120, paused["stored"] + paused["leased"])
        # Segments and the trail lie in the place that all share.
        assert len(served.get("/api/jobs/shop/pages", limit=1000)["pages"]) == stored
        assert served.get("/api/jobs/shop/why", url=web.seeds[0])["state"] == "done"
        assert served.get("/api/jobs/shop/politeness")["too_short"] == 0
        assert PASSWORD not in served.log.read_text() + str(served.get("/api/jobs/shop")) + served.get("/metrics")


class IdleEngine:
    """The statistics of an idle engine, for heartbeats."""

    accepted = stale = active = fetching = limit = 0


async def check_changed_limits(url: str, folder: Path, shards: str = "") -> None:
    settings, job = build({"delay": 1.0, "robots": False, "max_pages": 10}), f"limits {shards}"
    worker = await create_fleet(url, job, settings, worker="w", shards=shards)
    handle = await FleetJob.open(url, job, folder)

    async def limit(**changes: Any) -> None:
        """Change limits from another client, and let the worker send one heartbeat."""
        assert await handle.limit(changes)
        await worker.refresh()

    async def leased() -> list[Lease]:
        """Lease everything that is ready; shards are polled again only after news."""
        if isinstance(worker, Sharded):
            worker.quiet_seconds = 0.0
        return [lease for _ in range(4) for lease in (await worker.lease(5, batch=1, seconds=60)).leases]

    try:
        await worker.beat(Heartbeat(worker="w"))
        if isinstance(worker, FolderFrontier):
            await worker.owner.renew()
        linker = Linker(worker.settings, worker.secret, RecentKeys())
        await worker.add([linker.seed(f"http://{name}.example/") for name in "abc"])
        (lease,) = (await worker.lease(1, batch=1, seconds=60)).leases
        assert lease.delay == 1.0
        await limit(delay=3.0, max_pages=1)
        assert await leased() == []
        await limit(max_pages=None)
        assert [one.delay for one in await leased()] == [3.0, 3.0]
        await limit(max_pages=3)
        await worker.add([linker.seed("http://d.example/")])
        assert await leased() == []
        assert not (await worker.counts()).finished
        await limit(sites={"a.example": {"delay": 9.0}, "d.example": {"delay": 7.0}}, max_pages=4)
        assert [one.delay for one in await leased()] == [7.0]
        assert [known and known["delay"] for known in [await worker.site("a.example")]] == [9.0]
        seen, cursor = await worker.every_site("", 3)
        while cursor:
            some, cursor = await worker.every_site(cursor, 3)
            seen += some
        assert {site["site"] for site in seen} == {f"{name}.example" for name in "abcd"}
        await limit(max_seconds=12.0)
        clock = ManualClock()
        async with heartbeats(HeartbeatSender(worker, IdleEngine(), heartbeat=Heartbeat(worker="w"), clock=clock)):
            while (await handle.counts()).job != "stopping":
                await asyncio.sleep(0.01)
    finally:
        await handle.aclose()
        await worker.aclose()


@pytest.mark.parametrize("shards", ["", "0-1/2"], ids=["one shard", "two shards"])
def test_changed_limits_reach_running_workers_on_redis(tmp_path: Path, shards: str) -> None:
    with RedisServer() as server:
        asyncio.run(check_changed_limits(server.url, tmp_path, shards))


@pytest.mark.parametrize("shards", ["", "0-1/2"], ids=["one shard", "two shards"])
def test_changed_limits_reach_running_workers_on_postgresql(
    postgres_server: SqlServer, tmp_path: Path, shards: str
) -> None:
    asyncio.run(check_changed_limits(postgres_server.url, tmp_path, shards))


@pytest.mark.parametrize("shards", ["", "0-1/2"], ids=["one shard", "two shards"])
def test_changed_limits_reach_running_workers_on_mariadb(maria_server: SqlServer, tmp_path: Path, shards: str) -> None:
    asyncio.run(check_changed_limits(maria_server.url, tmp_path, shards))


def test_changed_limits_reach_running_workers_on_a_folder(tmp_path: Path) -> None:
    asyncio.run(check_changed_limits(f"folder:{tmp_path}?shards=2", tmp_path))
