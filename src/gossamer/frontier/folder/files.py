"""Files on a shared folder: atomic writes, exclusive claims, and the file server's clock.

The folder may be a mount of NFS, of a cluster's file system, or a local disk. Three operations are all that the backend
builds on: `put` replaces a file whole, by a rename; `claim` makes a file that must not exist, by a link, so that one of
all who try succeeds; `time` is when the server says that a file was written. A file is synced before it gets its name,
so a reader finds all of it or nothing.

Networks fail in ways that local disks do not. A request may be carried out and its answer lost: `claim` then finds its
own file, and recognizes it by its contents. A listing may come from a cache: `names(fresh=True)` changes the folder
first, which makes the client ask the server. An open file may have been replaced (ESTALE): it is read again. A writer
that dies leaves a file in `tmp/`, which `sweep` deletes later. Nearly every other error means that the folder is away
or full, which the crawl waits out (`explained`)."""

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

    It relies on the following only: link and exclusive creation happen on the server, rename replaces a file whole, and
    who opens a file sees it as its last writer closed or synced it. There are no locks."""

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
            # Stale handle: the file was replaced while it was open.
            return (self.root / name).read_bytes()

    def put(self, name: str, data: bytes, *, mode: int = _MODE) -> float:
        """Write a file whole, replacing one that may exist, and return the server's time of writing."""
        temporary, written_at = self._write(data, mode)
        self.touched("rename", name)
        try:
            temporary.replace(self.root / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return written_at

    def claim(self, name: str, data: bytes, *, mode: int = _MODE) -> bool:
        """Create a file that must not exist; return whether this caller created it.

        `data` must be unique to the caller."""
        temporary, _ = self._write(data, mode)
        self.touched("link", name)
        try:
            os.link(temporary, self.root / name)
        except FileExistsError:
            # A client also reports this if its first request succeeded and the answer was lost.
            return self.read(name) == data
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create(name, data, mode)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _create(self, name: str, data: bytes, mode: int) -> bool:
        """Claim on a file system without links. Between creation and sync, nobody can read whose claim it is."""
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
        """Return the time at which the server says that a file was written."""
        return os.fstat(handle).st_mtime

    def time(self) -> float:
        """The server's time."""
        path, written_at = self._write(b"?")
        path.unlink(missing_ok=True)
        return written_at

    def names(self, folder: str, *, fresh: bool = False) -> list[str]:
        """Return the names in a folder, sorted.

        Unless `fresh`, the listing may come from a cache that is a minute old."""
        self.touched("list", folder)
        path = self.root / folder
        if fresh:
            # A client that has changed the folder has to drop its cached listing.
            probe = path / f".{secrets.token_hex(8)}"
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE))
            probe.unlink(missing_ok=True)
        return sorted(name for name in os.listdir(path) if not name.startswith("."))

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        self.touched("remove", name)
        (self.root / name).unlink(missing_ok=True)

    def sweep(self, *, older_than: float) -> int:
        """Delete half-written files that killed writers left before this server time; return how many."""
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
    """The clock of one machine with the file server's `epoch`, so that all machines agree on it.

    Only heartbeats, names of letters, and times in logs need that. Leases end by `monotonic`, which no server sets."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.epoch() - clock.monotonic()

    def set(self, server_time: float, *, asked_at: float) -> None:
        """Adjust to an answer: it was `server_time` on the server at some moment since `asked_at` by `monotonic`.

        An offset that agrees with this stays. The process may have been suspended after the server answered; if it
        took the old answer for the present, its heartbeats would look old to others, and its shards would be taken."""
        earliest, latest = server_time - self._clock.monotonic(), server_time - asked_at
        self._offset = min(max(self._offset, earliest), latest)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def epoch(self) -> float:
        return self._clock.monotonic() + self._offset

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


def explained(error: OSError, place: Path | str) -> FrontierError:
    """Translate an error of the file system: nearly always one that the crawl waits out."""
    word = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM):
        return Unavailable(f"{place}: {word}", hint="let this user write there")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP):
        return SchemaMismatch(f"{place}: {word}", hint="it is not a folder made by Gossamer")
    return Unavailable(
        f"{place}: {word}", hint="check that the folder is mounted, writable, and not full; workers wait until it is"
    )
