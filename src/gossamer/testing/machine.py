"""The state machine of frontiers: random calls against a small model that says what must have come of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gossamer.frontier.base import Frontier
from gossamer.model import Counts, Lease, Request, SiteNote
from gossamer.settings import Settings, SiteSettings
from gossamer.testing.harness import Harness, note, outcome, page

SITES = ("a.example", "b.example", "two.example")
DELIVERIES = 3
_LONG = 1_000_000.0

choices = st.integers(0, 1000)
some_keys = st.sets(st.integers(1, 30), min_size=1, max_size=6)
statuses = st.lists(st.sampled_from(["done", "done", "failed", "skipped", "retry", "revisit"]), min_size=1, max_size=4)
learned = st.sampled_from(["", "", "robots", "robots", "hold", "delay", "memo", "close"])


@dataclass
class Known:
    """A request, as it must be."""

    site: str
    state: str = "open"
    token: int = 0
    due_at: float = 0.0
    tries: int = 0
    lapses: int = 0
    revisit: bool = False


@dataclass
class Held:
    """A lease that was not given back yet; after `expires_at` the frontier may take it back."""

    lease: Lease
    worker: int
    expires_at: float
    keys: set[int]


@dataclass
class Place:
    """A site, as it must be."""

    delay: float = 1.0
    hold_until: float = 0.0
    closed: bool = False
    robots: bool = False
    lanes: int = 1
    ready_at: dict[int, float] = field(default_factory=dict)
    memo: dict[str, Any] = field(default_factory=dict)


class FrontierMachine(RuleBasedStateMachine):
    """Give `open`, as for `FrontierSuite`; the clock must be virtual. Then `TestIt = MyMachine.TestCase`."""

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        """Open an empty frontier with these settings, and throw it away afterwards."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        settings = Settings(max_deliveries=DELIVERIES, sites={"two.example": SiteSettings(lanes=2)})
        self.context = self.open(settings)
        self.harness: Harness = self.run(self.context.__aenter__())
        self.workers: list[Frontier] = []
        self.born = 0
        self.now = 0.0
        self.known: dict[int, Known] = {}
        self.places = {site: Place() for site in SITES}
        self.held: dict[int, Held] = {}
        self.dead: list[tuple[Lease, bool]] = []
        self.last_token = 0
        self.stale = 0
        self.paused = False
        self._hire()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(call)

    def teardown(self) -> None:
        self.run(self.context.__aexit__(None, None, None))
        self.runner.close()

    def _hire(self) -> None:
        while len(self.workers) < 2:
            self.born += 1
            self.workers.append(self.run(self.harness.worker(f"worker-{self.born}")))

    @property
    def frontier(self) -> Frontier:
        return self.harness.frontier

    # What the calls mean.

    def _queue(self, requests: list[Request]) -> int:
        new = 0
        for request in requests:
            if request.key not in self.known:
                closed = self.places[request.site].closed
                self.known[request.key] = Known(request.site, "failed" if closed else "open")
                new += 1
        return new

    def _bury(self, held: Held, *, settled: bool) -> None:
        """The lease is over: what is left of its batch waits again, and its lane rests."""
        token, place = held.lease.token, self.places[held.lease.site]
        del self.held[token]
        self.dead.append((held.lease, settled))
        for key in held.keys:
            known = self.known[key]
            known.token = 0
            if known.state == "open" and place.closed:
                known.state = "failed"
        if place.robots and held.lease.site == "two.example" and place.lanes == 1:
            place.lanes = 2
            place.ready_at[1] = self.now + place.delay

    def _rest(self, held: Held) -> None:
        place = self.places[held.lease.site]
        self._bury(held, settled=not held.keys)
        place.ready_at[held.lease.lane] = self.now + place.delay * place.lanes

    def _lapse(self) -> None:
        for held in list(self.held.values()):
            place = self.places[held.lease.site]
            if held.expires_at + place.delay * place.lanes <= self.now:
                for key in held.keys:
                    known = self.known[key]
                    known.lapses += 1
                    if known.lapses >= DELIVERIES:
                        known.state = "parked"
                self._bury(held, settled=False)

    def _note(self, lease: Lease, what: str, size: int) -> list[SiteNote]:
        kinds: dict[str, dict[str, Any]] = {
            "hold": {"hold": float(size % 16)},
            "delay": {"delay": 1.0 + size % 3},
            "robots": {"robots": {f"http://{lease.site}": b"any"}},
            "memo": {"memo": {f"m{size % 3}": size}},
            "close": {"close": "dark"},
        }
        return [note(lease, **kinds[what])] if what else []

    def _apply_note(self, given: SiteNote) -> None:
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

    def _apply_outcome(self, held: Held, key: int, status: str, again_in: float | None) -> None:
        known, closed = self.known[key], self.places[held.lease.site].closed
        held.keys.discard(key)
        known.token, known.lapses = 0, 0
        if status == "retry":
            known.tries += 1
            known.due_at = self.now + (again_in or 0.0)
            known.state = "failed" if closed else "open"
        else:
            known.state = status
            known.revisit = again_in is not None and not closed

    # What is done to it.

    @rule(keys=some_keys)
    def add(self, keys: set[int]) -> None:
        requests = [page(key, SITES[key % 3]) for key in sorted(keys)]
        assert self.run(self.frontier.add(requests)) == self._queue(requests)

    @rule(worker=st.integers(0, 1), batch=st.integers(1, 4), ticks=st.sampled_from([4.0, 8.0, 12.0]))
    def lease(self, worker: int, batch: int, ticks: float) -> None:
        grant = self.run(self.workers[worker].lease(100, batch=batch, seconds=ticks))
        if self.paused:
            assert (grant.leases, grant.job) == ((), "paused")
            return
        self._lapse()
        wanted = self._must_be_leased()
        for lease in sorted(grant.leases, key=lambda lease: lease.token):
            self._check(lease, batch)
            keys = {request.key for request in lease.requests}
            self.held[lease.token] = Held(lease, worker, self.now + ticks, keys)
            for key in keys:
                self.known[key].token = lease.token
        assert wanted <= {lease.site for lease in grant.leases}
        suspects = [held for held in self.held.values() if held.lease.suspect and held.worker == worker]
        assert len(suspects) <= 1
        self._check_wait(grant.wait)

    def _must_be_leased(self) -> set[str]:
        """One-lane sites that are ready and have a request that is due and not suspect."""
        busy = {held.lease.site for held in self.held.values()}
        ready = {
            site
            for site in SITES[:2]
            if site not in busy
            and self.now >= max(self.places[site].ready_at.get(0, 0.0), self.places[site].hold_until)
        }
        return {
            known.site
            for known in self.known.values()
            if known.state == "open" and known.site in ready and known.due_at <= self.now and known.lapses < 2
        }

    def _check(self, lease: Lease, batch: int) -> None:
        place = self.places[lease.site]
        assert lease.token > self.last_token
        self.last_token = lease.token
        assert 1 <= len(lease.requests) <= (1 if lease.suspect else batch)
        assert all((lease.site, lease.lane) != (held.lease.site, held.lease.lane) for held in self.held.values())
        assert lease.lane < place.lanes
        assert not place.closed
        assert self.now >= max(place.ready_at.get(lease.lane, 0.0), place.hold_until), "the gap"
        assert (lease.delay, lease.memo) == (place.delay * place.lanes, place.memo)
        for request in lease.requests:
            known = self.known[request.key]
            assert (known.state, known.token, known.site) == ("open", 0, lease.site)
            assert known.due_at <= self.now
            assert (request.tries, lease.suspect) == (known.tries, known.lapses >= 2)

    def _check_wait(self, wait: float | None) -> None:
        """Nobody sleeps through the end of a lease, or through what is due on a site that nobody holds."""
        ends = [held.expires_at + 2 * self.places[held.lease.site].delay for held in self.held.values()]
        if ends:
            assert wait is not None
            assert self.now + wait <= max(min(ends), self.now)

    @precondition(lambda self: self.held)
    @rule(pick=choices, given=statuses, keys=some_keys, what=learned, size=st.integers(1, 40), again=st.booleans())
    def complete(self, pick: int, given: list[str], keys: set[int], what: str, size: int, again: bool) -> None:
        held = list(self.held.values())[pick % len(self.held)]
        lease, late = held.lease, self.now >= held.expires_at
        links = tuple(page(key, SITES[key % 3]) for key in sorted(keys)) if pick % 2 else ()
        results = []
        for key, word in zip(sorted(held.keys), given, strict=False):
            again_in = {"retry": size / 4, "revisit": _LONG}.get(word)
            status: Any = "done" if word == "revisit" else word
            results.append(outcome(lease, key, status, again_in=again_in, links=links))
        notes = self._note(lease, what, size)
        receipt = self.run(self.frontier.complete(results, notes=notes))
        assert receipt.accepted + receipt.stale == len(results)
        if late and receipt.stale:
            self.stale += receipt.stale
            return
        assert receipt.stale == 0
        for each in notes:
            self._apply_note(each)
        for result in results:
            self._apply_outcome(held, result.key, result.status, result.again_in)
            self._queue(list(result.links))
        if not held.keys:
            self._rest(held)
        if again:
            self._repeat(results)

    def _repeat(self, results: list[Any]) -> None:
        receipt = self.run(self.frontier.complete(results))
        assert (receipt.accepted, receipt.stale, receipt.repeated) == (0, 0, len(results))

    @precondition(lambda self: self.dead)
    @rule(pick=choices, keys=some_keys, what=learned)
    def complete_late(self, pick: int, keys: set[int], what: str) -> None:
        lease, settled = self.dead[-1 - pick % len(self.dead)]
        links = tuple(page(key, SITES[key % 3]) for key in keys)
        late = [outcome(lease, request.key, links=links) for request in lease.requests]
        receipt = self.run(self.frontier.complete(late, notes=self._note(lease, what, 40)))
        assert receipt.accepted == 0
        assert receipt.stale + receipt.repeated == len(late)
        assert settled or receipt.repeated == 0
        self.stale += receipt.stale
        self.run(self.frontier.release([lease]))
        assert self.run(self.frontier.extend([lease], seconds=50.0)) == []

    @precondition(lambda self: self.held)
    @rule(pick=choices, ticks=st.integers(2, 14))
    def extend(self, pick: int, ticks: int) -> None:
        held = list(self.held.values())[pick % len(self.held)]
        late = self.now >= held.expires_at
        ours = self.run(self.frontier.extend([held.lease], seconds=float(ticks)))
        assert ours or late
        if ours:
            held.expires_at = self.now + ticks

    @precondition(lambda self: self.held)
    @rule(pick=choices)
    def release(self, pick: int) -> None:
        held = list(self.held.values())[pick % len(self.held)]
        if self.now < held.expires_at:
            self.run(self.frontier.release([held.lease]))
            self._rest(held)

    @rule(worker=st.integers(0, 1))
    def lose(self, worker: int) -> None:
        self.run(self.harness.lose(self.workers.pop(worker)))
        for held in list(self.held.values()):
            if held.worker == worker:
                self._rest(held)
            else:
                held.worker = 0
        self._hire()

    @rule(quarters=st.integers(1, 20))
    def advance(self, quarters: int) -> None:
        self._advance(quarters / 4)

    @rule(pick=choices, early=st.booleans(), worker=st.integers(0, 1), batch=st.integers(1, 4))
    def lease_at_an_edge(self, pick: int, early: bool, worker: int, batch: int) -> None:
        """When something changes by the clock alone, or a moment before."""
        edges = {known.due_at for known in self.known.values()}
        for place in self.places.values():
            edges |= {place.hold_until, *place.ready_at.values()}
        for held in self.held.values():
            place = self.places[held.lease.site]
            edges |= {held.expires_at, held.expires_at + place.delay * place.lanes}
        ahead = sorted(edge for edge in edges if edge > self.now)
        if ahead:
            self._advance(ahead[pick % min(3, len(ahead))] - self.now - (0.25 if early else 0.0))
        self.lease(worker, batch, 8.0)

    def _advance(self, ticks: float) -> None:
        self.run(self.harness.advance(ticks))
        self.now += ticks

    @precondition(lambda self: self.harness.durable)
    @rule(worker=st.integers(0, 1), batch=st.integers(1, 4))
    def crash(self, worker: int, batch: int) -> None:
        self.run(self.harness.reopen())
        for held in list(self.held.values()):
            self._bury(held, settled=False)
        self.dead = [(lease, True) for lease, _ in self.dead]
        for site, place in self.places.items():
            place.lanes = 2 if place.robots and site == "two.example" else 1
            if any(known.site == site for known in self.known.values()):
                place.ready_at = {lane: self.now + place.delay * (1 + lane) for lane in range(place.lanes)}
        self.stale = 0
        self.workers.clear()
        self._hire()
        self.lease(worker, batch, 8.0)

    @rule()
    def pause(self) -> None:
        self.run(self.harness.steer("running" if self.paused else "paused"))
        self.paused = not self.paused

    # What always holds.

    @invariant()
    def counts_agree(self) -> None:
        counts: Counts = self.run(self.frontier.counts())
        states = [known.state for known in self.known.values()]
        waiting = states.count("open")
        assert counts.queued + counts.delayed + counts.leased == waiting
        assert counts.leased <= sum(len(held.keys) for held in self.held.values())
        assert counts.leased >= sum(len(held.keys) for held in self.held.values() if self.now < held.expires_at)
        found = {word: getattr(counts, word) for word in ("done", "failed", "skipped", "parked")}
        assert found == {word: states.count(word) for word in found}
        assert counts.revisits == sum(known.revisit for known in self.known.values())
        assert (counts.known, counts.stale) == (len(self.known), self.stale)
        assert counts.sites == len({known.site for known in self.known.values()})
        assert counts.finished == (waiting == 0)
        assert counts.job == ("paused" if self.paused else "running" if waiting else "finished")
