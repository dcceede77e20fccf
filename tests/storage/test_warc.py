from __future__ import annotations

import asyncio
import fcntl
import gzip
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from warcio.archiveiterator import ArchiveIterator

from gossamer.errors import SinkError
from gossamer.model import Exchange, PageRow, Record
from gossamer.settings import Settings
from gossamer.storage import files
from gossamer.storage.base import Opening
from gossamer.storage.registry import finish_archives
from gossamer.storage.warc.index import keys, scan, surt
from gossamer.storage.warc.records import digest_of_hex, payload_digest
from gossamer.storage.warc.sink import RecordLocation, VisitEncoder, WarcSink, finish_abandoned, open_warc
from gossamer.testing.sink_writer import visit

URL = "http://www.site.example/a?b=1"


def record(number: int = 1, *, url: str = URL, body: bytes = b"<p>", status: int = 200, **more: Any) -> Record:
    exchange = Exchange(
        sent=more.pop("sent", (("user-agent", "Gossamer"),)),
        version=more.pop("version", "HTTP/1.1"),
        address="192.0.2.1",
        headers=more.pop("headers", (("content-type", "text/html"),)),
        wire_bytes=more.pop("wire_bytes", len(body)),
        method=more.pop("method", "GET"),
        posted=more.pop("posted", b""),
    )
    row = PageRow(url=url, status=status, fetched_at=1_700_000_000.5 + number, **more)
    return Record(key=number, token=1, page=row, body=body, exchange=exchange)


def open_sink(folder: Path, marks: Mapping[str, int] | None = None, *, max_bytes: int = 10**9) -> WarcSink:
    return WarcSink(folder, marks if marks is not None else {}, prefix="job", max_bytes=max_bytes)


def store(folder: Path, *batches: Sequence[Record], max_bytes: int = 10**9, marks: Any = None) -> dict[str, int]:
    async def run() -> dict[str, int]:
        sink, reached = open_sink(folder, marks, max_bytes=max_bytes), dict(marks or {})
        for batch in batches:
            reached.update(await sink.write(batch))
        await sink.aclose()
        return reached

    return asyncio.run(run())


class Read(msgspec.Struct):
    kind: str
    named: dict[str, str]
    http: dict[str, str]
    line: str
    block: bytes


def read(folder: Path) -> list[Read]:
    """All records but warcinfo, as warcio reads them."""
    found = []
    for path in sorted(folder.glob("*.warc.gz")):
        with path.open("rb") as file:
            for one in ArchiveIterator(file, check_digests="raise"):
                http = one.http_headers
                found.append(
                    Read(
                        kind=one.rec_type,
                        named=dict(one.rec_headers.headers),
                        http={name.lower(): value for name, value in http.headers} if http else {},
                        line=f"{http.protocol} {http.statusline}" if http else "",
                        block=one.raw_stream.read(),
                    )
                )
    return [one for one in found if one.kind != "warcinfo"]


def index(folder: Path) -> list[dict[str, str]]:
    lines = [line for path in sorted(folder.glob("*.cdxj")) for line in path.read_text().splitlines()]
    return [json.loads(line.split(" ", 2)[2]) for line in lines]


def test_committed_data_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[tuple[int, int]] = set()
    real = files.sync

    def sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.add((found.st_ino, found.st_size))
        real(descriptor)

    monkeypatch.setattr(files, "sync", sync)
    marks = store(tmp_path, [record()])
    assert marks
    assert {((tmp_path / name).stat().st_ino, size) for name, size in marks.items()} <= synced


