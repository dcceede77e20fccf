from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from gossamer.errors import ArchiveError
from gossamer.model import Exchange, PageRow, Record
from gossamer.storage.jsonl import JsonlSink
from gossamer.storage.reader import open_stored
from gossamer.storage.tree import TreeSink
from gossamer.storage.warc.records import read_records
from gossamer.storage.warc.sink import WarcSink

URL = "http://www.site.example/a?b=1"
SUITES = Path(__file__).parents[2].parent / "shared" / "suites"


def visit(
    number: int, *, url: str = URL, body: bytes = b"<p>x", status: int = 200, key: int = 0, **more: Any
) -> Record:
    exchange = Exchange(
        version="HTTP/1.1",
        headers=more.pop("headers", (("content-type", "text/html"),)),
        wire_bytes=more.pop("wire_bytes", len(body)),
        method=more.pop("method", "GET"),
        posted=more.pop("posted", b""),
    )
    label, meta = more.pop("label", ""), more.pop("meta", None)
    row = PageRow(url=url, status=status, fetched_at=1_700_000_000.25 + number, **more)
    return Record(key=key or 7, token=number, page=row, body=body, exchange=exchange, label=label, meta=meta)


def store(job: Path, *batches: Sequence[Record], max_bytes: int = 10**9, name: str = "job", close: bool = True) -> None:
    async def run() -> None:
        sink = WarcSink(job / "archive", None, prefix=name, max_bytes=max_bytes, home=job)
        for batch in batches:
            await sink.write(batch)
        if close:
            await sink.aclose()

    asyncio.run(run())


def test_stored_page_equals_the_page_the_spider_saw(tmp_path: Path) -> None:
    sent = (("content-encoding", "gzip"), ("content-length", "9"), ("x-é", "ü"), ("content-type", "text/html"))
    one = visit(1, body=b"<p>decoded", headers=sent, wire_bytes=9, depth=3, referrer="http://r.example/")
    two = visit(2, url="http://a.example/p", key=8, method="POST", posted=b"q=1", label="product", meta={"page": 2})
    store(tmp_path, [one, two, visit(3, url="http://b.example/", status=404, key=9)])
    with open_stored(tmp_path) as stored:
        first, second = stored.pages()
        assert (first.url, first.body, first.fetched_at) == (URL, b"<p>decoded", 1_700_000_001.25)
        # A header name that no HTTP knows is written as one that is.
        assert set(first.headers) == {*sent[:2], sent[3], ("x-_", "ü")}
        assert (first.request.depth, first.request.referrer, first.key) == (3, "http://r.example/", 7)
        assert (second.label, second.meta, second.method, second.posted) == ("product", {"page": 2}, "POST", b"q=1")
        assert first.row == one.page


def test_versions_are_found_by_url_and_time(tmp_path: Path) -> None:
    """Over several files, among pages that sort around it, and in a file that is being written."""
    others = [visit(n, url=f"http://site.example/a?b={n}", body=b"%d" % n, key=100 + n) for n in range(50)]
    store(tmp_path, others, [visit(60, body=b"old")], max_bytes=2000)
    store(tmp_path, [visit(200, body=b"new"), visit(160, url=URL, status=500, body=b"oops")], name="second")
    store(tmp_path, [visit(300, body=b"newest")], name="third", close=False)
    with open_stored(tmp_path) as stored:
        found = stored.versions(URL)
        assert [(v.fetched_at - 1_700_000_000, v.status) for v in found] == [
            (60, 200), (160, 500), (200, 200), (300, 200),
        ]  # fmt: skip
        assert b"".join(stored.stream(found[1], size=2)) == b"oops"
        assert stored.page(found[1]) is None
        for at, body in ((0.0, b"old"), (1_700_000_199.0, b"new"), (None, b"newest")):
            version = stored.find(URL, at)
            assert version is not None
            page = stored.page(version)
            assert page is not None
            assert page.body == body
        assert stored.find("http://site.example/a?b=1") is not None
        assert stored.find("http://site.example/nowhere") is None


