"""One run of a job on this machine: frontier, engine, workers, and files.

This process owns the job. With one worker, the engine runs here; with several, this process supervises workers and
serves their calls (`engine/coordinator.py`), and alone writes frontier and files.

**Order at the start**, and why:

1. Open the frontier, which locks it. A second run of the job fails here, before it has touched a file.
2. Refuse to begin a new frontier over old output files: they would be cut off at length 0.
3. Open the sinks at the marks of the frontier. What lies beyond a mark was written by a commit that never happened, and
   is cut off; a file shorter than its mark is an error, since acknowledged pages are missing.
4. Read the crash markers that dead workers of the last run left, and count the losses (P10). Leases of that run need no
   care: they died with its memory, and their requests are queued again (P9).
5. Add the seeds, which are known already when a run continues, set the job to running, and listen for workers.

**Order at the end**: engine or supervisor first, then the coordinator, so that no call is under way; then the store,
which waits for the commit that has begun and closes the sinks; the frontier last, since that commit needs it. This
order is kept when an error ends the run, too. A kill at any moment leaves a job that the next run continues: the
frontier's last transaction and the marks in it decide what has happened (P3, P7)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gossamer.clock import Clock, SystemClock
from gossamer.engine.commit import OwnerStore
from gossamer.engine.coordinator import Coordinator
from gossamer.engine.links import FrontierKeys, Linker, RecentKeys
from gossamer.engine.parsing import item_columns
from gossamer.engine.run import Engine
from gossamer.engine.stats import Stats
from gossamer.engine.supervision import Supervisor, take_marked_key
from gossamer.errors import ConfigError
from gossamer.extract.spider import Spider
from gossamer.frontier.backends import is_foreign, is_in_memory, owned_backend, owned_url
from gossamer.frontier.base import OwnedFrontier
from gossamer.job_folder import FRONTIER, OWNER, save_address, save_settings, stored_address
from gossamer.jobs.worker import build_worker
from gossamer.model import Counts, JobState
from gossamer.settings import Settings
from gossamer.storage.base import Sink
from gossamer.storage.jsonl import RejectedSink
from gossamer.storage.registry import open_sinks
from gossamer.storage.request_log import RequestLog

if TYPE_CHECKING:
    from gossamer.telemetry.tracing import Tracing


class Stoppable(Protocol):
    """An engine or a supervisor."""

    def stop(self) -> None: ...

    def interrupt(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The end of a run."""

    state: JobState
    counts: Counts
    stats: Stats
    refused: Mapping[str, int]
    stopped_by: str = ""
    """Why the run was stopped before the job ended: `seconds` or a signal."""


