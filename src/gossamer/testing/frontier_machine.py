"""Hypothesis state machine for frontiers: random calls, compared with a model."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gossamer.frontier.base import Frontier
from gossamer.model import Counts, Lease, Outcome, Request, SiteNote
from gossamer.settings import Settings, SiteSettings
from gossamer.testing.harness import Harness, note, outcome, page

SITES = ("a.example", "b.example", "two.example")
"""The last site has two lanes once its robots.txt is known."""
DELIVERIES = 3


@dataclass
class Known:
    """A request of the model."""

    site: str
    state: str = "open"
    token: int = 0
    due_at: float = 0.0
    tries: int = 0
    lapses: int = 0
    revisit: bool = False


@dataclass
class ModelLease:
    """A lease that was not released yet; after `expires_at` the frontier may reclaim it."""

    lease: Lease
    worker: int
    expires_at: float
    keys: set[int]


@dataclass
class Place:
    """A site of the model."""

    delay: float = 1.0
    hold_until: float = 0.0
    closed: bool = False
    robots: bool = False
    lanes: int = 1
    ready_at: dict[int, float] = field(default_factory=dict)
    memo: dict[str, Any] = field(default_factory=dict)


class Model:
    """Requests, sites, and leases; `now` is in seconds since the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self.known: dict[int, Known] = {}
        self.places = {site: Place() for site in SITES}
        self.held: dict[int, ModelLease] = {}
        self.dead: list[tuple[Lease, bool]] = []
        """Ended leases, and whether the frontier may still know that all their requests were completed."""

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

    def end_lease(self, held: ModelLease, *, completed: bool, rests_since: float) -> None:
        """End a lease: the rest of its batch is queued again."""
        place = self.places[held.lease.site]
        del self.held[held.lease.token]
        self.dead.append((held.lease, completed))
        for key in held.keys:
            known = self.known[key]
            known.token = 0
            if known.state == "open" and place.closed:
                known.state = "failed"
        if place.robots and held.lease.site == SITES[-1] and place.lanes == 1:
            place.lanes = 2
            place.ready_at[1] = rests_since + place.delay

    def free(self, held: ModelLease) -> None:
        """End a lease, and start the delay of its lane."""
        place = self.places[held.lease.site]
        self.end_lease(held, completed=not held.keys, rests_since=self.now)
        place.ready_at[held.lease.lane] = self.now + place.delay * place.lanes

    def end_of(self, held: ModelLease) -> float:
        """When a lane with a dead holder can be leased again, delay included."""
        place = self.places[held.lease.site]
        return held.expires_at + place.delay * place.lanes

    def expire(self) -> None:
        """Reclaim expired leases."""
        for held in list(self.held.values()):
            if self.end_of(held) <= self.now:
                for key in held.keys:
                    known = self.known[key]
                    known.lapses += 1
                    if known.lapses >= DELIVERIES:
                        known.state = "parked"
                self.end_lease(held, completed=False, rests_since=self.now - self.end_of(held) + held.expires_at)

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

    def complete(self, held: ModelLease, result: Outcome) -> None:
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
        """All workers were killed: leases are void, and every site rests."""
        for held in list(self.held.values()):
            self.end_lease(held, completed=False, rests_since=self.now)
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
        """Future times at which the state changes without a call."""
        times = {known.due_at for known in self.known.values()}
        for place in self.places.values():
            times |= {place.hold_until, *place.ready_at.values()}
        for held in self.held.values():
            times |= {held.expires_at, self.end_of(held)}
        return sorted(time for time in times if time > self.now)


_LONG = 1_000_000.0
_SECONDS = 8.0

picks = st.integers(0, 1000)
two = st.integers(0, 1)
batches = st.integers(1, 4)
some_keys = st.sets(st.integers(1, 30), min_size=1, max_size=6)
words = st.lists(st.sampled_from(["done", "done", "failed", "skipped", "retry", "revisit"]), min_size=1, max_size=4)
learned = st.sampled_from(["", "", "robots", "robots", "hold", "delay", "memo", "close"])


