"""Where results go: records to the sink first, then their outcomes to the frontier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gossamer.engine.stats import Stats
from gossamer.frontier.local import LocalFrontier
from gossamer.model import Outcome, Receipt, Record, SiteNote
from gossamer.sink.base import Sink


class Result(NamedTuple):
    """What one request came to; a request that was not fetched has no record."""

    outcome: Outcome
    record: Record | None = None


class Store(Protocol):
    """Takes results for good."""

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        """Store the records, then settle the outcomes with their links; durable when it returns."""
        ...


class OwnerStore:
    """The store of an embedded job, in the process that owns frontier and files.

    Tokens are checked before anything is written, and the lanes cannot lapse in between: so a record is written
    only if its outcome will count, and the marks make both count together.
    """

    def __init__(self, frontier: LocalFrontier, sinks: Sequence[Sink], stats: Stats) -> None:
        self._frontier = frontier
        self._sinks = sinks
        self._stats = stats

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        outcomes = [result.outcome for result in results]
        async with self._frontier.settling(outcomes, notes=notes) as settlement:
            # A page can be settled twice in one call only by mistake; the token and key name its one record.
            held = {(result.outcome.token, result.outcome.key): result.record for result in results}
            records = [
                record for outcome in settlement.accepted if (record := held[outcome.token, outcome.key]) is not None
            ]
            marks: dict[str, int] = {}
            for sink in self._sinks:
                marks.update(await sink.write(records) if records else {})
            receipt = await settlement.commit(marks)
        self._stats.saw(settlement.accepted, records, notes)
        return receipt
