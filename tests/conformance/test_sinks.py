from __future__ import annotations

import asyncio
import csv
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from fastwarc import ArchiveIterator, WarcRecordType
from warcio.archiveiterator import ArchiveIterator as Warcio

from gossamer.model import Record, Rejected
from gossamer.storage.jsonl import lines_of
from gossamer.storage.sqlite import SqliteSink
from gossamer.testing.sink_writer import visit
from gossamer.testing.sinks import Kept, SinkSuite

STRINGS = Path(__file__).parents[2] / "../shared/suites/hostile-strings/blns.json"


class _Ours(SinkSuite):
    def strings(self) -> Sequence[str]:
        if not STRINGS.exists():
            pytest.skip(f"{STRINGS} is not there: its strings are not checked")
        return [*super().strings(), *json.loads(STRINGS.read_text("utf-8"))]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


class TestJsonl(_Ours):
    opens = "gossamer.storage.jsonl:open_jsonl"

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        pages, items = lines(folder / "pages.jsonl"), lines(folder / "items.jsonl")
        assert len(items) == len(pages)
        of_page = {item["number"]: item for item in items}
        for page in pages:
            number = int(page["url"].split("/")[3 if "hostile" in page["url"] else -1])
            yield Kept(page["url"], page["title"], None, (of_page[number],))


class _Compressed(TestJsonl):
    """The same, read by the programs that people have."""

    suffix, program = "", ""
    test_what_write_returned_for_survives_a_kill = None  # type: ignore[assignment]
    test_a_later_visit_is_kept_too_or_takes_the_place = None  # type: ignore[assignment]

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        with tempfile.TemporaryDirectory() as plain:
            for name in ("pages.jsonl", "items.jsonl"):
                path = folder / (name + self.suffix)
                # zstd says of an empty file that it is none of its own.
                unpacked = subprocess.check_output([self.program, "-dc", path]) if path.stat().st_size else b""
                assert b"".join(lines_of(folder, name)) == unpacked
                (Path(plain) / name).write_bytes(unpacked)
            yield from super().read(Path(plain), urls)


class TestZstd(_Compressed):
    target, suffix, program = "zstd", ".zst", "zstd"

    @pytest.fixture(autouse=True)
    def _program(self) -> None:
        if shutil.which("zstd") is None:
            pytest.skip("zstd is not installed: JSON lines in zstd are not checked (scripts/services installs it)")


class TestGzip(_Compressed):
    target, suffix, program = "gzip", ".gz", "gzip"


class TestCsv(_Ours):
    opens = "gossamer.storage.csv:open_csv"

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        pages, items = table(folder / "pages.csv"), table(folder / "items.csv")
        assert len(pages[1:]) == len(items[1:])
        for page, item in zip(pages[1:], items[1:], strict=True):
            row = dict(zip(pages[0], page, strict=True))
            named = dict(zip(items[0], item, strict=True))
            assert named.pop("url") == row["url"]
            more = named.pop("more")
            fields: dict[str, Any] = {name: value for name, value in named.items() if value or name != ""}
            fields |= json.loads(more) if more else {}
            if "hostile" in row["url"]:
                # All have the columns of the first.
                fields = {name: value for name, value in fields.items() if name != items[0][1] or value}
            fields["number"] = int(fields["number"])
            yield Kept(row["url"], row["title"], None, (fields,))


def table(path: Path) -> list[list[str]]:
    """A CSV file, each cell as it was: without the apostrophe. None of them is one that a spreadsheet would run."""
    if not path.exists():
        return [[]]
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file)) or [[]]
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    return [[cell.removeprefix("'") for cell in row] for row in rows]


