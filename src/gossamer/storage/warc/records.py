"""WARC records: writer and parser, with resynchronization after damage.

The body is stored after decoding. Headers that described it before (Content-Encoding, Transfer-Encoding,
Content-Length) get the prefix X-Crawler-, and a correct Content-Length is added. Record ids are derived from the visit,
so a repeated write gives the same records.

Failure cases of the parser: a truncated record, a wrong length, a file compressed as a whole, or garbage is an
`ArchiveError` with file and offset. `next_record` finds the next record after it.

`warcio` takes 0.13 ms for the request and the response of a page of 40 KB without compression, and 8.9 ms with its own;
the sink takes 0.23 ms for these and the metadata, compressed and indexed (benchmarks/sink_warc.py)."""

from __future__ import annotations

import re
import time
import zlib
from base64 import b32encode
from collections.abc import Generator, Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b, sha1
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote

import msgspec

from gossamer.compression import GZIP_ERRORS, gunzip
from gossamer.cut import parse_cut
from gossamer.errors import ArchiveError
from gossamer.model import Exchange, Headers, Record
from gossamer.redact import CREDENTIALS
from gossamer.settings import VERSION
from gossamer.storage.base import without_page

PROFILES = "http://netpreserve.org/warc/1.1/revisit/"
OURS = b"gossamer: "
"""Prefix of the metadata line that holds the record itself, without the page, as JSON."""
_CODINGS = re.compile(rb"\b(gzip|deflate|br|zstd)\b", re.IGNORECASE)
_OF_THE_WIRE = frozenset((b"content-encoding", b"transfer-encoding", b"content-length"))
_ODD = re.compile(rb"[\r\0]")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ENDS_A_LINE = re.compile(r"[\r\n\0]")
_NO_TOKEN = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
_STAYS_IN_A_URI = "".join(chr(code) for code in range(0x21, 0x7F))
_TRUNCATED = {
    **dict.fromkeys(("disconnect", "content_length"), "disconnect"),
    "fetch_seconds": "time",
    **dict.fromkeys(("max_body_bytes", "max_decoded_bytes"), "length"),
    **dict.fromkeys(("transfer_encoding", "encoding"), "unspecified"),
}
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_encode = msgspec.json.Encoder().encode


class Original(NamedTuple):
    """The response record that a revisit refers to."""

    url: str
    date: str
    record_id: str


class WarcResponse(NamedTuple):
    """A response or revisit record, and its fields for an index."""

    data: bytes
    record_id: str
    url: str
    date: str
    status: int
    mime: str
    digest: str
    is_revisit: bool


def warcinfo(name: str, *, at: float, about: Iterable[tuple[str, str]]) -> bytes:
    """Encode the first record of a file: software and settings that wrote it."""
    fields = [("software", f"Gossamer/{VERSION}"), ("format", "WARC File Format 1.1"), *about]
    fields.append(("conformsTo", "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/"))
    named = [
        ("WARC-Type", "warcinfo"),
        ("WARC-Record-ID", _record_id(name, at, "warcinfo")),
        ("WARC-Date", warc_date(at)),
        ("WARC-Filename", name),
        ("Content-Type", "application/warc-fields"),
    ]
    return _record(_lines(named), _lines(fields).encode("utf-8", "replace"))


