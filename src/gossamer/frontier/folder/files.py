"""Files on a shared folder: atomic writes, exclusive claims, and the file server's clock."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from gossamer.clock import Clock
from gossamer.errors import FrontierError, SchemaMismatch, Unavailable

TEMPORARY = "tmp"
_MODE = 0o644
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class SharedFolder:
    """All input and output of a folder that several machines have mounted.

    Nothing is relied on but that link and exclusive creation happen on the server, that rename replaces a file whole,
    and that a file which is opened is as it was when its last writer closed or synced it. There are no locks."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def touched(self, what: str, name: str) -> None:
        """Called before each operation; a test lets it raise what a bad network would."""

    def make_folders(self, *names: str) -> None:
        """Make folders, with those above them."""
        for name in names:
            self.touched("mkdir", name)
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> bytes:
        """A whole file, as its last writer left it."""
        self.touched("read", name)
        try:
            return (self.root / name).read_bytes()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # It was replaced while it was open.
            return (self.root / name).read_bytes()

    def put(self, name: str, data: bytes, *, mode: int = _MODE) -> float:
        """Write a file whole, in place of one that may be there; the time of the server when it was written."""
        temporary, written_at = self._write(data, mode)
        self.touched("rename", name)
        try:
            temporary.replace(self.root / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return written_at

    def claim(self, name: str, data: bytes, *, mode: int = _MODE) -> bool:
        """Make a file that must not be there yet; of all who try, one succeeds. `data` is like nobody else's."""
        temporary, _ = self._write(data, mode)
        self.touched("link", name)
        try:
            os.link(temporary, self.root / name)
        except FileExistsError:
            # An answer that got lost on the network, and was asked for again, says so too.
            return self.read(name) == data
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create(name, data, mode)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _create(self, name: str, data: bytes, mode: int) -> bool:
        """The same on a file system without links: until it is written, nobody can read whose claim it is."""
        try:
            handle = os.open(self.root / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            return False
        try:
            os.write(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        return True

    def _write(self, data: bytes, mode: int = _MODE) -> tuple[Path, float]:
        path = self.root / TEMPORARY / secrets.token_hex(12)
        self.touched("write", path.name)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
            written_at = self.clock_of(handle)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)
        return path, written_at

    def clock_of(self, handle: int) -> float:
        """When the server says that a file was written."""
        return os.fstat(handle).st_mtime

    def time(self) -> float:
        """The server's time."""
        path, written_at = self._write(b"?")
        path.unlink(missing_ok=True)
        return written_at

    def names(self, folder: str, *, fresh: bool = False) -> list[str]:
        """What is in a folder. A listing may come from a cache that is a minute old, unless it is to be fresh."""
        self.touched("list", folder)
        path = self.root / folder
        if fresh:
            # Having changed it ourselves, we must be shown how it is.
            probe = path / f".{secrets.token_hex(8)}"
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE))
            probe.unlink(missing_ok=True)
        return sorted(name for name in os.listdir(path) if not name.startswith("."))

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        self.touched("remove", name)
        (self.root / name).unlink(missing_ok=True)

    def sweep(self, *, older_than: float) -> int:
        """Delete what killed writers left half-written before a time of the server; how many files."""
        swept = 0
        for name in self.names(TEMPORARY):
            path = self.root / TEMPORARY / name
            try:
                if path.stat().st_mtime < older_than:
                    path.unlink()
                    swept += 1
            except FileNotFoundError:
                continue
        return swept


class ShareClock:
    """The clock of one machine, whose `epoch` is that of the file server, so that all machines agree on it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.epoch() - clock.monotonic()

    def set(self, server_time: float, *, asked_at: float) -> None:
        """It was this time on the server at some moment since `asked_at`, by `monotonic`.

        What agrees with that stays as it is: this process may have been stopped since the server answered, and an old
        time taken for the present would make its heartbeats look old to others."""
        earliest, latest = server_time - self._clock.monotonic(), server_time - asked_at
        self._offset = min(max(self._offset, earliest), latest)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def epoch(self) -> float:
        return self._clock.monotonic() + self._offset

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


def explained(error: OSError, place: Path | str) -> FrontierError:
    """What an error of the file system means for the crawl: nearly always that it has to wait."""
    word = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM):
        return Unavailable(f"{place}: {word}", hint="let this user write there")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP):
        return SchemaMismatch(f"{place}: {word}", hint="it is not a folder that Gossamer made")
    return Unavailable(
        f"{place}: {word}", hint="is the folder mounted, writable and not full? Workers wait until it is"
    )