def test_a_visit_is_response_request_and_metadata(tmp_path: Path) -> None:
    sent = (
        ("user-agent", "Gossamer"),
        ("cookie", "secret=1"),
        ("authorization", "Basic secret"),
        ("x-api-key", "secret"),
    )
    store(tmp_path, [record(sent=sent, title="T", referrer="http://ref.example/", method="POST", posted=b"q=1")])
    response, request, metadata = read(tmp_path)
    assert (response.kind, response.line, response.block) == ("response", "HTTP/1.1 200 OK", b"<p>")
    assert response.named["WARC-Target-URI"] == URL
    assert response.named["WARC-Date"] == "2023-11-14T22:13:21Z"
    assert response.named["WARC-IP-Address"] == "192.0.2.1"
    assert response.named["WARC-Payload-Digest"] == payload_digest(b"<p>")
    assert request.named["WARC-Concurrent-To"] == response.named["WARC-Record-ID"]
    assert (request.line, request.block) == ("POST /a?b=1 HTTP/1.1", b"q=1")
    assert (request.http["host"], request.http["user-agent"]) == ("www.site.example", "Gossamer")
    assert request.http["x-crawler-withheld"] == "cookie, authorization, x-api-key"
    assert metadata.named["WARC-Concurrent-To"] == response.named["WARC-Record-ID"]
    assert b"via: http://ref.example/\r\n" in metadata.block
    assert json.loads(metadata.block.partition(b"gossamer: ")[2])["page"]["title"] == "T"
    content = b"".join(gzip.decompress(path.read_bytes()) for path in tmp_path.glob("*.warc.gz"))
    assert b"secret" not in content


def test_warc_headers_describe_the_stored_body(tmp_path: Path) -> None:
    coded = (("content-encoding", "gzip"), ("content-length", "20"), ("transfer-encoding", "chunked"))
    plain = (("content-length", "5"), ("content-encoding", "utf-8"))
    store(
        tmp_path,
        [
            record(1, body=b"decoded", headers=coded, wire_bytes=20),
            record(2, body=b"plain", headers=plain),
            record(3, body=b"two", version="HTTP/2.0"),
        ],
    )
    first, second, third = [one for one in read(tmp_path) if one.kind == "response"]
    assert first.http == {
        "x-crawler-content-encoding": "gzip",
        "x-crawler-content-length": "20",
        "x-crawler-transfer-encoding": "chunked",
        "content-length": "7",
    }
    assert second.http == {"content-length": "5", "content-encoding": "utf-8"}
    assert (third.line, third.named["WARC-Protocol"]) == ("HTTP/1.1 200 OK", "h2")


def test_known_body_becomes_a_revisit(tmp_path: Path) -> None:
    """H44."""
    body = b"x" * 500
    digest = hashlib.sha1(body).hexdigest()
    before = [record(1, body=body), record(2, url="http://other.example/", body=body), record(3, body=b"else")]
    store(tmp_path, before, [record(4, status=304, body=b"", digest=digest)], max_bytes=100)
    answers = [one for one in read(tmp_path) if one.kind in ("response", "revisit")]
    assert [one.kind for one in answers] == ["response", "revisit", "response", "revisit"]
    original, same, _, unchanged = answers
    assert same.named["WARC-Profile"].endswith("/revisit/identical-payload-digest")
    assert unchanged.named["WARC-Profile"].endswith("/revisit/server-not-modified")
    for revisit in (same, unchanged):
        assert revisit.block == b""
        assert revisit.named["WARC-Refers-To"] == original.named["WARC-Record-ID"]
        assert revisit.named["WARC-Refers-To-Target-URI"] == URL
        assert revisit.named["WARC-Refers-To-Date"] == original.named["WARC-Date"]
        assert revisit.named["WARC-Payload-Digest"] == original.named["WARC-Payload-Digest"] == digest_of_hex(digest)
    # Tools that play archives back would show an empty page for the 304.
    assert [one["mime"] for one in index(tmp_path)].count("warc/revisit") == 1


def test_revisit_never_refers_to_a_removed_record(tmp_path: Path) -> None:
    async def run() -> None:
        sink = open_sink(tmp_path)
        marks = await sink.write([record(1, body=b"one")])
        await sink.write([record(2, body=b"two")])
        await sink.rewind(marks)
        await sink.write([record(3, body=b"two")])
        await sink.aclose()

    asyncio.run(run())
    assert [one.kind for one in read(tmp_path)] == ["response", "request", "metadata"] * 2


