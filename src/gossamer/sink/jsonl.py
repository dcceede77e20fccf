"""Pages and items as JSON lines, exact after any kill: only what the frontier's marks cover is kept."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gossamer.errors import SinkError, SinkFull
from gossamer.model import Record

PAGES, ITEMS = "pages.jsonl", "items.jsonl"
_encode_into = msgspec.json.Encoder().encode_into


class JsonlSink:
    """`pages.jsonl` and `items.jsonl` in a folder; their one writer is the owner of the frontier."""

    def __init__(self, folder: Path, marks: Mapping[str, int]) -> None:
        self._files: dict[str, int] = {}
        self._marks = {name: marks.get(name, 0) for name in (PAGES, ITEMS)}
        for name, mark in self._marks.items():
            self._files[name] = _open(folder / name, mark)

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        pages, items = bytearray(), bytearray()
        for record in records:
            _line(pages, record.page)
            for item in record.items:
                _line(items, item)
        await asyncio.get_running_loop().run_in_executor(None, self._store, {PAGES: pages, ITEMS: items})
        return dict(self._marks)

    def _store(self, parts: Mapping[str, bytearray]) -> None:
        try:
            for name, part in parts.items():
                if part:
                    _write_all(self._files[name], part, self._marks[name])
            for name, part in parts.items():
                if part:
                    os.fdatasync(self._files[name]) if hasattr(os, "fdatasync") else os.fsync(self._files[name])
        except OSError as error:
            for name, mark in self._marks.items():
                os.ftruncate(self._files[name], mark)
            kind = SinkFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else SinkError
            raise kind(f"output could not be written: {error.strerror}", hint="free some disk space") from error
        for name, part in parts.items():
            self._marks[name] += len(part)

    async def rewind(self, marks: Mapping[str, int]) -> None:
        for name in self._marks:
            self._marks[name] = marks.get(name, 0)
            os.ftruncate(self._files[name], self._marks[name])

    async def aclose(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()


def _line(buffer: bytearray, value: object) -> None:
    _encode_into(value, buffer, len(buffer))
    buffer += b"\n"


def _open(path: Path, mark: int) -> int:
    """Open a file and cut off what no commit covers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    size = os.fstat(descriptor).st_size
    if size < mark:
        os.close(descriptor)
        raise SinkError(
            f"{path} has {size} bytes, but the frontier says that {mark} were written: part of it is gone",
            hint="restore the file, or start a new job with --job NAME",
        )
    os.ftruncate(descriptor, mark)
    return descriptor


def _write_all(descriptor: int, data: bytearray, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
