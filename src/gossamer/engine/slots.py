"""Places for fetches: how many may be under way at once, fewer while the machine cannot keep up, and more again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Protocol

from gossamer.clock import Clock

log = logging.getLogger("gossamer.engine")
FLOOR = 8
"""So many fetches are always allowed, if the setting allows them: a crawl goes on, however slowly."""
LAG_SECONDS, BUSY_LAG_SECONDS, CALM_LAG_SECONDS = 0.5, 0.2, 0.1
BUSY = 0.9
FULL_MEMORY, HIGH_MEMORY, CALM_MEMORY = 0.95, 0.9, 0.85
SAMPLES, SAMPLE_SECONDS = 5, 0.2


class Load(NamedTuple):
    """How a worker is: the lag of its event loop, and the shares of processor and memory that are used."""

    lag_seconds: float
    processor: float = 0.0
    memory: float = 0.0


class Measures(Protocol):
    """Something that tells processor and memory since it was last asked, and what of memory is left for a worker."""

    def shares(self, elapsed_seconds: float) -> tuple[float, float]: ...

    def free_bytes(self) -> int | None: ...


def next_limit(limit: int, load: Load, *, most: int, used: int) -> int:
    """How many fetches at once are right after a second with this load, in which up to `used` were under way.

    Down by a tenth while the loop lags or memory is short, by half when it is nearly gone; up by a tenth only when all
    is calm and the places were used. A busy processor alone changes nothing: that is what it is for."""
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
    """How many fetches at once to begin with: all of them may be pages of `page_bytes`, which cost up to twice that.

    Without this a small container would be full before the first second is over."""
    if free_bytes is None:
        return most
    return max(min(FLOOR, most), min(most, int(free_bytes * CALM_MEMORY / (2 * page_bytes))))


class Slots:
    """A semaphore whose limit can change; lowering it takes no place away that is in use."""

    def __init__(self, most: int) -> None:
        self.most = self.limit = most
        self.used = 0
        self.peak = 0
        self.crowded = asyncio.Event()
        """Set while at least FLOOR places are used: with fewer there is nothing to regulate."""
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
        """Whether nobody is there, and nobody waits."""
        return not self.used and not self._waiting

    def resize(self, limit: int) -> None:
        """Allow this many from now on."""
        self.limit = limit
        self._let_in()

    def _take(self) -> None:
        self.used += 1
        self.peak = max(self.peak, self.used)
        if self.used >= FLOOR:
            self.crowded.set()

    def _leave(self) -> None:
        self.used -= 1
        if self.used < FLOOR:
            self.crowded.clear()
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self.used < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                self._take()
                place.set_result(None)


async def regulate(slots: Slots, measures: Measures, clock: Clock, *, changed: Callable[[], None]) -> None:
    """Keep the limit right for as long as it runs; `changed` hears of every new one."""
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
                "fewer fetches at once: the loop lags by %.2f s, processor %.0f %%, memory %.0f %%",
                load.lag_seconds,
                100 * load.processor,
                100 * load.memory,
            )
        slots.resize(limit)
        changed()