class TestSqlite(_Ours):
    opens = "gossamer.storage.sqlite:open_sqlite"
    exact, keeps_visits = False, False

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        with closing(sqlite3.connect(folder / "pages.db")) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            joined = "SELECT url, title, item, bytes, number FROM pages JOIN items USING (key)"
            for url, title, item, size, number in db.execute(joined):
                assert (type(size), number) == (int, 0)
                yield Kept(url, title, None, (json.loads(item),))

    def test_a_late_visit_does_not_replace_a_newer_one_nor_what_was_kept_aside_of_it(self, tmp_path: Path) -> None:
        def aside(record: Record, *names: str) -> Record:
            odd = [
                Rejected(url=record.page.url, field="price", error="no number", item={"name": name}) for name in names
            ]
            return msgspec.structs.replace(record, rejected=tuple(odd))

        async def run() -> None:
            sink = SqliteSink(tmp_path / "pages.db")
            await sink.write([aside(visit(0, token=8), "old", "older")])
            await sink.write([aside(visit(0, token=9, title="newer"), "new")])
            await sink.write([aside(visit(0, token=5, title="late"), "late"), aside(visit(1), "other")])
            await sink.aclose()

        asyncio.run(run())
        assert sorted(kept.title or "" for kept in self.read(tmp_path, ())) == ["Page 1", "newer"]
        with closing(sqlite3.connect(tmp_path / "pages.db")) as db:
            kept = [json.loads(item) for (item,) in db.execute("SELECT item FROM items_rejected ORDER BY item")]
        assert sorted(one["item"]["name"] for one in kept) == ["new", "other"]
        assert {one["field"] for one in kept} == {"price"}


class TestSegments(_Ours):
    opens = "gossamer.testing.sink_writer:open_segments"
    fleet, exact, keeps_visits = True, False, False

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        best: dict[int, dict[str, Any]] = {}
        for path in sorted((folder / "segments").iterdir()):
            for record in lines(path):
                if record["token"] > best.get(record["key"], {"token": 0})["token"]:
                    best[record["key"]] = record
        for record in best.values():
            yield Kept(record["page"]["url"], record["page"]["title"], None, tuple(record["items"]))


class TestTree(_Ours):
    opens = "gossamer.storage.tree:open_tree"
    target = "{folder}/tree"
    exact, keeps_visits = False, False

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        found = {path.name: path for path in (folder / "tree" / "htmls").rglob("*") if path.is_file()}
        for url in urls:
            path = found.get(hashlib.sha224(url.encode()).hexdigest()[:24])
            if path is not None:
                yield Kept(url, None, path.read_bytes())


def captures(folder: Path) -> Iterator[tuple[dict[str, Any], bytes | None]]:
    """The visits in the WARC files of a folder, by fastwarc: what their metadata says, and the body."""
    body: bytes | None = None
    for path in sorted([*folder.glob("*.warc.gz"), *folder.glob("*.warc.gz.open")]):
        for record in ArchiveIterator(str(path), parse_http=True):
            if record.record_type == WarcRecordType.response:
                body = record.reader.read()
            elif record.record_type == WarcRecordType.metadata:
                said = record.reader.read().partition(b"gossamer: ")[2]
                # Half a visit may stand at the end of a file that was killed.
                if said.endswith(b"\r\n"):
                    yield json.loads(said), body
                body = None


