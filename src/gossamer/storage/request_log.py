"""The request log of a job: a line per request sent or held back; written, read backwards, and checked for gaps."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from gossamer import urls
from gossamer.cut import CutTally
from gossamer.errors import NotKept, SinkError
from gossamer.model import PageRow
from gossamer.settings import Settings
from gossamer.storage.query import Search, versions_of

if TYPE_CHECKING:
    # Workers write the log and need no readers.
    from gossamer.storage.reader import StoredJob

log = logging.getLogger("gossamer.sink")
FOLDER, SUFFIX = "trail", ".jsonl"
DROPPED = "dropped.txt"
"""Names the time before which lines may have been dropped, in epoch seconds."""
MOST_BYTES = 1_000_000_000
_PARTS = 16
"""The largest trail is so many parts; the oldest one makes way."""
_PART = re.compile(r"@(\d+)$")
_MOST_BYTES = 4 * 1024 * 1024
"""What is kept in memory while the disk takes nothing: a trail must not stop a crawl."""
_encode_into = msgspec.json.Encoder().encode_into


class SentRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A request that was sent, robots.txt among them, or one that was kept back; a line of the trail."""

    url: str
    """The URL; it comes first, so that readers need not decode the lines of others."""
    at: float
    """Epoch seconds when it was sent, or kept back."""
    status: int = 0
    """The HTTP status, 0 where there was no answer."""
    latency: float = 0.0
    """Seconds to the answer's headers, or to the fault."""
    bytes: int = 0
    """Length of the body after decoding."""
    error: str = ""
    """Why there was no answer, as in docs/reference/errors.md; `cancelled` where the crawl did not wait for it."""
    skipped: str = ""
    """Why it was not sent: `robots`, `asleep` or `prefix-budget`."""
    referrer: str = ""
    """The page on which it was found; only where it was not sent."""
    cut: str = ""
    """What was dropped of the page, as in the field `cut` of its line."""
    delay: float = 0.0
    """Seconds that were to lie between the answer before and this request; of one lane, if there are several."""
    lanes: int = 1
    """Requests that the site may be sent at once."""
    rest: float | None = None
    """Seconds since the answer before it, by the worker's own monotonic clock; None where the worker had none in the
    same lease. The times of two lines tell it less well: clocks are set, and workers have several."""
    missing: int = 0
    """Lines that are missing here, because the disk was full for long."""


_decode = msgspec.json.Decoder(SentRequest).decode
_CUT = b'"cut":"'


