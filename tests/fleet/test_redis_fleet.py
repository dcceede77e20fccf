"""A fleet on Redis over a broken network, with workers that join, sleep, and are cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from gossamer.frontier.redis.server import job_key
from gossamer.lab.simweb.log import fetched, gaps, max_overlap
from gossamer.lab.simweb.process import SimWeb
from gossamer.testing.network import FaultyRedisProxy
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import children, crawl, environment, kill_tree, rows, start, stored, until

DELAY = 0.02


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    return redis_server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultyRedisProxy]:
    with FaultyRedisProxy(server.port) as running:
        yield running


def counter(server: RedisServer, folder: Path, name: str) -> int:
    with redis.Redis.from_url(server.url) as store:
        return int(store.hget(job_key(str(folder)), name) or 0)


def is_whole(web: SimWeb, folder: Path, *, delay: float = DELAY) -> None:
    """Nothing is missing, each page has one record, and every site had its pause."""
    log = web.log()
    assert not web.judge().missed
    assert set(stored(folder)) == web.plan.reachable()
    assert set(stored(folder).values()) == {1}
    assert min(gaps(log).values()) >= delay
    assert max(max_overlap(log).values()) == 1


@pytest.mark.parametrize(("fault", "every"), [("cut", 20), ("mute", 20)])
def test_connections_that_break_in_the_middle_of_calls_lose_nothing(
    server: RedisServer, proxy: FaultyRedisProxy, tmp_path: Path, fault: str, every: int
) -> None:
    """F28, F29. A lease whose answer was lost expires; nobody has fetched from it, so nothing is repeated."""
    folder = tmp_path / "job"
    with SimWeb(sites=8, pages_per_site=40, page_bytes=3000, latency_seconds=0.01) as web:
        process = start(
            folder, web, "--frontier", server.url_at(proxy.port), "--delay", str(DELAY), "--workers", "2",
            "--lease-seconds", "2", "--max-deliveries", "50",
        )  # fmt: skip
        until(lambda: len(web.log()) > 20)
        proxy.every, proxy.fault = every, cast(Any, fault)
        assert process.wait(90) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        assert proxy.faults > 3
        is_whole(web, folder)
        assert not web.judge().repeated


def test_a_slow_way_to_redis_costs_no_lease(server: RedisServer, proxy: FaultyRedisProxy, tmp_path: Path) -> None:
    """F30."""
    folder, proxy.latency_seconds = tmp_path / "job", 0.05
    with SimWeb(sites=8, pages_per_site=30, page_bytes=3000, latency_seconds=0.01) as web:
        done = crawl(
            folder, web, "--frontier", server.url_at(proxy.port), "--delay", str(DELAY), "--workers", "2",
            "--lease-seconds", "2",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        is_whole(web, folder)
        assert not web.judge().repeated
    assert counter(server, folder, "stale") == 0
    assert counter(server, folder, "lapsed") == 0


def test_f31_a_fail_over_to_a_replica_that_is_behind_costs_only_fetches(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with (
        RedisServer(repl_diskless_sync_delay="0") as first,
        RedisServer() as second,
        FaultyRedisProxy(first.port) as link,
        FaultyRedisProxy(first.port) as proxy,
        redis.Redis.from_url(second.url) as replica,
        SimWeb(sites=8, pages_per_site=60, page_bytes=3000, latency_seconds=0.01) as web,
    ):
        replica.replicaof("127.0.0.1", link.port)
        until(lambda: replica.info("replication")["master_link_status"] == "up")
        link.latency_seconds = 0.5
        process = start(
            folder, web, "--frontier", first.url_at(proxy.port), "--delay", str(DELAY), "--workers", "2",
            "--lease-seconds", "2",
        )  # fmt: skip
        until(lambda: counter(second, folder, "stored") > 40)
        link.latency_seconds = 600.0
        until(lambda: counter(first, folder, "stored") > counter(second, folder, "stored") + 20)
        done = counter(first, folder, "stored")
        first.kill()
        link.cut_all()
        replica.replicaof("NO", "ONE")
        assert counter(second, folder, "stored") < done, "what the replica has not heard of is lost"
        proxy.lead(second.port)
        assert process.wait(60) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        is_whole(web, folder)


def test_workers_wait_for_a_suspended_redis(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with RedisServer() as server, SimWeb(sites=6, pages_per_site=30, page_bytes=3000) as web:
        process = start(folder, web, "--frontier", server.url, "--delay", str(DELAY), "--workers", "2")
        until(lambda: len(web.log()) > 30)
        server.pause()
        time.sleep(2)
        server.resume()
        assert process.wait(60) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        is_whole(web, folder)


def test_f52_a_worker_that_is_cut_off_stops_when_its_lease_ends_and_comes_back(
    server: RedisServer, proxy: FaultyRedisProxy, tmp_path: Path
) -> None:
    folder, lease = tmp_path / "job", 1.5
    with SimWeb(sites=6, pages_per_site=60, page_bytes=3000) as web:
        process = start(
            folder, web, "--frontier", server.url_at(proxy.port), "--delay", "0.05", "--workers", "1",
            "--lease-seconds", str(lease),
        )  # fmt: skip
        until(lambda: len(web.log()) > 60)
        proxy.fail("reset")
        cut_at = time.time()
        time.sleep(3 * lease)
        back_at = time.time()
        assert process.poll() is None, "it waits"
        proxy.fail("")
        assert process.wait(60) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        late = [entry for entry in web.log() if cut_at + lease + 0.2 < entry.arrived_at < back_at]
        assert late == [], "fetched without a lease"
        is_whole(web, folder, delay=0.05)


def test_f70_idle_workers_stay_while_others_may_find_links(server: RedisServer, tmp_path: Path) -> None:
    """One site, one lane: two of three workers never have anything to do, and none of them says that it is over."""
    folder = tmp_path / "job"
    with SimWeb(sites=1, pages_per_site=40, page_bytes=2000, links_per_page=2, latency_seconds=0.1) as web:
        process = start(folder, web, "--frontier", server.url, "--delay", "0", "--workers", "3", "--batch", "1")
        until(lambda: len(children(process.pid)) == 3)
        while len(web.log()) < 39:
            assert len(children(process.pid)) == 3 or process.poll() is not None
            assert process.poll() is None
            time.sleep(0.05)
        assert process.wait(30) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        is_whole(web, folder, delay=0.0)


def test_a_worker_from_elsewhere_joins_by_address_and_name(server: RedisServer, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=10, pages_per_site=40, page_bytes=2000, latency_seconds=0.05) as web:
        process = start(folder, web, "--frontier", server.url, "--delay", str(DELAY), "--concurrency", "2")
        until(lambda: len(web.log()) > 10)
        joined = subprocess.run(
            [sys.executable, "-m", "gossamer", "worker", server.url, "--job", str(folder), "--name", "guest",
             "--out", str(folder)],
            capture_output=True, text=True, timeout=60, check=False, env=environment(),
        )  # fmt: skip
        assert joined.returncode == 0, joined.stderr
        assert process.wait(30) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        is_whole(web, folder)
        assert not web.judge().repeated
    assert sum(len(rows(path)) for path in (folder / "segments").glob("guest*")) > 20


def test_a_worker_suspended_past_its_lease_changes_nothing(server: RedisServer, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=6, pages_per_site=60, page_bytes=3000, latency_seconds=0.05) as web:
        process = start(
            folder, web, "--frontier", server.url, "--delay", str(DELAY), "--workers", "3", "--lease-seconds", "1"
        )
        victim = until(lambda: len(found) >= 3 and found if (found := children(process.pid)) else None)[0]
        until(lambda: len(web.log()) > 60)
        os.kill(victim, signal.SIGSTOP)
        time.sleep(3)
        os.kill(victim, signal.SIGCONT)
        assert process.wait(60) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        assert not web.judge().missed
        # Its request may have been on the wire when it fell asleep; its answer came late, and nobody else's did.
        assert sum(fetched(web.log()).values()) <= 6 * 60 + 12
    assert set(stored(folder).values()) == {1}
