"""Durable files: written completely or appended to, synced, with error messages that name the file."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gossamer.errors import SinkError, SinkFull

_FULL = (errno.ENOSPC, errno.EDQUOT)
_AWAY = (
    errno.EROFS, errno.ESTALE, errno.EIO, errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ECONNRESET,
    errno.ECONNABORTED, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH,
)  # fmt: skip


def write_at(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all bytes; raises OSError otherwise."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def sync(descriptor: int) -> None:
    """Flush to disk; what was written before survives a power loss."""
    os.fdatasync(descriptor) if hasattr(os, "fdatasync") else os.fsync(descriptor)


def truncate(path: Path, mark: int) -> None:
    """Truncate a file to its committed length; a shorter file is an error."""
    found = path.stat().st_size
    if found < mark:
        raise SinkError(
            f"{path} has {found} bytes, but {mark} were committed: part of the file is lost",
            hint="restore the file, or start a new job with --job NAME",
        )
    os.truncate(path, mark)


def sync_folder(folder: Path) -> None:
    """Make the names of new and renamed files in a folder durable."""
    if os.name != "nt":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def lock(descriptor: int) -> bool:
    """Lock a file until it is closed; False if another process holds the lock. Without lock support, always True."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # Some network file systems do not support locks.
        return True
    return True


def replace(path: Path, data: bytes | bytearray) -> None:
    """Write a file atomically, replacing an existing one."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def is_full(error: OSError) -> bool:
    """Whether the error means that disk space is missing."""
    return error.errno in _FULL


def translate_error(error: OSError) -> SinkError:
    """Translate an OSError: SinkFull if disk space is missing, else SinkError."""
    kind = SinkFull if is_full(error) else SinkError
    return kind(f"cannot write output: {error.strerror}", hint="free some disk space")


def translate_folder_error(folder: Path, error: OSError) -> SinkError:
    """Translate an OSError of a shared folder, where an unavailable folder is waited for like missing space."""
    kind = SinkFull if is_full(error) or error.errno in _AWAY else SinkError
    return kind(f"{folder}: {error.strerror}", hint="is the folder mounted, writable, and not full?")


class AppendedFiles:
    """Files in a folder, appended to only by the owner of the frontier. A file shorter than its mark is an error."""

    def __init__(self, folder: Path, names: Sequence[str], marks: Mapping[str, int]) -> None:
        self._files: dict[str, int] = {}
        self.marks = {name: marks.get(name, 0) for name in names}
        for name, mark in self.marks.items():
            self._files[name] = _open(folder / name, mark)

    async def append(self, parts: Mapping[str, bytes | bytearray]) -> Mapping[str, int]:
        """Append to all files durably, or to none; return the new lengths."""
        await asyncio.get_running_loop().run_in_executor(None, self._append, parts)
        return dict(self.marks)

    def _append(self, parts: Mapping[str, bytes | bytearray]) -> None:
        try:
            for name, part in parts.items():
                if part:
                    write_at(self._files[name], part, self.marks[name])
            for name, part in parts.items():
                if part:
                    sync(self._files[name])
        except OSError as error:
            for name, mark in self.marks.items():
                os.ftruncate(self._files[name], mark)
            raise translate_error(error) from error
        for name, part in parts.items():
            self.marks[name] += len(part)

    def rewind(self, marks: Mapping[str, int]) -> None:
        """Truncate to earlier lengths."""
        for name in self.marks:
            self.marks[name] = marks.get(name, 0)
            os.ftruncate(self._files[name], self.marks[name])

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()


def _open(path: Path, mark: int) -> int:
    """Open a file and truncate it to its committed length."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        truncate(path, mark)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
