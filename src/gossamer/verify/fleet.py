"""The processes of a crawl that is to be troubled: started as users start them, killed, stopped and started again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gossamer.clock import Clock
from gossamer.engine.supervision import dies_with_us
from gossamer.verify.verdict import Blow

_LOOK_SECONDS = 0.05
_DEATHS_IN_A_ROW = 4
"""A supervisor waits longer before each of them; then it is its turn."""


class Processes:
    """`gossamer crawl` with its workers, in a session of their own; what they say goes to a file."""

    def __init__(self, words: Sequence[str], *, folder: Path, environment: Mapping[str, str], clock: Clock) -> None:
        self._words = words
        self._folder = folder
        self._environment = environment
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._deaths = 0
        self.said = folder / "crawl.log"

    async def start(self) -> None:
        """Start the crawl, or go on with it."""
        with self.said.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gossamer", "crawl", *self._words,
                cwd=self._folder, env=dict(self._environment), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                # Killed ourselves, we leave nobody behind who fetches from a web that is gone.
                preexec_fn=dies_with_us(),
            )  # fmt: skip
        self._deaths = 0

    @property
    def code(self) -> int | None:
        """What the crawl exited with; None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def wait(self) -> int:
        """The exit code, when it has come to its end."""
        assert self._process is not None
        return await self._process.wait()

    def workers(self) -> list[int]:
        """The process ids of the workers that live; of a crawl with one worker and no fleet there are none."""
        return children(self._process.pid) if self._process is not None and self.code is None else []

    async def kill(self, chance: random.Random) -> Blow:
        """kill -9 of a worker, or of all processes at once, which are then started again."""
        workers = self.workers()
        if not workers or self._deaths >= _DEATHS_IN_A_ROW or chance.random() < 0.3:
            at = self._clock.epoch()
            await self.end()
            await self.start()
            return Blow("all killed", at)
        at = self._clock.epoch()
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
        self._deaths += 1
        return Blow("worker killed", at)

    async def stop(self, chance: random.Random, seconds: float) -> Blow | None:
        """Have a worker stand still for so long; None if there is none to stop."""
        if not (workers := self.workers()):
            return None
        pid, at = chance.choice(workers), self._clock.epoch()
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return None
        try:
            await self._clock.sleep(seconds)
        finally:
            woken_at = self._clock.epoch()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return Blow("worker stopped", at, woken_at)

    async def end(self) -> None:
        """kill -9 of everything that is left."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        # Its workers are not our children: they are gone when nobody of the session is left to be signalled.
        with suppress(ProcessLookupError, PermissionError):
            while True:
                os.killpg(self._process.pid, signal.SIGKILL)
                await asyncio.sleep(_LOOK_SECONDS)


def children(pid: int) -> list[int]:
    """The living direct children of a process."""
    if not Path("/proc/self/stat").exists():
        lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
        rows = [line.split() for line in lines.stdout.splitlines()]
        return [int(row[0]) for row in rows if int(row[1]) == pid and not row[2].startswith("Z")]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(parent) == pid and state != "Z":
                found.append(int(entry.name))
    return sorted(found)
