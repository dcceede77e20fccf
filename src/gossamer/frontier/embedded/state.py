"""The memory of the embedded frontier, and how it is rebuilt from the journal at start.

`State` adds to the schedule everything that does not depend on time: which keys are known, what is leased under which
token, what was lost with its worker, and when the job is finished. It writes nothing and never waits. `frontier`
changes it only after the journal has written the change, with two exceptions that it can undo:

- Keys enter the seen set when a change is planned, before it is written, because two pages in one commit may have the
  same link. Meanwhile they are in `unwritten`, so that `unknown` still reports them as new; `forget` removes them if
  the write fails. If they were reported as known before that, workers would never send these links again (P1, P3).
- Losses are counted when they are found, and collected in `new_lapses` until the next write. If the owner dies before
  that, the requests have one loss less.

`restore` reads the sites first, then all outcomes, then all URLs, in one pass each. The last outcome of a URL decides
whether it is done, or when it is due again; a URL without one is queued. Leases are not stored, so leased requests are
queued again (P9), and every site waits one delay, since a request may just have been sent (P5). Times in the journal
are epoch seconds; a wall clock that was set back must not make a hold endless, so holds are capped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Any, NamedTuple

from gossamer.clock import Clock
from gossamer.frontier import policy, recrawl
from gossamer.frontier.embedded import journal as kept
from gossamer.frontier.embedded.journal import Change, JournalSite, Past
from gossamer.frontier.embedded.schedule import Lane, Schedule, Site
from gossamer.frontier.recrawl import Population
from gossamer.model import Counts, JobState, Outcome, Request
from gossamer.redact import masked_memo
from gossamer.settings import Settings

NO_LIMIT = 1 << 62


class State:
    """The memory of one job. It reads the clock and writes nothing: the journal writes each change before it is
    applied."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.schedule = Schedule(settings)
        self.population = Population()
        self.seen: set[int] = set()
        self.unwritten: set[int] = set()
        """The seen keys of changes that are not written yet."""
        self.held: dict[int, Lane] = {}
        """Token -> the lane that it holds. A token that is not here is stale (P4)."""
        self.held_suspects: dict[int, Lane] = {}
        self.tries: dict[int, int] = {}
        self.visits: dict[int, int] = {}
        """Number -> the row of the outcome whose `state` goes out with the URL's next lease."""
        self.hints: dict[int, float] = {}
        """Number -> the reported time of change that brought the URL's next visit forward."""
        self.new_sites: list[Site] = []
        self.new_lapses: dict[int, int] = {}
        self.job: JobState = "running"
        self.last_number = 0
        self.last_token = 0
        self.news = 0
        self.stored = self.stale = 0
        self._totals = {kept.DONE: 0, kept.FAILED: 0, kept.SKIPPED: 0, kept.PARKED: 0}

    def count(self, status: int, by: int = 1) -> None:
        """Count URLs that reached this final status; a retry is not final."""
        if status in self._totals:
            self._totals[status] += by

    def site(self, name: str, number: int = 0) -> Site:
        """Return the site of that name, created if it is new."""
        site = self.schedule.sites.get(name)
        if site is None:
            now = self.clock.monotonic()
            site = self.schedule.site(name, number or len(self.schedule.sites) + 1, ready_at=now)
            if not self.settings.robots:
                self.schedule.open_lanes(site, now)
            self.new_sites.append(site)
        return site

    def slow_down(self, site: Site, asked_delay: float) -> None:
        """Apply the delay that the site asks for, if it is longer than our own."""
        site.asked_delay = asked_delay
        site.delay = max(self.settings.for_site(site.name).delay or 0.0, asked_delay)

    def limit(self, settings: Settings) -> None:
        """Apply other limits and delays from now on; current leases keep their delay."""
        self.settings = self.schedule.settings = settings
        for site in self.schedule.sites.values():
            self.slow_down(site, site.asked_delay)

    def plan_urls(self, change: Change, requests: Sequence[Request], parent: int) -> None:
        """Number the requests that are new, and add them to the change; `forget` undoes that.

        A known request may carry a hint that its page has changed, which is added to the change."""
        for request in requests:
            if request.key not in self.seen:
                self.seen.add(request.key)
                self.unwritten.add(request.key)
                self.last_number += 1
                change.urls.append((self.last_number, request, self.site(request.site).number, parent))
            elif self.settings.recrawl and (hint := recrawl.hint_of(request)) is not None:
                change.hints.setdefault(request.site, {})[request.key] = hint

    def unknown(self, keys: set[int]) -> set[int]:
        """Return those of these keys that are new, or not written yet: if the write fails, they are new again."""
        return (keys - self.seen) | (keys & self.unwritten)

    def forget(self, change: Change) -> None:
        """Undo `plan_urls` because the change was not written. Its numbers are not used again."""
        keys = {request.key for _, request, _, _ in change.urls}
        self.seen -= keys
        self.unwritten -= keys

    def enqueue(self, change: Change) -> None:
        """Queue the new URLs of a change that is on disk. On a closed site they are finished at once."""
        strategy = self.settings.strategy
        for number, request, _, _ in change.urls:
            self.unwritten.discard(request.key)
            site = self.schedule.sites[request.site]
            if site.closed:
                self.count(closed_status(site.closed))
                continue
            rank = policy.rank(strategy, priority=request.priority, depth=request.depth, hops=request.hops)
            self.schedule.push(site, number, rank)
        if not self.unwritten:
            # A set keeps its largest capacity, and each intersection with it walks over all of it.
            self.unwritten.clear()

    def take_back(self, lane: Lane, now: float, *, blamed: frozenset[int]) -> None:
        """Take a lane from a holder that is gone; `now` is when the lane is ready again.

        Each blamed request gets a loss. With two losses it is a suspect, which is leased alone; with `max_deliveries`
        it is parked for good (P10). The rest of the batch goes back to the head of the queue, unless it is blamed too.
        """
        schedule = self.schedule
        for key, number in list(lane.batch.items()):
            if number not in blamed:
                continue
            lapses = schedule.lapses[number] = self.new_lapses[number] = schedule.lapses.get(number, 0) + 1
            if lapses >= self.settings.max_deliveries:
                schedule.finish(lane, key)
                self.count(kept.PARKED)
        self.free(lane, now - schedule.lane_delay(lane.site))

    def expire_leases(self, now: float) -> None:
        """Take back all expired lanes. Needed where `due`, which would find them, is not called."""
        for lane in list(self.held.values()):
            if self.is_lost(lane, now):
                self.expire(lane, now)

    def expire(self, lane: Lane, now: float) -> None:
        """Take back a lane whose lease has expired, with a loss for its requests unless the holder is excused.

        The whole batch is blamed, because nothing names the request that the holder was handling. Innocent requests
        lose the count as soon as they have an outcome."""
        self.take_back(lane, now, blamed=frozenset() if lane.excused else frozenset(lane.batch.values()))

    def blame(self, number: int, site: Site) -> None:
        """Count a loss against a queued request, and queue it at the head, as a suspect, or not at all."""
        schedule = self.schedule
        if not schedule.withdraw(site, number):
            return
        lapses = schedule.lapses[number] = self.new_lapses[number] = schedule.lapses.get(number, 0) + 1
        if lapses >= self.settings.max_deliveries:
            self.count(kept.PARKED)
        else:
            schedule.push(site, number, policy.HEAD)

    def hold(self, lane: Lane) -> None:
        """Register a leased lane under its token."""
        self.held[lane.token] = lane
        if lane.suspect:
            self.held_suspects[lane.token] = lane

    def is_lost(self, lane: Lane, now: float) -> bool:
        """Return whether the lane's lease ended one delay ago or earlier, and no commit holds it."""
        return not lane.settling and lane.expires_at + self.schedule.lane_delay(lane.site) <= now

    def has_suspect(self, worker: str, now: float) -> bool:
        """Return whether the worker already holds a suspect: with two, its death would not show which one caused it."""
        held = self.held_suspects.values()
        return any(lane.worker == worker and not self.is_lost(lane, now) for lane in held)

    def next_expiry(self) -> float | None:
        """Return when the first of the held lanes is taken back, unless its holder renews it."""
        ends = (lane.expires_at + self.schedule.lane_delay(lane.site) for lane in self.held.values())
        return min(ends, default=None)

    def was_committed(self, outcome: Outcome) -> bool:
        """Return whether the outcome's lane completed its last batch under this token: then it is a repetition."""
        site = self.schedule.sites.get(outcome.site)
        lanes = site.lanes if site is not None else []
        return outcome.lane < len(lanes) and lanes[outcome.lane].last_token == outcome.token

    def free(self, lane: Lane, now: float) -> None:
        """End a lane's lease: it is ready for others one delay from `now`.

        The site may have been closed while the lane was leased: what comes back is dropped then."""
        site = lane.site
        self.held.pop(lane.token, None)
        self.held_suspects.pop(lane.token, None)
        if site.robots or not self.settings.robots:
            # Not while it is leased: the holder of a site's only lane keeps the delay of the whole site.
            self.schedule.open_lanes(site, now)
        self.schedule.free(lane, now)
        if site.closed:
            self.close(site, site.closed)
        self.news += 1

    def close(self, site: Site, reason: str) -> None:
        """Drop everything that waits on a site, and count it as failed or skipped."""
        self.count(closed_status(reason), self.schedule.close(site, reason))

    def spend(self, site: Site) -> None:
        """Close a site whose budget is used up, once none of its lanes is leased: leased requests may still come
        back."""
        if not site.leased and not site.closed:
            self.close(site, "budget")
            self.news += 1

    def room(self) -> int:
        """Return how many more requests `max_pages` allows to lease now: a leased request counts as if stored."""
        limit = self.settings.max_pages
        return NO_LIMIT if limit is None else limit - self.stored - self.schedule.leased

    def is_over(self) -> bool:
        """Return whether nothing is left to lease, and nothing is leased that could bring more (P6).

        A held site still has its requests in the queue, and a retry is delayed, so neither is forgotten. Revisits that
        are not due yet do not count, except in a continuous crawl, which waits for them."""
        schedule = self.schedule
        if schedule.leased:
            return False
        if self.settings.max_pages is not None and self.stored >= self.settings.max_pages:
            return True
        if schedule.queued + schedule.delayed > len(schedule.revisits):
            return False
        if not schedule.revisits:
            return True
        return not self.settings.recrawl and not schedule.has_due_revisits(self.clock.monotonic())

    @property
    def job_state(self) -> JobState:
        """Return whether the job is running, paused, stopping, or finished."""
        return "finished" if self.job == "running" and self.is_over() else self.job

    def counts(self) -> Counts:
        """Return the counts of the job. It walks over all sites."""
        schedule, now = self.schedule, self.clock.monotonic()
        ready = held = 0
        for site in schedule.sites.values():
            if site.queue.size or site.suspects or site.delayed:
                held += site.hold_until > now
                ready += site.hold_until <= now and any(not lane.token and lane.next_at <= now for lane in site.lanes)
        totals = {status: total - schedule.returned[status] for status, total in self._totals.items()}
        return Counts(
            queued=schedule.queued,
            delayed=schedule.delayed - len(schedule.revisits),
            leased=schedule.leased,
            done=totals[kept.DONE],
            failed=totals[kept.FAILED],
            skipped=totals[kept.SKIPPED],
            parked=totals[kept.PARKED],
            stale=self.stale,
            stored=self.stored,
            revisits=len(schedule.revisits),
            freshness=self.population.freshness(),
            known=len(self.seen),
            sites=len(schedule.sites),
            ready_sites=ready,
            held_sites=held,
            active_sites=len({lane.site.number for lane in self.held.values()}),
            job=self.job_state,
            finished=self.is_over(),
        )

    def describe(self, site: Site) -> dict[str, Any]:
        """Describe a site for a list."""
        return {
            "site": site.name,
            "queued": site.queue.size + len(site.suspects),
            "delayed": len(site.delayed),
            "leased": site.leased,
            "stored": site.stored,
            "delay": site.delay,
            "lanes": len(site.lanes),
            "hold": max(0.0, site.hold_until - self.clock.monotonic()),
            "closed": site.closed,
            "memo": masked_memo(site.memo),
        }

    def every_site(self, after: str, limit: int) -> tuple[list[Mapping[str, Any]], str]:
        """Return sites by name, and the cursor for the next call."""
        sites = self.schedule.sites
        names = nsmallest(limit + 1, (name for name in sites if name > after))
        found: list[Mapping[str, Any]] = [self.describe(sites[name]) for name in names[:limit]]
        return found, names[limit - 1] if len(names) > limit else ""

    def inspect(self, site: Site) -> dict[str, Any]:
        """Return everything that is known about a site."""
        now, schedule = self.clock.monotonic(), self.schedule
        ready = (lane.expires_at + schedule.lane_delay(site) if lane.token else lane.next_at for lane in site.lanes)
        return {
            **self.describe(site),
            "budget": site.budget,
            "workers": [lane.worker for lane in site.lanes if lane.token],
            "ready_in": max(0.0, min(ready) - now, site.hold_until - now),
            "share_left": schedule.share.left(site.name),
            "robots": site.robots,
        }

    def url_state(self, site: Site, key: int, url_history: Mapping[str, Any]) -> dict[str, Any]:
        """Return the present state of a URL, given its history in the journal."""
        for lane in site.lanes:
            if lane.token and key in lane.batch:
                ends_in = max(0.0, lane.expires_at - self.clock.monotonic())
                tries = self.tries.get(lane.batch[key], 0)
                return {"state": "leased", "worker": lane.worker, "lease_ends_in": ends_in, "tries": tries}
        is_parked = self.schedule.lapses.get(url_history["number"], 0) >= self.settings.max_deliveries
        return kept.standing(url_history["attempts"], closed=site.closed, is_parked=is_parked, now=self.clock.epoch())


