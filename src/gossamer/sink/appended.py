"""Files that only grow, exact after any kill: what the frontier's marks do not cover is cut off."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gossamer.sink import disk


class AppendedFiles:
    """Files in a folder whose one writer is the owner of the frontier. A file shorter than its mark is an error."""

    def __init__(self, folder: Path, names: Sequence[str], marks: Mapping[str, int]) -> None:
        self._files: dict[str, int] = {}
        self.marks = {name: marks.get(name, 0) for name in names}
        for name, mark in self.marks.items():
            self._files[name] = _open(folder / name, mark)

    async def append(self, parts: Mapping[str, bytes | bytearray]) -> Mapping[str, int]:
        """Make all parts durable, or none; the new lengths."""
        await asyncio.get_running_loop().run_in_executor(None, self._append, parts)
        return dict(self.marks)

    def _append(self, parts: Mapping[str, bytes | bytearray]) -> None:
        try:
            for name, part in parts.items():
                if part:
                    disk.write_at(self._files[name], part, self.marks[name])
            for name, part in parts.items():
                if part:
                    disk.sync(self._files[name])
        except OSError as error:
            for name, mark in self.marks.items():
                os.ftruncate(self._files[name], mark)
            raise disk.in_words(error) from error
        for name, part in parts.items():
            self.marks[name] += len(part)

    def rewind(self, marks: Mapping[str, int]) -> None:
        """Go back to earlier lengths."""
        for name in self.marks:
            self.marks[name] = marks.get(name, 0)
            os.ftruncate(self._files[name], self.marks[name])

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()


def _open(path: Path, mark: int) -> int:
    """Open a file and cut off what no commit covers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        disk.cut(path, mark)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
