"""The bridge between Scrapy's reactor and the frontier, which runs in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from gossamer.clock import SystemClock
from gossamer.engine.heartbeat import HeartbeatSender, beating
from gossamer.errors import GossamerError, Unavailable
from gossamer.frontier.base import OwnedFrontier
from gossamer.model import Grant, Heartbeat, Lease, Outcome, Request
from gossamer.scrapy.options import Opened, ScrapyOptions, open_frontier
from gossamer.settings import Settings

log = logging.getLogger("gossamer.scrapy")
_TOGETHER = 500
_RETRY_MAX_SECONDS = 15.0
_LAST_SECONDS = 30.0
"""How long the end waits for a frontier that is away."""


class Receiver(Protocol):
    """Scrapy's side. Every call comes in Scrapy's own thread."""

    def opened(self, secret: bytes, settings: Settings, known: int) -> None: ...

    def arrived(self, grant: Grant, *, sent_at: float, written: int) -> None:
        """Leases, or the news that there are none; `written` parcels were stored when they were asked for."""
        ...

    def renewed(self, ends: dict[int, float], lost: Sequence[int]) -> None: ...

    def written(self, count: int, keys: Sequence[int], stale: int) -> None:
        """So many parcels are stored in all, among them requests with these keys."""
        ...

    def away(self) -> None:
        """The frontier cannot be reached, or its store was replaced: nobody knows what it has kept."""
        ...

    def failed(self, error: BaseException) -> None: ...

    def closed(self) -> None: ...


@dataclass(frozen=True, slots=True)
class BridgeMessage:
    """Something to store: requests of their own, or what became of a page, with its links."""

    requests: tuple[Request, ...] = ()
    outcome: Outcome | None = None


@dataclass(slots=True)
class _Added:
    """Requests that were stored without a page's outcome: where the store forgets them, no page brings them again."""

    requests: Sequence[Request]
    run: int
    """The life of the store that was known before, as in `Grant.run`."""
    at: float


@dataclass(slots=True)
class _Held:
    """A lease of ours, until all its requests are settled."""

    lease: Lease
    undone: set[int] = field(default_factory=set)