@pytest.mark.parametrize("size", [100_000, 300_000], ids=["on the loop", "in a thread"])
def test_truncated_write_is_not_referred_to(tmp_path: Path, size: int) -> None:
    records = [record(number, body=f"{number}".encode() * size, url=f"{URL}&n={number}") for number in range(4)]

    async def run() -> None:
        sink = open_sink(tmp_path)
        cut_off = asyncio.create_task(sink.write(records))
        await asyncio.sleep(0)
        cut_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut_off
        await sink.write([msgspec.structs.replace(one, token=2) for one in records])
        await sink.aclose()

    asyncio.run(run())
    kinds = [(one.kind, len(one.block)) for one in read(tmp_path) if one.kind in ("response", "revisit")]
    assert kinds == [("response", size)] * 4


def test_failed_fetch_and_unknown_304_are_recorded(tmp_path: Path) -> None:
    failed = Record(key=1, token=1, page=PageRow(url=URL, error="dns: no such name", fetched_at=1.0))
    store(tmp_path, [failed, record(2, status=304, body=b"")])
    metadata, response, *_ = read(tmp_path)
    assert json.loads(metadata.block.partition(b"gossamer: ")[2])["page"]["error"] == "dns: no such name"
    assert (response.kind, response.line) == ("response", "HTTP/1.1 304 Not Modified")
    assert not index(tmp_path)


def test_urls_and_headers_cannot_inject_records(tmp_path: Path) -> None:
    """H52."""
    evil = "x\r\n\r\n\r\n\r\nWARC/1.1\r\nWARC-Type: response\r\n"
    headers = (("x-evil", evil), (f"evil\r\n{evil}", "x"), ("content-type", evil))
    hostile = record(url=f"http://e.example/{evil} ü", headers=headers, referrer=evil, method=evil, body=evil.encode())
    store(tmp_path, [hostile])
    response, request, metadata = read(tmp_path)
    assert response.named["WARC-Target-URI"].isascii()
    assert response.block == evil.encode()
    assert [one.kind for one in (response, request, metadata)] == ["response", "request", "metadata"]
    assert json.loads(metadata.block.partition(b"gossamer: ")[2])["page"]["url"] == hostile.page.url


def test_files_are_rotated_and_locations_are_reported(tmp_path: Path) -> None:
    async def run() -> dict[tuple[int, int], RecordLocation]:
        sink, placed = open_sink(tmp_path, max_bytes=3_000), {}
        for number in range(10):
            await sink.write([record(number, body=os.urandom(1_000), url=f"http://e.example/{number}")])
            placed.update(sink.placed)
        await sink.aclose()
        return placed

    placed = asyncio.run(run())
    assert len(list(tmp_path.glob("*.warc.gz"))) > 3
    assert not list(tmp_path.glob("*.open"))
    for (number, _), place in placed.items():
        with (tmp_path / place.file).open("rb") as file:
            file.seek(place.offset)
            member = io.BytesIO(file.read(place.length))
        assert next(ArchiveIterator(member)).rec_headers["WARC-Target-URI"] == f"http://e.example/{number}"
    assert len(index(tmp_path)) == 10


def test_files_of_an_earlier_start_are_checked_and_other_files_ignored(tmp_path: Path) -> None:
    marks = store(tmp_path, [record(1)])
    (name,) = marks
    for other in ("other-00000.warc.gz", "other-00000.warc.gz.open", "job-00007.warc.gz"):
        (tmp_path / other).write_bytes(b"theirs")
    with (tmp_path / name).open("ab") as file:
        file.write(b"a tail that no commit covers")
    later = store(tmp_path, [record(2)], marks=marks)
    assert sorted(later) == [name, "job-00008.warc.gz"]
    assert (tmp_path / name).stat().st_size == marks[name]
    assert (tmp_path / "other-00000.warc.gz.open").read_bytes() == b"theirs"
    os.truncate(tmp_path / name, marks[name] - 1)
    with pytest.raises(SinkError, match=rf"{name} has .* part of the file is lost"):
        open_sink(tmp_path, later)
    (tmp_path / name).unlink()
    asyncio.run(open_sink(tmp_path, later).aclose())


