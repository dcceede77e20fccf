"""A job on a fleet's frontier: its workers may be on any machine, and each writes segments of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from gossamer.assemble import build_worker
from gossamer.clock import Clock, SystemClock
from gossamer.engine.commit import FleetStore
from gossamer.engine.concurrency import Machine
from gossamer.engine.heartbeat import EVERY_SECONDS, HeartbeatSender, beating, is_live
from gossamer.engine.parsing import item_columns
from gossamer.engine.regions import Connects, Places
from gossamer.engine.stats import Stats
from gossamer.engine.supervision import Supervisor, left_behind
from gossamer.errors import ConfigError, FrontierError, JobMissing, SinkError, Unavailable
from gossamer.frontier.advice import Advice, advise
from gossamer.frontier.backends import backend_of, create_fleet, open_fleet
from gossamer.frontier.base import FleetFrontier
from gossamer.job import RunSummary
from gossamer.leaving import leaving, watched
from gossamer.model import Counts, Heartbeat, JobState
from gossamer.results import check_results, compare, forgotten_words, is_results, mark, repair_command
from gossamer.settings import Settings
from gossamer.storage.base import Sink
from gossamer.storage.registry import finish_archives, fleet_sinks, shared_folder, wants_segments
from gossamer.storage.request_log import RequestLog, cut_of
from gossamer.storage.segments import SegmentSink, export, has_records
from gossamer.takeover import begin

log = logging.getLogger("gossamer.fleet")


def results_folder(url: str, job: str, settings: Settings, folder: Path) -> Path:
    """Where a job's workers put their segments: where its sink says, in the folder that they share, or in `folder`."""
    return shared_folder(settings.sink) or backend_of(url).results_folder(url, job) or folder


async def claim_results(url: str, job: str, settings: Settings, folder: Path, *, parents: bool = True) -> Settings:
    """Mark the results folder of a job that is about to be made; the settings with the id of the marker.

    A job that is there keeps the id that it has; one of an older version gets none, unless nothing was stored yet. A
    new job gets an id also where the folder cannot be marked from this machine: its workers then refuse to start until
    somebody marks it. A new job must not begin where another has written: what it gathers would have the pages of
    both. Of two machines that make one job at the same time, each with a folder of its own, the one that writes the
    settings last has the marked folder, and the other is refused."""
    try:
        fleet = await open_fleet(url, job)
    except JobMissing:
        return await asyncio.to_thread(_marked, job, settings, folder, parents=parents)
    try:
        known = fleet.settings.results_id
        is_new = not known and not (await fleet.counts()).stored
    finally:
        await fleet.aclose()
    if is_new and not await asyncio.to_thread(has_records, folder):
        return await asyncio.to_thread(_marked, job, settings, folder, parents=parents)
    return msgspec.structs.replace(settings, results_id=known)


def _marked(job: str, settings: Settings, folder: Path, *, parents: bool) -> Settings:
    if not wants_segments(settings.sink):
        return settings
    if has_records(folder):
        raise ConfigError(
            f"{folder} has pages of another job", hint="choose another name with --job, or move that folder away"
        )
    try:
        return msgspec.structs.replace(settings, results_id=mark(folder, job, parents=parents))
    except OSError as error:
        if parents:
            raise
        log.warning("%s cannot be marked as the results folder of %s: %s", folder, job, error.strerror)
        return msgspec.structs.replace(settings, results_id=secrets.token_hex(16))


