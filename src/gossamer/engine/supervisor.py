"""The supervisor of a machine's worker processes: restarts the dead, with back-off, and gives up loudly."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from gossamer.clock import Clock
from gossamer.errors import WorkersDie
from gossamer.model import JobState

log = logging.getLogger("gossamer.supervisor")
FATAL = 78
"""What a worker exits with when starting it again would not help."""
_HEALTHY_SECONDS = 30.0
_MOST_DEATHS = 8


class Supervisor:
    """Keeps `count` workers running until the job is over or they are told to stop.

    They are started as `gossamer worker` with these arguments; what nobody should see in a list of processes goes
    with `environment`. With `names` a worker's successor has its name, by which a frontier knows what it takes over."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        count: int,
        clock: Clock,
        state: Callable[[], JobState],
        environment: Mapping[str, str] | None = None,
        names: str = "",
    ) -> None:
        self._names = names
        self._arguments = arguments
        self._environment = environment or {}
        self._count = count
        self._clock = clock
        self._state = state
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._deaths = 0

    @property
    def alive(self) -> int:
        return len(self._processes)

    def interrupt(self) -> None:
        """No spider runs in this process."""

    def stop(self) -> None:
        """Ask the workers to drain."""
        self._stopping.set()
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()

    async def run(self) -> JobState:
        """Return when all workers have left because the job is over."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._count):
                    tasks.create_task(self._keep(number))
        except* WorkersDie as group:
            raise group.exceptions[0] from None
        finally:
            for process in self._processes.values():
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        return self._state()

    async def _keep(self, number: int) -> None:
        while not self._stopping.is_set():
            started_at = self._clock.monotonic()
            code = await self._run_one(number)
            if code == 0 or self._stopping.is_set() or self._state() in ("finished", "stopping"):
                return
            if code == FATAL:
                raise WorkersDie("a worker cannot go on, and neither could another", hint="its message is above")
            lived = self._clock.monotonic() - started_at
            self._deaths = 1 if lived > _HEALTHY_SECONDS else self._deaths + 1
            if self._deaths > _MOST_DEATHS * self._count:
                raise WorkersDie(
                    f"workers died {self._deaths} times in a row, the last one with code {code}",
                    hint="their messages are above; --workers 1 runs everything in one process, which shows more",
                )
            log.warning("worker %d ended with code %d after %.1f s; starting it again", number, code, lived)
            await self._pause(min(10.0, 0.1 * 2 ** min(self._deaths, 7)) if lived < _HEALTHY_SECONDS else 0.1)

    async def _run_one(self, number: int) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gossamer",
            "worker",
            *self._arguments,
            *(("--name", f"{self._names}-{number}") if self._names else ()),
            "--supervised",
            str(self._count),
            str(os.getpid()),
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, **self._environment},
        )
        self._processes[number] = process
        if self._stopping.is_set():
            process.terminate()
        try:
            return await process.wait()
        finally:
            if process.returncode is not None:
                self._processes.pop(number, None)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass
