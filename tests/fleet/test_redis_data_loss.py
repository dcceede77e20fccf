"""Redis servers that lose acknowledged seconds during a crawl: no page is lost, and the delay holds."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from gossamer.testing.servers import RedisServer, Sentinel

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from chainweb import ChainWeb, chain_web
from powercut import LOGGED, addresses, choices, cut_power, forget, is_whole, logged_servers, progress
from processes import environment, kill_tree, start, until
from test_redis_shards import Cluster

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.long,
    pytest.mark.skipif(
        not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
    ),
]
FORGET = 5.0
Popen = subprocess.Popen[str]
PAGES = 1500
seeds = pytest.mark.parametrize("seed", range(10))


def options(web: ChainWeb, frontier: str, delay: float, shards: int) -> list[str]:
    return [
        *web.options, "--frontier", frontier, "--workers", "4", "--shards", str(shards), "--delay", str(delay),
        "--lease-seconds", "5", "--forget-seconds", str(FORGET),
    ]  # fmt: skip


@seeds
def test_a_server_that_forgets_its_last_seconds_loses_no_page(tmp_path: Path, seed: int) -> None:
    choose = choices(seed)
    delay, count = choose.uniform(0.1, 0.3), choose.choice([2, 3])
    with chain_web(PAGES, seed=seed) as web, logged_servers(count) as servers:
        words = options(web, addresses(servers), delay, choose.choice([count, 6, 9]))
        process = start(tmp_path / "job", web, *words)
        try:
            for share in sorted(choose.uniform(0.05, 0.7) for _ in range(2)):
                progress(web, share)
                lost = choose.choice([1.0, choose.uniform(0.2, FORGET - 0.5)])
                cut_power(choose.choice(servers), lost_seconds=lost, down_seconds=choose.uniform(0.0, 2.0))
            assert process.wait(180) == 0, process.stderr.read() if process.stderr else ""
        finally:
            kill_tree(process)
        is_whole(web, tmp_path / "job", delay=delay)


@seeds
def test_a_power_cut_of_a_server_and_all_workers_loses_no_page(tmp_path: Path, seed: int) -> None:
    choose = choices(seed + 100)
    delay, count = choose.uniform(0.1, 0.3), choose.choice([2, 3])
    with chain_web(PAGES, seed=seed) as web, logged_servers(count) as servers:
        words = options(web, addresses(servers), delay, choose.choice([count, 6, 9]))
        process = start(tmp_path / "job", web, *words)
        try:
            progress(web, choose.uniform(0.05, 0.7))
            lost = choose.choice([1.0, choose.uniform(0.2, FORGET - 0.5)])

            def time_passes() -> None:
                time.sleep(lost)
                kill_tree(process)

            server = choose.choice(servers)
            forget(server, time_passes)
            server.start()
            process = start(tmp_path / "job", web, *words)
            assert process.wait(180) == 0, process.stderr.read() if process.stderr else ""
        finally:
            kill_tree(process)
        is_whole(web, tmp_path / "job", delay=delay)


MOMENTS = ("announce", "copy", "after", "later")


def wait_for(moment: str, choose: random.Random, servers: Sequence[RedisServer], spreading: Popen) -> None:
    """Until a spread has come so far that nobody can know what is durable of it."""
    if moment == "announce":
        time.sleep(choose.uniform(1.0, FORGET))
    elif moment == "later":
        spreading.wait(120)
        time.sleep(choose.uniform(0.0, 2.0))
    else:
        field = "moving" if moment == "copy" else "moved"
        until(lambda: spreading.poll() is not None or any(has_field(server, field) for server in servers[:2]), 60)
        if moment == "after":
            time.sleep(choose.uniform(0.0, FORGET - 1))


def has_field(server: RedisServer, field: str) -> bool:
    with redis.Redis.from_url(server.url) as store:
        return any(store.hexists(key, field) for key in store.scan_iter("gossamer:*:job", count=10_000))


def spread(folder: Path, servers: Sequence[RedisServer]) -> Popen:
    words = [sys.executable, "-m", "gossamer", "spread", str(folder), "--frontier", addresses(servers)]
    return subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_around_a_move_loses_no_page(tmp_path: Path, seed: int) -> None:
    """Data loss at the source, the target, or both; the mover is killed then, or continues."""
    choose = choices(seed + 200)
    moment, victims = MOMENTS[seed % 4], [(0,), (2,), (0, 2)][seed % 3]
    delay, folder = 0.6, tmp_path / "job"
    with chain_web(PAGES, seed=seed) as web, logged_servers(3) as servers:
        process = start(folder, web, *options(web, addresses(servers[:2]), delay, choose.choice([4, 8])))
        spreading = None
        try:
            progress(web, 0.05)
            spreading = spread(folder, servers)
            wait_for(moment, choose, servers, spreading)
            cut_together(
                [servers[victim] for victim in victims], choose.choice([1.0, choose.uniform(0.2, FORGET - 0.5)])
            )
            if choose.random() < 0.5:
                kill_tree(spreading)
                if choose.random() < 0.5:
                    spreading = spread(folder, servers)
            assert process.wait(300) == 0, process.stderr.read() if process.stderr else ""
            if spreading.returncode is None:
                assert spreading.wait(120) == 0, spreading.stderr.read() if spreading.stderr else ""
        finally:
            kill_tree(process)
            if spreading is not None:
                kill_tree(spreading)
        is_whole(web, folder, delay=delay)
        for readers in (servers[:1], servers):
            words = [
                sys.executable,
                "-m",
                "gossamer",
                "status",
                str(folder),
                "--json",
                "--frontier",
                addresses(readers),
            ]
            seen = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment(), check=False)
            assert json.loads(seen.stdout)["state"] == "finished", seen.stdout + seen.stderr


def cut_together(servers: Sequence[RedisServer], lost_seconds: float) -> None:
    """One power cut for all of these."""
    if len(servers) == 1:
        cut_power(servers[0], lost_seconds=lost_seconds)
    else:
        forget(servers[0], lambda: cut_together(servers[1:], lost_seconds))
        servers[0].start()


@seeds
def test_one_server_that_forgets_loses_no_page(tmp_path: Path, seed: int) -> None:
    choose = choices(seed + 300)
    delay = choose.uniform(0.1, 0.3)
    with chain_web(PAGES, seed=seed) as web, logged_servers(1) as servers:
        process = start(tmp_path / "job", web, *options(web, servers[0].url, delay, choose.choice([1, 4])))
        try:
            for share in sorted(choose.uniform(0.05, 0.7) for _ in range(2)):
                progress(web, share)
                cut_power(servers[0], lost_seconds=choose.uniform(0.2, FORGET - 0.5))
            assert process.wait(180) == 0, process.stderr.read() if process.stderr else ""
        finally:
            kill_tree(process)
        is_whole(web, tmp_path / "job", delay=delay)


REPLICATION: dict[str, Any] = {
    "masteruser": "replica", "masterauth": "x", "repl_diskless_sync_delay": "0", "repl_timeout": "5",
    "user": "replica on >x +psync +replconf +ping",
}  # fmt: skip


def lag(primary: RedisServer) -> None:
    """From now on no replica receives what this primary acknowledges."""
    with redis.Redis.from_url(primary.url) as store:
        store.execute_command("ACL", "SETUSER", "replica", "off")
        store.execute_command("CLIENT", "KILL", "TYPE", "replica")


def about(server: RedisServer) -> dict[str, Any]:
    with redis.Redis.from_url(server.url) as store:
        return dict(store.info("replication"))


@seeds
def test_a_fail_over_to_a_replica_that_lags_loses_no_page(tmp_path: Path, seed: int) -> None:
    choose = choices(seed + 400)
    delay, quick = choose.uniform(0.1, 0.3), {**LOGGED, **REPLICATION}
    with ExitStack() as stack:
        web = stack.enter_context(chain_web(PAGES, seed=seed))
        first = stack.enter_context(RedisServer(**quick))
        second = stack.enter_context(RedisServer(replicaof=f"127.0.0.1 {first.port}", **quick))
        until(lambda: about(second)["master_link_status"] == "up")
        sentinels = [stack.enter_context(Sentinel(first)) for _ in range(3)]
        for sentinel in sentinels:
            until(lambda sentinel=sentinel: knows_all(sentinel))  # type: ignore[misc]
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
        words = options(web, f"redis+sentinel://{hosts}/main/0", delay, choose.choice([1, 4]))
        process = start(tmp_path / "job", web, *words)
        try:
            progress(web, choose.uniform(0.05, 0.6))
            lag(first)
            time.sleep(choose.uniform(0.2, FORGET - 1.5))
            first.kill()
            # Earlier, the old primary would become primary again for a moment, next to the new one.
            until(lambda: {second.port} == set(map(primary_port, sentinels)))
            if choose.random() < 0.5:
                first.start()
            assert process.wait(180) == 0, process.stderr.read() if process.stderr else ""
        finally:
            kill_tree(process)
        is_whole(web, tmp_path / "job", delay=delay)


def primary_port(sentinel: Sentinel) -> int:
    with redis.Redis.from_url(sentinel.url) as asked:
        return int(asked.sentinel_get_master_addr_by_name("main")[1])


def knows_all(sentinel: Sentinel) -> bool:
    with redis.Redis.from_url(sentinel.url) as asked:
        state = asked.sentinel_master("main")
    return int(state["num-other-sentinels"]) == 2 and int(state["num-slaves"]) == 1


class LaggingCluster(Cluster):
    """A Redis Cluster whose replicas can be kept from hearing of anything."""

    def _node(self) -> RedisServer:
        places: dict[str, Any] = {
            "cluster_enabled": "yes",
            "cluster_node_timeout": "2000",
            "cluster_config_file": "n.conf",
        }
        return self._stack.enter_context(RedisServer(**{**LOGGED, **REPLICATION, **places}))


@seeds
def test_a_cluster_that_fails_over_to_a_replica_that_lags_loses_no_page(tmp_path: Path, seed: int) -> None:
    choose = choices(seed + 500)
    delay = choose.uniform(0.1, 0.3)
    with ExitStack() as stack:
        web = stack.enter_context(chain_web(PAGES, seed=seed))
        cluster = LaggingCluster(stack, 3, replicas=1)
        words = options(web, addresses(cluster.nodes[:3]), delay, 12)
        process = start(tmp_path / "job", web, *words)
        try:
            progress(web, choose.uniform(0.05, 0.6))
            primary = choose.choice([node for node in cluster.nodes if about(node)["role"] == "master"])
            replica = next(node for node in cluster.nodes if about(node).get("master_port") == primary.port)
            lag(primary)
            time.sleep(choose.uniform(0.2, FORGET - 0.5))
            primary.kill()
            with redis.Redis.from_url(replica.url) as store:
                store.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
            if choose.random() < 0.5:
                primary.start()
            assert process.wait(180) == 0, process.stderr.read() if process.stderr else ""
        finally:
            kill_tree(process)
        is_whole(web, tmp_path / "job", delay=delay)
