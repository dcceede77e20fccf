"""A fleet on Redis under kills of its workers and of Redis."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.lab.simweb.log import fetched, gaps, max_overlap
from gossamer.lab.simweb.process import SimWeb
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import children, crawl, kill_tree, start, stored, until

DELAY = 0.02
pytestmark = pytest.mark.skipif(
    not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly="yes", appendfsync="everysec") as running:
        yield running


def test_a_fleet_fetches_every_page_once_and_politely(server: RedisServer, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(
        sites=12, pages_per_site=25, page_bytes=3000, kinds=("plain", "redirects", "spellings", "errors")
    ) as web:
        done = crawl(folder, web, "--frontier", server.url, "--delay", str(DELAY), "--workers", "4")
        assert done.returncode == 3, done.stderr
        verdict, log = web.judge(), web.log()
    assert not verdict.missed
    assert not verdict.forbidden
    assert not verdict.repeated
    assert min(gaps(log).values()) >= DELAY
    assert max(max_overlap(log).values()) == 1
    assert set(stored(folder).values()) == {1}
    assert set(stored(folder)) == set(fetched(log))


def kill_workers(server: RedisServer, folder: Path, *, workers: int, kills: int, pages: int) -> None:
    chance = random.Random(7)
    with SimWeb(sites=12, pages_per_site=pages, page_bytes=3000, latency_seconds=0.02) as web:
        options = ("--frontier", server.url, "--delay", str(DELAY), "--workers", str(workers), "--lease-seconds", "2")
        process = start(folder, web, *options)
        for _ in range(kills):
            time.sleep(chance.uniform(0.5, 1.5))
            found = children(process.pid)
            if process.poll() is not None:
                break
            if found:
                os.kill(chance.choice(found), signal.SIGKILL)
        assert process.wait(120) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        verdict, log = web.judge(), web.log()
        reachable = web.plan.reachable()
    assert not verdict.missed
    assert set(stored(folder)) == reachable
    assert set(stored(folder).values()) == {1}
    assert min(gaps(log).values()) >= DELAY
    # What a killed worker had fetched since its last commit is fetched again.
    assert sum(fetched(log).values()) - len(reachable) <= kills * 64


def test_killed_workers_of_a_fleet_lose_nothing(server: RedisServer, tmp_path: Path) -> None:
    kill_workers(server, tmp_path / "job", workers=4, kills=5, pages=60)


@pytest.mark.long
def test_a_fleet_of_eight_under_many_kills_loses_nothing(server: RedisServer, tmp_path: Path) -> None:
    kill_workers(server, tmp_path / "job", workers=8, kills=40, pages=600)


def test_f25_redis_killed_and_started_again_costs_only_fetches(server: RedisServer, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=8, pages_per_site=80, page_bytes=3000, latency_seconds=0.02) as web:
        process = start(
            folder, web, "--frontier", server.url, "--delay", str(DELAY), "--workers", "2", "--lease-seconds", "3"
        )
        for done in (60, 240):
            until(lambda done=done: len(web.log()) > done, 40)  # type: ignore[misc]
            server.kill()
            time.sleep(0.5)
            assert process.poll() is None
            server.start()
        assert process.wait(90) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        verdict, log = web.judge(), web.log()
    assert not verdict.missed
    assert set(stored(folder).values()) == {1}
    assert len(stored(folder)) == 640
    assert min(gaps(log).values()) >= DELAY


def test_f26_redis_that_comes_back_empty_is_an_error_and_never_finished(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with RedisServer() as server, SimWeb(sites=4, pages_per_site=200, page_bytes=3000) as web:
        process = start(folder, web, "--frontier", server.url, "--delay", "0.05", "--workers", "2")
        until(lambda: len(web.log()) > 30, 40)
        server.kill()
        time.sleep(0.3)
        server.start()
        code = process.wait(60)
        said = process.stderr.read() if process.stderr else ""
        kill_tree(process)
    assert code == 1, said
    assert "not in Redis any more" in said
    assert "finished" not in said
    assert "Traceback" not in said


def test_f07_sigterm_drains_a_fleet_and_the_next_run_goes_on_at_once(server: RedisServer, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    options = ("--frontier", server.url, "--delay", str(DELAY), "--workers", "3", "--lease-seconds", "60")
    with SimWeb(sites=6, pages_per_site=40, page_bytes=3000, latency_seconds=0.02) as web:
        process = start(folder, web, *options)
        until(lambda: len(web.log()) > 40, 40)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
        kill_tree(process)
        assert set(stored(folder)) == set(fetched(web.log()))
        done = crawl(folder, web, *options)
        assert done.returncode == 0, done.stderr
        assert not web.judge().missed
        assert not web.judge().repeated
