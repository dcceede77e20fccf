"""Concurrency control: fetch slots, per-address limits, and adapting the number of fetches to CPU and memory."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

from gossamer.clock import Clock
from gossamer.download.base import AddressLookup
from gossamer.model import Request

log = logging.getLogger("gossamer.engine")
FLOOR = 8
"""Fetches that are always allowed (if the setting allows them), so that a crawl goes on under any load."""
LAG_SECONDS, BUSY_LAG_SECONDS, CALM_LAG_SECONDS = 0.5, 0.2, 0.1
BUSY = 0.9
FULL_MEMORY, HIGH_MEMORY, CALM_MEMORY = 0.95, 0.9, 0.85
SAMPLES, SAMPLE_SECONDS = 5, 0.2


class Load(NamedTuple):
    """The load of a worker: event loop lag in seconds, and the used shares of CPU and memory."""

    lag_seconds: float
    processor: float = 0.0
    memory: float = 0.0


class LoadMeter(Protocol):
    """Measures the used shares of CPU and memory since the last call, and the memory left for a worker."""

    def shares(self, elapsed_seconds: float) -> tuple[float, float]: ...

    def free_bytes(self) -> int | None: ...


def next_limit(limit: int, load: Load, *, most: int, used: int) -> int:
    """Return the max concurrent fetches after a second with this load, in which up to `used` were running.

    The limit falls by a tenth while the loop lags or memory is short, and by half when memory is nearly used up. It
    rises by a tenth only when the load is low and the slots were used. High CPU usage alone changes nothing."""
    least = min(FLOOR, most)
    if load.memory >= FULL_MEMORY:
        return max(least, min(limit, used) // 2)
    lags = load.lag_seconds >= (BUSY_LAG_SECONDS if load.processor >= BUSY else LAG_SECONDS)
    if lags or load.memory >= HIGH_MEMORY:
        return max(least, min(limit, used) * 9 // 10)
    calm = load.lag_seconds < CALM_LAG_SECONDS and load.processor < BUSY and load.memory < CALM_MEMORY
    if calm and used * 10 >= limit * 9:
        return min(most, limit + max(1, limit // 10))
    return limit


def first_limit(most: int, *, free_bytes: int | None, page_bytes: int) -> int:
    """Return the initial max concurrent fetches: each may be a page of `page_bytes`, which costs up to twice that.

    Without this, a small container could run out of memory within the first second."""
    if free_bytes is None:
        return most
    return max(min(FLOOR, most), min(most, int(free_bytes * CALM_MEMORY / (2 * page_bytes))))


class Slots:
    """A semaphore whose limit can change; lowering the limit takes no slot away that is in use."""

    def __init__(self, most: int) -> None:
        self.most = self.limit = most
        self.used = 0
        self.peak = 0
        self.crowded = asyncio.Event()
        """Set while at least FLOOR slots are used: with fewer there is nothing to regulate."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self.used >= self.limit or self._waiting:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._leave()
                elif place in self._waiting:
                    self._waiting.remove(place)
                raise
        else:
            self._take()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    @property
    def is_idle(self) -> bool:
        """Return whether no slot is used, and nobody waits."""
        return not self.used and not self._waiting

    def resize(self, limit: int) -> None:
        """Set the limit."""
        self.limit = limit
        self._admit()

    def _take(self) -> None:
        self.used += 1
        self.peak = max(self.peak, self.used)
        if self.used >= FLOOR:
            self.crowded.set()

    def _leave(self) -> None:
        self.used -= 1
        if self.used < FLOOR:
            self.crowded.clear()
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.used < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                self._take()
                place.set_result(None)


async def regulate(slots: Slots, measures: LoadMeter, clock: Clock, *, changed: Callable[[], None]) -> None:
    """Adapt the limit to the load until cancelled; calls `changed` with every new limit."""
    while True:
        await slots.crowded.wait()
        slots.peak = slots.used
        began, lag = clock.monotonic(), 0.0
        for _ in range(SAMPLES):
            before = clock.monotonic()
            await clock.sleep(SAMPLE_SECONDS)
            lag += max(0.0, clock.monotonic() - before - SAMPLE_SECONDS)
        load = Load(lag / SAMPLES, *measures.shares(clock.monotonic() - began))
        limit = next_limit(slots.limit, load, most=slots.most, used=slots.peak)
        if limit == slots.limit:
            continue
        if slots.limit == slots.most:
            log.info(
                "lowered concurrency: event loop lag %.2f s, CPU %.0f %%, memory %.0f %%",
                load.lag_seconds,
                100 * load.processor,
                100 * load.memory,
            )
        slots.resize(limit)
        changed()


class AddressLimits:
    """The per-address limit of one worker; addresses without fetches are dropped."""

    def __init__(self, lookup: AddressLookup, most: int) -> None:
        self._locates, self._most = lookup, most
        self._places: dict[str, Slots] = {}

    async def locate(self, request: Request) -> str:
        """Return the address that a request will go to; empty if it is not known."""
        return await self._locates.address_of(request)

    def is_full(self, address: str) -> bool:
        """Return whether the next fetch to this address has to wait."""
        places = self._places.get(address)
        return places is not None and places.used >= places.limit

    @asynccontextmanager
    async def at(self, address: str) -> AsyncIterator[None]:
        """Hold a slot at an address for the block; waits for a free slot."""
        if not address:
            yield
            return
        places = self._places.get(address)
        if places is None:
            places = self._places[address] = Slots(self._most)
        try:
            async with places:
                yield
        finally:
            if places.is_idle:
                self._places.pop(address, None)


_UNLIMITED = 1 << 60
_OWN_SHARE = 0.05
"""Share of memory that a process must hold to react to a shortage: smaller processes cannot help."""


