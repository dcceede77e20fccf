"""A note on disk of the page that a process is handling, so that a page which kills its process can be found out."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from struct import pack_into, unpack_from


class CrashMarker:
    """Names the page in hand in eight bytes of shared memory: they outlive the process, and cost it next to nothing."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._memory: mmap.mmap | bytearray = bytearray(8)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(descriptor).st_size < 8:
                    # Not a hole: the first write to one, on a full disk, would kill the process.
                    os.pwrite(descriptor, bytes(8), 0)
                self._memory = mmap.mmap(descriptor, 8)
            except OSError as error:
                # A page that kills this process will not be named; to wait for room would help nobody.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
            finally:
                os.close(descriptor)

    def name(self, key: int) -> None:
        """This page is in hand from now on; 0: none is."""
        pack_into("<q", self._memory, 0, key)

    def close(self) -> None:
        """Nothing is in hand any more."""
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def left_behind(path: Path) -> int:
    """The key that a dead process was handling, 0 if none; the note is taken away."""
    try:
        data = path.read_bytes()
        path.unlink()
    except OSError:
        return 0
    return int(unpack_from("<q", data)[0]) if len(data) >= 8 else 0
