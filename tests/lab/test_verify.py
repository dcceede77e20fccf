"""`gossamer verify`: passes for correct set-ups, and detects faulty ones."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from gossamer.cli import named
from gossamer.errors import ConfigError, JobMissing
from gossamer.frontier.backends import create_fleet, list_jobs, open_fleet, remove_job
from gossamer.lab.verify import isolated_sinks
from gossamer.model import Request
from gossamer.settings import Settings
from gossamer.testing.servers import RedisServer, SqlServer

SMALL = ("--sites", "6", "--pages", "6", "--delay", "0.1", "--lease-seconds", "2", "--workers", "2", "--json")


def verify(folder: Path, *words: str, path: Path | None = None) -> tuple[int, dict[str, Any], str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GOSSAMER_")}
    if path is not None:
        environment["PYTHONPATH"] = f"{path}:{environment.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "gossamer", "verify", *SMALL, "--folder", str(folder), *words],
        capture_output=True, text=True, timeout=240, check=False, env=environment,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_verify_passes_for_a_fleet_under_kills_and_cleans_up(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    code, found, said = verify(tmp_path, "--frontier", redis_server.url, "--kills", "1", "--stops", "1")
    assert code == 0, (found, said)
    assert found["verified"] is True
    assert found["blows"], said
    assert found["pages"] > 36
    assert found["least_gap"] >= 0.1
    assert list(tmp_path.iterdir()) == []
    with redis.Redis.from_url(redis_server.url) as store:
        assert store.dbsize() == 0


def test_verify_detects_lost_and_duplicate_pages_of_a_sink(tmp_path: Path) -> None:
    """An installed third-party package with a sink."""
    package, folder = tmp_path / "package", tmp_path / "proof"
    (package / "leaky-1.dist-info").mkdir(parents=True)
    folder.mkdir()
    (package / "leaky-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: leaky\nVersion: 1\n")
    (package / "leaky-1.dist-info" / "entry_points.txt").write_text("[gossamer.sinks]\nleaky = leaky:Leaky\n")
    (package / "leaky.py").write_text(LEAKY)
    code, found, said = verify(
        folder, "--sink", "leaky", "--workers", "1", "--sites", "2", "--kills", "0", "--stops", "0", path=package
    )
    assert code == 1, said
    assert found["verified"] is False
    assert len(found["lost"]) == 1
    assert list(found["stored_twice"].values()) == [2]
    assert (found["impolite"], found["fetched_again"], found["fault"]) == ([], 0, "")
    assert list(folder.iterdir()) == []


@pytest.mark.long
def test_interrupted_verify_cleans_up(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "verify", *SMALL, "--folder", str(tmp_path), "--frontier", redis_server.url],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not any(path.stat().st_size for path in tmp_path.glob("*/requests.log")):
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait(120) == 130
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.iterdir()) == []
    with redis.Redis.from_url(redis_server.url) as store:
        assert store.dbsize() == 0


LEAKY = """
from gossamer.storage.jsonl import JsonlSink

