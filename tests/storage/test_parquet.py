from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gossamer.clock import ManualClock
from gossamer.errors import ConfigError, SinkError
from gossamer.model import PageRow, Record
from gossamer.settings import Settings
from gossamer.storage import parquet_files as files
from gossamer.storage.parquet import SEAL_SECONDS, ParquetSink
from gossamer.storage.parquet_files import SCHEMA as ITEM_SCHEMA
from gossamer.storage.registry import check_sinks, finish_archives, fleet_sinks, open_sinks
from gossamer.testing.sink_writer import visit
from gossamer.testing.sinks import small_disk

FIRST_DAY = 1_767_225_600.0
NO_SITE = "__HIVE_DEFAULT_PARTITION__"
"""Newer versions of DuckDB take it for NULL, older ones for a name."""


def store(folder: Path, *batches: list[Record], sink: str = "parquet", marks: Mapping[str, int] | None = None) -> Any:
    """Write as a crawl would, one batch after another; the marks."""

    async def run() -> dict[str, int]:
        found = dict(marks or {})
        opened = open_sinks(Settings(sink=tuple(sink.split())), folder, found)
        for batch in batches:
            for one in opened:
                found.update(await one.write(batch))
        for one in opened:
            await one.aclose()
        return found

    return asyncio.run(run())