async def join_fleet(
    url: str,
    job: str,
    folder: Path,
    *,
    name: str,
    region: str = "",
    shards: str = "",
    supervised: int = 0,
    own_results: bool = False,
    signals: Callable[[Callable[[], None]], None] | None = None,
) -> JobState:
    """Work for the job at this address until it is over; the pages go to segments in its results folder.

    A worker that does not see that folder is refused, unless it may have `own_results`, which somebody gathers.

    It may be one of `supervised` workers of a supervisor, whose is Ctrl-C. `signals` is told what stops the worker,
    and has it called when a signal comes; else the worker sees to that."""
    frontier = await _joined(url, job, name=name, region=region, shards=shards, patient=bool(supervised))
    results = results_folder(url, job, frontier.settings, folder)
    # It is memory that is written to, which a shared folder that fails turns into a deadly signal.
    is_remote = backend_of(url).results_folder(url, job) is not None
    marker_path = (folder if is_remote else results) / "handling" / name
    try:
        if not own_results:
            await asyncio.to_thread(check_results, results, job, frontier.settings, url)
        # A worker of this name that died held leases, and perhaps a page that killed it.
        key = left_behind(marker_path)
        await frontier.abandon(name, blamed=(key,) if key else ())
        is_there = None if own_results else partial(is_results, results, frontier.settings)
        segments = SegmentSink(results, name, is_there=is_there) if wants_segments(frontier.settings.sink) else None
        sinks: list[Sink] = [segments] if segments is not None else []
        sinks += fleet_sinks(frontier.settings, results, name, job=job, types=item_columns(frontier.settings))
        store = FleetStore(frontier, sinks)
        clock = SystemClock()
        refused: Counter[str] = Counter()
        places = places_of(frontier.settings, region, clock)
        try:
            async with build_worker(
                frontier,
                store,
                settings=frontier.settings,
                secret=frontier.secret,
                clock=clock,
                marker_path=marker_path,
                places=places,
                trail=RequestLog(results, name, most_bytes=frontier.settings.trail_bytes),
                refused=refused,
                machine=Machine(workers=supervised or 1),
                suspects=(key,) if key else (),
            ) as engine:
                if signals is None:
                    ways = leaving(
                        lambda _: engine.stop(),
                        interrupt=engine.interrupt,
                        settings=frontier.settings,
                        ctrl_c=not supervised,
                    )
                else:
                    signals(engine.stop)
                    ways = watched(frontier.settings)
                pulse = Heartbeat(worker=name, region=region, shards=shards)
                heart = HeartbeatSender(frontier, engine, pulse=pulse, clock=clock, places=places, refused=refused)
                async with ways, beating(heart):
                    state = await engine.run()
        finally:
            await store.aclose()
        if state == "finished":
            await _finish_archives(frontier, frontier.settings, results)
        return state
    finally:
        await frontier.aclose()


async def _finish_archives(frontier: FleetFrontier, settings: Settings, folder: Path) -> None:
    """Whoever ends last puts in order what killed workers left, also those of machines that never return."""
    try:
        live = [pulse.worker for pulse in await frontier.workers() if is_live(pulse)]
    except Unavailable as error:
        log.warning("WARC files that killed workers left open stay so: %s", error)
        return
    await asyncio.to_thread(finish_archives, settings, folder, live=live)


async def _joined(url: str, job: str, *, name: str, region: str, shards: str, patient: bool) -> FleetFrontier:
    """Join a job. The successor of a worker that died waits for a store that is away, as the others do."""
    while True:
        try:
            return await open_fleet(url, job, worker=name, region=region, shards=shards)
        except Unavailable as error:
            if not patient:
                raise
            log.warning("waiting for the frontier: %s", error)
            await asyncio.sleep(1.0)


async def scale(fleet: FleetFrontier, *, least: int = 0, most: int | None = None) -> Advice:
    """How many workers the job can feed at this moment."""
    counts, shards, sites = await fleet.counts(), await fleet.shards(), await fleet.sites(100)
    pulses = [pulse for pulse in await fleet.workers() if is_live(pulse)]
    return advise(counts, shards, pulses, settings=fleet.settings, sites=sites, least=least, most=most)


def places_of(settings: Settings, region: str, clock: Clock) -> Places | None:
    """What a worker of this region has to know of the others, where sites find their region by themselves."""
    if settings.region_by != "auto":
        return None
    return Places(region, settings.fetch_seconds, connects=Connects(clock))


