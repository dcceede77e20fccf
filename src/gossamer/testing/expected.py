"""What a frontier must know after a series of calls: the model that the state machine compares it with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gossamer.model import Lease, Outcome, Request, SiteNote

SITES = ("a.example", "b.example", "two.example")
"""The last one has two lanes, once its robots.txt is known."""
DELIVERIES = 3


@dataclass
class Known:
    """A request."""

    site: str
    state: str = "open"
    token: int = 0
    due_at: float = 0.0
    tries: int = 0
    lapses: int = 0
    revisit: bool = False


@dataclass
class ModelLease:
    """A lease that was not given back yet; after `expires_at` the frontier may take it back."""

    lease: Lease
    worker: int
    expires_at: float
    keys: set[int]


@dataclass
class Place:
    """A site."""

    delay: float = 1.0
    hold_until: float = 0.0
    closed: bool = False
    robots: bool = False
    lanes: int = 1
    ready_at: dict[int, float] = field(default_factory=dict)
    memo: dict[str, Any] = field(default_factory=dict)


class Model:
    """Requests, sites and leases; `now` is in seconds since the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self.known: dict[int, Known] = {}
        self.places = {site: Place() for site in SITES}
        self.held: dict[int, ModelLease] = {}
        self.dead: list[tuple[Lease, bool]] = []
        """Leases that are over, and whether the frontier may still know that all of it was settled."""

    def add(self, requests: Sequence[Request]) -> int:
        new = 0
        for request in requests:
            if request.key not in self.known:
                closed = self.places[request.site].closed
                self.known[request.key] = Known(request.site, "failed" if closed else "open")
                new += 1
        return new

    def hold(self, lease: Lease, worker: int, seconds: float) -> None:
        keys = {request.key for request in lease.requests}
        self.held[lease.token] = ModelLease(lease, worker, self.now + seconds, keys)
        for key in keys:
            self.known[key].token = lease.token

    def bury(self, held: ModelLease, *, settled: bool, rests_since: float) -> None:
        """The lease is over: what is left of its batch waits again."""
        place = self.places[held.lease.site]
        del self.held[held.lease.token]
        self.dead.append((held.lease, settled))
        for key in held.keys:
            known = self.known[key]
            known.token = 0
            if known.state == "open" and place.closed:
                known.state = "failed"
        if place.robots and held.lease.site == SITES[-1] and place.lanes == 1:
            place.lanes = 2
            place.ready_at[1] = rests_since + place.delay

    def free(self, held: ModelLease) -> None:
        """The lease is over, and its lane rests from now on."""
        place = self.places[held.lease.site]
        self.bury(held, settled=not held.keys, rests_since=self.now)
        place.ready_at[held.lease.lane] = self.now + place.delay * place.lanes

    def end_of(self, held: ModelLease) -> float:
        """When a lane whose holder is silent goes to others: it has rested by then."""
        place = self.places[held.lease.site]
        return held.expires_at + place.delay * place.lanes

    def lapse(self) -> None:
        """Take back the leases that have run out."""
        for held in list(self.held.values()):
            if self.end_of(held) <= self.now:
                for key in held.keys:
                    known = self.known[key]
                    known.lapses += 1
                    if known.lapses >= DELIVERIES:
                        known.state = "parked"
                self.bury(held, settled=False, rests_since=self.now - self.end_of(held) + held.expires_at)

    def note(self, given: SiteNote) -> None:
        place = self.places[given.site]
        place.hold_until = max(place.hold_until, self.now + (given.hold or 0.0))
        place.delay = given.delay or place.delay
        place.robots = place.robots or bool(given.robots)
        place.memo |= given.memo or {}
        if given.close:
            place.closed = True
            for known in self.known.values():
                if known.site == given.site:
                    known.revisit = False
                    if known.state == "open" and not known.token:
                        known.state = "failed"

    def settle(self, held: ModelLease, result: Outcome) -> None:
        known, closed = self.known[result.key], self.places[held.lease.site].closed
        held.keys.discard(result.key)
        known.token, known.lapses = 0, 0
        if result.status == "retry":
            known.tries += 1
            known.due_at = self.now + (result.again_in or 0.0)
            known.state = "failed" if closed else "open"
        else:
            known.state = result.status
            known.revisit = result.again_in is not None and not closed
        self.add(result.links)

    def crash(self) -> None:
        """Everybody was killed: leases are void, and every site rests."""
        for held in list(self.held.values()):
            self.bury(held, settled=False, rests_since=self.now)
        self.dead = [(lease, True) for lease, _ in self.dead]
        for site, place in self.places.items():
            place.lanes = 2 if place.robots and site == SITES[-1] else 1
            if any(known.site == site for known in self.known.values()):
                place.ready_at = {lane: self.now + place.delay * (1 + lane) for lane in range(place.lanes)}

    def must_be_leased(self) -> set[str]:
        """One-lane sites that are ready and have a request that is due and not suspect."""
        busy = {held.lease.site for held in self.held.values()}
        ready = {
            site
            for site in SITES[:-1]
            if site not in busy
            and self.now >= max(self.places[site].ready_at.get(0, 0.0), self.places[site].hold_until)
        }
        return {
            known.site
            for known in self.known.values()
            if known.state == "open" and known.site in ready and known.due_at <= self.now and known.lapses < 2
        }

    def edges(self) -> list[float]:
        """The times ahead at which something changes by the clock alone."""
        times = {known.due_at for known in self.known.values()}
        for place in self.places.values():
            times |= {place.hold_until, *place.ready_at.values()}
        for held in self.held.values():
            times |= {held.expires_at, self.end_of(held)}
        return sorted(time for time in times if time > self.now)
