"""Jobs on a frontier that workers on several machines share: their handle, and their creation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer import settings as configuration
from gossamer.engine.heartbeat import is_live
from gossamer.engine.links import Linker, RecentKeys
from gossamer.errors import JobStopped, SinkError
from gossamer.frontier.backends import create_fleet, open_fleet
from gossamer.frontier.base import FleetFrontier
from gossamer.frontier.placement import parse_part
from gossamer.jobs.job import (
    SITES,
    JobStatus,
    Known,
    RegionStatus,
    ResultsStatus,
    State,
    cut_pages,
    lookup_any_name,
    state_word,
)
from gossamer.jobs.results_folder import compare, forgotten_words, is_cheap, is_results, repair_command, results_folder
from gossamer.jobs.scaling import Advice, scale
from gossamer.jobs.seeding import begin
from gossamer.model import Counts, Heartbeat, JobState, RegionView, ShardView
from gossamer.settings import Settings
from gossamer.storage.registry import wants_segments
from gossamer.storage.segments import has_segments, segment_bytes

if TYPE_CHECKING:
    from gossamer.jobs.removal import Removed
    from gossamer.storage.reader import StoredJob

_UNFINISHED: tuple[JobState, ...] = ("running", "paused", "stopping")


class FleetJob:
    """A job on a fleet's frontier. Its workers are other processes, on this or other machines."""

    def __init__(self, fleet: FleetFrontier, url: str, name: str, folder: Path) -> None:
        """`folder` is the results folder if neither the job's settings nor its frontier name one."""
        self.name = name
        self.frontier = url
        self.settings = fleet.settings
        self.folder = results_folder(url, name, fleet.settings, folder)
        self._fleet = fleet
        self._closed = False

    @classmethod
    async def open(cls, url: str, name: str, folder: Path) -> FleetJob:
        """Open a job without working on it; JobMissing if it does not exist."""
        return cls(await open_fleet(url, name), url, name, folder)

    @property
    def is_gone(self) -> bool:
        return self._closed

    async def status(self, *, check: bool = False) -> JobStatus:
        counts, workers, shards = await self.counts(), await self.workers(), await self.shards()
        live = [worker for worker in workers if is_live(worker)]
        lanes = merge_regions(shards)
        sites = await self.sites()
        results = await self._results(check=check)
        found = find_warnings(counts, live, shards, is_auto=self.settings.region_by == "auto")
        return JobStatus(
            state=self.state(counts, workers),
            counts=counts,
            workers=workers,
            sites=sites,
            cut=await asyncio.to_thread(cut_pages, self.folder, check=check),
            is_shared=True,
            rate=round(sum(worker.rate for worker in live), 2),
            regions={
                name: RegionStatus(
                    lanes=lanes.get(name, RegionView()),
                    workers=sum(worker.region == name for worker in live),
                    rate=round(sum(worker.rate for worker in live if worker.region == name), 2),
                )
                for name in sorted({*lanes, *(worker.region for worker in live)})
            },
            shards=shards,
            warnings=[*found, *([results.warning] if results is not None and results.warning else [])],
            results=results,
        )

    async def _results(self, *, check: bool) -> ResultsStatus | None:
        """Compare the results folder with the frontier. Records are counted only with `check`, or if they are few."""
        folder, settings = self.folder, self.settings
        if not wants_segments(settings.sink) or not (settings.results_id or has_segments(folder)):
            return None
        if not is_results(folder, settings):
            warning = f"{folder} is not the job's results folder: check that it is mounted on this machine"
            return ResultsStatus(folder=folder, warning=warning) if check else None
        if not check and not is_cheap(folder):
            size = f"{segment_bytes(folder) / 1e6:,.0f} MB"
            return ResultsStatus(
                folder=folder, warning=f"the records in {folder} ({size}) were not counted; count them with --check"
            )
        try:
            compared = await compare(self, folder)
        except SinkError as error:
            return ResultsStatus(folder=folder, warning=f"the records in {folder} cannot be counted: {error}")
        warning = ""
        if compared.missing:
            what = f"{compared.missing:,} of {compared.stored:,} stored pages have no record in {folder}"
            repair = repair_command(self.name, self.frontier)
            warning = what + (f": {repair} queues them again" if compared.is_final else " yet")
        elif compared.forgotten:
            warning = forgotten_words(compared, await self.counts(), settings, self.name)
        return ResultsStatus(folder=folder, recorded=compared.recorded, missing=compared.missing, warning=warning)

    async def counts(self) -> Counts:
        return await self._fleet.counts()

    def state(self, counts: Counts, workers: Sequence[Heartbeat]) -> State:
        if counts.job == "running" and not counts.finished and not any(map(is_live, workers)):
            return "resting"
        return state_word(counts.job)

    async def workers(self) -> list[Heartbeat]:
        return await self._fleet.workers()

    async def shards(self) -> list[ShardView]:
        return await self._fleet.shards()

    async def sites(self, limit: int = SITES) -> list[Known]:
        return list(await self._fleet.sites(limit))

    async def every_site(self, cursor: str, limit: int) -> tuple[Sequence[Known], str]:
        return await self._fleet.every_site(cursor, limit)

    async def site(self, name: str) -> Known | None:
        return await self._fleet.site(name)

    async def lookup(self, url: str, *, page: str = "") -> Known | None:
        return await lookup_any_name(self._fleet.lookup, self.settings, url, page)

    async def advice(self, least: int, most: int | None) -> Advice:
        return await scale(self._fleet, least=least, most=most)

    async def warnings(self, counts: Counts) -> list[str]:
        live = [worker for worker in await self.workers() if is_live(worker)]
        return find_warnings(counts, live, await self.shards(), is_auto=self.settings.region_by == "auto")

    async def set_state(self, state: JobState) -> None:
        await self._fleet.steer(state)

    async def add(self, urls: Sequence[str]) -> int:
        linker = Linker(self.settings, self._fleet.secret, RecentKeys())
        return await self._fleet.add([linker.seed(url) for url in urls])

    async def limit(self, changes: Mapping[str, Any]) -> bool:
        """Change settings in the job's record; workers apply them with their next heartbeat."""
        counts = await self.counts()
        if counts.job not in ("running", "paused"):
            raise JobStopped(f"the job is {counts.job}", hint="limits can be changed while it runs or is paused")
        live = any(map(is_live, await self.workers()))
        # Another process may have changed them since this job was opened.
        await self._fleet.refresh()
        settings = configuration.build({**configuration.dump(self._fleet.settings), **changes})
        await (await create_fleet(self.frontier, self.name, settings)).aclose()
        await self._fleet.refresh()
        self.settings = settings
        return live

    async def remove(self, *, results: bool = False) -> Removed:
        from gossamer.jobs.removal import delete_job

        return await delete_job(self, results=results)

    def stored(self) -> StoredJob:
        from gossamer.storage.reader import StoredJob

        return StoredJob.with_settings(self.folder, configuration.dump(self.settings), self.name)

    async def aclose(self) -> None:
        self._closed = True
        await self._fleet.aclose()