def ask(query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as database:
        return database.sql(query).fetchall()


def numbers(folder: Path) -> list[int]:
    return sorted(record.key - 1 for record in files.read(folder / "parquet"))


def left_log(folder: Path, count: int = 6) -> Path:
    """A log as a crawl leaves it that was killed."""
    sink = ParquetSink(folder / "parquet", {}, prefix=folder.name, home=folder)
    asyncio.run(sink.write([visit(number) for number in range(count)]))
    (log,) = files.logs(folder / "parquet")
    return log


def test_columns_have_types_and_none_is_missing(tmp_path: Path) -> None:
    page = PageRow(
        url="https://a.example:8443/x", status=200, fetched_at=FIRST_DAY + 0.25, elapsed=0.5, bytes=7, links=3
    )
    store(tmp_path, [Record(key=(1 << 63) - 1, token=9, page=page, items=({"price": 3.5}, {"tags": ["a"]}))])
    pages, items = (f"'{tmp_path}/parquet/{kind}/*.parquet'" for kind in ("pages", "items"))
    types = {name: kind for name, kind, *_ in ask(f"DESCRIBE FROM {pages}")}
    assert {types[name] for name in ("key", "token", "status", "bytes", "links", "warc_offset")} == {"BIGINT"}
    assert types["fetched_at"] == "TIMESTAMP WITH TIME ZONE"
    assert (types["elapsed"], types["url"], types["warc_revisit"]) == ("DOUBLE", "VARCHAR", "BOOLEAN")
    assert ask(f"SELECT key, site, epoch(fetched_at), text, warc_file FROM {pages}") == [
        ((1 << 63) - 1, "a.example:8443", FIRST_DAY + 0.25, None, None)
    ]
    assert ask(f"SELECT number, item->>'price', item->>'$.tags[0]' FROM {items} ORDER BY number") == [
        (0, "3.5", None),
        (1, None, "a"),
    ]
    (record,) = files.read(tmp_path / "parquet")
    assert (record.page, record.items) == (page, ({"price": 3.5}, {"tags": ["a"]}))


def test_fields_of_items_have_columns_whose_types_stay(tmp_path: Path) -> None:
    """Also over a restart; fields without a type, or with an unusual name, are only in the JSON."""

    def items(number: int, *some: dict[str, Any]) -> Record:
        return Record(key=number, token=1, page=PageRow(url=f"http://a.example/{number}"), items=some)

    odd = {"url": "theirs", "a b": 1, "Price": 2, "tags": ["a"], "none": None, "x" * 99: 1, "'; DROP": "x", "a\0b": "x"}
    marks = store(tmp_path, [items(1, {"price": 10, "name": "one", "sold": True}), items(2, odd)])
    store(
        tmp_path, [items(3, {"price": "cheap", "name": 3, "late": 0.5}, {"price": 10.5, "huge": 10**400})], marks=marks
    )
    files_of_items = f"read_parquet('{tmp_path}/parquet/items/*.parquet', union_by_name = true)"
    types = {name: kind for name, kind, *_ in ask(f"DESCRIBE FROM {files_of_items}")}
    own = {name: kind for name, kind in types.items() if name not in ITEM_SCHEMA.names}
    assert own == {"price": "DOUBLE", "name": "VARCHAR", "sold": "BOOLEAN", "late": "DOUBLE", "huge": "DOUBLE"}
    assert ask(f"SELECT key, price, name, sold, late, url FROM {files_of_items} ORDER BY key, number") == [
        (1, 10.0, "one", True, None, "http://a.example/1"),
        (2, None, None, None, None, "http://a.example/2"),
        (3, None, None, None, 0.5, "http://a.example/3"),
        (3, 10.5, None, None, None, "http://a.example/3"),
    ]
    assert [record.items for record in files.read(tmp_path / "parquet")][1:] == [
        (odd,),
        ({"price": "cheap", "name": 3, "late": 0.5}, {"price": 10.5, "huge": 10**400}),
    ]


@pytest.mark.parametrize("names", ["warc parquet", "parquet warc", "parquet jsonl warc:{folder}/elsewhere"])
def test_each_row_has_the_location_of_its_body(tmp_path: Path, names: str) -> None:
    """In any order of the sinks, over several WARC files; revisits are marked."""
    folder = tmp_path / "job"
    batches = [[visit(number, size=3000), visit(number + 50, size=3000)] for number in range(4)]
    again = visit(0, size=3000, token=9, fetched_at=1_800_000_000.0)
    store(folder, *batches, [again], sink=names.format(folder=tmp_path))
    columns = "key, token, warc_file, warc_offset, warc_length, warc_revisit"
    rows = ask(f"SELECT {columns} FROM '{folder}/parquet/pages/*.parquet'")
    assert sorted(key - 1 for key, *_ in rows) == [0, 0, 1, 2, 3, 50, 51, 52, 53]
    assert [(key, token) for key, token, *_, is_revisit in rows if is_revisit] == [(1, 9)]
    for key, _, name, offset, length, is_revisit in rows:
        with (folder / name).open("rb") as file:
            file.seek(offset)
            said = gzip.decompress(file.read(length))
        assert (b"WARC-Type: revisit" in said) == is_revisit
        assert (visit(key - 1, size=3000).body in said) == (not is_revisit)


def test_files_are_partitioned_by_day_and_site(tmp_path: Path) -> None:
    """H48. Whatever a site is called, its folder is one below the others."""
    hosts = ["a.example", "b.example:8080", "..", "%2e%2e", "[::1]", "x" * 300, ""]
    records = [
        Record(
            key=number,
            token=1,
            page=PageRow(url=f"http://{host}/{number}", fetched_at=FIRST_DAY + 80_000.0 * number),
            items=({"n": number},),
        )
        for number, host in enumerate(hosts)
    ]
    store(tmp_path, records, sink="parquet?by=day,site")
    for kind in ("pages", "items"):
        paths = [path.relative_to(tmp_path / "parquet" / kind) for path in tmp_path.rglob(f"{kind}/**/*.parquet")]
        assert {len(path.parts) for path in paths} == {3}
        assert len(paths) == len(hosts)
        assert ".." not in {part for path in paths for part in path.parts}
    # DuckDB reads the folder's name as the column; a truncated name is as long as a folder name may be.
    found = ask(
        f"SELECT key, day::VARCHAR, coalesce(nullif(site, '{NO_SITE}'), '')"
        f" FROM read_parquet('{tmp_path}/parquet/pages/**/*.parquet',"
        f" hive_partitioning = true, hive_types = {{day: DATE, site: VARCHAR}}) ORDER BY key"
    )
    assert [site for _, _, site in found] == [host[:200] for host in hosts]
    assert [day for _, day, _ in found] == [f"2026-01-0{1 + int(0.926 * number)}" for number in range(len(hosts))]
    assert [record.page.url for record in files.read(tmp_path / "parquet")] != []
    assert {record.page.url for record in files.read(tmp_path / "parquet")} == {one.page.url for one in records}


def test_killed_sealing_is_restarted(tmp_path: Path) -> None:
    """F62. Some files were there, in places that are not those of now, and the log was not yet gone."""
    log = left_log(tmp_path)
    size = log.stat().st_size
    kept = shutil.copy(log, tmp_path / "kept")
    files.seal(log, tmp_path / "parquet", by=("day",))
    shutil.copy(kept, log)
    shutil.rmtree(tmp_path / "parquet" / "items")
    (tmp_path / "parquet" / "pages" / "day=2023-11-14" / f".{log.stem}.parquet.ab.draft").write_bytes(b"PAR1")
    assert numbers(tmp_path) == list(range(6)), "what is in both counts once"
    marks = {str(log.relative_to(tmp_path)): size}
    assert store(tmp_path, [visit(6)], marks=marks).keys() > marks.keys()
    assert numbers(tmp_path) == list(range(7))
    assert ask(f"SELECT count(*), count(distinct key) FROM '{tmp_path}/parquet/pages/**/*.parquet'") == [(7, 7)]
    assert not files.logs(tmp_path / "parquet")
    assert not list(tmp_path.rglob("*.draft"))


def test_concurrent_sealing_of_a_log_is_safe(tmp_path: Path) -> None:
    """As on a shared folder without locks: the second has read the log when the first has just sealed it."""
    log = left_log(tmp_path)
    rows = list(files.rows_of(log))

    def late(_: Path) -> list[files.LogRow]:
        files.seal(log, tmp_path / "parquet")
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "rows_of", lambda path: (patch.undo(), late(path))[1])  # type: ignore[func-returns-value]
        files.seal(log, tmp_path / "parquet")
    assert numbers(tmp_path) == list(range(6))
    assert not list(tmp_path.rglob("*.draft"))


def test_truncated_log_stops_the_job_and_uncommitted_log_is_removed(tmp_path: Path) -> None:
    log = left_log(tmp_path)
    with pytest.raises(SinkError, match="part of the file is lost"):
        store(tmp_path, marks={f"parquet/{log.name}": 10**6})
    store(tmp_path, marks={})
    assert numbers(tmp_path) == []
    assert not files.logs(tmp_path / "parquet")


def test_file_numbers_are_not_reused_and_missing_files_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marks = store(tmp_path, [visit(0)])
    shutil.rmtree(tmp_path / "parquet" / "pages")
    later = store(tmp_path, [visit(1)], marks=marks)
    assert len(later) == 2
    assert "is missing" in caplog.text


def test_old_log_is_sealed_while_others_are_written(tmp_path: Path) -> None:
    clock = ManualClock()

    async def run() -> None:
        sink = ParquetSink(tmp_path / "parquet", {}, prefix="job", clock=clock)
        await sink.write([visit(0)])
        clock.advance(SEAL_SECONDS + 1)
        before = dict(await sink.write([visit(1)]))
        await sink.write([visit(2)])
        await sink.rewind(before)
        while len(files.logs(tmp_path / "parquet")) > 1:
            await asyncio.sleep(0.01)
        assert len(files.sealed(tmp_path / "parquet")) == 1
        assert numbers(tmp_path) == [0, 1]
        await sink.aclose()

    asyncio.run(run())
    assert numbers(tmp_path) == [0, 1]
    assert len(files.sealed(tmp_path / "parquet")) == 2


def test_unsealable_log_is_kept_and_the_crawl_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "pages").write_text("a file where a folder should be")
    marks = store(tmp_path, [visit(0)], [visit(1)])
    assert "cannot seal the log into Parquet files yet" in caplog.text
    (tmp_path / "parquet" / "pages").unlink()
    store(tmp_path, [visit(2)], marks=marks)
    assert numbers(tmp_path) == [0, 1, 2]


def test_sealing_frees_space_on_a_full_disk(tmp_path: Path) -> None:
    """F60. A log that could not be sealed when it was full is, when its space is needed."""
    with small_disk(tmp_path / "disk", 2_000_000) as disk:
        blocked, ballast = disk / "parquet" / "pages", disk / "ballast"

        async def run() -> None:
            sink = ParquetSink(disk / "parquet", {}, prefix="job", seal_bytes=100_000)
            blocked.write_text("a file where a folder should be")
            await sink.write([visit(number) for number in range(500)])
            await sink.write([visit(500)])
            blocked.unlink()
            free = os.statvfs(disk)
            ballast.write_bytes(b"x" * (free.f_bavail * free.f_bsize - 48 * 1024))
            await sink.write([visit(number) for number in range(501, 801)])
            await sink.aclose()

        asyncio.run(run())
        assert numbers(disk) == list(range(801))


def test_logs_of_dead_workers_are_sealed_at_the_end(tmp_path: Path) -> None:
    """And not those of the living, here or elsewhere."""
    settings, here = Settings(sink=("parquet",)), os.uname().nodename

    async def run() -> None:
        dead, living, other = (
            fleet_sinks(settings, tmp_path, worker)[0] for worker in (f"{here}-1", f"{here}-2", "elsewhere-1")
        )
        for number, sink in enumerate((dead, living, other)):
            await sink.write([visit(number)])
        log = next(path for path in files.logs(tmp_path / "parquet") if f"{here}-1-" in path.name)
        whole = log.read_bytes()
        # A process that dies lets go of its lock.
        del dead
        log.unlink()
        log.write_bytes(whole + whole[:40])
        finish_archives(settings, tmp_path, live=["elsewhere-1"])
        assert len(files.sealed(tmp_path / "parquet")) == 1
        assert len(files.logs(tmp_path / "parquet")) == 2

    asyncio.run(run())
    assert numbers(tmp_path) == [0, 1, 2]


def test_invalid_parquet_sink_names_are_refused() -> None:
    check_sinks(["parquet", "parquet:/x?by=site", "parquet?by=day"])
    for name in ("parquet:relative", "parquet?by=week", "parquet?by=day,day", "parquet?rows=3", "parquet?by="):
        with pytest.raises(ConfigError, match="parquet") as caught:
            check_sinks([name])
        assert "parquet?by=day,site" in caught.value.hint


def test_without_its_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gossamer.storage.parquet", "gossamer.storage.parquet_files"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr("gossamer.storage.parquet", raising=False)
    monkeypatch.delattr("gossamer.storage.parquet_files", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError) as caught:
        check_sinks(["parquet"])
    assert caught.value.hint == "pip install 'gossamer[parquet]'"
