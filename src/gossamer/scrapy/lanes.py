"""The lanes that this process holds: whose turn it is, and when; no I/O, and the time is given."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from scrapy import Request as ScrapyRequest

from gossamer import model
from gossamer.model import Lease, Outcome, Status

_LAST_PART = 10.0
"""Seconds before the end of a lease in which nothing is sent any more: names are looked up and connections made."""


_PATIENCE = 0.1


@dataclass(eq=False, slots=True)
class ScrapyLane:
    """A lease with what is left of its batch."""

    lease: Lease
    deadline: float
    waiting: deque[model.Request]
    free_at: float = 0.0
    """When the next request may be sent."""
    ticket: Ticket | None = None
    """The request that is on its way to the downloader, or in it."""
    on_wire: bool = False
    lost: bool = False
    open: int = 0
    """Requests that were handed out and are not settled."""

    def ends(self, at: float) -> None:
        """The lease is ours until then."""
        self.deadline = at - min(_LAST_PART, self.lease.ttl / 3)


@dataclass(eq=False, slots=True)
class Ticket:
    """A leased request on its way through Scrapy, and what it has led to so far."""

    number: int
    lane: ScrapyLane
    kept: model.Request
    request: ScrapyRequest
    links: list[model.Request] = field(default_factory=list)
    alike: Counter[bytes] = field(default_factory=Counter)
    """How often each fingerprint was met among the requests that must not be filtered."""
    status: Status = "failed"
    code: int = 0
    reason: str = "no-answer"
    void: bool = False
    """Whether something of it could not be stored: it must not be settled."""

    def outcome(self) -> Outcome:
        """What became of it, for the frontier."""
        lease = self.lane.lease
        return Outcome(
            site=lease.site,
            lane=lease.lane,
            token=lease.token,
            key=self.kept.key,
            status=self.status,
            code=self.code,
            reason=self.reason,
            links=tuple(self.links),
        )


class Lanes:
    """All lanes of this process, and the tickets that are out."""

    def __init__(self) -> None:
        self.tickets: dict[int, Ticket] = {}
        self._lanes: dict[int, ScrapyLane] = {}
        self._sites: dict[str, ScrapyLane] = {}
        self._due: list[tuple[float, int, ScrapyLane]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._lanes)

    def take(self, leases: Sequence[Lease], *, sent_at: float) -> None:
        """Hold these, asked for at that time."""
        for lease in leases:
            lane = ScrapyLane(lease, 0.0, deque(lease.requests))
            lane.ends(sent_at + lease.ttl)
            self._lanes[lease.token] = lane
            if lease.lanes == 1:
                self._sites[lease.site] = lane
            self._line_up(lane, lane.free_at)

    def next(self, now: float) -> tuple[ScrapyLane, model.Request] | None:
        """The next request whose time has come."""
        while self._due and self._due[0][0] <= now:
            _, _, lane = heapq.heappop(self._due)
            if lane.ticket is None and lane.waiting:
                if lane.free_at > now:
                    self._line_up(lane, lane.free_at)
                elif now >= lane.deadline:
                    # The word that it is ours for longer, or lost, is on its way.
                    self._line_up(lane, now + _PATIENCE)
                else:
                    return lane, lane.waiting.popleft()
        return None

    def hand_out(self, lane: ScrapyLane, kept: model.Request, request: ScrapyRequest) -> Ticket:
        """A ticket for a request that goes to Scrapy; the lane waits for its return from the downloader."""
        self._count += 1
        ticket = Ticket(self._count, lane, kept, request)
        self.tickets[ticket.number] = lane.ticket = ticket
        lane.open += 1
        return ticket

    def returned(self, lane: ScrapyLane) -> None:
        """The lane's request is out of the downloader: the next may go when the delay is over."""
        lane.ticket = None
        self._line_up(lane, lane.free_at)

    def settled(self, ticket: Ticket) -> None:
        """Nothing more comes of this ticket."""
        del self.tickets[ticket.number]
        lane = ticket.lane
        lane.open -= 1
        if lane.ticket is ticket:
            self.returned(lane)
        if not lane.open and not lane.waiting:
            self._forget(lane)

    def skipped(self, lane: ScrapyLane) -> None:
        """The request that was taken last is settled without Scrapy."""
        self._line_up(lane, lane.free_at)
        if not lane.open and not lane.waiting:
            self._forget(lane)

    def of_site(self, site: str) -> ScrapyLane | None:
        """The lane that is all of this site, if it is ours."""
        return self._sites.get(site)

    def renew(self, ends: dict[int, float], lost: Sequence[int]) -> None:
        """Leases that are ours until then, and those that are no more."""
        for token, at in ends.items():
            if token in self._lanes:
                self._lanes[token].ends(at)
        for token in lost:
            if token in self._lanes:
                self._drop(self._lanes[token])

    def next_at(self) -> float | None:
        """When a request is due; None if none waits for its time."""
        return self._due[0][0] if self._due else None

    def has_waiting(self) -> bool:
        """Whether requests wait for their turn here."""
        return any(lane.waiting for lane in self._lanes.values())

    def busy(self, now: float) -> int:
        """Lanes that fetch or could: not those that sleep out their delay, or whose pages are only being handled."""
        return sum(
            lane.ticket is not None or (bool(lane.waiting) and lane.free_at <= now) for lane in self._lanes.values()
        )

    def _line_up(self, lane: ScrapyLane, at: float) -> None:
        if lane.waiting:
            self._count += 1
            heapq.heappush(self._due, (at, self._count, lane))

    def _drop(self, lane: ScrapyLane) -> None:
        lane.lost = True
        lane.waiting.clear()
        if not lane.open:
            self._forget(lane)

    def _forget(self, lane: ScrapyLane) -> None:
        self._lanes.pop(lane.lease.token, None)
        if self._sites.get(lane.lease.site) is lane:
            del self._sites[lane.lease.site]