def test_open_file_of_a_live_worker_is_not_finished(tmp_path: Path) -> None:
    opening = Opening(target="", folder=tmp_path, settings=Settings(), worker="one")

    async def run() -> None:
        sink = open_warc(opening)
        await sink.write([record(1)])
        (path,) = (tmp_path / "archive").glob("*.warc.gz.open")
        finish_abandoned(path)
        assert path.exists()
        other = open_warc(opening)
        await other.write([record(2)])
        await other.aclose()
        await sink.write([record(3)])
        await sink.aclose()

    asyncio.run(run())
    assert len([one for one in read(tmp_path / "archive") if one.kind == "metadata"]) == 3


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://www.Example.com/Foo/", "com,example)/foo"),
        ("http://example.com:8080/a//b/../c?b=2&a=1", "com,example:8080)/a/c?a=1&b=2"),
        ("http://127.0.0.1:80/x", "1,0,0,127)/x"),
        ("http://[::1]/", "::1)/"),
        ("http://u:p@e.com/%7Ea/%2525/%ff?#f", "com,e)/~a/%25/%ff"),
        ("http://e.com/?y=1&sid=9682993c8daa2c5497996114facdc805&x", "com,e)/?x&y=1"),
    ],
)
def test_index_keys_match_other_tools(url: str, key: str) -> None:
    assert surt(url) == key


SESSION, TOKEN = "0a" * 16, "a1" * 12


@pytest.mark.parametrize(
    ("query", "sorted_query"),
    [
        ("c1=2&c2=6&c15=", "c1=2&c15=&c2=6"),
        ("x=1&a2a&a=2", "a=2&a2a&x=1"),
        ("a10&A=1&%7E", "a=1&a10&~"),
        ("&=&&+", "&&=&+"),
        ("b=2&b=10&b", "b&b=10&b=2"),
        (f"b&sid={SESSION.upper()[:32]}&a", "a&b"),
        (f"jsessionid={SESSION}&jsessionid={SESSION}", f"&jsessionid={SESSION}"),
        (f"jsessionid={SESSION}x&a", f"a&jsessionid={SESSION}x"),
        ("cfid=1&cftoken=2&a", "a"),
        ("cfid=1&cfid=2&cftoken=3", "&cfid=1"),
        ("cfid=1&cftoken=2cfid=3&cftoken=4", "cfid=1&cftoken=2"),
        ("cfid=&cftoken=2", "cfid=&cftoken=2"),
        ("q=%2525&r=%2541&s=%25zz", "q=%25&r=a&s=%25zz"),
    ],
)
def test_parameters_are_sorted_by_name_then_value_like_in_pywb(query: str, sorted_query: str) -> None:
    """Results of the library surt, which pywb uses to find captures."""
    assert surt(f"http://a.example/p?{query}") == f"example,a)/p?{sorted_query}".rstrip("?")


def test_pages_are_found_in_indexes_of_earlier_versions_too() -> None:
    assert keys("http://a.example/p?c1=2&c2=6&c15=") == ["example,a)/p?c1=2&c15=&c2=6", "example,a)/p?c15=&c1=2&c2=6"]
    assert keys("http://a.example/p?a=1") == ["example,a)/p?a=1"]


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (f"/(S({TOKEN}))/x.aspx", "/x.aspx"),
        (f"/a/({TOKEN.upper()})/b/x.ASPX", "/a/b/x.aspx"),
        (f"/(S({TOKEN}))/x.html", f"/(s({TOKEN}))/x.html"),
        (f"/p;jsessionid={SESSION}", f"/p;jsessionid={SESSION}"),
    ],
)
def test_asp_net_sessions_are_removed_from_paths(path: str, key: str) -> None:
    assert surt(f"http://a.example{path}") == f"example,a){key}"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", ["cfid=", "%25", "25", "cfid=1&", "&cftoken=", "jsessionid=", "/../", f"({TOKEN})/"])
