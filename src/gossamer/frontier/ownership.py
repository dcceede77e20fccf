"""Who owns a frontier file: one process at a time, for as long as it lives."""

from __future__ import annotations

import os
from pathlib import Path

from gossamer.errors import FrontierError, Held

_NETWORK_FILESYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs", "afs", "ceph", "glusterfs")
)


def holder(path: Path) -> str:
    """Who owns the frontier file, as `pid N`; empty if nobody does."""
    try:
        lock = claim(path)
    except Held:
        return _read_holder(_lock_path(path)) or "another process"
    os.close(lock)
    return ""


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + "-owner")


def _read_holder(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""


def claim(path: Path) -> int:
    """Lock the file against other owners. The lock ends with this process, however it ends."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_network_folder(path.parent)
    descriptor = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        name = _read_holder(_lock_path(path)) or "another process"
        raise Held(
            f"{path} is in use by {name}",
            hint=f"wait for it, stop it, or join it with: gossamer worker {path.parent}",
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)
    return descriptor


def refuse_network_folder(folder: Path, *, mounts: Path = Path("/proc/mounts")) -> None:
    """SQLite's files are not safe on network file systems: say so instead of corrupting them some day."""
    kind = _filesystem(folder, mounts)
    if kind in _NETWORK_FILESYSTEMS:
        raise FrontierError(
            f"{folder} is on a network file system ({kind}), where SQLite files can be corrupted",
            hint="put the job on a local disk with --job DIR",
        )


def _filesystem(folder: Path, mounts: Path) -> str:
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    place, best, kind = str(folder.resolve()), "", ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = fields[1].replace("\\040", " ")
        if (place == mount or place.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind
