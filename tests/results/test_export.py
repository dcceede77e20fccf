"""The command `export`: any job, in every form, one record per page."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from pathlib import Path

import duckdb
import msgspec
import pytest
from click.testing import CliRunner
from warcio.archiveiterator import ArchiveIterator

from gossamer.cli import gossamer
from gossamer.errors import ConfigError, SinkError
from gossamer.model import PageRow, Record
from gossamer.settings import Settings
from gossamer.storage.query import COLUMNS, Where
from gossamer.storage.registry import open_sinks
from gossamer.storage.segments import SegmentSink
from gossamer.storage.warc.records import read_records
from gossamer.testing.sink_writer import visit

DAY = 1_767_225_600.0
"""The first moment of 2026."""
REVISIT = ("revisit", "request", "metadata")


def page(number: int, **changes: object) -> PageRow:
    row = PageRow(
        url=f"http://a.example/{number}",
        status=200 if number % 3 else 404,
        depth=number,
        title=f"Page {number}",
        fetched_at=DAY + 3600.0 * number,
        digest=f"{number:040x}",
    )
    return msgspec.structs.replace(row, **changes)


def record(number: int, token: int = 1, **changes: object) -> Record:
    return Record(key=number, token=token, page=page(number, **changes), items=({"n": number, "token": token},))


def store(folder: Path, sink: str, *batches: list[Record]) -> None:
    async def run() -> None:
        opened = SegmentSink(folder, "one") if sink == "segments" else None
        sinks = [opened] if opened else open_sinks(Settings(sink=tuple(sink.split())), folder, {})
        for batch in batches:
            for one in sinks:
                await one.write(batch)
        for one in sinks:
            await one.aclose()

    asyncio.run(run())


def export(*arguments: object, code: int = 0) -> str:
    """Return the command's output, or its error."""
    done = CliRunner().invoke(gossamer, ["export", *map(str, arguments)], standalone_mode=False)
    if code == 0:
        assert done.exception is None, done.exception
        return done.stdout
    assert isinstance(done.exception, ConfigError if code == 2 else SinkError)
    return str(done.exception)


@pytest.mark.parametrize("broken", ["response", "request", "metadata"])
def test_warc_export_has_all_visits_but_the_broken_one(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    store(tmp_path / "job", "warc", [visit(number, size=900) for number in range(5)])
    (path,) = (tmp_path / "job" / "archive").glob("*.warc.gz")
    at = [one.offset for one in read_records(path) if one.kind == broken][2]
    data = bytearray(path.read_bytes())
    data[at + 20 : at + 50] = bytes(30)
    path.write_bytes(data)
    with caplog.at_level("WARNING", logger="gossamer.export"):
        export(tmp_path / "job", "--format", "warc", "--out", tmp_path / "out.warc.gz")
    with (tmp_path / "out.warc.gz").open("rb") as file:
        found = [(one.rec_type, (one.rec_headers["WARC-Target-URI"] or "")[-1:]) for one in ArchiveIterator(file)]
    kinds = ("response", "request", "metadata")
    assert found == [("warcinfo", ""), *((kind, number) for number in "0134" for kind in kinds)]
    assert [f"byte {at}:" in output for output in caplog.messages] == [True]


@pytest.mark.parametrize("sink", ["jsonl", "jsonl:zstd", "jsonl:gzip", "csv", "sqlite", "segments", "parquet", "warc"])
def test_job_is_exported_from_any_sink(tmp_path: Path, sink: str) -> None:
    store(tmp_path, sink, [record(number) for number in range(10)], [record(4, 2, title="=later")])
    expected = sorted([page(number) for number in range(10) if number != 4] + [page(4, title="=later")], key=str)
    rows = [msgspec.json.decode(line, type=PageRow) for line in export(tmp_path).splitlines()]
    assert sorted(rows, key=str) == expected
    found = list(csv.reader(io.StringIO(export(tmp_path, "--format", "csv", "--where", "depth=4"), newline="")))
    assert dict(zip(*found, strict=True))["title"] == "'=later"


@pytest.mark.parametrize("sink", ["segments", "parquet", "warc"])
def test_all_visits_or_only_the_last_are_exported(tmp_path: Path, sink: str) -> None:
    store(tmp_path, sink, [record(1), record(2)], [record(1, 7)], [record(1, 7)])
    assert len(export(tmp_path, "--format", "urls").split()) == 2
    assert len(export(tmp_path, "--format", "urls", "--all-visits").split()) == 3


def test_items_of_selected_pages_are_exported(tmp_path: Path) -> None:
    store(tmp_path / "a", "parquet", [record(number) for number in range(10)])
    store(tmp_path / "b", "jsonl", [record(number) for number in range(10)])
    said = export(tmp_path / "a", "--format", "items", "--where", "status=404", "--where", "depth>0")
    assert [json.loads(line)["n"] for line in said.splitlines()] == [3, 6, 9]
    assert len(export(tmp_path / "b", "--format", "items").splitlines()) == 10
    assert "which pages" in export(tmp_path / "b", "--format", "items", "--where", "status=404", code=2)


def test_output_file_appears_when_complete(tmp_path: Path) -> None:
    store(tmp_path / "job", "jsonl", [record(number) for number in range(10)])
    export(tmp_path / "job", "--out", tmp_path / "out")
    assert len((tmp_path / "out").read_text().splitlines()) == 10
    with (tmp_path / "job" / "pages.jsonl").open("a") as file:
        file.write("nonsense\n")
    assert "line 11" in export(tmp_path / "job", "--out", tmp_path / "out", code=1)
    assert len((tmp_path / "out").read_text().splitlines()) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "out"]