def test_sort_key_takes_linear_time(part: str) -> None:
    for url in (f"http://a.example/%{part * 100_000}.aspx", f"http://a.example/?%{part * 100_000}"):
        assert surt(url).startswith("example,a)/")


def test_files_of_other_tools_are_read_up_to_the_damage(shared: Path) -> None:
    suites = shared / "suites"
    whole = list(scan(suites / "warc-warcio" / "example.warc.gz"))
    assert [one.named(b"WARC-Type") for one in whole][:4] == ["warcinfo", "warcinfo", "response", "request"]
    clipped = suites / "warc-fastwarc" / "clipped.warc.gz"
    assert sum(one.length for one in scan(clipped)) < clipped.stat().st_size
    for path in suites.glob("warc-*/*"):
        list(scan(path))


def test_files_of_dead_workers_are_finished(tmp_path: Path) -> None:
    """F62. Without locks, as some shared folders are: the frontier says who lives."""
    settings = Settings(sink=("warc",))

    async def run() -> None:
        sinks = {}
        for worker in ("far-away-1", "far-away-12"):
            opening = Opening(target="", folder=tmp_path / "job", settings=settings, worker=worker)
            sinks[worker] = open_warc(opening)
            await sinks[worker].write([visit(1), visit(2)])
            for file in sinks[worker]._files:
                fcntl.flock(file._file, fcntl.LOCK_UN)
        finish_archives(settings, tmp_path / "job", live=["far-away-12"])
        left = [path.name for path in (tmp_path / "job" / "archive").glob("*.open")]
        assert all("far-away-12-" in name for name in left)
        assert len(left) == 2
        # A worker that was wrongly taken for dead continues with a new file.
        await sinks["far-away-1"].write([visit(3)])
        for sink in sinks.values():
            await sink.aclose()

    asyncio.run(run())
    folder = tmp_path / "job" / "archive"
    assert not list(folder.glob("*.open"))
    assert len(list(folder.glob("*.warc.gz"))) == len(list(folder.glob("*.cdxj"))) == 3
    indexed = Counter(line.split()[0] for path in folder.glob("*.cdxj") for line in path.read_bytes().splitlines())
    assert sorted(indexed.values()) == [1, 2, 2]


def test_names_of_moved_files_are_not_reused(tmp_path: Path) -> None:
    async def run() -> dict[str, int]:
        sink = WarcSink(tmp_path, marks, prefix="job", max_bytes=10**9)
        found = dict(await sink.write([visit(1)]))
        await sink.aclose()
        return found

    marks: dict[str, int] = {}
    marks |= asyncio.run(run())
    (first,) = tmp_path.glob("*.warc.gz")
    first.unlink()
    marks |= asyncio.run(run())
    assert [path.name for path in tmp_path.glob("*.warc.gz")] == ["job-00001.warc.gz"]


def test_truncated_body_is_neither_a_revisit_nor_an_original() -> None:
    def one(key: int, cut: str = "") -> Record:
        record = visit(key)
        page = msgspec.structs.replace(record.page, cut=cut or msgspec.UNSET, digest="")
        return msgspec.structs.replace(record, page=page, body=b"the same")

    press = VisitEncoder()
    parts = [
        one(0, "disconnect:?"),
        one(1, "disconnect:?"),
        one(2),
        one(3),
        one(4, "disconnect:?"),
        one(5, "max_links:1"),
    ]
    answers = [press.visit(record).answer for record in parts]
    assert [answer is not None and answer.is_revisit for answer in answers] == [False, False, False, True, False, True]
