"""One run of workers on this machine for a job on a shared frontier.

This process fetches nothing. It creates or joins the job, adds the seeds, supervises worker processes, and gathers the
results at the end; workers on other machines may join and leave meanwhile, without it.

**Order**, and why: the results folder is claimed and checked before the job is made, because a folder that two jobs
share, or that this machine cannot see, would mix or lose records. Seeds are added before workers start, or these would
find a finished job. At the end, segments are exported and WARC files are finished, and only then are the records
compared with the frontier: a page that counts as stored and has no record is an error, with the command that repairs
it. It is a warning as long as other workers are alive or have results of their own, which may have the record.

If this process dies, its workers die with it on Linux, and their leases end by themselves (P9); the job itself goes on
wherever other workers are. If a worker dies, its successor has the same name, and takes back what it held. If the store
is away, workers wait for it, and the last counts are asked for several times: a server may fail over just then."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gossamer.clock import SystemClock
from gossamer.engine.heartbeat import EVERY_SECONDS
from gossamer.engine.stats import Stats
from gossamer.engine.supervision import Supervisor
from gossamer.errors import FrontierError, SinkError, Unavailable
from gossamer.frontier.backends import create_fleet
from gossamer.frontier.base import FleetFrontier
from gossamer.jobs.local_run import RunSummary
from gossamer.jobs.results_folder import (
    check_results,
    claim_results,
    compare,
    forgotten_words,
    repair_command,
    results_folder,
)
from gossamer.jobs.seeding import begin
from gossamer.jobs.worker import finish_abandoned_archives
from gossamer.model import Counts, JobState
from gossamer.settings import Settings
from gossamer.storage.registry import wants_segments
from gossamer.storage.request_log import count_cut
from gossamer.storage.segments import merge_segments

log = logging.getLogger("gossamer.fleet")


class FleetRun:
    """A run of a fleet's job with workers on this machine; others may join from elsewhere."""

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
        """Number of processes on this machine that fetch."""
        return self._supervisor.alive if self._supervisor is not None else 0

    @property
    def figures(self) -> tuple[int, int]:
        """Pages, and failures among them, since the run began."""
        return self.stats.pages, self.stats.failures

    def interrupt(self) -> None:
        """Do nothing: no spider runs in this process."""

    def stop(self, why: str) -> None:
        """Drain this machine's workers, then end the run. The job stays as it is for others."""
        self._stop_wanted = self._stop_wanted or why
        if self._supervisor is not None:
            self._supervisor.stop()

    async def counts(self) -> Counts:
        """The counts of the frontier now; the statistics of the run follow from them."""
        if self._frontier is None:
            return Counts()
        counts = await self._frontier.counts()
        self.stats.pages = counts.stored - self._stored_before
        self.stats.failures = max(0, counts.failed - self._failed_before)
        return counts

    async def _last_counts(self) -> Counts:
        """The counts at the end. A frontier that is away is asked again for half a minute."""
        for wait in (1.0, 2.0, 4.0, 8.0, 16.0):
            try:
                return await self.counts()
            except Unavailable as error:
                log.warning("waiting for the frontier: %s", error)
                await asyncio.sleep(wait)
        return await self.counts()

    async def _refused(self, frontier: FleetFrontier, *, since: float) -> Counter[str]:
        """Links that workers of this run did not follow, by reason, by their heartbeats.

        Only of workers that started within the last `since` seconds, and as far as they reported it before they
        ended."""
        refused: Counter[str] = Counter()
        with suppress(FrontierError):
            for heartbeat in await frontier.workers():
                if heartbeat.up_seconds + heartbeat.silent <= since + EVERY_SECONDS:
                    refused.update(heartbeat.refused)
        return refused

    async def _stop_after_max_seconds(self, frontier: FleetFrontier) -> None:
        """Stop the run after `max_seconds`. The setting may change during the run, so it is read repeatedly."""
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
        """Raise SinkError if pages that count as stored have no record in what was gathered."""
        try:
            found = await compare(frontier, self.folder)
        except FrontierError as error:
            log.warning("cannot check %s for missing records: %s", self.folder, error)
            return
        if warning := forgotten_words(found, await frontier.counts(), frontier.settings, self._job):
            log.warning("%s", warning)
        if not found.missing:
            return
        what = f"{found.missing:,} of {found.stored:,} stored pages have no record in {self.folder}"
        if self._own_results or not self.settings.results_id:
            log.warning("%s: other machines may have them", what)
        elif not found.is_final:
            log.warning("%s yet: other workers are running", what)
        else:
            hint = f"{repair_command(self._job, self._url)} queues them again"
            raise SinkError(f"job {self._job!r}: {what}", hint=hint)

    async def run(self) -> RunSummary:
        """Run to the end, then gather the results: of this machine's workers, or of all in a shared folder."""
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
            timer = asyncio.create_task(self._stop_after_max_seconds(frontier))
            if self._stop_wanted:
                self._supervisor.stop()
            await self._supervisor.run()
            if wants_segments(self.settings.sink):
                await merge_segments(self.folder)
            await finish_abandoned_archives(frontier, self.settings, self.folder)
            if wants_segments(self.settings.sink):
                await self._compare(frontier)
            self.stats.cut = await asyncio.to_thread(count_cut, self.folder, since=began_at)
            counts = await self._last_counts()
            state: JobState = counts.job
            refused = await self._refused(frontier, since=SystemClock().epoch() - began_at)
            return RunSummary(state, counts, self.stats, refused, self._stop_wanted)
        finally:
            if timer is not None:
                timer.cancel()
            await frontier.aclose()
