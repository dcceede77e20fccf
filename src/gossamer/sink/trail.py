"""The trail of a job: a line for every request that was sent, and for each that was kept back."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

log = logging.getLogger("gossamer.sink")
FOLDER, SUFFIX = "trail", ".jsonl"
_MOST_BYTES = 4 * 1024 * 1024
"""What is kept in memory while the disk takes nothing: a trail must not stop a crawl."""
_encode_into = msgspec.json.Encoder().encode_into


class Step(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
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
    delay: float = 0.0
    """Seconds that were to lie between the answer before and this request; of one lane, if there are several."""
    lanes: int = 1
    """Requests that the site may be sent at once."""
    missing: int = 0
    """Lines that are missing here, because the disk was full for long."""


_decode = msgspec.json.Decoder(Step).decode


class Trail:
    """The part of the trail that one worker leaves: a file of its own, which is only added to."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._path = folder / FOLDER / f"{quote(worker, safe='')}{SUFFIX}"
        self._lines = bytearray()
        self._missing = 0
        self._file: int | None = None
        self._is_torn = True
        self._has_warned = False

    def note(self, step: Step) -> None:
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
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
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


def has_trail(folder: Path) -> bool:
    """Whether there is a trail in a job's folder."""
    return next((folder / FOLDER).glob(f"*{SUFFIX}"), None) is not None


def steps(folder: Path, *beginnings: str) -> Iterator[tuple[str, Step]]:
    """The steps whose URLs begin so, each with the worker's name, in the order of each worker.

    Lines that are not whole are passed over: a worker may have been killed in the middle of one."""
    heads = tuple(b'{"url":' + msgspec.json.encode(beginning)[:-1] for beginning in beginnings)
    for path in sorted((folder / FOLDER).glob(f"*{SUFFIX}")):
        worker = unquote(path.name.removesuffix(SUFFIX))
        with path.open("rb") as file:
            for line in file:
                if line.startswith(heads):
                    with suppress(msgspec.DecodeError):
                        yield worker, _decode(line)
