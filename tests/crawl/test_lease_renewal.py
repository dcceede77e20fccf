from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import msgspec

from gossamer.clock import ManualClock
from gossamer.download.client import HttpDownloader
from gossamer.download.connections import Connection
from gossamer.download.dns import ResolvedName
from gossamer.engine.commit import FleetStore
from gossamer.engine.visit import Visit
from gossamer.frontier.base import Frontier
from gossamer.frontier.embedded.frontier import EmbeddedFrontier, open_memory
from gossamer.jobs.worker import build_worker
from gossamer.model import Lease, Request, Response
from gossamer.settings import Settings
from gossamer.testing.harness import keys, pages

SETTINGS = Settings(lease_seconds=60.0, connect_seconds=3.0)


class Stingy:
    """A frontier that gives less time than is asked for."""

    def __init__(self, frontier: EmbeddedFrontier, ttl: float) -> None:
        self._frontier = frontier
        self._ttl = ttl
        self.asked = asyncio.Event()

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        ours = await self._frontier.extend(leases, seconds=seconds)
        self.asked.set()
        return [msgspec.structs.replace(lease, ttl=min(lease.ttl, self._ttl)) for lease in ours]


def test_a_renewed_lease_lasts_as_long_as_the_frontier_grants() -> None:
    async def run() -> None:
        clock = ManualClock()
        memory = open_memory(SETTINGS, clock=clock, secret=b"s" * 16)
        await memory.add(pages(1))
        (lease,) = (await memory.lease(1, batch=1, seconds=60.0)).leases
        frontier = Stingy(memory, 21.0)
        store = FleetStore(memory, [])
        async with build_worker(
            cast(Frontier, frontier), store, settings=SETTINGS, secret=b"s" * 16, clock=clock
        ) as engine:
            visit = engine._visits[lease.token] = Visit(lease, engine._context, sent_at=clock.monotonic())
            asked_at = clock.monotonic() + 20.0
            renewing = asyncio.create_task(engine._renew())
            await frontier.asked.wait()
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            assert visit.deadline == asked_at + 21.0 - 3.0

    asyncio.run(run())


class Web:
    """Answers when the test says so, and notes when it was asked."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.asked_at: list[float] = []
        self.answers = asyncio.Event()
        self.asked = asyncio.Event()

    async def fetch(self, request: Request) -> Response:
        self.asked_at.append(self._clock.monotonic())
        self.asked.set()
        await self.answers.wait()
        return Response(url=request.url, status=404, headers_at=self._clock.monotonic())


def test_a_visit_rests_after_the_request_of_an_earlier_one_whose_lease_expired() -> None:
    """The process was stopped between the last check of the lease and the request, for longer than the lease."""

    async def run() -> None:
        clock = ManualClock()
        web = Web(clock)
        settings = msgspec.structs.replace(SETTINGS, delay=5.0, robots=False, sitemaps=False)
        memory = open_memory(settings, clock=clock, secret=b"s" * 16)
        await memory.add(pages(1))
        async with build_worker(
            memory, FleetStore(memory, []), settings=settings, secret=b"s" * 16, clock=clock
        ) as engine:
            context = engine._context
            context.fetch = web.fetch
            (lease,) = (await memory.lease(1, batch=1, seconds=60.0)).leases
            earlier = asyncio.create_task(Visit(lease, context, sent_at=clock.monotonic()).run())
            await web.asked.wait()
            clock.advance(70.0)
            (lease,) = (await memory.lease(1, batch=1, seconds=60.0)).leases
            visit = Visit(lease, context, sent_at=clock.monotonic())
            later = asyncio.create_task(visit.run())
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(web.asked_at) == 1, "the later visit waits for the answer to the request that is under way"
            clock.advance(2.0)
            resting = asyncio.Event()
            context.went_to_sleep = resting.set
            web.answers.set()
            await earlier
            await resting.wait()
            assert (len(web.asked_at), visit._delay.wait()) == (1, 5.0), "and the delay counts from there"
            later.cancel()

    asyncio.run(run())


def test_a_request_is_not_sent_when_the_lease_expired_on_its_way_to_the_wire() -> None:
    """While a name was resolved, or a client was built: the downloader asks once more before it sends."""

    async def run() -> None:
        clock = ManualClock()
        web = Web(clock)
        settings = msgspec.structs.replace(SETTINGS, robots=False, sitemaps=False, resolve=("a.example=127.0.0.1",))
        settings = msgspec.structs.replace(settings, allow_private=True)
        memory = open_memory(settings, clock=clock, secret=b"s" * 16)
        await memory.add(pages(1))
        downloader = HttpDownloader(settings, clock)

        async def resolve(host: str) -> ResolvedName:
            clock.advance(70.0)
            return ResolvedName(("127.0.0.1",), clock.monotonic() + 60.0)

        class Watched(Connection):
            async def exchange(self, *_: object) -> None:
                web.asked_at.append(clock.monotonic())
                raise AssertionError("it was sent")

        async def connect(*_: object) -> Connection:
            return Watched(None)

        downloader._resolver.resolve = resolve  # type: ignore[method-assign]
        downloader._open = connect  # type: ignore[assignment, method-assign]
        async with build_worker(
            memory, FleetStore(memory, []), settings=settings, secret=b"s" * 16, clock=clock
        ) as engine:
            engine._context.fetch = downloader.fetch
            (lease,) = (await memory.lease(1, batch=1, seconds=60.0)).leases
            visit = Visit(lease, engine._context, sent_at=clock.monotonic())
            await visit.run()
            assert visit.lost
            assert web.asked_at == []
            (again,) = (await memory.lease(1, batch=1, seconds=60.0)).leases
            assert keys(again) == [1], "it comes back, without a fault of its own"
        await downloader.aclose()

    asyncio.run(run())
