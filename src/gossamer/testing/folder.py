"""The frontier in a shared folder, opened for the suites: on a manual clock, which is the file server's clock too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from gossamer.frontier.base import Frontier
from gossamer.frontier.folder import FolderFrontier, open_folder
from gossamer.frontier.folder_share import Share
from gossamer.model import Grant, JobState
from gossamer.settings import Settings
from gossamer.testing.backends import MachineClock
from gossamer.testing.harness import Harness

JOB = "job"
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108
"""Where syncing costs nothing: no test here pulls the plug."""


class TimedShare(Share):
    """A folder on a file server with a clock that a test moves."""

    def __init__(self, root: Path, clock: MachineClock) -> None:
        super().__init__(root)
        self._clock = clock

    def clock_of(self, handle: int) -> float:
        return self._clock.epoch()


class FolderWorker:
    """A worker that shares its machine's shards with others: its name goes with what it leases."""

    def __init__(self, frontier: FolderFrontier, name: str) -> None:
        self._frontier = frontier
        self.name = name

    async def lease(self, limit: int, *, batch: int, seconds: float) -> Grant:
        return await self._frontier.lease(limit, batch=batch, seconds=seconds, worker=self.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frontier, name)


class FolderHarness(Harness):
    """`folder:` with one owner of all shards, and several workers on its machine."""

    def __init__(self, folder: Path, settings: Settings, *, shards: int = 7) -> None:
        self.url = f"folder:{folder}?shards={shards}"
        self.root = folder / "frontier" / JOB
        self.settings = settings
        self.clock = MachineClock()
        self._lives = 0

    async def begin(self) -> None:
        """Open it."""
        self.frontier = self.folder = await self.open(f"life-{self._lives}")

    async def open(self, worker: str) -> FolderFrontier:
        """A worker of its own, on a machine of its own."""
        return await open_folder(
            self.url,
            JOB,
            self.settings,
            worker=worker,
            clock=self.clock,
            share=TimedShare(self.root, self.clock),
            tending=False,
        )

    async def end(self) -> None:
        """Let go of everything."""
        await self.folder.aclose()

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def set_back(self, seconds: float) -> None:
        self.clock.set_back(seconds)

    async def worker(self, name: str) -> Frontier:
        return cast(Frontier, FolderWorker(self.folder, name))

    async def lose(self, worker: Frontier) -> None:
        await self.folder.abandon(cast(FolderWorker, worker).name)

    async def steer(self, job: JobState) -> None:
        await self.folder.steer(job)

    async def reopen(self, settings: Settings | None = None) -> None:
        old, self._lives = self.folder, self._lives + 1
        old.owner.abort()
        self.settings = settings or self.settings
        self.clock.restart()
        await self.begin()
        # As a worker does that is started in the place of one that was killed.
        await self.folder.abandon(old.worker)


@asynccontextmanager
async def folder(settings: Settings, *, shards: int = 7) -> AsyncIterator[FolderHarness]:
    """`folder:` on a manual clock."""
    with tempfile.TemporaryDirectory(prefix="gossamer-", dir=MEMORY) as name:
        harness = FolderHarness(Path(name), settings, shards=shards)
        await harness.begin()
        try:
            yield harness
        finally:
            await harness.end()
