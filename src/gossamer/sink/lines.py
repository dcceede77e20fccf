"""Pages and items as numbered files of compressed JSON lines, each finished after a while and never touched again."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gossamer.clock import Clock, SystemClock
from gossamer.compression import zstd_frame
from gossamer.model import Record, Rejected
from gossamer.sink import disk

log = logging.getLogger("gossamer.sink")
SUFFIX, OPEN = ".jsonl.zst", ".open"
PAGES, ITEMS, REJECTED = "pages", "items", "rejected"
_encode = msgspec.json.Encoder().encode
_encode_into = msgspec.json.Encoder().encode_into


class ItemLine(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An item and where it is from."""

    key: int
    token: int
    url: str
    number: int
    item: dict[str, Any]


class RejectedLine(Rejected, frozen=True, gc=False, kw_only=True):
    """An item that was kept aside, and where it is from."""

    key: int
    token: int


class LineFiles:
    """`pages-NAME-00000.jsonl.zst`, `items-...` and `rejected-...` in a folder of our own; those that grow are `.open`.

    Each line carries key and token of its visit, and each call of `write` is a zstd frame of its own. A file is
    finished at `max_bytes` or after `max_seconds`, with the call after the one that filled it: only then is it certain
    that the last one counts. What a killed run left is cut to its marks and finished."""

    def __init__(
        self,
        folder: Path,
        marks: Mapping[str, int] | None,
        *,
        prefix: str,
        max_bytes: int,
        max_seconds: float,
        home: Path,
        clock: Clock | None = None,
    ) -> None:
        self._folder, self._prefix, self._home = folder, prefix, home
        self._max_bytes, self._max_seconds = max_bytes, max_seconds
        self._clock = clock or SystemClock()
        self._files: dict[str, _File] = {}
        # A caller that was cancelled leaves its thread writing.
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob(f"*{SUFFIX}{OPEN}")):
                _settle(path, (marks or {}).get(self._mark(path), 0))
            names = [*os.listdir(folder), *(Path(mark).name for mark in marks or ())]
        except OSError as error:
            raise disk.in_words(error) from error
        self._number = 1 + max(map(self._number_of, names), default=-1)

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        return await asyncio.get_running_loop().run_in_executor(None, self._write, records)

    def _write(self, records: Sequence[Record]) -> dict[str, int]:
        pages, items, aside = bytearray(), bytearray(), bytearray()
        for record in records:
            pages += b'{"key":%d,"token":%d,' % (record.key, record.token)
            pages += _encode(record.page)[1:]
            pages += b"\n"
            for number, item in enumerate(record.items):
                line = ItemLine(key=record.key, token=record.token, url=record.page.url, number=number, item=item)
                _encode_into(line, items, len(items))
                items += b"\n"
            for one in record.rejected:
                odd = RejectedLine(key=record.key, token=record.token, **msgspec.structs.asdict(one))
                _encode_into(odd, aside, len(aside))
                aside += b"\n"
        with self._lock:
            sizes = {stream: file.size for stream, file in self._files.items()}
            try:
                for stream in [stream for stream, file in self._files.items() if self._is_full(file)]:
                    self._files[stream].finish()
                    del self._files[stream]
                for stream, lines in ((PAGES, pages), (ITEMS, items), (REJECTED, aside)):
                    if lines:
                        self._file(stream).append(zstd_frame(lines))
            except OSError as error:
                for stream, file in self._files.items():
                    file.cut(sizes.get(stream, 0))
                raise disk.in_words(error) from error
            return {self._mark(file.path): file.size for file in self._files.values()}

    def _is_full(self, file: _File) -> bool:
        age = self._clock.monotonic() - file.begun_at
        return bool(file.size) and (file.size >= self._max_bytes or age >= self._max_seconds)

    def _file(self, stream: str) -> _File:
        if stream not in self._files:
            path = self._folder / f"{stream}-{self._prefix}-{self._number:05}{SUFFIX}"
            self._files[stream] = _File(path, self._clock.monotonic())
            self._number += 1
        return self._files[stream]

    async def rewind(self, marks: Mapping[str, int]) -> None:
        with self._lock:
            for file in self._files.values():
                file.cut(marks.get(self._mark(file.path), 0))

    async def aclose(self) -> None:
        try:
            with self._lock:
                while self._files:
                    stream = next(iter(self._files))
                    self._files[stream].finish()
                    del self._files[stream]
        except OSError as error:
            # The lines are safe: the next start finishes the file.
            log.warning("%s: not finished: %s", self._folder, error.strerror)

    def _mark(self, path: Path) -> str:
        return str(path.relative_to(self._home)).removesuffix(OPEN)

    def _number_of(self, name: str) -> int:
        head, _, number = name.removesuffix(OPEN).removesuffix(SUFFIX).rpartition("-")
        return int(number) if number.isdigit() and head.endswith(f"-{self._prefix}") else -1


class _File:
    """A file that is being written."""

    def __init__(self, path: Path, begun_at: float) -> None:
        self.path, self.begun_at = path, begun_at
        self.size = 0
        self._open_path = path.with_name(path.name + OPEN)
        self._file = os.open(self._open_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            disk.sync_folder(path.parent)
        except OSError:
            os.close(self._file)
            self._open_path.unlink()
            raise

    def append(self, data: bytes) -> None:
        disk.write_at(self._file, data, self.size)
        disk.sync(self._file)
        self.size += len(data)

    def cut(self, size: int) -> None:
        os.ftruncate(self._file, size)
        self.size = size

    def finish(self) -> None:
        _finish(self._open_path)
        os.close(self._file)


def _settle(path: Path, size: int) -> None:
    disk.cut(path, size)
    _finish(path)


def _finish(path: Path) -> None:
    """Give a file its name; one without a line goes away."""
    path.rename(path.with_name(path.name.removesuffix(OPEN))) if path.stat().st_size else path.unlink()
    disk.sync_folder(path.parent)
