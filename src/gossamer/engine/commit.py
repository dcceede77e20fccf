"""Group commit: results of many pages are stored, then completed in the frontier, together.

A sync costs the same for one page as for sixty-four. So the `Committer` collects what visits hand in, for
`commit_seconds` (about 100 ms) or until a group is full, and a `Store` takes the group: records first, outcomes with
their links second.

**Why in this order.** A page that counts as done must be stored (P7). Records are synced to the output before the
frontier completes their pages; a crash in between repeats fetches and loses nothing. What happens to records whose
pages were never completed depends on the store:

- `OwnerStore`, for an embedded job, checks the tokens before it writes, so that only records of accepted outcomes are
  written, and commits the lengths of the files (`marks`) together with the outcomes. What lies beyond the marks is cut
  off, at once if the commit fails and at the next start after a crash. A line of output is never repeated.
- `FleetStore` writes segments of its own and cannot cut them: the frontier is elsewhere. Its records carry key and
  token, and readers keep the one with the highest token of each page.

**The order of entries** is kept: results, notes, added requests (`AddedRequests`), and finished leases are handed over
in one queue. A lease is returned only after everything that was handed in before it is committed; else another worker
could get a request whose outcome is still here. Requests of a sitemap are added before the outcome of the sitemap.

**Nothing is dropped.** If the frontier or a sink is away or full, the group is tried again, with a growing pause, for
as long as it takes. The queue and the bytes in it are bounded, so visits wait in `put`, fetching slows down, and memory
stays flat. After a stop the patience is limited (`Deadline`): then `run` raises, and what is not stored was never
acknowledged. A worker that is killed loses what is in its queue: these pages are fetched again when the leases end.

**A repeated commit is safe.** The frontier recognizes outcomes that were applied before (P3), and `FleetStore`
remembers which sinks have the group already."""

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
    """Return the max seconds of a stop: `drain_seconds` for running fetches, and as much again to store them."""
    return drain_seconds + max(_LEAST_SECONDS, drain_seconds)


