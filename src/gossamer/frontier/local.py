"""The embedded frontier: one process owns the schedule in memory and writes every change to a journal first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gossamer import urls
from gossamer.clock import Clock
from gossamer.errors import FrontierError
from gossamer.frontier import policy, recrawl
from gossamer.frontier.journal import Change, Journal, MemoryJournal, NotAtHand, Past, to_the_end
from gossamer.frontier.line import WaitQueue
from gossamer.frontier.restore import restore
from gossamer.frontier.schedule import Lane, Site
from gossamer.frontier.settlement import Settlement
from gossamer.frontier.state import State
from gossamer.model import Counts, Grant, JobState, Lease, Outcome, Receipt, RegionView, Request, SiteNote
from gossamer.settings import Settings

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
