"""A worker that is there before its job and after it: it waits, works, and waits again until it is told to leave."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

from gossamer.errors import JobMissing, Unavailable
from gossamer.fleet import join_fleet
from gossamer.frontier.backends import open_fleet
from gossamer.leaving import leaving

standby_log = logging.getLogger("gossamer.standby")
TOUCH_SECONDS = 2.0
_LOOK_SECONDS = 2.0

Health = Literal["starting", "ready", "away", "leaving"]


class HealthFile:
    """A file for probes: touched while the loop turns, with one word that says how the worker is.

    `ready`: the frontier answers, and the worker works or waits for its job; `away`: the frontier does not answer;
    `leaving`: the worker was told to go, and finishes what it has in hand. Without a path there is no file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._word: Health = "starting"

    def say(self, word: Health) -> None:
        """Write another word; who is leaving says nothing else."""
        if self._word != "leaving":
            self._word = word
        self._write()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Touch the file for as long as the block lasts; its last word stays."""
        self._write()
        task = asyncio.create_task(self._touch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _touch(self) -> None:
        while True:
            await asyncio.sleep(TOUCH_SECONDS)
            # A full disk is no reason to end a worker; whoever probes decides.
            with suppress(OSError):
                self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        part = self._path.with_name(self._path.name + ".part")
        part.write_text(self._word + "\n", "ascii")
        os.replace(part, self._path)


class Standby:
    """A worker of a fleet that outlives its job, as those of a cluster do: one that ended would be started again."""

    def __init__(
        self,
        url: str,
        job: str,
        folder: Path,
        *,
        name: str,
        region: str = "",
        shards: str = "",
        own_results: bool = False,
        health: HealthFile,
    ) -> None:
        self._url = url
        self._own_results = own_results
        self._job = job
        self._folder = folder
        self._name = name
        self._region = region
        self._shards = shards
        self._health = health
        self._leaving = asyncio.Event()
        self._stop: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Work whenever the job can be worked on, until a signal says to leave."""
        said = ""
        async with leaving(lambda _: self._leave()), self._health.kept():
            while not self._leaving.is_set():
                wait = await self._why_wait()
                if not wait:
                    await self._work()
                elif wait != said:
                    standby_log.info("waiting: %s", wait)
                said = wait
                if not self._leaving.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._leaving.wait(), _LOOK_SECONDS)

    async def _work(self) -> None:
        try:
            await join_fleet(
                self._url,
                self._job,
                self._folder,
                name=self._name,
                region=self._region,
                shards=self._shards,
                own_results=self._own_results,
                signals=self._follow,
            )
        except Unavailable as error:
            # Before it has joined; later the engine waits by itself.
            self._health.say("away")
            standby_log.warning("waiting for the frontier: %s", error)
        finally:
            self._stop = lambda: None

    async def _why_wait(self) -> str:
        """Why there is nothing to do yet; empty if there is."""
        try:
            fleet = await open_fleet(self._url, self._job)
            try:
                state = (await fleet.counts()).job
            finally:
                await fleet.aclose()
        except Unavailable as error:
            self._health.say("away")
            return str(error)
        except JobMissing:
            state = "missing"
        self._health.say("ready")
        return "" if state in ("running", "paused") else f"{self._job} is {state}"

    def _follow(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        if self._leaving.is_set():
            stop()

    def _leave(self) -> None:
        self._leaving.set()
        with suppress(OSError):
            self._health.say("leaving")
        self._stop()