class Deadline:
    """A common time limit, infinite at first. `end_in` sets it for all current and later blocks."""

    def __init__(self) -> None:
        self._ends_at: float | None = None
        self._under_way: set[asyncio.Timeout] = set()
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """Return whether the time is over."""
        if self._ends_at is None:
            return False
        return self._has_ended or asyncio.get_running_loop().time() >= self._ends_at

    def end_in(self, seconds: float) -> None:
        """Set the limit to this many seconds from now, unless it is sooner already."""
        ends_at = asyncio.get_running_loop().time() + seconds
        if self._ends_at is None or ends_at < self._ends_at:
            self._ends_at = ends_at
            for timeout in self._under_way:
                timeout.reschedule(ends_at)

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Cancel the block when the time is over: it raises TimeoutError, and `is_over` is true."""
        timeout = asyncio.timeout_at(self._ends_at)
        try:
            async with timeout:
                self._under_way.add(timeout)
                try:
                    yield
                finally:
                    self._under_way.discard(timeout)
        finally:
            # A loop with a coarse clock may fire slightly before the end.
            self._has_ended = self._has_ended or timeout.expired()


_CLOSE_SECONDS = 5.0


class Result(NamedTuple):
    """The outcome of one request with its record; a request that was not fetched has no record."""

    outcome: Outcome
    record: Record | None = None


class Store(Protocol):
    """Takes groups of results."""

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        """Store the records, then complete the outcomes with their links; durable when it returns.

        After an error the same group is handed in again, in the same order."""
        ...


def _no_callback() -> None:
    pass


class FleetStore:
    """The store of a worker in a fleet: its own segments first, then the frontier that all share.

    A worker killed in between leaves records without an outcome; readers keep the highest token of each page. Sinks
    that have a group already are skipped when it is tried again."""

    def __init__(self, frontier: Frontier, sinks: Sequence[Sink]) -> None:
        self._frontier = frontier
        self._sinks = sinks
        self._written: list[Record] = []
        self._stored_by = 0
        self.sunk: Callable[[], None] = _no_callback
        """Called in each commit after the sinks have stored their records."""

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        records = [result.record for result in results if result.record is not None]
        # After a failure of the frontier or of one sink, some sinks have this group's records already.
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
    """The store of an embedded job, in the process that owns the frontier and the output files.

    Tokens are checked before anything is written, and the lanes cannot expire in between: a record is written only if
    its outcome will count, and the marks commit both together. If either fails, all files are cut back to the marks of
    the last commit, so that the repeated group begins there."""

    def __init__(self, frontier: OwnedFrontier, sinks: Sequence[Sink], stats: Stats) -> None:
        self._frontier = frontier
        self._sinks = sinks
        self._stats = stats
        self._commits: set[asyncio.Task[Receipt]] = set()
        self._patience = Deadline()
        self.sunk: Callable[[], None] = _no_callback
        """Called in each commit after the sinks have stored their records."""

    def hurry(self, drain_seconds: float) -> None:
        """Limit the time of sinks to the grace of a stop; what they have not stored by then does not count."""
        self._patience.end_in(grace(drain_seconds))

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        # A commit that has begun is finished even if its caller is cancelled or its worker's connection ends: after
        # half a commit, files and frontier would disagree.
        task = asyncio.create_task(self._commit(results, notes))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return await asyncio.shield(task)

    async def _commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        """Check tokens, write and sync records, commit outcomes with marks; cut the files back if that fails."""
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
            raise SinkFull("a sink did not respond within the time to store", hint="is its server up?") from None
        return marks

    async def aclose(self) -> None:
        """Wait for the running commits, then close the sinks."""
        await asyncio.gather(*self._commits, return_exceptions=True)
        await _close(self._sinks, _CLOSE_SECONDS if self._patience.is_over else None)


async def _close(sinks: Sequence[Sink], seconds: float | None = None) -> None:
    """Close all sinks, with a limit of `seconds` for each. One that fails does not keep the others from closing."""
    faults = []
    for sink in sinks:
        try:
            async with asyncio.timeout(seconds):
                await sink.aclose()
        except TimeoutError:
            faults.append(SinkError(f"{type(sink).__name__} did not close in time", hint="is its server up?"))
        except SinkError as error:
            faults.append(error)
    if faults:
        raise faults[0]


log = logging.getLogger("gossamer.engine")
_MOST = 64
"""Max results in a group, and in the queue behind it: a killed worker has to fetch this many again."""
_MOST_BYTES = 64 * 1024 * 1024
_RETRY_MAX_SECONDS = 15.0
_RETURN_SECONDS = 2.0


class AddedRequests(NamedTuple):
    """Requests that are not links of a single outcome, such as those of a sitemap. They are added before later entries.

    A store that restarts in between could lose the requests and keep the outcome that says that they were added. So
    they are added again if the store is in another run when that outcome is committed."""

    requests: Sequence[Request]
    token: int = 0
    """The lease under which they were found."""
    key: int = 0
    """The request whose outcome depends on them; 0 if a note of that lease does."""


Entry = Result | SiteNote | Lease | AddedRequests
_Answer = TypeVar("_Answer")


class Committer:
    """Collects results, notes, requests and finished leases, and commits them in the order in which they came.

    `put` is called by visits, `run` is one task. One group is committed at a time, and the next gathers meanwhile."""

    def __init__(
        self,
        store: Store,
        frontier: Frontier,
        *,
        clock: Clock,
        every: float,
        committed: Callable[[Sequence[Result], int], None],
        request_log: RequestLog | None = None,
    ) -> None:
        self._store = store
        self._frontier = frontier
        self._clock = clock
        self._every = every
        self._committed = committed
        self._request_log = request_log
        self._queue: asyncio.Queue[Entry | None] = asyncio.Queue(_MOST)
        self._listed: list[tuple[AddedRequests, int]] = []
        """Added requests with the run of the store at that time, kept until what depends on them is committed."""
        self.run_of_store = 0
        """The last known run of the store."""
        self._waiting_for_more: asyncio.Task[None] | None = None
        self._held_bytes = 0
        self._room = asyncio.Condition()
        self._patience = Deadline()
        self.accepted = 0
        self.stale = 0

    async def put(self, entry: Entry) -> None:
        """Hand in a result, a note, requests, or a lease to return; waits while the queue is full.

        A lease is returned once everything before it is committed."""
        if size := _body_bytes(entry):
            # Where sinks store bodies, 64 large pages may exceed memory, or a frame of the coordinator's socket.
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
        """Let `run` end once everything that was handed in is committed."""
        await self._queue.put(None)

    def hurry(self, drain_seconds: float) -> None:
        """Limit the time for an unreachable store to the grace of a stop.

        After that, `run` raises; what is not stored was never acknowledged."""
        self._patience.end_in(grace(drain_seconds))

    async def run(self) -> None:
        """Commit until `finish`."""
        last = False
        while not last:
            entries: list[Entry | None] = [await self._queue.get()]
            if self._every and not self._is_enough():
                await self._gather()
            while len(entries) < _MOST and not self._queue.empty():
                entries.append(self._queue.get_nowait())
            last = None in entries
            await self._commit(entries)
            # Release the pages: the next wait may be long.
            entries = []

    def _is_enough(self) -> bool:
        """Return whether the group is full, including its first entry, or a full queue blocks visits."""
        return self._queue.qsize() >= _MOST - 1

    async def _gather(self) -> None:
        """Wait for the time between commits, or until a group is full."""
        waiting = self._waiting_for_more = asyncio.create_task(self._clock.sleep(self._every))
        try:
            await asyncio.wait((waiting,))
            if not waiting.cancelled():
                waiting.result()
        finally:
            waiting.cancel()
            self._waiting_for_more = None

    async def _commit(self, entries: list[Entry | None]) -> None:
        """Commit one group: request log, requests, then results with notes, then leases.

        Requests come first, because results of the same group may depend on them; leases last, because they release
        the right to commit. The links of a group are remembered as known only if all of it was accepted: the receipt
        does not say which outcomes were stale."""
        if self._request_log is not None:
            # First: the log has every request that was sent, whether or not its result is stored.
            await self._request_log.flush()
        results = [entry for entry in entries if isinstance(entry, Result)]
        notes = [entry for entry in entries if isinstance(entry, SiteNote)]
        leases = [entry for entry in entries if isinstance(entry, Lease)]
        try:
            for entry in entries:
                if isinstance(entry, AddedRequests):
                    self._listed.append((entry, self.run_of_store))
                    await self._add(entry)
            if results or notes:
                receipt = await self._retry(partial(self._store.commit, results, notes), len(results))
                if self._listed:
                    await self._add_again(results, notes, receipt.run)
        except _StopTimeout as end:
            await self._leave(leases)
            raise end.fault from None
        if results or notes:
            await self._admit(sum(map(_body_bytes, results)))
            self.accepted += receipt.accepted
            self.stale += receipt.stale
            self._committed(results if receipt.accepted == len(results) else (), receipt.run)
        if leases:
            await self._release(leases)

    async def _add(self, listed: AddedRequests) -> None:
        await self._retry(partial(self._frontier.add, listed.requests), len(listed.requests))

    async def _add_again(self, results: Sequence[Result], notes: Sequence[SiteNote], run: int) -> None:
        """Add requests again if the store's run changed between adding them and committing the dependent result."""
        follows = {(result.outcome.token, result.outcome.key) for result in results}
        follows |= {(note.token, 0) for note in notes}
        waiting, self._listed = self._listed, []
        for listed, before in waiting:
            if (listed.token, listed.key) not in follows:
                self._listed.append((listed, before))
            elif before != run:
                await self._add(listed)
        # Requests of lost leases are never followed by a result: drop the oldest.
        del self._listed[:-_MOST]

    async def _admit(self, size: int) -> None:
        if size:
            async with self._room:
                self._held_bytes -= size
                self._room.notify_all()

    async def _release(self, leases: list[Lease]) -> None:
        try:
            await self._frontier.release(leases)
        except Unavailable as error:
            log.warning("could not return %d leases, they will expire: %s", len(leases), error)

    async def _leave(self, leases: list[Lease]) -> None:
        """After giving up, return all leases if that is quick. Nothing of them is complete."""
        while not self._queue.empty():
            entry = self._queue.get_nowait()
            leases += [entry] if isinstance(entry, Lease) else []
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETURN_SECONDS):
                await self._release(leases)

    async def _retry(self, call: Callable[[], Awaitable[_Answer]], count: int) -> _Answer:
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
            raise _StopTimeout(
                kind(what, hint="none of them counts as done: the next run fetches them again")
            ) from fault


class _StopTimeout(Exception):
    """The time limit of a stop is over before something was stored."""

    def __init__(self, fault: GossamerError) -> None:
        self.fault = fault


def _body_bytes(entry: Entry) -> int:
    return len(entry.record.body) if isinstance(entry, Result) and entry.record is not None else 0
