"""The embedded frontier: one process owns the schedule in memory and writes every change to a journal first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gossamer import urls
from gossamer.clock import Clock
from gossamer.errors import Unavailable
from gossamer.frontier import journal as kept
from gossamer.frontier import policy
from gossamer.frontier.journal import Change, Journal, OutcomeRow, Past, SiteRow
from gossamer.frontier.schedule import Lane, Schedule, Site
from gossamer.model import Counts, Grant, JobState, Lease, Outcome, Receipt, Request, SiteNote
from gossamer.settings import Settings

_TOKEN_BITS = 40


class Settlement:
    """Outcomes whose tokens were found good, and whose lanes cannot lapse before this is committed or dropped."""

    def __init__(self, frontier: LocalFrontier) -> None:
        self.accepted: list[Outcome] = []
        self.receipt = Receipt()
        self._frontier = frontier
        self._change = Change()
        self._lanes: list[Lane] = []
        self._pinned: list[Lane] = []
        self._notes: list[SiteNote] = []
        self._committed = False

    async def commit(self, marks: Mapping[str, int] | None = None) -> Receipt:
        """Write it all down in one step, then let it count."""
        self._change.marks = marks
        await _to_the_end(self._frontier._commit(self))
        return self.receipt


class LocalFrontier:
    """A frontier with its schedule in this process; `journal` decides what outlives it."""

    def __init__(self, journal: Journal, past: Past, *, settings: Settings, clock: Clock) -> None:
        self.secret = past.secret
        self.marks = dict(past.marks)
        self._journal = journal
        self._settings = settings
        self._clock = clock
        self._schedule = Schedule(settings)
        self._seen: set[int] = set()
        self._held: dict[int, Lane] = {}
        self._tries: dict[int, int] = {}
        self._visits: dict[int, int] = {}
        self._sites: list[Site] = []
        self._new_sites: list[Site] = []
        self._new_lapses: dict[int, int] = {}
        self._last = 0
        self._token = (past.epoch + 1) << _TOKEN_BITS
        self._job: JobState = "running" if past.job == "stopping" else past.job
        self._done = self._failed = self._skipped = self._parked = self._stale = self._stored = 0
        self._lock = asyncio.Lock()
        self._news = 0
        self._event = asyncio.Event()
        self._restore(past)

    def _restore(self, past: Past) -> None:
        now, epoch = self._clock.monotonic(), self._clock.epoch()
        schedule, strategy = self._schedule, self._settings.strategy
        schedule.lapses.update(past.lapses)
        by_number: dict[int, Site] = {}
        for number, name, row in past.sites():
            site = by_number[number] = self._site(name, number)
            if row is not None:
                self._remember(site, row, now - epoch)
            # Nobody knows when the last request of the previous run went out: its sites wait one delay.
            for lane in site.lanes:
                lane.next_at = now + site.delay * (1 + lane.number)
        self._new_sites.clear()
        latest: dict[int, tuple[int | None, float]] = {}
        final = bytearray(1)
        for row_number, number, status, again_at, has_state in past.outcomes():
            if number >= len(final):
                final.extend(bytes(number * 2 - len(final)))
            if status == kept.RETRY:
                self._tries[number] = self._tries.get(number, 0) + 1
            else:
                self._stored += status in (kept.DONE, kept.FAILED)
                self._tries.pop(number, None)
            final[number] = status
            before, _ = latest.pop(number, (None, 0.0))
            if again_at is not None:
                latest[number] = (before if status == kept.RETRY and not has_state else row_number, again_at)
            self._last = max(self._last, number)
        seen = self._seen
        for number, key, site_number, priority, depth, hops in past.urls():
            seen.add(key)
            site = by_number[site_number]
            self._last = max(self._last, number)
            status = final[number] if number < len(final) else 0
            if status in (kept.DONE, kept.FAILED):
                site.stored += 1
            if schedule.lapses.get(number, 0) >= self._settings.max_deliveries:
                self._count(kept.PARKED, 1)
                continue
            self._count(status, 1)
            if site.closed:
                if status in (0, kept.RETRY):
                    self._count(_closed_status(site.closed), 1)
            elif number in latest:
                row_of_state, again_at = latest[number]
                if row_of_state is not None:
                    self._visits[number] = row_of_state
                if status != kept.RETRY:
                    schedule.revisits[number] = status
                schedule.push_later(site, number, again_at + now - epoch)
            elif status == 0:
                schedule.push(site, number, policy.rank(strategy, priority=priority, depth=depth, hops=hops))

    def _remember(self, site: Site, row: SiteRow, shift: float) -> None:
        self._slow_down(site, row.delay)
        site.hold_until = row.hold_until + shift if row.hold_until else 0.0
        site.robots, site.memo, site.closed = row.robots, row.memo, row.closed
        if row.robots or not self._settings.robots:
            self._schedule.open_lanes(site, self._clock.monotonic())

    def _slow_down(self, site: Site, asked_delay: float) -> None:
        site.asked_delay = asked_delay
        site.delay = max(self._settings.for_site(site.name).delay or 0.0, asked_delay)

    def _count(self, status: int, by: int) -> None:
        if status == kept.DONE:
            self._done += by
        elif status == kept.FAILED:
            self._failed += by
        elif status == kept.SKIPPED:
            self._skipped += by
        elif status == kept.PARKED:
            self._parked += by

    def _site(self, name: str, number: int = 0) -> Site:
        site = self._schedule.sites.get(name)
        if site is None:
            now = self._clock.monotonic()
            site = self._schedule.site(name, number or len(self._schedule.sites) + 1, ready_at=now)
            if not self._settings.robots:
                self._schedule.open_lanes(site, now)
            self._new_sites.append(site)
        return site

    async def add(self, requests: Sequence[Request]) -> int:
        async with self._lock:
            change = Change()
            self._plan_urls(change, requests, parent=0)
            if not change.urls:
                return 0
            await _to_the_end(self._keep_urls(change))
        self._tell()
        return len(change.urls)

    async def _keep_urls(self, change: Change) -> None:
        await self._write(change)
        self._enqueue(change)

    def _plan_urls(self, change: Change, requests: Sequence[Request], parent: int) -> None:
        for request in requests:
            if request.key not in self._seen:
                self._seen.add(request.key)
                self._last += 1
                change.urls.append((self._last, request, self._site(request.site).number, parent))

    async def _write(self, change: Change) -> Sequence[int]:
        """Write a change; if that fails, nothing of it has happened."""
        change.sites = [(site.number, site.name) for site in self._new_sites]
        change.lapses = {**self._new_lapses, **change.lapses}
        try:
            rows = await self._journal.write(change)
        except BaseException:
            self._seen.difference_update(request.key for _, request, _, _ in change.urls)
            raise
        del self._new_sites[: len(change.sites)]
        for number, count in change.lapses.items():
            # It may have been lost once more while this was written.
            if self._new_lapses.get(number) == count:
                del self._new_lapses[number]
        return rows

    def _enqueue(self, change: Change) -> None:
        strategy = self._settings.strategy
        for number, request, _, _ in change.urls:
            site = self._schedule.sites[request.site]
            if site.closed:
                self._count(_closed_status(site.closed), 1)
                continue
            self._schedule.push(
                site, number, policy.rank(strategy, priority=request.priority, depth=request.depth, hops=request.hops)
            )

    async def lease(self, limit: int, *, batch: int, seconds: float, worker: str = "") -> Grant:
        if self._job != "running" or self._over():
            return Grant(job=self.state, news=self._news)
        now = self._clock.monotonic()
        if self._room() <= 0:
            # All that may still be stored is in other hands: perhaps in dead ones.
            for lane in list(self._held.values()):
                if self._is_lost(lane, now):
                    self._lapse(lane, now, blamed=frozenset(lane.batch.values()))
        room = self._room()
        leases: list[Lease] = []
        passed: list[Site] = []
        busy = bool(self._schedule.lapses) and any(
            lane.suspect and lane.worker == worker and not self._is_lost(lane, now) for lane in self._held.values()
        )
        if room > 0 and limit > 0:
            for lane in self._schedule.due(now):
                lease = self._lease(lane, min(batch, room), seconds, now, worker, suspect=not busy)
                if lease is None:
                    passed.append(lane.site)
                else:
                    leases.append(lease)
                    busy = busy or lease.suspect
                    room -= len(lease.requests)
                    if len(leases) >= limit or room <= 0:
                        break
        wait = self._schedule.next_due() if room > 0 else self._next_expiry()
        for site in passed:
            # Suspects that this worker may not have besides the one that it has: others may come for them.
            self._schedule.wake(site)
        if self._new_lapses:
            async with self._lock:
                await self._keep_lapses()
        return Grant(
            leases=tuple(leases), wait=None if wait is None else max(0.0, wait - now), job=self.state, news=self._news
        )

    def _lease(self, lane: Lane, batch: int, seconds: float, now: float, worker: str, *, suspect: bool) -> Lease | None:
        site, schedule = lane.site, self._schedule
        if lane.token:
            self._lapse(lane, now, blamed=frozenset(lane.batch.values()))
            return None
        if site.room() <= 0:
            self._spend(site)
            return None
        delay = schedule.lane_delay(site)
        size = min(site.room(), policy.batch_size(batch, delay=delay, seconds=seconds))
        numbers = schedule.take(site, size, now, suspect=suspect)
        if not numbers:
            return None
        alone = schedule.lapses.get(numbers[0], 0) >= 2
        try:
            requests = self._journal.load(numbers, self._visits)
        except BaseException:
            schedule.give_back(site, numbers)
            raise
        if self._tries:
            requests = [
                msgspec.structs.replace(request, tries=self._tries[number]) if number in self._tries else request
                for number, request in zip(numbers, requests, strict=True)
            ]
        self._token += 1
        lane.suspect = alone
        keys = {request.key: number for number, request in zip(numbers, requests, strict=True)}
        schedule.hold(lane, keys, token=self._token, expires_at=now + seconds, worker=worker)
        self._held[self._token] = lane
        return Lease(
            site=site.name,
            lane=lane.number,
            token=self._token,
            requests=tuple(requests),
            ttl=seconds,
            delay=delay,
            lanes=len(site.lanes),
            robots=site.robots,
            memo=site.memo,
            suspect=alone,
        )

    def _lapse(self, lane: Lane, now: float, *, blamed: frozenset[int]) -> None:
        """Take a lane from a holder that is gone. Blamed requests that have cost too many holders are parked."""
        schedule = self._schedule
        for key, number in list(lane.batch.items()):
            if number not in blamed:
                continue
            lapses = schedule.lapses[number] = schedule.lapses.get(number, 0) + 1
            self._new_lapses[number] = lapses
            if lapses >= self._settings.max_deliveries:
                schedule.settle(lane, key)
                self._count(kept.PARKED, 1)
        self._free(lane, now - schedule.lane_delay(lane.site))

    async def _keep_lapses(self) -> None:
        try:
            await _to_the_end(self._write(Change()))
        except Unavailable:
            # They are written with the next change.
            pass

    def _is_lost(self, lane: Lane, now: float) -> bool:
        return not lane.settling and lane.expires_at + self._schedule.lane_delay(lane.site) <= now

    def _next_expiry(self) -> float | None:
        """When the first of the held lanes is taken back, unless its holder stays in touch."""
        return min(
            (lane.expires_at + self._schedule.lane_delay(lane.site) for lane in self._held.values()), default=None
        )

    def _spend(self, site: Site) -> None:
        """Give up what waits on a site whose budget is used up."""
        if not site.leased and not site.closed:
            self._count(kept.SKIPPED, self._schedule.close(site, "budget"))
            self._tell()

    def _free(self, lane: Lane, now: float) -> None:
        site = lane.site
        self._held.pop(lane.token, None)
        if site.robots or not self._settings.robots:
            # Not before: the holder of a site's only lane goes at the pace of the whole site.
            self._schedule.open_lanes(site, now)
        self._schedule.free(lane, now)
        if site.closed:
            self._count(_closed_status(site.closed), self._schedule.close(site, site.closed))
        self._tell()

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        now = self._clock.monotonic()
        kept_leases = []
        for lease in leases:
            lane = self._held.get(lease.token)
            if lane is not None and lane.expires_at > now:
                lane.expires_at = now + seconds
                self._schedule.wake(lane.site)
                kept_leases.append(msgspec.structs.replace(lease, ttl=seconds))
        return kept_leases

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        async with self.settling(outcomes, notes=notes) as settlement:
            return await settlement.commit(marks)

    @asynccontextmanager
    async def settling(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = ()
    ) -> AsyncIterator[Settlement]:
        """Check the tokens and hold the lanes: the caller may store records of what is accepted, then commits."""
        async with self._lock:
            settlement = self._plan(outcomes, notes)
            try:
                yield settlement
            finally:
                for lane in settlement._pinned:
                    lane.settling -= 1
                if not settlement._committed:
                    self._seen.difference_update(request.key for _, request, _, _ in settlement._change.urls)
                for site in {lane.site.name: lane.site for lane in settlement._pinned}.values():
                    self._schedule.wake(site)
                self._tell()

    def _plan(self, outcomes: Sequence[Outcome], notes: Sequence[SiteNote]) -> Settlement:
        settlement = Settlement(self)
        change, epoch = settlement._change, self._clock.epoch()
        planned: set[int] = set()
        stale = repeated = 0
        for outcome in outcomes:
            lane = self._held.get(outcome.token)
            number = lane.batch.get(outcome.key) if lane is not None else None
            if lane is None or number is None or number in planned:
                known = lane is not None or self._was_settled(outcome)
                repeated, stale = repeated + known, stale + (not known)
                continue
            planned.add(number)
            settlement.accepted.append(outcome)
            settlement._lanes.append(lane)
            if number in self._schedule.lapses:
                change.lapses[number] = 0
            change.outcomes.append(
                OutcomeRow(
                    number,
                    kept.STATUS[outcome.status],
                    outcome.code,
                    epoch,
                    None
                    if outcome.again_in is None and outcome.status != "retry"
                    else epoch + (outcome.again_in or 0.0),
                    outcome.reason,
                    outcome.state,
                )
            )
            if outcome.links:
                self._plan_urls(change, outcome.links, number)
        settlement.receipt = Receipt(accepted=len(settlement.accepted), stale=stale, repeated=repeated)
        settlement._notes = [note for note in notes if note.token in self._held]
        settlement._pinned = settlement._lanes + [self._held[note.token] for note in settlement._notes]
        for lane in settlement._pinned:
            lane.settling += 1
        return settlement

    def _was_settled(self, outcome: Outcome) -> bool:
        site = self._schedule.sites.get(outcome.site)
        return (
            site is not None and outcome.lane < len(site.lanes) and site.lanes[outcome.lane].last_token == outcome.token
        )

    async def _commit(self, settlement: Settlement) -> None:
        change = settlement._change
        now, epoch = self._clock.monotonic(), self._clock.epoch()
        for note in settlement._notes:
            site = self._held[note.token].site
            change.notes[site.number] = self._noted(site, note, change.notes.get(site.number), epoch - now)
        rows = await self._write(change)
        settlement._committed = True
        self._stale += settlement.receipt.stale
        if change.marks:
            self.marks.update(change.marks)
        for note in settlement._notes:
            self._apply_note(note, now)
        now = self._clock.monotonic()
        for row, outcome, lane, row_number in zip(
            change.outcomes, settlement.accepted, settlement._lanes, rows, strict=True
        ):
            self._apply_outcome(row, outcome, lane, row_number, now)
        self._enqueue(change)

    def _noted(self, site: Site, note: SiteNote, earlier: SiteRow | None, shift: float) -> SiteRow:
        old = earlier or SiteRow(
            site.asked_delay, site.hold_until + shift if site.hold_until else 0.0, site.robots, site.memo, site.closed
        )
        held = self._clock.epoch() + note.hold if note.hold else 0.0
        return SiteRow(
            old.delay if note.delay is None else note.delay,
            max(old.hold_until, held),
            {**old.robots, **(note.robots or {})},
            {**old.memo, **(note.memo or {})},
            note.close or old.closed,
        )

    def _apply_note(self, note: SiteNote, now: float) -> None:
        site = self._held[note.token].site
        if note.hold:
            site.hold_until = max(site.hold_until, now + note.hold)
        if note.delay is not None:
            self._slow_down(site, note.delay)
        if note.memo:
            site.memo = {**site.memo, **note.memo}
        if note.robots:
            site.robots = {**site.robots, **note.robots}
        if note.close:
            self._count(_closed_status(note.close), self._schedule.close(site, note.close))

    def _apply_outcome(self, row: OutcomeRow, outcome: Outcome, lane: Lane, row_number: int, now: float) -> None:
        schedule, number = self._schedule, row.number
        schedule.settle(lane, outcome.key)
        schedule.lapses.pop(number, None)
        self._new_lapses.pop(number, None)
        last_visit = self._visits.pop(number, None)
        site = lane.site
        if outcome.status == "retry":
            self._tries[number] = self._tries.get(number, 0) + 1
        else:
            self._tries.pop(number, None)
            self._count(row.status, 1)
            if row.status in (kept.DONE, kept.FAILED):
                self._stored += 1
                site.stored += 1
        if row.again_at is not None:
            if site.closed:
                if outcome.status == "retry":
                    self._count(_closed_status(site.closed), 1)
            else:
                if outcome.status != "retry" or outcome.state is not None:
                    last_visit = row_number
                if last_visit is not None:
                    self._visits[number] = last_visit
                if outcome.status != "retry":
                    schedule.revisits[number] = row.status
                schedule.push_later(site, number, now + (outcome.again_in or 0.0))
        if not lane.batch and lane.token:
            lane.last_token = lane.token
            self._free(lane, now)
        if site.room() <= 0 and (site.queue.size or site.suspects or site.delayed):
            self._spend(site)

    async def release(self, leases: Sequence[Lease]) -> None:
        async with self._lock:
            now = self._clock.monotonic()
            for lease in leases:
                lane = self._held.get(lease.token)
                if lane is not None:
                    self._free(lane, now)

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Take back at once what a dead worker held; `blamed` are the keys that it was handling. How many leases."""
        async with self._lock:
            now = self._clock.monotonic()
            lanes = [lane for lane in self._held.values() if lane.worker == worker]
            for lane in lanes:
                guilty = frozenset(lane.batch[key] for key in blamed if key in lane.batch)
                delay = self._schedule.lane_delay(lane.site)
                self._lapse(lane, now + delay, blamed=guilty)
            if self._new_lapses:
                await self._keep_lapses()
            return len(lanes)

    async def blame(self, keys: Sequence[int]) -> None:
        """Count one lost delivery against requests that a dead owner was handling when it died."""
        async with self._lock:
            for key in keys:
                found = self._journal.lookup(key) if key in self._seen else None
                if found is not None:
                    self._blame(int(found["number"]), self._schedule.sites[found["site"]])
            if self._new_lapses:
                await self._keep_lapses()
        self._tell()

    def _blame(self, number: int, site: Site) -> None:
        schedule = self._schedule
        if not schedule.withdraw(site, number):
            return
        lapses = schedule.lapses[number] = self._new_lapses[number] = schedule.lapses.get(number, 0) + 1
        if lapses >= self._settings.max_deliveries:
            self._count(kept.PARKED, 1)
        else:
            schedule.push(site, number, policy.HEAD)

    def _room(self) -> int:
        limit = self._settings.max_pages
        return 1 << 62 if limit is None else limit - self._stored - self._schedule.leased

    def _over(self) -> bool:
        """Whether nothing is left to hand out and nothing is under way that could bring more."""
        schedule = self._schedule
        if schedule.leased:
            return False
        if self._settings.max_pages is not None and self._stored >= self._settings.max_pages:
            return True
        if schedule.queued + schedule.delayed > len(schedule.revisits):
            return False
        due_at = schedule.next_due() if schedule.revisits else None
        return due_at is None or due_at > self._clock.monotonic()

    @property
    def state(self) -> JobState:
        """What the job is doing."""
        return "finished" if self._job == "running" and self._over() else self._job

    async def idle(self, grant: Grant) -> None:
        if grant.news != self._news:
            return
        try:
            async with asyncio.timeout(grant.wait):
                await self._event.wait()
        except TimeoutError:
            pass

    def _tell(self) -> None:
        self._news += 1
        self._event.set()
        self._event = asyncio.Event()

    async def counts(self) -> Counts:
        schedule, now = self._schedule, self._clock.monotonic()
        ready = held = 0
        for site in schedule.sites.values():
            if site.queue.size or site.suspects or site.delayed:
                held += site.hold_until > now
                ready += site.hold_until <= now and any(not lane.token and lane.next_at <= now for lane in site.lanes)
        return Counts(
            queued=schedule.queued,
            delayed=schedule.delayed - len(schedule.revisits),
            leased=schedule.leased,
            done=self._done - schedule.returned[kept.DONE],
            failed=self._failed - schedule.returned[kept.FAILED],
            skipped=self._skipped - schedule.returned[kept.SKIPPED],
            parked=self._parked,
            stale=self._stale,
            stored=self._stored,
            revisits=len(schedule.revisits),
            known=len(self._seen),
            sites=len(schedule.sites),
            ready_sites=ready,
            held_sites=held,
            active_sites=len({lane.site.number for lane in self._held.values()}),
            job=self.state,
            finished=self._over(),
        )

    async def steer(self, job: JobState) -> None:
        """Pause, resume or stop the job; the wish outlives this process, but a stop ends with the run."""
        async with self._lock:
            await _to_the_end(self._keep_job(job))
        self._tell()

    async def _keep_job(self, job: JobState) -> None:
        await self._write(Change(job=job))
        self._job = job

    async def lookup(self, url: str) -> Mapping[str, Any] | None:
        found = self._journal.lookup(urls.fingerprint(self.secret, url))
        if found is None:
            return None
        site = self._schedule.sites.get(found["site"])
        if site is not None:
            found["site_state"] = self._describe(site)
        return found

    async def sites(self, limit: int = 100) -> list[Mapping[str, Any]]:
        biggest = sorted(self._schedule.sites.values(), key=lambda site: -site.queue.size)[:limit]
        return [self._describe(site) for site in biggest]

    def _describe(self, site: Site) -> dict[str, Any]:
        now = self._clock.monotonic()
        return {
            "site": site.name,
            "queued": site.queue.size + len(site.suspects),
            "delayed": len(site.delayed),
            "leased": site.leased,
            "stored": site.stored,
            "delay": site.delay,
            "lanes": len(site.lanes),
            "hold": max(0.0, site.hold_until - now),
            "closed": site.closed,
            "memo": site.memo,
        }

    async def aclose(self) -> None:
        async with self._lock:
            try:
                if self._new_lapses or self._new_sites:
                    await self._write(Change())
            finally:
                self._journal.close()


async def _to_the_end(change: Coroutine[Any, Any, object]) -> None:
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


def _closed_status(reason: str) -> int:
    return kept.SKIPPED if reason == "budget" else kept.FAILED


def open_memory(settings: Settings, *, clock: Clock, secret: bytes) -> LocalFrontier:
    """A frontier that lives and dies with this process."""
    past = Past()
    past.secret = secret
    return LocalFrontier(kept.MemoryJournal(), past, settings=settings, clock=clock)
