"""From the records of a WARC file to the pages that a spider saw: answer, request and metadata put together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gossamer.errors import ArchiveError, BadEncoding, FetchError
from gossamer.model import REDIRECTS, Headers, PageRow
from gossamer.sink.warc_records import OURS
from gossamer.stored.page import StoredPage
from gossamer.stored.records import WarcRecord, read_records

MAX_BODY_BYTES = 128 * 1024 * 1024
"""A body that is longer is not taken into memory; `Stored.stream` reads it in pieces."""
TRUNCATED = "truncated:?"
"""What is known of a page where a file of another tool says that it is only a part."""
_NOTED_BYTES = 64 * 1024 * 1024
_ASIDE = "x-crawler-"
_STATUS = re.compile(rb"\d{1,3}")
_CHUNK = re.compile(rb"\s*([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
Original = Callable[[WarcRecord], bytes]
"""Finds the body that a revisit record speaks of."""


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """What the crawl that wrote a file noted of a page."""

    key: int = 0
    token: int = 0
    page: PageRow | None = None
    label: str = ""
    meta: dict[str, Any] | None = None
    items: list[msgspec.Raw] = []


_decode_noted = msgspec.json.Decoder(Noted).decode


class Head(msgspec.Struct, frozen=True):
    """The status and the headers of an answer; `codings` still stand before the body."""

    status: int
    headers: Headers
    codings: tuple[str, ...]
    is_chunked: bool

    @property
    def is_page(self) -> bool:
        """Whether a spider is shown such an answer."""
        if self.status in REDIRECTS:
            return not any(name == "location" for name, _ in self.headers)
        return 200 <= self.status < 400 and self.status != 304


class WarcPages:
    """The pages in a part of a file, in their order."""

    def __init__(
        self,
        path: Path,
        original: Original,
        *,
        start: int = 0,
        stop: int | None = None,
        skip: frozenset[int] = frozenset(),
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._path = path
        self._original = original
        self._start, self._stop = start, stop
        self._skip = skip
        self._max_body_bytes = max_body_bytes
        self._held: StoredPage | None = None
        self.faults: list[ArchiveError] = []
        """Pages that could not be had, though the file is well: their bodies are too long, or elsewhere and gone."""

    def __iter__(self) -> Iterator[StoredPage]:
        self._held = None
        try:
            yield from self._visits()
        except ArchiveError as error:
            # It is a record behind the page that is broken.
            if self._held is not None and self._held.offset < error.offset:
                yield self._held
            raise
        if self._held is not None:
            yield self._held

    def _visits(self) -> Iterator[StoredPage]:
        """The pages, but for the last one if nothing behind it says that it is complete: that one is held."""
        answer_id = date = ""
        for record in read_records(self._path, start=self._start, stop=self._stop):
            page = self._held
            if record.kind in ("response", "revisit"):
                self._held = None
                if page is not None:
                    yield page
                answer_id, date = record.header("warc-record-id"), record.header("warc-date")
                if record.offset not in self._skip and (found := self._answer(record)) is not None:
                    self._held = _dated(found, date)
            elif page is None or record.header("warc-concurrent-to", answer_id) != answer_id:
                continue
            elif record.kind == "request":
                self._held = _asked(page, record)
            elif record.kind == "metadata" and (noted := noted_in(record)) is not None:
                self._held = None
                yield _known(page, noted, date)

    def _answer(self, record: WarcRecord) -> StoredPage | None:
        url = record.url
        if url[:4].lower() != "http" or "http" not in record.header("content-type", "http").lower():
            return None
        head = read_head(record)
        if head is None or not head.is_page:
            if head is None and record.kind == "response":
                self._miss(record, "its block does not begin as an answer does")
            return None
        if record.header("warc-segment-number"):
            self._miss(record, "it is in several records, which are not put together")
            return None
        try:
            if record.kind == "revisit":
                body = self._original(record)
            else:
                body = decoded(record.read(self._max_body_bytes), head, self._max_body_bytes)
        except FetchError as error:
            self._miss(record, str(error))
            return None
        except ArchiveError as error:
            if error.offset == record.offset and record.kind == "response":
                raise
            self._miss(record, str(error))
            return None
        return StoredPage(
            url=url,
            status=head.status,
            headers=head.headers,
            body=body,
            cut=TRUNCATED if record.header("warc-truncated", "") else "",
            file=str(self._path),
            offset=record.offset,
        )

    def _miss(self, record: WarcRecord, why: str) -> None:
        self.faults.append(ArchiveError(f"{record.url} ({self._path}, byte {record.offset}): {why}"))


def read_head(record: WarcRecord) -> Head | None:
    """The head of an answer; the record's body is next. None if it is not HTTP.

    Headers that our own files set aside, because the body is stored decoded, stand in their places again."""
    status_line, _, lines = record.head().partition(b"\n")
    parts = status_line.split(None, 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP") or not _STATUS.fullmatch(parts[1]):
        return None
    headers = _fields(lines)
    aside = {name.removeprefix(_ASIDE) for name, _ in headers if name.startswith(_ASIDE)}
    wire = tuple((name, value) for name, value in headers if name not in aside)
    codings = tuple(value for name, value in wire if name == "content-encoding")
    is_chunked = any(name == "transfer-encoding" and "chunked" in value.lower() for name, value in wire)
    shown = tuple((name.removeprefix(_ASIDE), value) for name, value in wire) if aside else wire
    return Head(int(parts[1]), shown, codings, is_chunked)


def _fields(lines: bytes) -> list[tuple[str, str]]:
    """The fields of a head, names in lower case."""
    if lines.isascii() and b"\n " not in lines and b"\n\t" not in lines and lines.count(b"\r") == lines.count(b"\r\n"):
        # What nearly all heads are like is taken apart at once.
        parts = (line.partition(":") for line in lines.decode("ascii").replace("\r\n", "\n").split("\n"))
        return [(field.strip().lower(), value.strip()) for field, colon, value in parts if colon]
    headers: list[tuple[str, str]] = []
    for line in re.sub(rb"\r?\n[ \t]+", b" ", lines).splitlines():
        name, colon, content = line.partition(b":")
        if colon:
            headers.append((name.strip().decode("latin-1").lower(), _text(content.strip())))
    return headers


def decoded(body: bytes, head: Head, limit: int) -> bytes:
    """The body behind what other tools leave as it came over the wire: chunks and Content-Encoding."""
    if head.is_chunked:
        body = _joined(body)
    if head.codings:
        # Our own files have none, and the room of the downloader takes long to load.
        from gossamer.download import decoding

        try:
            body = decoding.decode(body, decoding.encodings(list(head.codings)), limit)
        except BadEncoding:
            # Some tools store the body decoded, and leave the header as it was.
            return body
    return body


def noted_in(record: WarcRecord) -> Noted | None:
    """What our own metadata record says; None in one of another tool."""
    block = record.read(_NOTED_BYTES)
    found = block.find(OURS) if block.startswith(OURS) else block.find(b"\n" + OURS) + 1
    if not block.startswith(OURS, found):
        return None
    try:
        return _decode_noted(block[found + len(OURS) :])
    except msgspec.DecodeError:
        return None


def epoch(date: str) -> float:
    """A WARC date, or the time stamp of an index, in epoch seconds; 0 if it is neither."""
    digits = re.sub(r"\D", "", date)[:14]
    if len(digits) < 14 or not digits.isascii():
        return 0.0
    month, day, hour, minute, second = (int(digits[start : start + 2]) for start in (4, 6, 8, 10, 12))
    try:
        return datetime(int(digits[:4]), month, day, hour, minute, min(second, 59), tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def _asked(page: StoredPage, record: WarcRecord) -> StoredPage:
    method = record.head().partition(b" ")[0].decode("latin-1")
    if method in ("GET", ""):
        return page
    return msgspec.structs.replace(page, method=method, posted=record.read(MAX_BODY_BYTES))


def _dated(page: StoredPage, date: str) -> StoredPage:
    return msgspec.structs.replace(page, fetched_at=epoch(date))


def _known(page: StoredPage, noted: Noted, date: str) -> StoredPage:
    row = noted.page
    return msgspec.structs.replace(
        page,
        url=row.url if row is not None else page.url,
        fetched_at=row.fetched_at if row is not None and row.fetched_at else epoch(date),
        label=noted.label,
        meta=noted.meta,
        row=row,
        key=noted.key,
        token=noted.token,
        items=len(noted.items),
    )


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _joined(body: bytes) -> bytes:
    """The chunks of a body put together; a body that only claims to have some is left as it is."""
    pieces: list[bytes] = []
    position = 0
    while (found := _CHUNK.match(body, position)) is not None:
        size = int(found[1], 16)
        if not size:
            return b"".join(pieces)
        position = found.end() + size
        pieces.append(body[found.end() : position])
    return b"".join(pieces) if pieces and not body[position:].strip() else body
