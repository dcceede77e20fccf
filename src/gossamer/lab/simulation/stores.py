"""Simulated stores: a journal that outlives its process, and files of records; both may refuse a write for now."""

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
    """Says of each write how long it takes, and whether it is refused."""

    def __init__(self, seed: int, share: float, refused: Callable[[], None], *, workers: int = 1) -> None:
        self._chance = random.Random(f"stores/{seed}")
        self._share = share
        # One that serves more workers is faster, or they would only wait for it.
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
    """What was written to it is there after a crash; what was not has not happened."""

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
        """What is written down beside the URLs."""
        self.draft: Any = None
        """The next `header`: written in the same step as the next change."""
        self.changes = 0
        """Writes so far; it grows when some are forgotten, too."""
        self.is_sealed = False
        """Whether nothing may be written any more by those who wait for their turn."""
        self._copied = 0
        self.lost_outcomes = 0
        """What came of URLs, and was forgotten."""

    async def write(self, change: Change) -> Sequence[int]:
        await self._faults.wait()
        if self.is_sealed or self._faults.refuse():
            raise Unavailable("the journal's disk does not answer")
        rows = self.note(change, self.header if self.draft is None else self.draft)
        await self._faults.wait()
        return rows

    def note(self, change: Change, header: Any) -> Sequence[int]:
        """Write down a change, with what is to be known beside the URLs from now on."""
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
        """Lose what was written last, as a store does that syncs its log once a second."""
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
        # What was copied from another journal is still there.
        self.lost_outcomes += max(0, before - max(len(self._outcomes), self._copied))

    def _empty(self) -> None:
        for table in (self._requests, self._parents, self._outcomes, self._sites, self._notes, self._lapses):
            table.clear()
        self._marks.clear()
        self._of_site.clear()

    def wipe(self) -> None:
        """Give up all URLs, but not what is written down beside them."""
        self._empty()
        self._written.append((self._now(), None, self.header))
        self._copied = 0

    def copy(self) -> list[Change | None]:
        """All that `take` needs."""
        return [change for _, change, _ in self._written]

    def take(self, copied: Sequence[Change | None]) -> None:
        """Write down all URLs of another journal, in place of those that were here."""
        self.wipe()
        for change in copied:
            if change is None:
                self.wipe()
            else:
                self.note(change, self.header)
        self._copied = len(self._outcomes)

    def losses(self, number: int) -> int:
        """How often a URL was lost with a worker."""
        return self._lapses.get(number, 0)

    @property
    def longest_delay(self) -> float:
        """The longest delay that a site asked for."""
        return max((row.delay for row in self._notes.values()), default=0.0)

    @property
    def has_losses(self) -> bool:
        """Whether any URL was lost with a worker."""
        return any(self._lapses.values())

    def requests(self) -> dict[int, Request]:
        """Every URL, by its number."""
        return self._requests

    def outcomes(self) -> list[OutcomeRow]:
        """All that came of them, in order."""
        return self._outcomes

    def past(self, secret: bytes, epoch: int = 0) -> Past:
        """What a new process finds; the epoch is its number, unless another one is given."""
        self._epoch += 1
        return _KeptPast(self, secret, epoch or self._epoch)


class Journals:
    """Several journals, one of each shard, read as one."""

    def __init__(self, journals: Sequence[KeptJournal], *, lost_outcomes: int) -> None:
        self._journals = journals
        self.lost_outcomes = lost_outcomes

    def losses(self, number: int) -> int:
        """How often a URL was lost with a worker."""
        return self._journals[number % len(self._journals)].losses(number // len(self._journals))

    def requests(self) -> dict[int, Request]:
        """Every URL, by a number of its own."""
        return {
            self._number(number, place): request
            for place, journal in enumerate(self._journals)
            for number, request in journal.requests().items()
        }

    def outcomes(self) -> list[OutcomeRow]:
        """All that came of them, shard by shard."""
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
        for number, asked in sorted(self._journal.requests().items()):
            yield number, asked.key, self._journal._of_site[number], asked.priority, asked.depth, asked.hops


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
