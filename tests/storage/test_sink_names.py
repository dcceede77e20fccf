from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gossamer.clock import SystemClock
from gossamer.engine.commit import FleetStore, OwnerStore, Result
from gossamer.engine.stats import Stats
from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.frontier.embedded.sqlite import open_sqlite
from gossamer.job_folder import save_settings
from gossamer.model import Outcome, PageRow, Record, Request
from gossamer.settings import Settings, build
from gossamer.storage import csv, jsonl, sqlite
from gossamer.storage.base import SPOOL, TABLES
from gossamer.storage.jsonl import JsonlSink
from gossamer.storage.registry import check_sinks, fleet_sinks, keeps_pages, open_sinks, result_files
from gossamer.storage.segments import SegmentSink, current_records
from gossamer.storage.warc import records
from gossamer.storage.warc.sink import WarcSink

DOCUMENT = Path(__file__).parents[2] / "docs" / "howto" / "write-a-sink.md"
SINK, SUITE = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that offers the sink of the document."""
    place = tmp_path / "site"
    (place / "custom-1.0.dist-info").mkdir(parents=True)
    (place / "my_package.py").write_text(SINK)
    (place / "custom-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: custom\nVersion: 1.0\n")
    (place / "custom-1.0.dist-info" / "entry_points.txt").write_text("[gossamer.sinks]\ntitles = my_package:Titles\n")
    monkeypatch.syspath_prepend(str(place))
    yield place
    sys.modules.pop("my_package", None)


def test_unknown_sinks_are_refused_with_the_known_names() -> None:
    for name in ("nosuch", "nosuch:/x", "warcs"):
        with pytest.raises(ConfigError, match=name) as caught:
            check_sinks(["jsonl", name])
        assert "warc:/path" in caught.value.hint
    for name in ("warc:relative", "folder:x", "jsonl:x", "folder"):
        with pytest.raises(ConfigError, match="unknown sink") as caught:
            check_sinks([name])
        assert "use " in caught.value.hint
    with pytest.raises(ConfigError, match="twice"):
        check_sinks(["warc", "jsonl", "warc"])
    check_sinks(["jsonl", "warc", "warc:/x", "folder:/x", "jsonl:/x"])


def test_the_registry_lists_the_files_of_every_format() -> None:
    suffixes = jsonl.SUFFIXES.values()
    written = {name + suffix for name in (jsonl.PAGES, jsonl.ITEMS) for suffix in suffixes}
    written |= {csv.PAGES, csv.ITEMS, *(sqlite.FILE + suffix for suffix in ("", "-wal", "-shm", "-journal"))}
    assert set(result_files()) == written | {records.FOLDER, TABLES, SPOOL}


def test_sinks_are_opened_in_order(tmp_path: Path, package: Path) -> None:
    settings = Settings(sink=("warc", "titles:titles.db", "jsonl", f"warc:{tmp_path}/elsewhere"))
    check_sinks(settings.sink)
    sinks = open_sinks(settings, tmp_path, {})
    assert [type(sink).__name__ for sink in sinks] == ["WarcSink", "Titles", "JsonlSink", "WarcSink"]
    assert [type(sink).__name__ for sink in fleet_sinks(settings, tmp_path, "one")] == [
        "WarcSink",
        "Titles",
        "WarcSink",
    ]
    assert keeps_pages(settings.sink)
    assert not keeps_pages(["jsonl", "titles:titles.db"])

    async def run() -> None:
        for sink in sinks:
            await sink.write([record(1)])
            await sink.aclose()

    asyncio.run(run())
    assert urls(tmp_path / "titles.db") == ["http://e.example/1"]
    assert len(list(tmp_path.rglob("*.warc.gz"))) == 2


def test_a_crawl_writes_to_the_sink_of_a_package(tmp_path: Path, package: Path) -> None:
    """In its own process, as a user would have it."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gossamer", "crawl", "http://127.0.0.1:9/", "--job", str(tmp_path / "job")),
            *("--sink", "titles:titles.db", "--allow-private", "--no-robots", "--tries", "1"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin", "PYTHONPATH": ":".join([str(package), *sys.path])},
    )
    assert urls(tmp_path / "job" / "titles.db") == ["http://127.0.0.1:9/"], done.stderr


