"""Job handles in Python, in scripts and in asyncio programs: running, stopped, and fleet jobs."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import gossamer
from gossamer.errors import JobMissing, JobRunning, JobStopped
from gossamer.frontier.backends import open_fleet
from gossamer.jobs.find import list_names
from gossamer.jobs.fleet import submit_job
from gossamer.jobs.worker import join_fleet
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Heartbeat
from gossamer.settings import Settings
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import kill_tree, start, stored, until


class Titles(gossamer.Spider):
    def parse(self, page: gossamer.Page) -> Iterator[Any]:
        yield {"title": page.title, "depth": page.depth, "mixed": 1 if page.depth else "seed"}
        yield from page.follow_all()


@pytest.fixture(scope="module")
def web() -> Iterator[SimWeb]:
    with SimWeb(sites=2, pages_per_site=40, page_bytes=2000) as web:
        yield web


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    return redis_server


def crawled(folder: Path, web: SimWeb, **settings: Any) -> gossamer.JobHandle:
    """A finished job."""
    list(gossamer.crawl(*web.seeds, job=str(folder), spider=Titles, delay=0, allow_private=True, **settings))
    return gossamer.open_job(str(folder))


def test_running_job_is_inspected_and_controlled(web: SimWeb, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    process = start(folder, web, "--delay", "0.1")
    try:
        until(lambda: sum(stored(folder).values()) > 3)
        with gossamer.open_job(str(folder)) as job:
            assert job.state() == "running"
            job.pause()
            assert (job.state(), job.counts().job) == ("paused", "paused")
            assert job.add(web.seeds[0], f"{web.seeds[0]}new") == 1
            assert job.why(web.seeds[0])["state"] == "done"
            assert job.why(f"{web.seeds[0]}x", page=web.seeds[0])["state"] == "unknown"
            job.resume()
            assert job.state() == "running"
            job.stop()
            assert process.wait(60) == 0
            # The same handle: the owner that it asked is gone.
            assert job.state() == "resting"
            assert job.counts().stored == len(list(job.results())) > 3
            with pytest.raises(JobStopped, match="is not running") as refused:
                job.pause()
        assert f"gossamer crawl --job {folder}" in refused.value.hint
    finally:
        kill_tree(process)


def test_async_job_handle_has_the_same_methods(web: SimWeb, tmp_path: Path) -> None:
    crawled(tmp_path / "job", web)

    async def ask() -> None:
        async with gossamer.open_job(str(tmp_path / "job")) as job:
            assert await job.state() == "finished"
            assert (await job.counts()).stored == 80
            results = await job.results()
            urls = [page["url"] async for page in results]
            assert sorted(urls) == sorted(page["url"] for page in results), "as often as one likes"
            assert len([item async for item in await job.items()]) == 80
            assert (await job.why(web.seeds[0]))["attempts"][0]["status"] == 200
            with pytest.raises(JobStopped):
                await job.add(web.seeds[0])

    asyncio.run(ask())
    plain, same = (
        {name for name in vars(handle) if not name.startswith("_")} - {"close", "aclose"}
        for handle in (gossamer.JobHandle, gossamer.AsyncJobHandle)
    )
    assert plain == same


def test_job_handle_results_match_the_files(web: SimWeb, tmp_path: Path) -> None:
    with crawled(tmp_path / "job", web) as job:
        pages, items = job.results(), job.items()
        lines = (tmp_path / "job" / "pages.jsonl").read_text().splitlines()
        assert list(pages) == [json.loads(line) for line in lines]
        assert {item["title"] for item in items} == {page["title"] for page in pages}
        table = pages.to_arrow()
        assert (table.num_rows, table["url"].to_pylist()) == (80, [page["url"] for page in pages])
        assert str(table.schema.field("fetched_at").type) == "timestamp[us, tz=UTC]"
        frame = pages.to_pandas()
        assert (len(frame), frame.status.unique().tolist()) == (80, [200])
        kinds = {field.name: str(field.type) for field in items.to_arrow().schema}
        assert kinds == {"title": "string", "depth": "int64", "mixed": "string"}
        assert sorted(set(items.to_pandas().mixed)) == ['"seed"', "1"]
    with crawled(tmp_path / "none", web, sink=["csv"], max_pages=1) as job:
        assert job.results().to_arrow().num_rows == 1


def test_missing_package_is_named(web: SimWeb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with crawled(tmp_path / "job", web, max_pages=1) as job:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(gossamer.ConfigError, match="needs pandas") as missing:
            job.results().to_pandas()
        assert missing.value.hint == "pip install pandas"
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(gossamer.ConfigError, match="a table needs pyarrow") as missing:
            job.results().to_arrow()
        assert missing.value.hint == "pip install 'gossamer[parquet]'"


def test_a_job_on_a_fleet(server: RedisServer, web: SimWeb, tmp_path: Path) -> None:
    settings = Settings(sink=(f"jsonl:{tmp_path}/out",), allow_private=True, delay=0.0)

    asyncio.run(submit_job(server.url, "shop", settings, web.seeds))
    with gossamer.open_job("shop", server.url) as job:
        assert (job.state(), job.counts().queued) == ("resting", 2)
        job.pause()
        assert job.state() == "paused"
        assert job.add(*web.seeds, f"{web.seeds[0]}new") == 1
        job.resume()
        asyncio.run(join_fleet(server.url, "shop", tmp_path / "home", name="w"))
        assert job.state() == "finished"
        assert len(list(job.results())) == job.counts().stored == 81
        assert job.results().to_arrow()["key"].null_count == 0
    with pytest.raises(JobMissing), gossamer.open_job("none", server.url) as job:
        pass


def test_missing_job_and_unclosed_handle(web: SimWeb, tmp_path: Path) -> None:
    with pytest.raises(gossamer.ConfigError, match="there is no job"):
        gossamer.open_job(f"{tmp_path}/none").state()
    with pytest.raises(gossamer.ConfigError, match="unknown frontier"):
        gossamer.open_job("x", "cassandra:").state()
    gc.collect()
    job = crawled(tmp_path / "job", web)
    assert job.state() == "finished"
    threads = {thread for thread in threading.enumerate() if thread.name == "gossamer-job"}
    assert threads
    del job
    gc.collect()
    end = time.monotonic() + 10
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < end, "its thread has not ended"
        time.sleep(0.01)


def test_job_is_deleted_unless_it_is_running(server: RedisServer, web: SimWeb, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    process = start(folder, web, "--delay", "0.1")
    try:
        until(lambda: sum(stored(folder).values()) > 3)
        with gossamer.open_job(str(folder)) as job:
            with pytest.raises(JobRunning, match="is running: owner") as refused:
                job.delete()
            assert f"gossamer stop {folder}" in refused.value.hint
            job.stop()
            assert process.wait(60) == 0
            job.delete()
            with pytest.raises(gossamer.ConfigError, match="there is no job"):
                job.counts()
        assert sum(stored(folder).values()) > 3, "what it has stored stays"
    finally:
        kill_tree(process)

    async def on_a_fleet(url: str) -> None:
        settings = Settings(sink=(f"jsonl:{tmp_path}/out",))
        await submit_job(url, "shop", settings, web.seeds)
        fleet = await open_fleet(url, "shop", worker="w")
        await fleet.beat(Heartbeat(worker="w"))
        async with gossamer.open_job("shop", url) as job:
            with pytest.raises(JobRunning, match="is running: w"):
                await job.delete()
            await fleet.beat(Heartbeat(worker="w", left=True))
            await fleet.aclose()
            await job.delete()
        assert await list_names(url) == []

    for url in (server.url, f"folder:{tmp_path}/shared"):
        asyncio.run(on_a_fleet(url))


def test_job_handle_works_inside_a_running_loop(web: SimWeb, tmp_path: Path) -> None:
    """As in a notebook."""

    async def cell() -> str:
        with gossamer.open_job(str(tmp_path / "job")) as job:
            return job.state()

    crawled(tmp_path / "job", web).close()
    assert asyncio.run(cell()) == "finished"
