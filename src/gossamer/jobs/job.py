"""The job handle: one protocol for jobs that run on this machine, are stopped, or are on a fleet's frontier.

`jobs.find.open_job` returns the matching handle: `RunningJob` calls the owner process over its socket, `StoppedJob`
reads the files of a stopped job, and `FleetJob` queries the shared frontier. Commands, the service, and the Python API
use this protocol without distinguishing the three."""

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
"""`resting` is an unfinished job without workers. Only the service, which starts crawls, reports `starting` and
`failed`."""
SITES = 100
"""Sites in a status: those with the most queued requests."""
_OPEN = ("queued", "leased", "delayed")
_MAX_SAME = 100
_QUICK_BYTES = 256 * 1024 * 1024
"""Max size of a request log that is read without `check`."""


@dataclass(frozen=True, kw_only=True)
class RegionStatus:
    """A region of a fleet's job: its lanes and its live workers."""

    lanes: RegionView
    workers: int
    rate: float
    """Pages per second of these workers."""


@dataclass(frozen=True, kw_only=True)
class ResultsStatus:
    """The results folder of a fleet's job, compared with the frontier's count of stored pages."""

    folder: Path
    recorded: int | None = None
    """Pages that have a record; None if they were not counted."""
    missing: int | None = None
    warning: str = ""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The status of a job, as `gossamer status` shows it."""

    state: State
    counts: Counts
    workers: Sequence[Heartbeat] = ()
    sites: Sequence[Known] = ()
    rejected: int = 0
    """Rejected items. Not counted for a fleet's job."""
    cut: Known | None = None
    """Pages that a limit has cut, by reason; None without a request log, or if it is too long to read."""
    is_shared: bool = False
    """Whether the job is on a fleet's frontier. The fields below are only for such jobs."""
    rate: float = 0.0
    """Pages per second of all live workers."""
    regions: Mapping[str, RegionStatus] = field(default_factory=dict)
    shards: Sequence[ShardView] = ()
    warnings: Sequence[str] = ()
    results: ResultsStatus | None = None
    """None if this machine cannot see the results."""


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    """A job in a list."""

    name: str
    state: State | None = None
    counts: Counts | None = None
    problem: str = ""
    """Why the job cannot be opened; state and counts are then None."""


class Job(Protocol):
    """A job that can be queried and, while it runs, controlled. Close it after use.

    Operations that need a running job, such as pausing it, raise `JobStopped` on a stopped one."""

    name: str
    settings: Settings
    folder: Path
    """The folder with its results and its request log."""
    frontier: str
    """The address of the frontier; empty for a job on this machine."""

    @property
    def is_gone(self) -> bool:
        """Whether this handle is outdated, because the job has started or ended: open the job again."""
        ...

    async def status(self, *, check: bool = False) -> JobStatus:
        """The whole status. With `check`, records and request logs of any size are counted."""
        ...

    async def counts(self) -> Counts: ...

    def state(self, counts: Counts, workers: Sequence[Heartbeat]) -> State:
        """The state of a job with these counts and workers."""
        ...

    async def workers(self) -> list[Heartbeat]: ...

    async def shards(self) -> list[ShardView]: ...

    async def sites(self, limit: int = SITES) -> list[Known]:
        """The sites with the most queued requests."""
        ...

    async def every_site(self, cursor: str, limit: int) -> tuple[Sequence[Known], str]:
        """One page of all sites, and the cursor of the next page."""
        ...

    async def site(self, name: str) -> Known | None:
        """The frontier's record of a site."""
        ...

    async def lookup(self, url: str, *, page: str = "") -> Known | None:
        """The frontier's record of a URL; `page` is a page that links to it, which jobs of Scrapy projects need."""
        ...

    async def advice(self, least: int, most: int | None) -> Advice:
        """How many workers the job can use at this moment."""
        ...

    async def warnings(self, counts: Counts) -> list[str]:
        """Reasons why the job, or a part of it, makes no progress."""
        ...

    async def set_state(self, state: JobState) -> None:
        """Pause ('paused'), resume ('running') or stop ('stopping') the job."""
        ...

    async def add(self, urls: Sequence[str]) -> int:
        """Queue URLs; returns the number of new ones."""
        ...

    async def limit(self, changes: Mapping[str, Any]) -> bool:
        """Change settings of the job; returns whether they take effect now, and not with the next run."""
        ...

    async def remove(self, *, results: bool = False) -> Removed:
        """Delete the job, and with `results` the results in its folder; JobRunning if it has live workers."""
        ...

    def stored(self) -> StoredJob:
        """The stored results of the job."""
        ...

    async def aclose(self) -> None: ...


async def read_state(job: Job) -> State:
    """The state of a job at this moment."""
    counts = await job.counts()
    return job.state(counts, await job.workers())


def state_word(state: JobState) -> State:
    """The state to show for a frontier's state."""
    return "resting" if state == "missing" else state


def cut_pages(folder: Path, *, check: bool = False) -> Known | None:
    """The pages that a limit has cut, from the request log; None without a log or, without `check`, if it is long."""
    if not has_request_log(folder) or (not check and request_log_bytes(folder) > _QUICK_BYTES):
        return None
    return count_cut(folder).plain()


async def lookup_any_name(lookup: LookUp, settings: Settings, url: str, page: str = "") -> Known | None:
    """A frontier's record of a URL, by its key, or by the URL as it is, as earlier versions built keys.

    Jobs of Scrapy projects use Scrapy's fingerprints as keys. A URL that is not found by its key is looked up by its
    fingerprint; the result then has `by`, and `times`, the number of requests for it. The key of an unfiltered request
    (`dont_filter`) depends on the `page` that it comes from."""
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
    """The request for a URL, and the unfiltered requests for it, such as retries."""
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
    """The request fingerprints of the Scrapy project in this folder, or of Scrapy; None if it is not installed."""
    try:
        from gossamer.scrapy.requests import ScrapyKeys
    except ConfigError:
        return None
    return ScrapyKeys()
