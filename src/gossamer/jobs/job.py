"""The handle of a job, wherever it is: a process of this machine runs it, nobody does, or it is on a fleet's frontier.

`jobs.find.open_job` gives the handle that fits: `RunningJob` asks the owner's process over its socket, `StoppedJob`
reads the files of a job that nobody runs, `FleetJob` asks the frontier that workers share. Commands, the service and
the Python API use this protocol and do not ask which of the three they have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gossamer import urls
from gossamer.errors import ConfigError
from gossamer.jobs.scaling import Advice
from gossamer.model import Counts, Heartbeat, JobState, RegionView, ShardView
from gossamer.settings import Settings
from gossamer.storage.request_log import count_cut, has_request_log, request_log_bytes

if TYPE_CHECKING:
    from gossamer.jobs.removal import Removed
    from gossamer.scrapy.requests import ScrapyKeys
    from gossamer.storage.reader import StoredJob

Known = Mapping[str, Any]
LookUp = Callable[..., Awaitable[Known | None]]
State = Literal["starting", "running", "paused", "stopping", "finished", "resting", "failed"]
"""`resting` is a job that nobody works on, with something left to do. Only the service, which starts crawls, knows that
one is `starting` or has `failed`."""
SITES = 100
"""Sites in a status: those with the most queued requests."""
_OPEN = ("queued", "leased", "delayed")
_MAX_SAME = 100
_QUICK_BYTES = 256 * 1024 * 1024
"""A request log up to this size is read in a moment."""


@dataclass(frozen=True, kw_only=True)
class RegionStatus:
    """A region of a fleet's job: its lanes, and the live workers that it has."""

    lanes: RegionView
    workers: int
    rate: float
    """Pages a second of these workers."""


@dataclass(frozen=True, kw_only=True)
class ResultsStatus:
    """The results folder of a fleet's job, compared with what the frontier counts as stored."""

    folder: Path
    recorded: int | None = None
    """Pages that have a record; None if they were not counted."""
    missing: int | None = None
    warning: str = ""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """All that `gossamer status` reports of a job."""

    state: State
    counts: Counts
    workers: Sequence[Heartbeat] = ()
    sites: Sequence[Known] = ()
    rejected: int = 0
    """Items that fitted no type. A fleet's job does not count them."""
    cut: Known | None = None
    """Pages of which a part was dropped, by reason; None where the request log does not say, or is long."""
    is_shared: bool = False
    """Whether the job is on a fleet's frontier: only then there is more below."""
    rate: float = 0.0
    """Pages a second of all live workers."""
    regions: Mapping[str, RegionStatus] = field(default_factory=dict)
    shards: Sequence[ShardView] = ()
    warnings: Sequence[str] = ()
    results: ResultsStatus | None = None
    """None if nothing can be said from this machine."""


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    """A job in a list."""

    name: str
    state: State | None = None
    counts: Counts | None = None
    problem: str = ""
    """Why the job cannot be asked; then it has neither state nor counts."""