class LocalRun:
    """One run of an embedded job: opens it, adds the seeds, works until it is over, and closes it.

    With `folder` None, everything is in memory and ends with the run. `frontier` is an address of an owned backend; by
    default that of the run before, and else a file in the folder."""

    def __init__(
        self,
        folder: Path | None,
        settings: Settings,
        seeds: Sequence[str],
        *,
        spider: Spider | None = None,
        clock: Clock | None = None,
        frontier: str = "",
        tracing: Tracing | None = None,
        stats: Stats | None = None,
    ) -> None:
        self._folder = folder
        self._tracing = tracing
        self._url = "memory:" if folder is None else owned_url(frontier or stored_address(folder), folder)
        self._settings = settings
        self._seeds = seeds
        self._spider = spider
        self._clock = clock or SystemClock()
        self._running: Stoppable | None = None
        self._store: OwnerStore | None = None
        self._frontier: OwnedFrontier | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began_at = 0.0
        self._stop_wanted = ""
        self._suspects: list[int] = []
        self.stats = stats or Stats(self._clock)
        self.added = 0
        self.known_before = 0
        self.coordinator: Coordinator | None = None

    def stop(self, why: str) -> None:
        """Drain, then end the run, also if its engine is not built yet. Sinks get the grace of a stop, and no more."""
        self._stop_wanted = self._stop_wanted or why
        if self._running is not None:
            self._running.stop()
        if self._store is not None:
            self._store.hurry(self._settings.drain_seconds)

    def interrupt(self) -> None:
        """Called before `stop`, by a signal handler."""
        if self._running is not None:
            self._running.interrupt()

    async def counts(self) -> Counts:
        """The counts of the frontier now."""
        return await self._frontier.counts() if self._frontier is not None else Counts()

    @property
    def figures(self) -> tuple[int, int]:
        """Pages, and failures among them, since the run began."""
        return self.stats.pages, self.stats.failures

    @property
    def folder(self) -> Path | None:
        """The folder of the job; None for one in memory."""
        return self._folder

    @property
    def settings(self) -> Settings:
        """The job's settings."""
        return self._settings

    @property
    def workers(self) -> int:
        """Number of processes that fetch."""
        joined = len(self.coordinator.workers) if self.coordinator is not None else 0
        return joined + isinstance(self._running, Engine)

    async def run(self) -> RunSummary:
        """Run to the end, in the order that the module's docstring describes."""
        settings, folder = self._settings, self._folder
        frontier = self._frontier = await self._open_frontier()
        sinks: list[Sink] = []
        store: OwnerStore | None = None
        try:
            self._note_address()
            if folder is not None and not frontier.marks and not (await frontier.counts()).known:
                _refuse_old_files(folder)
            linker = Linker(settings, frontier.secret, RecentKeys())
            if folder is not None:
                types = item_columns(settings, self._spider)
                sinks = [
                    *open_sinks(settings, folder, frontier.marks, types=types),
                    RejectedSink(folder, frontier.marks),
                ]
                self._suspects = [take_marked_key(path) for path in (folder / "handling").glob("*")]
                await frontier.blame(self._suspects)
            store = self._store = OwnerStore(frontier, sinks, self.stats)
            self.known_before = (await frontier.counts()).known
            seeds = [linker.seed(url) for url in self._seeds]
            self.stats.seeded(seeds)
            self.added = await frontier.add(seeds)
            await frontier.steer("running")
            if folder is not None:
                self.coordinator = Coordinator(
                    frontier, store, linker=linker, settings=settings, folder=folder, limited=self._limited
                )
                await self.coordinator.start()
            state = await self._work(frontier, store, linker)
            counts = await frontier.counts()
            return RunSummary(
                counts.job if counts.finished else state, counts, self.stats, linker.refused, self._stop_wanted
            )
        finally:
            if store is not None:
                # Writes in progress get two more seconds: no worker waits for their result.
                store.hurry(0.0)
            if self.coordinator is not None:
                await self.coordinator.aclose()
            try:
                if store is not None:
                    await store.aclose()
            finally:
                await frontier.aclose()
                self._note_address()

    def _note_address(self) -> None:
        """Store the address of a frontier that is not in the folder: at the start to locate the frontier later, and at
        the end because the file's modification time marks the last run."""
        if self._folder is not None and is_foreign(self._url):
            save_address(self._folder, self._url)

    async def _open_frontier(self) -> OwnedFrontier:
        folder, backend = self._folder, owned_backend(self._url)
        if folder is not None and is_in_memory(self._url) and (folder / FRONTIER).exists():
            raise ConfigError(
                f"{folder / FRONTIER} is from an earlier run, which --frontier memory: cannot resume",
                hint="choose another --job, or omit --frontier memory:",
            )
        job = folder.name if folder is not None else ""
        return await backend.create(self._url, job, self._settings, clock=self._clock)

    async def _work(self, frontier: OwnedFrontier, store: OwnerStore, linker: Linker) -> JobState:
        """Run workers as processes, or one here, until the job is over or stopped."""
        settings, folder = self._settings, self._folder
        self._began_at = self._clock.monotonic()
        self._set_timer()
        try:
            if settings.workers > 1 and folder is not None:
                supervisor = Supervisor(
                    [str(folder)], count=settings.workers, clock=self._clock, state=lambda: frontier.state
                )
                return await self._until_done(supervisor)
            marker = folder / "handling" / OWNER if folder is not None else None
            async with build_worker(
                frontier,
                store,
                settings=settings,
                secret=frontier.secret,
                clock=self._clock,
                marker_path=marker,
                spider=self._spider,
                trail=RequestLog(folder, OWNER, most_bytes=settings.trail_bytes) if folder is not None else None,
                refused=linker.refused,
                tracing=self._tracing,
                memory=FrontierKeys(frontier),
                suspects=self._suspects,
            ) as engine:
                return await self._until_done(engine)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _limited(self, settings: Settings) -> None:
        """Apply changed limits to this run, and save them for the next ones."""
        self._settings = settings
        if self._folder is not None:
            save_settings(self._folder, settings)
        self._set_timer()

    def _set_timer(self) -> None:
        """Stop the run when `max_seconds` are over, counted from its beginning."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._settings.max_seconds is not None:
            left = max(0.0, self._settings.max_seconds - (self._clock.monotonic() - self._began_at))
            self._timer = asyncio.get_running_loop().call_later(left, self.stop, "seconds")

    async def _until_done(self, running: Engine | Supervisor) -> JobState:
        self._running = running
        if self._stop_wanted:
            running.stop()
        return await running.run()


def _refuse_old_files(folder: Path) -> None:
    """Refuse to run a new frontier over files of an earlier run: its marks are 0, and the files would be cut off."""
    for name in ("pages.jsonl", "pages.jsonl.zst", "pages.jsonl.gz", "pages.csv"):
        if (folder / name).exists() and (folder / name).stat().st_size:
            raise ConfigError(
                f"{folder / name} is from an earlier run, and this new job would overwrite it",
                hint="move the file away, or choose another --job",
            )
