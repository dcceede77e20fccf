"""The past of a job in numbers: rings of steps at three paces, which take the same memory however long they turn."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import isnan, nan

from gossamer.service.views import Series

PACES = {1: 600, 10: 360, 60: 1440}
"""Seconds a step -> how many steps are kept."""
SUMS = (
    "pages", "bytes", "ok", "redirects", "client_errors", "server_errors", "faults", "skipped", "answers",
    "latency_sum",
)  # fmt: skip
LEVELS = ("queued", "known", "stored", "failed", "active_sites", "workers")
_WIDTH = len(SUMS) + len(LEVELS)
_PLACES = {name: number for number, name in enumerate((*SUMS, *LEVELS))}


class RingBuffer:
    """Steps of one length. What is older than the ring is long has no place, and is not counted."""

    def __init__(self, step: int, length: int) -> None:
        self._step = step
        self._length = length
        self._turns = array("q", [-1]) * length
        self._values = array("d", [nan]) * (length * _WIDTH)
        self._newest = -1

    def add(self, at: float, sums: Mapping[str, float]) -> None:
        """Count something that happened at this time."""
        base = self._slot(at)
        if base is not None:
            for name, value in sums.items():
                place = base + _PLACES[name]
                self._values[place] = value if isnan(self._values[place]) else self._values[place] + value

    def level(self, at: float, levels: Mapping[str, float]) -> None:
        """Note how things stand at this time; the last note of a step counts."""
        base = self._slot(at)
        if base is not None:
            for name, value in levels.items():
                self._values[base + _PLACES[name]] = value

    def _slot(self, at: float) -> int | None:
        turn = int(at // self._step)
        if turn <= self._newest - self._length or turn < 0:
            return None
        place = turn % self._length
        base = place * _WIDTH
        if self._turns[place] != turn:
            self._turns[place] = turn
            self._values[base : base + _WIDTH] = array("d", [nan]) * _WIDTH
        self._newest = max(self._newest, turn)
        return base

    def read(self, now: float, steps: int, *, counted_since: float | None) -> tuple[float, Series]:
        """The last steps that are whole, the oldest first, and when they begin.

        From `counted_since` on a step in which nothing happened counts as 0; before that nothing is known."""
        last = int(now // self._step)
        first = last - min(steps, self._length - 1)
        columns: dict[str, list[float | None]] = {name: [] for name in (*SUMS, *LEVELS)}
        for turn in range(first, last):
            base = (turn % self._length) * _WIDTH
            is_there = self._turns[turn % self._length] == turn
            begins = turn * self._step
            for name, place in _PLACES.items():
                value = self._values[base + place] if is_there else nan
                if isnan(value):
                    is_counted = name in SUMS and counted_since is not None and begins + self._step > counted_since
                    columns[name].append(0.0 if is_counted else None)
                else:
                    columns[name].append(value)
        answers, sums = columns.pop("answers"), columns.pop("latency_sum")
        latency = [
            round(total / number, 4) if total is not None and number else None
            for total, number in zip(sums, answers, strict=True)
        ]
        return float(first * self._step), Series(latency=latency, **columns)


class TimeSeries:
    """The rings of one job, filled together."""

    def __init__(self) -> None:
        self._rings = {step: RingBuffer(step, length) for step, length in PACES.items()}
        self.counted_since: float | None = None

    def add(self, at: float, sums: Mapping[str, float]) -> None:
        """Count something that happened at this time."""
        self.counted_since = at if self.counted_since is None else min(at, self.counted_since)
        for ring in self._rings.values():
            ring.add(at, sums)

    def level(self, at: float, levels: Mapping[str, float]) -> None:
        """Note how things stand at this time."""
        self.counted_since = at if self.counted_since is None else min(at, self.counted_since)
        for ring in self._rings.values():
            ring.level(at, levels)

    def read(self, step: int, now: float, steps: int) -> tuple[float, Series]:
        """The last whole steps at this pace, and when they begin."""
        return self._rings[step].read(now, steps, counted_since=self.counted_since)
