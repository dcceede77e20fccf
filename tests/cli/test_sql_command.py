"""The command `sql`: a job's files as tables, without access to anything else."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gossamer.cli import gossamer
from gossamer.errors import ConfigError
from gossamer.results.sql import run_query
from gossamer.settings import Settings
from gossamer.storage.registry import open_sinks
from gossamer.storage.request_log import RequestLog, SentRequest
from gossamer.storage.segments import SegmentSink
from gossamer.testing.sink_writer import visit
from gossamer.testing.sinks import HOSTILE, hostile

KINDS = [
    "jsonl",
    "jsonl:zstd",
    "jsonl:gzip",
    "csv",
    "parquet",
    "parquet warc",
    "parquet?by=day,site",
    "log",
    "segments",
    "sqlite",
]


def store(folder: Path, kind: str) -> None:
    """Two pages, one of them twice, in several calls; and hostile ones."""
    batches = [
        [visit(0), visit(1)],
        [hostile(100 + number, text) for number, text in enumerate(HOSTILE)],
        [visit(0, token=9, title="later", fetched_at=1_700_100_000.0)],
    ]

    async def run() -> None:
        names = "parquet" if kind == "log" else kind
        fleet = [SegmentSink(folder, "one")] if kind == "segments" else None
        sinks = fleet or open_sinks(Settings(sink=tuple(names.split())), folder, {})
        for batch in batches:
            for sink in sinks:
                await sink.write(batch)
        for sink in sinks:
            if kind != "log":
                await sink.aclose()
        trail = RequestLog(folder, "w 1")
        trail.note(SentRequest(url="http://site.example/robots.txt", at=1_700_000_000.5, status=404, latency=0.25))
        await trail.aclose()

    asyncio.run(run())


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run_query(folder, query)][1:]


@pytest.mark.parametrize("kind", KINDS)
def test_pages_items_and_requests_are_tables_for_every_sink(tmp_path: Path, kind: str) -> None:
    store(tmp_path, kind)
    expected = [("http://site.example/page/00000", "later"), ("http://site.example/page/00001", "Page 1")]
    assert rows(tmp_path, "SELECT url, title FROM pages WHERE site = 'site.example' ORDER BY 1") == expected
    visits = 2 if kind == "sqlite" else 3
    said = rows(tmp_path, "SELECT count(*), sum(status) FROM visits WHERE site = 'site.example'")
    assert said == [(visits, 200 * visits)]
    assert rows(tmp_path, "SELECT strftime(max(fetched_at), '%d %H:%M:%S') FROM pages") == [("16 02:00:00",)]
    titles = dict(
        rows(tmp_path, "SELECT split_part(url, '/', 4)::INT, title FROM pages WHERE site = 'hostile.example'")
    )
    assert titles == {100 + number: text for number, text in enumerate(HOSTILE)}
    request = ("w%201", "site.example", 404, 0.25)
    assert rows(tmp_path, "SELECT worker, site, status, latency FROM requests") == [request]
    if kind != "csv":
        found = rows(tmp_path, "SELECT item FROM items WHERE (item->>'number')::INT < 2")
        count = 3 if kind.startswith("jsonl") else 2
        assert sorted(json.loads(item)["number"] for (item,) in found) == [0, 0, 1][-count:]
    if kind == "parquet warc":
        assert rows(tmp_path, "SELECT count(*) FROM pages WHERE warc_file LIKE 'archive/%'")[0][0] > 2


def test_a_csv_file_of_an_earlier_version_has_fewer_columns(tmp_path: Path) -> None:
    (tmp_path / "pages.csv").write_bytes(b"url,status,title,fetched_at\r\nhttp://a.example/,200,'=1,1700000000.0\r\n")
    assert rows(tmp_path, "SELECT url, status, title, cut FROM pages") == [("http://a.example/", 200, "=1", "")]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_text('{folder}/job.toml')",
        "SELECT * FROM '{folder}/../outside.jsonl'",
        "SELECT * FROM read_json('{folder}/pages.jsonl', filename = true), glob('{folder}/*')",
        "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
        "COPY (SELECT 1) TO '{folder}/pages.jsonl' (USE_TMP_FILE false)",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/pages.jsonl' (USE_TMP_FILE false)",
        "CREATE TABLE x AS SELECT 1",
        "SELECT 1; DROP VIEW pages",
        "SET enable_external_access = true",
        "ATTACH '{folder}/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA threads = 1",
        "SELECT nonsense",
        "SELEC",
        ";",
    ],
)
def test_sql_is_read_only_and_limited_to_the_job(tmp_path: Path, query: str) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    store(folder, "jsonl")
    (folder / "job.toml").write_text("secret = 1")
    (tmp_path / "outside.jsonl").write_text('{"a": 1}\n')
    before = (folder / "pages.jsonl").read_bytes()
    assert list(run_query(folder, "SELECT 1 AS one")) == [["one"], (1,)]
    with pytest.raises(ConfigError):
        list(run_query(folder, query.format(folder=folder)))
    assert (folder / "pages.jsonl").read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {"pages.jsonl", "items.jsonl", "trail", "job.toml"}


def test_sql_prints_a_table_json_or_csv(tmp_path: Path) -> None:
    store(tmp_path, "jsonl")

    def said(*words: str) -> str:
        done = CliRunner().invoke(gossamer, ["sql", str(tmp_path), *words], standalone_mode=False)
        assert done.exception is None, done.exception
        return done.stdout

    query = "SELECT status, title, fetched_at FROM pages WHERE url LIKE '%00001' OR title LIKE '=H%' ORDER BY title"
    assert said(query).splitlines() == [
        "status  title                              fetched_at",
        "------  ---------------------------------  -------------------",
        '200     =HYPERLINK("http://evil.example")  2023-11-14 22:13:20',
        "200     Page 1                             2023-11-14 22:13:21",
    ]
    assert json.loads(said(query, "--json").splitlines()[1])["title"] == "Page 1"
    assert next(csv.reader(io.StringIO(said(query, "--csv").splitlines()[1])))[1].startswith("'=H")
    assert "\x1b" not in said("SELECT title FROM pages")
    assert "requests" in said()
    assert "fetched_at" in said()


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "segments"])
def test_empty_tables_exist(tmp_path: Path, kind: str) -> None:
    page = msgspec.structs.replace(visit(0), items=())

    async def run() -> None:
        sink = SegmentSink(tmp_path, "w") if kind == "segments" else open_sinks(Settings(sink=(kind,)), tmp_path, {})[0]
        await sink.write([page])
        await sink.aclose()

    asyncio.run(run())
    assert rows(tmp_path, "SELECT (SELECT count(*) FROM items), (SELECT count(*) FROM requests), url FROM pages") == [
        (0, 0, page.page.url)
    ]


def test_sql_on_a_folder_without_a_job_fails(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no data in"):
        list(run_query(tmp_path, "SELECT 1"))
    (tmp_path / "pages.db").touch()
    with pytest.raises(ConfigError, match="sqlite"):
        list(run_query(tmp_path, "SELECT 1"))
