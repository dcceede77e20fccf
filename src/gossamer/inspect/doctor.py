"""Checks this machine for crawling: Python, extras, files, memory, disk, and DNS, each with a fix."""

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
"""A connection, and what connects or is read beside it."""
_NETWORK_MOUNTS = frozenset(("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "fuse.s3fs"))
LEAST_FREE_BYTES = 100_000_000
LITTLE_FREE_BYTES = 2_000_000_000


def python() -> Iterator[Finding]:
    """The interpreter and our own version."""
    says = f"Gossamer {VERSION} on {platform.python_implementation()} {platform.python_version()}, {sys.platform}"
    if sys.platform == "win32":
        yield Finding("python", "weak", says, "on Windows run it in WSL: signals and sockets differ")
    else:
        yield Finding("python", "good", says)


def extras() -> Iterator[Finding]:
    """Which extras are installed; one that is not is no fault, unless something asks for it."""
    for extra in sorted(MODULES):
        error = fault(extra)
        if error is None:
            yield Finding("extras", "good", f"{extra}: can be imported")
            continue
        found = unusable(extra, extra, error)
        if is_missing(extra, error):
            yield Finding("extras", "good", str(found), f"if you need it: {found.hint}")
        else:
            yield Finding("extras", "weak", str(found), found.hint)


def files(settings: Settings) -> Iterator[Finding]:
    """Whether as many files can be open as the crawl has fetches at once."""
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = settings.concurrency * _FILES_A_FETCH + 100
    says = f"{soft:,} open files a process, {need:,} wanted for {settings.concurrency} fetches at once"
    if soft == resource.RLIM_INFINITY or soft >= need:
        yield Finding("files", "good", says)
    elif hard == resource.RLIM_INFINITY or hard >= need:
        yield Finding("files", "weak", says, f"ulimit -n {need}")
    else:
        yield Finding(
            "files", "weak", says, f"raise the limit (limits.conf, LimitNOFILE=) to {need} or lower --concurrency"
        )


def memory() -> Iterator[Finding]:
    """What this process may take, by its cgroup or by the machine."""
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
    says = f"{least / 1e9:.1f} GB for all processes here{', by the cgroup' if least < total else ''}"
    if least < 400_000_000:
        yield Finding("memory", "weak", says, "a worker takes 100 to 400 MB: give it more, or lower --concurrency")
    else:
        yield Finding("memory", "good", says)


def disk(folder: Path) -> Iterator[Finding]:
    """Whether output can be written to where crawls go, and for how long."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".gossamer-doctor-") as probe:
            probe.write(b"probe")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        yield Finding("disk", "bad", f"{place} cannot be written to: {error.strerror}", "choose another with --job DIR")
        return
    free = shutil.disk_usage(place).free
    says = f"{free / 1e9:,.1f} GB free in {place}, enough for about {free / 400e6:,.1f} M pages without bodies"
    if free < LEAST_FREE_BYTES:
        yield Finding("disk", "bad", says, "free some space: a crawl on a full disk waits until there is")
    elif free < LITTLE_FREE_BYTES:
        yield Finding("disk", "weak", says, "free some space, or choose another place with --job DIR")
    else:
        yield Finding("disk", "good", says)
    kind = _mounted_as(place)
    if kind in _NETWORK_MOUNTS:
        says = f"{place} is on a network file system ({kind})"
        yield Finding("disk", "weak", says, "keep an embedded job on a local disk; to share a folder: folder:/path")


def _mounted_as(place: Path) -> str:
    """The kind of file system that a place is on; empty where nobody says."""
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
    """Whether a name can be looked up as a crawl would do it."""
    resolver = Resolver(clock, settings.resolve, nameservers=settings.nameservers, tries=2)
    try:
        began = clock.monotonic()
        answer = await resolver.resolve(host)
    except FetchError as error:
        mend = "check /etc/resolv.conf, or name a server with --nameservers 192.0.2.53"
        return Finding("names", "bad", str(error), error.hint or mend)
    finally:
        await resolver.aclose()
    took = clock.monotonic() - began
    return Finding("names", "good", f"{host} is {', '.join(answer.addresses[:2])}, answered in {took * 1000:,.0f} ms")
