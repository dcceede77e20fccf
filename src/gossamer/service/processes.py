"""What this machine tells of the processes of a crawl: their memory, and the share of a processor that they use."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gossamer.clock import Clock
from gossamer.model import Pulse
from gossamer.settings import VERSION


class Processes:
    """Looks at processes again and again; between two looks lies what they used."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[float, float]] = {}

    def pulses(self, processes: Mapping[str, int]) -> list[Pulse]:
        """What workers of a fleet would tell of themselves, as far as it can be seen from here."""
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in processes.values()}
        return [self._pulse(name, pid) for name, pid in processes.items()]

    def _pulse(self, name: str, pid: int) -> Pulse:
        memory, used, up = _look(pid)
        now = self._clock.monotonic()
        before, at = self._seen.get(pid, (used, now))
        # Two looks in one moment tell nothing: the older one stays.
        if now - at > 0.5 or pid not in self._seen:
            self._seen[pid] = (used, now)
        load = (used - before) / (now - at) if now - at > 0.5 else 0.0
        return Pulse(
            worker=name,
            version=VERSION,
            host=os.uname().nodename,
            pid=pid,
            memory_bytes=memory,
            load=round(min(max(load, 0.0), 64.0), 3),
            up_seconds=round(up, 1),
        )


def _look(pid: int) -> tuple[int, float, float]:
    """Bytes in memory, seconds of processor used, seconds since its start; zeros where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/uptime", "rb") as file:
            uptime = float(file.read().split()[0])
    except (OSError, IndexError, ValueError):
        return 0, 0.0, 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    return memory, (int(fields[11]) + int(fields[12])) / ticks, max(0.0, uptime - int(fields[19]) / ticks)
