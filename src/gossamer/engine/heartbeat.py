"""Heartbeat of a fleet worker: reports its state every few seconds, and watches which regions are alive."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from gossamer.clock import Clock
from gossamer.engine.regions import Places
from gossamer.errors import FrontierError
from gossamer.frontier.base import FleetFrontier
from gossamer.model import Heartbeat
from gossamer.settings import VERSION

log = logging.getLogger("gossamer.pulse")
EVERY_SECONDS = 5.0
LIVE_SECONDS = 16.0
"""A worker that has been silent for longer has missed three pulses, and is taken for dead."""
_LOOK_EVERY = 2
_LAST_SECONDS = 2.0


def is_live(pulse: Heartbeat, *, within: float = LIVE_SECONDS) -> bool:
    """Whether a worker has been heard of lately, and has not said that it leaves."""
    return not pulse.left and pulse.silent <= within


def live_regions(pulses: Iterable[Heartbeat], *, within: float = LIVE_SECONDS) -> frozenset[str]:
    """The regions that have a live worker."""
    return frozenset(pulse.region for pulse in pulses if pulse.region and is_live(pulse, within=within))


class Measured(Protocol):
    """What a pulse says of an engine."""

    @property
    def accepted(self) -> int: ...

    @property
    def stale(self) -> int: ...

    @property
    def active(self) -> int: ...

    @property
    def fetching(self) -> int: ...

    @property
    def limit(self) -> int: ...


class HeartbeatSender:
    """Sends the pulses of one worker.

    With `places` it also looks which regions are alive, and notes the others there for the engine to lease from."""

    def __init__(
        self,
        fleet: FleetFrontier,
        engine: Measured,
        *,
        pulse: Heartbeat,
        clock: Clock,
        places: Places | None = None,
        refused: Mapping[str, int] | None = None,
        every: float = EVERY_SECONDS,
    ) -> None:
        self._fleet = fleet
        self._engine = engine
        self._pulse = pulse
        self._clock = clock
        self._places = places
        self._refused = {} if refused is None else refused
        self._every = every
        self._began_at = self._beat_at = clock.monotonic()
        self._pages = 0
        self._processor = time.process_time()

    async def run(self) -> None:
        """Beat until cancelled. A frontier that cannot be reached hears of us when it can."""
        turn = 0
        while True:
            try:
                await self._fleet.beat(self._next())
                await self._fleet.refresh()
                await self._look_at_the_time()
                if self._places is not None and turn % _LOOK_EVERY == 0:
                    await self._look(self._places)
                turn += 1
            except FrontierError as error:
                # The engine meets it too, and says what it means.
                log.debug("no pulse: %s", error)
            await self._clock.sleep(self._pause())

    def _pause(self) -> float:
        """Seconds to the next pulse, or to the end of the job's time."""
        most = self._fleet.settings.max_seconds
        left = self._every if most is None else most - (self._clock.monotonic() - self._began_at)
        return min(self._every, left) if left > 0 else self._every

    async def _look_at_the_time(self) -> None:
        """Stop the job once it has run for as long as it may; of all workers, the one that began first is the first."""
        most = self._fleet.settings.max_seconds
        if most is not None and self._clock.monotonic() - self._began_at >= most:
            log.info("the job has run for %g seconds, and stops", most)
            await self._fleet.steer("stopping")

    async def last(self) -> None:
        """Say that this worker leaves; nobody waits for it to be heard."""
        with suppress(FrontierError, TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await self._fleet.beat(self._next(left=True))

    def _next(self, *, left: bool = False) -> Heartbeat:
        now, processor, pages = self._clock.monotonic(), time.process_time(), self._engine.accepted
        seconds = max(now - self._beat_at, 0.001)
        busy = min((processor - self._processor) / seconds, 1.0) if now > self._beat_at else 0.0
        own = self._pulse
        made = Heartbeat(
            worker=own.worker,
            region=own.region,
            shards=own.shards,
            version=VERSION,
            host=os.uname().nodename,
            pid=os.getpid(),
            up_seconds=round(now - self._began_at, 1),
            pages=pages,
            rate=round((pages - self._pages) / seconds, 2) if now > self._beat_at else 0.0,
            active=0 if left else self._engine.active,
            stale=self._engine.stale,
            memory_bytes=_memory_bytes(),
            idle=pages == self._pages and self._engine.active == 0,
            fetching=0 if left else self._engine.fetching,
            limit=self._engine.limit,
            load=round(busy, 3),
            refused=dict(self._refused),
            left=left,
        )
        self._beat_at, self._processor, self._pages = now, processor, pages
        return made

    async def _look(self, places: Places) -> None:
        within = LIVE_SECONDS * self._every / EVERY_SECONDS
        places.live = live_regions(await self._fleet.workers(), within=within)
        # Where a whole fleet is started at once, the workers of other regions may still be on their way.
        if self._clock.monotonic() - self._began_at > within:
            shards = await self._fleet.shards()
            waiting = {name for shard in shards for name, view in shard.regions.items() if view.ready or view.later}
            places.also = frozenset(waiting - places.live - {places.here, ""})


@asynccontextmanager
async def beating(heart: HeartbeatSender) -> AsyncIterator[None]:
    """Beat for as long as the block lasts, and once more at its end."""
    task = asyncio.create_task(heart.run())
    try:
        yield
    finally:
        # More than once: a driver may take a cancellation that comes in the middle of its work for its own, and go on.
        while not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=0.2)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("this worker had stopped to tell how it is: %s", error)
        await heart.last()


def _memory_bytes() -> int:
    """What this process holds in memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
