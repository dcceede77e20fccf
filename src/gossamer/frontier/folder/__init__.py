"""The folder backend: jobs on a shared file system, without a server.

For fleets that share a mount and nothing else. `files` has the few operations that are safe on one, `record` the job,
`claims` the owners of shards and the live workers, `log` the durable data of a shard, `shard` the embedded frontier
over it, `links` what is sent between shards, `owner` the session of a worker, and `frontier` the whole. No worker waits
for a lock, and no data is lost with a worker: everything is in logs that others can read."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gossamer.clock import Clock
from gossamer.errors import ConfigError
from gossamer.frontier.base import FleetBackend, FleetFrontier, Meter, Opener, skew
from gossamer.model import Finding
from gossamer.settings import Settings

if TYPE_CHECKING:
    from gossamer.frontier.folder.frontier import FolderFrontier


_MOST_JOBS = 1000


class FolderBackend(FleetBackend):
    """Jobs on a file system that several machines have mounted.

    `check` tests on the mount the operation that everything relies on: of two clients that claim the same file, one
    must fail."""

    name = "folder"
    forms = ("folder:/path",)
    knows_all_keys = False

    async def open(self, url: str, job: str, by: Opener) -> FleetFrontier:
        return await _open(url, job, None, by)

    async def create(self, url: str, job: str, settings: Settings, by: Opener) -> FleetFrontier:
        return await _open(url, job, settings, by)

    async def list_jobs(self, url: str) -> list[str]:
        return await asyncio.to_thread(_list, _path(url))

    async def remove(self, url: str, job: str) -> bool:
        from gossamer.frontier.folder.record import place_of

        root, _ = place_of(url, job)
        was_there = root.is_dir()
        await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)
        return was_there

    async def check(self, url: str, *, clock: Clock, forget_seconds: float) -> AsyncIterator[Finding]:
        from gossamer.frontier.folder.files import TEMPORARY, SharedFolder, explained

        place = _path(url)
        if not place.is_dir():
            yield Finding("frontier", "bad", f"{place} is not a folder", f"mkdir {place}, or mount it")
            return
        try:
            with tempfile.TemporaryDirectory(prefix=".gossamer-doctor-", dir=place) as own:
                share = SharedFolder(Path(own))
                await asyncio.to_thread(share.make_folders, TEMPORARY)
                claims = [await asyncio.to_thread(share.claim, "claim", data) for data in (b"one", b"another")]
                if claims != [True, False]:
                    fix = "share the folder with NFS 4 or sshfs; this kind of mount is not safe"
                    yield Finding("frontier", "bad", f"{place} allows two clients to claim the same file", fix)
                    return
                yield Finding("frontier", "good", f"{place}: exactly one client can claim a file")
                yield await skew(clock, lambda: asyncio.to_thread(share.time))
        except OSError as error:
            explained_error = explained(error, place)
            yield Finding("frontier", "bad", str(explained_error), explained_error.hint)

    def results_folder(self, url: str, job: str) -> Path | None:
        from gossamer.frontier.folder.record import results_of

        return results_of(url, job)

    def meter(self, url: str) -> Meter:
        return _FolderMeter(_path(url))


class _FolderMeter:
    """Measures the size of the files of all jobs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def weight(self) -> float:
        return float(sum(path.stat().st_size for path in self._path.rglob("*") if path.is_file()))

    async def cpu_seconds(self) -> float | None:
        # There is no server: the workers do all the work.
        return 0.0

    async def aclose(self) -> None:
        pass


async def _open(url: str, job: str, settings: Settings | None, by: Opener) -> FolderFrontier:
    """Join a job. Workers balance the shards among themselves, so no part of them can be chosen."""
    from gossamer.frontier.folder.frontier import open_folder

    if by.shards:
        raise ConfigError("workers on a folder balance its shards automatically", hint="omit --shards")
    return await open_folder(url, job, settings, worker=by.worker, region=by.region)


def _path(url: str) -> Path:
    return Path(url.partition(":")[2].partition("?")[0])


def _list(path: Path) -> list[str]:
    """Return the jobs that have a record; a job whose record is not written yet does not exist yet."""
    try:
        return sorted(unquote(found.parent.name) for found in (path / "frontier").glob("*/job.json"))[:_MOST_JOBS]
    except OSError:
        return []


FOLDER = FolderBackend()
