"""The run loop of one worker: lease sites, visit them, renew leases, and drain at a stop.

Four kinds of tasks share one task group. `_dispatch` leases lanes and starts a `Visit` for each, as many as the machine
can fetch at once; visits that wait for their delay use no slot. `_renew` extends all leases at a third of their time.
The `Committer` stores results in groups. `regulate` adjusts the number of fetches to the machine. Anything that a visit
has not handed to the committer does not count.

The end comes in a fixed order, and each step needs the one before it:

1. No more leases. Visits finish the request in hand (at a stop, for at most `drain_seconds`) and hand in the rest.
2. Renewal stops: nothing is sent any more.
3. The committer stores what it has, and returns leases whose batches are incomplete.
4. The spider is closed (`Lifecycle`), when all its pages are committed.

While the frontier is unreachable, `lease` is tried again every second and the committer waits; visits go on until their
leases end, and send nothing after that. The same holds after a suspension of the machine, since the clock counts the
time: a visit checks its deadline before each request, and finds its lease lost. The leases of a killed worker expire
(P9).

Links that the frontier has acknowledged are not sent to it again (`KnownKeys`, `Visit.sent_links`). That is safe only
while the store cannot have lost them: `Grant.run` and `Receipt.run` change when it may have, and then the memory of
sent links is cleared, as after each failed lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from gossamer.clock import Clock
from gossamer.download.base import LearnsSites
from gossamer.engine.budget import Interrupted
from gossamer.engine.commit import Committer, Result, Store
from gossamer.engine.concurrency import AddressLimits, LoadMeter, Machine, Slots, first_limit, regulate
from gossamer.engine.lifecycle import Lifecycle
from gossamer.engine.links import KnownKeys
from gossamer.engine.parsing import PageProcessor
from gossamer.engine.regions import RegionContext
from gossamer.engine.robots import Rulebook, SubresourceRobots
from gossamer.engine.visit import Visit, VisitContext
from gossamer.errors import GossamerError, Unavailable
from gossamer.frontier.base import Frontier
from gossamer.middleware import Fetch
from gossamer.middleware.cookies import CookieJar
from gossamer.model import Grant, JobState
from gossamer.settings import Settings
from gossamer.storage.request_log import RequestLog

log = logging.getLogger("gossamer.engine")
_SLEEPERS = 15
"""Max sleeping lanes for each fetch slot of the machine; they cost memory only."""


class Engine:
    """One worker. `run` returns the job's state when there is no more work for it, or after `stop`."""

    def __init__(
        self,
        frontier: Frontier,
        store: Store,
        *,
        fetch: Fetch,
        processor: PageProcessor,
        lifecycle: Lifecycle,
        recent: KnownKeys,
        settings: Settings,
        clock: Clock,
        places: RegionContext | None = None,
        request_log: RequestLog | None = None,
        jar: CookieJar | None = None,
        site_learner: LearnsSites | None = None,
        subresource_robots: SubresourceRobots | None = None,
        address_limits: AddressLimits | None = None,
        visits: Callable[..., Visit] = Visit,
        machine: LoadMeter | None = None,
    ) -> None:
        self._machine = machine
        self._lifecycle = lifecycle
        self._frontier = frontier
        self._settings = settings
        self._clock = clock
        self._recent = recent
        self._run_of_store = 0
        self._visits: dict[int, Visit] = {}
        self._new_visit = visits
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._slots = Slots(settings.concurrency)
        self._committer = Committer(
            store,
            frontier,
            clock=clock,
            every=settings.commit_seconds,
            committed=self._committed,
            request_log=request_log,
        )
        self._context = VisitContext(
            settings=settings,
            clock=clock,
            fetch=fetch,
            processor=processor,
            committer=self._committer,
            rules=Rulebook(),
            slots=self._slots,
            stopping=self._stop,
            went_to_sleep=self._changed.set,
            places=places,
            request_log=request_log,
            jar=jar,
            site_learner=site_learner,
            subresource_robots=subresource_robots,
            address_limits=address_limits,
        )

    @property
    def active(self) -> int:
        """Return the number of sites that are being visited."""
        return len(self._visits)

    @property
    def fetching(self) -> int:
        """Return the number of sites that are being visited, without those that wait for their delay."""
        return sum(not visit.sleeping for visit in self._visits.values())

    @property
    def limit(self) -> int:
        """Return the max concurrent fetches that the machine can handle now, at most the setting `concurrency`."""
        return self._slots.limit

    @property
    def accepted(self) -> int:
        """Return the number of outcomes that the frontier accepted."""
        return self._committer.accepted

    @property
    def stale(self) -> int:
        """Return the number of outcomes whose lease was lost before they were committed."""
        return self._committer.stale

    def interrupt(self) -> None:
        """Interrupt the spider before `stop`: a running handler may block the loop. A signal handler calls this."""
        self._context.processor.interrupt()

    def stop(self) -> None:
        """Finish the running fetches, store them, return the rest, and let `run` return.

        If they cannot be stored in time, because a sink or the frontier is unreachable, `run` raises its error."""
        self._stop.set()
        self._changed.set()
        self._lifecycle.stop()
        self._context.processor.stop()
        self._committer.hurry(self._settings.drain_seconds)

    async def run(self) -> JobState:
        """Work until the job is finished or stopped.

        The spider is opened before the first lease, and closed when all pages are committed and nothing is leased."""
        try:
            async with self._lifecycle, aclosing(self._context.processor):
                return await self._work()
        except Interrupted:
            # `stop` came while the spider was being opened.
            return "running"

    async def _work(self) -> JobState:
        """Run all tasks, then end them in the order given in the module docstring."""
        try:
            async with asyncio.TaskGroup() as tasks:
                committing = tasks.create_task(self._committer.run())
                renewing = tasks.create_task(self._renew())
                machine, page_bytes = self._machine or Machine(), self._settings.max_body_bytes
                free = machine.free_bytes()
                self._slots.resize(first_limit(self._slots.most, free_bytes=free, page_bytes=page_bytes))
                regulating = tasks.create_task(regulate(self._slots, machine, self._clock, changed=self._changed.set))
                state = await self._dispatch(tasks)
                await self._drain()
                renewing.cancel()
                regulating.cancel()
                await self._committer.finish()
                await committing
        except* GossamerError as group:
            # Many tasks fail on the same broken store: raise the first error only.
            raise _first(group) from None
        return state

    async def _drain(self) -> None:
        """Wait for the visits to end; after a stop for `drain_seconds`, then cancel them and return their leases."""
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                while self._visits:
                    self._changed.clear()
                    if self._stop.is_set() and timeout.when() is None:
                        timeout.reschedule(asyncio.get_running_loop().time() + self._settings.drain_seconds)
                    await self._changed.wait()
        except TimeoutError:
            unfinished = list(self._visits.values())
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            for visit in unfinished:
                await self._committer.put(visit.lease)

    async def _dispatch(self, tasks: asyncio.TaskGroup) -> JobState:
        """Lease lanes and start visits until the job is finished, or `stop`.

        A lease counts from before the call that got it, however long the answer took, so a worker never believes that
        it holds a lane for longer than the frontier does."""
        settings = self._settings
        state: JobState = "running"
        while not self._stop.is_set():
            free = self._free()
            if free <= 0:
                await self._some_change()
                continue
            sent_at = self._clock.monotonic()
            try:
                grant = await self._frontier.lease(
                    free, batch=settings.batch, seconds=settings.lease_seconds, **self._others()
                )
            except Unavailable as error:
                log.warning("waiting for the frontier: %s", error)
                self._forget()
                await self._unless_stopped(self._clock.sleep(1.0))
                continue
            self._note_run(grant.run)
            for lease in grant.leases:
                visit = self._visits[lease.token] = self._new_visit(lease, self._context, sent_at=sent_at)
                self._tasks[lease.token] = tasks.create_task(self._run_visit(visit))
            state = grant.job
            self._context.paused = state == "paused"
            if state in ("stopping", "missing"):
                self.stop()
            if state == "finished":
                break
            if len(grant.leases) < free:
                await self._idle(grant)
        return state

    async def _run_visit(self, visit: Visit) -> None:
        try:
            await visit.run()
        finally:
            del self._visits[visit.lease.token], self._tasks[visit.lease.token]
            self._changed.set()

    def _others(self) -> dict[str, Any]:
        """Return the regions without live workers, if any; only frontiers of fleets take this argument."""
        places = self._context.places
        return {"also": places.also} if places is not None and places.also else {}

    def _free(self) -> int:
        """Return how many more lanes to lease: those that wait for their delay use no slot."""
        limit = self._slots.limit
        return min(limit - self.fetching, limit * (1 + _SLEEPERS) - len(self._visits))

    async def _some_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        # Many visits end at the same moment: a short wait combines many small calls to the frontier.
        await self._clock.sleep(0.005)

    async def _idle(self, grant: Grant) -> None:
        await self._unless_stopped(self._frontier.idle(grant))

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(waiting)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            task.cancel()
            stopped.cancel()

    async def _renew(self) -> None:
        """Extend all leases at a third of their time.

        A visit whose lease is gone is marked lost, and sends nothing more. If one renewal fails, the next still comes
        in time. A failed call marks nothing as lost: each visit goes by its own deadline."""
        seconds = self._settings.lease_seconds
        while True:
            await self._clock.sleep(seconds / 3)
            held = [visit.lease for visit in self._visits.values() if not visit.lost]
            if not held:
                continue
            sent_at = self._clock.monotonic()
            try:
                ours = await self._frontier.extend(held, seconds=seconds)
            except Unavailable as error:
                log.warning("leases could not be renewed: %s", error)
                continue
            kept = {lease.token: lease.ttl for lease in ours}
            for lease in held:
                visit = self._visits.get(lease.token)
                if visit is None:
                    continue
                if lease.token in kept:
                    # A frontier may grant less time than requested.
                    visit.renewed(sent_at, kept[lease.token])
                else:
                    visit.lost = True

    def _note_run(self, run: int) -> None:
        """Record the run of the store.

        Another run may have lost links: pages that it lost come again, and must send all their links again."""
        if run != self._run_of_store:
            self._run_of_store = self._committer.run_of_store = run
            self._forget()

    def _forget(self) -> None:
        """Clear the memory of keys that the frontier has."""
        self._recent.clear()
        for visit in self._visits.values():
            visit.sent_links.clear()

    def _committed(self, results: Sequence[Result], run: int) -> None:
        """Record that this run of the store accepted these results with their links: their keys need not be sent
        again."""
        self._note_run(run)
        for result in results:
            self._recent.update(link.key for link in result.outcome.links)


def _first(group: BaseExceptionGroup[GossamerError]) -> GossamerError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, GossamerError)
    return found
