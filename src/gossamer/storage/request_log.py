"""The request log of a job: one line per request sent or held back; written, tailed, and checked for gaps."""

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
"""Contains the time, in epoch seconds, before which lines may have been dropped."""
MOST_BYTES = 1_000_000_000
_PARTS = 16
"""Number of files at the size limit; the oldest one is dropped for a new one."""
_PART = re.compile(r"@(\d+)$")
_MOST_BYTES = 4 * 1024 * 1024
"""Limit of lines in memory while the disk is unavailable: the request log must not stop a crawl."""
_encode_into = msgspec.json.Encoder().encode_into


class SentRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A line of the request log: a request that was sent, including robots.txt, or that was held back."""

    url: str
    """The URL; it is first, so that readers can skip other lines without decoding them."""
    at: float
    """Epoch seconds when it was sent or held back."""
    status: int = 0
    """The HTTP status; 0 without a response."""
    latency: float = 0.0
    """Seconds until the response headers, or until the fault."""
    bytes: int = 0
    """Length of the body after decoding."""
    error: str = ""
    """Why there is no response, as in docs/reference/errors.md; `cancelled` if the crawl did not wait for it."""
    skipped: str = ""
    """Why it was not sent: `robots`, `asleep`, or `prefix-budget`."""
    referrer: str = ""
    """The page on which it was found; only for requests that were not sent."""
    cut: str = ""
    """What limits dropped from the page, as in the field `cut` of its row."""
    delay: float = 0.0
    """Required seconds between the previous response and this request; of one lane, if there are several."""
    lanes: int = 1
    """Max concurrent requests to the site."""
    rest: float | None = None
    """Seconds since the previous response, by the worker's own monotonic clock; None if the worker had none in the
    same lease. Differences between the times of lines are less exact: clocks differ, and are adjusted."""
    missing: int = 0
    """Number of lines lost here, because the disk was full for long."""


_decode = msgspec.json.Decoder(SentRequest).decode
_CUT = b'"cut":"'


class RequestLog:
    """The part of the request log that one worker writes: append-only files; a full one is followed by the next.

    When the request log of all workers in the folder exceeds `most_bytes`, its oldest files are dropped."""

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
        """Add one request; `flush` writes it."""
        if len(self._lines) >= _MOST_BYTES:
            self._missing += 1
            return
        if self._missing:
            step, self._missing = msgspec.structs.replace(step, missing=self._missing), 0
        _encode_into(step, self._lines, len(self._lines))
        self._lines += b"\n"

    async def flush(self) -> None:
        """Write the added lines. A fault is logged as a warning, and the lines are written by the next call."""
        if not self._lines:
            return
        lines, self._lines = self._lines, bytearray()
        try:
            await asyncio.to_thread(self._append, lines)
            self._has_warned = False
        except OSError as error:
            self._lines[:0] = lines
            if not self._has_warned:
                log.warning("cannot write the request log, trying again: %s: %s", self._path, error.strerror)
            self._has_warned = True

    def _append(self, lines: bytearray) -> None:
        try:
            if self._file is None or self._is_done(self._file):
                self._open()
            assert self._file is not None
            if self._is_torn:
                # A crash or a full disk left an incomplete line.
                size = os.fstat(self._file).st_size
                if size and os.pread(self._file, 1, size - 1) != b"\n":
                    os.write(self._file, b"\n")
                self._is_torn = False
            view = memoryview(lines)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            # A handle may stay broken after one fault; lines written in part then appear twice.
            self._close()
            raise

    def _is_done(self, file: int) -> bool:
        """Whether to start the next file: this one is full, or another worker dropped it because of its age."""
        about = os.fstat(file)
        return about.st_size >= self._most_bytes // _PARTS or not about.st_nlink

    def _open(self) -> None:
        self._close()
        # Only here: a job's folder that is missing later is an unmounted one, and must not be created.
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
        """Drop files until a further one fits below the limit."""
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
        """Write the remaining lines and close the file."""
        await self.flush()
        self._close()


def parts(folder: Path) -> list[tuple[str, Path]]:
    """Return the files of a job's request log with their workers' names, in the order of each worker."""
    found = [(worker_of(path), _number(path), path) for path in (folder / FOLDER).glob(f"*{SUFFIX}")]
    return [(worker, path) for worker, _, path in sorted(found)]


def worker_of(path: Path) -> str:
    """Return the worker that wrote a file of the request log."""
    return unquote(_PART.sub("", path.name.removesuffix(SUFFIX)))


def _number(path: Path) -> int:
    # Worker names in file names are quoted, so they contain no @.
    found = _PART.search(path.name.removesuffix(SUFFIX))
    return int(found[1]) if found else 0


def has_request_log(folder: Path) -> bool:
    """Whether a job's folder has a request log."""
    return next((folder / FOLDER).glob(f"*{SUFFIX}"), None) is not None


def dropped_until(folder: Path) -> float:
    """Return the time before which lines may have been dropped for size; 0.0 if none were."""
    try:
        return float((folder / FOLDER / DROPPED).read_text("ascii"))
    except (OSError, ValueError):
        return 0.0


