"""Deletes a job: its frontier always, its results only on request.

An interrupted deletion can be repeated, because results are deleted first and the frontier with the job's record last.
Only files that jobs write are deleted: other files in the folder are kept, and then the folder, too."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gossamer.engine.heartbeat import is_live
from gossamer.errors import Held, JobRunning
from gossamer.frontier.backends import owned_url, remove_job
from gossamer.job_folder import ADDRESS, FRONTIER, SETTINGS, folder_of
from gossamer.jobs.job import Job
from gossamer.jobs.results_folder import MARKER
from gossamer.redact import masked_address
from gossamer.storage import request_log, segments
from gossamer.storage.jsonl import REJECTED
from gossamer.storage.reader import elsewhere
from gossamer.storage.registry import result_files, shared_folder

_RESULTS = (*result_files(), REJECTED, segments.FOLDER, request_log.FOLDER, "report.html")
"""Results of jobs in their folder."""
_RECORDS = (MARKER, SETTINGS)
"""Files that describe the results; deleted after them."""
_RUNTIME = ("socket", "handling", ADDRESS)


class Removed(NamedTuple):
    """The result of deleting a job."""

    was_there: bool
    results: Path | None
    """The folder with its results, if they were kept."""
    elsewhere: tuple[str, ...]
    """Sinks that store outside of the folder: servers, buckets, other paths. Their data is never deleted."""


async def check_rest(job: Job) -> None:
    """Raise JobRunning if the job has live workers."""
    live = sorted(worker.worker for worker in await job.workers() if is_live(worker))
    if live:
        more = f" and {len(live) - 5} more" if len(live) > 5 else ""
        where = f" --frontier {masked_address(job.frontier)}" if job.frontier else ""
        raise JobRunning(
            f"job {job.name!r} is running: {', '.join(live[:5])}{more}",
            hint=f"stop it first, and wait until its workers have exited: gossamer stop {job.name}{where}",
        )


async def delete_job(job: Job, *, results: bool = False, address: str = "") -> Removed:
    """Delete a stopped job, and with `results` the results in its folder. This cannot be undone.

    An interrupted call can be repeated.
    `address` is the address of an owned frontier that is not in the folder."""
    await check_rest(job)
    url = job.frontier or address or owned_url("", job.folder)
    if results:
        await asyncio.to_thread(_delete, job.folder, _RESULTS)
    try:
        was_there = await remove_job(url, job.folder.name if address else job.name)
    except Held as error:
        raise JobRunning(str(error), hint=f"stop it first: gossamer stop {job.name}") from None
    kept = await asyncio.to_thread(_tidy, dict.fromkeys([job.folder, folder_of(job.name, ())]))
    # A fleet's shared folder is the job's folder: it is not elsewhere.
    others = [name for name in job.settings.sink if shared_folder([name]) != job.folder]
    return Removed(was_there, job.folder if job.folder in kept else None, tuple(elsewhere(others)))


def _tidy(folders: Iterable[Path]) -> list[Path]:
    """Delete the other files of a job in folders without results; returns the folders with results."""
    kept = []
    for folder in folders:
        _delete(folder, _RUNTIME)
        if any(_there(folder, _RESULTS)):
            kept.append(folder)
            continue
        # The lock file is deleted only with the folder: otherwise two processes could each lock a file of that name.
        _delete(folder, (*_RECORDS, f"{FRONTIER}-owner"))
        # Files of other programs keep the folder.
        with suppress(OSError):
            folder.rmdir()
    return kept


def _delete(folder: Path, names: tuple[str, ...]) -> None:
    for path in _there(folder, names):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _there(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    for name in names:
        path = folder / name
        if path.exists() or path.is_symlink():
            yield path
