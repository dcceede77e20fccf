"""Simulated stores: a durable journal, and files of records; both can temporarily reject writes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gossamer.errors import SinkFull, Unavailable
from gossamer.frontier.embedded.journal import Change, JournalSite, MemoryJournal, OutcomeRow, Past
from gossamer.model import Record, Request

_FEW_WORKERS = 4


class StoreFaults:
    """Decides for each write how long it takes, and whether it is rejected."""

    def __init__(self, seed: int, share: float, refused: Callable[[], None], *, workers: int = 1) -> None:
        self._chance = random.Random(f"stores/{seed}")
        self._share = share
        # A store for more workers is faster, otherwise they would only wait for it.
        self._pace = max(1.0, workers / _FEW_WORKERS)
        self._refused = refused

    async def wait(self) -> None:
        await asyncio.sleep(self._chance.choice((0.0, 0.001, 0.01, 0.3)) / self._pace)

    def refuse(self) -> bool:
        if self._chance.random() >= self._share:
            return False
        self._refused()
        return True


class KeptJournal(MemoryJournal):
    """A durable journal: complete writes survive a crash, others have no effect."""

    def __init__(
        self, faults: StoreFaults, *, forgets: bool = False, now: Callable[[], float] | None = None, header: Any = None
    ) -> None:
        super().__init__()
        self._faults = faults
        self._forgets = forgets
        self._now = now or _loop_time
        self._sites: dict[int, str] = {}
        self._notes: dict[int, JournalSite] = {}
        self._lapses: dict[int, int] = {}
        self._marks: dict[str, int] = {}
        self._of_site: dict[int, int] = {}
        self._epoch = 0
        self._written: list[tuple[float, Change | None, Any]] = [(-1.0e9, Change(), header)]
        self.header: Any = header
        """The record besides the URLs."""
        self.draft: Any = None
        """The next `header`, written together with the next change."""
        self.changes = 0
        """Number of writes; it also grows when writes are lost."""
        self.is_sealed = False
        """Whether pending writes are rejected."""
        self._copied = 0
        self.lost_outcomes = 0
        """Number of lost outcomes."""

    async def write(self, change: Change) -> Sequence[int]:
        await self._faults.wait()
        if self.is_sealed or self._faults.refuse():
            raise Unavailable("the journal's disk does not respond")
        rows = self.note(change, self.header if self.draft is None else self.draft)
        await self._faults.wait()
        return rows

    def note(self, change: Change, header: Any) -> Sequence[int]:
        """Write a change together with a new header."""
        self.changes += 1
        if self._forgets:
            self._written.append((self._now(), change, header))
        return self._keep(change, header)

    def _keep(self, change: Change, header: Any) -> Sequence[int]:
        self.header = header
        for number, request, _, parent in change.urls:
            self._requests[number] = request
            if parent:
                self._parents[number] = parent
        first = len(self._outcomes)
        self._outcomes.extend(change.outcomes)
        self._sites.update(change.sites)
        self._notes.update(change.notes)
        self._lapses.update(change.lapses)
        self._marks.update(change.marks or {})
        self._of_site.update({number: site for number, _, site, _ in change.urls})
        return range(first, len(self._outcomes))

    def forget(self, seconds: float) -> None:
        """Lose the last writes, like a store that syncs its log once per second."""
        until, before = self._now() - seconds, len(self._outcomes)
        kept = [written for written in self._written if written[0] <= until]
        if not seconds or len(kept) == len(self._written):
            return
        self._empty()
        self.header, self._written = None, kept
        self.changes += 1
        for _, change, header in kept:
            if change is None:
                self._empty()
            else:
                self._keep(change, header)
        # Data copied from another journal stays.
        self.lost_outcomes += max(0, before - max(len(self._outcomes), self._copied))

    def _empty(self) -> None:
        for table in (self._requests, self._parents, self._outcomes, self._sites, self._notes, self._lapses):
            table.clear()
        self._marks.clear()
        self._of_site.clear()

    def wipe(self) -> None:
        """Delete all URLs, but keep the header."""
        self._empty()
        self._written.append((self._now(), None, self.header))
        self._copied = 0

    def copy(self) -> list[Change | None]:
        """A copy of all changes, for `take`."""
        return [change for _, change, _ in self._written]

    def take(self, copied: Sequence[Change | None]) -> None:
        """Replace all URLs with those of another journal."""
        self.wipe()
        for change in copied:
            if change is None:
                self.wipe()
            else:
                self.note(change, self.header)
        self._copied = len(self._outcomes)

    def losses(self, number: int) -> int:
        """Number of times that a URL was lost with a worker."""
        return self._lapses.get(number, 0)

    @property
    def longest_delay(self) -> float:
        """The longest delay of any site."""
        return max((row.delay for row in self._notes.values()), default=0.0)

    @property
    def has_losses(self) -> bool:
        """Whether any URL was lost with a worker."""
        return any(self._lapses.values())

    def requests(self) -> dict[int, Request]:
        """All requests by number."""
        return self._requests

    def outcomes(self) -> list[OutcomeRow]:
        """All outcomes, in order."""
        return self._outcomes

    def past(self, secret: bytes, epoch: int = 0) -> Past:
        """The history that a new process loads; the epoch is its number, unless another one is given."""
        self._epoch += 1
        return _KeptPast(self, secret, epoch or self._epoch)


class Journals:
    """The journals of several shards, read as one."""

    def __init__(self, journals: Sequence[KeptJournal], *, lost_outcomes: int) -> None:
        self._journals = journals
        self.lost_outcomes = lost_outcomes

    def losses(self, number: int) -> int:
        """Number of times that a URL was lost with a worker."""
        return self._journals[number % len(self._journals)].losses(number // len(self._journals))

    def requests(self) -> dict[int, Request]:
        """All requests by a unique number."""
        return {
            self._number(number, place): request
            for place, journal in enumerate(self._journals)
            for number, request in journal.requests().items()
        }

    def outcomes(self) -> list[OutcomeRow]:
        """All outcomes, shard by shard."""
        return [
            replace(row, number=self._number(row.number, place))
            for place, journal in enumerate(self._journals)
            for row in journal.outcomes()
        ]

    def _number(self, number: int, place: int) -> int:
        return number * len(self._journals) + place


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class _KeptPast(Past):
    def __init__(self, journal: KeptJournal, secret: bytes, epoch: int) -> None:
        self._journal = journal
        self.secret, self.epoch = secret, epoch
        self.marks = dict(journal._marks)
        self.lapses = {number: count for number, count in journal._lapses.items() if count}

    def sites(self) -> Iterator[tuple[int, str, JournalSite | None]]:
        for number, name in sorted(self._journal._sites.items()):
            yield number, name, self._journal._notes.get(number)

    def outcomes(self) -> Iterator[tuple[int, int, int, float | None, int]]:
        for place, row in enumerate(self._journal.outcomes()):
            yield place, row.number, row.status, row.again_at, row.state is not None

    def urls(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        for number, request in sorted(self._journal.requests().items()):
            yield (
                number,
                request.key,
                self._journal._of_site[number],
                request.priority,
                request.depth,
                request.hops,
            )


class KeptSink:
    """A file of records."""

    def __init__(self, faults: StoreFaults, name: str = "pages") -> None:
        self._faults = faults
        self._name = name
        self.records: list[Record] = []

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        await self._faults.wait()
        if self._faults.refuse():
            raise SinkFull("no space left for now")
        self.records.extend(records)
        await self._faults.wait()
        return {self._name: len(self.records)}

    async def rewind(self, marks: Mapping[str, int]) -> None:
        del self.records[marks.get(self._name, 0) :]

    async def aclose(self) -> None:
        pass
