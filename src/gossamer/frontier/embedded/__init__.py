"""The embedded backend: one owner process, a schedule in memory, and a journal in a SQLite file.

For jobs on one machine. The modules, from the inside out: `schedule` decides which lane may be leased when, `state`
adds known keys, leases, and losses, `journal` defines what is stored, `sqlite` stores it, and `frontier` combines them.
Memory, about 100 bytes a URL, is the limit of this backend; larger jobs need a fleet's frontier. The folder backend
runs the same code over its own logs."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from pathlib import Path

import msgspec

from gossamer import settings as configuration
from gossamer.clock import Clock
from gossamer.errors import ConfigError, JobMissing
from gossamer.frontier.base import Meter, OwnedBackend, OwnedFrontier
from gossamer.job_folder import FRONTIER, save_settings, stored_settings
from gossamer.settings import Settings


class EmbeddedBackend(OwnedBackend):
    """Jobs whose schedule is in the memory of one process, with a journal in a SQLite file (none for `memory:`).

    The address `sqlite:FOLDER` names a job's folder, which has the settings in job.toml; `sqlite:FILE.db` names a
    single file, whose settings are not stored."""

    name = "sqlite"
    forms = ("memory:",)
    keeps_in_memory = True

    def settings(self, url: str, job: str) -> Settings | None:
        place = _place(url)
        return None if place is None else _kept(place)

    async def open(self, url: str, job: str, *, clock: Clock) -> OwnedFrontier:
        place = _place(url)
        if place is None or not _file(place).exists():
            raise JobMissing(f"there is no job in {place or 'memory'}", hint="give a URL to start one")
        return await self.create(url, job, _kept(place) or Settings(), clock=clock)

    async def create(self, url: str, job: str, settings: Settings, *, clock: Clock) -> OwnedFrontier:
        from gossamer.frontier.embedded.frontier import open_memory
        from gossamer.frontier.embedded.sqlite import open_sqlite

        place = _place(url)
        if place is None:
            return open_memory(settings, clock=clock, secret=secrets.token_bytes(16))
        frontier = open_sqlite(_file(place), settings, clock=clock)
        try:
            if place.suffix != ".db" and _kept(place) != msgspec.structs.replace(settings, max_seconds=None):
                save_settings(place, settings)
        except BaseException:
            await frontier.aclose()
            raise
        return frontier

    async def list_jobs(self, url: str) -> list[str]:
        place = _place(url)
        return [] if place is None else sorted(path.parent.name for path in place.glob(f"*/{FRONTIER}"))

    async def remove(self, url: str, job: str) -> bool:
        place = _place(url)
        if place is None or not _file(place).exists():
            return False
        return await asyncio.to_thread(_remove, _file(place))

    def meter(self, url: str) -> Meter:
        return _OwnMeter()


class _OwnMeter:
    """Measures this process: the embedded frontier runs in it, and its CPU time counts as the client's."""

    async def weight(self) -> float:
        import resource

        if sys.platform == "linux":
            return float(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    async def cpu_seconds(self) -> float | None:
        return 0.0

    async def aclose(self) -> None:
        pass


def _place(url: str) -> Path | None:
    """Return the folder or file that an address names; None for `memory:`."""
    scheme, _, place = url.partition(":")
    if scheme == "memory":
        return None
    if not place:
        raise ConfigError("sqlite: names no folder", hint="write sqlite:crawls/NAME")
    return Path(place)


def _file(place: Path) -> Path:
    return place if place.suffix == ".db" else place / FRONTIER


def _kept(place: Path) -> Settings | None:
    """Return the settings in job.toml; None if there is no job.toml."""
    kept = stored_settings(place) if place.suffix != ".db" else {}
    return configuration.build(kept) if kept else None


def _remove(file: Path) -> bool:
    from gossamer.frontier.embedded.sqlite import claim

    lock = claim(file)
    try:
        # The database file goes last: until then an interrupted removal can be repeated. The lock file stays: if it
        # were deleted, two processes could each lock a file of that name.
        for suffix in ("-new", "-new-journal", "-wal", "-shm", ""):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
    finally:
        os.close(lock)
    return True


EMBEDDED = EmbeddedBackend()