def response(record: Record, exchange: Exchange, original: Original | None, digest: str) -> WarcResponse:
    """Encode a response. With an `original`, or after a 304, it is a revisit without a body.

    `digest` is that of the body; after a 304, of the body that the server confirmed."""
    page, unchanged = record.page, record.page.status == 304
    is_revisit = bool(digest) and (unchanged or original is not None)
    url, date = target_uri(page.url), warc_date(page.fetched_at)
    record_id = _record_id(record.key, record.token, page.fetched_at, page.url, "response")
    # Values inserted unescaped contain no line ends, by construction.
    named = (
        f"WARC-Type: {'revisit' if is_revisit else 'response'}\r\nWARC-Record-ID: {record_id}\r\n"
        f"WARC-Target-URI: {url}\r\nWARC-Date: {date}\r\n"
    )
    if exchange.address:
        named += _lines((("WARC-IP-Address", exchange.address),))
    if exchange.version.startswith(("HTTP/2", "HTTP/3")):
        # Written as HTTP/1.1, since WARC has no other form.
        named += f"WARC-Protocol: h{exchange.version[5]}\r\n"
    if is_revisit:
        named += f"WARC-Profile: {PROFILES}{'server-not-modified' if unchanged else 'identical-payload-digest'}\r\n"
        if original is not None:
            named += (
                f"WARC-Refers-To: {original.record_id}\r\nWARC-Refers-To-Target-URI: {original.url}\r\n"
                f"WARC-Refers-To-Date: {original.date}\r\n"
            )
    if digest:
        named += f"WARC-Payload-Digest: {digest}\r\n"
    if page.cut and (why := _truncated(page.cut)):
        named += f"WARC-Truncated: {why}\r\n"
    named += "Content-Type: application/http; msgtype=response\r\n"
    headers = _answer_headers(exchange, record.body, unchanged)
    head = b"%b%b\r\n" % (_status_line(exchange, page.status), b"".join(headers))
    mime = next((value for name, value in exchange.headers if name.lower() == "content-type"), "")
    mime = mime.partition(";")[0].strip().lower() or "unk"
    data = _record(named, head, b"" if is_revisit else record.body)
    return WarcResponse(data, record_id, url, date, page.status, mime, digest, is_revisit)


def request(exchange: Exchange, answer: WarcResponse) -> bytes:
    """Encode a request without credentials, since archives are shared."""
    authority, slash, path = answer.url.partition("://")[2].partition("/")
    length = f"Content-Length: {len(exchange.posted)}\r\n" if exchange.posted else ""
    head = (
        f"{_token(exchange.method)} /{path.partition('#')[0] if slash else ''} HTTP/1.1\r\n"
        f"Host: {authority.rpartition('@')[2]}\r\n{_request_lines(exchange.sent)}{length}\r\n"
    )
    named = (
        f"WARC-Type: request\r\nWARC-Record-ID: {_record_id(answer.record_id, 'request')}\r\n"
        f"WARC-Target-URI: {answer.url}\r\nWARC-Date: {answer.date}\r\nWARC-Concurrent-To: {answer.record_id}\r\n"
        "Content-Type: application/http; msgtype=request\r\n"
    )
    return _record(named, head.encode("utf-8", "replace"), exchange.posted)


@lru_cache(256)
def _request_lines(sent: Headers) -> str:
    """Encode request headers; cached, since they are mostly those of the request before."""
    public = [(name, value) for name, value in sent if name.lower() not in CREDENTIALS]
    withheld = [name for name, _ in sent if name.lower() in CREDENTIALS]
    return _lines([*public, ("X-Crawler-Withheld", ", ".join(withheld))] if withheld else public)


def metadata(record: Record, answer: WarcResponse | None) -> bytes:
    """Encode the metadata of a visit: standard fields, and the record as JSON. A failed fetch has only this."""
    page = record.page
    via = f"via: {target_uri(page.referrer)}\r\n" if page.referrer else ""
    url, date = (answer.url, answer.date) if answer else (target_uri(page.url), warc_date(page.fetched_at))
    beside = f"WARC-Concurrent-To: {answer.record_id}\r\n" if answer else ""
    named = (
        "WARC-Type: metadata\r\n"
        f"WARC-Record-ID: {_record_id(record.key, record.token, page.fetched_at, page.url, 'metadata')}\r\n"
        f"WARC-Target-URI: {url}\r\nWARC-Date: {date}\r\n{beside}Content-Type: application/warc-fields\r\n"
    )
    fields = f"{via}fetchTimeMs: {round(page.elapsed * 1000)}\r\n".encode()
    return _record(named, b"".join((fields, OURS, _encode(without_page(record)), b"\r\n")))


