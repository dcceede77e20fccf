"""Segments: the output files of a fleet's workers.

Workers of a fleet share no owner that could order their writes. So each worker appends records to its own segment, and
each record has the key of its page and the token of its lease. Readers merge the segments.

Invariants: only one process writes a segment; a record is durable before its outcome is committed; of several records
of a page, the one with the highest token is current.

Failure cases: a worker that crashed between write and commit leaves a record that was never committed. The page is
leased again with a higher token, so the new record wins. A late worker's record loses the same way. An incomplete last
line is skipped. If the shared folder is unmounted, the worker waits: it never creates the folder itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from gossamer.clock import SystemClock
from gossamer.errors import SinkError, SinkFull
from gossamer.model import PageRow, Record
from gossamer.storage import duckdb_views, files
from gossamer.storage.base import Keeps, Reader, SqlSource, without_page
from gossamer.storage.jsonl import JsonlSink, lines_with, rows_in, search_lines
from gossamer.storage.query import ByteCursor, CurrentRecords, Cursor, GoOn, Search, visit_of

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob


FOLDER, SUFFIX = "segments", ".jsonl"
_encode_into = msgspec.json.Encoder().encode_into
_decode = msgspec.json.Decoder(Record).decode


class _Answer(msgspec.Struct):
    status: int


class Stamp(msgspec.Struct):
    """The part of a record that determines which of several is current."""

    key: int
    token: int
    page: _Answer

    @property
    def weight(self) -> int:
        """The record with the highest weight wins. A 304 has none: the visit that it confirms stays current."""
        return self.token if self.page.status != 304 else 0


_decode_stamp = msgspec.json.Decoder(Stamp).decode


class SegmentSink:
    """A worker's own files: one record a line, with its key and token. A new file is created at each start, and after
    the last one became unreliable: its folder was unavailable or read-only."""

    def __init__(self, folder: Path, worker: str, *, is_there: Callable[[], bool] | None = None) -> None:
        """`is_there` checks, before a new file is created, that the folder is still the job's: an empty mount point is
        a folder too."""
        self._place = folder / FOLDER
        self._is_there = is_there
        self._worker = quote(worker, safe="")
        self._place.mkdir(parents=True, exist_ok=True)
        self._file: int | None = None
        self._size = 0
        self._is_linked = True
        self._open()

    def _open(self) -> int:
        """Open the file to write to. Never creates its folder: a missing one is unmounted."""
        number = 0
        while self._file is None:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._path = self._place / f"{self._worker}-{number}{SUFFIX}"
                self._file = os.open(self._path, flags, 0o644)
                self._size = 0
                # Some file systems do not support hard links.
                self._is_linked = os.fstat(self._file).st_nlink > 0
            except FileExistsError:
                number += 1
        return self._file

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        lines = bytearray()
        for record in records:
            record = without_page(record)
            _encode_into(record, lines, len(lines))
            lines += b"\n"
        await asyncio.get_running_loop().run_in_executor(None, self._store, bytes(lines))
        return {}

    def _store(self, lines: bytes) -> None:
        try:
            if self._file is not None and self._is_linked and not os.fstat(self._file).st_nlink:
                # The file was deleted: data written to it would be lost.
                self._close()
            if self._file is None and self._is_there is not None and not self._is_there():
                raise SinkFull(
                    f"{self._place.parent} is no longer the job's results folder",
                    hint="is it mounted? The worker waits for it, and stores nothing elsewhere",
                )
            file = self._open()
            files.write_at(file, lines, self._size)
            os.fsync(file)
        except OSError as error:
            self._truncate_partial(error)
            raise files.translate_folder_error(self._place, error) from error
        self._size += len(lines)

    def _truncate_partial(self, error: OSError) -> None:
        """Truncate a partial write. A file handle may stay broken after one fault, or report a sync that lost data:
        then the file is left as it is, and readers drop the duplicates."""
        if self._file is None:
            return
        try:
            os.ftruncate(self._file, self._size)
            keeps = files.is_full(error)
        except OSError:
            keeps = False
        if not keeps:
            self._close()
            if not self._size:
                with suppress(OSError):
                    self._path.unlink()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file)

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Do nothing: readers drop records that were not committed."""

    async def aclose(self) -> None:
        self._close()


def has_segments(folder: Path) -> bool:
    """Whether workers write segments to a folder."""
    return (folder / FOLDER).is_dir()


def segment_bytes(folder: Path) -> int:
    """Return the total size of all segments."""
    return sum(path.stat().st_size for path in (folder / FOLDER).glob(f"*{SUFFIX}"))


