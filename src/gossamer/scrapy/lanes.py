"""The lanes that this process leases, and when each may send its next request; no I/O, and time is a parameter."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from scrapy import Request as ScrapyRequest

from gossamer import model
from gossamer.model import Lease, Outcome, Status

_LAST_PART = 10.0
"""Seconds before the end of a lease in which no request is started: DNS and connecting take time."""


_RECHECK_SECONDS = 0.1


@dataclass(eq=False, slots=True)
class ScrapyLane:
    """A lease with the remaining requests of its batch."""

    lease: Lease
    deadline: float
    waiting: deque[model.Request]
    free_at: float = 0.0
    """Earliest time of the next request."""
    ticket: Ticket | None = None
    """The request that is in the downloader, or on its way there."""
    on_wire: bool = False
    lost: bool = False
    open: int = 0
    """Number of requests that Scrapy processes."""

    def ends(self, at: float) -> None:
        """Set the end of the lease."""
        self.deadline = at - min(_LAST_PART, self.lease.ttl / 3)


@dataclass(eq=False, slots=True)
class Ticket:
    """A leased request in Scrapy, with the links and the result so far."""

    number: int
    lane: ScrapyLane
    kept: model.Request
    request: ScrapyRequest
    links: list[model.Request] = field(default_factory=list)
    alike: Counter[bytes] = field(default_factory=Counter)
    """Number of requests with `dont_filter` per fingerprint."""
    status: Status = "failed"
    code: int = 0
    reason: str = "no-answer"
    void: bool = False
    """Whether one of its requests could not be stored; then its outcome must not be sent."""

    def outcome(self) -> Outcome:
        """The outcome for the frontier."""
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
    """All lanes of this process, and the tickets of their requests."""

    def __init__(self) -> None:
        self.tickets: dict[int, Ticket] = {}
        self._lanes: dict[int, ScrapyLane] = {}
        self._sites: dict[str, ScrapyLane] = {}
        self._due: list[tuple[float, int, ScrapyLane]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._lanes)

    def take(self, leases: Sequence[Lease], *, sent_at: float) -> None:
        """Add leases that were requested at `sent_at`."""
        for lease in leases:
            lane = ScrapyLane(lease, 0.0, deque(lease.requests))
            lane.ends(sent_at + lease.ttl)
            self._lanes[lease.token] = lane
            if lease.lanes == 1:
                self._sites[lease.site] = lane
            self._schedule(lane, lane.free_at)

    def next(self, now: float) -> tuple[ScrapyLane, model.Request] | None:
        """The next request that is due."""
        while self._due and self._due[0][0] <= now:
            _, _, lane = heapq.heappop(self._due)
            if lane.ticket is None and lane.waiting:
                if lane.free_at > now:
                    self._schedule(lane, lane.free_at)
                elif now >= lane.deadline:
                    # Wait for the renewal, or for the loss, of the lease.
                    self._schedule(lane, now + _RECHECK_SECONDS)
                else:
                    return lane, lane.waiting.popleft()
        return None

    def hand_out(self, lane: ScrapyLane, kept: model.Request, request: ScrapyRequest) -> Ticket:
        """Create a ticket for a request that goes to Scrapy; the lane is blocked until the downloader returns it."""
        self._count += 1
        ticket = Ticket(self._count, lane, kept, request)
        self.tickets[ticket.number] = lane.ticket = ticket
        lane.open += 1
        return ticket

    def returned(self, lane: ScrapyLane) -> None:
        """The downloader has returned the lane's request: schedule the next one after the delay."""
        lane.ticket = None
        self._schedule(lane, lane.free_at)

    def finish(self, ticket: Ticket) -> None:
        """Remove the ticket of a finished request."""
        del self.tickets[ticket.number]
        lane = ticket.lane
        lane.open -= 1
        if lane.ticket is ticket:
            self.returned(lane)
        if not lane.open and not lane.waiting:
            self._forget(lane)

    def skipped(self, lane: ScrapyLane) -> None:
        """The last request is completed without Scrapy."""
        self._schedule(lane, lane.free_at)
        if not lane.open and not lane.waiting:
            self._forget(lane)

    def of_site(self, site: str) -> ScrapyLane | None:
        """The lane of a site that has a single lane, if this process leases it."""
        return self._sites.get(site)

    def renew(self, ends: dict[int, float], lost: Sequence[int]) -> None:
        """Update the ends of renewed leases, and drop lost ones."""
        for token, at in ends.items():
            if token in self._lanes:
                self._lanes[token].ends(at)
        for token in lost:
            if token in self._lanes:
                self._drop(self._lanes[token])

    def next_at(self) -> float | None:
        """Time of the next due request; None if there is none."""
        return self._due[0][0] if self._due else None

    def has_waiting(self) -> bool:
        """Whether any lane has waiting requests."""
        return any(lane.waiting for lane in self._lanes.values())

    def busy(self, now: float) -> int:
        """Number of lanes that fetch or could fetch now; excludes those in their delay or in callbacks."""
        return sum(
            lane.ticket is not None or (bool(lane.waiting) and lane.free_at <= now) for lane in self._lanes.values()
        )

    def _schedule(self, lane: ScrapyLane, at: float) -> None:
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
