"""Clocks: time is passed in everywhere, so that it can be virtual."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Two readings and a wait: `monotonic` for waits and leases, `epoch` for records."""

    def monotonic(self) -> float: ...

    def epoch(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


def _sleepless() -> Callable[[], float]:
    """Return a clock that runs while the machine is suspended: leases expire meanwhile, and their holders must see
    it."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC") if sys.platform in ("linux", "darwin") else ():
        if (number := getattr(time, name, None)) is not None:
            return partial(time.clock_gettime, number)
    return time.monotonic


_monotonic = _sleepless()


class SystemClock:
    """The system's clock."""

    def monotonic(self) -> float:
        return _monotonic()

    def epoch(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that moves only when a test advances it; sleeping advances it, too."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self.now = start

    def monotonic(self) -> float:
        return self.now

    def epoch(self) -> float:
        return 1_700_000_000.0 + self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)
