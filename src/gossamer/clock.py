"""Time, which is passed in everywhere so that it can be virtual."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Two readings and a wait: waits and leases use `monotonic`, records use `epoch`."""

    def monotonic(self) -> float: ...

    def epoch(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


def _sleepless() -> Callable[[], float]:
    """A clock that goes on while the machine sleeps: a lease expires meanwhile, and its holder must know it."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC") if sys.platform in ("linux", "darwin") else ():
        if (number := getattr(time, name, None)) is not None:
            return partial(time.clock_gettime, number)
    return time.monotonic


_monotonic = _sleepless()


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return _monotonic()

    def epoch(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that moves only when a test moves it; sleeping moves it too."""

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
