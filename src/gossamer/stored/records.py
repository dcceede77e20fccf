"""Reads the records of WARC files, ours and those of other tools, one at a time and in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gossamer.compression import GZIP_ERRORS, gunzip
from gossamer.errors import ArchiveError
from gossamer.sink.warc import OPEN

_READ_BYTES = 1 << 15
_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 1 << 19
_GZIP = b"\x1f\x8b"
_MOST_DIGITS = 18
_FOLD = re.compile(rb"\r?\n[ \t]+")
_ENDS = (b"\r\n\r\n", b"\n\n")
_BEGIN = b"WARC/"
_PEEK_BYTES = 16
_WRONG_LENGTH = "the record is not as long as it says"
_ONE_BY_ONE = "records are not compressed one by one, so that none can be found; `warcio recompress` mends it"
_FIELD = re.compile(rb"^([^:\r\n]+):[ \t]*([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)", re.M)


class WarcRecord:
    """One record: its headers, and its block, which is read from the file as it is asked for."""

    __slots__ = ("_left", "_lines", "_lowered", "_reader", "kind", "length", "offset")

    def __init__(self, offset: int, lines: bytes, reader: RecordReader) -> None:
        self.offset = offset
        """Where in the file it begins."""
        self._lines = lines
        self._lowered = lines.lower()
        self._reader = reader
        self.kind = self.header("warc-type").lower()
        length = self.header("content-length")
        if not length.isdecimal() or not length.isascii() or len(length) > _MOST_DIGITS:
            raise reader.fault("the record does not say how long it is")
        self.length = self._left = int(length)
        """Bytes of the block."""

    def header(self, name: str, default: str = "") -> str:
        """A header by its name in lower case."""
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
        """All of them, names in lower case."""
        found = _FIELD.findall(self._lines.partition(b"\n")[2])
        return {
            name.strip().decode("latin-1").lower(): _FOLD.sub(b" ", value).strip().decode("utf-8", "replace")
            for name, value in found
        }

    @property
    def url(self) -> str:
        """The URL that the record is about; empty if there is none."""
        return self.header("warc-target-uri").removeprefix("<").removesuffix(">")

    @property
    def original_url(self) -> str:
        """The URL of the answer whose body a revisit record does not repeat."""
        return self.header("warc-refers-to-target-uri", self.url).removeprefix("<").removesuffix(">")

    def head(self, limit: int = _HEAD_BYTES) -> bytes:
        """The HTTP head that the block begins with, without the empty line behind it; what follows is the body."""
        found, taken = self._reader.until_empty_line(min(limit, self._left))
        self._left -= taken
        return found

    def read(self, limit: int) -> bytes:
        """What is left of the block; an ArchiveError if that is longer than `limit`."""
        if self._left > limit:
            raise ArchiveError(f"{self.url}: a body of {self._left} bytes, {limit} are the limit")
        return b"".join(self.pieces(limit + 1))

    def pieces(self, size: int) -> Iterator[bytes]:
        """What is left of the block, in pieces of at most `size` bytes."""
        while self._left:
            piece = self._reader.some(min(self._left, size))
            self._left -= len(piece)
            yield piece


class RecordReader:
    """Reads one file from a place at which a record begins, up to another such place or to the end."""

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
        """Where the record begins that is being read."""
        file.seek(start)
        self._fill()
        self._is_gzip = self._data.startswith(_GZIP)

    def __iter__(self) -> Iterator[WarcRecord]:
        while self._begin():
            record = self._header()
            yield record
            for _ in record.pieces(_PIECE_BYTES):
                pass
            self._end()

    @property
    def end(self) -> int:
        """The place up to which the file has been taken."""
        return self._at - len(self._data) - (0 if self._is_gzip else len(self._buffer) - self._used)

    def fault(self, what: str) -> ArchiveError:
        return ArchiveError(
            f"{self._path}, byte {self.offset}: {what}",
            hint="is it a WARC file, and is all of it there?",
            offset=self.offset,
        )

    def some(self, limit: int) -> bytes:
        """At least one and at most `limit` bytes of the record."""
        if self._used >= len(self._buffer):
            self._buffer, self._used = self._more(), 0
            if not self._buffer:
                raise self.fault("the record is cut off")
        start, self._used = self._used, min(self._used + limit, len(self._buffer))
        return self._buffer[start : self._used] if start or self._used < len(self._buffer) else self._buffer

    def until_empty_line(self, limit: int) -> tuple[bytes, int]:
        """What stands before the next empty line, and the bytes taken with that line; all of it if there is none."""
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
        """Go to the next record; empty lines before it, and compressed members that hold nothing else, are passed."""
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
            raise self.fault("this is no WARC record")
        return WarcRecord(self.offset, head, self)

    def _end(self) -> None:
        """Behind a record's block: two empty lines or the next record, and in a compressed file the member's end."""
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
            if len(rest) > _PIECE_BYTES:
                break
        if found := rest.strip(b"\r\n"):
            raise self.fault(_ONE_BY_ONE if found.startswith(_BEGIN) else _WRONG_LENGTH)

    def _more(self) -> bytes:
        """Further bytes of the file, decompressed; none at the end of a compressed record, and of the file."""
        if not self._is_gzip:
            if not self._data:
                self._fill()
            data, self._data = self._data, b""
            return data
        stream = self._stream
        while stream is not None and not stream.eof:
            if not self._data and not self._fill():
                raise self.fault("the record is cut off")
            try:
                piece: bytes = stream.decompress(self._data, _PIECE_BYTES)
            except GZIP_ERRORS as error:
                raise self.fault(f"it cannot be decompressed ({error})") from None
            self._data = stream.unused_data if stream.eof else stream.unconsumed_tail
            if piece:
                return piece
        return b""

    def _fill(self) -> bool:
        self._data = self._file.read(_READ_BYTES)
        self._at += len(self._data)
        return bool(self._data)


def read_records(path: Path, *, start: int = 0, stop: int | None = None) -> Generator[WarcRecord]:
    """The records of a file; each is to be read before the next is asked for."""
    try:
        with current(path).open("rb", buffering=0) as file:
            yield from RecordReader(file, path, start=start, stop=stop)
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror}", hint="is the file still there, and may it be read?") from error


def current(path: Path) -> Path:
    """A file by the name that it has now: one that was being written may be finished."""
    if path.name.endswith(OPEN) and not path.exists():
        return path.with_name(path.name.removesuffix(OPEN))
    return path