def payload_digest(body: bytes, known: str = "") -> str:
    """Return the SHA-1 in WARC form; `known` is the same in hexadecimal, if already computed."""
    if found := digest_of_hex(known):
        return found
    return _labelled(sha1(body, usedforsecurity=False).digest())


def digest_of_hex(digest: str) -> str:
    """Convert a hexadecimal SHA-1 to WARC form; empty if invalid."""
    try:
        plain = bytes.fromhex(digest)
    except ValueError:
        return ""
    return _labelled(plain) if len(plain) == 20 else ""


def warc_date(at: float) -> str:
    """Format epoch seconds as a WARC date; in whole seconds, which every reader supports."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def target_uri(url: str) -> str:
    """Escape characters that are invalid in a URI."""
    if url.isascii() and url.isprintable() and " " not in url:
        return url
    return quote(url.encode("utf-8", "surrogatepass"), safe=_STAYS_IN_A_URI)


def _labelled(digest: bytes) -> str:
    return "sha1:" + b32encode(digest).decode()


def _record(named: str, head: bytes, body: bytes = b"") -> bytes:
    """Encode a record with these headers, each a complete line, and a block in two parts."""
    block = sha1(head, usedforsecurity=False)
    if body:
        block.update(body)
    digest, length = _labelled(block.digest()), len(head) + len(body)
    named = f"WARC/1.1\r\n{named}WARC-Block-Digest: {digest}\r\nContent-Length: {length}\r\n\r\n"
    return b"".join((named.encode("utf-8", "replace"), head, body, b"\r\n\r\n"))


def _lines(headers: Iterable[tuple[str, str]]) -> str:
    # Most values are printable, which is faster to test and excludes line ends.
    return "".join(
        [f"{name}: {value if value.isprintable() else _ENDS_A_LINE.sub(' ', value)}\r\n" for name, value in headers]
    )


def _truncated(cut: str) -> str:
    """Return the WARC-Truncated reason for a body; empty if something else was cut."""
    parts = parse_cut(cut)
    return next((word for reason, word in _TRUNCATED.items() if reason in parts), "")


def _answer_headers(exchange: Exchange, body: bytes, unchanged: bool) -> list[bytes]:
    """Return the header lines of the response, as received if known."""
    lines, decoded, length = [], exchange.wire_bytes != len(body), b"%d" % len(body)
    says_length = unchanged
    for name, value in _received(exchange):
        lowered = name.lower()
        if lowered == b"content-length" and value == length and not says_length:
            says_length = True
        elif lowered in _OF_THE_WIRE and (lowered != b"content-encoding" or decoded or _CODINGS.search(value)):
            name = b"X-Crawler-" + name
        lines.append(b"%b: %b\r\n" % (name, value))
    if not says_length:
        lines.append(b"Content-Length: %b\r\n" % length)
    return lines


def _received(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    """Return header names and values without line ends. Malformed lines are dropped, and folded ones are joined."""
    if not exchange.head:
        return [
            (_token(name).encode(), _ENDS_A_LINE.sub(" ", value).encode("utf-8", "replace"))
            for name, value in exchange.headers
        ]
    found: list[tuple[bytes, bytes]] = []
    for line in exchange.head.split(b"\n")[1:]:
        line = line.removesuffix(b"\r")
        name, colon, value = line.partition(b":")
        name = name.rstrip(b" \t")
        if line[:1] in (b" ", b"\t"):
            if found:
                found[-1] = (found[-1][0], found[-1][1] + b" " + _ODD.sub(b" ", line.strip(b" \t")))
        elif colon and _NAME.fullmatch(name) and not _ODD.search(value):
            found.append((name, value.strip(b" \t")))
    return found


def _status_line(exchange: Exchange, status: int) -> bytes:
    if exchange.head:
        return _ODD.sub(b" ", exchange.head.partition(b"\n")[0].removesuffix(b"\r")) + b"\r\n"
    version = exchange.version if exchange.version in ("HTTP/1.0", "HTTP/1.1") else "HTTP/1.1"
    return f"{version} {status} {_PHRASES.get(status, '')}\r\n".encode()


@lru_cache(1024)
def _token(name: str) -> str:
    return _NO_TOKEN.sub("_", name) or "_"


def _record_id(*parts: object) -> str:
    """Derive a record id from the visit, so that a repeated write gives the same id."""
    plain = blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    # The same as `UUID(hex=plain, version=5)`, in a third of the time.
    variant = "89ab"[int(plain[16], 16) & 3]
    return f"<urn:uuid:{plain[:8]}-{plain[8:12]}-5{plain[13:16]}-{variant}{plain[17:20]}-{plain[20:]}>"


FOLDER, SUFFIX, OPEN, INDEX = "archive", ".warc.gz", ".open", ".cdxj"

_READ_BYTES = 1 << 15
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 1 << 19
_GZIP = b"\x1f\x8b"
_MOST_DIGITS = 18
_FOLD = re.compile(rb"\r?\n[ \t]+")
_ENDS = (b"\r\n\r\n", b"\n\n")
_BEGIN = b"WARC/"
_PEEK_BYTES = 16
_WRONG_LENGTH = "the record's length differs from its Content-Length"
_ONE_BY_ONE = "records are not compressed individually; fix the file with `warcio recompress`"
_FIELD = re.compile(rb"^([^:\r\n]+):[ \t]*([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)", re.M)


class WarcRecord:
    """One record: its headers, and its block, which is read from the file on demand."""

    __slots__ = ("_left", "_lines", "_lowered", "_reader", "kind", "length", "offset")

    def __init__(self, offset: int, lines: bytes, reader: RecordReader) -> None:
        self.offset = offset
        """Byte offset in the file."""
        self._lines = lines
        self._lowered = lines.lower()
        self._reader = reader
        self.kind = self.header("warc-type").lower()
        length = self.header("content-length")
        if not length.isdecimal() or not length.isascii() or len(length) > _MOST_DIGITS:
            raise reader.fault("the record has no valid Content-Length")
        self.length = self._left = int(length)
        """Length of the block in bytes."""

    def header(self, name: str, default: str = "") -> str:
        """Return a header by its name in lower case."""
        start = self._lowered.find(f"\n{name}:".encode())
        if start < 0:
            return default
        start += len(name) + 2
        end = self._lines.find(b"\n", start)
        while end >= 0 and self._lines[end + 1 : end + 2] in (b" ", b"\t"):
            end = self._lines.find(b"\n", end + 1)
        value = self._lines[start : end if end >= 0 else None].strip()
        return (_FOLD.sub(b" ", value) if b"\n" in value else value).decode("utf-8", "replace")

    def headers(self) -> dict[str, str]:
        """All headers, with names in lower case."""
        found = _FIELD.findall(self._lines.partition(b"\n")[2])
        return {
            name.strip().decode("latin-1").lower(): _FOLD.sub(b" ", value).strip().decode("utf-8", "replace")
            for name, value in found
        }

    @property
    def url(self) -> str:
        """The URL of the record; empty if there is none."""
        return self.header("warc-target-uri").removeprefix("<").removesuffix(">")

    @property
    def original_url(self) -> str:
        """The URL of the response whose body a revisit record omits."""
        return self.header("warc-refers-to-target-uri", self.url).removeprefix("<").removesuffix(">")

    def head(self, limit: int = _HEAD_BYTES) -> bytes:
        """Read the HTTP head of the block, without the empty line after it; the body is next."""
        found, taken = self._reader.until_empty_line(min(limit, self._left))
        self._left -= taken
        return found

    def read(self, limit: int) -> bytes:
        """Read the rest of the block; ArchiveError if it is longer than `limit`."""
        if self._left > limit:
            raise ArchiveError(f"{self.url}: the body has {self._left} bytes; the limit is {limit}")
        return b"".join(self.chunks(limit + 1))

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the rest of the block in chunks of at most `size` bytes."""
        while self._left:
            piece = self._reader.some(min(self._left, size))
            self._left -= len(piece)
            yield piece


class RecordReader:
    """Reads one file from the offset of a record up to the offset of another one, or to the end."""

    def __init__(self, file: BinaryIO, path: Path, *, start: int = 0, stop: int | None = None) -> None:
        self._file = file
        self._path = path
        self._stop = stop
        self._at = start
        self._data = b""
        self._buffer = b""
        self._used = 0
        self._stream: Any = None
        self.offset = start
        """Offset of the current record."""
        file.seek(start)
        self._fill()
        self._is_gzip = self._data.startswith(_GZIP)

    def __iter__(self) -> Iterator[WarcRecord]:
        while self._begin():
            record = self._header()
            yield record
            for _ in record.chunks(_CHUNK_BYTES):
                pass
            self._end()

    @property
    def end(self) -> int:
        """The offset up to which the file has been read."""
        return self._at - len(self._data) - (0 if self._is_gzip else len(self._buffer) - self._used)

    def fault(self, what: str) -> ArchiveError:
        return ArchiveError(
            f"{self._path}, byte {self.offset}: {what}",
            hint="is it a complete WARC file?",
            offset=self.offset,
        )

    def some(self, limit: int) -> bytes:
        """Read at least one and at most `limit` bytes of the record."""
        if self._used >= len(self._buffer):
            self._buffer, self._used = self._more(), 0
            if not self._buffer:
                raise self.fault("the record is truncated")
        start, self._used = self._used, min(self._used + limit, len(self._buffer))
        return self._buffer[start : self._used] if start or self._used < len(self._buffer) else self._buffer

    def until_empty_line(self, limit: int) -> tuple[bytes, int]:
        """Read up to the next empty line; also return the bytes consumed with it; everything if there is none."""
        while True:
            view = self._buffer
            end, size = view.find(b"\r\n\r\n", self._used, self._used + limit), 4
            plain = view.find(b"\n\n", self._used, self._used + limit if end < 0 else end)
            if plain >= 0:
                end, size = plain, 2
            if end >= 0:
                start, self._used = self._used, end + size
                return view[start:end], end + size - start
            if len(view) - self._used >= limit or not (more := self._more()):
                start, self._used = self._used, min(self._used + limit, len(view))
                return view[start : self._used], self._used - start
            self._buffer, self._used = view[self._used :] + more, 0

    def _begin(self) -> bool:
        """Go to the next record; skip empty lines before it, and compressed members that contain nothing else."""
        self.offset = self.end
        while self._stop is None or self.offset < self._stop:
            if self._is_gzip:
                self._buffer, self._used = b"", 0
                if not self._data and not self._fill():
                    return False
                self._stream = gunzip()
            while self._used < len(self._buffer) or self._next():
                if self._buffer[self._used] not in b"\r\n":
                    return True
                self._used = len(self._buffer) - len(self._buffer[self._used :].lstrip(b"\r\n"))
                if not self._is_gzip:
                    self.offset = self.end
                    if self._stop is not None and self.offset >= self._stop:
                        return False
            if not self._is_gzip:
                return False
            self.offset = self.end
        return False

    def _next(self) -> bool:
        self._buffer, self._used = self._more(), 0
        return bool(self._buffer)

    def _header(self) -> WarcRecord:
        head, _ = self.until_empty_line(_HEAD_BYTES)
        if not head.startswith(_BEGIN):
            raise self.fault("not a WARC record")
        return WarcRecord(self.offset, head, self)

    def _end(self) -> None:
        """Check the end of a record: two empty lines or the next record, and the end of a compressed member."""
        if not self._is_gzip:
            while len(self._buffer) - self._used < _PEEK_BYTES and (more := self._more()):
                self._buffer, self._used = self._buffer[self._used :] + more, 0
            rest = self._buffer[self._used : self._used + _PEEK_BYTES]
            if not rest.startswith(_ENDS) and not (rest.lstrip(b"\r\n") or _BEGIN).startswith(_BEGIN):
                raise self.fault(_WRONG_LENGTH)
            return
        rest = self._buffer[self._used :]
        while not (self._stream is not None and self._stream.eof):
            rest += self._more()
            if len(rest) > _CHUNK_BYTES:
                break
        if found := rest.strip(b"\r\n"):
            raise self.fault(_ONE_BY_ONE if found.startswith(_BEGIN) else _WRONG_LENGTH)

    def _more(self) -> bytes:
        """Return more bytes of the file, decompressed; empty at the end of a compressed record and of the file."""
        if not self._is_gzip:
            if not self._data:
                self._fill()
            data, self._data = self._data, b""
            return data
        stream = self._stream
        while stream is not None and not stream.eof:
            if not self._data and not self._fill():
                raise self.fault("the record is truncated")
            try:
                piece: bytes = stream.decompress(self._data, _CHUNK_BYTES)
            except GZIP_ERRORS as error:
                raise self.fault(f"decompression failed ({error})") from None
            self._data = stream.unused_data if stream.eof else stream.unconsumed_tail
            if piece:
                return piece
        return b""

    def _fill(self) -> bool:
        self._data = self._file.read(_READ_BYTES)
        self._at += len(self._data)
        return bool(self._data)


