"""The journal of the embedded frontier: what is written down of a change, and a journal in memory."""

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
    """All that one call to the frontier changes; it is written whole or not at all."""

    sites: list[tuple[int, str]] = field(default_factory=list)
    """New sites: number, name."""
    urls: list[tuple[int, Request, int, int]] = field(default_factory=list)
    """New URLs: number, request, number of the site, number of the page that linked here (0: a seed)."""
    outcomes: list[OutcomeRow] = field(default_factory=list)
    notes: dict[int, JournalSite] = field(default_factory=dict)
    """Site number -> all that is to be remembered of it."""
    lapses: dict[int, int] = field(default_factory=dict)
    hints: dict[str, dict[int, float]] = field(default_factory=dict)
    """Site -> key -> when a page that is known has changed, as somebody says; what comes of it is `hastened`."""
    hastened: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Number -> when the page has changed, as somebody says, and when it is due because of that; epoch seconds."""
    marks: Mapping[str, int] | None = None
    job: JobState | None = None


@dataclass(slots=True)
class OutcomeRow:
    """What became of a URL, and when."""

    number: int
    status: int
    code: int
    at: float
    again_at: float | None
    reason: str
    state: dict[str, Any] | None


@dataclass(slots=True)
class JournalSite:
    """What is remembered of a site; times are epoch seconds."""

    delay: float
    """What the site asked for; 0 if nothing."""
    hold_until: float
    robots: dict[str, bytes]
    memo: dict[str, Any]
    closed: str


class Past:
    """What a journal remembers when it is opened; read once."""

    secret: bytes = b""
    epoch: int = 0
    job: JobState = "running"
    marks: Mapping[str, int] = {}
    lapses: Mapping[int, int] = {}
    dropped: Mapping[int, int] = {}
    """Visits that were stored, by the number of the URL, and are not among the outcomes any more."""
    hastened: Mapping[int, tuple[float, float]] = {}
    """As in a change; of URLs that were not visited since. To be read after the outcomes."""

    def sites(self) -> Iterator[tuple[int, str, JournalSite | None]]:
        """Number, name, and what was noted."""
        yield from ()

    def outcomes(self) -> Iterator[tuple[int, int, int, float | None, int]]:
        """Row, number of the URL, status, when it is due again, whether it left a state; in order of time."""
        yield from ()

    def urls(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Number, key, site, priority, depth and hops; in the order in which they were found."""
        yield from ()


class NotAtHand(FrontierError):
    """Requests that a journal has to read first, and not in the event loop; then the same lease succeeds."""

    def __init__(self, numbers: Sequence[int], visits: Mapping[int, int]) -> None:
        super().__init__("not read yet")
        self.numbers = numbers
        self.visits = {number: visits[number] for number in numbers if number in visits}


async def to_the_end(change: Coroutine[Any, Any, object]) -> None:
    """Let a change be written and applied whole, though its caller be cancelled; the cancellation comes after it."""
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
    """Where changes go. `write` returns when they are durable."""

    async def write(self, change: Change) -> Sequence[int]:
        """Keep a change; the row of each of its outcomes."""
        ...

    def load(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        """The requests of these numbers, with `state` of the outcome row that `visits` names."""
        ...

    def lookup(self, key: int) -> dict[str, Any] | None:
        """The story of one URL; None if it is not known."""
        ...

    def close(self) -> None:
        """Let go of the store."""
        ...


class MemoryJournal:
    """A journal that dies with the process."""

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
        # A copy: it is looked at from another thread.
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
    """Where a URL stands by what was written down of it, on a site that is perhaps closed; `now` is epoch seconds."""
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
    """A site by what was written down of it; what waits there, and who has it in hand, is not."""
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
