"""Delete a job: its frontier always, what it has stored only if that is asked for.

A job is removed in the order that an interruption can be taken up again: results first, the frontier with the job's
record last. Only what jobs write is deleted in a folder: anything else in it, and the folder then, stays."""

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
from gossamer.storage.registry import result_files

_RESULTS = (*result_files(), REJECTED, segments.FOLDER, request_log.FOLDER, "report.html")
"""What jobs store in their folder."""
_RECORDS = (MARKER, SETTINGS)
"""What the results are read and recognized by: deleted after them."""
_RUNTIME = ("socket", "handling", ADDRESS)


class Removed(NamedTuple):
    """What deleting a job did."""

    was_there: bool
    results: Path | None
    """The folder with its results, if that is still there."""
    elsewhere: tuple[str, ...]
    """Sinks that store outside of the folder: servers, buckets, other paths. What they have is never touched."""


async def check_rest(job: Job) -> None:
    """Refuse a job that somebody works on."""
    live = sorted(worker.worker for worker in await job.workers() if is_live(worker))
    if live:
        more = f" and {len(live) - 5} more" if len(live) > 5 else ""
        where = f" --frontier {masked_address(job.frontier)}" if job.frontier else ""
        raise JobRunning(
            f"job {job.name!r} is running: {', '.join(live[:5])}{more}",
            hint=f"gossamer stop {job.name}{where}, and delete it when its workers have left",
        )


async def delete_job(job: Job, *, results: bool = False, address: str = "") -> Removed:
    """Delete a job that nobody works on, with `results` also what it has stored in its folder.

    `address` is that of a frontier with an owner which is not in the folder.
    What is deleted cannot be had again: ask first. What was interrupted may be called again."""
    await check_rest(job)
    url = job.frontier or address or owned_url("", job.folder)
    if results:
        await asyncio.to_thread(_delete, job.folder, _RESULTS)
    try:
        was_there = await remove_job(url, job.folder.name if address else job.name)
    except Held as error:
        raise JobRunning(str(error), hint=f"gossamer stop {job.name}, and delete it then") from None
    kept = await asyncio.to_thread(_tidy, dict.fromkeys([job.folder, folder_of(job.name, ())]))
    return Removed(was_there, job.folder if job.folder in kept else None, tuple(elsewhere(job.settings.sink)))


def _tidy(folders: Iterable[Path]) -> list[Path]:
    """Delete what is left of a job in these folders, where it has no results; the folders that have some."""
    kept = []
    for folder in folders:
        _delete(folder, _RUNTIME)
        if any(_there(folder, _RESULTS)):
            kept.append(folder)
            continue
        # The lock's file goes with the folder only: without it, two processes could each lock a file of that name.
        _delete(folder, (*_RECORDS, f"{FRONTIER}-owner"))
        # Files that no job wrote keep the folder.
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