async def submit_job(url: str, name: str, settings: Settings, urls: Sequence[str], *, shards: str = "") -> int:
    """Create a job with its seeds, for workers to join; returns the number of new URLs."""
    fleet = await create_fleet(url, name, settings, shards=shards)
    try:
        return await begin(fleet, settings, urls)
    finally:
        await fleet.aclose()


def merge_regions(shards: Iterable[ShardView]) -> dict[str, RegionView]:
    """Merge the regions of all shards."""
    found: dict[str, RegionView] = {}
    for shard in shards:
        for name, view in shard.regions.items():
            known = found.get(name, RegionView())
            waits = [wait for wait in (known.due_in, view.due_in) if wait is not None]
            found[name] = RegionView(
                ready=known.ready + view.ready,
                later=known.later + view.later,
                soon=known.soon + view.soon,
                due_in=min(waits, default=None),
            )
    return found


def find_warnings(
    counts: Counts, live: Sequence[Heartbeat], shards: Sequence[ShardView], *, is_auto: bool = False
) -> list[str]:
    """Reasons why a job, or a part of it, makes no progress; `is_auto` is `region_by = auto`."""
    if counts.finished or counts.job not in _UNFINISHED:
        return []
    if not live:
        if counts.job == "stopping" and not counts.leased:
            return []
        return ["no worker is running: start one with gossamer worker FRONTIER --job NAME"]
    found = []
    if counts.outbox and not counts.queued and not counts.leased and not counts.delayed:
        found.append("all pages are done; waiting until the last links are durable on all servers (forget_seconds)")
    staffed = {worker.region for worker in live}
    for name, view in sorted(merge_regions(shards).items()):
        lanes = view.ready + view.later
        if name and lanes and name not in staffed:
            what = "workers of other regions will crawl them" if is_auto else f"start one with --region {name}"
            sites = f"{lanes:,} site{'s' * (lanes != 1)}"
            found.append(f"region {name} has {sites} to crawl, but no worker: {what}")
    taken: set[int] = set()
    for worker in live:
        # On a folder, this is the list of currently claimed shards; workers claim others when they have work.
        is_pinned = "/" in worker.shards
        taken.update(parse_part(worker.shards).shards if is_pinned else range(len(shards)))
    left = sorted({shard.shard for shard in shards} - taken)
    if left:
        found.append(f"no worker crawls {shard_words(left)} of {len(shards):,} shard{'s' * (len(shards) != 1)}")
    return found


def shard_words(numbers: Sequence[int]) -> str:
    """Format shard numbers: `shard 7`, `shards 0-3, 8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:8])
    return f"shard{'' if len(numbers) == 1 else 's'} {text}{', ...' if len(runs) > 8 else ''}"