def closed_status(reason: str) -> int:
    """Return the status of requests on a closed site: skipped if its budget is used up, else failed."""
    return kept.SKIPPED if reason == "budget" else kept.FAILED


class _Endings(NamedTuple):
    """The last status by URL number; row and time of pending retries and revisits; stored visits of URLs with
    several."""

    last: bytearray
    again: dict[int, tuple[int | None, float]]
    visits: dict[int, int]


def restore(state: State, past: Past) -> None:
    """Fill an empty state from the journal.

    A stop ends with the run that was stopped, so the job is running again. URLs without an outcome are queued, whether
    or not they were leased when the last owner ended; a request with losses becomes a suspect or is parked."""
    shift = state.clock.monotonic() - state.clock.epoch()
    state.job = "running" if past.job == "stopping" else past.job
    state.schedule.lapses.update(past.lapses)
    sites = _sites(state, past, shift)
    endings = _endings(state, past)
    parked_at = state.settings.max_deliveries
    schedule, last, again = state.schedule, endings.last, endings.again
    see, known = state.seen.add, len(last)
    ranks = _Ranks(state.settings.strategy)
    number = 0
    for number, key, site_number, priority, depth, hops in past.urls():
        see(key)
        site = sites[site_number]
        status = last[number] if number < known else 0
        if status == 0 and not site.closed and number not in schedule.lapses:
            # The common case without a function call for each: there may be tens of millions.
            site.queue.push(number, ranks[priority, depth, hops])
            schedule.queued += 1
            continue
        site.stored += endings.visits.get(number, status in (kept.DONE, kept.FAILED))
        if schedule.lapses.get(number, 0) >= parked_at:
            state.count(kept.PARKED)
            continue
        state.count(status)
        if site.closed:
            if status in (0, kept.RETRY):
                state.count(closed_status(site.closed))
        elif number in again:
            row_of_state, again_at = again[number]
            if row_of_state is not None:
                state.visits[number] = row_of_state
            if status != kept.RETRY:
                schedule.revisits[number] = status
                if number in past.hastened:
                    state.hints[number], due_at = past.hastened[number]
                    again_at = min(again_at, due_at)
            schedule.push_later(site, number, again_at + shift)
        elif status == 0:
            schedule.push(site, number, ranks[priority, depth, hops])
    state.last_number = max(state.last_number, number)
    for site in sites.values():
        schedule.wake(site)