class FrontierMachine(RuleBasedStateMachine):
    """Implement `open` as for `FrontierSuite`, with a virtual clock; then set `TestMine = MyMachine.TestCase`."""

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        """Open an empty frontier with these settings, and delete it afterwards."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        settings = Settings(delay=1.0, max_deliveries=DELIVERIES, sites={SITES[-1]: SiteSettings(lanes=2)})
        self.context = self.open(settings)
        self.harness: Harness = self.run(self.context.__aenter__())
        self.workers: list[Frontier] = []
        self.hired = 0
        self.model = Model()
        self.last_token: dict[str, int] = {}
        """One invariant per site, or for all sites of a single store."""
        self.stale = 0
        self.paused = False
        self._hire()

    def teardown(self) -> None:
        self.run(self.context.__aexit__(None, None, None))
        self.runner.close()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(call)

    @property
    def frontier(self) -> Frontier:
        return self.harness.frontier

    def _hire(self) -> None:
        while len(self.workers) < 2:
            self.hired += 1
            self.workers.append(self.run(self.harness.worker(f"worker-{self.hired}")))

    def _pick(self, number: int) -> ModelLease:
        return list(self.model.held.values())[number % len(self.model.held)]

    @rule(keys=some_keys)
    def add(self, keys: set[int]) -> None:
        requests = [page(key, SITES[key % 3]) for key in sorted(keys)]
        assert self.run(self.frontier.add(requests)) == self.model.add(requests)

    @rule(worker=two, batch=batches, seconds=st.sampled_from([4.0, 8.0, 12.0]))
    def lease(self, worker: int, batch: int, seconds: float) -> None:
        grant = self.run(self.workers[worker].lease(100, batch=batch, seconds=seconds))
        if self.paused:
            assert (grant.leases, grant.job) == ((), "paused")
            return
        self.model.expire()
        wanted = self.model.must_be_leased()
        for lease in sorted(grant.leases, key=lambda lease: lease.token):
            self._check(lease, batch)
            self.model.hold(lease, worker, seconds)
        assert wanted <= {lease.site for lease in grant.leases}
        held = self.model.held.values()
        assert sum(each.lease.suspect and each.worker == worker for each in held) <= 1
        if held:
            assert grant.wait is not None, "no worker may sleep past the end of a lease"
            assert self.model.now + grant.wait <= max(self.model.now, min(self.model.end_of(each) for each in held))

    def _check(self, lease: Lease, batch: int) -> None:
        model, place = self.model, self.model.places[lease.site]
        giver = "" if self.harness.one_store else lease.site
        assert lease.token > self.last_token.get(giver, 0)
        self.last_token[giver] = lease.token
        assert 1 <= len(lease.requests) <= (1 if lease.suspect else batch)
        assert all((lease.site, lease.lane) != (each.lease.site, each.lease.lane) for each in model.held.values())
        assert lease.lane < place.lanes
        assert not place.closed
        assert model.now >= max(place.ready_at.get(lease.lane, 0.0), place.hold_until), "the gap"
        assert (lease.delay, lease.memo) == (place.delay * place.lanes, place.memo)
        for request in lease.requests:
            known = model.known[request.key]
            assert (known.state, known.token, known.site) == ("open", 0, lease.site)
            assert known.due_at <= model.now
            assert (request.tries, lease.suspect) == (known.tries, known.lapses >= 2)

    def _notes(self, lease: Lease, what: str, size: int) -> list[SiteNote]:
        kinds: dict[str, dict[str, Any]] = {
            "hold": {"hold": float(size % 16)},
            "delay": {"delay": 1.0 + size % 3},
            "robots": {"robots": {f"http://{lease.site}": b"any"}},
            "memo": {"memo": {f"m{size % 3}": size}},
            "close": {"close": "dark"},
        }
        return [note(lease, **kinds[what])] if what else []

    @precondition(lambda self: self.model.held)
    @rule(pick=picks, given=words, keys=some_keys, what=learned, size=st.integers(1, 40), again=st.booleans())
    def complete(self, pick: int, given: list[str], keys: set[int], what: str, size: int, again: bool) -> None:
        held = self._pick(pick)
        lease, late = held.lease, self.model.now >= held.expires_at
        may_link = self.harness.one_store or not late
        links = tuple(page(key, SITES[key % 3]) for key in sorted(keys)) if pick % 2 and may_link else ()
        results: list[Outcome] = []
        for key, word in zip(sorted(held.keys), given, strict=False):
            again_in = {"retry": size / 4, "revisit": _LONG}.get(word)
            status: Any = "done" if word == "revisit" else word
            results.append(outcome(lease, key, status, again_in=again_in, links=links))
        notes = self._notes(lease, what, size)
        receipt = self.run(self.frontier.complete(results, notes=notes))
        if late and receipt.stale:
            assert (receipt.accepted, receipt.stale) == (0, len(results))
            self.stale += receipt.stale
            return
        assert (receipt.accepted, receipt.stale, receipt.repeated) == (len(results), 0, 0)
        for each in notes:
            self.model.note(each)
        for result in results:
            self.model.complete(held, result)
        if not held.keys:
            self.model.free(held)
        if again:
            receipt = self.run(self.frontier.complete(results))
            assert (receipt.accepted, receipt.stale, receipt.repeated) == (0, 0, len(results))

    @precondition(lambda self: self.model.dead)
    @rule(pick=picks, keys=some_keys, what=learned)
    def complete_late(self, pick: int, keys: set[int], what: str) -> None:
        lease, completed = self.model.dead[-1 - pick % len(self.model.dead)]
        # Links to another shard are sent before the token of the outcome is checked.
        links = tuple(page(key, SITES[key % 3]) for key in keys) if self.harness.one_store else ()
        late = [outcome(lease, request.key, links=links) for request in lease.requests]
        receipt = self.run(self.frontier.complete(late, notes=self._notes(lease, what, 40)))
        assert (receipt.accepted, receipt.stale + receipt.repeated) == (0, len(late))
        assert completed or receipt.repeated == 0
        self.stale += receipt.stale
        self.run(self.frontier.release([lease]))
        assert self.run(self.frontier.extend([lease], seconds=50.0)) == []

    @precondition(lambda self: self.model.held)
    @rule(pick=picks, seconds=st.integers(2, 14))
    def extend(self, pick: int, seconds: int) -> None:
        held = self._pick(pick)
        ours = self.run(self.frontier.extend([held.lease], seconds=float(seconds)))
        assert ours or self.model.now >= held.expires_at
        if ours:
            held.expires_at = self.model.now + seconds

    @precondition(lambda self: self.model.held)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        held = self._pick(pick)
        if self.model.now < held.expires_at:
            self.run(self.frontier.release([held.lease]))
            self.model.free(held)

    @rule(worker=two)
    def lose(self, worker: int) -> None:
        """Kill a worker in a way that the frontier notices at once."""
        self.run(self.harness.lose(self.workers.pop(worker)))
        for held in list(self.model.held.values()):
            if held.worker == worker:
                self.model.free(held)
            else:
                held.worker = 0
        self._hire()

    @rule(quarters=st.integers(1, 20))
    def advance(self, quarters: int) -> None:
        self._advance(quarters / 4)

    @rule(pick=picks, early=st.booleans(), worker=two, batch=batches)
    def lease_at_an_edge(self, pick: int, early: bool, worker: int, batch: int) -> None:
        """Advance to a time at which the state changes without a call, or to just before it."""
        edges = self.model.edges()
        if edges:
            self._advance(edges[pick % min(3, len(edges))] - self.model.now - (0.25 if early else 0.0))
        self.lease(worker, batch, _SECONDS)

    def _advance(self, seconds: float) -> None:
        self.run(self.harness.advance(seconds))
        self.model.now += seconds

    @precondition(lambda self: self.harness.durable)
    @rule(worker=two, batch=batches)
    def crash(self, worker: int, batch: int) -> None:
        self.run(self.harness.reopen())
        if self.harness.rests_after_crash:
            self.model.crash()
            self.stale = 0
        for held in list(self.model.held.values()):
            self.model.free(held)
        self.workers.clear()
        self._hire()
        self.lease(worker, batch, _SECONDS)

    @rule()
    def pause_or_resume(self) -> None:
        self.run(self.harness.steer("running" if self.paused else "paused"))
        self.paused = not self.paused

    @invariant()
    def counts_agree(self) -> None:
        counts: Counts = self.run(self.frontier.counts())
        known, held = self.model.known.values(), self.model.held.values()
        states = [each.state for each in known]
        waiting = states.count("open")
        assert counts.queued + counts.delayed + counts.leased == waiting
        assert counts.leased <= sum(len(each.keys) for each in held)
        assert counts.leased >= sum(len(each.keys) for each in held if self.model.now < each.expires_at)
        found = {word: getattr(counts, word) for word in ("done", "failed", "skipped", "parked")}
        assert found == {word: states.count(word) for word in found}
        assert counts.revisits == sum(each.revisit for each in known)
        assert (counts.known, counts.stale) == (len(known), self.stale)
        assert counts.sites == len({each.site for each in known})
        assert counts.finished == (waiting == 0)
        assert counts.job == ("paused" if self.paused else "running" if waiting else "finished")
