from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import msgspec

from gossamer.assemble import worker
from gossamer.clock import ManualClock
from gossamer.engine.store import FleetStore
from gossamer.engine.visit import Visit
from gossamer.frontier.base import Frontier
from gossamer.frontier.local import LocalFrontier, open_memory
from gossamer.model import Lease
from gossamer.settings import Settings
from gossamer.testing.harness import pages

SETTINGS = Settings(lease_seconds=60.0, connect_seconds=3.0)


class Stingy:
    """A frontier that gives less time than is asked for."""

    def __init__(self, frontier: LocalFrontier, ttl: float) -> None:
        self._frontier = frontier
        self._ttl = ttl
        self.asked = asyncio.Event()

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        ours = await self._frontier.extend(leases, seconds=seconds)
        self.asked.set()
        return [msgspec.structs.replace(lease, ttl=min(lease.ttl, self._ttl)) for lease in ours]


def test_a_renewed_lease_is_ours_for_as_long_as_the_frontier_says() -> None:
    async def run() -> None:
        clock = ManualClock()
        memory = open_memory(SETTINGS, clock=clock, secret=b"s" * 16)
        await memory.add(pages(1))
        (lease,) = (await memory.lease(1, batch=1, seconds=60.0)).leases
        frontier = Stingy(memory, 21.0)
        store = FleetStore(memory, [])
        async with worker(cast(Frontier, frontier), store, settings=SETTINGS, secret=b"s" * 16, clock=clock) as engine:
            visit = engine._visits[lease.token] = Visit(lease, engine._context, sent_at=clock.monotonic())
            asked_at = clock.monotonic() + 20.0
            renewing = asyncio.create_task(engine._renew())
            await frontier.asked.wait()
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            assert visit.deadline == asked_at + 21.0 - 3.0

    asyncio.run(run())
