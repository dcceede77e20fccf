"""What a backend gives its tests: a frontier to use, a clock to move, and a way to be killed and opened again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar
from unittest import SkipTest

from gossamer.frontier.base import Frontier
from gossamer.model import Grant, JobState, Lease, Outcome, Request, SiteNote, Status
from gossamer.settings import Settings

LEASE = 10.0
"""How long the suites lease, in ticks; the delay is one tick unless a test says otherwise."""


class Harness:
    """One open frontier under test. A backend overrides what it can do; what it cannot is skipped aloud."""

    durable = True
    """Whether acknowledged changes outlive the processes (P7)."""

    rests_after_crash = True
    """Whether every site rests after a crash; a store that outlives its clients knows which lanes they held."""

    one_store = True
    """Whether the store sees all sites at once; where there are shards, each orders and admits only its own."""

    hastens = True
    """Whether a hint that a page has changed brings its next visit forward."""

    frontier: Frontier

    async def advance(self, seconds: float) -> None:
        """Let the store's time pass: move a virtual clock, or sleep."""
        raise NotImplementedError

    async def reopen(self, settings: Settings | None = None) -> None:
        """Kill every process as `kill -9` would, and open the same frontier anew, perhaps with other settings."""
        raise SkipTest("this backend cannot be killed and opened again")

    async def remember(self) -> None:
        """Note the state that `forget` falls back to."""
        raise SkipTest("this backend cannot be made to forget")

    async def forget(self) -> None:
        """Have the store lose all that it has acknowledged since `remember`, as a power cut or a fail-over does.

        The clock goes on; clients meet a store in its next life, or have to be opened anew, where it dies with them."""
        raise SkipTest("this backend cannot be made to forget")

    async def set_back(self, seconds: float) -> None:
        """Set the wall clock back; the time that leases and delays are measured in goes on."""
        raise SkipTest("the clock of this backend cannot be set")

    async def worker(self, name: str) -> Frontier:
        """The same frontier, as another worker sees it."""
        raise SkipTest("this backend has one worker")

    async def lose(self, worker: Frontier) -> None:
        """Kill one worker so that the store notices at once, as when its connection ends."""
        raise SkipTest("this backend does not notice that a worker is gone")

    async def steer(self, job: JobState) -> None:
        """Pause, resume or stop the job."""
        raise SkipTest("this backend cannot be steered")

    async def marks(self) -> Mapping[str, int]:
        """The lengths of the output files, as they were last committed."""
        raise SkipTest("this backend keeps no marks")


S = TypeVar("S", bound="Suite")


class Suite:
    """What all suites share. `open` is the backend's part."""

    tick = 1.0
    """Seconds that stand for one in the tests: small where `advance` really sleeps."""

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        """Open an empty frontier with these settings, and throw it away afterwards."""
        raise NotImplementedError

    def settings(self, **values: Any) -> Settings:
        """Settings with durations given in ticks."""
        delay = values.pop("delay", 1.0)
        return Settings(delay=delay * self.tick, **values)

    async def lease(self, frontier: Frontier, limit: int = 100, *, batch: int = 100, ticks: float = LEASE) -> Grant:
        return await frontier.lease(limit, batch=batch, seconds=ticks * self.tick)

    async def one(self, frontier: Frontier, *, batch: int = 100, ticks: float = LEASE) -> Lease:
        """The one lane that is ready."""
        grant = await self.lease(frontier, batch=batch, ticks=ticks)
        assert len(grant.leases) == 1, grant
        return grant.leases[0]

    async def none(self, frontier: Frontier) -> Grant:
        """Nothing is ready."""
        grant = await self.lease(frontier)
        assert grant.leases == (), grant
        return grant

    def must_be_durable(self, harness: Harness) -> None:
        """Skip, aloud, what only a durable backend promises."""
        if not harness.durable:
            raise SkipTest("this backend dies with its process")

    def must_rest_after_a_crash(self, harness: Harness) -> None:
        """Skip, aloud, what only a backend does that loses its clocks with its process."""
        self.must_be_durable(harness)
        if not harness.rests_after_crash:
            raise SkipTest("this backend keeps its lanes' clocks")

    def must_be_one_store(self, harness: Harness) -> None:
        """Skip, aloud, what shards promise each for its own sites only."""
        if not harness.one_store:
            raise SkipTest("the sites are in several shards")

    async def past(self, harness: Harness, ticks: float) -> None:
        """Check that nothing can be leased until just before `ticks` are over, and go to just after them."""
        await harness.advance(0.9 * ticks * self.tick)
        await self.none(harness.frontier)
        await harness.advance((0.1 * ticks + 0.1) * self.tick)


def scenario(**values: Any) -> Callable[[Callable[[S, Harness], Coroutine[Any, Any, None]]], Callable[[S], None]]:
    """Make a plain test of a coroutine that gets a harness, opened with these settings."""

    def decorate(test: Callable[[S, Harness], Coroutine[Any, Any, None]]) -> Callable[[S], None]:
        async def play(suite: S) -> None:
            async with suite.open(suite.settings(**values)) as harness:
                await test(suite, harness)

        def run(self: S) -> None:
            asyncio.run(play(self))

        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run.__module__ = test.__module__
        return run

    return decorate


def page(key: int, site: str = "a.example", **values: Any) -> Request:
    """A request whose URL follows from its key."""
    return Request(f"http://{site}/{key}", key, site, **values)


def pages(*keys: int, site: str = "a.example") -> list[Request]:
    """Requests of one site."""
    return [page(key, site) for key in keys]


def outcome(lease: Lease, key: int, status: Status = "done", **values: Any) -> Outcome:
    """What became of one request of a lease."""
    return Outcome(site=lease.site, lane=lease.lane, token=lease.token, key=key, status=status, **values)


def outcomes(lease: Lease, status: Status = "done", **values: Any) -> list[Outcome]:
    """The same for all requests of a lease."""
    return [outcome(lease, request.key, status, **values) for request in lease.requests]


def note(lease: Lease, **values: Any) -> SiteNote:
    """What the holder of a lease learned about its site."""
    return SiteNote(site=lease.site, lane=lease.lane, token=lease.token, **values)


def keys(*leases: Lease) -> list[int]:
    """The keys of leases, in the order in which they are to be fetched."""
    return [request.key for lease in leases for request in lease.requests]
