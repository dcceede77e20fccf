"""The jobs that there are, a line each: what `status` shows to those who name none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gossamer import job as jobs
from gossamer import settings as configuration
from gossamer.cli.fleet_status import table
from gossamer.cli.terminal import plain
from gossamer.engine import wire
from gossamer.engine.pulse import is_live
from gossamer.engine.remote import connect
from gossamer.errors import GossamerError, JobMissing
from gossamer.frontier.backends import is_fleet, list_jobs, open_fleet
from gossamer.frontier.sqlite_survey import survey
from gossamer.model import Counts

_FIGURES = ("stored", "queued", "delayed", "failed", "known", "sites")


async def look(frontier: str) -> list[dict[str, Any]]:
    """The jobs of a fleet's frontier, or those of this folder, with their states and figures."""
    if is_fleet(frontier):
        return [await _told(name, _on_fleet(frontier, name)) for name in await list_jobs(frontier)]
    return [await _told(str(name), _here(folder)) for name, folder in sorted(_folders().items())]


def lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """What `look` found, as a terminal shows it."""
    rows = [
        (plain(job["job"]), plain(job["state"]), *(f"{job[word]:,}" if word in job else "-" for word in _FIGURES))
        for job in found
    ]
    return table("JOB", ("state", *_FIGURES), rows, len(rows))[1:]


def _folders() -> dict[str, Path]:
    """Jobs that can be named in this folder: those in `crawls/`, and those beside it."""
    found = [path.parent for place in ("crawls", ".") for path in Path(place).glob(f"*/{jobs.FRONTIER}")]
    return {folder.name: folder for folder in found}


async def _told(name: str, asked: Any) -> dict[str, Any]:
    try:
        state, counts = await asked
    except GossamerError as error:
        return {"job": name, "state": str(error)}
    return {"job": name, "state": state, **{word: getattr(counts, word) for word in _FIGURES}}


async def _on_fleet(frontier: str, name: str) -> tuple[str, Counts]:
    fleet = await open_fleet(frontier, name)
    try:
        counts = await fleet.counts()
        works = counts.job != "running" or any(map(is_live, await fleet.workers()))
        return counts.job if works else "resting", counts
    finally:
        await fleet.aclose()


async def _here(folder: Path) -> tuple[str, Counts]:
    try:
        connection, _ = await connect(folder)
    except JobMissing:
        settings = configuration.build(jobs.stored_settings(folder))
        counts = await asyncio.to_thread(survey(folder / jobs.FRONTIER).counts, settings)
        return "finished" if counts.finished else "resting", counts
    try:
        counts = msgspec.convert(await connection.call(wire.Ask("counts")), Counts)
        return counts.job, counts
    finally:
        await connection.aclose()
