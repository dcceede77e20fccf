"""The interface between a backend and the suites: open a frontier, advance its clock, kill and reopen it."""

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
"""Duration of the suites' leases, in ticks; the delay is one tick unless a test sets another one."""


class Harness:
    """One open frontier under test. Override what your backend supports; other tests are skipped with a reason."""

    durable = True
    """Whether acknowledged changes survive the death of all processes (P7)."""

    rests_after_crash = True
    """Whether every site rests after a crash; False for a store that outlives its clients and keeps their leases."""

    rest_beyond_lease = 0.0
    """Ticks that sites rest after `forget`, beyond the longest lease."""

    one_store = True
    """Whether one store orders and admits all sites; False if the sites are in several shards."""

    hastens = True
    """Whether a hint of a change advances a page's next visit."""

    frontier: Frontier

    async def advance(self, seconds: float) -> None:
        """Advance the store's time: move a virtual clock, or sleep."""
        raise NotImplementedError

    async def reopen(self, settings: Settings | None = None) -> None:
        """Kill every process as with `kill -9`, and reopen the frontier, optionally with other settings."""
        raise SkipTest("this backend cannot be killed and reopened")

    async def remember(self) -> None:
        """Save the state that `forget` restores."""
        raise SkipTest("this backend cannot lose acknowledged writes")

    async def forget(self) -> None:
        """Make the store lose all writes since `remember`, as a power cut or a fail-over does.

        The clock continues. Clients reach the store in its next run, or are reopened if the store dies with them."""
        raise SkipTest("this backend cannot lose acknowledged writes")

    async def set_back(self, seconds: float) -> None:
        """Set the wall clock back; the clock that measures leases and delays continues."""
        raise SkipTest("the clock of this backend cannot be set")

    async def worker(self, name: str) -> Frontier:
        """The frontier of another worker."""
        raise SkipTest("this backend supports one worker only")

    async def lose(self, worker: Frontier) -> None:
        """Kill one worker in a way that the store notices at once, as when its connection ends."""
        raise SkipTest("this backend does not detect dead workers")

    async def steer(self, job: JobState) -> None:
        """Pause, resume, or stop the job."""
        raise SkipTest("this backend cannot be paused or stopped")

    async def marks(self) -> Mapping[str, int]:
        """The last committed lengths of the output files."""
        raise SkipTest("this backend stores no marks")


S = TypeVar("S", bound="Suite")


class Suite:
    """Base of all suites; a backend implements `open`."""

    tick = 1.0
    """Length of a tick in seconds; small if `advance` really sleeps."""

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        """Open an empty frontier with these settings, and delete it afterwards."""
        raise NotImplementedError

    def settings(self, **values: Any) -> Settings:
        """Settings with durations given in ticks."""
        delay = values.pop("delay", 1.0)
        return Settings(delay=delay * self.tick, **values)

    async def lease(self, frontier: Frontier, limit: int = 100, *, batch: int = 100, ticks: float = LEASE) -> Grant:
        return await frontier.lease(limit, batch=batch, seconds=ticks * self.tick)

    async def one(self, frontier: Frontier, *, batch: int = 100, ticks: float = LEASE) -> Lease:
        """Lease the only ready lane."""
        grant = await self.lease(frontier, batch=batch, ticks=ticks)
        assert len(grant.leases) == 1, grant
        return grant.leases[0]

    async def none(self, frontier: Frontier) -> Grant:
        """Check that no lane is ready."""
        grant = await self.lease(frontier)
        assert grant.leases == (), grant
        return grant

    def must_be_durable(self, harness: Harness) -> None:
        """Skip a test that needs a durable backend."""
        if not harness.durable:
            raise SkipTest("this backend is not durable")

    def must_rest_after_a_crash(self, harness: Harness) -> None:
        """Skip a test that needs a backend whose lanes rest after a crash."""
        self.must_be_durable(harness)
        if not harness.rests_after_crash:
            raise SkipTest("this backend keeps the clocks of its lanes")

    def must_be_one_store(self, harness: Harness) -> None:
        """Skip a test that needs one store for all sites."""
        if not harness.one_store:
            raise SkipTest("the sites are in several shards")

    async def past(self, harness: Harness, ticks: float) -> None:
        """Check that nothing can be leased before `ticks` have passed, and advance to just after that."""
        await harness.advance(0.9 * ticks * self.tick)
        await self.none(harness.frontier)
        await harness.advance((0.1 * ticks + 0.1) * self.tick)


def scenario(**values: Any) -> Callable[[Callable[[S, Harness], Coroutine[Any, Any, None]]], Callable[[S], None]]:
    """Decorator: run a coroutine as a test, with a harness that is opened with these settings."""

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
    """A request with a URL derived from its key."""
    return Request(f"http://{site}/{key}", key, site, **values)


def pages(*keys: int, site: str = "a.example") -> list[Request]:
    """Requests of one site."""
    return [page(key, site) for key in keys]


def outcome(lease: Lease, key: int, status: Status = "done", **values: Any) -> Outcome:
    """The outcome of one request of a lease."""
    return Outcome(site=lease.site, lane=lease.lane, token=lease.token, key=key, status=status, **values)


def outcomes(lease: Lease, status: Status = "done", **values: Any) -> list[Outcome]:
    """The outcomes of all requests of a lease."""
    return [outcome(lease, request.key, status, **values) for request in lease.requests]


def note(lease: Lease, **values: Any) -> SiteNote:
    """A note about a site, from the holder of a lease."""
    return SiteNote(site=lease.site, lane=lease.lane, token=lease.token, **values)


def keys(*leases: Lease) -> list[int]:
    """The keys of leases, in fetching order."""
    return [request.key for lease in leases for request in lease.requests]