@pytest.mark.parametrize("sink", ["jsonl", "parquet warc", "segments"])
def test_a_job_becomes_one_parquet_file(tmp_path: Path, sink: str) -> None:
    records = [record(number, url=f"http://a.example/{number}") for number in range(9_000)]
    store(tmp_path / "job", sink, records, [visit(9_000, token=2, title="later")])
    export(tmp_path / "job", "--format", "parquet", "--out", tmp_path / "out.parquet", "--where", "status=200")
    found = duckdb.sql(f"SELECT url, title, epoch(fetched_at), key, warc_offset FROM '{tmp_path}/out.parquet'")
    assert found
    rows = found.fetchall()
    expected = {one.page.url: one for one in [*records, visit(9_000, title="later")] if one.page.status == 200}
    assert len(rows) == len(expected) == 6_001
    for url, title, fetched_at, key, offset in rows:
        assert (title, fetched_at) == (expected[url].page.title, expected[url].page.fetched_at)
        assert (key is None) == (sink == "jsonl")
        assert (offset is None) == (sink != "parquet warc" or title != "later"), "only that one had an answer"


def test_pages_with_bodies_are_exported_to_one_warc_file(tmp_path: Path) -> None:
    """Each with its last visit, and with the body that a visit without one refers to."""
    same = [visit(number, size=900, token=7, fetched_at=1_800_000_000.0) for number in (1, 2)]
    store(tmp_path / "job", "warc", [visit(number, size=900) for number in range(5)], same, [record(9, error="dns")])

    def exported(*options: str) -> list[tuple[str, str]]:
        said = export(tmp_path / "job", "--format", "warc", "--out", tmp_path / "out.warc.gz", *options)
        assert said == ""
        with (tmp_path / "out.warc.gz").open("rb") as file:
            return [(one.rec_type, (one.rec_headers["WARC-Target-URI"] or "")[-1:]) for one in ArchiveIterator(file)]

    whole = [("response", ""), ("request", ""), ("metadata", "")]
    assert exported("--where", "url~page/00003") == [("warcinfo", ""), *((kind, "3") for kind, _ in whole)]
    found = exported("--where", "url~page/00001")
    assert found == [("warcinfo", ""), *((kind, "1") for kind, _ in whole), *((kind, "1") for kind in REVISIT)]
    found = exported()
    assert [url for kind, url in found if kind == "metadata"] == ["0", "1", "2", "3", "4", "1", "2", "9"]
    assert len(exported("--all-visits")) == len(found)
    store(tmp_path / "none", "jsonl", [record(1)])
    assert "no stored response bodies" in export(tmp_path / "none", "--format", "warc", "--out", tmp_path / "x", code=2)
    assert not (tmp_path / "x").exists()


def test_missing_data_is_reported(tmp_path: Path) -> None:
    assert "does not exist" in export(tmp_path / "nothing", code=2)
    assert "no data in" in export(tmp_path, code=2)
    assert "unknown column 'statu'" in export(tmp_path, "--where", "statu=200", code=2)


def test_pages_outside_the_folder_are_read_or_located(tmp_path: Path) -> None:
    job, file = tmp_path / "job", tmp_path / "else.db"
    job.mkdir()
    (job / "job.toml").write_text('sink = ["s3://bucket/a", "redis+stream://me:hidden@host/0?stream=x"]\n')
    said = export(job, code=2)
    assert "s3://bucket/a" in said
    assert "redis+stream://me:***@host/0" in said
    (job / "job.toml").write_text(f'sink = ["sqlite:{file}"]\n')
    store(job, f"sqlite:{file}", [record(1), record(2)])
    assert len(export(job, "--format", "urls").split()) == 2
    assert [json.loads(line)["n"] for line in export(job, "--format", "items").splitlines()] == [1, 2]


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ("status=404", [0, 3, 6, 9]),
        ("status!=404 and depth < 3", [1, 2]),
        ("status = 404,200 AND depth>=8", [8, 9]),
        ("title='Page 4'", [4]),
        ('title~"PAGE 5"', [5]),
        ("title!~page", []),
        ("url>http://a.example/7", [8, 9]),
        ("site=a.example and depth<=0", [0]),
        ("site=b.example", []),
        ("fetched_at<2026-01-01T02:00", [0, 1]),
        ("fetched_at=2026-01-01T05:00", [5]),
        ("fetched_at>2026-01-01", []),
        ("fetched_at<=2026-01-01 and depth=1", [1]),
        (f"fetched_at>={DAY + 9 * 3600:.0f}", [9]),
        ("fetched_at>=2026-01-01T10:00:00+01:00", [9]),
        ("elapsed<=0.5 and depth=2", [2]),
        ("text='' and tls_fault='' and depth=2", [2]),
    ],
)
def test_conditions_select_pages(condition: str, numbers: list[int]) -> None:
    where = Where([condition])
    assert [number for number in range(10) if where(page(number))] == numbers


@pytest.mark.parametrize(
    "condition",
    [
        "", " ", "status", "status=", "=200", "status=x", "status=200 or depth=1", "status=200 and", "status=1 depth=2",
        "title=a b", "nosuch=1", "fetched_at=yesterday", "fetched_at~2026", "status~2", "status<1,2", "depth<=nan x",
        "__class__=1", "status=__import__('os')", "title='open", "status==200",
    ],
)  # fmt: skip
def test_invalid_conditions_are_refused_with_the_reason(condition: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Where([condition])
    assert str(caught.value).startswith("--where")
    assert caught.value.hint


def test_conditions_may_use_every_page_field() -> None:
    assert set(COLUMNS) == {"site", *(field.name for field in msgspec.structs.fields(PageRow))}
