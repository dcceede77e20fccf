"""The CDXJ index of one WARC file: found by bisection, made anew where there is none."""

from __future__ import annotations

import logging
import mmap
import os
import re
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec

from gossamer import urls
from gossamer.errors import ArchiveError
from gossamer.sink import warc_index
from gossamer.sink.warc import INDEX, OPEN, SUFFIX
from gossamer.sink.warc_records import target_uri
from gossamer.stored.page import Version
from gossamer.stored.records import read_records
from gossamer.stored.seek import next_record
from gossamer.stored.visits import epoch

log = logging.getLogger("gossamer.stored")
_decode = msgspec.json.Decoder(warc_index.Capture).decode
_CAPTURE_HEAD_BYTES = 1 << 16
_NUMBER = re.compile(r"[0-9]{1,18}")


class Captures:
    """What one file holds. `drafts` is a folder for the indexes that have to be made; if it is `shared`, one that
    another process has made is good."""

    def __init__(self, path: Path, drafts: Path, *, shared: bool = False) -> None:
        self.path = path
        beside = path.with_name(path.name.removesuffix(OPEN).removesuffix(SUFFIX) + INDEX)
        self._beside = beside if beside.is_file() and not path.name.endswith(OPEN) else None
        name = blake2b(os.fsencode(path.absolute()), digest_size=12).hexdigest()
        self._draft = drafts / f"{name}{INDEX}"
        self._drawn_from = -1
        self._shared = shared

    @property
    def index(self) -> Path:
        """The sorted index, up to date with a file that is being written."""
        if self._beside is not None:
            return self._beside
        if self._shared and self._draft.exists():
            return self._draft
        source = self._lines_path() or self.path
        try:
            size = source.stat().st_size
        except OSError as error:
            raise ArchiveError(f"{source}: {error.strerror}", hint="has the crawl gone on? ask again") from error
        if size != self._drawn_from:
            lines = sorted(self._drawn(source))
            new = self._draft.with_name(f"{self._draft.name}.{os.getpid()}")
            new.write_bytes(b"".join(lines))
            new.replace(self._draft)
            self._drawn_from = size
        return self._draft

    def _lines_path(self) -> Path | None:
        """The lines that the writer of an open file keeps, in the order of its records."""
        path = self.path.with_name(self.path.name.removesuffix(SUFFIX + OPEN) + INDEX + OPEN)
        return path if self.path.name.endswith(OPEN) and path.is_file() else None

    def _drawn(self, source: Path) -> Iterator[bytes]:
        if source != self.path:
            yield from warc_index.read_index(source, self.path.stat().st_size)[0]
            return
        start: int | None = 0
        while start is not None:
            try:
                yield from self._found(start)
                return
            except ArchiveError as error:
                # Whoever reads the file comes to the same place, and is told there.
                log.warning("%s", error)
                start = next_record(self.path, max(start, error.offset))

    def _found(self, start: int) -> Iterator[bytes]:
        name = self.path.name.removesuffix(OPEN)
        for record in read_records(self.path, start=start):
            if record.kind in ("response", "revisit"):
                # Up to the end of its HTTP head a line needs it, and no further.
                headers = {**record.headers(), "warc-type": record.kind, "warc-target-uri": record.url}
                named = "".join(f"{key}: {value}\r\n" for key, value in headers.items()).encode()
                head = record.head(_CAPTURE_HEAD_BYTES)
                member = warc_index.Member(record.offset, 0, b"WARC/1.1\r\n" + named + b"\r\n" + head + b"\r\n\r\n")
                if line := warc_index.line_of_member(member, name):
                    yield line

    def lines(self) -> Iterator[bytes]:
        """All lines, sorted."""
        with self.index.open("rb") as file:
            for line in file:
                if not line.startswith((b"!", b" ")):
                    yield line

    def offsets(self) -> array[int]:
        """Where captures begin, in the order of the file."""
        found = (self._capture(line) for line in self.lines())
        return array("Q", sorted({int(capture.offset) for capture in found}))

    def versions(self, url: str) -> Iterator[Version]:
        """The captures of a URL, as it is written in the index."""
        with self.index.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                for key in warc_index.keys(url):
                    for line in _lines_of(view, f"{key} ".encode()):
                        version = self.version(line)
                        if version.url == url or target_uri(urls.normal(version.url) or "") == url:
                            yield version

    def version(self, line: bytes) -> Version:
        """A line as a version."""
        capture = self._capture(line)
        return Version(
            url=capture.url,
            fetched_at=epoch(line.split(b" ", 2)[1].decode("ascii", "replace")),
            status=int(capture.status) if _NUMBER.fullmatch(capture.status) else 0,
            type="" if capture.mime in ("unk", "warc/revisit") else capture.mime,
            digest=capture.digest,
            is_revisit=capture.mime == "warc/revisit",
            file=str(self.path),
            offset=int(capture.offset),
        )

    def _capture(self, line: bytes) -> warc_index.Capture:
        try:
            capture = _decode(line.split(b" ", 2)[2])
            if not _NUMBER.fullmatch(capture.offset):
                raise ValueError("its offset is no number")
            return capture
        except (ValueError, IndexError) as error:
            raise ArchiveError(
                f"{self.index}: {line[:80]!r} is no line of an index ({error})",
                hint="without the file, the index is made anew",
            ) from None


def _lines_of(view: mmap.mmap, key: bytes) -> Iterator[bytes]:
    position = _first(view, key)
    while view[position : position + len(key)] == key:
        end = view.find(b"\n", position)
        end = end if end >= 0 else len(view)
        yield view[position:end]
        position = end + 1


def _first(view: mmap.mmap, key: bytes) -> int:
    """Where the first line begins that is not before `key`."""
    low, high = 0, len(view)
    while low < high:
        start = view.rfind(b"\n", low, (low + high) // 2) + 1 or low
        if view[start : start + len(key)] < key:
            end = view.find(b"\n", start)
            low = end + 1 if end >= 0 else high
        else:
            high = start
    return low
