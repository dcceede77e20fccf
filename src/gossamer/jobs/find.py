"""Finds jobs: opens one by its name, lists those in this folder or on a frontier, and locates stored results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer import settings as configuration
from gossamer.clock import Clock, SystemClock
from gossamer.errors import ConfigError, FrontierError, GossamerError, JobMissing
from gossamer.frontier.backends import (
    backend_of,
    create_fleet,
    is_fleet,
    is_foreign,
    is_in_memory,
    open_fleet,
    owned_backend,
    owned_url,
)
from gossamer.frontier.base import FleetFrontier, OwnedFrontier
from gossamer.job_folder import FRONTIER, folder_of, is_begun, job_folders, save_address, stored_address
from gossamer.jobs.fleet import FleetJob
from gossamer.jobs.job import Job, JobSummary
from gossamer.jobs.local import RunningJob, StoppedJob
from gossamer.jobs.results_folder import results_folder
from gossamer.redact import masked_address
from gossamer.settings import Settings
from gossamer.storage.segments import FOLDER as SEGMENTS

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob


@asynccontextmanager
async def open_job(name: str, frontier: str = "") -> AsyncIterator[Job]:
    """Open a job by its name: on a fleet's frontier, in the process on this machine that runs it, or in its files.

    The name may also be the folder of a job on this machine. Raises JobMissing if a frontier does not have the job, and
    ConfigError if this machine does not."""
    job = await find_job(name, frontier)
    try:
        yield job
    finally:
        await job.aclose()


async def find_job(name: str, frontier: str = "") -> Job:
    """Like `open_job`, but the caller closes the job."""
    folder = folder_of(name, ())
    if is_fleet(frontier):
        return await FleetJob.open(frontier, name, folder)
    try:
        return await open_folder(folder, name=name, frontier=frontier)
    except JobMissing:
        check_folder(folder, name)
        raise


async def open_folder(
    folder: Path, *, name: str, frontier: str = "", clock: Clock | None = None
) -> RunningJob | StoppedJob:
    """Open the job in a folder on this machine, running or stopped; JobMissing if there is none.

    `frontier` may name an owned backend of another package if the folder does not, because an older version or another
    program created it."""
    try:
        return await RunningJob.open(folder, name=name, clock=clock)
    except JobMissing:
        address = frontier if is_foreign(frontier) else ""
        if address and not was_begun(folder, address):
            raise ConfigError(f"there is no job {name!r} in {masked_address(address)}") from None
        if not address and not is_begun(folder):
            raise
        # The frontier's file is not opened here: that would lock it, and takes long if it is large.
        return StoppedJob(folder, name=name, address=address, clock=clock)


def was_begun(folder: Path, frontier: str) -> bool:
    """Whether a job on this machine exists: in its folder, or on an owned frontier of another package."""
    if is_foreign(frontier):
        return owned_backend(frontier).settings(frontier, folder.name) is not None
    return (folder / FRONTIER).exists() if frontier else is_begun(folder)


def check_folder(folder: Path, name: str) -> None:
    """Raise ConfigError if the folder contains no job."""
    if not is_begun(folder):
        raise ConfigError(
            f"there is no job {name!r} ({folder / FRONTIER} does not exist)", hint="list jobs with: gossamer status"
        )


def guess_name(site: str, frontier: str = "") -> str:
    """The default job for a site: the one that is named after it, or the only one in `crawls/`."""
    own = folder_of("", [f"http://{site}/"])
    if frontier or is_begun(own):
        return own.name
    names = [path.name for path in job_folders(own.parent)]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ConfigError(
            "there is no job in crawls/", hint="choose a job with --job NAME|DIR, or with --job NAME --frontier URL"
        )
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    raise ConfigError(f"no job given, and crawls/ has several: {shown}", hint=f"--job {names[0]}")


async def list_jobs(frontier: str = "") -> list[JobSummary]:
    """The jobs on a frontier, or in this folder and its `crawls/`, sorted by name."""
    if is_fleet(frontier):
        names = await list_names(frontier)
        return [await _summary(name, FleetJob.open(frontier, name, folder_of(name, ()))) for name in names]
    if is_foreign(frontier):
        found = {name: folder_of(name, ()) for name in await list_names(frontier)}
        return [
            await _summary(name, open_folder(folder, name=name, frontier=frontier)) for name, folder in found.items()
        ]
    folders = {folder.name: folder for place in ("crawls", ".") for folder in job_folders(Path(place))}
    return [await _summary(name, open_folder(folder, name=name)) for name, folder in sorted(folders.items())]


async def list_names(frontier: str) -> list[str]:
    """The names of the jobs on a frontier, sorted, at most 1,000."""
    return await backend_of(frontier).list_jobs(frontier)


async def _summary(name: str, opening: Awaitable[Job]) -> JobSummary:
    try:
        job = await opening
        try:
            counts = await job.counts()
            return JobSummary(name=name, state=job.state(counts, await job.workers()), counts=counts)
        finally:
            await job.aclose()
    except GossamerError as error:
        return JobSummary(name=name, problem=str(error))


async def create_frontier(
    name: str, frontier: str, settings: Settings, *, worker: str
) -> FleetFrontier | OwnedFrontier:
    """Open the frontier of a job, creating the job if it does not exist, for a program that adds its own requests.

    The settings replace those of the job. `worker` is the program's name among the workers of a fleet."""
    if is_fleet(frontier):
        return await create_fleet(frontier, name, settings, worker=worker)
    if is_in_memory(frontier):
        raise ConfigError(
            "--frontier memory: the job would end with this command", hint="omit --frontier, or use a server"
        )
    folder = folder_of(name, ())
    url = owned_url(frontier or stored_address(folder), folder)
    created = await owned_backend(url).create(url, folder.name, settings, clock=SystemClock())
    if is_foreign(url):
        save_address(folder, url)
    return created


async def find_stored(name: str, frontier: str = "") -> StoredJob:
    """The results of a job: in its own folder, or in the results folder of its fleet.

    The frontier is opened only if the folder does not have enough information."""
    from gossamer.storage.reader import StoredJob

    folder = folder_of(name, ())
    has_segments = (folder / SEGMENTS).is_dir() and backend_of(frontier).results_folder(frontier, name) is None
    here = StoredJob.of(folder)
    if not is_fleet(frontier) or "/" in name or (has_segments and here.settings):
        return here
    try:
        fleet = await open_fleet(frontier, name)
    except FrontierError:
        if has_segments:
            return here
        raise
    try:
        home = folder if has_segments else results_folder(frontier, name, fleet.settings, folder)
        return StoredJob.with_settings(home, configuration.dump(fleet.settings), name)
    finally:
        await fleet.aclose()
