"""The journal of the embedded frontier: the changes it writes, the past it reads back, and a journal in memory.

The journal is the only part of the embedded frontier that survives the process. Its contract has three rules:

- A `Change` is written whole or not at all, and `write` returns when it is durable (P3, P7). On an error nothing of it
  may be found later; the caller takes back what it had planned.
- Changes are written one after another, in the order of the calls. A URL's number comes before its outcomes, and later
  notes of a site replace earlier ones, so that reading from the start gives the state at the end.
- What is not in a change is not needed to go on: leases, tokens, and the order of the heap. A start makes them anew.

Rows have numbers that never change: a URL is a number, and `visits` name the row of an outcome whose `state` goes out
with the URL's next lease. A journal over another store needs `write`, `load`, `lookup`, `close`, and a `Past`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from gossamer.errors import FrontierError
from gossamer.model import JobState, Request
from gossamer.redact import masked_memo
from gossamer.settings import Settings

DONE, FAILED, RETRY, SKIPPED, PARKED = 1, 2, 3, 4, 5
STATUS = {"done": DONE, "failed": FAILED, "retry": RETRY, "skipped": SKIPPED, "parked": PARKED}


@dataclass(slots=True)
class Change:
    """All that one call to the frontier changes; it is written whole or not at all.

    Times in it are epoch seconds: `monotonic` means nothing to the next process."""

    sites: list[tuple[int, str]] = field(default_factory=list)
    """New sites: number, name."""
    urls: list[tuple[int, Request, int, int]] = field(default_factory=list)
    """New URLs: number, request, number of the site, number of the page with the link (0: a seed)."""
    outcomes: list[OutcomeRow] = field(default_factory=list)
    notes: dict[int, JournalSite] = field(default_factory=dict)
    """Site number -> the complete site state; replaces what was written before."""
    lapses: dict[int, int] = field(default_factory=dict)
    """Number -> how many workers were lost while they held the URL; 0 once it has an outcome."""
    hints: dict[str, dict[int, float]] = field(default_factory=dict)
    """Site -> key -> reported time of the last change of a known page. Not written: it becomes `hastened`."""
    hastened: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Number -> reported time of the page's last change, and when its visit is due because of that."""
    marks: Mapping[str, int] | None = None
    """Lengths of the output files up to the records of these outcomes. A start cuts off everything beyond."""
    job: JobState | None = None


@dataclass(slots=True)
class OutcomeRow:
    """The outcome of one fetch of a URL; `again_at` is the time of its retry or revisit."""

    number: int
    status: int
    code: int
    at: float
    again_at: float | None
    reason: str
    state: dict[str, Any] | None


@dataclass(slots=True)
class JournalSite:
    """What the journal stores of a site; times are epoch seconds."""

    delay: float
    """The delay that the site asked for; 0 if none."""
    hold_until: float
    robots: dict[str, bytes]
    memo: dict[str, Any]
    closed: str