class FleetRun:
    """A crawl on a fleet's frontier with workers on this machine; others may join from elsewhere."""

    def __init__(
        self,
        url: str,
        job: str,
        folder: Path,
        settings: Settings,
        seeds: Sequence[str],
        *,
        region: str = "",
        shards: str = "",
        own_results: bool = False,
    ) -> None:
        self._url = url
        self._own_results = own_results
        self._region = region
        self._shards = shards
        self._job = job
        self._seeds = seeds
        self._frontier: FleetFrontier | None = None
        self._supervisor: Supervisor | None = None
        self._stop_wanted = ""
        self._stored_before = self._failed_before = 0
        self._home = folder
        self.folder = results_folder(url, job, settings, folder)
        self.settings = settings
        self.stats = Stats(SystemClock())
        self.added = 0
        self.known_before = 0

    @property
    def workers(self) -> int:
        """Processes of this machine that fetch."""
        return self._supervisor.alive if self._supervisor is not None else 0

    @property
    def figures(self) -> tuple[int, int]:
        """Pages, and failures among them, since the run began."""
        return self.stats.pages, self.stats.failures

    def interrupt(self) -> None:
        """No spider runs in this process."""

    def stop(self, why: str) -> None:
        """Drain, then end the run."""
        self._stop_wanted = self._stop_wanted or why
        if self._supervisor is not None:
            self._supervisor.stop()

    async def counts(self) -> Counts:
        """The frontier at this moment."""
        if self._frontier is None:
            return Counts()
        counts = await self._frontier.counts()
        self.stats.pages = counts.stored - self._stored_before
        self.stats.failures = max(0, counts.failed - self._failed_before)
        return counts

    async def _last_counts(self) -> Counts:
        """The frontier at the end; one that fails over just then is waited for, as workers do."""
        for wait in (1.0, 2.0, 4.0, 8.0, 16.0):
            try:
                return await self.counts()
            except Unavailable as error:
                log.warning("waiting for the frontier: %s", error)
                await asyncio.sleep(wait)
        return await self.counts()

    async def _refused(self, frontier: FleetFrontier, *, since: float) -> Counter[str]:
        """Links that the workers of the last `since` seconds did not follow, as far as they live or have left in good
        order."""
        refused: Counter[str] = Counter()
        with suppress(FrontierError):
            for pulse in await frontier.workers():
                if pulse.up_seconds + pulse.silent <= since + EVERY_SECONDS:
                    refused.update(pulse.refused)
        return refused

    async def _watch_the_time(self, frontier: FleetFrontier) -> None:
        """Stop when the run has had its time, by the limit that holds then: it may be changed while it runs."""
        clock = SystemClock()
        began_at = clock.monotonic()
        while True:
            most = frontier.settings.max_seconds
            left = EVERY_SECONDS if most is None else most - (clock.monotonic() - began_at)
            if left <= 0:
                self.stop("seconds")
                return
            await clock.sleep(min(left, EVERY_SECONDS))
            with suppress(FrontierError):
                await frontier.refresh()

    async def _compare(self, frontier: FleetFrontier) -> None:
        """Fail where pages that count as stored have no record in what was gathered."""
        try:
            found = await compare(frontier, self.folder)
        except FrontierError as error:
            log.warning("the records in %s were not compared with the frontier: %s", self.folder, error)
            return
        if warning := forgotten_words(found, await frontier.counts(), frontier.settings, self._job):
            log.warning("%s", warning)
        if not found.missing:
            return
        what = f"{found.missing:,} of {found.stored:,} stored pages have no record in {self.folder}"
        if self._own_results or not self.settings.results_id:
            log.warning("%s: other machines may have them", what)
        elif found.is_live:
            log.warning("%s yet: other workers are at work", what)
        else:
            hint = f"{repair_command(self._job, self._url)} queues them again"
            raise SinkError(f"job {self._job!r}: {what}", hint=hint)

    async def run(self) -> RunSummary:
        """Run to the end, then gather what was stored: here by this machine's workers, in a shared place by all."""
        self.settings = await claim_results(self._url, self._job, self.settings, self.folder)
        if not self._own_results:
            await asyncio.to_thread(check_results, self.folder, self._job, self.settings, self._url)
        frontier = self._frontier = await create_fleet(
            self._url, self._job, self.settings, region=self._region, shards=self._shards
        )
        timer, began_at = None, SystemClock().epoch()
        try:
            before = await frontier.counts()
            self.known_before, self._stored_before = before.known, before.stored
            self._failed_before = before.failed
            self.added = await begin(frontier, self.settings, self._seeds)
            self._supervisor = Supervisor(
                ["--job", self._job, "--out", str(self._home)],
                count=self.settings.workers,
                clock=SystemClock(),
                state=lambda: "stopping" if self._stop_wanted else "running",
                environment={
                    "GOSSAMER_FRONTIER": self._url,
                    "GOSSAMER_REGION": self._region,
                    "GOSSAMER_SHARDS": self._shards,
                    "GOSSAMER_OWN_RESULTS": "1" if self._own_results else "",
                },
                names=f"{os.uname().nodename}-{os.getpid()}",
            )
            timer = asyncio.create_task(self._watch_the_time(frontier))
            if self._stop_wanted:
                self._supervisor.stop()
            await self._supervisor.run()
            if wants_segments(self.settings.sink):
                await export(self.folder)
            await _finish_archives(frontier, self.settings, self.folder)
            if wants_segments(self.settings.sink):
                await self._compare(frontier)
            self.stats.cut = await asyncio.to_thread(cut_of, self.folder, since=began_at)
            counts = await self._last_counts()
            state: JobState = counts.job
            refused = await self._refused(frontier, since=SystemClock().epoch() - began_at)
            return RunSummary(state, counts, self.stats, refused, self._stop_wanted)
        finally:
            if timer is not None:
                timer.cancel()
            await frontier.aclose()
