"""Supervises worker processes: restarts crashed ones with back-off, and finds the page that crashed one."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import mmap
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from struct import pack_into, unpack_from

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


class CrashMarker:
    """Names the page in hand in eight bytes of shared memory: they outlive the process, and cost it next to nothing."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._memory: mmap.mmap | bytearray = bytearray(8)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(descriptor).st_size < 8:
                    # Not a hole: the first write to one, on a full disk, would kill the process.
                    os.pwrite(descriptor, bytes(8), 0)
                self._memory = mmap.mmap(descriptor, 8)
            except OSError as error:
                # A page that kills this process will not be named; to wait for room would help nobody.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
            finally:
                os.close(descriptor)

    def name(self, key: int) -> None:
        """This page is in hand from now on; 0: none is."""
        pack_into("<q", self._memory, 0, key)

    def close(self) -> None:
        """Nothing is in hand any more."""
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def left_behind(path: Path) -> int:
    """The key that a dead process was handling, 0 if none; the note is taken away."""
    try:
        data = path.read_bytes()
        path.unlink()
    except OSError:
        return 0
    return int(unpack_from("<q", data)[0]) if len(data) >= 8 else 0


# Windows has no such signal, and no crawls; what only reads may be loaded there.
LEAVE: signal.Signals = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""Has a process that runs a spider interrupt the page in hand."""


def hold_signals() -> None:
    """The `preexec_fn` of a process that calls `leave_signals_to_parent`: until then they wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))


def leave_signals_to_parent() -> None:
    """Let SIGINT and SIGTERM pass, which a terminal or a process manager sends to all processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN, which processes that the spider starts would inherit.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def die_with(parent: int) -> None:
    """Have the kernel end this process with its parent: an orphan would go on fetching beside its successor."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        # It may have died before the kernel was told. In a container the parent may well be process 1.
        if os.getppid() != parent:
            os._exit(1)


def dies_with_us() -> Callable[[], None]:
    """The `preexec_fn` of a process that ends with this one."""
    return partial(die_with, os.getpid())