def tools_find_no_fault(folder: Path) -> None:
    """Both checkers pass, nothing is left open, and the index names what is there."""
    assert not list(folder.glob("*.open"))
    paths = sorted(folder.glob("*.warc.gz"))
    # One file after another is a file too, and the tools take long to start.
    together = folder / "together.warc.gz.checked"
    together.write_bytes(b"".join(path.read_bytes() for path in paths))
    for tool, *options in (("warcio", "check"), ("fastwarc", "check", "-q", "-d", "gzip")):
        program = Path(sys.executable).with_name(tool)
        done = subprocess.run([program, *options, together], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{tool}: {done.stdout}{done.stderr}"
    for path in paths:
        index = path.with_name(path.name.replace(".warc.gz", ".cdxj")).read_bytes().splitlines()
        assert index == sorted(index)
        places = {}
        for line in index:
            said = json.loads(line.split(b" ", 2)[2])
            places[int(said["offset"])] = said
        with path.open("rb") as file:
            iterator = Warcio(file)
            for record in iterator:
                if record.rec_type in ("response", "revisit"):
                    said = places.pop(iterator.get_record_offset())
                    assert said["url"] == record.rec_headers["WARC-Target-URI"]
                    assert said["digest"] == (record.rec_headers["WARC-Payload-Digest"] or "")
                    assert said["filename"] == path.name
        assert not places


class TestWarc(_Ours):
    opens = "gossamer.storage.warc.sink:open_warc"

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        for said, body in captures(folder / "archive"):
            yield Kept(said["page"]["url"], said["page"]["title"], body, tuple(said["items"]))

    def check(self, folder: Path) -> None:
        tools_find_no_fault(folder / "archive")


class TestWarcOfFleet(TestWarc):
    """Without marks: what was written and not acknowledged may be there, as a visit of its own."""

    fleet, exact = True, False

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        seen = set()
        for said, body in captures(folder / "archive"):
            if (said["key"], said["token"]) not in seen:
                seen.add((said["key"], said["token"]))
                yield Kept(said["page"]["url"], said["page"]["title"], body, tuple(said["items"]))


class TestWarcElsewhere(TestWarc):
    """The same in a folder that others may share."""

    target = "{folder}/elsewhere"
    # What goes into a record does not hang on the place.
    test_every_hostile_string_comes_back = None  # type: ignore[assignment]
    test_a_later_visit_is_kept_too_or_takes_the_place = None  # type: ignore[assignment]
    test_a_full_disk_takes_nothing_and_goes_on_when_there_is_room = None  # type: ignore[assignment]
    test_what_write_returned_for_survives_a_kill = None  # type: ignore[assignment]

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        os.symlink("elsewhere", folder / "archive") if not (folder / "archive").exists() else None
        yield from super().read(folder, urls)


class TestParquet(_Ours):
    """Read by DuckDB: the Parquet files, and the logs that are not in them yet."""

    opens = "gossamer.storage.parquet:open_parquet"

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        rows = []
        waiting = {path.stem: path for path in (folder / "parquet").glob("*.jsonl")}
        with duckdb.connect() as db:
            for path in sorted((folder / "parquet" / "pages").rglob("*.parquet")):
                items = folder / "parquet" / "items" / path.relative_to(folder / "parquet" / "pages")
                if path.stem not in waiting:
                    joined = f"FROM '{path}' p JOIN '{items}' USING (key, token)"
                    rows += db.sql(f"SELECT key, token, p.url, title, bytes, item {joined}").fetchall()
            page = "STRUCT(url VARCHAR, title VARCHAR, bytes BIGINT)"
            kinds = f"columns = {{key: 'BIGINT', token: 'BIGINT', page: '{page}', items: 'JSON[]'}}"
            for path in waiting.values():
                lines = f"read_json('{path}', format = 'newline_delimited', {kinds}, ignore_errors = true)"
                rows += db.sql(f"SELECT key, token, page.url, page.title, page.bytes, items[1] FROM {lines}").fetchall()
        for _, _, url, title, size, item in self.counted(rows):
            assert isinstance(size, int)
            yield Kept(url, title, None, (json.loads(item),))

    def counted(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [row for row in rows if row[0] is not None]

    def check(self, folder: Path) -> None:
        assert not list((folder / "parquet").glob("*.jsonl"))
        assert not list(folder.rglob("*.draft"))


class TestParquetOfFleet(TestParquet):
    """Without marks; by key and token each visit is one."""

    fleet, exact = True, False
    test_every_hostile_string_comes_back = None  # type: ignore[assignment]

    def counted(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return list({row[:2]: row for row in super().counted(rows)}.values())


class TestParquetInParts(TestParquet):
    """The same, laid out by day and site."""

    target = "?by=day,site"
    test_a_call_that_is_repeated_is_stored_once = None  # type: ignore[assignment]
    test_what_write_returned_for_survives_a_kill = None  # type: ignore[assignment]
    test_a_later_visit_is_kept_too_or_takes_the_place = None  # type: ignore[assignment]
    test_a_full_disk_takes_nothing_and_goes_on_when_there_is_room = None  # type: ignore[assignment]
