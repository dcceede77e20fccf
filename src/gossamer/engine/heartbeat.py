"""Heartbeat of a fleet worker: reports its state every few seconds, and reads which regions are alive."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from gossamer.clock import Clock
from gossamer.engine.regions import RegionContext
from gossamer.errors import FrontierError
from gossamer.frontier.base import FleetFrontier
from gossamer.model import Heartbeat
from gossamer.settings import VERSION

log = logging.getLogger("gossamer.pulse")
EVERY_SECONDS = 5.0
LIVE_SECONDS = 16.0
"""Seconds of silence, about three missed heartbeats, after which a worker counts as dead."""
_LOOK_EVERY = 2
_LAST_SECONDS = 2.0


def is_live(heartbeat: Heartbeat, *, within: float = LIVE_SECONDS) -> bool:
    """Return whether a worker sent a heartbeat recently, and has not signed off."""
    return not heartbeat.left and heartbeat.silent <= within


def live_regions(seen: Iterable[Heartbeat], *, within: float = LIVE_SECONDS) -> frozenset[str]:
    """Return the regions that have a live worker."""
    return frozenset(heartbeat.region for heartbeat in seen if heartbeat.region and is_live(heartbeat, within=within))


class EngineFigures(Protocol):
    """The figures of an engine that a heartbeat reports."""

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
    """Sends the heartbeats of one worker.

    With `places` it also reads which regions are alive, and stores the others there for the engine to lease from."""

    def __init__(
        self,
        fleet: FleetFrontier,
        engine: EngineFigures,
        *,
        heartbeat: Heartbeat,
        clock: Clock,
        places: RegionContext | None = None,
        refused: Mapping[str, int] | None = None,
        every: float = EVERY_SECONDS,
    ) -> None:
        self._fleet = fleet
        self._engine = engine
        self._identity = heartbeat
        self._clock = clock
        self._places = places
        self._refused = {} if refused is None else refused
        self._every = every
        self._began_at = self._beat_at = clock.monotonic()
        self._pages = 0
        self._processor = time.process_time()

    async def run(self) -> None:
        """Send heartbeats until cancelled. While the frontier is unreachable, it retries at the next heartbeat."""
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
                # The engine gets the same error, and reports it.
                log.debug("could not send a heartbeat: %s", error)
            await self._clock.sleep(self._pause())

    def _pause(self) -> float:
        """Return the seconds to the next heartbeat, or to the end of the job's time."""
        most = self._fleet.settings.max_seconds
        left = self._every if most is None else most - (self._clock.monotonic() - self._began_at)
        return min(self._every, left) if left > 0 else self._every

    async def _look_at_the_time(self) -> None:
        """Stop the job after `max_seconds`. The worker that started first is the first to do so."""
        most = self._fleet.settings.max_seconds
        if most is not None and self._clock.monotonic() - self._began_at >= most:
            log.info("stopping the job after %g seconds (max_seconds)", most)
            await self._fleet.steer("stopping")

    async def last(self) -> None:
        """Send a last heartbeat that signs this worker off; gives up after a short time."""
        with suppress(FrontierError, TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await self._fleet.beat(self._next(left=True))

    def _next(self, *, left: bool = False) -> Heartbeat:
        now, processor, pages = self._clock.monotonic(), time.process_time(), self._engine.accepted
        seconds = max(now - self._beat_at, 0.001)
        busy = min((processor - self._processor) / seconds, 1.0) if now > self._beat_at else 0.0
        own = self._identity
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

    async def _look(self, places: RegionContext) -> None:
        within = LIVE_SECONDS * self._every / EVERY_SECONDS
        places.live = live_regions(await self._fleet.workers(), within=within)
        # When a whole fleet is started at once, the workers of other regions may still be starting.
        if self._clock.monotonic() - self._began_at > within:
            shards = await self._fleet.shards()
            waiting = {name for shard in shards for name, view in shard.regions.items() if view.ready or view.later}
            places.also = frozenset(waiting - places.live - {places.here, ""})


@asynccontextmanager
async def heartbeats(heart: HeartbeatSender) -> AsyncIterator[None]:
    """Send heartbeats for the duration of the block, and a last one at its end."""
    task = asyncio.create_task(heart.run())
    try:
        yield
    finally:
        # More than once: a driver may treat a cancellation in the middle of its work as its own, and go on.
        while not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=0.2)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("this worker had stopped sending heartbeats: %s", error)
        await heart.last()


def _memory_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 where the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
