"""Unchanged Scrapy projects on a Gossamer frontier, as real processes, checked against the web servers' logs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy.settings import Settings as ScrapySettings

from gossamer.errors import ConfigError, Held
from gossamer.frontier.backends import open_fleet
from gossamer.inspect.why import url_history
from gossamer.job_folder import stored_settings
from gossamer.jobs.find import open_job
from gossamer.lab.simweb.log import cut_short, gaps, max_overlap
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Counts
from gossamer.scrapy.options import open_frontier, read_options
from gossamer.testing.servers import RedisServer, SqlServer

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import until
from scrapers import TUTORIAL, finish, items, scrapy, shown_settings, site

# Scrapy takes long to start on a machine that has much to do.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def store(redis_server: RedisServer) -> str:
    with redis.Redis.from_url(redis_server.url) as server:
        server.flushall()
    return redis_server.url


Started = Callable[[subprocess.Popen[str]], subprocess.Popen[str]]


@pytest.fixture
def started() -> Iterator[Started]:
    """Kill the processes of a failed test."""
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


def why(url: str, job: str, frontier: str = "", page: str = "") -> dict[str, Any]:
    """The output of `gossamer why` for a URL."""

    async def ask() -> dict[str, Any]:
        async with open_job(job, frontier) as opened:
            return await url_history(opened, url, page=page, now=time.time())

    return asyncio.run(ask())


def test_scrapy_tutorial_project_runs_once_with_the_documented_settings(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(TUTORIAL, project)
    with (project / "tutorial" / "settings.py").open("a") as settings:
        settings.write(shown_settings("migrate-from-scrapy.md", f"sqlite:{tmp_path}/job"))
    with site() as shop:
        words = ("-a", f"site={shop.url}/", "-O", f"{tmp_path}/items.jsonl")
        run = scrapy("sayings", "", *words, project=project)
        said = finish(run)
        assert run.returncode == 0, said
        assert len(items(tmp_path / "items.jsonl")) == 6 * 3 + 7
        others = (*(f"/page/{number}/" for number in range(2, 7)), *(f"/author/{number}/" for number in range(7)))
        assert Counter(path for _, path, *_ in shop.asked) == dict.fromkeys(("/robots.txt", "/", *others), 1)
        times = [at for *_, at in shop.asked]
        assert min(later - earlier for earlier, later in pairwise(times)) >= 0.05
        again = scrapy("sayings", "", *words, project=project)
        assert "Closing spider (finished)" in finish(again)
        assert len(shop.asked) == len(times)
        story = why(f"{shop.url}/page/2/", f"{tmp_path}/job")
        assert (story["seen"], story["state"], story["rules"][0]["rule"]) == (True, "done", "scrapy")
        assert not why(f"{shop.url}/page/99/", f"{tmp_path}/job")["seen"]


def test_file_in_use_by_an_owner_is_rejected(tmp_path: Path) -> None:
    project = ScrapySettings({"GOSSAMER_FRONTIER": f"sqlite:{tmp_path}/job", "DOWNLOAD_DELAY": 2})

    async def twice() -> None:
        first = await open_frontier(read_options(project, "walk"))
        try:
            with pytest.raises(Held, match="is in use by pid") as refused:
                await open_frontier(read_options(project, "walk"))
            assert "for several processes, set GOSSAMER_FRONTIER to redis://" in refused.value.hint
        finally:
            await first.aclose()

    asyncio.run(twice())
    assert stored_settings(tmp_path / "job")["delay"] == 2.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "has no frontier"),
        ({"GOSSAMER_FRONTIER": "sqlite:"}, "names no folder"),
        ({"GOSSAMER_FRONTIER": "mongodb://host/"}, "unknown frontier"),
        ({"GOSSAMER_FRONTIER": "memory:", "GOSSAMER_SETTINGS": {"dely": 1}}, "GOSSAMER_SETTINGS: .*dely"),
    ],
)
def test_invalid_scrapy_settings_are_rejected(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        asyncio.run(open_frontier(read_options(ScrapySettings(given), "walk")))


@pytest.mark.long
def test_unstorable_request_stops_the_crawl_without_loss(store: str, tmp_path: Path, started: Started) -> None:
    """H58."""
    with site() as shop:
        run = started(scrapy("lambdas", store, SITE=shop.url))
        said = finish(run)
        assert f"<GET {shop.url}/again>: meta['key'] is the function LambdaSpider.parse.<locals>.<lambda>" in said
        assert "Closing spider (gossamer_unstorable)" in said
        after = counts(store, "lambdas")
        assert (after.queued, after.done, after.leased) == (1, 0, 0)
        fixed = started(scrapy("lambdas", store, SITE=shop.url, FIXED="1"))
        finish(fixed)
        assert {path: shop.count(path) for path in ("/start", "/again", "/twice")} == {
            "/start": 2, "/again": 1, "/twice": 1,
        }  # fmt: skip


def test_requests_of_every_kind_are_completed(store: str, tmp_path: Path) -> None:
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
        assert why(f"{shop.url}/again", "manifold", store)["seen"]
        # Each of its two requests has a name of its own, to which only the page leads that asked for them.
        assert not why(f"{shop.url}/twice", "manifold", store)["seen"]
        twice = why(f"{shop.url}/twice", "manifold", store, page=f"{shop.url}/start")
        assert twice["seen"]
        assert "2 times, with dont_filter" in twice["rules"][0]["words"]
        retried = why(f"{shop.url}/broken", "manifold", store)
        assert "3 times, with dont_filter" in retried["rules"][0]["words"]


def test_killed_stopped_and_late_processes_lose_nothing_and_keep_the_delay(
    store: str, tmp_path: Path, started: Started
) -> None:
    with SimWeb(sites=5, pages_per_site=40, page_bytes=2000, latency_seconds=0.005) as web:

        def start(name: str, worker: str = "") -> subprocess.Popen[str]:
            words = ("-o", f"{tmp_path}/{name}.jsonl", "-s", f"GOSSAMER_WORKER={worker}")
            log = tmp_path / f"{name}.log"
            return started(scrapy("walk", store, *words, log=log, SEEDS=" ".join(web.seeds)))

        killed, stopped = start("killed", worker="one"), start("stopped")
        until(lambda: len(web.log()) > 30, 110)
        os.kill(killed.pid, signal.SIGKILL)
        moment = web.log()[-1].arrived_at
        killed.wait()
        # Of the same name: what the dead one held is free at once, and not when its leases end in half a minute.
        late = start("late", worker="one")
        until(lambda: len(web.log()) > 70, 110)
        os.kill(stopped.pid, signal.SIGTERM)
        stopped.wait(30)
        assert late.wait(110) == 0, (tmp_path / "late.log").read_text()
        log = web.log()
        verdict = web.judge()
        assert not verdict.missed
        assert not verdict.forbidden
        assert len(verdict.repeated) <= 32
        assert min(gaps(cut_short(log, [moment])).values()) >= 0.02
        assert max(max_overlap(cut_short(log, [moment])).values()) == 1
        end = counts(store, "walk")
        assert end.finished
        assert end.parked == 0
        # What was acknowledged is in a file, also that of the process that was killed.
        done = {item["url"] for name in ("stopped", "late", "killed") for item in items(tmp_path / f"{name}.jsonl")}
        assert done == web.plan.reachable()


@pytest.mark.long
def test_a_page_is_not_done_while_an_item_of_it_is_in_a_pipeline(store: str, tmp_path: Path, started: Started) -> None:
    gate = tmp_path / "gate"
    with site() as shop:
        run = started(scrapy("patient", store, SITE=shop.url, GATE=str(gate)))
        until(lambda: shop.count("/start"), 110)
        # Far longer than the callback and the storing of results take.
        time.sleep(2)
        held = counts(store, "patient")
        assert (held.leased, held.done, held.known) == (1, 0, 1)
        run.kill()
        run.wait()
        gate.touch()
        again = started(scrapy("patient", store, "-s", "GOSSAMER_WORKER=x", SITE=shop.url, GATE=str(gate)))
        finish(again, 100)
        assert (shop.count("/start"), shop.count("/again")) == (2, 1)
        assert counts(store, "patient").done == 2


@pytest.mark.parametrize("spider", ["redis_rules", pytest.param("redis_walk", marks=pytest.mark.long)])
def test_spiders_of_scrapy_redis_take_their_start_urls_from_redis(
    spider: str, store: str, tmp_path: Path, started: Started
) -> None:
    with SimWeb(sites=2, pages_per_site=15, page_bytes=2000) as web, redis.Redis.from_url(store) as server:
        options = ("-s", f"REDIS_URL={store}", "-s", "MAX_IDLE_TIME_BEFORE_CLOSE=3")
        run = started(scrapy(spider, store, *options, log=tmp_path / "log"))
        if spider == "redis_rules":
            server.sadd("redis_rules:start_urls", *web.seeds)
        else:
            server.rpush("walk:start_urls", *web.seeds)
        assert run.wait(110) == 0, (tmp_path / "log").read_text()
        assert not web.judge().missed
        # A start URL is fetched whenever it is given, as scrapy-redis does, and once more where it is linked.
        assert set(web.judge().repeated) <= set(web.seeds)
        assert counts(store, spider).finished


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["postgresql", "mysql", "folder", "selectreactor"])
def test_three_processes_under_kills_on_every_backend(
    kind: str,
    store: str,
    tmp_path: Path,
    started: Started,
    postgres_server: SqlServer,
    maria_server: SqlServer,
    empty_databases: Callable[..., list[str]],
) -> None:
    address = store
    options: tuple[str, ...] = ("-s", 'GOSSAMER_SETTINGS={"lease_seconds": 15}')
    if kind == "selectreactor":
        options += ("-s", "TWISTED_REACTOR=twisted.internet.selectreactor.SelectReactor")
    else:
        address = f"folder:{tmp_path}/frontier"
    if kind in ("postgresql", "mysql"):
        (address,) = empty_databases(postgres_server if kind == "postgresql" else maria_server, "scrapy_walk")
    with SimWeb(sites=6, pages_per_site=60, page_bytes=2000, latency_seconds=0.005) as web:

        def start(number: int) -> subprocess.Popen[str]:
            log = tmp_path / f"{number}.log"
            return started(scrapy("walk", address, *options, log=log, SEEDS=" ".join(web.seeds)))

        running, moments = [start(number) for number in range(3)], []
        for number in range(3, 6):
            until(lambda number=number: len(web.log()) > 60 * (number - 2), 200)  # type: ignore[misc]
            victim = running.pop(0)
            victim.kill()
            victim.wait()
            moments.append(time.time())
            running.append(start(number))
        for process in running:
            assert process.wait(300) == 0
        log = cut_short(web.log(), moments)
        assert not web.judge().missed
        assert min(gaps(log).values()) >= 0.02
        assert max(max_overlap(log).values()) == 1