class Leaky(JsonlSink):
    def __init__(self, opening):
        super().__init__(opening.folder, opening.marks or {})
        self.seen = 0

    async def write(self, records):
        kept = []
        for record in records:
            self.seen += 1
            kept += [record] * {3: 0, 5: 2}.get(self.seen, 1)
        return await super().write(kept)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "sinks"),
    [
        ("postgres_server", ("warc", "{url}")),
        ("maria_server", ("parquet", "{url}")),
        ("folder", ("jsonl", "warc")),
        ("embedded", ("jsonl:zstd", "csv", "sqlite", "warc", "parquet")),
    ],
)
def test_verify_supports_every_frontier_and_readable_sink(
    kind: str, sinks: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(kind) if kind.endswith("server") else None
    share, place = tmp_path / "share", tmp_path / "place"
    share.mkdir()
    place.mkdir()
    url = server.url if server is not None else f"folder:{share}?shards=4" if kind == "folder" else ""
    words = [word for sink in sinks for word in ("--sink", sink.format(url=url))]
    code, found, said = verify(place, *(("--frontier", url) if url else ()), *words, "--kills", "3")
    assert code == 0, (found, said)
    assert list(place.iterdir()) == []
    assert [path for path in share.rglob("*") if path.is_file()] == []
    assert server is None or [name for name in _tables(server) if "verify" in name] == []


def _tables(server: SqlServer) -> list[str]:
    return [str(name).lower() for (name,) in server.ask("SELECT table_name FROM information_schema.tables")]


def test_verify_does_not_touch_an_existing_job(redis_server: RedisServer, tmp_path: Path) -> None:
    asyncio.run(_make(redis_server.url, "mine"))
    words = ["--frontier", redis_server.url, "--job", "mine", "--folder", str(tmp_path)]
    with pytest.raises(ConfigError, match="already"):
        CliRunner().invoke(named("verify"), words, catch_exceptions=False)
    assert "mine" in asyncio.run(list_jobs(redis_server.url))
    assert asyncio.run(remove_job(redis_server.url, "mine"))


@pytest.mark.parametrize("words", [("--frontier", "memory:"), ("--sink", "warc:/somewhere"), ("--job", "a/b")])
def test_verify_rejects_unsupported_options(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        CliRunner().invoke(named("verify"), [*words, "--folder", str(tmp_path)], catch_exceptions=False)
    assert refused.value.hint
    assert list(tmp_path.iterdir()) == []


def test_verify_isolates_sinks() -> None:
    assert isolated_sinks(["jsonl", "postgresql://h/d"], "t") == ["jsonl", "postgresql://h/d?table=t"]
    assert isolated_sinks(["mysql://h/d?ssl=1"], "t") == ["mysql://h/d?ssl=1&table=t"]
    for name in ("mysql://h/d?table=pages", "parquet:/data", "s3://bucket/x", "folder:/data", "jsonl:/data"):
        with pytest.raises(ConfigError):
            isolated_sinks([name], "t")


@pytest.mark.parametrize("kind", ["redis_server", "postgres_server", "maria_server", "folder"])
def test_verify_removes_only_its_own_job(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server = None if kind == "folder" else request.getfixturevalue(kind)
    url = f"folder:{tmp_path}?shards=2" if server is None else server.url
    for job in ("gone", "stays"):
        asyncio.run(_make(url, job))
    weight = _rows(server, tmp_path)
    assert asyncio.run(remove_job(url, "gone"))
    assert not asyncio.run(remove_job(url, "gone"))
    with pytest.raises(JobMissing):
        asyncio.run(open_fleet(url, "gone"))
    assert asyncio.run(_queued(url, "stays")) == 20
    assert _rows(server, tmp_path) == pytest.approx(weight / 2, rel=0.1)
    assert asyncio.run(remove_job(url, "stays"))
    assert _rows(server, tmp_path) == 0


def _rows(server: RedisServer | SqlServer | None, folder: Path) -> int:
    """The stored data of these two jobs."""
    if isinstance(server, RedisServer):
        with redis.Redis.from_url(server.url) as store:
            return sum(1 for job in ("gone", "stays") for _ in store.scan_iter(f"gossamer:{{{job}*"))
    if server is None:
        return sum(1 for path in folder.rglob("*") if path.is_file())
    mine = (
        "SELECT s.shard FROM gossamer_shards s JOIN gossamer_jobs j ON j.job = s.job WHERE j.name IN ('gone', 'stays')"
    )
    tables = ("counters", "sites", "seen", "queue", "done", "leases", "workers", "shards")
    counts = " + ".join(f"(SELECT COUNT(*) FROM gossamer_{name} WHERE shard IN ({mine}))" for name in tables)
    return int(server.ask(f"SELECT {counts}")[0][0])


async def _make(url: str, job: str) -> None:
    fleet = await create_fleet(url, job, Settings(delay=0, robots=False), worker="w")
    try:
        await fleet.add([Request(f"http://s{n % 4}.example/{n}", n + 1, f"s{n % 4}.example") for n in range(20)])
        await fleet.lease(1, batch=2, seconds=60)
    finally:
        await fleet.aclose()


async def _queued(url: str, job: str) -> int:
    fleet = await open_fleet(url, job)
    try:
        counts = await fleet.counts()
        return counts.queued + counts.leased
    finally:
        await fleet.aclose()
