"""Bridge between Scrapy's reactor and the asynchronous frontier, which runs in its own thread."""

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
from gossamer.engine.heartbeat import HeartbeatSender, heartbeats
from gossamer.errors import GossamerError, Unavailable
from gossamer.frontier.base import OwnedFrontier
from gossamer.model import Grant, Heartbeat, Lease, Outcome, Request
from gossamer.scrapy.options import Opened, ScrapyOptions, open_frontier
from gossamer.settings import Settings

log = logging.getLogger("gossamer.scrapy")
_TOGETHER = 500
_RETRY_MAX_SECONDS = 15.0
_LAST_SECONDS = 30.0
"""How long shutdown waits for an unreachable frontier."""


class Receiver(Protocol):
    """Receives the frontier's replies. All methods are called in Scrapy's thread."""

    def opened(self, secret: bytes, settings: Settings, known: int) -> None: ...

    def arrived(self, grant: Grant, *, sent_at: float, written: int) -> None:
        """Leases, or a reply without any; `written` messages were stored when the bridge requested them."""
        ...

    def renewed(self, ends: dict[int, float], lost: Sequence[int]) -> None: ...

    def written(self, count: int, keys: Sequence[int], stale: int) -> None:
        """`count` messages are stored in total; the last batch contained requests with these keys."""
        ...

    def away(self) -> None:
        """The frontier is unreachable, or its store was replaced and may have lost acknowledged writes."""
        ...

    def failed(self, error: BaseException) -> None: ...

    def closed(self) -> None: ...


@dataclass(frozen=True, slots=True)
class BridgeMessage:
    """A message to store: standalone requests, or the outcome of a page with its links."""

    requests: tuple[Request, ...] = ()
    outcome: Outcome | None = None


@dataclass(slots=True)
class _Added:
    """Requests stored without a page's outcome: if the store loses them, no page queues them again."""

    requests: Sequence[Request]
    run: int
    """The store's run at that time, as in `Grant.run`."""
    at: float


@dataclass(slots=True)
class _Held:
    """A lease held by this process, until all its requests are completed."""

    lease: Lease
    undone: set[int] = field(default_factory=set)


