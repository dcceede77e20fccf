"""A job whose frontier is a server: its workers may be on any machine, and each writes segments of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gossamer.assemble import worker
from gossamer.clock import SystemClock
from gossamer.engine.handle import Linker
from gossamer.engine.marker import left_behind
from gossamer.engine.recent import Recent
from gossamer.engine.stats import Stats
from gossamer.engine.store import FleetStore
from gossamer.engine.supervisor import Supervisor
from gossamer.errors import ConfigError
from gossamer.frontier.base import Frontier
from gossamer.job import Summary
from gossamer.member import leave_on_signals
from gossamer.model import Counts, JobState
from gossamer.settings import Settings
from gossamer.sink import shared_folder
from gossamer.sink.jsonl import JsonlSink
from gossamer.sink.segments import FOLDER, SegmentSink, gather

SCHEMES = ("redis://", "rediss://", "unix://")


class FleetFrontier(Frontier, Protocol):
    """What a fleet's frontier has beside the frontier itself."""

    secret: bytes
    settings: Settings

    async def steer(self, job: JobState) -> None: ...

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int: ...


def masked(url: str) -> str:
    """An address as it may be shown: without its password."""
    scheme, slashes, rest = url.partition("://")
    head, at, tail = rest.rpartition("@")
    return f"{scheme}{slashes}{head.partition(':')[0]}:***@{tail}" if at else url


async def open_fleet(url: str, job: str, settings: Settings | None = None, *, worker_name: str = "") -> FleetFrontier:
    """Join a job at this address; with settings, make it if it is not there."""
    if not url.startswith(SCHEMES):
        raise ConfigError(
            f"{masked(url)}: no such frontier in this version",
            hint="use sqlite, memory: or redis://",
        )
    from gossamer.frontier.redis import open_redis

    return await open_redis(url, job, settings, worker=worker_name)


async def join_fleet(url: str, job: str, folder: Path, *, name: str, supervised: bool = False) -> JobState:
    """Work for the job at this address until it is over; the pages go to segments in `folder`."""
    frontier = await open_fleet(url, job, worker_name=name)
    folder = shared_folder(frontier.settings.sink) or folder
    marker_path = folder / "handling" / name
    try:
        # A worker of this name that died held leases, and perhaps a page that killed it.
        key = left_behind(marker_path)
        await frontier.abandon(name, blamed=(key,) if key else ())
        store = FleetStore(frontier, [SegmentSink(folder, name)])
        try:
            async with worker(
                frontier,
                store,
                settings=frontier.settings,
                secret=frontier.secret,
                clock=SystemClock(),
                marker_path=marker_path,
            ) as engine:
                leave_on_signals(engine.stop, ctrl_c=not supervised)
                return await engine.run()
        finally:
            await store.aclose()
    finally:
        await frontier.aclose()


class FleetCrawl:
    """A crawl on a fleet's frontier with workers on this machine; others may join from elsewhere."""

    def __init__(self, url: str, job: str, folder: Path, settings: Settings, seeds: Sequence[str]) -> None:
        self._url = url
        self._job = job
        self._seeds = seeds
        self._frontier: FleetFrontier | None = None
        self._supervisor: Supervisor | None = None
        self._stop_wanted = ""
        self._stored_before = 0
        self.folder = folder
        self.settings = settings
        self.stats = Stats(SystemClock())
        self.added = 0
        self.known_before = 0

    @property
    def workers(self) -> int:
        """Processes of this machine that fetch."""
        return self._supervisor.alive if self._supervisor is not None else 0

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
        self.stats.failures = counts.failed
        return counts

    async def run(self) -> Summary:
        """Run to the end, then gather what the workers of this machine stored."""
        frontier = self._frontier = await open_fleet(self._url, self._job, self.settings)
        timer = None
        try:
            before = await frontier.counts()
            self.known_before, self._stored_before = before.known, before.stored
            linker = Linker(self.settings, frontier.secret, Recent())
            self.added = await frontier.add([linker.seed(url) for url in self._seeds])
            await frontier.steer("running")
            self._supervisor = Supervisor(
                ["--job", self._job, "--out", str(self.folder)],
                count=self.settings.workers,
                clock=SystemClock(),
                state=lambda: "stopping" if self._stop_wanted else "running",
                environment={"GOSSAMER_FRONTIER": self._url},
                names=f"{os.uname().nodename}-{os.getpid()}",
            )
            if self.settings.max_seconds is not None:
                timer = asyncio.get_running_loop().call_later(self.settings.max_seconds, self.stop, "seconds")
            if self._stop_wanted:
                self._supervisor.stop()
            await self._supervisor.run()
            counts = await self.counts()
            await export(self.folder)
            state: JobState = counts.job
            return Summary(state, counts, self.stats, {}, self._stop_wanted)
        finally:
            if timer is not None:
                timer.cancel()
            await frontier.aclose()


async def export(folder: Path) -> int:
    """Make pages.jsonl and items.jsonl of the segments in a folder, one record per page; how many."""
    target = folder / f"{FOLDER}-gathered"
    target.mkdir(exist_ok=True)
    sink = JsonlSink(target, {})
    count = 0
    try:
        some = []
        for record in gather(folder):
            some.append(record)
            count += 1
            if len(some) >= 1000:
                await sink.write(some)
                some = []
        await sink.write(some)
    finally:
        await sink.aclose()
    for path in target.iterdir():
        path.replace(folder / path.name)
    target.rmdir()
    return count
