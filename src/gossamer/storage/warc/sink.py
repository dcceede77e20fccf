"""The WARC sink: pages as received, one gzip member per record, with a CDXJ index per file.

A visit is appended as response, request, and metadata records. Equal bodies are stored once: later ones are revisit
records that refer to the first.

Invariants: files are append-only, and only one process writes a file; a file named `.open` is not finished; the marks
in the frontier give the committed length of each file.

Failure cases: after a crash, the next start truncates the open file to its mark, completes its index, and renames it. A
write error truncates to the size before the call, so that the call can be repeated. On a shared folder, a handle that
failed once is not trusted again: the sink goes on with a new file, and readers drop duplicates."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from gossamer.clock import Clock, SystemClock
from gossamer.compression import gzip
from gossamer.cut import drops_text, parse_cut
from gossamer.errors import SinkError
from gossamer.model import Record
from gossamer.storage import files
from gossamer.storage.base import Opening
from gossamer.storage.warc import index
from gossamer.storage.warc import records as records_of
from gossamer.storage.warc.records import FOLDER, INDEX, OPEN, SUFFIX, Original, WarcResponse

_REMEMBERED = 32_768


class WarcVisit(NamedTuple):
    """The encoded records of a visit; a visit without a response has only the metadata record."""

    key: int
    token: int
    members: list[bytes]
    """A gzip member for each record, the response first."""
    answer: WarcResponse | None
    """The index fields of the response, without its content."""
    surt: str


class VisitEncoder:
    """Encodes records as visits, and remembers recent bodies: an equal one becomes a revisit record."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Original] = OrderedDict()

    def visit(self, record: Record) -> WarcVisit:
        """Encode a visit, assuming that it will be written: if it is not, continue with a new instance."""
        answer, parts, surt = None, [], ""
        exchange = record.exchange
        if exchange is not None:
            digest = records_of.payload_digest(record.body, known=record.page.digest)
            if record.page.status == 304:
                digest = records_of.digest_of_hex(record.page.digest)
            # The rest of a truncated body is unknown: it is neither stored as a revisit nor referred to.
            is_part = drops_text(parse_cut(record.page.cut or ""))
            is_known = bool(digest) and not is_part and (record.body or record.page.status == 304)
            original = self._known.get(digest) if is_known else None
            answer = records_of.response(record, exchange, original, digest)
            parts = [answer.data, records_of.request(exchange, answer)]
            answer, surt = answer._replace(data=b""), index.surt(answer.url)
            if original is not None:
                self._known.move_to_end(digest)
            elif not answer.is_revisit and record.body and not is_part:
                self._known[digest] = Original(answer.url, answer.date, answer.record_id)
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        parts.append(records_of.metadata(record, answer))
        return WarcVisit(record.key, record.token, [member_of(part) for part in parts], answer, surt)


def member_of(record: bytes) -> bytes:
    """Compress a WARC record as a separate gzip member."""
    return gzip(record)


log = logging.getLogger("gossamer.sink")
_SMALL_BYTES = 256 * 1024
"""Bodies up to this size are compressed on the event loop: passing them to a thread costs about as much."""
_TURN_BYTES = 128 * 1024
"""Bytes after which the event loop gets a turn."""
_CHUNK_BYTES = 128 * 1024
"""Max bytes of one write: the allocator returns larger blocks to the system each time."""


class RecordLocation(NamedTuple):
    """Location of a visit's response: a file of the archive, and the byte range of its record."""

    file: str
    offset: int
    length: int
    is_revisit: bool = False
    """Whether the body is in an earlier record."""


class WarcSink:
    """WARC files of about `max_bytes` each in a folder; the file being written is named `.open`.

    Each start creates a new file. The file of a crashed run is truncated to its valid length, indexed, and renamed:
    with `marks`, the frontier gives the length; without them, in a fleet, all complete visits are valid, and an
    unavailable folder is waited for. `moves_away`: another sink moves finished files out of the folder."""

    def __init__(
        self,
        folder: Path,
        marks: Mapping[str, int] | None,
        *,
        prefix: str,
        max_bytes: int,
        about: Sequence[tuple[str, str]] = (),
        home: Path | None = None,
        moves_away: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._home = home or folder
        self.where = self._mark(folder)
        """The folder, as the job's files refer to it."""
        self._moves_away = moves_away
        self._is_shared = marks is None and not moves_away
        self._prefix = quote(prefix, safe="")
        self._max_bytes = max_bytes
        self._about = about
        self._clock = clock or SystemClock()
        self._encoder = VisitEncoder()
        self._files: list[_File] = []
        # A cancelled call leaves its thread writing: later calls wait for it.
        self._lock = threading.Lock()
        self.placed: dict[tuple[int, int], RecordLocation] = {}
        """Of the last call of `write`: key and token -> location of the response."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._recover(marks)
        except OSError as error:
            raise files.translate_error(error) from error
        # Moved files are known by their marks: their names are not reused.
        names = (*os.listdir(folder), *(Path(mark).name for mark in marks or ()))
        self._number = 1 + max((int(found[1]) for found in map(self._numbered, names) if found), default=-1)

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        try:
            visits = await self._encoded(records)
        except BaseException:
            self._encoder = VisitEncoder()
            raise
        return await asyncio.get_running_loop().run_in_executor(None, self._write, visits)

    async def _encoded(self, records: Sequence[Record]) -> list[WarcVisit]:
        """Encode the records as visits. This runs on the event loop, since it holds the GIL anyway: a thread would only
        compete with the loop for it."""
        loop, visits, turn_bytes = asyncio.get_running_loop(), [], 0
        for record in records:
            if len(record.body) > _SMALL_BYTES:
                visits.append(await loop.run_in_executor(None, self._encoder.visit, record))
                continue
            visits.append(self._encoder.visit(record))
            turn_bytes += len(record.body)
            if turn_bytes > _TURN_BYTES:
                turn_bytes = 0
                await asyncio.sleep(0)
        return visits

    async def rewind(self, marks: Mapping[str, int]) -> None:
        with self._lock:
            self._encoder = VisitEncoder()
            for file in self._files:
                file.truncate(marks.get(file.mark, 0))

    async def aclose(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        try:
            with self._lock:
                self._drop_finished_by_others()
                while self._files:
                    self._files[0].finish()
                    del self._files[0]
                if self._is_shared:
                    self._recover(None)
        except OSError as error:
            # The records are durable: the next start finishes the file.
            log.warning("%s: cannot finish the file: %s", self._folder, error.strerror)

    def _write(self, visits: Sequence[WarcVisit]) -> dict[str, int]:
        with self._lock:
            return self._store(visits) if visits else {}

    def _store(self, visits: Sequence[WarcVisit]) -> dict[str, int]:
        self.placed = {}
        sizes = {file: file.size for file in self._files}
        try:
            self._drop_finished_by_others()
            # Finish files only now that the last call is known to be committed: they are not reopened.
            while len(self._files) > 1:
                self._files[0].finish()
                del self._files[0]
            for visit in visits:
                self._current().add(visit, self.placed)
            for file in self._files:
                file.flush()
        except OSError as error:
            raise self._roll_back(sizes, error) from error
        return {file.mark: file.size for file in self._files}

    def _drop_finished_by_others(self) -> None:
        """Drop a file that another process finished because it took this worker for dead; a new one is created."""
        for file in [file for file in self._files if not file.is_there()]:
            self._files.remove(file)
            file.close()

    def _roll_back(self, sizes: Mapping[_File, int], error: OSError) -> SinkError:
        """Truncate to these sizes and return the error to raise. On a shared folder, a handle may stay broken after one
        fault, or report a sync that lost data: then the file is left as it is and finished at the end, and readers drop
        the duplicates."""
        self._encoder = VisitEncoder()
        try:
            for file in self._files:
                file.truncate(sizes.get(file, 0))
        except OSError as fault:
            error = fault
        if not self._is_shared:
            return files.translate_error(error)
        while self._files and not files.is_full(error):
            self._files.pop().close()
        return files.translate_folder_error(self._folder, error)

    def _current(self) -> _File:
        """Return the file to write to; create it if there is none or the last one is full."""
        if not self._files or self._files[-1].end >= self._max_bytes:
            path = self._folder / f"{self._prefix}-{self._number:05}{SUFFIX}"
            self._number += 1
            self._files.append(_File(path, mark=self._mark(path)))
        file = self._files[-1]
        if not file.end:
            info = records_of.warcinfo(file.path.name, at=self._clock.epoch(), about=self._about)
            file.append(member_of(info))
        return file

    def _recover(self, marks: Mapping[str, int] | None) -> None:
        """Finish the files that an earlier run left open, and check those that it finished."""
        for path in _open_files(self._folder):
            mark = self._mark(path.with_name(path.name.removesuffix(OPEN)))
            if not self._numbered(path.name) and mark not in (marks or {}):
                continue
            if marks is not None:
                self._truncate_and_finish(path, marks.get(mark, 0))
            else:
                finish_abandoned(path)
        for mark, size in (marks or {}).items():
            path = self._home / mark
            if path.parent != self._folder or not mark.endswith(SUFFIX):
                continue
            if not path.exists():
                if not self._moves_away:
                    log.warning("%s was written earlier and is missing", path)
            elif path.stat().st_size != size:
                self._truncate_and_finish(path, size)

    def _truncate_and_finish(self, path: Path, size: int) -> None:
        files.truncate(path, size)
        finish(path)

    def _mark(self, path: Path) -> str:
        return str(path.relative_to(self._home)) if path.is_relative_to(self._home) else str(path)

    def _numbered(self, name: str) -> re.Match[str] | None:
        return re.match(rf"{re.escape(self._prefix)}-(\d+){re.escape(SUFFIX)}(?:{re.escape(OPEN)})?$", name)


class _File:
    """A WARC file that is being written, with its index lines in the order of the records."""

    def __init__(self, path: Path, *, mark: str) -> None:
        self.path = path
        self.mark = mark
        self.size = 0
        self._members: list[bytes] = []
        self._lines: list[bytes] = []
        self.end = 0
        """Offset of the next record."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._open_path = path.with_name(path.name + OPEN)
        self._file = os.open(self._open_path, flags | os.O_EXCL, 0o644)
        files.lock(self._file)
        try:
            self._index = os.open(_index_of(path, OPEN), flags | os.O_TRUNC | os.O_APPEND, 0o644)
            files.sync_folder(path.parent)
        except OSError:
            os.close(self._file)
            with suppress(OSError):
                self._open_path.unlink()
            raise

    def is_there(self) -> bool:
        """Whether the file is still open, that is, no other process has finished it."""
        return self._open_path.exists()

    def add(self, visit: WarcVisit, placed: dict[tuple[int, int], RecordLocation]) -> None:
        answer = visit.answer
        if answer is not None:
            place = RecordLocation(self.path.name, self.end, len(visit.members[0]), answer.is_revisit)
            placed[visit.key, visit.token] = place
            capture = index.Capture(
                url=answer.url,
                mime="warc/revisit" if answer.is_revisit else answer.mime,
                status=str(answer.status),
                digest=answer.digest,
                length=str(place.length),
                offset=str(place.offset),
                filename=place.file,
            )
            self._lines.append(index.line_of(capture, answer.date, visit.surt))
        for member in visit.members:
            self.append(member)

    def append(self, member: bytes) -> None:
        self._members.append(member)
        self.end += len(member)

    def flush(self) -> None:
        """Make added data durable. The index is not synced: missing lines are rebuilt from the file."""
        if self._members:
            self._write()
            files.sync(self._file)
            os.write(self._index, b"".join(self._lines))
            self.size = self.end
            self._members, self._lines = [], []

    def _write(self) -> None:
        at = self.size
        for piece in _joined_chunks(self._members):
            files.write_at(self._file, piece, at)
            at += len(piece)

    def truncate(self, size: int) -> None:
        """Truncate to an earlier length."""
        self._members, self._lines = [], []
        self.size = self.end = size
        os.ftruncate(self._file, size)
        kept, _ = index.read_index(_index_of(self.path, OPEN), size)
        os.ftruncate(self._index, sum(map(len, kept)))

    def finish(self) -> None:
        """Finish the file; may be retried if it raises, since nothing is lost."""
        finish(self._open_path)
        self.close()

    def close(self) -> None:
        """Close it in any state."""
        for descriptor in (self._file, self._index):
            with suppress(OSError):
                os.close(descriptor)


def open_warc(opening: Opening) -> WarcSink:
    """Open the sink `warc`, in the job's folder, or `warc:/path`."""
    settings = opening.settings
    about = [("robots", "obey" if settings.robots else "ignore"), ("http-header-user-agent", settings.user_agent)]
    home = opening.home
    return WarcSink(
        Path(opening.target) if opening.target else home / FOLDER,
        opening.marks,
        prefix=opening.prefix(elsewhere=bool(opening.target)),
        max_bytes=settings.archive_bytes,
        about=[*about, ("isPartOf", opening.name)],
        home=home,
    )


def finish(path: Path) -> None:
    """Give a complete file its sorted index and final name; delete it if it has no record."""
    final = path.with_name(path.name.removesuffix(OPEN))
    lines = _index_of(final, OPEN)
    if path.stat().st_size:
        index.finish_index(path, final.name, lines, _index_of(final))
        path.rename(final)
    else:
        path.unlink()
    lines.unlink(missing_ok=True)
    files.sync_folder(path.parent)


def finish_abandoned(path: Path) -> None:
    """Finish a file that a worker of a fleet left open, with all complete visits; not if the worker still holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if not files.lock(descriptor):
            return
        lines = _index_of(path.with_name(path.name.removesuffix(OPEN)), OPEN)
        # An index line is written after its record is durable.
        covered = index.read_index(lines, path.stat().st_size)[1]
        os.ftruncate(descriptor, index.whole_bytes(path, covered))
        finish(path)
    finally:
        os.close(descriptor)


def unfinished(target: str, home: Path) -> Iterator[tuple[Path, Callable[[Path], None]]]:
    """Yield the files that are open, or that dead writers left, and the function that finishes each."""
    for path in _open_files(Path(target) if target else home / FOLDER):
        yield path, finish_abandoned


def _open_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}{OPEN}"))


def _joined_chunks(members: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the members, joined up to the write size."""
    held: list[bytes] = []
    size = 0
    for member in members:
        if held and size + len(member) > _CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
        held.append(member)
        size += len(member)
    yield b"".join(held)


def _index_of(path: Path, suffix: str = "") -> Path:
    return path.with_name(path.name.removesuffix(SUFFIX) + INDEX + suffix)