class _Ranks(dict[tuple[int, ...], int]):
    """Ranks by priority, depth and hops, each computed once."""

    def __init__(self, strategy: str) -> None:
        super().__init__()
        self._strategy = strategy

    def __missing__(self, place: tuple[int, ...]) -> int:
        priority, depth, hops = place
        self[place] = policy.rank(self._strategy, priority=priority, depth=depth, hops=hops)
        return self[place]


def _sites(state: State, past: Past, shift: float) -> dict[int, Site]:
    now = state.clock.monotonic()
    found: dict[int, Site] = {}
    for number, name, row in past.sites():
        site = found[number] = state.site(name, number)
        if row is not None:
            _remember(state, site, row, shift)
        # The time of the last request of the previous run is unknown: each site waits one delay (P5).
        for lane in site.lanes:
            lane.next_at = now + site.delay * (1 + lane.number)
    state.new_sites.clear()
    return found


def _remember(state: State, site: Site, row: JournalSite, shift: float) -> None:
    state.slow_down(site, row.delay)
    # A wall clock that was set back since then must not make a hold endless.
    longest = state.clock.monotonic() + policy.HOLD_MAX_SECONDS
    site.hold_until = min(row.hold_until + shift, longest) if row.hold_until else 0.0
    site.robots, site.memo, site.closed = row.robots, row.memo, row.closed
    state.population.learn(site.name, row.memo)
    if row.robots or not state.settings.robots:
        state.schedule.open_lanes(site, state.clock.monotonic())


def _endings(state: State, past: Past) -> _Endings:
    last = bytearray(1)
    again: dict[int, tuple[int | None, float]] = {}
    visits = dict(past.dropped)
    state.stored += sum(visits.values())
    for row_number, number, status, again_at, has_state in past.outcomes():
        if number >= len(last):
            last.extend(bytes(number * 2 - len(last)))
        if status == kept.RETRY:
            state.tries[number] = state.tries.get(number, 0) + 1
        else:
            is_stored = status in (kept.DONE, kept.FAILED)
            state.stored += is_stored
            state.tries.pop(number, None)
            if is_stored and (again_at is not None or number in visits):
                visits[number] = visits.get(number, 0) + 1
        last[number] = status
        before, _ = again.pop(number, (None, 0.0))
        if again_at is not None:
            # A retry without a state of its own is leased with that of the visit before it.
            again[number] = (before if status == kept.RETRY and not has_state else row_number, again_at)
        state.last_number = max(state.last_number, number)
    return _Endings(last, again, visits)
