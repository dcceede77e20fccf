"""JSON lines: the sink, exactly-once across crashes, its reader, and the file of rejected items.

A line is valid if it ends with a newline. Text after the last newline is still being written, or a crash left it and
the next run truncates it; likewise the last frame of a compressed file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from gossamer.compression import GZIP_ERRORS, gunzip, gzip, zstd, zstd_frame
from gossamer.errors import SinkError
from gossamer.model import PageRow, Record
from gossamer.storage import duckdb_views, query
from gossamer.storage.base import Keeps, Opening, Reader, SqlSource
from gossamer.storage.files import AppendedFiles
from gossamer.storage.query import ByteCursor, Cursor, GoOn, Search, TimeCursor

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob


REJECTED = "items-rejected.jsonl"
_encode_into = msgspec.json.Encoder().encode_into


class RejectedSink:
    """`items-rejected.jsonl` in a job's folder, exactly-once across crashes; created with the first rejected item."""

    def __init__(self, folder: Path, marks: Mapping[str, int]) -> None:
        self._folder = folder
        self._files: AppendedFiles | None = None
        if REJECTED in marks or (folder / REJECTED).exists():
            self._files = AppendedFiles(folder, (REJECTED,), marks)

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        lines = rejected_lines(records)
        if not lines:
            return {}
        if self._files is None:
            self._files = AppendedFiles(self._folder, (REJECTED,), {})
        return await self._files.append({REJECTED: lines})

    async def rewind(self, marks: Mapping[str, int]) -> None:
        if self._files is not None:
            self._files.rewind(marks)

    async def aclose(self) -> None:
        if self._files is not None:
            self._files.close()


def rejected_lines(records: Sequence[Record]) -> bytearray:
    """Encode the rejected items of records as lines; usually none."""
    lines = bytearray()
    for record in records:
        for one in record.rejected:
            _encode_into(one, lines, len(lines))
            lines += b"\n"
    return lines


def count_rejected(folder: Path) -> int:
    """Count the rejected items of a job."""
    try:
        with (folder / REJECTED).open("rb") as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))
    except FileNotFoundError:
        return 0


PAGES, ITEMS = "pages.jsonl", "items.jsonl"
SUFFIXES: Mapping[str, str] = {"": "", "zstd": ".zst", "gzip": ".gz"}
_READ_BYTES = 1 << 18


class JsonlSink:
    """`pages.jsonl` and `items.jsonl` in a folder, written only by the owner of the frontier.

    With a coding, zstd or gzip, each call of `write` appends a frame; tools read several frames as one stream."""

    def __init__(self, folder: Path, marks: Mapping[str, int], *, coding: str = "") -> None:
        self._pages, self._items = PAGES + SUFFIXES[coding], ITEMS + SUFFIXES[coding]
        self._coded = _CODINGS[coding]
        self._files = AppendedFiles(folder, (self._pages, self._items), marks)

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        pages, items = bytearray(), bytearray()
        for record in records:
            _line(pages, record.page)
            for item in record.items:
                _line(items, item)
        return await self._files.append({self._pages: self._coded(pages), self._items: self._coded(items)})

    async def rewind(self, marks: Mapping[str, int]) -> None:
        self._files.rewind(marks)

    async def aclose(self) -> None:
        self._files.close()


def open_jsonl(opening: Opening) -> JsonlSink:
    """Open the sink `jsonl`, `jsonl:zstd`, or `jsonl:gzip`."""
    return JsonlSink(opening.folder, opening.marks or {}, coding=opening.target)


def lines_of(folder: Path, name: str) -> Iterator[bytes]:
    """Yield the complete lines of `pages.jsonl` or `items.jsonl`, compressed or not; FileNotFoundError if neither
    exists. An incomplete last line is skipped."""
    suffix = next((one for one in list(SUFFIXES.values())[::-1] if (folder / (name + one)).exists()), "")
    path, rest = folder / (name + suffix), b""
    with path.open("rb") as file:
        for piece in _plain_pieces(file, suffix, path):
            lines = (rest + piece).splitlines(keepends=True)
            rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
            yield from lines