def logged_requests(folder: Path, *prefixes: str) -> Iterator[tuple[str, SentRequest]]:
    """Yield the requests with one of these URL prefixes, each with the worker's name, in the order of each worker.

    Skips incomplete lines, which a crash may leave."""
    heads = tuple(b'{"url":' + msgspec.json.encode(beginning)[:-1] for beginning in prefixes)
    for worker, path in parts(folder):
        with suppress(FileNotFoundError), path.open("rb") as file:
            for line in file:
                if line.startswith(heads):
                    with suppress(msgspec.DecodeError):
                        yield worker, _decode(line)


def request_log_bytes(folder: Path) -> int:
    """Return the size of a request log."""
    total = 0
    for _, path in parts(folder):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def count_cut(folder: Path, *, since: float = 0.0) -> CutTally:
    """Count the pages with dropped content in the request log, since its start or since a time."""
    tally = CutTally()
    for _, path in parts(folder):
        with suppress(FileNotFoundError), path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                continue
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                # Few lines have the field, and decoding all of a large log would take a minute.
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
"""Faults that occur before anything is sent to the site."""


class Sent(NamedTuple):
    """One line of the request log, with its worker."""

    step: SentRequest
    worker: str = ""

    @property
    def was_sent(self) -> bool:
        """Whether the site may have received it."""
        return not self.step.skipped and self.step.error not in _UNSENT


_SLACK_SECONDS, _SLACK_SHARE = 0.002, 0.001
"""Tolerance: times are stored in milliseconds, and clocks are slewed by half a thousandth at most."""


def gap_before(one: SentRequest, before: SentRequest | None) -> float | None:
    """Return the seconds from the previous response's headers, where the delay starts, to a request; None if none.

    Uses the worker's monotonic clock if one worker handled both, else the stored times."""
    if before is None:
        return None
    return one.rest if one.rest is not None else one.at - before.at - before.latency


def is_too_short(one: SentRequest, rest: float) -> bool:
    """Whether a gap is shorter than the delay at that time. Several lanes share a rate, and have no minimum gap."""
    slack = _SLACK_SECONDS if one.rest is not None else _SLACK_SECONDS + _SLACK_SHARE * one.delay
    return one.lanes == 1 and rest + slack < one.delay


def requests_to(job: StoredJob, site: str, settings: Settings) -> Iterator[Sent]:
    """Yield the requests to a site in the order of each worker: from the request log, or else from stored pages."""
    by_domain = settings.site_by == "domain"
    prefixes = ("http",) if by_domain else (f"http://{site}/", f"https://{site}/")
    if has_request_log(job.folder):
        found = (Sent(step, worker) for worker, step in logged_requests(job.folder, *prefixes))
    else:
        found = (Sent(_step(row)) for row in _rows(job, Search(site=site, site_by=settings.site_by)))
    for one in found:
        if not by_domain or urls.site(one.step.url, by="domain") == site:
            yield one


def stored_rows(job: StoredJob, url: str) -> list[PageRow]:
    """Return the stored rows of one page, the current one last; none if only bodies, or nothing, are stored.

    A server that is unavailable does not stop the search in other places."""
    reader = job.first("rows")
    try:
        return list(reversed(versions_of(reader.rows(Search(url=url))))) if reader is not None else []
    except (NotKept, SinkError) as error:
        history_log.warning("cannot read stored pages: %s", error)
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
    """Yield the matching stored visits, each once."""
    reader = job.first("rows")
    seen: set[tuple[str, float]] = set()
    for row in reader.rows(terms) if reader is not None else ():
        # A repeated commit leaves two rows of one visit.
        if (row.url, row.fetched_at) not in seen:
            seen.add((row.url, row.fetched_at))
            yield row


_FIRST_BYTES = 32 * 1024 * 1024
"""Bytes that the first read goes back, over all files: some 250,000 requests."""
_LOOK_BYTES = 8 * 1024 * 1024
"""Max bytes of one read; the next one continues there."""
_MAX_LINE_BYTES = 1024 * 1024
_decoder = msgspec.json.Decoder(SentRequest)


@dataclass(slots=True)
class _File:
    path: Path
    worker: str
    position: int = 0
    is_torn: bool = False
    """Whether reading started inside a line."""


class LogTail:
    """Follows the ends of a request log's files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._files: dict[str, _File] = {}
        self._is_first = True

    def read_new(self) -> list[Sent]:
        """Return the requests since the last call, ordered by time."""
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
            # The oldest files of a large log are dropped.
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
            # A file created since the last call is read from its start; at the first call, only the end matters.
            begin = max(0, size - max(0, left)) if self._is_first else 0
            left -= size - begin
            self._files[path.name] = _File(path, worker_of(path), begin, is_torn=begin > 0)


def _read(file: _File, most: int) -> bytes:
    """Read the new complete lines of a file."""
    if most <= 0:
        return b""
    try:
        with file.path.open("rb") as source:
            if source.seek(0, 2) < file.position:
                # A new file with the same name: read it from its start.
                file.position, file.is_torn = 0, False
            source.seek(file.position)
            data = source.read(most)
    except OSError:
        return b""
    end = data.rfind(b"\n") + 1
    if not end:
        if len(data) >= _MAX_LINE_BYTES:
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
        # A crash left an incomplete line.
        found = []
        for line in data.splitlines():
            with suppress(msgspec.DecodeError):
                found.append(_decoder.decode(line))
        return found
