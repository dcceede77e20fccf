"""Archives of workers on several machines in one folder, opened by the job's name, without duplicates."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from gossamer.cli.results import export, replay
from gossamer.frontier.backends import create_fleet
from gossamer.jobs.find import find_stored
from gossamer.jobs.seeding import begin
from gossamer.jobs.worker import join_fleet
from gossamer.settings import Settings
from gossamer.storage.warc.reader import warc_files
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import rows
from rawweb import RawWeb, reply

JOB = "news"


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    return redis_server


def words(seed: int) -> str:
    random_ = random.Random(seed)
    return " ".join("".join(random_.choices("abcdefgh", k=5)) for _ in range(300))


def html(title: str, text: str, *hrefs: str) -> bytes:
    links = "".join(f'<a href="{href}">x</a>' for href in hrefs)
    return reply(f"<title>{title}</title><nav>{links}</nav><h1>{title}</h1><p>{text}</p>")


async def work(server: RedisServer, job: str, seed: str, folder: Path, settings: Settings) -> None:
    """The whole life of a worker that keeps its own in `folder`."""
    fleet = await create_fleet(server.url, job, settings)
    await begin(fleet, settings, [seed])
    await fleet.aclose()
    await join_fleet(server.url, job, folder, name=folder.name, signals=lambda stop: None)


def test_a_job_is_found_by_its_name_whichever_machines_kept_its_pages(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of their folders has the job's name; what one kept is known to the next, so `--dedupe` keeps it once."""
    with RawWeb() as web:
        seed = f"http://127.0.0.1:{web.port}/"
        web.answers = {
            "/robots.txt": reply("", status="404 Not Found"),
            "/": html("Home", words(1), "/a", "/b", "/c"),
            "/a": html("Story", words(2)),
            "/b": html("The story, printed", words(2)),
            "/c": html("Other", words(3)),
        }

        async def crawl() -> None:
            common: dict[str, Any] = {
                "delay": 0.0,
                "allow_private": True,
                "dedupe": True,
                "sink": (f"warc:{tmp_path / 'shared'}",),
            }
            await work(server, JOB, seed, tmp_path / "one", Settings(max_pages=2, **common))
            await work(server, JOB, seed, tmp_path / "two", Settings(max_pages=10, **common))
            # Another job, whose name begins with this one's, in the same folder.
            await work(server, f"{JOB}-2", seed, tmp_path / "one", Settings(max_pages=1, **common))

        asyncio.run(crawl())
    monkeypatch.chdir(tmp_path)
    place = asyncio.run(find_stored(JOB, server.url))
    assert len(warc_files(place)) == 2
    found = {record.page.url.removeprefix(seed): record.page for record in place.records()}
    assert set(found) == {"", "a", "b", "c"}
    assert [url for url, page in found.items() if page.copy_of] == ["b"]
    fleet = [JOB, "--frontier", server.url]
    replay.main([*fleet, "--extract", "title=h1::text", "--out", "again", "--quiet"], standalone_mode=False)
    export.main([*fleet, "--format", "warc", "--out", "all.warc.gz"], standalone_mode=False)
    assert sorted(row["title"] for row in rows(tmp_path / "again" / "items.jsonl")) == ["Home", "Other", "Story"]
