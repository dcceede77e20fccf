"""A job that is asked questions and not changed, wherever it is: it runs here, rests here, or is a fleet's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer import job as jobs
from gossamer import settings as configuration
from gossamer import urls
from gossamer.clock import SystemClock
from gossamer.engine import wire
from gossamer.engine.pulse import is_live
from gossamer.engine.remote import connect
from gossamer.errors import ConfigError, JobMissing
from gossamer.fleet import results_folder
from gossamer.frontier.backends import is_fleet, open_fleet
from gossamer.frontier.sqlite_look import SqliteLook
from gossamer.frontier.sqlite_survey import survey
from gossamer.settings import Settings

if TYPE_CHECKING:
    from gossamer.scrapy.intake import Names

Known = Mapping[str, Any]
Question = Callable[[str], Awaitable[Known | None]]
LookUp = Callable[..., Awaitable[Known | None]]
_OPEN = ("queued", "leased", "delayed")
_MOST_ALIKE = 100


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A job within reach. `lookup` and `site` are those of its frontier."""

    job: str
    settings: Settings
    folder: Path
    """Where what it stored is."""
    state: str
    """That of the job; `resting` where nobody works on it, and something is left to do."""
    lookup: Question
    site: Question
    lookup_below: Callable[[str, str], Awaitable[Known | None]] | None = None
    """The same for a URL that a page led to, in jobs where that makes a difference."""


@asynccontextmanager
async def inquire(job: str, frontier: str = "") -> AsyncIterator[Inquiry]:
    """Reach a job by its name: on a fleet's frontier, in the process that runs it, or in its file."""
    if is_fleet(frontier):
        fleet = await open_fleet(frontier, job)
        try:
            counts = await fleet.counts()
            works = any(is_live(pulse) for pulse in await fleet.workers())
            folder = results_folder(frontier, job, fleet.settings, jobs.folder_of(job, ()))
            state = counts.job if works or counts.job != "running" else "resting"
            lookup = partial(look_up, fleet.lookup, fleet.settings)
            yield Inquiry(job, fleet.settings, folder, state, lookup, fleet.site, lookup)
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
        counts = await asyncio.to_thread(survey(folder / jobs.FRONTIER).counts, settings)
        state = "finished" if counts.finished else "resting"
        lookup = partial(look_up, resting.lookup, settings)
        yield Inquiry(job, settings, folder, state, lookup, resting.site, lookup)
        return
    try:
        counts = await connection.call(wire.Ask("counts"))

        def asks(what: str) -> Question:
            return lambda text: connection.call(wire.Ask(what, text))

        settings = configuration.build(welcome.settings)
        yield Inquiry(job, settings, folder, counts["job"], asks("lookup"), asks("site"))
    finally:
        await connection.aclose()


async def look_up(lookup: LookUp, settings: Settings, url: str, page: str = "") -> Known | None:
    """What a frontier knows of a URL, by its key, or letter by letter, as earlier versions named pages.

    Jobs of Scrapy projects name requests by Scrapy's fingerprints: what is not found by its own name is looked for by
    that, and then says `by`, and `times`, if it was asked for more than once. One that is not filtered (`dont_filter`)
    is named after the `page` that led to it."""
    found = await lookup(url, urls.key_of) or (await lookup(url) if urls.equivalent(url) != url else None)
    if found is not None or settings.robots or settings.scope != "any":
        return found
    names = await asyncio.to_thread(_scrapys_names)
    if names is None:
        return None
    above = [one["key"] for one in await _family(lookup, names, page, [])] if page else []
    family = await _family(lookup, names, url, above)
    if not family:
        return None
    last = next((one for one in family if one["state"] in _OPEN), family[-1])
    return {**last, "by": "scrapy", "times": len(family)}


async def _family(lookup: LookUp, names: Names, url: str, above: list[int]) -> list[Known]:
    """The request for a URL, and those past the filter that others, or these themselves, led to: retries are such."""
    found = [one for one in [await lookup(url, names.plain)] if one is not None]
    parents = [*above, *(one["key"] for one in found)]
    for parent in parents:
        number = 1
        while len(found) < _MOST_ALIKE and (one := await lookup(url, names.below(parent, number))) is not None:
            found.append(one)
            parents.append(one["key"])
            number += 1
    return found


def _scrapys_names() -> Names | None:
    """How the Scrapy project in this folder names requests, or Scrapy itself; None where that is not installed."""
    try:
        from gossamer.scrapy.intake import Names
    except ConfigError:
        return None
    return Names()


def existing(name: str) -> Path:
    """The folder of an embedded job; a ConfigError if there is none."""
    folder = jobs.folder_of(name, ())
    if not (folder / jobs.FRONTIER).exists():
        raise ConfigError(
            f"there is no job {name!r} ({folder / jobs.FRONTIER} does not exist)",
            hint="gossamer status lists those that there are",
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