class Past:
    """What a journal has stored when it is opened; `state.restore` reads it once.

    `epoch` is larger at each opening than at all before: tokens start with it (P4)."""

    secret: bytes = b""
    epoch: int = 0
    job: JobState = "running"
    marks: Mapping[str, int] = {}
    lapses: Mapping[int, int] = {}
    dropped: Mapping[int, int] = {}
    """Number of a URL -> its stored visits whose outcomes were compacted away: `max_pages` still counts them."""
    hastened: Mapping[int, tuple[float, float]] = {}
    """As in a change, for URLs without a visit since. Read it after the outcomes."""

    def sites(self) -> Iterator[tuple[int, str, JournalSite | None]]:
        """Return number, name, and stored state of each site."""
        yield from ()

    def outcomes(self) -> Iterator[tuple[int, int, int, float | None, int]]:
        """Return row, number of the URL, status, due time, and whether it has a state, of each outcome; oldest
        first."""
        yield from ()

    def urls(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Return number, key, site, priority, depth, and hops of each URL in the order of discovery. There may be
        millions."""
        yield from ()


class NotAtHand(FrontierError):
    """Raised by `load` where reading could block the event loop, as on a network file system.

    The caller reads these requests in a thread, and repeats the lease, which then finds them at hand."""

    def __init__(self, numbers: Sequence[int], visits: Mapping[int, int]) -> None:
        super().__init__("not read yet")
        self.numbers = numbers
        self.visits = {number: visits[number] for number in numbers if number in visits}


async def to_the_end(change: Coroutine[Any, Any, object]) -> None:
    """Run a change to its end even if the caller is cancelled; the cancellation is raised afterwards.

    A change that is on disk but not in memory would make the owner lease out finished work, so nothing may come between
    writing and applying it."""
    task = asyncio.ensure_future(change)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()
        raise cancelled
    task.result()


class Journal(Protocol):
    """Stores changes durably.

    `write` is called by one caller at a time. `load` runs in the event loop, and must not wait for a disk or a network:
    raise `NotAtHand` instead. `lookup` is called in a thread, possibly while `write` runs."""

    async def write(self, change: Change) -> Sequence[int]:
        """Write a change durably, and return the row of each outcome. On an error nothing may have been written."""
        ...

    def load(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        """Return the requests of these numbers, in this order, each with the `state` of the row that `visits` names."""
        ...

    def lookup(self, key: int) -> dict[str, Any] | None:
        """Return the history of one URL; None if it is unknown."""
        ...

    def close(self) -> None:
        """Finish a running write, and release the store."""
        ...


class MemoryJournal:
    """A journal in memory, lost with the process."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._parents: dict[int, int] = {}
        self._outcomes: list[OutcomeRow] = []

    async def write(self, change: Change) -> Sequence[int]:
        for number, request, _, parent in change.urls:
            self._requests[number] = request
            if parent:
                self._parents[number] = parent
        first = len(self._outcomes)
        self._outcomes.extend(change.outcomes)
        return range(first, len(self._outcomes))

    def load(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        found = []
        for number in numbers:
            request = self._requests[number]
            parent = self._parents.get(number)
            referrer = request.referrer or (self._requests[parent].url if parent else "")
            state = self._outcomes[visits[number]].state if number in visits else None
            found.append(msgspec.structs.replace(request, referrer=referrer, state=state, tries=0))
        return found

    def lookup(self, key: int) -> dict[str, Any] | None:
        # A copy: this runs in another thread than `write`.
        for number, request in list(self._requests.items()):
            if request.key == key:
                attempts = [row for row in self._outcomes if row.number == number]
                parent = self._parents.get(number)
                return {
                    "number": number,
                    "url": request.url,
                    "site": request.site,
                    "depth": request.depth,
                    "priority": request.priority,
                    "referrer": request.referrer or (self._requests[parent].url if parent else ""),
                    "attempts": [vars_of(row) for row in attempts],
                }
        return None

    def close(self) -> None:
        self._requests.clear()


def standing(attempts: Sequence[Mapping[str, Any]], *, closed: str, is_parked: bool, now: float) -> dict[str, Any]:
    """Return the state of a URL by its stored outcomes, on a site that may be `closed`; `now` is epoch seconds."""
    if is_parked:
        return {"state": "parked"}
    tries = 0
    while tries < len(attempts) and attempts[-1 - tries]["status"] == "retry":
        tries += 1
    last = attempts[-1] if attempts else None
    if last is None or tries:
        said = {} if last is None else {"tries": tries, "code": last["code"], "reason": last["reason"]}
        if closed:
            return {**said, "state": "skipped" if closed == "budget" else "failed", "reason": closed}
        due_in = max(0.0, last["again_at"] - now) if last is not None else 0.0
        return {**said, "state": "delayed", "due_in": due_in} if due_in else {**said, "state": "queued"}
    found = {"state": last["status"], "code": last["code"], "reason": last["reason"], "finished_at": last["at"]}
    if last["again_at"] is not None and not closed:
        found["due_in"] = max(0.0, last["again_at"] - now)
    return found


def site_view(name: str, row: JournalSite | None, *, settings: Settings, now: float) -> dict[str, Any]:
    """Return a site as the journal stores it, without its queue and leases, which only the owner has."""
    kept, own = row or JournalSite(0.0, 0.0, {}, {}, ""), settings.for_site(name)
    return {
        "site": name,
        "delay": max(own.delay or 0.0, kept.delay),
        "hold": max(0.0, kept.hold_until - now),
        "closed": kept.closed,
        "budget": own.budget,
        "robots": kept.robots,
        "memo": masked_memo(kept.memo),
    }


def vars_of(row: OutcomeRow) -> dict[str, Any]:
    """An attempt as people read it."""
    word = next(name for name, status in STATUS.items() if status == row.status)
    return {"at": row.at, "status": word, "code": row.code, "again_at": row.again_at, "reason": row.reason}
