"""The trail of a job: a line for every request that was sent, and for each that was kept back."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from gossamer.cut import CutTally

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


def has_trail(folder: Path) -> bool:
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


def trail_bytes(folder: Path) -> int:
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