def _plain_pieces(file: IO[bytes], suffix: str, path: Path) -> Iterator[bytes]:
    """Yield a file's content, decompressed; of an incomplete frame, as much as possible."""
    left = os.fstat(file.fileno()).st_size
    inflate: Any = None
    while left > 0 and (data := file.read(min(_READ_BYTES, left))):
        left -= len(data)
        while data and suffix:
            if inflate is None or inflate.eof:
                inflate = gunzip() if suffix == ".gz" else zstd.ZstdDecompressor()
            try:
                piece = inflate.decompress(data)
            except (*GZIP_ERRORS, zstd.ZstdError) as error:
                raise SinkError(f"{path}: {error}", hint="was the file edited?") from None
            data = inflate.unused_data if inflate.eof else b""
            yield piece
        if not suffix:
            yield data


def _line(buffer: bytearray, value: object) -> None:
    _encode_into(value, buffer, len(buffer))
    buffer += b"\n"


def _zstd(data: bytearray) -> bytes:
    return zstd_frame(data) if data else b""


def _gzip(data: bytearray) -> bytes:
    return gzip(data) if data else b""


_CODINGS: Mapping[str, Callable[[bytearray], bytes | bytearray]] = {"": lambda data: data, "zstd": _zstd, "gzip": _gzip}

_CHUNK_BYTES = 1 << 20
_LOOK_BYTES = 64 << 20
"""Max bytes that one search reads; the next one continues there."""
_LATE_SECONDS = 3600.0
"""Lines are in the order of storage, at most this long after the fetch."""
_decode_row = msgspec.json.Decoder(PageRow).decode


class _RecordLine(msgspec.Struct):
    """A line of a segment, without its items."""

    page: PageRow


_decode_line = msgspec.json.Decoder(_RecordLine).decode


def jsonl_readers(job: StoredJob) -> Iterator[Reader]:
    """Yield the reader of pages.jsonl and items.jsonl in a job's folder, compressed or not."""
    pages, items = lines_name(job.folder, PAGES), lines_name(job.folder, ITEMS)
    if pages is not None or items is not None:
        yield JsonlReader(job.folder, pages, items)


def lines_name(folder: Path, name: str) -> str | None:
    """Return the name of a file of lines in this folder, with the suffix of its compression; None if missing."""
    return next((name + suffix for suffix in SUFFIXES.values() if (folder / (name + suffix)).exists()), None)


class JsonlReader:
    """Reads `pages.jsonl` and `items.jsonl`. Searches a plain file from its end, and scans a compressed one."""

    def __init__(self, folder: Path, pages: str | None, items: str | None) -> None:
        self._folder, self._pages, self._items = folder, pages, items
        kept: set[Keeps] = {"rows", "visits"} if pages is not None else set()
        self.keeps: frozenset[Keeps] = frozenset(kept | ({"items"} if items is not None else set()))
        self.place = str(folder / (pages or items or ""))
        self.cursor: type[Cursor] = ByteCursor if pages == PAGES else TimeCursor

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        return self._records() if all_visits else query.current_by_url(self._records)

    def _records(self) -> Iterator[Record]:
        for number, line in enumerate(lines_of(self._folder, PAGES), 1):
            try:
                yield Record(key=0, token=0, page=_decode_row(line))
            except msgspec.DecodeError as error:
                raise SinkError(f"{self.place}, line {number}: {error}", hint="was the file edited?") from None

    def rows(self, terms: Search) -> Iterator[PageRow]:
        return (row for row in self._found(terms) if row is not None)

    def _found(self, terms: Search) -> Iterator[PageRow | None]:
        """Yield the matching rows; None stands for some that do not match."""
        lines = (
            lines_with(self._folder / PAGES, terms.needles()) if self._pages == PAGES else lines_of(self._folder, PAGES)
        )
        return rows_in(lines, terms)

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        if self._pages == PAGES:
            return search_lines([self._folder / PAGES], terms, after=after, limit=limit)
        return query.newest(self._found(terms), terms, after=after, limit=limit, go_on=go_on)

    def items(self) -> Iterator[bytes]:
        return (line[:-1] for line in lines_of(self._folder, ITEMS))

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        pages, items = self._pages, self._items
        return {
            "_visits": [SqlSource([self._folder / pages], duckdb_views.ROW_PAGES)] if pages is not None else [],
            "_items": [SqlSource([self._folder / items], duckdb_views.ITEM_LINES)] if items is not None else [],
        }