class Job(Protocol):
    """A job that can be asked and, if somebody works on it, controlled. Close it after use.

    What nobody can do at this moment, such as pausing a job that nobody works on, raises `JobStopped`."""

    name: str
    settings: Settings
    folder: Path
    """Where what it stored is, and its request log."""
    frontier: str
    """The address of the frontier; empty for a job of this machine."""

    @property
    def is_gone(self) -> bool:
        """Whether the job has changed its kind, as one that ended did: open it again."""
        ...

    async def status(self, *, check: bool = False) -> JobStatus:
        """Everything at once. With `check`, records and long request logs are counted however many there are."""
        ...

    async def counts(self) -> Counts: ...

    def state(self, counts: Counts, workers: Sequence[Heartbeat]) -> State:
        """The state that these counts and workers mean."""
        ...

    async def workers(self) -> list[Heartbeat]: ...

    async def shards(self) -> list[ShardView]: ...

    async def sites(self, limit: int = SITES) -> list[Known]:
        """The sites with the most queued requests."""
        ...

    async def every_site(self, cursor: str, limit: int) -> tuple[Sequence[Known], str]:
        """A page of all sites, and where the next begins."""
        ...

    async def site(self, name: str) -> Known | None:
        """All that the frontier knows of a site."""
        ...

    async def lookup(self, url: str, *, page: str = "") -> Known | None:
        """All that the frontier knows of a URL; `page` led to it, which matters to jobs of Scrapy projects."""
        ...

    async def advice(self, least: int, most: int | None) -> Advice:
        """How many workers the job can feed at this moment."""
        ...

    async def warnings(self, counts: Counts) -> list[str]:
        """What keeps the job, or a part of it, from going on."""
        ...

    async def set_state(self, state: JobState) -> None:
        """Pause ('paused'), resume ('running') or stop ('stopping') the job."""
        ...

    async def add(self, urls: Sequence[str]) -> int:
        """Queue URLs that the job does not know; how many those were."""
        ...

    async def limit(self, changes: Mapping[str, Any]) -> bool:
        """Change settings of the job; whether they are in force at once, and not from the next run on."""
        ...

    async def remove(self, *, results: bool = False) -> Removed:
        """Delete the job, with `results` also what it has stored in its folder; JobRunning if somebody works on it."""
        ...

    def stored(self) -> StoredJob:
        """What the job has stored, to be read."""
        ...

    async def aclose(self) -> None: ...


async def read_state(job: Job) -> State:
    """The state of a job at this moment."""
    counts = await job.counts()
    return job.state(counts, await job.workers())


def state_word(state: JobState) -> State:
    """The state that a frontier keeps, in the word for people."""
    return "resting" if state == "missing" else state


def cut_pages(folder: Path, *, check: bool = False) -> Known | None:
    """The pages that were cut, by the request log; None where there is none or, without `check`, a long one."""
    if not has_request_log(folder) or (not check and request_log_bytes(folder) > _QUICK_BYTES):
        return None
    return count_cut(folder).plain()


async def lookup_any_name(lookup: LookUp, settings: Settings, url: str, page: str = "") -> Known | None:
    """What a frontier knows of a URL, by its key, or letter by letter, as earlier versions named pages.

    Jobs of Scrapy projects name requests by Scrapy's fingerprints. A URL that is not found by its own name is looked up
    by that, and the answer then has `by`, and `times`, the number of requests for it. A request that is not filtered
    (`dont_filter`) is named after the `page` that led to it."""
    found = await lookup(url, urls.key_of) or (await lookup(url) if urls.equivalent(url) != url else None)
    if found is not None or settings.robots or settings.scope != "any":
        return found
    names = await asyncio.to_thread(_scrapy_names)
    if names is None:
        return None
    above = [one["key"] for one in await _family(lookup, names, page, [])] if page else []
    family = await _family(lookup, names, url, above)
    if not family:
        return None
    last = next((one for one in family if one["state"] in _OPEN), family[-1])
    return {**last, "by": "scrapy", "times": len(family)}


async def _family(lookup: LookUp, names: ScrapyKeys, url: str, above: list[int]) -> list[Known]:
    """The request for a URL, and the unfiltered ones that others, or these themselves, led to: retries are such."""
    found = [one for one in [await lookup(url, names.plain)] if one is not None]
    parents = [*above, *(one["key"] for one in found)]
    for parent in parents:
        number = 1
        while len(found) < _MAX_SAME and (one := await lookup(url, names.below(parent, number))) is not None:
            found.append(one)
            parents.append(one["key"])
            number += 1
    return found


def _scrapy_names() -> ScrapyKeys | None:
    """How the Scrapy project in this folder names requests, or Scrapy itself; None where that is not installed."""
    try:
        from gossamer.scrapy.requests import ScrapyKeys
    except ConfigError:
        return None
    return ScrapyKeys()
