"""A job that is asked questions and not changed, wherever it is: it runs here, rests here, or is a fleet's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gossamer import job as jobs
from gossamer import settings as configuration
from gossamer import urls
from gossamer.clock import SystemClock
from gossamer.engine import wire
from gossamer.engine.pulse import is_live
from gossamer.engine.remote import connect
from gossamer.errors import ConfigError, JobMissing
from gossamer.fleet import SCHEMES, open_fleet, results_folder
from gossamer.frontier.sqlite_look import SqliteLook
from gossamer.settings import Settings

Known = Mapping[str, Any]
Question = Callable[[str], Awaitable[Known | None]]


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A job within reach. `lookup` and `site` are those of its frontier."""

    job: str
    settings: Settings
    folder: Path
    """Where what it stored is."""
    state: str
    """That of the job; `resting` where nobody works on it."""
    lookup: Question
    site: Question


@asynccontextmanager
async def inquire(job: str, frontier: str = "") -> AsyncIterator[Inquiry]:
    """Reach a job by its name: on a fleet's frontier, in the process that runs it, or in its file."""
    if frontier.startswith(SCHEMES):
        fleet = await open_fleet(frontier, job)
        try:
            counts = await fleet.counts()
            works = any(is_live(pulse) for pulse in await fleet.workers())
            folder = results_folder(frontier, job, fleet.settings, jobs.folder_of(job, ()))
            state = counts.job if works or counts.job != "running" else "resting"
            lookup = partial(look_up, fleet.lookup, fleet.settings)
            yield Inquiry(job, fleet.settings, folder, state, lookup, fleet.site)
        finally:
            await fleet.aclose()
        return
    folder = existing(job)
    try:
        connection, welcome = await connect(folder)
    except JobMissing:
        # Nobody runs it. To open its frontier would keep others from doing so, and a large one takes its time.
        settings = configuration.build(jobs.stored_settings(folder))
        resting = SqliteLook(folder / jobs.FRONTIER, settings, clock=SystemClock())
        full = settings.max_pages is not None and await resting.stored() >= settings.max_pages
        lookup = partial(look_up, resting.lookup, settings)
        yield Inquiry(job, settings, folder, "finished" if full else "resting", lookup, resting.site)
        return
    try:
        counts = await connection.call(wire.Ask("counts"))

        def asks(what: str) -> Question:
            return lambda text: connection.call(wire.Ask(what, text))

        settings = configuration.build(welcome.settings)
        yield Inquiry(job, settings, folder, counts["job"], asks("lookup"), asks("site"))
    finally:
        await connection.aclose()


async def look_up(lookup: Callable[..., Awaitable[Known | None]], settings: Settings, url: str) -> Known | None:
    """What a frontier knows of a URL. Jobs of Scrapy projects name requests by Scrapy's fingerprints: what is not found
    by its own name is looked for by that, and then says `by`."""
    found = await lookup(url)
    if found is not None or settings.robots or settings.scope != "any":
        return found
    key_of = await asyncio.to_thread(_scrapys_keys)
    found = await lookup(url, key_of) if key_of is not None else None
    return None if found is None else {**found, "by": "scrapy"}


def _scrapys_keys() -> urls.KeyOf | None:
    """How the Scrapy project in this folder names requests, or Scrapy itself; None where that is not installed."""
    try:
        from gossamer.scrapy.intake import key_of_url
    except ConfigError:
        return None
    return key_of_url()


def existing(name: str) -> Path:
    """The folder of an embedded job; a ConfigError if there is none."""
    folder = jobs.folder_of(name, ())
    if not (folder / jobs.FRONTIER).exists():
        raise ConfigError(
            f"there is no job {name!r} ({folder / jobs.FRONTIER} does not exist)", hint="see crawls/ for names"
        )
    return folder


def job_for(site: str, frontier: str = "") -> str:
    """The job that a question about a site is most likely about, where people name none."""
    own = jobs.folder_of("", [f"http://{site}/"])
    if frontier or (own / jobs.FRONTIER).exists():
        return own.name
    names = sorted(path.parent.name for path in own.parent.glob(f"*/{jobs.FRONTIER}"))
    if len(names) == 1:
        return names[0]
    if not names:
        raise ConfigError(
            "there is no job in crawls/", hint="name it with --job NAME|DIR, or with --job NAME --frontier URL"
        )
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    raise ConfigError(f"which job? crawls/ has {shown}", hint=f"--job {names[0]}")
