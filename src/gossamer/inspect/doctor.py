"""Checks this machine: Python, extras, open files, memory, disk, and DNS; each problem has a suggested fix."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gossamer.clock import Clock
from gossamer.download.dns import Resolver
from gossamer.errors import FetchError
from gossamer.extras import MODULES, fault, is_missing, unusable
from gossamer.model import Finding
from gossamer.settings import VERSION, Settings

_FILES_A_FETCH = 3
"""Open files per concurrent fetch: one connection, and others that are being opened or read."""
_NETWORK_MOUNTS = frozenset(("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "fuse.s3fs"))
LEAST_FREE_BYTES = 100_000_000
LITTLE_FREE_BYTES = 2_000_000_000


def python() -> Iterator[Finding]:
    """Check the interpreter and the platform."""
    text = f"Gossamer {VERSION} on {platform.python_implementation()} {platform.python_version()}, {sys.platform}"
    if sys.platform == "win32":
        yield Finding("python", "weak", text, "use WSL: Windows lacks the POSIX signals and sockets that crawls need")
    else:
        yield Finding("python", "good", text)


def extras() -> Iterator[Finding]:
    """Check the extras. A missing extra is fine, a broken one is not."""
    for extra in sorted(MODULES):
        error = fault(extra)
        if error is None:
            yield Finding("extras", "good", f"{extra}: installed")
            continue
        found = unusable(extra, extra, error)
        if is_missing(extra, error):
            yield Finding("extras", "good", str(found), f"optional: {found.hint}")
        else:
            yield Finding("extras", "weak", str(found), found.hint)


def files(settings: Settings) -> Iterator[Finding]:
    """Check the limit of open files against the number of concurrent fetches."""
    try:
        import resource
    except ImportError:
        # Windows has no limit of open files.
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = settings.concurrency * _FILES_A_FETCH + 100
    text = f"limit of {soft:,} open files per process; {settings.concurrency} concurrent fetches need {need:,}"
    if soft == resource.RLIM_INFINITY or soft >= need:
        yield Finding("files", "good", text)
    elif hard == resource.RLIM_INFINITY or hard >= need:
        yield Finding("files", "weak", text, f"ulimit -n {need}")
    else:
        yield Finding(
            "files", "weak", text, f"raise the limit to {need} (limits.conf, LimitNOFILE=), or lower --concurrency"
        )


def memory() -> Iterator[Finding]:
    """Check the memory limit of the cgroup, or the memory of the machine."""
    if not hasattr(os, "sysconf"):
        return
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [total]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    least = min(limits)
    text = f"{least / 1e9:.1f} GB of memory{' (cgroup limit)' if least < total else ''}"
    if least < 400_000_000:
        yield Finding("memory", "weak", text, "a worker needs 100 to 400 MB: raise the limit, or lower --concurrency")
    else:
        yield Finding("memory", "good", text)


def disk(folder: Path) -> Iterator[Finding]:
    """Check that the folder is writable, its free space, and its file system."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".gossamer-doctor-") as probe:
            probe.write(b"probe")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        yield Finding("disk", "bad", f"{place} is not writable: {error.strerror}", "choose another folder: --job DIR")
        return
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:,.1f} GB free in {place}, enough for about {free / 400e6:,.1f} M pages without bodies"
    if free < LEAST_FREE_BYTES:
        yield Finding("disk", "bad", text, "free disk space: a crawl waits while the disk is full")
    elif free < LITTLE_FREE_BYTES:
        yield Finding("disk", "weak", text, "free disk space, or choose another folder: --job DIR")
    else:
        yield Finding("disk", "good", text)
    kind = _file_system(place)
    if kind in _NETWORK_MOUNTS:
        text = f"{place} is on a network file system ({kind})"
        yield Finding(
            "disk", "weak", text, "use a local disk, or a frontier for shared folders: --frontier folder:/path"
        )


def _file_system(place: Path) -> str:
    """The type of the file system of a path; empty if unknown."""
    found, kind = "", ""
    try:
        mounts = Path("/proc/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    whole = str(place.resolve())
    for line in mounts:
        parts = line.split(" ")
        if len(parts) > 2 and len(parts[1]) >= len(found) and f"{whole}/".startswith(f"{parts[1].rstrip('/')}/"):
            found, kind = parts[1], parts[2]
    return kind


async def names(host: str, settings: Settings, *, clock: Clock) -> Finding:
    """Check that a host name resolves, with the resolver of crawls."""
    resolver = Resolver(clock, settings.resolve, nameservers=settings.nameservers, tries=2)
    try:
        began = clock.monotonic()
        answer = await resolver.resolve(host)
    except FetchError as error:
        fix = "check /etc/resolv.conf, or set a DNS server: --nameservers 192.0.2.53"
        return Finding("names", "bad", str(error), error.hint or fix)
    finally:
        await resolver.aclose()
    took = clock.monotonic() - began
    addresses = ", ".join(answer.addresses[:2])
    return Finding("names", "good", f"{host} resolves to {addresses} in {took * 1000:,.0f} ms")