class RequestLog:
    """What one worker leaves of the trail: files of its own, which are only added to, the next when one is full.

    When the trail of all workers in the folder comes to more than `most_bytes`, its oldest files are dropped."""

    def __init__(self, folder: Path, worker: str, *, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder / FOLDER
        self._name = quote(worker, safe="")
        self._most_bytes = most_bytes
        self._path = self._folder / f"{self._name}{SUFFIX}"
        self._lines = bytearray()
        self._missing = 0
        self._file: int | None = None
        self._is_torn = True
        self._was_open = self._has_warned = False

    def note(self, step: SentRequest) -> None:
        """Remember one step; `flush` writes it."""
        if len(self._lines) >= _MOST_BYTES:
            self._missing += 1
            return
        if self._missing:
            step, self._missing = msgspec.structs.replace(step, missing=self._missing), 0
        _encode_into(step, self._lines, len(self._lines))
        self._lines += b"\n"

    async def flush(self) -> None:
        """Write what was noted. A fault is a warning, and the lines are written with the next ones."""
        if not self._lines:
            return
        lines, self._lines = self._lines, bytearray()
        try:
            await asyncio.to_thread(self._append, lines)
            self._has_warned = False
        except OSError as error:
            self._lines[:0] = lines
            if not self._has_warned:
                log.warning("the trail of requests waits to be written: %s: %s", self._path, error.strerror)
            self._has_warned = True

    def _append(self, lines: bytearray) -> None:
        try:
            if self._file is None or self._is_done(self._file):
                self._open()
            assert self._file is not None
            if self._is_torn:
                # A worker of this name was killed, or the disk was full, in the middle of a line.
                size = os.fstat(self._file).st_size
                if size and os.pread(self._file, 1, size - 1) != b"\n":
                    os.write(self._file, b"\n")
                self._is_torn = False
            view = memoryview(lines)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            # A handle that was bad once may stay so; and lines that were written in part stand there twice then.
            self._close()
            raise

    def _is_done(self, file: int) -> bool:
        """Whether the next file is to be begun: this one is full, or another worker found it old and dropped it."""
        about = os.fstat(file)
        return about.st_size >= self._most_bytes // _PARTS or not about.st_nlink

    def _open(self) -> None:
        self._close()
        # Later it is not made anew: a job's folder that is gone is not mounted.
        self._folder.mkdir(parents=not self._was_open, exist_ok=True)
        self._was_open = True
        ours = unquote(self._name)
        numbers = [_number(path) for worker, path in parts(self._folder.parent) if worker == ours]
        while True:
            number = max(numbers, default=0)
            self._path = self._folder / f"{self._name}{f'@{number:06}' if number else ''}{SUFFIX}"
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            if not self._is_done(self._file):
                break
            self._close()
            numbers.append(number + 1)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Make room for a part, so that the trail stays below its limit while this file grows."""
        found = []
        for _, path in parts(self._folder.parent):
            with suppress(OSError):
                about = path.stat()
                found.append((about.st_mtime, about.st_size, path))
        spare = self._most_bytes - self._most_bytes // _PARTS - sum(size for _, size, _ in found)
        for changed_at, size, path in sorted(found):
            if spare >= 0:
                break
            if path != self._path:
                spare += size
                mark = self._folder / f"{DROPPED}.{self._name}"
                mark.write_text(f"{max(changed_at, dropped_until(self._folder.parent)):.3f}\n", "ascii")
                mark.replace(self._folder / DROPPED)
                path.unlink(missing_ok=True)

    def _close(self) -> None:
        self._is_torn = True
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

    async def aclose(self) -> None:
        """Write what is left, and let go of the file."""
        await self.flush()
        self._close()


def parts(folder: Path) -> list[tuple[str, Path]]:
    """The files of the trail in a job's folder, each with the worker's name, in the order of each worker."""
    found = [(worker_of(path), _number(path), path) for path in (folder / FOLDER).glob(f"*{SUFFIX}")]
    return [(worker, path) for worker, _, path in sorted(found)]


def worker_of(path: Path) -> str:
    """Whose file of the trail this is."""
    return unquote(_PART.sub("", path.name.removesuffix(SUFFIX)))


def _number(path: Path) -> int:
    # No worker's name has an @ here: it is quoted.
    found = _PART.search(path.name.removesuffix(SUFFIX))
    return int(found[1]) if found else 0


def has_request_log(folder: Path) -> bool:
    """Whether there is a trail in a job's folder."""
    return next((folder / FOLDER).glob(f"*{SUFFIX}"), None) is not None


def dropped_until(folder: Path) -> float:
    """The time before which lines of the trail may have been dropped, because it was too long; 0.0 if none were."""
    try:
        return float((folder / FOLDER / DROPPED).read_text("ascii"))
    except (OSError, ValueError):
        return 0.0


def steps(folder: Path, *beginnings: str) -> Iterator[tuple[str, SentRequest]]:
    """The steps whose URLs begin so, each with the worker's name, in the order of each worker.

    Lines that are not whole are passed over: a worker may have been killed in the middle of one."""
    heads = tuple(b'{"url":' + msgspec.json.encode(beginning)[:-1] for beginning in beginnings)
    for worker, path in parts(folder):
        with suppress(FileNotFoundError), path.open("rb") as file:
            for line in file:
                if line.startswith(heads):
                    with suppress(msgspec.DecodeError):
                        yield worker, _decode(line)


def request_log_bytes(folder: Path) -> int:
    """The size of a trail."""
    total = 0
    for _, path in parts(folder):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def cut_of(folder: Path, *, since: float = 0.0) -> CutTally:
    """The pages that were cut, by the trail, as far back as it goes, or to this time."""
    tally = CutTally()
    for _, path in parts(folder):
        with suppress(FileNotFoundError), path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                continue
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                # Few lines have it, and to decode all of a large trail would take a minute.
                at = view.find(_CUT)
                while at >= 0:
                    end = view.find(b"\n", at)
                    if end < 0:
                        break
                    with suppress(msgspec.DecodeError):
                        step = _decode(view[view.rfind(b"\n", 0, at) + 1 : end])
                        if step.at >= since:
                            tally.add(step.cut)
                    at = view.find(_CUT, end)
    return tally


history_log = logging.getLogger("gossamer.history")
_UNSENT = frozenset(("dns", "nxdomain", "forbidden"))
"""Faults that came before anything could be sent to the site."""


class Sent(NamedTuple):
    """One step of the trail, and whose it was."""

    step: SentRequest
    worker: str = ""

    @property
    def was_sent(self) -> bool:
        """Whether the site may have got it."""
        return not self.step.skipped and self.step.error not in _UNSENT


_SLACK_SECONDS, _SLACK_SHARE = 0.002, 0.001
"""Times are written down in milliseconds, and clocks are set: a thousandth is twice what they are slewed by."""


def rested(one: SentRequest, before: SentRequest | None) -> float | None:
    """Seconds from the headers of the answer before, from which the delay counts, to a request; None for the first one.

    By the worker's own clock where one worker had both in hand, else by the times that were written down."""
    if before is None:
        return None
    return one.rest if one.rest is not None else one.at - before.at - before.latency


def is_too_short(one: SentRequest, rest: float) -> bool:
    """Whether a rest was shorter than the delay of its time. Several lanes keep a rate together, not a gap."""
    slack = _SLACK_SECONDS if one.rest is not None else _SLACK_SECONDS + _SLACK_SHARE * one.delay
    return one.lanes == 1 and rest + slack < one.delay


def walked(job: StoredJob, site: str, settings: Settings) -> Iterator[Sent]:
    """The requests to a site: by the trail, or if none was kept by the stored pages. In the order of each worker."""
    by_domain = settings.site_by == "domain"
    beginnings = ("http",) if by_domain else (f"http://{site}/", f"https://{site}/")
    if has_request_log(job.folder):
        found = (Sent(step, worker) for worker, step in steps(job.folder, *beginnings))
    else:
        found = (Sent(_step(row)) for row in _rows(job, Search(site=site, site_by=settings.site_by)))
    for one in found:
        if not by_domain or urls.site(one.step.url, by="domain") == site:
            yield one


def stored(job: StoredJob, url: str) -> list[PageRow]:
    """The rows of one page, the last word last; none where only bodies are kept, or nothing.

    A server that is away does not keep others from being asked."""
    reader = job.first("rows")
    try:
        return list(reversed(versions_of(reader.rows(Search(url=url))))) if reader is not None else []
    except (NotKept, SinkError) as error:
        history_log.warning("stored pages cannot be read: %s", error)
        return []


def _step(row: PageRow) -> SentRequest:
    return SentRequest(
        url=row.url,
        at=row.fetched_at,
        status=row.status,
        latency=row.elapsed,
        bytes=row.bytes,
        error="" if row.status else row.error.partition(":")[0],
        cut=row.cut or "",
    )


def _rows(job: StoredJob, terms: Search) -> Iterator[PageRow]:
    """The stored visits that fit, each once."""
    reader = job.first("rows")
    seen: set[tuple[str, float]] = set()
    for row in reader.rows(terms) if reader is not None else ():
        # A commit that was repeated leaves two rows of one visit.
        if (row.url, row.fetched_at) not in seen:
            seen.add((row.url, row.fetched_at))
            yield row


_FIRST_BYTES = 32 * 1024 * 1024
"""How far back a first look goes, in all files together: some 250,000 requests."""
_LOOK_BYTES = 8 * 1024 * 1024
"""What one look reads, at most; the next one goes on there."""
_LONGEST_LINE = 1024 * 1024
_decoder = msgspec.json.Decoder(SentRequest)


@dataclass(slots=True)
class _File:
    path: Path
    worker: str
    position: int = 0
    is_torn: bool = False
    """Whether it was entered in the middle of a line."""


class Tail:
    """The ends of a trail's files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._files: dict[str, _File] = {}
        self._is_first = True

    def look(self) -> list[Sent]:
        """The steps that are new since the last look, in the order of time."""
        self._find()
        found: list[Sent] = []
        left = _FIRST_BYTES if self._is_first else _LOOK_BYTES
        self._is_first = False
        for file in self._files.values():
            data = _read(file, left)
            left -= len(data)
            found += [Sent(step, file.worker) for step in _decoded(data)]
        found.sort(key=lambda sent: sent.step.at)
        return found

    def _find(self) -> None:
        try:
            paths = [path for path in self._folder.iterdir() if path.name.endswith(SUFFIX)]
        except OSError:
            return
        if len(self._files) > len(paths):
            # The oldest files of a long trail are dropped.
            left_over = {path.name for path in paths}
            self._files = {name: file for name, file in self._files.items() if name in left_over}
        new = [path for path in paths if path.name not in self._files]
        if not new:
            return
        weights: dict[Path, tuple[float, int]] = {}
        for path in new:
            with suppress(OSError):
                about = path.stat()
                weights[path] = (about.st_mtime, about.st_size)
        left = _FIRST_BYTES
        for path in sorted(weights, key=lambda path: -weights[path][0]):
            size = weights[path][1]
            # A file that came up since the last look is new from its beginning; before that only the end matters.
            begin = max(0, size - max(0, left)) if self._is_first else 0
            left -= size - begin
            self._files[path.name] = _File(path, worker_of(path), begin, is_torn=begin > 0)


def _read(file: _File, most: int) -> bytes:
    """Whole lines that are new in a file."""
    if most <= 0:
        return b""
    try:
        with file.path.open("rb") as source:
            if source.seek(0, 2) < file.position:
                # Another file by the same name: it is read from its beginning.
                file.position, file.is_torn = 0, False
            source.seek(file.position)
            data = source.read(most)
    except OSError:
        return b""
    end = data.rfind(b"\n") + 1
    if not end:
        if len(data) >= _LONGEST_LINE:
            file.position += len(data)
            file.is_torn = True
        return b""
    file.position += end
    if file.is_torn:
        file.is_torn = False
        return data[data.find(b"\n") + 1 : end]
    return data[:end]


def _decoded(data: bytes) -> list[SentRequest]:
    try:
        return _decoder.decode_lines(data)
    except msgspec.DecodeError:
        # A worker was killed in the middle of a line.
        found = []
        for line in data.splitlines():
            with suppress(msgspec.DecodeError):
                found.append(_decoder.decode(line))
        return found