def test_documented_example_sink_passes_the_suite(tmp_path: Path, package: Path) -> None:
    (tmp_path / "test_titles.py").write_text(SUITE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_titles.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ":".join([str(package), *sys.path])},
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout or "skipped" in done.stdout, done.stdout


def urls(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [url for (url,) in db.execute("select url from pages")]


class Full:
    """A sink that is full for a while, or fails for good."""

    def __init__(self, times: int, kind: type[SinkError] = SinkFull) -> None:
        self.times = times
        self.kind = kind
        self.closed = False

    async def write(self, records: object) -> dict[str, int]:
        self.times -= 1
        if self.times >= 0:
            raise self.kind("no space", hint="wait")
        return {}

    async def rewind(self, marks: object) -> None:
        pass

    async def aclose(self) -> None:
        self.closed = True
        if self.kind is not SinkFull:
            raise self.kind("not all of it is stored")


def record(number: int) -> Record:
    return Record(key=number, token=1, page=PageRow(url=f"http://e.example/{number}", fetched_at=1.0))


async def leased(frontier: EmbeddedFrontier) -> Result:
    await frontier.add([Request("http://e.example/1", 1, "e.example")])
    (lease,) = (await frontier.lease(1, batch=1, seconds=60)).leases
    outcome = Outcome(site=lease.site, lane=lease.lane, token=lease.token, key=1, status="done")
    return Result(outcome, record(1))


def test_full_sink_makes_the_others_rewind(tmp_path: Path) -> None:
    """F60. Each has the page once when there is room again."""
    settings = Settings(delay=0.0)

    async def run() -> None:
        frontier = open_sqlite(tmp_path / "frontier.db", settings, clock=SystemClock())
        warc = WarcSink(tmp_path / "archive", {}, prefix="job", max_bytes=10**9, home=tmp_path)
        store = OwnerStore(frontier, [JsonlSink(tmp_path, {}), warc, Full(2)], Stats(SystemClock()))
        result = await leased(frontier)
        for _ in range(2):
            with pytest.raises(SinkFull):
                await store.commit([result], [])
            assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.suffix in (".jsonl", ".open")) == 0
        assert (await store.commit([result], [])).accepted == 1
        marks = dict(frontier.marks)
        await store.aclose()
        await frontier.aclose()
        assert {name: (tmp_path / name).stat().st_size for name in marks} == marks

    asyncio.run(run())
    assert len((tmp_path / "pages.jsonl").read_text().splitlines()) == 1
    assert len(list(tmp_path.glob("archive/*.warc.gz"))) == 1


def test_failed_sink_stops_the_job_and_rewinds_the_others(tmp_path: Path) -> None:
    """The next run, with the sink fixed, has the page once in each; a sink that fails to close fails alone."""
    settings = Settings(delay=0.0)

    async def run(times: int) -> None:
        frontier = open_sqlite(tmp_path / "frontier.db", settings, clock=SystemClock())
        last = Full(0)
        sinks: list[Any] = [JsonlSink(tmp_path, frontier.marks), Full(times, SinkError), last]
        store = OwnerStore(frontier, sinks, Stats(SystemClock()))
        result = await leased(frontier)
        if times:
            with pytest.raises(SinkError):
                await store.commit([result], [])
        else:
            assert (await store.commit([result], [])).accepted == 1
        with pytest.raises(SinkError, match="not all of it"):
            await store.aclose()
        assert last.closed
        await frontier.aclose()

    asyncio.run(run(1))
    assert (tmp_path / "pages.jsonl").read_bytes() == b""
    asyncio.run(run(0))
    assert len((tmp_path / "pages.jsonl").read_bytes().splitlines()) == 1


def test_settings_with_a_password_are_for_their_owner_alone(tmp_path: Path) -> None:
    for folder, password, mode in (("a", "", 0o644), ("b", ":${NAME}", 0o644), ("c", ":secret", 0o600)):
        save_settings(tmp_path / folder, Settings(sink=(f"mysql://user{password}@host/db",)))
        assert (tmp_path / folder / "job.toml").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ({"headers": {"Authorization": "Bearer hush"}}, 0o600),
        ({"headers": {"X-Whatever": "hush"}}, 0o600),
        ({"headers": {"Authorization": "${BEARER}"}}, 0o644),
        ({"header_sets": ({"Cookie": "a=b"},)}, 0o600),
        ({"sites": {"x.org": {"auth": "me:hush"}}}, 0o600),
        ({"sites": {"x.org": {"auth": "me:${HUSH}"}}}, 0o644),
        ({"sites": {"x.org": {"headers": {"X-Api-Key": "hush"}}}}, 0o600),
        ({"proxy": ("http://me:hush@proxy:3128",)}, 0o600),
    ],
)
def test_settings_with_a_secret_of_any_kind_are_for_their_owner_alone(
    tmp_path: Path, values: dict[str, Any], mode: int
) -> None:
    """H66: also where an earlier job.toml, or half of one that a kill left, could be read by all."""
    (tmp_path / "job.toml.new").touch(0o644)
    save_settings(tmp_path, build(values))
    assert (tmp_path / "job.toml").stat().st_mode & 0o777 == mode


def test_a_worker_of_a_fleet_writes_only_to_the_sinks_that_have_not_yet(tmp_path: Path) -> None:
    async def run() -> None:
        frontier = open_sqlite(tmp_path / "frontier.db", Settings(delay=0.0), clock=SystemClock())
        store = FleetStore(frontier, [SegmentSink(tmp_path, "one"), Full(2)])
        result = await leased(frontier)
        for _ in range(2):
            with pytest.raises(SinkFull):
                await store.commit([result], [])
        assert (await store.commit([result], [])).accepted == 1
        await store.aclose()
        await frontier.aclose()

    asyncio.run(run())
    (segment,) = (tmp_path / "segments").iterdir()
    assert len(segment.read_text().splitlines()) == len(list(current_records(tmp_path))) == 1


def test_files_of_an_earlier_version_are_continued(tmp_path: Path) -> None:
    """A new column is added to a table, but not to an existing CSV file."""
    with closing(sqlite3.connect(tmp_path / "pages.db")) as db:
        db.execute("create table pages (key integer primary key, token integer, url text)")
        db.execute("insert into pages values (7, 1, 'http://old.example/')")
        db.commit()
    (tmp_path / "pages.csv").write_bytes(b"url,status\r\n")
    settings = Settings(sink=("sqlite", "csv"))

    async def run() -> None:
        for sink in open_sinks(settings, tmp_path, {"pages.csv": 12}):
            await sink.write([record(1)])
            await sink.aclose()

    asyncio.run(run())
    assert urls(tmp_path / "pages.db") == ["http://e.example/1", "http://old.example/"]
    assert (tmp_path / "pages.csv").read_text().splitlines() == ["url,status", "http://e.example/1,0"]


def test_a_304_leaves_row_and_items_in_sqlite(tmp_path: Path) -> None:
    async def run() -> None:
        (sink,) = open_sinks(Settings(sink=("sqlite",)), tmp_path, {})
        for token, status, items in ((1, 200, ({"n": 1},)), (2, 304, ())):
            page = PageRow(url="http://e.example/1", title="one" if items else "", status=status)
            await sink.write([Record(key=1, token=token, page=page, items=items)])
        await sink.aclose()

    asyncio.run(run())
    with closing(sqlite3.connect(tmp_path / "pages.db")) as db:
        assert db.execute("select title, status, item from pages join items using (key)").fetchall() == [
            ("one", 200, '{"n":1}')
        ]