def stamps(folder: Path) -> Iterator[Stamp]:
    """Yield key and token of every record in the segments of a folder."""
    for path in sorted((folder / FOLDER).glob(f"*{SUFFIX}")):
        for stamp, _ in _lines(path, path.stat().st_size):
            yield stamp


def all_records(folder: Path) -> Iterator[Record]:
    """Yield every record in the segments of a folder, including those that are not current."""
    for path in sorted((folder / FOLDER).glob(f"*{SUFFIX}")):
        for _, line in _lines(path, path.stat().st_size):
            yield _decode(line)


def has_records(folder: Path) -> bool:
    """Whether workers have written any record there."""
    return any(path.stat().st_size for path in (folder / FOLDER).glob(f"*{SUFFIX}"))


def current_records(folder: Path, *, all_visits: bool = False) -> Iterator[Record]:
    """Yield the records of all segments: the current one of each page, or with `all_visits` one per visit."""
    parts = [(path, path.stat().st_size) for path in sorted((folder / FOLDER).glob(f"*{SUFFIX}"))]
    words, begins, count = CurrentRecords(), [], 0
    for path, size in parts:
        begins.append(count)
        for stamp, _ in _lines(path, size):
            words.add(visit_of(stamp.key, stamp.token) if all_visits else stamp.key, 0 if all_visits else stamp.weight)
            count += 1
    counts = words.flags()
    # Records written since the first pass are not read: whether they are current is unknown.
    for (path, size), begin in zip(parts, begins, strict=True):
        for number, (_, line) in enumerate(_lines(path, size), begin):
            if counts[number]:
                yield _decode(line)


def _lines(path: Path, size: int) -> Iterator[tuple[Stamp, bytes]]:
    """Yield complete lines of the first `size` bytes: a crash may have left an incomplete one."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            size -= len(line)
            if size < 0 or not line.endswith(b"\n"):
                return
            try:
                stamp = _decode_stamp(line)
            except msgspec.DecodeError as error:
                raise SinkError(f"{path}, line {number}: {error}", hint="was the file edited?") from None
            yield stamp, line


_MERGING = f"{FOLDER}-gathered-"
_STALE_SECONDS = 86_400.0


async def merge_segments(folder: Path) -> int:
    """Write pages.jsonl and items.jsonl from the segments in a folder, one record per page; return their number."""
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    # Two machines may do this at the same time.
    target = Path(tempfile.mkdtemp(prefix=_MERGING, dir=folder))
    target.chmod(0o755)
    sink = JsonlSink(target, {})
    count = 0
    try:
        some = []
        for record in current_records(folder):
            some.append(record)
            count += 1
            if len(some) >= 1000:
                await sink.write(some)
                some = []
        await sink.write(some)
    finally:
        await sink.aclose()
    for path in target.iterdir():
        path.replace(folder / path.name)
    target.rmdir()
    return count


def _sweep(folder: Path) -> None:
    """Delete the files that crashed merges left."""
    for path in folder.glob(f"{_MERGING}*"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < SystemClock().epoch() - _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def segment_readers(job: StoredJob) -> Iterator[Reader]:
    """Yield the reader of the segments in a job's folder."""
    if has_segments(job.folder):
        yield SegmentReader(job.folder)


class SegmentReader:
    """Reads `segments/`. `records` skips those that are not current, such as those of late workers."""

    keeps: frozenset[Keeps] = frozenset(("rows", "items", "items by page", "keys", "visits"))
    cursor: type[Cursor] = ByteCursor

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = str(folder / FOLDER)

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        return current_records(self._folder, all_visits=all_visits)

    def rows(self, terms: Search) -> Iterator[PageRow]:
        needles = terms.needles()
        for path in self._files():
            yield from (row for row in rows_in(lines_with(path, needles), terms) if row is not None)

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        newest = sorted(self._files(), key=lambda path: (-path.stat().st_mtime, path.name))
        return search_lines(newest, terms, after=after, limit=limit)

    def items(self) -> Iterator[bytes]:
        for record in current_records(self._folder):
            yield from map(msgspec.json.encode, record.items)

    def rejected(self) -> Iterator[bytes]:
        for record in current_records(self._folder):
            yield from map(msgspec.json.encode, record.rejected)

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        files = self._files()
        return {
            "_visits": [SqlSource(files, duckdb_views.RECORD_PAGES, has_keys=True)],
            "_items": [SqlSource(files, duckdb_views.RECORD_ITEMS)],
        }

    def _files(self) -> list[Path]:
        return sorted((self._folder / FOLDER).glob(f"*{SUFFIX}"))
