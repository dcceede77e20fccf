"""Redis servers that forget acknowledged seconds in mid-crawl: no page is lost, no host gets two requests too soon."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis

from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from chainweb import ChainWeb, chain_web
from powercut import addresses, choices, cut_power, forget, is_whole, logged_servers, progress
from processes import environment, kill_tree, start, until

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
    """Of its source, its target or both; the mover is killed then, or goes on by itself."""
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
