"""What this process may use of the machine, and what of it is used: processor and memory, within cgroups' limits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_UNLIMITED = 1 << 60
_OWN_SHARE = 0.05
"""A machine short of memory concerns a process that holds at least so much of it: others cannot help."""


class Memory(NamedTuple):
    """Bytes in use and bytes allowed."""

    used: int
    allowed: int

    @property
    def share(self) -> float:
        return self.used / self.allowed if self.allowed > 0 else 0.0


class Machine:
    """Reads /proc and the files of cgroups, version 1 or 2; where there are none, it tells what Python knows.

    `workers` is how many processes like this one begin together: what is free is for all of them. `root` is the folder
    that stands for /, so that a test can show any machine."""

    def __init__(self, root: Path = Path("/"), *, workers: int = 1) -> None:
        self._root = root
        self._workers = workers
        self._cgroups = root / "sys" / "fs" / "cgroup"
        self._version, self._paths = self._membership()
        self._processors = self._allowed_processors()
        self._process, self._thread = time.process_time(), time.thread_time()
        self._group = self._group_seconds()

    def shares(self, elapsed_seconds: float) -> tuple[float, float]:
        """The shares of processor, since the last call, and of memory that are used; to be called by the loop's thread.

        The processor is also full when the loop's own thread is: it can use no more than one."""
        process, thread, group = time.process_time(), time.thread_time(), self._group_seconds()
        spent = max((process - self._process) / self._processors, thread - self._thread)
        if group is not None and self._group is not None:
            spent = max(spent, (group - self._group) / self._processors)
        self._process, self._thread, self._group = process, thread, group
        return spent / max(elapsed_seconds, 0.001), self.memory()

    def free_bytes(self) -> int | None:
        """Our part of what the tightest limit of our cgroups, or the whole machine, has left; None if nobody tells."""
        machine = self._machine_memory()
        memories = [*self._group_memories(), *([machine] if machine is not None else [])]
        return min((max(0, memory.allowed - memory.used) // self._workers for memory in memories), default=None)

    def memory(self) -> float:
        """The share of memory in use: of the tightest limit of our cgroups, or of the whole machine."""
        shares = [memory.share for memory in self._group_memories()]
        machine = self._machine_memory()
        if machine is not None and self._resident() >= _OWN_SHARE * machine.allowed:
            shares.append(machine.share)
        return max(shares, default=0.0)

    def _membership(self) -> tuple[int, dict[str, str]]:
        """The version of cgroups that limits us, and where we are, by controller."""
        paths: dict[str, str] = {}
        for line in self._lines(self._root / "proc" / "self" / "cgroup"):
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            paths |= dict.fromkeys(controllers.split(","), path)
        return (1 if "memory" in paths or "cpu" in paths else 2), paths

    def _folders(self, controller: str) -> Iterator[Path]:
        """Our cgroup and those that it is in; only the mount where ours is not to be seen, as in a container."""
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
                # The kernel takes back what it only keeps of files before it lets anybody die.
                yield Memory(max(0, used - self._field(folder / "memory.stat", idle)), allowed)

    def _machine_memory(self) -> Memory | None:
        path = self._root / "proc" / "meminfo"
        total, left = self._field(path, "MemTotal:") * 1024, self._field(path, "MemAvailable:") * 1024
        return Memory(total - left, total) if total and left else None

    def _resident(self) -> int:
        found = next(self._lines(self._root / "proc" / "self" / "statm"), "").split()
        return int(found[1]) * os.sysconf("SC_PAGE_SIZE") if len(found) > 1 else 0

    def _allowed_processors(self) -> float:
        """How many processors' time we may use: those that we may run on, or the quota of a cgroup."""
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
        """Seconds of processor time that our cgroup has used, where a quota holds for it."""
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


class Boundless:
    """A machine that has enough of everything: what happens on it does not depend on the one that this runs on."""

    def shares(self, elapsed_seconds: float) -> tuple[float, float]:
        return 0.0, 0.0

    def free_bytes(self) -> int | None:
        return None