def test_revisit_has_the_body_of_its_original(tmp_path: Path) -> None:
    same = b"<p>same" * 1000
    store(tmp_path, [visit(1, body=same), visit(2, body=same, url="http://copy.example/", key=8)])
    with open_stored(tmp_path) as stored:
        assert [page.body for page in stored.pages()] == [same, same]
        version = stored.find("http://copy.example/")
        assert version is not None
        assert version.is_revisit
        pieces = list(stored.stream(version, size=999))
        assert b"".join(pieces) == same
        assert max(map(len, pieces)) == 999


def test_last_version_of_a_page_is_current(tmp_path: Path) -> None:
    """Of a URL requested by GET and by POST, both: they are two pages."""
    asked = [visit(n, method="POST", posted=b"%d" % n, body=b"p%d" % n, key=20 + n) for n in (3, 4)]
    store(tmp_path, [visit(1, body=b"1"), *asked], [visit(5, body=b"5")], [visit(6, status=503)], max_bytes=900)
    with open_stored(tmp_path) as stored:
        assert [page.body for page in stored.pages()] == [b"p3", b"p4", b"5"]
        assert [page.body for page in stored.pages("all")] == [b"1", b"p3", b"p4", b"5"]
    # A worker that had lost its lease wrote later than the current holder.
    store(tmp_path, [visit(2, body=b"2")], name="zlate")
    with open_stored(tmp_path) as stored:
        assert b"2" not in [page.body for page in stored.pages()]


def test_broken_records_are_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    store(tmp_path, [visit(n, url=f"http://s.example/{n}", body=b"%d" % n * 500, key=n) for n in range(1, 5)])
    (path,) = (tmp_path / "archive").glob("*.warc.gz")
    data = bytearray(path.read_bytes())
    third = [record.offset for record in read_records(path) if record.kind == "response"][2]
    data[third + 30 : third + 60] = bytes(30)
    path.write_bytes(data)
    faults: list[ArchiveError] = []
    with open_stored(path) as stored:
        assert [page.url[-1] for page in stored.pages(on_fault=faults.append)] == ["1", "2", "4"]
        assert [f"byte {third}" in str(fault) for fault in faults] == [True]
        with pytest.raises(ArchiveError, match=f"byte {third}"):
            list(stored.pages())


def test_warc_files_of_other_tools_are_read(tmp_path: Path) -> None:
    """Chunked and coded bodies, and no index beside them."""
    import gzip

    chunked = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    coded = gzip.compress(b"coded")
    for zipped in (True, False):
        path = tmp_path / ("other.warc.gz" if zipped else "other.warc")
        with path.open("wb") as file:
            writer = WARCWriter(file, gzip=zipped)
            for url, headers, body in (
                ("http://o.example/1", [("Transfer-Encoding", "chunked")], chunked),
                ("http://o.example/2", [("Content-Encoding", "gzip")], coded),
                ("http://o.example/3", [("Content-Encoding", "gzip")], b"says gzip, is not"),
            ):
                http = StatusAndHeaders("200 OK", headers, protocol="HTTP/1.1")
                writer.write_record(
                    writer.create_warc_record(url, "response", payload=io.BytesIO(body), http_headers=http)
                )
        with open_stored(path) as stored:
            bodies = [b"abcde", b"coded", b"says gzip, is not"]
            assert [page.body for page in stored.pages()] == bodies
            versions = [stored.versions(f"http://o.example/{n}")[0] for n in (1, 2, 3)]
            assert [b"".join(stored.stream(version)) for version in versions] == bodies
        assert sorted(found.name for found in tmp_path.iterdir() if "cdxj" in found.name) == []


