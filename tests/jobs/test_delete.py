"""`gossamer delete` and `Job.remove`: what is deleted, what stays, and what is rejected."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.errors import ConfigError, JobMissing, JobRunning
from gossamer.frontier.backends import create_fleet, list_jobs, open_fleet
from gossamer.jobs.find import open_job
from gossamer.jobs.seeding import begin
from gossamer.jobs.worker import join_fleet
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Heartbeat, Request
from gossamer.settings import Settings
from gossamer.testing.servers import RedisServer, SqlServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from commands import gossamer, on_terminal
from processes import kill_tree, start, stored, until


@pytest.fixture(scope="module")
def web() -> Iterator[SimWeb]:
    with SimWeb(sites=1, pages_per_site=12, page_bytes=1000) as web:
        yield web


def crawl(place: Path, web: SimWeb, *arguments: str) -> None:
    done = gossamer("crawl", *web.seeds, "--job", "shop", "--delay", "0", "--allow-private", *arguments, cwd=place)
    assert done.returncode in (0, 3), done.stderr.decode()


def test_delete_keeps_results_by_default(web: SimWeb, tmp_path: Path) -> None:
    crawl(tmp_path, web)
    folder = tmp_path / "crawls" / "shop"
    before = (folder / "pages.jsonl").read_bytes()
    nobody = gossamer("delete", "shop", cwd=tmp_path)
    assert nobody.returncode == 2
    assert b"--yes" in nobody.stderr
    done = gossamer("delete", "shop", "--yes", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == {"job": "shop", "results": "crawls/shop", "elsewhere": []}
    assert (folder / "pages.jsonl").read_bytes() == before
    assert not (folder / "frontier.db").exists()
    exported = gossamer("export", "shop", "--format", "urls", cwd=tmp_path)
    assert exported.stdout.count(b"\n") == before.count(b"\n")
    again = gossamer("delete", "shop", "--yes", cwd=tmp_path)
    assert again.returncode == 2
    assert b"there is no job 'shop'" in again.stderr


def test_new_job_keeps_earlier_results(web: SimWeb, tmp_path: Path) -> None:
    crawl(tmp_path, web)
    pages = tmp_path / "crawls" / "shop" / "pages.jsonl"
    before = pages.read_bytes()
    assert gossamer("delete", "shop", "--yes", cwd=tmp_path).returncode == 0
    for _ in range(2):
        refused = gossamer("crawl", *web.seeds, "--job", "shop", "--allow-private", cwd=tmp_path)
        assert refused.returncode == 2
        assert b"pages.jsonl is from an earlier run" in refused.stderr
    assert pages.read_bytes() == before
    pages.rename(tmp_path / "kept.jsonl")
    crawl(tmp_path, web)
    assert len(pages.read_bytes().splitlines()) == len(before.splitlines())


def test_delete_with_results_keeps_foreign_files(web: SimWeb, tmp_path: Path) -> None:
    crawl(tmp_path, web, "--sink", "jsonl", "--sink", "csv", "--sink", "sqlite", "--sink", "warc")
    folder = tmp_path / "crawls" / "shop"
    (folder / "notes.txt").write_text("mine")
    assert gossamer("delete", "shop", "--results", "--yes", cwd=tmp_path).returncode == 0
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    crawl(tmp_path, web)
    assert gossamer("delete", "shop", "--results", "--yes", cwd=tmp_path).returncode == 0
    assert not folder.exists()


def test_delete_asks_for_confirmation_on_a_terminal(web: SimWeb, tmp_path: Path) -> None:
    crawl(tmp_path, web)
    frontier = tmp_path / "crawls" / "shop" / "frontier.db"
    with on_terminal("delete", "shop", cwd=tmp_path, columns=200) as terminal:
        said = terminal.until(lambda lines: any("Delete it?" in line for line in lines))
        assert any("known URLs" in line and "keeping the results in crawls/shop" in line for line in said)
        terminal.type(b"n\n")
        assert terminal.wait() == 1
    assert frontier.exists()
    with on_terminal("delete", "shop", cwd=tmp_path, columns=200) as terminal:
        terminal.until(lambda lines: any("Delete it?" in line for line in lines))
        terminal.type(b"y\n")
        assert terminal.wait() == 0
    assert not frontier.exists()


def test_delete_rejects_a_running_crawl(tmp_path: Path) -> None:
    with SimWeb(sites=1, pages_per_site=60) as web:
        folder = tmp_path / "job"
        process = start(folder, web, "--delay", "0.2")
        try:
            until(lambda: sum(stored(folder).values()) > 1)
            refused = gossamer("delete", str(folder), "--results", "--yes", cwd=tmp_path)
            assert refused.returncode == 1
            assert b"is running" in refused.stderr
            assert b"gossamer stop" in refused.stderr
            assert (folder / "pages.jsonl").exists()
            assert (folder / "frontier.db").exists()
        finally:
            kill_tree(process)


@pytest.fixture(params=["redis", "postgresql", "mysql", "folder"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        (tmp_path / "shared").mkdir()
        return f"folder:{tmp_path / 'shared'}?shards=2"
    names = {"redis": "redis_server", "postgresql": "postgres_server", "mysql": "maria_server"}
    server: RedisServer | SqlServer = request.getfixturevalue(names[request.param])
    return server.url


def test_a_job_of_a_fleet(address: str, web: SimWeb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(delay=0.0, allow_private=True, robots=False, sink=(f"jsonl:{tmp_path / 'results'}",))

    async def make(job: str) -> int:
        """Number of known URLs; on a folder 0 until a worker has claimed a shard."""
        fleet = await create_fleet(address, job, settings)
        await begin(fleet, settings, web.seeds)
        known = (await fleet.counts()).known
        await fleet.aclose()
        return known

    async def run() -> None:
        others = await list_jobs(address)
        await make("gone")
        known = await make("stays")
        await join_fleet(address, "gone", tmp_path / "home", name="w1", own_results=True)
        worker = await open_fleet(address, "gone", worker="w2")
        await worker.beat(Heartbeat(worker="w2"))
        async with open_job("gone", address) as job:
            with pytest.raises(JobRunning, match="w2"):
                await job.remove()
        await worker.beat(Heartbeat(worker="w2", left=True))
        await worker.aclose()
        async with open_job("gone", address) as job:
            removed = await job.remove()
        assert removed.was_there
        assert removed.results == tmp_path / "results"
        assert removed.elsewhere == ()
        with pytest.raises(JobMissing):
            await open_fleet(address, "gone")
        assert await list_jobs(address) == sorted([*others, "stays"])
        other = await open_fleet(address, "stays")
        assert (await other.counts()).known == known
        await other.add([Request("http://more.example/", 7, "more.example")])
        await other.aclose()
        async with open_job("stays", address) as job:
            removed = await job.remove(results=True)
        assert removed.results is None
        assert removed.elsewhere == ()
        assert await list_jobs(address) == others

    asyncio.run(run())
    assert not (tmp_path / "results" / "segments").exists()


def test_delete_of_a_missing_job_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def run() -> None:
        with pytest.raises(ConfigError):
            async with open_job("nothing"):
                pass

    asyncio.run(run())
    refused = gossamer("delete", "nothing", "--yes", cwd=tmp_path)
    assert refused.returncode == 2
    assert list(tmp_path.iterdir()) == []