def read_records(path: Path, *, start: int = 0, stop: int | None = None) -> Generator[WarcRecord]:
    """Yield the records of a file; read each before requesting the next."""
    try:
        with current(path).open("rb", buffering=0) as file:
            yield from RecordReader(file, path, start=start, stop=stop)
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror}", hint="does the file exist, and is it readable?") from error


def current(path: Path) -> Path:
    """Return the current path of a file: an open one may have been finished and renamed."""
    if path.name.endswith(OPEN) and not path.exists():
        return path.with_name(path.name.removesuffix(OPEN))
    return path


def epoch(date: str) -> float:
    """Parse a WARC date or an index time stamp to epoch seconds; 0 if it is neither."""
    digits = re.sub(r"\D", "", date)[:14]
    if len(digits) < 14 or not digits.isascii():
        return 0.0
    month, day, hour, minute, second = (int(digits[start : start + 2]) for start in (4, 6, 8, 10, 12))
    try:
        return datetime(int(digits[:4]), month, day, hour, minute, min(second, 59), tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


_SEEK_BYTES = 1 << 20
_TRIED_BYTES = 1 << 12
_MEMBER, _RECORD = re.compile(re.escape(_GZIP) + b"\x08"), re.compile(rb"(?<=[\n\0])WARC/\d")


def next_record(path: Path, after: int) -> int | None:
    """Return the offset of the first record after `after`; None if there is none.

    In a compressed file, that is a gzip member that starts like a record; in a plain one, a line that does. The content
    of a damaged record may look the same, which cannot be distinguished."""
    try:
        with path.open("rb", buffering=0) as file:
            is_gzip = file.read(2) == _GZIP
            pattern = _MEMBER if is_gzip else _RECORD
            file.seek(after)
            start, data = after, b""
            while True:
                more = file.read(_SEEK_BYTES)
                data += more
                for found in pattern.finditer(data, 1 if start == after else 0):
                    if more and len(data) - found.start() < _TRIED_BYTES:
                        break
                    if not is_gzip or _holds_a_record(data[found.start() : found.start() + _TRIED_BYTES]):
                        return start + found.start()
                if not more:
                    return None
                # A match at the end of a chunk is tested again with what follows.
                start, data = start + max(0, len(data) - _TRIED_BYTES), data[-_TRIED_BYTES:]
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror}", hint="does the file exist, and is it readable?") from error


def _holds_a_record(member: bytes) -> bool:
    try:
        return zlib.decompressobj(31).decompress(member, 16).lstrip(b"\r\n").startswith(b"WARC/")
    except zlib.error:
        return False
