"""The status of a fleet: heartbeats of workers, sites, regions, and shards, on one screen of any size."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import redis

from gossamer.cli.jobs import status_json, status_lines
from gossamer.clock import SystemClock
from gossamer.engine.heartbeat import EVERY_SECONDS, LIVE_SECONDS, HeartbeatSender, heartbeats, is_live, live_regions
from gossamer.errors import Unavailable
from gossamer.frontier.backends import create_fleet
from gossamer.jobs.find import open_job
from gossamer.jobs.fleet import FleetJob, find_warnings
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Counts, Heartbeat, RegionView, ShardView
from gossamer.settings import Settings, build
from gossamer.testing.network import FaultyProxy
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import environment, until


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    return redis_server


def gossamer(server: RedisServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gossamer", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
        env={**environment(), "GOSSAMER_FRONTIER": server.url},
    )  # fmt: skip


def worker(server: RedisServer, job: str, name: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gossamer", "worker", "--job", job, "--name", name, *options],
        stderr=subprocess.DEVNULL, text=True, env={**environment(), "GOSSAMER_FRONTIER": server.url},
    )  # fmt: skip


def status(server: RedisServer, job: str) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        async with open_job(job, server.url) as opened:
            return status_json(await opened.status())

    return asyncio.run(ask())


def test_status_warns_of_a_running_job_without_workers() -> None:
    assert find_warnings(Counts(job="running", queued=1), [], [])
    assert find_warnings(Counts(job="stopping", queued=1, leased=1), [], []), "somebody died with what was leased"
    assert not find_warnings(Counts(job="stopping", queued=1), [], [])
    assert not find_warnings(Counts(job="running", finished=True), [], [])


def test_status_shows_workers_that_run_died_and_left(server: RedisServer, tmp_path: Path) -> None:
    with SimWeb(sites=6, pages_per_site=300, page_bytes=2000) as web:
        (tmp_path / "seeds").write_text("\n".join(web.seeds))
        made = gossamer(
            server, "submit", "--seeds", str(tmp_path / "seeds"), "--job", "seen", "--allow-private",
            "--delay", "0.1", "--sink", f"jsonl:{tmp_path}/out", "--regions", "us=127.0.0.1,127.0.0.2",
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        assert "no worker is running" in gossamer(server, "status", "seen").stdout
        first, second = worker(server, "seen", "alpha", "--region", "eu"), worker(server, "seen", "beta")
        try:
            until(lambda: sum(found["rate"] > 0 for found in status(server, "seen")["workers"]) == 2)
            found = json.loads(gossamer(server, "status", "seen", "--json").stdout)
            alpha, beta = sorted(found["workers"], key=lambda one_heartbeat: one_heartbeat["worker"])
            assert (alpha["worker"], alpha["region"], alpha["pid"], alpha["live"]) == ("alpha", "eu", first.pid, True)
            assert (beta["worker"], beta["region"], beta["host"]) == ("beta", "", os.uname().nodename)
            assert alpha["memory_bytes"] > 10_000_000
            assert found["rate"] == pytest.approx(alpha["rate"] + beta["rate"], abs=0.02)
            assert {name: (view["workers"], view["ready"]) for name, view in found["regions"].items()} == {
                "": (1, found["regions"][""]["ready"]),
                "eu": (1, 0),
                "us": (0, 2),
            }
            assert found["warnings"] == [
                "region us has 2 sites to crawl, but no worker: start one with --region us"
            ]  # fmt: skip
            assert {site["region"] for site in found["sites"]} == {"", "us"}
            assert [shard["shard"] for shard in found["shards"]] == [0]
            first.send_signal(signal.SIGTERM)
            first.wait(20)
            second.kill()
            second.wait(60)
            left = {one_heartbeat["worker"]: one_heartbeat for one_heartbeat in status(server, "seen")["workers"]}
            assert left["alpha"]["left"]
            assert not left["alpha"]["live"]
            assert left["beta"]["live"], "nobody can know yet"
            until(
                lambda: [
                    1
                    for one_heartbeat in status(server, "seen")["workers"]
                    if one_heartbeat["silent"] > EVERY_SECONDS + 1
                ]
            )
            shown = gossamer(server, "status", "seen").stdout
            assert "alpha" not in shown
            assert "1 exited normally" in shown
        finally:
            for process in (first, second):
                process.kill()
                process.wait(60)


class Counting:
    """An engine, as its pulse sees it."""

    accepted = 0
    stale = 0
    active = 7
    fetching = 3
    limit = 64


def test_a_heartbeat_reports_progress_and_sign_off(server: RedisServer) -> None:
    async def scenario() -> list[Heartbeat]:
        frontier = await create_fleet(server.url, "pulse", Settings())
        engine = Counting()
        heart = HeartbeatSender(
            frontier, engine, heartbeat=Heartbeat(worker="w", region="eu", shards="1/4"), clock=SystemClock(), every=0.1
        )
        seen: list[Any] = []
        try:
            async with heartbeats(heart):
                while not seen or not seen[-1].rate:
                    engine.accepted += 10
                    await asyncio.sleep(0.05)
                    seen = await frontier.workers()
            return [*seen, *await frontier.workers()]
        finally:
            await frontier.aclose()

    during, after = asyncio.run(scenario())
    assert (during.worker, during.region, during.shards, during.active, during.fetching) == ("w", "eu", "1/4", 7, 3)
    assert during.pages >= 10
    assert is_live(during)
    assert after.left
    assert not is_live(after)
    assert after.pages >= during.pages


def test_heartbeats_continue_after_a_frontier_outage(server: RedisServer) -> None:
    async def scenario(proxy: FaultyProxy) -> None:
        frontier = await create_fleet(server.url_at(proxy.port), "pulse", Settings())
        heart = HeartbeatSender(frontier, Counting(), heartbeat=Heartbeat(worker="w"), clock=SystemClock(), every=0.05)
        try:
            async with heartbeats(heart):
                while not await frontier.workers():
                    await asyncio.sleep(0.02)
                proxy.fail("reset")
                with pytest.raises(Unavailable):
                    await frontier.workers()
                faults = proxy.faults
                while proxy.faults < faults + 3:
                    await asyncio.sleep(0.02)
                proxy.fail("")
                while (await frontier.workers())[0].silent > 0.5:
                    await asyncio.sleep(0.02)
        finally:
            await frontier.aclose()

    with FaultyProxy(server.port) as proxy:
        asyncio.run(asyncio.wait_for(scenario(proxy), 90))


def test_a_worker_exits_even_if_its_last_heartbeat_fails() -> None:
    async def scenario(server: RedisServer) -> None:
        frontier = await create_fleet(server.url, "pulse", Settings())
        async with heartbeats(
            HeartbeatSender(frontier, Counting(), heartbeat=Heartbeat(worker="w"), clock=SystemClock())
        ):
            server.pause()
        server.resume()
        await frontier.aclose()

    with RedisServer() as server:
        asyncio.run(scenario(server))


def test_a_worker_without_heartbeats_counts_as_dead() -> None:
    fresh, old = Heartbeat(worker="a", region="eu"), Heartbeat(worker="b", region="us", silent=LIVE_SECONDS + 1)
    gone = Heartbeat(worker="c", region="asia", left=True)
    assert live_regions([fresh, old, gone, Heartbeat(worker="d")]) == {"eu"}


def test_warnings_name_what_no_worker_takes() -> None:
    shards = [
        ShardView(shard=number, server="a", counts=Counts(), regions={"eu": RegionView(ready=1), "us": RegionView()})
        for number in range(8)
    ]
    running = Counts(queued=3)
    assert find_warnings(running, [Heartbeat(worker="w", region="eu")], shards) == []
    half = find_warnings(running, [Heartbeat(worker="w", region="eu", shards="0-3/8")], shards)
    assert half == ["no worker crawls shards 4-7 of 8 shards"]
    other = find_warnings(running, [Heartbeat(worker="w", region="us")], shards)
    assert other == ["region eu has 8 sites to crawl, but no worker: start one with --region eu"]
    assert "will crawl them" in find_warnings(running, [Heartbeat(worker="w", region="us")], shards, is_auto=True)[0]
    assert find_warnings(Counts(job="finished", finished=True), [], shards) == []


def _large() -> dict[str, Any]:
    """A fleet of 500 workers, 256 shards and 100 sites, with names that a terminal must not obey."""
    evil = "\x1b[2Jevil"
    all_heartbeats = [
        {**{name: getattr(one_heartbeat, name) for name in Heartbeat.__struct_fields__}, "live": number != 7}
        for number in range(500)
        if (
            one_heartbeat := Heartbeat(
                worker=f"w{number}{evil}", region="eu", host=evil * 20, pages=10**9, rate=number, silent=3
            )
        )
    ]
    counts = msgspec.to_builtins(Counts(queued=10**12))
    shards = [
        {"shard": number, "server": f"10.0.0.{number % 3}:6379", "counts": counts, "regions": {}}
        for number in range(256)
    ]
    sites = [
        {"site": f"{evil}{'x' * 300}", "queued": 10**9, "delay": 1.0, "hold": 5.0, "closed": "", "region": "eu"}
    ] * 100  # fmt: skip
    region = {"ready": 1, "later": 2, "soon": 0, "due_in": None, "workers": 499, "rate": 1.0}
    return {
        "state": "running", "counts": counts, "rate": 1.5, "workers": all_heartbeats, "sites": sites,
        "regions": {"": region, "eu": region}, "shards": shards, "warnings": [],
    }  # fmt: skip


def test_a_large_fleet_fits_on_a_screen() -> None:
    text = [click.unstyle(line) for line in status_lines("shop", _large())]
    assert len(text) < 70
    assert "w7\\x1b" in next(line for line in text if "dead" in line), "those that are wanting come first"
    assert "  ... and 480 more" in text
    assert all(line.isprintable() for line in text)
    assert max(map(len, text)) < 170
    servers = [line for line in text if "10.0.0." in line]
    assert len(servers) == 3


def test_status_of_several_shards_is_their_sum(server: RedisServer, tmp_path: Path) -> None:
    async def scenario() -> dict[str, Any]:
        settings = build({"regions": {"eu": ["*"]}})
        frontier = await create_fleet(server.url, "sum", settings, shards="0-1/4", worker="w")
        try:
            return status_json(await FleetJob(frontier, server.url, "sum", tmp_path).status())
        finally:
            await frontier.aclose()

    found = asyncio.run(scenario())
    assert len(found["shards"]) == 4
    assert found["counts"]["queued"] == sum(shard["counts"]["queued"] for shard in found["shards"])
    assert json.loads(json.dumps(found)) == found