class Memory(NamedTuple):
    """Bytes in use, and bytes allowed."""

    used: int
    allowed: int

    @property
    def share(self) -> float:
        return self.used / self.allowed if self.allowed > 0 else 0.0


class Machine:
    """Reads the load from /proc and the files of cgroups, version 1 or 2; falls back to what Python reports.

    `workers` is the number of processes that start together and share the free memory. `root` stands for /, so that a
    test can simulate any machine."""

    def __init__(self, root: Path = Path("/"), *, workers: int = 1) -> None:
        self._root = root
        self._workers = workers
        self._cgroups = root / "sys" / "fs" / "cgroup"
        self._version, self._paths = self._membership()
        self._processors = self._allowed_processors()
        self._process, self._thread = time.process_time(), time.thread_time()
        self._group = self._group_seconds()

    def shares(self, elapsed_seconds: float) -> tuple[float, float]:
        """Return the used shares of CPU since the last call, and of memory; call it in the thread of the event loop.

        The CPU share is also 1 when the loop's own thread is busy: it can use no more than one CPU."""
        process, thread, group = time.process_time(), time.thread_time(), self._group_seconds()
        spent = max((process - self._process) / self._processors, thread - self._thread)
        if group is not None and self._group is not None:
            spent = max(spent, (group - self._group) / self._processors)
        self._process, self._thread, self._group = process, thread, group
        return spent / max(elapsed_seconds, 0.001), self.memory()

    def free_bytes(self) -> int | None:
        """Return this process's part of the free memory under the tightest limit; None if the system does not report
        it."""
        machine = self._machine_memory()
        memories = [*self._group_memories(), *([machine] if machine is not None else [])]
        return min((max(0, memory.allowed - memory.used) // self._workers for memory in memories), default=None)

    def memory(self) -> float:
        """Return the used share of memory, under the tightest limit of our cgroups or of the whole machine."""
        shares = [memory.share for memory in self._group_memories()]
        machine = self._machine_memory()
        if machine is not None and self._resident() >= _OWN_SHARE * machine.allowed:
            shares.append(machine.share)
        return max(shares, default=0.0)

    def _membership(self) -> tuple[int, dict[str, str]]:
        """Return the cgroup version that limits us, and our cgroup by controller."""
        paths: dict[str, str] = {}
        for line in self._lines(self._root / "proc" / "self" / "cgroup"):
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            paths |= dict.fromkeys(controllers.split(","), path)
        return (1 if "memory" in paths or "cpu" in paths else 2), paths

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield our cgroup and its parents; only the mount point if our cgroup is not visible, as in a container."""
        top = self._cgroups if self._version == 2 else self._cgroups / controller
        path = self._paths.get("" if self._version == 2 else controller, "/").strip("/")
        folder = top / path if path and ".." not in path else top
        while folder != top and folder.is_dir():
            yield folder
            folder = folder.parent
        yield top

    def _group_memories(self) -> Iterator[Memory]:
        limit, usage, idle = ("memory.max", "memory.current", "inactive_file")
        if self._version == 1:
            limit, usage, idle = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in self._folders("memory"):
            allowed, used = self._number(folder / limit), self._number(folder / usage)
            if allowed is not None and used is not None and 0 < allowed < _UNLIMITED:
                # The kernel reclaims the page cache before it kills a process.
                yield Memory(max(0, used - self._field(folder / "memory.stat", idle)), allowed)

    def _machine_memory(self) -> Memory | None:
        path = self._root / "proc" / "meminfo"
        total, left = self._field(path, "MemTotal:") * 1024, self._field(path, "MemAvailable:") * 1024
        return Memory(total - left, total) if total and left else None

    def _resident(self) -> int:
        found = next(self._lines(self._root / "proc" / "self" / "statm"), "").split()
        return int(found[1]) * os.sysconf("SC_PAGE_SIZE") if len(found) > 1 else 0

    def _allowed_processors(self) -> float:
        """Return the number of CPUs that we may use: by affinity, or the quota of a cgroup."""
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min([float(affinity), *self._quotas()])

    def _quotas(self) -> Iterator[float]:
        for folder in self._folders("cpu"):
            if self._version == 2:
                words = next(self._lines(folder / "cpu.max"), "").split()
                quota, period = (words[0], words[1]) if len(words) == 2 else ("max", "0")
            else:
                quota = str(self._number(folder / "cpu.cfs_quota_us") or -1)
                period = str(self._number(folder / "cpu.cfs_period_us") or 0)
            if quota.isdecimal() and int(period) > 0 and int(quota) > 0:
                yield int(quota) / int(period)

    def _group_seconds(self) -> float | None:
        """Return the CPU seconds that our cgroup has used, if it has a quota."""
        if not any(self._quotas()):
            return None
        if self._version == 2:
            return self._field(next(self._folders("cpu")) / "cpu.stat", "usage_usec") / 1e6
        return (self._number(next(self._folders("cpuacct")) / "cpuacct.usage") or 0) / 1e9

    def _number(self, path: Path) -> int | None:
        text = next(self._lines(path), "").strip()
        return int(text) if text.isdecimal() else None

    def _field(self, path: Path, name: str) -> int:
        for line in self._lines(path):
            words = line.split()
            if len(words) > 1 and words[0] == name and words[1].isdecimal():
                return int(words[1])
        return 0

    def _lines(self, path: Path) -> Iterator[str]:
        try:
            yield from path.read_text("ascii", "replace").splitlines()
        except OSError:
            return


class UnlimitedMachine:
    """A machine without limits, for simulations that must not depend on the machine they run on."""

    def shares(self, elapsed_seconds: float) -> tuple[float, float]:
        return 0.0, 0.0

    def free_bytes(self) -> int | None:
        return None
