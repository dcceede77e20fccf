"""Supervises worker processes: restarts crashed ones with back-off, and finds the page that crashed one.

**Restarts.** A `Supervisor` keeps a number of workers running. A worker that exits with 0 is done. Any other exit is a
crash: the worker is started again after a pause that doubles with each crash in a row; 30 seconds of running end the
row. So one page that kills a worker costs a fraction of a second, and a broken installation does not fill the log for
hours: after too many crashes in a row, or if a worker exits with code 78 because a restart is useless, the run ends
with an error.

**Finding the page.** A dead process cannot report the page in hand. So each worker writes the page's key into eight
bytes of a memory-mapped file (`CrashMarker`) before it handles a page, and 0 afterwards. The bytes are in the kernel's
page cache, so they survive `kill -9` and a crash in C code, and cost no system call. The process that takes back the
dead worker's leases reads them (`take_marked_key`), and counts the loss against that page alone: after two losses it is
leased alone, after `max_deliveries` it is parked (P10). If the machine loses power, the marker may be lost; then no
page is blamed.

**No orphans.** On Linux a worker asks the kernel to be killed with its supervisor (`die_with`); an orphan would go on
fetching next to its successor. On every system, a worker of an embedded job ends when its connection to the owner does.

**Signals.** A terminal sends Ctrl-C to all processes, and some process managers send SIGTERM to all. Parser processes
ignore both, because their worker decides (`leave_signals_to_parent`); they react to LEAVE instead. Until they have set
that up, both signals are blocked, so that none can kill a process that is still starting (`hold_signals`)."""

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
"""Exit code of a worker if a restart would not help."""
_HEALTHY_SECONDS = 30.0
"""A worker that ran this long ends a row of crashes."""
_MOST_DEATHS = 8
"""Crashes in a row, for each worker of the supervisor, after which it gives up."""


class Supervisor:
    """Keeps `count` workers running until the job is over or `stop` is called.

    They are started as `gossamer worker` with these arguments. Values that must not appear in the process list, such as
    an address with a password, go into `environment`. With `names`, a worker's successor gets the same name, by which
    the frontier finds the leases of the dead worker."""

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
        """Do nothing: no spider runs in this process."""

    def stop(self) -> None:
        """Send SIGTERM to the workers, which drain."""
        self._stopping.set()
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()

    async def run(self) -> JobState:
        """Return when all workers have ended because the job is over or stopped; WorkersDie if they keep crashing.

        No worker is left running: those that still run are killed."""
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
        """Run one worker, and its successors."""
        while not self._stopping.is_set():
            started_at = self._clock.monotonic()
            code = await self._run_one(number)
            if code == 0 or self._stopping.is_set() or self._state() in ("finished", "stopping"):
                return
            if code == FATAL:
                raise WorkersDie("a worker cannot continue, and a restart would not help", hint="see its message above")
            lived = self._clock.monotonic() - started_at
            self._deaths = 1 if lived > _HEALTHY_SECONDS else self._deaths + 1
            if self._deaths > _MOST_DEATHS * self._count:
                raise WorkersDie(
                    f"workers died {self._deaths} times in a row, the last one with code {code}",
                    hint="see their messages above; --workers 1 runs everything in one process and shows more",
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
    """Names the page in hand in eight bytes of a mapped file, which survive the process and cost no system call."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._memory: mmap.mmap | bytearray = bytearray(8)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(descriptor).st_size < 8:
                    # Allocate the block now: the first write to a hole on a full disk would kill the process (SIGBUS).
                    os.pwrite(descriptor, bytes(8), 0)
                self._memory = mmap.mmap(descriptor, 8)
            except OSError as error:
                # Disk full: crawl without a marker. A page that kills this process will not be named.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
            finally:
                os.close(descriptor)

    def name(self, key: int) -> None:
        """Store the key of the page that is handled from now on; 0 for none."""
        pack_into("<q", self._memory, 0, key)

    def close(self) -> None:
        """Remove the file: the process exits normally."""
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def take_marked_key(path: Path) -> int:
    """Return the key of the page that a dead process was handling, 0 for none; remove the marker."""
    try:
        data = path.read_bytes()
        path.unlink()
    except OSError:
        return 0
    return int(unpack_from("<q", data)[0]) if len(data) >= 8 else 0


# Windows has no such signal and runs no crawls, but read-only commands import this module.
LEAVE: signal.Signals = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""The signal at which a process with a spider interrupts the page in hand."""


def hold_signals() -> None:
    """Block SIGINT and SIGTERM in a child (`preexec_fn`) until it calls `leave_signals_to_parent`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))


def leave_signals_to_parent() -> None:
    """Ignore SIGINT and SIGTERM, which a terminal or a process manager may send to all processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN: processes that the spider starts would inherit that.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies: an orphan would fetch beside its successor."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        # The parent may have died before the call. Compare with its number: in a container, 1 may be the real parent.
        if os.getppid() != parent:
            os._exit(1)


def dies_with_us() -> Callable[[], None]:
    """Return a `preexec_fn` for child processes that end with this process."""
    return partial(die_with, os.getpid())
