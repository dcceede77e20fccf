"""The embedded frontier: leases and commits over the schedule in memory and its journal."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gossamer import urls
from gossamer.clock import Clock
from gossamer.errors import FrontierError
from gossamer.frontier import policy, recrawl
from gossamer.frontier.embedded import journal as kept
from gossamer.frontier.embedded.journal import (
    Change,
    Journal,
    JournalSite,
    MemoryJournal,
    NotAtHand,
    OutcomeRow,
    Past,
    to_the_end,
)
from gossamer.frontier.embedded.schedule import Lane, Site
from gossamer.frontier.embedded.state import State, closed_status, restore
from gossamer.model import Counts, Grant, JobState, Lease, Outcome, Receipt, RegionView, Request, SiteNote
from gossamer.settings import Settings

Write = Callable[["Settlement"], Awaitable[None]]


class Settlement:
    """Outcomes whose tokens were found good, and whose lanes cannot lapse before this is committed or dropped."""

    def __init__(self, state: State, outcomes: Sequence[Outcome], notes: Sequence[SiteNote], *, write: Write) -> None:
        self.accepted: list[Outcome] = []
        self.change = Change()
        self.committed = False
        self._state = state
        self._write = write
        self._lanes: list[Lane] = []
        self._notes = [note for note in notes if note.token in state.held]
        self.receipt = self._plan(outcomes)
        self._pinned = self._lanes + [state.held[note.token] for note in self._notes]
        for lane in self._pinned:
            lane.settling += 1

    async def commit(self, marks: Mapping[str, int] | None = None) -> Receipt:
        """Write it all down in one step, then let it count."""
        self.change.marks = marks
        await self._write(self)
        return self.receipt

    def unpin(self) -> None:
        """Let the lanes go; what was not committed has not happened."""
        for lane in self._pinned:
            lane.settling -= 1
        if not self.committed:
            self._state.forget(self.change)
        for site in {lane.site.name: lane.site for lane in self._pinned}.values():
            self._state.schedule.wake(site)

    def _plan(self, outcomes: Sequence[Outcome]) -> Receipt:
        state, change, epoch = self._state, self.change, self._state.clock.epoch()
        planned: set[int] = set()
        stale = repeated = 0
        for outcome in outcomes:
            lane = state.held.get(outcome.token)
            number = lane.batch.get(outcome.key) if lane is not None else None
            if lane is None or number is None or number in planned:
                known = lane is not None or state.was_settled(outcome)
                repeated, stale = repeated + known, stale + (not known)
                continue
            planned.add(number)
            self.accepted.append(outcome)
            self._lanes.append(lane)
            if number in state.schedule.lapses:
                change.lapses[number] = 0
            change.outcomes.append(_row(number, outcome, epoch))
            if outcome.links:
                state.plan_urls(change, outcome.links, number)
        return Receipt(accepted=len(self.accepted), stale=stale, repeated=repeated)

    def note_sites(self) -> None:
        """Put into the change what the notes make of their sites."""
        clock = self._state.clock
        now, epoch = clock.monotonic(), clock.epoch()
        for note in self._notes:
            site = self._state.held[note.token].site
            earlier = self.change.notes.get(site.number) or _remembered(site, epoch - now)
            self.change.notes[site.number] = JournalSite(
                earlier.delay if note.delay is None else note.delay,
                max(earlier.hold_until, epoch + note.hold if note.hold else 0.0),
                {**earlier.robots, **(note.robots or {})},
                {**earlier.memo, **(note.memo or {})},
                note.close or earlier.closed,
            )

    def apply(self, rows: Sequence[int]) -> None:
        """It is written down, the outcomes in these rows: now it counts."""
        state = self._state
        self.committed = True
        state.stale += self.receipt.stale
        now = state.clock.monotonic()
        for note in self._notes:
            self._apply_note(note, now)
        for row, outcome, lane, row_number in zip(self.change.outcomes, self.accepted, self._lanes, rows, strict=True):
            self._apply_outcome(row, outcome, lane, row_number, now)
        state.enqueue(self.change)

    def _apply_note(self, note: SiteNote, now: float) -> None:
        site = self._state.held[note.token].site
        if note.hold:
            site.hold_until = max(site.hold_until, now + note.hold)
        if note.delay is not None:
            self._state.slow_down(site, note.delay)
        if note.memo:
            site.memo = {**site.memo, **note.memo}
            self._state.population.learn(site.name, note.memo)
        if note.robots:
            site.robots = {**site.robots, **note.robots}
        if note.close:
            self._state.close(site, note.close)

    def _apply_outcome(self, row: OutcomeRow, outcome: Outcome, lane: Lane, row_number: int, now: float) -> None:
        state, number, site = self._state, row.number, lane.site
        state.schedule.settle(lane, outcome.key)
        state.schedule.lapses.pop(number, None)
        state.new_lapses.pop(number, None)
        if outcome.status == "retry":
            state.tries[number] = state.tries.get(number, 0) + 1
        else:
            state.tries.pop(number, None)
            state.count(row.status)
            if row.status in (kept.DONE, kept.FAILED):
                state.stored += 1
                site.stored += 1
        last_visit = state.visits.pop(number, None)
        state.hints.pop(number, None)
        if row.again_at is not None:
            self._come_again(row, outcome, site, now, last_visit=last_visit, row_number=row_number)
        if not lane.batch and lane.token:
            lane.last_token = lane.token
            state.free(lane, now)
        if site.room() <= 0 and (site.queue.size or site.suspects or site.delayed):
            state.spend(site)

    def _come_again(
        self, row: OutcomeRow, outcome: Outcome, site: Site, now: float, *, last_visit: int | None, row_number: int
    ) -> None:
        state, number = self._state, row.number
        if site.closed:
            if outcome.status == "retry":
                state.count(closed_status(site.closed))
            return
        if outcome.status != "retry" or outcome.state is not None:
            last_visit = row_number
        if last_visit is not None:
            state.visits[number] = last_visit
        if outcome.status != "retry":
            state.schedule.revisits[number] = row.status
        state.schedule.push_later(site, number, now + (outcome.again_in or 0.0))


def _row(number: int, outcome: Outcome, epoch: float) -> OutcomeRow:
    comes_again = outcome.again_in is not None or outcome.status == "retry"
    return OutcomeRow(
        number,
        kept.STATUS[outcome.status],
        outcome.code,
        epoch,
        epoch + (outcome.again_in or 0.0) if comes_again else None,
        outcome.reason,
        outcome.state,
    )


def _remembered(site: Site, shift: float) -> JournalSite:
    hold_until = site.hold_until + shift if site.hold_until else 0.0
    return JournalSite(site.asked_delay, hold_until, site.robots, site.memo, site.closed)


_GRACE_SECONDS = 0.05


class WaitQueue:
    """Who waits for work. The first waits until something is due; when it goes for that, the next is the first.

    Whoever was sent may die on the way, or may not have what is due: then the next one follows a moment later."""

    def __init__(self, due_in: Callable[[], float], news: Callable[[], int]) -> None:
        self._due_in = due_in
        self._news = news
        self._turns: OrderedDict[asyncio.Event, bool] = OrderedDict()
        """Who waits -> whether it was sent."""
        self._calls = 0

    def __len__(self) -> int:
        return len(self._turns)

    async def wait(self, grant: Grant) -> None:
        """Return when this worker should ask again."""
        loop, calls, turn = asyncio.get_running_loop(), self._calls, asyncio.Event()
        asks_at, grace = float("inf") if grant.wait is None else loop.time() + grant.wait, 0.0
        self._turns[turn] = False
        try:
            while self._calls == calls and not self._turns[turn]:
                pause, is_first = None, self._is_first(turn)
                if is_first:
                    due_in = self._due_in()
                    if due_in <= 0:
                        # It may not have what is due, if it was told to wait and there was no news: so it was told.
                        due_in = max(grace, asks_at - loop.time()) if self._news() == grant.news else grace
                    pause = None if due_in == float("inf") else due_in
                turn.clear()
                try:
                    async with asyncio.timeout(pause):
                        await turn.wait()
                except TimeoutError:
                    if self._due_in() <= 0 or loop.time() >= asks_at:
                        return
                grace = 0.0 if is_first else _GRACE_SECONDS
        finally:
            was_first = self._is_first(turn)
            del self._turns[turn]
            if was_first:
                self.look()

    def look(self) -> None:
        """The next thing may be due at another time than before."""
        if (first := next(iter(self._turns), None)) is not None:
            first.set()

    def send(self) -> None:
        """Let one more ask."""
        if (turn := next((turn for turn, is_sent in self._turns.items() if not is_sent), None)) is not None:
            self._turns[turn] = True
            turn.set()

    def call(self) -> None:
        """Let everybody ask."""
        self._calls += 1
        for turn in self._turns:
            turn.set()

    def _is_first(self, turn: asyncio.Event) -> bool:
        return next(iter(self._turns)) is turn


log = logging.getLogger("gossamer.frontier")
_TOKEN_BITS = 40
_SLICE = 500


class EmbeddedFrontier:
    """A frontier with its schedule in this process; `journal` decides what outlives it."""

    def __init__(self, journal: Journal, past: Past, *, settings: Settings, clock: Clock) -> None:
        self.secret = past.secret
        self.marks = dict(past.marks)
        self._journal = journal
        self._clock = clock
        self._state = State(settings, clock)
        self._state.last_token = (past.epoch + 1) << _TOKEN_BITS
        self._lock = asyncio.Lock()
        self._line = WaitQueue(self._due_in, lambda: self._state.news)
        self._keeping: asyncio.Task[None] | None = None
        restore(self._state, past)

    async def add(self, requests: Sequence[Request]) -> int:
        async with self._lock:
            change = Change()
            self._state.plan_urls(change, requests, parent=0)
            if change.urls:
                await to_the_end(self._keep_urls(change))
            if change.hints:
                await to_the_end(self._hasten(change))
        self._tell()
        return len(change.urls)

    async def _keep_urls(self, change: Change) -> None:
        await self._write(change)
        self._state.enqueue(change)

    async def _hasten(self, change: Change) -> None:
        """Bring visits of pages forward that are said to have changed.

        It never fails: without it, they come at their time."""
        try:
            for name, hints in change.hints.items():
                await self._hasten_site(name, hints)
        except FrontierError as error:
            log.debug("visits are not brought forward: %s", error)

    async def _hasten_site(self, name: str, hints: Mapping[int, float]) -> None:
        state, now, epoch = self._state, self._clock.monotonic(), self._clock.epoch()
        site = state.schedule.sites.get(name)
        if site is None:
            return
        waiting = {number: due_at for due_at, number in site.delayed if number in state.schedule.revisits}
        numbers, change = list(waiting), Change()
        for first in range(0, len(numbers), _SLICE):
            some = [number for number in numbers[first : first + _SLICE] if number in state.visits]
            for number, request in zip(some, await self._read(some), strict=True):
                if (hint := hints.get(request.key)) is None or state.hints.get(number) == hint:
                    continue
                wait = recrawl.hastened(recrawl.read(request.state), hint, state.settings, now=epoch)
                if wait is not None and now + wait < waiting[number]:
                    change.hastened[number] = hint, epoch + wait
            # Others have their turn.
            await asyncio.sleep(0)
        if change.hastened:
            await self._write(change)
            state.hints.update({number: hint for number, (hint, _) in change.hastened.items()})
            state.schedule.hasten(site, {number: now + due - epoch for number, (_, due) in change.hastened.items()})

    async def _read(self, numbers: Sequence[int]) -> list[Request]:
        """Requests as they were written down, to look at."""
        return self._journal.load(numbers, self._state.visits)

    async def _write(self, change: Change) -> Sequence[int]:
        """Write a change; if that fails, nothing of it has happened."""
        state = self._state
        change.sites = [(site.number, site.name) for site in state.new_sites]
        change.lapses = {**state.new_lapses, **change.lapses}
        try:
            rows = await self._journal.write(change)
        except BaseException:
            state.forget(change)
            raise
        del state.new_sites[: len(change.sites)]
        for number, count in change.lapses.items():
            # It may have been lost once more while this was written.
            if state.new_lapses.get(number) == count:
                del state.new_lapses[number]
        return rows

    async def lease(
        self,
        limit: int,
        *,
        batch: int,
        seconds: float,
        worker: str = "",
        suspects: bool = True,
        over_quota: bool = True,
    ) -> Grant:
        state, schedule = self._state, self._state.schedule
        if state.job != "running" or state.is_over():
            return Grant(job=state.job_state, news=state.news)
        now, news = self._clock.monotonic(), state.news
        if state.room() <= 0:
            # All that may still be stored is in other hands: perhaps in dead ones.
            state.lapse_lost(now)
        room = state.room()
        leases: list[Lease] = []
        passed: list[Site] = []
        busy = not suspects or state.has_suspect(worker, now)
        if room > 0 and limit > 0:
            for lane in schedule.due(now, over_quota=over_quota):
                try:
                    lease = self._lease(lane, min(batch, room), seconds, now, worker, suspect=not busy)
                except FrontierError:
                    # What was taken before would stay in nobody's hands until it expires.
                    if leases:
                        break
                    for site in passed:
                        schedule.wake(site)
                    raise
                if lease is None:
                    passed.append(lane.site)
                    continue
                leases.append(lease)
                busy = busy or lease.suspect
                room -= len(lease.requests)
                if len(leases) >= limit or room <= 0:
                    break
        due_at = schedule.next_due() if room > 0 else state.next_expiry()
        for site in passed:
            # Suspects that this worker may not have besides the one that it has: others may come for them.
            schedule.wake(site)
        if state.new_lapses and not self._lock.locked():
            await self._keep_lost()
        elif state.new_lapses and (self._keeping is None or self._keeping.done()):
            # Where many write, a wait for their turn could be longer than the leases last that are handed out here.
            self._keeping = asyncio.create_task(self._keep_lost())
        if state.news != news:
            self._tell()
        elif leases and due_at is not None and due_at <= now:
            self._line.send()
        wait = None if due_at is None else max(0.0, due_at - now)
        return Grant(leases=tuple(leases), wait=wait, job=state.job_state, news=state.news)

    def _lease(self, lane: Lane, batch: int, seconds: float, now: float, worker: str, *, suspect: bool) -> Lease | None:
        state, site, schedule = self._state, lane.site, self._state.schedule
        if lane.token:
            state.expire(lane, now)
            return None
        if site.room() <= 0:
            state.spend(site)
            return None
        delay = schedule.lane_delay(site)
        lanes = len(site.lanes)
        size = policy.batch_size(batch, delay=delay, seconds=seconds, waiting=site.queue.size, lanes=lanes)
        size = min(site.room(), size)
        if not lane.over_quota:
            size = min(size, schedule.share.left(site.name))
        numbers = schedule.take(site, size, now, suspect=suspect)
        if not numbers:
            return None
        requests = self._load(site, numbers)
        state.last_token += 1
        lane.suspect = schedule.lapses.get(numbers[0], 0) >= 2
        keys = {request.key: number for number, request in zip(numbers, requests, strict=True)}
        schedule.hold(lane, keys, token=state.last_token, expires_at=now + seconds, worker=worker)
        state.hold(lane)
        schedule.dispatch(site, len(numbers))
        return Lease(
            site=site.name,
            lane=lane.number,
            token=lane.token,
            requests=tuple(requests),
            ttl=seconds,
            delay=delay,
            lanes=len(site.lanes),
            robots=site.robots,
            memo=site.memo,
            suspect=lane.suspect,
        )

    def _load(self, site: Site, numbers: list[int]) -> list[Request]:
        tries, hints = self._state.tries, self._state.hints
        try:
            requests = self._journal.load(numbers, self._state.visits)
        except BaseException as error:
            self._state.schedule.give_back(site, numbers, first=isinstance(error, NotAtHand))
            raise
        for place, number in enumerate(numbers if hints else ()):
            if number in hints:
                seen = {**(requests[place].state or {}), "hint": hints[number]}
                requests[place] = msgspec.structs.replace(requests[place], state=seen)
        if not tries:
            return requests
        return [
            msgspec.structs.replace(request, tries=tries[number]) if number in tries else request
            for number, request in zip(numbers, requests, strict=True)
        ]

    async def _keep_lost(self) -> None:
        async with self._lock:
            await self._keep_lapses()

    async def _keep_lapses(self) -> None:
        try:
            await to_the_end(self._write(Change()))
        except FrontierError:
            # They are written with the next change.
            pass

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        now = self._clock.monotonic()
        ours = []
        for lease in leases:
            lane = self._state.held.get(lease.token)
            if lane is not None and lane.expires_at > now:
                lane.expires_at = now + seconds
                self._state.schedule.wake(lane.site)
                ours.append(msgspec.structs.replace(lease, ttl=seconds))
        return ours

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
            settlement = Settlement(self._state, outcomes, notes, write=self._settle)
            try:
                yield settlement
            finally:
                settlement.unpin()
                self._tell()

    async def _settle(self, settlement: Settlement) -> None:
        await to_the_end(self._write_and_apply(settlement))

    async def _write_and_apply(self, settlement: Settlement) -> None:
        settlement.note_sites()
        rows = await self._write(settlement.change)
        self.marks.update(settlement.change.marks or {})
        settlement.apply(rows)
        await self._hasten(settlement.change)

    async def release(self, leases: Sequence[Lease]) -> None:
        async with self._lock:
            now = self._clock.monotonic()
            for lease in leases:
                lane = self._state.held.get(lease.token)
                if lane is not None:
                    self._state.free(lane, now)
        self._tell()

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Take back at once what a dead worker held; `blamed` are the keys that it was handling. How many leases."""
        state = self._state
        async with self._lock:
            now = self._clock.monotonic()
            lanes = [lane for lane in state.held.values() if lane.worker == worker]
            for lane in lanes:
                guilty = frozenset(lane.batch[key] for key in blamed if key in lane.batch)
                state.lapse(lane, now + state.schedule.lane_delay(lane.site), blamed=guilty)
            if state.new_lapses:
                await self._keep_lapses()
        self._tell()
        return len(lanes)

    async def blame(self, keys: Sequence[int]) -> None:
        """Count one lost delivery against requests that a dead owner was handling when it died."""
        state = self._state
        async with self._lock:
            for key in keys:
                found = await asyncio.to_thread(self._journal.lookup, key) if key in state.seen else None
                if found is not None:
                    state.blame(int(found["number"]), state.schedule.sites[found["site"]])
            if state.new_lapses:
                await self._keep_lapses()
        self._tell()

    @property
    def state(self) -> JobState:
        """What the job is doing."""
        return self._state.job_state

    async def idle(self, grant: Grant) -> None:
        # Where others wait, news is for the first of them: a thousand that ask at each one are a flood.
        if grant.news == self._state.news or (self._line and self._state.job_state == "running"):
            await self._line.wait(grant)

    def _tell(self) -> None:
        """Something has changed: wake those whom it concerns."""
        self._state.news += 1
        if self._state.job_state == "running":
            self._line.look()
        else:
            self._line.call()

    def _due_in(self) -> float:
        due_at = self._state.schedule.next_due()
        return float("inf") if due_at is None else due_at - self._clock.monotonic()

    def unknown(self, keys: Iterable[int]) -> set[int]:
        """Those of these keys that are new, or not written down yet."""
        return self._state.unknown(set(keys))

    async def counts(self) -> Counts:
        return self._state.counts()

    async def steer(self, job: JobState) -> None:
        """Pause, resume or stop the job; the wish outlives this process, but a stop ends with the run."""
        async with self._lock:
            await to_the_end(self._keep_job(job))
        self._tell()

    async def _keep_job(self, job: JobState) -> None:
        await self._write(Change(job=job))
        self._state.job = job

    async def limit(self, settings: Settings) -> None:
        """Go on with these settings, of which only limits and delays are others than before."""
        async with self._lock:
            self._state.limit(settings)
        self._tell()

    def lanes(self) -> RegionView:
        """The lanes in which something waits or is leased."""
        return self._state.schedule.lanes(self._clock.monotonic())

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        return await self.find(key_of(self.secret, url))

    async def find(self, key: int) -> Mapping[str, Any] | None:
        """All that is known of the URL with this key; None if it was never seen."""
        if key not in self._state.seen:
            return None
        # There is no index to find it by, and the crawl goes on meanwhile.
        found = await asyncio.to_thread(self._journal.lookup, key)
        site = self._state.schedule.sites.get(found["site"]) if found is not None else None
        if found is None or site is None:
            return None
        where = self._state.whereabouts(site, key, found)
        return {"key": key, **found, **where, "site_state": self._state.describe(site)}

    async def site(self, name: str) -> Mapping[str, Any] | None:
        site = self._state.schedule.sites.get(name)
        return None if site is None else self._state.inspect(site)

    async def sites(self, limit: int = 100) -> list[Mapping[str, Any]]:
        biggest = sorted(self._state.schedule.sites.values(), key=lambda site: -site.queue.size)[:limit]
        return [self._state.describe(site) for site in biggest]

    async def every_site(self, cursor: str = "", limit: int = 100) -> tuple[list[Mapping[str, Any]], str]:
        return self._state.every_site(cursor, limit)

    async def aclose(self) -> None:
        if self._keeping is not None:
            await asyncio.wait((self._keeping,))
        async with self._lock:
            try:
                if self._state.new_lapses or self._state.new_sites:
                    await self._write(Change())
            finally:
                self._journal.close()


def open_memory(settings: Settings, *, clock: Clock, secret: bytes) -> EmbeddedFrontier:
    """A frontier that lives and dies with this process."""
    past = Past()
    past.secret = secret
    return EmbeddedFrontier(MemoryJournal(), past, settings=settings, clock=clock)
