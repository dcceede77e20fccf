"""WARC files of other tools, valid and broken: everything readable is read, and each fault is reported once."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gossamer.errors import ArchiveError
from gossamer.imports.importer import ImportedRequest
from gossamer.imports.lists import read_warc
from gossamer.storage.reader import open_stored

PLAIN, MEMBERS = "plain", "members"
both = pytest.mark.parametrize("form", [PLAIN, MEMBERS])
HELLO_BASE32, HELLO_HEX = "sha1:VL2MMHO4YXUKFWV63YHTWSBM3GXKSQ2N", "SHA1:aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d"


def record(
    name: str,
    *more: str,
    body: bytes = b"hello",
    http: bytes = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n",
    length: str | None = None,
    kind: str = "response",
    url: str = "",
    end: bytes = b"\r\n\r\n",
) -> bytes:
    """A record about a page of that name; `length` is its Content-Length, empty for none."""
    said = str(len(http + body)) if length is None else length
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        f"WARC-Target-URI: {url or f'http://o.example/{name}'}",
        "WARC-Date: 2024-05-06T07:08:09Z",
        "Content-Type: application/http; msgtype=response",
        *more,
        *([f"Content-Length: {said}"] if said else []),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + http + body + end


def write(folder: Path, form: str, records: Sequence[bytes]) -> Path:
    path = folder / ("other.warc" if form == PLAIN else "other.warc.gz")
    path.write_bytes(b"".join(records if form == PLAIN else map(gzip.compress, records)))
    return path


def read(path: Path) -> tuple[dict[str, bytes], list[str]]:
    """The pages by name, and the faults."""
    faults: list[ArchiveError] = []
    with open_stored(path) as stored:
        pages = {page.url.rpartition("/")[2]: page.body for page in stored.pages(on_fault=faults.append)}
    return pages, [str(fault) for fault in faults]


BROKEN = {
    "says no length": record("bad", length=""),
    "says a length that is no number": record("bad", length="-5"),
    "says a length of thousands of digits": record("bad", length="9" * 5000),
    "says too much": record("bad", length="300"),
    "says more than the file has": record("bad", length=str(10**15)),
    "says too little": record("bad", body=b"x" * 500, length="80"),
    "is none": b"something else\r\n\r\n",
    "has a head without end": record("bad", "X: " + "y" * (1 << 20)),
}


@both
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_reading_continues_after_a_broken_record(tmp_path: Path, form: str, broken: bytes) -> None:
    """And the one before it is not lost."""
    path = write(tmp_path, form, [record("first"), broken, record("third"), record("fourth")])
    pages, faults = read(path)
    assert pages == dict.fromkeys(("first", "third", "fourth"), b"hello")
    assert len(faults) == 1
    assert f"{path}, byte" in faults[0]
    taken = [found.url for found in read_warc(path) if isinstance(found, ImportedRequest)]
    assert taken == [f"http://o.example/{name}" for name in ("first", "third", "fourth")]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "wrong checksum": lambda member: member[:-8] + b"abcd" + member[-4:],
    "end is missing": lambda member: member[:-20],
    "byte is wrong": lambda member: member[:40] + bytes([member[40] ^ 255]) + member[41:],
    "padding before it": lambda member: bytes(512) + member[:-20],
    "two records in one": lambda _: gzip.compress(record("bad") + record("worse")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_reading_continues_after_a_damaged_member(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    members = [gzip.compress(record(name)) for name in ("first", "bad", "third")]
    path = tmp_path / "other.warc.gz"
    path.write_bytes(members[0] + damage(members[1]) + members[2])
    pages, faults = read(path)
    assert pages == {"first": b"hello", "third": b"hello"}
    assert faults


def test_distant_record_after_a_broken_one_is_found(tmp_path: Path) -> None:
    """Beyond the size of one read, and across the boundary of two."""
    for size in (3_000_000, (1 << 20) - 200, (1 << 20) - 3):
        broken = record("bad", body=b"x" * size, length="")
        pages, faults = read(write(tmp_path, PLAIN, [record("first"), broken, record("third")]))
        assert (list(pages), len(faults)) == (["first", "third"], 1)


@both
def test_empty_lines_and_members_between_records_are_skipped(tmp_path: Path, form: str) -> None:
    records = [b"\r\n" + record("1"), b"", record("2", end=b""), b"\r\n\r\n", record("3", end=b"\r\n")]
    pages, faults = read(write(tmp_path, form, records))
    assert (list(pages), faults) == (["1", "2", "3"], [])


@both
def test_records_that_are_not_responses_are_reported(tmp_path: Path, form: str) -> None:
    """A block without HTTP headers, an invalid status, and a segment of a segmented record."""
    records = [
        record("1", http=b"<html>"),
        record("2", http=b"HTTP/1.1 " + b"9" * 5000 + b" OK\r\n\r\n"),
        record("3", "WARC-Segment-Number: 1"),
        record("4"),
    ]
    pages, faults = read(write(tmp_path, form, records))
    assert list(pages) == ["4"]
    assert [f"http://o.example/{number} " in fault for number, fault in zip("123", faults, strict=True)] == [True] * 3


@both
def test_revisits_of_all_tools_are_resolved(tmp_path: Path, form: str) -> None:
    """Digests in base 32 or hexadecimal or not at all, addresses in angle brackets."""
    for written in ([f"WARC-Payload-Digest: {HELLO_BASE32}"], [f"WARC-Payload-Digest: {HELLO_HEX}"], []):
        again = (f"WARC-Payload-Digest: {HELLO_HEX}", "WARC-Refers-To-Target-URI: <http://o.example/1>")
        records = [record("1", *written), record("2", *again, kind="revisit", body=b"")]
        assert read(write(tmp_path, form, records)) == ({"1": b"hello", "2": b"hello"}, [])
    other = record("2", "WARC-Payload-Digest: sha1:" + "A" * 32, kind="revisit", body=b"", url="http://o.example/1")
    _, faults = read(write(tmp_path, form, [record("1", f"WARC-Payload-Digest: {HELLO_BASE32}"), other]))
    assert "its body is in an earlier record" in faults[0]


@both
def test_urls_are_found_in_any_spelling(tmp_path: Path, form: str) -> None:
    records = [record("", url=url) for url in ("HTTP://O.Example", "<http://o.example/a>", "http://o.example/\u00fc")]
    with open_stored(write(tmp_path, form, records)) as stored:
        assert len(list(stored.pages())) == 3
        for url in ("http://o.example/", "http://o.example/a", "http://o.example/%C3%BC"):
            (version,) = stored.versions(url)
            assert b"".join(stored.stream(version)) == b"hello"


@both
def test_kinds_versions_and_folded_lines_are_read(tmp_path: Path, form: str) -> None:
    """A type in capitals, a folded line, the shorter status line of HTTP/2."""
    records = [
        record("1", kind="Response"),
        record("2", "X-Long: a\r\n b"),
        record("3", http=b"HTTP/2 200\r\nA: b\r\n\r\n"),
    ]
    with open_stored(write(tmp_path, form, records)) as stored:
        assert [page.url[-1] for page in stored.pages()] == ["1", "2", "3"]
        assert [stored.versions(f"http://o.example/{number}")[0].status for number in (1, 2, 3)] == [200] * 3


@both
def test_truncated_chunked_body_has_no_chunk_sizes(tmp_path: Path, form: str) -> None:
    http = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    pages, _ = read(write(tmp_path, form, [record("1", http=http, body=b"3\r\nabc\r\n2\r\nde\r\n")]))
    assert pages == {"1": b"abcde"}


def test_vanished_file_is_reported_once(tmp_path: Path) -> None:
    """Also where its index stays."""
    path = write(tmp_path, MEMBERS, [record("0", kind="warcinfo"), record("1")])
    line = b'example,o)/1 20240506070809 {"url":"http://o.example/1","offset":"%d","filename":"other.warc.gz"}\n'
    (tmp_path / "other.cdxj").write_bytes(line % len(gzip.compress(record("0", kind="warcinfo"))))
    with open_stored(path) as stored:
        assert [page.url for page in stored.pages()] == ["http://o.example/1"]
        path.unlink()
        faults: list[ArchiveError] = []
        assert list(stored.pages(on_fault=faults.append)) == []
        assert len(faults) == 1


def test_invalid_index_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, MEMBERS, [record("1")])
    for bad in (b"nothing", b'a 1 {"url":"http://o.example/1","offset":"x","filename":"y"}', b"a 1 []"):
        (tmp_path / "other.cdxj").write_bytes(bad + b"\n")
        with open_stored(path) as stored, pytest.raises(ArchiveError, match="is not an index line"):
            list(stored.pages())


@both
def test_truncated_record_is_a_cut_page(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, form, [record("part", "WARC-Truncated: length"), record("whole")])
    with open_stored(path) as stored:
        cut = {page.url.rpartition("/")[2]: page.response.cut for page in stored.pages()}
    assert cut == {"part": "truncated:?", "whole": ""}
