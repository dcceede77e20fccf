"""Group commit: results of many pages are stored, then completed in the frontier, together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from gossamer.clock import Clock
from gossamer.engine.stats import Stats
from gossamer.errors import FrontierError, GossamerError, SinkError, SinkFull, Unavailable
from gossamer.frontier.base import Frontier, OwnedFrontier
from gossamer.model import Lease, Outcome, Receipt, Record, Request, SiteNote
from gossamer.storage.base import Sink
from gossamer.storage.request_log import RequestLog

_LEAST_SECONDS = 2.0


def grace(drain_seconds: float) -> float:
    """How long a stop may take: the time of the fetches that are under way, and as much again to store them."""
    return drain_seconds + max(_LEAST_SECONDS, drain_seconds)


class Deadline:
    """Without end at first; `end_in` gives all that is under way, and all that comes, one and the same end."""

    def __init__(self) -> None:
        self._ends_at: float | None = None
        self._under_way: set[asyncio.Timeout] = set()
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether the end has come."""
        if self._ends_at is None:
            return False
        return self._has_ended or asyncio.get_running_loop().time() >= self._ends_at

    def end_in(self, seconds: float) -> None:
        """Let it end in so many seconds, unless it ends before."""
        ends_at = asyncio.get_running_loop().time() + seconds
        if self._ends_at is None or ends_at < self._ends_at:
            self._ends_at = ends_at
            for timeout in self._under_way:
                timeout.reschedule(ends_at)

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Cancel what is inside when the end comes: then TimeoutError, and `is_over`."""
        timeout = asyncio.timeout_at(self._ends_at)
        try:
            async with timeout:
                self._under_way.add(timeout)
                try:
                    yield
                finally:
                    self._under_way.discard(timeout)
        finally:
            # A loop whose clock counts milliseconds may call a little before the end.
            self._has_ended = self._has_ended or timeout.expired()


_CLOSE_SECONDS = 5.0


class Result(NamedTuple):
    """What one request came to; a request that was not fetched has no record."""

    outcome: Outcome
    record: Record | None = None


class Store(Protocol):
    """Takes results for good."""

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        """Store the records, then settle the outcomes with their links; durable when it returns."""
        ...


def _nothing() -> None:
    pass


class FleetStore:
    """The store of a worker in a fleet: its own segments first, then the frontier that all share.

    A worker killed in between leaves records that no outcome stands for; readers keep the highest token of a page."""

    def __init__(self, frontier: Frontier, sinks: Sequence[Sink]) -> None:
        self._frontier = frontier
        self._sinks = sinks
        self._written: list[Record] = []
        self._stored_by = 0
        self.sunk: Callable[[], None] = _nothing
        """Called in each commit when the sinks have what they get."""

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        records = [result.record for result in results if result.record is not None]
        # A commit that is tried again, because the frontier did not answer or one of the sinks was full, finds its
        # records stored already by some.
        if records and records != self._written:
            self._written, self._stored_by = records, 0
        if records:
            for sink in self._sinks[self._stored_by :]:
                await sink.write(records)
                self._stored_by += 1
        self.sunk()
        return await self._frontier.complete([result.outcome for result in results], notes=notes)

    async def aclose(self) -> None:
        """Close the sinks."""
        await _close(self._sinks)


class OwnerStore:
    """The store of an embedded job, in the process that owns frontier and files.

    Tokens are checked before anything is written, and the lanes cannot lapse in between: so a record is written
    only if its outcome will count, and the marks make both count together.
    """

    def __init__(self, frontier: OwnedFrontier, sinks: Sequence[Sink], stats: Stats) -> None:
        self._frontier = frontier
        self._sinks = sinks
        self._stats = stats
        self._commits: set[asyncio.Task[Receipt]] = set()
        self._patience = Deadline()
        self.sunk: Callable[[], None] = _nothing
        """Called in each commit when the sinks have what they get."""

    def hurry(self, drain_seconds: float) -> None:
        """Give sinks the grace of a stop, and no more; what they have not stored then does not count."""
        self._patience.end_in(grace(drain_seconds))

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        # A commit that has begun is finished, whatever becomes of its caller: half of one would leave the memory of
        # the frontier at odds with the disk.
        task = asyncio.create_task(self._commit(results, notes))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return await asyncio.shield(task)

    async def _commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        outcomes = [result.outcome for result in results]
        async with self._frontier.settling(outcomes, notes=notes) as settlement:
            held = {(result.outcome.token, result.outcome.key): result.record for result in results}
            found = (held[outcome.token, outcome.key] for outcome in settlement.accepted)
            records = [record for record in found if record is not None]
            marks: Mapping[str, int] = {}
            try:
                if records:
                    marks = await self._write(records)
                self.sunk()
                receipt = await settlement.commit(marks)
            except (FrontierError, SinkError):
                for sink in self._sinks:
                    await sink.rewind(self._frontier.marks)
                raise
        self._stats.saw(settlement.accepted, records, notes)
        return receipt

    async def _write(self, records: Sequence[Record]) -> Mapping[str, int]:
        marks: dict[str, int] = {}
        try:
            async with self._patience.limit():
                for sink in self._sinks:
                    marks.update(await sink.write(records))
        except TimeoutError:
            if not self._patience.is_over:
                raise
            raise SinkFull("the time to store is over, and a sink does not answer", hint="is its server up?") from None
        return marks

    async def aclose(self) -> None:
        """Wait for the commits that are under way, then close the sinks."""
        await asyncio.gather(*self._commits, return_exceptions=True)
        await _close(self._sinks, _CLOSE_SECONDS if self._patience.is_over else None)


async def _close(sinks: Sequence[Sink], seconds: float | None = None) -> None:
    """Close all of them, in so many seconds each; one that cannot store what it has left does not keep the others from
    it."""
    faults = []
    for sink in sinks:
        try:
            async with asyncio.timeout(seconds):
                await sink.aclose()
        except TimeoutError:
            faults.append(SinkError(f"{type(sink).__name__} did not end in time", hint="is its server up?"))
        except SinkError as error:
            faults.append(error)
    if faults:
        raise faults[0]


log = logging.getLogger("gossamer.engine")
_MOST = 64
"""Results in one commit, and results that may wait behind it: what a killed worker had of them is fetched again."""
_MOST_BYTES = 64 * 1024 * 1024
_RETRY_MAX_SECONDS = 15.0
_RETURN_SECONDS = 2.0


class Listed(NamedTuple):
    """Requests that were found otherwise than as the links of one outcome; they count before all that is put later.

    A store may forget them and not what follows from them, since it is committed a little later. So they are added once
    more if the store is in another life by the time that this is committed."""

    requests: Sequence[Request]
    token: int = 0
    """The lease under which they were found."""
    key: int = 0
    """The request whose outcome follows from them; 0: what follows is a note of that lease."""


Entry = Result | SiteNote | Lease | Listed
_Answer = TypeVar("_Answer")


class Committer:
    """Collects results, notes and finished leases, and commits them in the order in which they came."""

    def __init__(
        self,
        store: Store,
        frontier: Frontier,
        *,
        clock: Clock,
        every: float,
        committed: Callable[[Sequence[Result], int], None],
        trail: RequestLog | None = None,
    ) -> None:
        self._store = store
        self._frontier = frontier
        self._clock = clock
        self._every = every
        self._committed = committed
        self._trail = trail
        self._queue: asyncio.Queue[Entry | None] = asyncio.Queue(_MOST)
        self._listed: list[tuple[Listed, int]] = []
        """What has been added, with the life of the store as it was known then, until what follows is committed."""
        self.run_of_store = 0
        """The life of the store that was heard of last."""
        self._waiting_for_more: asyncio.Task[None] | None = None
        self._held_bytes = 0
        self._room = asyncio.Condition()
        self._patience = Deadline()
        self.accepted = 0
        self.stale = 0

    async def put(self, entry: Entry) -> None:
        """Hand over a result, a note, or a lease; what a lease left undone goes back once all before it is stored."""
        if size := _body_bytes(entry):
            # Sinks that keep pages whole: 64 large ones would be more than memory holds, or a frame of the wire.
            async with self._room:
                await self._room.wait_for(lambda: not self._held_bytes or self._held_bytes + size <= _MOST_BYTES)
                self._held_bytes += size
        try:
            await self._queue.put(entry)
        except asyncio.CancelledError:
            self._held_bytes -= size
            raise
        if self._waiting_for_more is not None and self._is_enough():
            self._waiting_for_more.cancel()

    async def finish(self) -> None:
        """Let `run` end once everything that was put is committed."""
        await self._queue.put(None)

    def hurry(self, drain_seconds: float) -> None:
        """Wait no longer for a store that is away than the grace of a stop: `run` then raises, and nothing of what is
        not stored is acknowledged."""
        self._patience.end_in(grace(drain_seconds))

    async def run(self) -> None:
        """Commit until `finish`."""
        last = False
        while not last:
            entries: list[Entry | None] = [await self._queue.get()]
            if self._every and not self._is_enough():
                await self._wait_for_more()
            while len(entries) < _MOST and not self._queue.empty():
                entries.append(self._queue.get_nowait())
            last = None in entries
            await self._commit(entries)
            # While it waits for more, it must not hold on to pages that are stored.
            entries = []

    def _is_enough(self) -> bool:
        """Whether a commit is full, with the entry that it began with: while a full queue waits, nothing is fetched."""
        return self._queue.qsize() >= _MOST - 1

    async def _wait_for_more(self) -> None:
        """Wait the time between commits, or until one is full."""
        waiting = self._waiting_for_more = asyncio.create_task(self._clock.sleep(self._every))
        try:
            await asyncio.wait((waiting,))
            if not waiting.cancelled():
                waiting.result()
        finally:
            waiting.cancel()
            self._waiting_for_more = None

    async def _commit(self, entries: list[Entry | None]) -> None:
        if self._trail is not None:
            # First: what was sent is to be known, whatever becomes of it.
            await self._trail.flush()
        results = [entry for entry in entries if isinstance(entry, Result)]
        notes = [entry for entry in entries if isinstance(entry, SiteNote)]
        leases = [entry for entry in entries if isinstance(entry, Lease)]
        try:
            for entry in entries:
                if isinstance(entry, Listed):
                    self._listed.append((entry, self.run_of_store))
                    await self._add(entry)
            if results or notes:
                receipt = await self._keep_trying(partial(self._store.commit, results, notes), len(results))
                if self._listed:
                    await self._add_forgotten(results, notes, receipt.run)
        except _GaveUp as end:
            await self._leave(leases)
            raise end.fault from None
        if results or notes:
            await self._let_in(sum(map(_body_bytes, results)))
            self.accepted += receipt.accepted
            self.stale += receipt.stale
            self._committed(results if receipt.accepted == len(results) else (), receipt.run)
        if leases:
            await self._release(leases)

    async def _add(self, listed: Listed) -> None:
        await self._keep_trying(partial(self._frontier.add, listed.requests), len(listed.requests))

    async def _add_forgotten(self, results: Sequence[Result], notes: Sequence[SiteNote], run: int) -> None:
        """What follows from some lists is committed now, by this life of the store: it has to have these lists too."""
        follows = {(result.outcome.token, result.outcome.key) for result in results}
        follows |= {(note.token, 0) for note in notes}
        waiting, self._listed = self._listed, []
        for listed, before in waiting:
            if (listed.token, listed.key) not in follows:
                self._listed.append((listed, before))
            elif before != run:
                await self._add(listed)
        # Nothing follows from those of leases that were lost: they are dropped in their turn.
        del self._listed[:-_MOST]

    async def _let_in(self, size: int) -> None:
        if size:
            async with self._room:
                self._held_bytes -= size
                self._room.notify_all()

    async def _release(self, leases: list[Lease]) -> None:
        try:
            await self._frontier.release(leases)
        except Unavailable as error:
            log.warning("%d leases were not returned, and end by themselves: %s", len(leases), error)

    async def _leave(self, leases: list[Lease]) -> None:
        """Return what is held, as far as that is quickly done: all of it is undone."""
        while not self._queue.empty():
            entry = self._queue.get_nowait()
            leases += [entry] if isinstance(entry, Lease) else []
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETURN_SECONDS):
                await self._release(leases)

    async def _keep_trying(self, call: Callable[[], Awaitable[_Answer]], count: int) -> _Answer:
        wait, fault = 0.5, None
        try:
            async with self._patience.limit():
                while True:
                    try:
                        return await call()
                    except (Unavailable, SinkFull) as error:
                        fault = error
                        log.warning("waiting to store %d results: %s", count, error)
                        await self._clock.sleep(wait)
                        wait = min(wait * 2, _RETRY_MAX_SECONDS)
        except TimeoutError:
            if not self._patience.is_over:
                raise
            kind = FrontierError if isinstance(fault, Unavailable) else SinkError
            what = f"stopped before {count:,} results were stored: {fault or 'it took too long'}"
            raise _GaveUp(kind(what, hint="none of them counts as done: the next run fetches them again")) from fault


class _GaveUp(Exception):
    """The time to store something is over."""

    def __init__(self, fault: GossamerError) -> None:
        self.fault = fault


def _body_bytes(entry: Entry) -> int:
    return len(entry.record.body) if isinstance(entry, Result) and entry.record is not None else 0
