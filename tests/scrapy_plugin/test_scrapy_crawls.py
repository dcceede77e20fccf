"""Unchanged Scrapy projects on a Gossamer frontier, as real processes, judged by the web servers' own logs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from gossamer.fleet import open_fleet
from gossamer.model import Counts
from gossamer.sim.log import cut_short, gaps, max_overlap
from gossamer.testing.servers import RedisServer
from gossamer.testing.web import SimWeb

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import until
from scrapers import TUTORIAL, finish, items, scrapy, site


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[str]:
    with redis.Redis.from_url(redis_server.url) as server:
        server.flushall()
    return redis_server.url


Started = Callable[[subprocess.Popen[str]], subprocess.Popen[str]]


@pytest.fixture
def started() -> Iterator[Started]:
    """Ends the processes that a failed test leaves behind."""
    running: list[subprocess.Popen[str]] = []

    def note(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        running.append(process)
        return process

    yield note
    for process in running:
        process.kill()
        process.wait()


def counts(url: str, job: str) -> Counts:
    async def look() -> Counts:
        fleet = await open_fleet(url, job)
        try:
            return await fleet.counts()
        finally:
            await fleet.aclose()

    return asyncio.run(look())


def test_the_tutorial_project_runs_as_it_stands_and_is_not_crawled_twice(tmp_path: Path) -> None:
    options = ("-s", "SCHEDULER=gossamer.scrapy.Scheduler", "-O", f"{tmp_path}/items.jsonl")
    with site() as shop:
        run = scrapy("sayings", f"sqlite:{tmp_path}/job", "-a", f"site={shop.url}/", *options, project=TUTORIAL)
        said = finish(run)
        assert run.returncode == 0, said
        found = items(tmp_path / "items.jsonl")
        assert len(found) == 6 * 3 + 7
        assert {path for _, path, *_ in shop.asked} == {
            "/robots.txt", "/", *(f"/page/{number}/" for number in range(2, 7)), *(f"/author/{n}/" for n in range(7)),
        }  # fmt: skip
        times = [at for *_, at in shop.asked]
        assert min(later - earlier for earlier, later in pairwise(times)) >= 0.05
        before = len(shop.asked)
        again = scrapy("sayings", f"sqlite:{tmp_path}/job", "-a", f"site={shop.url}/", *options, project=TUTORIAL)
        # A file has one owner: whoever comes second is told so, and nothing happens.
        second = scrapy("sayings", f"sqlite:{tmp_path}/job", "-a", f"site={shop.url}/", *options, project=TUTORIAL)
        said = finish(again) + finish(second)
        assert len(shop.asked) == before
        assert "finished" in said


def test_requests_of_every_kind_come_through_and_are_settled(store: str, tmp_path: Path) -> None:
    """H58."""
    with site() as shop:
        run = scrapy("manifold", store, "-O", f"{tmp_path}/items.jsonl", SITE=shop.url)
        said = finish(run)
        found = {item["saw"]: item for item in items(tmp_path / "items.jsonl") if item["saw"] != "failure"}
        failures = {item["why"] for item in items(tmp_path / "items.jsonl") if item["saw"] == "failure"}
        assert set(found) == {
            "an item of start", "redirect", "retry", "missing", "filtered", "dont_filter 1", "dont_filter 2", "form",
            "put", "raises", "before the raise", "after a failure",
        }, said  # fmt: skip
        assert failures == {"HttpError", "IgnoreRequest"}
        asked = Counter(path for _, path, *_ in shop.asked)
        assert asked == {
            "/robots.txt": 1, "/start": 1, "/moved": 1, "/arrived": 1, "/flaky": 2, "/missing": 1, "/broken": 3,
            "/again": 1, "/twice": 2, "/echo": 2, "/raises": 1, "/before-the-raise": 1, "/after-failure": 1,
        }  # fmt: skip
        assert found["retry"]["body"] == "well at last"
        assert found["form"]["body"] == "POST b'a=1'"
        assert found["form"]["flags"] == ["f"]
        assert found["put"]["body"] == "PUT b'\\xff\\x00not utf-8'"
        assert found["put"]["meta"] == "{'cookiejar': 7, 'pair': (1, {2}), 'item': {'word': 'w'}}"
        (sent,) = (headers for headers, (method, *_) in zip(shop.headers, shop.asked) if method == "PUT")
        assert [value for name, value in sent if name.lower() == "x-word"] == ["one", "two"]
        assert ("Cookie", "jar=1") in sent
        after = counts(store, "manifold")
        assert after.finished
        assert after.leased == after.queued == 0
        assert after.failed == 2
        assert after.skipped == 1


def test_killed_stopped_and_late_processes_lose_nothing_and_keep_the_delay(
    store: str, tmp_path: Path, started: Started
) -> None:
    with SimWeb(sites=5, pages_per_site=40, page_bytes=2000, latency_seconds=0.005) as web:

        def start(name: str) -> subprocess.Popen[str]:
            path, log = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.log"
            return started(scrapy("walk", store, "-o", str(path), log=log, SEEDS=" ".join(web.seeds)))

        killed, stopped = start("killed"), start("stopped")
        until(lambda: len(web.log()) > 30)
        os.kill(killed.pid, signal.SIGKILL)
        moment = web.log()[-1].arrived_at
        killed.wait()
        late = start("late")
        until(lambda: len(web.log()) > 70)
        os.kill(stopped.pid, signal.SIGTERM)
        stopped.wait(30)
        assert late.wait(60) == 0, (tmp_path / "late.log").read_text()
        log = web.log()
        verdict = web.judge()
        assert not verdict.missed
        assert not verdict.forbidden
        assert sum(verdict.repeated.values()) <= 16
        assert min(gaps(cut_short(log, [moment])).values()) >= 0.02
        assert max(max_overlap(cut_short(log, [moment])).values()) == 1
        end = counts(store, "walk")
        assert end.finished
        assert end.parked == 0
        done = {item["url"] for name in ("stopped", "late", "killed") for item in items(tmp_path / f"{name}.jsonl")}
        assert done | set(verdict.repeated) >= web.plan.reachable()