class FrontierBridge:
    """Leases, renews and stores for one crawl. Public methods are called in Scrapy's thread and return at once."""

    def __init__(self, options: ScrapyOptions, receiver: Receiver, soon: Callable[..., None]) -> None:
        self._options = options
        self._receiver = receiver
        self._soon = soon
        self._clock = SystemClock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gossamer-frontier", daemon=True)
        self._held: dict[int, _Held] = {}
        self._parcels: list[BridgeMessage] = []
        self._run_of_store = 0
        self._added: deque[_Added] = deque()
        """What the store may still forget, oldest first."""
        self._added_again = 0
        self._forget_seconds = 0.0
        self._hearing = asyncio.Lock()
        self._wanted = 0
        self._written = 0
        self._stale = 0
        self._accepted = 0
        self._changed = asyncio.Event()
        self._filled = asyncio.Event()
        self._closing = asyncio.Event()

    def start(self) -> None:
        """Open the frontier; the receiver is told when it is, or why it is not."""
        self._thread.start()

    def send(self, parcel: BridgeMessage) -> None:
        """Store this, in its turn: requests before any outcome that is sent later."""
        self._call(self._take, parcel)

    def want(self, lanes: int) -> None:
        """Have so many more lanes leased, as they come up."""
        self._call(self._want, lanes)

    def finish(self) -> None:
        """Store what was sent, give all leases back, and end."""
        self._call(self._close)

    def _call(self, act: Callable[..., object], *arguments: Any) -> None:
        # After the end there is nobody left to tell, and nothing to do about it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *arguments)

    def _take(self, parcel: BridgeMessage) -> None:
        self._parcels.append(parcel)
        self._filled.set()

    def _close(self) -> None:
        for event in (self._closing, self._changed, self._filled):
            event.set()

    def _want(self, lanes: int) -> None:
        if lanes > self._wanted:
            self._changed.set()
        self._wanted = lanes

    @property
    def accepted(self) -> int:
        """Outcomes that counted."""
        return self._accepted

    @property
    def stale(self) -> int:
        """Outcomes that came too late."""
        return self._stale

    @property
    def active(self) -> int:
        """Lanes that are held."""
        return len(self._held)

    @property
    def fetching(self) -> int:
        """Lanes that are held: which of them fetch is Scrapy's affair."""
        return len(self._held)

    @property
    def limit(self) -> int:
        """Lanes that are held, and those that are wanted beside them."""
        return len(self._held) + self._wanted

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._work())
        except BaseException as error:  # whatever it was, Scrapy has to hear of it and end
            self._soon(self._receiver.failed, error)
        finally:
            self._loop.close()
            self._soon(self._receiver.closed)

    async def _work(self) -> None:
        frontier = await open_frontier(self._options)
        try:
            settings = await self._begin(frontier)
            async with AsyncExitStack() as stack:
                if not isinstance(frontier, OwnedFrontier):
                    pulse = Heartbeat(worker=self._options.worker)
                    await stack.enter_async_context(
                        beating(HeartbeatSender(frontier, self, pulse=pulse, clock=self._clock))
                    )
                renewing = asyncio.create_task(self._renew(frontier, settings.lease_seconds))
                try:
                    await self._until_closed(
                        self._lease(frontier, settings), self._store(frontier, settings.commit_seconds)
                    )
                finally:
                    renewing.cancel()
                await self._last(frontier)
        finally:
            await frontier.aclose()

    async def _begin(self, frontier: Opened) -> Settings:
        if self._options.named:
            await frontier.abandon(self._options.worker)
        counts = await frontier.counts()
        if counts.job != "paused":
            await frontier.steer("running")
        settings = self._options.settings if isinstance(frontier, OwnedFrontier) else frontier.settings
        self._forget_seconds = settings.forget_seconds
        self._run_of_store = (await frontier.lease(0, batch=1, seconds=settings.lease_seconds)).run
        self._soon(self._receiver.opened, frontier.secret, settings, counts.known)
        return settings

    async def _until_closed(self, *works: Coroutine[Any, Any, None]) -> None:
        """Run these until the end, or until one of them fails; they end by themselves, and get some time for that.

        A call for leases that is cut off would leave them with nobody until they end."""
        tasks = [asyncio.create_task(work) for work in works]
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait((closing, *tasks), return_when=asyncio.FIRST_COMPLETED)
            self._close()
            await asyncio.wait(tasks, timeout=_LAST_SECONDS)
        finally:
            closing.cancel()
            for task in tasks:
                task.cancel()
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _lease(self, frontier: Opened, settings: Settings) -> None:
        while not self._closing.is_set():
            if self._wanted <= 0:
                await self._some_change()
                continue
            wanted, sent_at, written = self._wanted, self._clock.monotonic(), self._written
            added_again = self._added_again
            self._changed.clear()
            try:
                grant = await frontier.lease(wanted, batch=settings.batch, seconds=settings.lease_seconds)
            except Unavailable as error:
                log.warning("waiting for the frontier: %s", error)
                self._soon(self._receiver.away)
                await self._clock.sleep(1.0)
                continue
            for lease in grant.leases:
                self._held[lease.token] = _Held(lease, {request.key for request in lease.requests})
            await self._heard(frontier, grant.run)
            if self._added_again != added_again and not grant.leases:
                # What it says of the job is from before.
                continue
            # What more is wanted, Scrapy's side knows when it has these.
            self._wanted = 0 if grant.leases else wanted
            self._soon(lambda g=grant, s=sent_at, w=written: self._receiver.arrived(g, sent_at=s, written=w))
            if not grant.leases:
                await self._idle(frontier, grant)

    async def _heard(self, frontier: Opened, run: int) -> None:
        """Take note of the life of the store that has answered: another one may lack what was acknowledged last.

        Pages that it lacks come again with their links; requests of their own are stored again from here."""
        async with self._hearing:
            if run != self._run_of_store:
                self._run_of_store = run
                self._soon(self._receiver.away)
            for added in list(self._added):
                while added.run != run:
                    try:
                        await frontier.add(added.requests)
                    except Unavailable as error:
                        log.warning("waiting to store %d requests again: %s", len(added.requests), error)
                        await self._clock.sleep(1.0)
                    else:
                        added.run, added.at = run, self._clock.monotonic()
                        self._added_again += 1
            since = self._clock.monotonic() - self._forget_seconds
            while self._added and self._added[0].at < since:
                self._added.popleft()

    async def _some_change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def _idle(self, frontier: Opened, grant: Grant) -> None:
        waiting = asyncio.create_task(frontier.idle(grant))
        changed = asyncio.create_task(self._some_change())
        try:
            await asyncio.wait((waiting, changed), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                with suppress(Unavailable):
                    waiting.result()
        finally:
            waiting.cancel()
            changed.cancel()

    async def _renew(self, frontier: Opened, seconds: float) -> None:
        """Extend all leases at a third of their time, however long their pages take to be handled."""
        while True:
            await self._clock.sleep(seconds / 3)
            held = [each.lease for each in self._held.values()]
            if not held:
                continue
            sent_at = self._clock.monotonic()
            try:
                ours = await frontier.extend(held, seconds=seconds)
            except Unavailable as error:
                log.warning("leases could not be renewed: %s", error)
                continue
            ends = {lease.token: sent_at + lease.ttl for lease in ours}
            lost = [lease.token for lease in held if lease.token not in ends and lease.token in self._held]
            for token in lost:
                del self._held[token]
            self._soon(self._receiver.renewed, ends, lost)

    async def _store(self, frontier: Opened, every: float) -> None:
        """Store parcels, many at a time; at the end whatever there is."""
        while not (self._closing.is_set() and not self._parcels):
            await self._filled.wait()
            if not self._closing.is_set():
                await self._clock.sleep(every)
            self._filled.clear()
            some, self._parcels = self._parcels[:_TOGETHER], self._parcels[_TOGETHER:]
            if self._parcels or self._closing.is_set():
                self._filled.set()
            if some:
                try:
                    await self._write(frontier, some)
                except BaseException:
                    self._parcels[:0] = some
                    raise

    async def _write(self, frontier: Opened, parcels: list[BridgeMessage]) -> None:
        requests = [request for parcel in parcels for request in parcel.requests]
        outcomes = [parcel.outcome for parcel in parcels if parcel.outcome is not None]
        wait, counted = 0.5, 0
        while True:
            try:
                if requests:
                    # First: an outcome may speak of a page that these come from.
                    run, at = self._run_of_store, self._clock.monotonic()
                    await frontier.add(requests)
                    self._added.append(_Added(requests, run, at))
                if outcomes:
                    receipt = await frontier.complete(outcomes)
                    await self._heard(frontier, receipt.run)
                    counted = receipt.accepted
                    self._accepted += counted
                    self._stale += receipt.stale
                break
            except Unavailable as error:
                log.warning("waiting to store %d results: %s", len(parcels), error)
                self._soon(self._receiver.away)
                await self._clock.sleep(wait)
                wait = min(wait * 2, _RETRY_MAX_SECONDS)
        for outcome in outcomes:
            held = self._held.get(outcome.token)
            if held is not None:
                held.undone.discard(outcome.key)
                if not held.undone:
                    del self._held[outcome.token]
        self._written += len(parcels)
        keys = [request.key for request in requests]
        if counted == len(outcomes):
            # The links of an outcome that came too late are not stored.
            keys += [link.key for outcome in outcomes for link in outcome.links]
        self._soon(self._receiver.written, self._written, keys, self._stale)
        self._changed.set()

    async def _last(self, frontier: Opened) -> None:
        if self._parcels:
            log.error("%d results were not stored; their pages will be fetched again", len(self._parcels))
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await frontier.release([held.lease for held in self._held.values()])
        except (GossamerError, TimeoutError) as error:
            log.warning("%d leases were not returned, and end by themselves: %s", len(self._held), error)
        self._held.clear()
