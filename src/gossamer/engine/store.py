"""Where results go: records to the sink first, then their outcomes to the frontier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gossamer.engine.patience import Deadline, grace
from gossamer.engine.stats import Stats
from gossamer.errors import FrontierError, SinkError, SinkFull
from gossamer.frontier.base import Frontier, OwnedFrontier
from gossamer.model import Outcome, Receipt, Record, SiteNote
from gossamer.sink.base import Sink

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
