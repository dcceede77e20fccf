"""The frontier in a shared folder, opened for the suites: on a manual clock, which is the file server's clock too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gossamer.frontier.folder.files import SharedFolder
from gossamer.frontier.folder.frontier import FolderFrontier, open_folder
from gossamer.settings import Settings
from gossamer.testing.backends import LocalHarness, MachineClock, Shared

JOB = "job"
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108
"""Where syncing costs nothing: no test here pulls the plug."""


class TimedShare(SharedFolder):
    """A folder on a file server with a clock that a test moves."""

    def __init__(self, root: Path, clock: MachineClock) -> None:
        super().__init__(root)
        self._clock = clock

    def clock_of(self, handle: int) -> float:
        return self._clock.epoch()


class FolderHarness(LocalHarness):
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

    async def open(self, worker: str, region: str = "") -> FolderFrontier:
        """A worker of its own, on a machine of its own."""
        return await open_folder(
            self.url,
            JOB,
            self.settings,
            worker=worker,
            region=region,
            clock=self.clock,
            share=TimedShare(self.root, self.clock),
            tending=False,
        )

    async def end(self) -> None:
        """Let go of everything."""
        await self.folder.aclose()

    @property
    def shared(self) -> Shared:
        return self.folder

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
