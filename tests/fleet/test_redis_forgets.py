"""Redis servers that forget acknowledged seconds in mid-crawl: no page is lost, no host gets two requests too soon."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from chainweb import ChainWeb, chain_web
from powercut import addresses, choices, cut_power, forget, is_whole, logged_servers, progress
from processes import kill_tree, start

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.long,
    pytest.mark.skipif(
        not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
    ),
]
FORGET = 5.0
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