def rows_in(lines: Iterator[bytes], terms: Search) -> Iterator[PageRow | None]:
    """Yield the matching rows; None for lines that do not match. Invalid lines are skipped."""
    needles = terms.needles()
    for line in lines:
        row = None
        if not needles or any(needle in line for needle in needles):
            row = row_of(line)
        yield row if row is not None and terms.fits(row) else None


def lines_with(path: Path, needles: Sequence[bytes] = ()) -> Iterator[bytes]:
    """Yield the complete lines of a plain file, without those of chunks that contain none of the needles."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        left, rest = os.fstat(file.fileno()).st_size, b""
        while left > 0 and (data := file.read(min(_CHUNK_BYTES, left))):
            left -= len(data)
            end = data.rfind(b"\n") + 1
            if not end:
                rest += data
                continue
            piece, rest = rest + data[:end], data[end:]
            if not needles or any(needle in piece for needle in needles):
                yield from piece.splitlines(keepends=True)


def row_of(line: bytes) -> PageRow | None:
    """Decode the row of a page, from a row or a record; None if the line is neither."""
    with suppress(msgspec.DecodeError):
        return _decode_row(line) if line.startswith(b'{"url":') else _decode_line(line).page
    return None


def search_lines(
    files: Sequence[Path], terms: Search, *, after: Any, limit: int
) -> tuple[list[PageRow], ByteCursor | None]:
    """Search files backwards, starting with the newest; return matching pages and a cursor to continue."""
    names = [path.name for path in files]
    if after is not None and after.file not in names:
        return [], None
    first = 0 if after is None else names.index(after.file)
    found: list[PageRow] = []
    left, needles = _LOOK_BYTES, terms.needles()
    for path in files[first:]:
        before = after.before if after is not None and after.file == path.name else path.stat().st_size
        begin = before
        for begin, line in _backwards(path, before, needles):
            if line and (row := row_of(line)) is not None:
                if terms.fits(row):
                    found.append(row)
                elif terms.since is not None and row.fetched_at < terms.since - _LATE_SECONDS:
                    break
            if len(found) >= limit or before - begin >= left:
                return found, ByteCursor(path.name, begin)
        left -= before - begin
    return found, None


def _backwards(path: Path, before: int, needles: tuple[bytes, ...]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that end before a byte offset, last one first, each with the offset of its start.

    Lines without a needle may be skipped; an empty line stands for many in a row."""
    with path.open("rb") as file:
        rest, end = b"", before
        while end > 0:
            begin = max(0, end - _CHUNK_BYTES)
            file.seek(begin)
            data = file.read(end - begin) + rest
            head = data.find(b"\n")
            if head >= 0 and needles and not any(needle in data for needle in needles):
                rest, end = data[:head], begin
                yield begin + head + 1, b""
                continue
            lines = data.split(b"\n")
            # The first part may be the end of a line that starts in the chunk before.
            rest = lines[0]
            at = begin + len(data)
            for line in reversed(lines[1:]):
                at -= len(line)
                if line and (not needles or any(needle in line for needle in needles)):
                    yield at, line
                at -= 1
            end = begin
        if rest:
            yield 0, rest