@pytest.mark.skipif(not SUITES.is_dir(), reason="the suites of others are not here")
def test_valid_files_of_other_tools_are_read_and_invalid_ones_named() -> None:
    counts = {}
    for path in sorted(SUITES.glob("warc-*/*.warc*")):
        if path.name.endswith((".warc", ".warc.gz")):
            faults: list[ArchiveError] = []
            with open_stored(path) as stored:
                pages = sum(1 for _ in stored.pages(on_fault=faults.append))
            counts[path.name] = (pages, len(faults))
    good = {"warcfile.warc": 16, "warcfile.warc.gz": 16, "clueweb-quirk.warc.gz": 29, "post-test.warc.gz": 3}
    assert {name: counts[name] for name in good} == {name: (pages, 0) for name, pages in good.items()}
    assert counts["example-wget-bad-target-uri.warc.gz"] == (1, 0)
    for bad in ("clipped.warc.gz", "example-trunc.warc", "example-bad-non-chunked.warc.gz"):
        assert counts[bad] == (0, 1)


def test_tree_of_bodies_is_read_with_the_rows_of_its_job(tmp_path: Path) -> None:
    job, tree = tmp_path / "job", tmp_path / "tree"
    job.mkdir()
    (job / "job.toml").write_text(f'sink = ["jsonl", "folder:{tree}"]\n')
    records = [
        visit(1, body=b"<p>first"),
        visit(2, body=b"<p>other", url="http://o.example/", key=2),
        visit(3, url="http://o.example/moved", location=URL, status=301, key=3),
        visit(4, body=b"<p>second"),
    ]

    async def write() -> None:
        await TreeSink(tree).write(records[:3])
        await TreeSink(tree).write(records[3:])
        await JsonlSink(job, {}).write(records)

    asyncio.run(write())
    with open_stored(job) as stored:
        assert [page.body for page in stored.pages()] == [b"<p>other", b"<p>second"]
        version = stored.find(URL)
        assert version is not None
        assert b"".join(stored.stream(version)) == b"<p>second"
    (job / "pages.jsonl").unlink()
    with open_stored(job) as stored, pytest.raises(ArchiveError, match="without their URLs"):
        list(stored.pages())


def test_missing_bodies_error_names_the_sink(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('sink = ["jsonl"]\n')
    with pytest.raises(ArchiveError, match="no sink stored them") as caught:
        open_stored(tmp_path)
    assert "--sink warc" in caught.value.hint
    with pytest.raises(ArchiveError, match="no such job"):
        open_stored("nowhere/at-all")
    (tmp_path / "job.toml").write_text('sink = ["warc+s3://bucket/a"]\n')
    for place in (tmp_path, "s3://bucket/a"):
        with pytest.raises(ArchiveError, match="s3://bucket/a") as caught:
            open_stored(place)
        assert "download its objects" in caught.value.hint


def test_parquet_rows_locate_their_bodies(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    store(tmp_path, [visit(n, url=f"http://s.example/{n}", body=b"%d" % n, key=n) for n in range(1, 5)])
    (path,) = (tmp_path / "archive").glob("*.warc.gz")
    offsets = [record.offset for record in read_records(path) if record.kind == "response"]
    table = tmp_path / "parquet" / "day=1" / "some.parquet"
    table.parent.mkdir(parents=True)
    name = f"archive/{path.name}"
    pq.write_table(pa.table({"warc_file": [name, None, name], "warc_offset": [offsets[2], None, offsets[0]]}), table)
    items = tmp_path / "parquet" / "items" / "some.parquet"
    items.parent.mkdir()
    pq.write_table(pa.table({"item": ["{}"]}), items)
    (table.parents[1] / "pages").mkdir()
    table = table.rename(table.parents[1] / "pages" / table.name)
    for place in (table, table.parent, table.parents[1]):
        with open_stored(place) as stored:
            assert [page.body for page in stored.pages()] == [b"1", b"3"]
    path.unlink()
    with pytest.raises(ArchiveError, match="is missing"):
        open_stored(table)
    table.write_bytes(b"PAR1 not at all")
    with pytest.raises(ArchiveError, match=r"some\.parquet"):
        open_stored(table)