class FrontierBridge:
    """Leases, renews, and stores for one crawl. Public methods are called in Scrapy's thread and never block."""

    def __init__(self, options: ScrapyOptions, receiver: Receiver, soon: Callable[..., None]) -> None:
        self._options = options
        self._receiver = receiver
        self._soon = soon
        self._clock = SystemClock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gossamer-frontier", daemon=True)
        self._held: dict[int, _Held] = {}
        self._messages: list[BridgeMessage] = []
        self._run_of_store = 0
        self._added: deque[_Added] = deque()
        """Requests that the store may still lose, oldest first."""
        self._added_again = 0
        self._forget_seconds = 0.0
        self._run_lock = asyncio.Lock()
        self._wanted = 0
        self._written = 0
        self._stale = 0
        self._accepted = 0
        self._changed = asyncio.Event()
        self._filled = asyncio.Event()
        self._closing = asyncio.Event()

    def start(self) -> None:
        """Open the frontier; the receiver gets `opened` or `failed`."""
        self._thread.start()

    def send(self, message: BridgeMessage) -> None:
        """Queue a message for storing; messages are stored in the order in which they are sent."""
        self._call(self._take, message)

    def want(self, lanes: int) -> None:
        """Set the number of further lanes to lease when they become ready."""
        self._call(self._want, lanes)

    def finish(self) -> None:
        """Store pending messages, return all leases, and end."""
        self._call(self._close)

    def _call(self, act: Callable[..., object], *arguments: Any) -> None:
        # The loop may be closed already: then there is nothing left to do.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *arguments)

    def _take(self, message: BridgeMessage) -> None:
        self._messages.append(message)
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
        """Number of accepted outcomes."""
        return self._accepted

    @property
    def stale(self) -> int:
        """Number of stale outcomes."""
        return self._stale

    @property
    def active(self) -> int:
        """Number of leased lanes."""
        return len(self._held)

    @property
    def fetching(self) -> int:
        """Number of leased lanes; Scrapy decides which of them fetch."""
        return len(self._held)

    @property
    def limit(self) -> int:
        """Number of leased lanes plus those still wanted."""
        return len(self._held) + self._wanted

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._work())
        except BaseException as error:  # report any failure to Scrapy, so that the crawl ends
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
                    heartbeat = Heartbeat(worker=self._options.worker)
                    await stack.enter_async_context(
                        heartbeats(HeartbeatSender(frontier, self, heartbeat=heartbeat, clock=self._clock))
                    )
                renewing = asyncio.create_task(self._renew(frontier, settings.lease_seconds))
                try:
                    await self._until_closed(
                        self._lease(frontier, settings), self._store(frontier, settings.commit_seconds)
                    )
                finally:
                    renewing.cancel()
                await self._release_all(frontier)
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
        """Run these until shutdown, or until one fails; then give them time to finish.

        Canceling a call for leases would leave the leases unused until they expire."""
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
                await self._wait_for_change()
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
            await self._check_run(frontier, grant.run)
            if self._added_again != added_again and not grant.leases:
                # The grant's job state is outdated.
                continue
            # After it has received these leases, Scrapy's side sets how many more it wants.
            self._wanted = 0 if grant.leases else wanted
            self._soon(lambda g=grant, s=sent_at, w=written: self._receiver.arrived(g, sent_at=s, written=w))
            if not grant.leases:
                await self._idle(frontier, grant)

    async def _check_run(self, frontier: Opened, run: int) -> None:
        """Handle a change of the store's run: the new run may have lost the last acknowledged writes.

        Lost pages are fetched again with their links; standalone requests are stored again here."""
        async with self._run_lock:
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

    async def _wait_for_change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def _idle(self, frontier: Opened, grant: Grant) -> None:
        waiting = asyncio.create_task(frontier.idle(grant))
        changed = asyncio.create_task(self._wait_for_change())
        try:
            await asyncio.wait((waiting, changed), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                with suppress(Unavailable):
                    waiting.result()
        finally:
            waiting.cancel()
            changed.cancel()

    async def _renew(self, frontier: Opened, seconds: float) -> None:
        """Renew all leases every third of their duration, however long their pages take."""
        while True:
            await self._clock.sleep(seconds / 3)
            held = [each.lease for each in self._held.values()]
            if not held:
                continue
            sent_at = self._clock.monotonic()
            try:
                ours = await frontier.extend(held, seconds=seconds)
            except Unavailable as error:
                log.warning("cannot renew the leases: %s", error)
                continue
            ends = {lease.token: sent_at + lease.ttl for lease in ours}
            lost = [lease.token for lease in held if lease.token not in ends and lease.token in self._held]
            for token in lost:
                del self._held[token]
            self._soon(self._receiver.renewed, ends, lost)

    async def _store(self, frontier: Opened, every: float) -> None:
        """Store messages in batches; at shutdown, all that are left."""
        while not (self._closing.is_set() and not self._messages):
            await self._filled.wait()
            if not self._closing.is_set():
                await self._clock.sleep(every)
            self._filled.clear()
            some, self._messages = self._messages[:_TOGETHER], self._messages[_TOGETHER:]
            if self._messages or self._closing.is_set():
                self._filled.set()
            if some:
                try:
                    await self._write(frontier, some)
                except BaseException:
                    self._messages[:0] = some
                    raise

    async def _write(self, frontier: Opened, messages: list[BridgeMessage]) -> None:
        requests = [request for message in messages for request in message.requests]
        outcomes = [message.outcome for message in messages if message.outcome is not None]
        wait, counted = 0.5, 0
        while True:
            try:
                if requests:
                    # Requests first: an outcome may belong to the page that yielded them.
                    run, at = self._run_of_store, self._clock.monotonic()
                    await frontier.add(requests)
                    self._added.append(_Added(requests, run, at))
                if outcomes:
                    receipt = await frontier.complete(outcomes)
                    await self._check_run(frontier, receipt.run)
                    counted = receipt.accepted
                    self._accepted += counted
                    self._stale += receipt.stale
                break
            except Unavailable as error:
                log.warning("waiting to store %d results: %s", len(messages), error)
                self._soon(self._receiver.away)
                await self._clock.sleep(wait)
                wait = min(wait * 2, _RETRY_MAX_SECONDS)
        for outcome in outcomes:
            held = self._held.get(outcome.token)
            if held is not None:
                held.undone.discard(outcome.key)
                if not held.undone:
                    del self._held[outcome.token]
        self._written += len(messages)
        keys = [request.key for request in requests]
        if counted == len(outcomes):
            # The links of a stale outcome are not stored.
            keys += [link.key for outcome in outcomes for link in outcome.links]
        self._soon(self._receiver.written, self._written, keys, self._stale)
        self._changed.set()

    async def _release_all(self, frontier: Opened) -> None:
        if self._messages:
            log.error("%d results were not stored; their pages are fetched again in the next run", len(self._messages))
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await frontier.release([held.lease for held in self._held.values()])
        except (GossamerError, TimeoutError) as error:
            log.warning("%d leases were not returned and expire on their own: %s", len(self._held), error)
        self._held.clear()
