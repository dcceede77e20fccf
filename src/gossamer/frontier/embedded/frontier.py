"""The embedded frontier: leases and commits over the schedule in memory and its journal.

One process owns the job. `schedule` and `state` hold the whole job in memory, `journal` holds what a restart needs.
The two are kept in step by one rule: write first, apply second. A call computes a `Change`, the journal writes it in
one transaction, and only then does the memory change. So a crash, a full disk or a failed write at any point leaves
a call that happened whole or not at all (P3, P7).

What happens in a commit, and why in this order (`settling`, `Settlement`):

1. Take the lock, which orders all calls that write. Check each outcome's token against `State.held`; a stale one is
   counted and changes nothing (P4), and one that was committed before counts as repeated.
2. Number the new links and add their keys to the seen set. From here on another page cannot queue them again (P1).
3. Pin the lanes, so that no lease among them expires while the caller writes the records of the accepted outcomes to
   the output files: a record is written only for an outcome that will count.
4. Write the change with the lengths of the output files (`marks`) in one transaction.
5. Apply it: remove the requests from their lanes, queue the links, free lanes whose batch is empty, one delay from now.
6. Unpin. If step 4 did not happen or failed, take the keys of step 2 out of the seen set again.

Leases are not written down. They live in memory, and all of them are void when the owner dies. A new owner starts its
tokens above every token of its predecessors (the epoch of the file stands in the upper bits), so that a worker that
survived its owner cannot commit anything. It lets each site rest for one delay first, since nobody knows when the last
request went out (P5).

A lease that ends needs no sweeper. Its lane comes up in the heap of `schedule` like a lane that is ready, and the
`lease` call that meets it takes it back (P9). Until then its outcomes still count: nobody else has the requests. The
clock goes on while the machine is suspended, so that after a suspension leases have ended in the owner and in its
workers alike. Each expiry counts against the requests of the batch; one that has two losses is leased alone, one with
`max_deliveries` is parked (P10)."""

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
    """One commit: outcomes whose tokens are valid, and whose lanes cannot expire before it is committed or dropped.

    Made and used under the frontier's lock. `accepted` lists the outcomes that will count, so that the caller writes
    only their records. Without a `commit` nothing happens: `unpin` undoes what the plan has put into memory."""

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
        """Write the change with the lengths of the output files in one transaction, then apply it in memory.

        If the write fails, memory stays as it was and the tokens stay valid: the same results can be sent again."""
        self.change.marks = marks
        await self._write(self)
        return self.receipt

    def unpin(self) -> None:
        """Let the lanes expire again. Without a commit, the keys of the planned links become unknown again."""
        for lane in self._pinned:
            lane.settling -= 1
        if not self.committed:
            self._state.forget(self.change)
        for site in {lane.site.name: lane.site for lane in self._pinned}.values():
            self._state.schedule.wake(site)

    def _plan(self, outcomes: Sequence[Outcome]) -> Receipt:
        """Check tokens, and put the outcomes that count into the change, with their new links.

        An outcome does not count if its token is stale (P4), if its request is not in the batch any more, or if it
        stands twice in this call. Where the lane is still held, or its last token is this one, it is a repetition of
        a commit whose answer was lost: not an error (P3)."""
        state, change, epoch = self._state, self.change, self._state.clock.epoch()
        planned: set[int] = set()
        stale = repeated = 0
        for outcome in outcomes:
            lane = state.held.get(outcome.token)
            number = lane.batch.get(outcome.key) if lane is not None else None
            if lane is None or number is None or number in planned:
                known = lane is not None or state.was_committed(outcome)
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
        """Merge the notes into the stored site state, and add the result to the change."""
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
        """Apply the change to memory; the journal has it, with the outcomes in these `rows`.

        Nothing here may fail or wait: memory would stay behind the disk. Notes come first, so that links which are
        queued below already meet a closed site."""
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
        """Take a request out of its lane. A lane with an empty batch is free, one delay from now."""
        state, number, site = self._state, row.number, lane.site
        state.schedule.finish(lane, outcome.key)
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
            self._queue_again(row, outcome, site, now, last_visit=last_visit, row_number=row_number)
        if not lane.batch and lane.token:
            # Remembered before it is freed: the lane's last token distinguishes a repeated commit from a stale one.
            lane.last_token = lane.token
            state.free(lane, now)
        if site.room() <= 0 and (site.queue.size or site.suspects or site.delayed):
            state.spend(site)

    def _queue_again(
        self, row: OutcomeRow, outcome: Outcome, site: Site, now: float, *, last_visit: int | None, row_number: int
    ) -> None:
        """Queue a retry or a revisit for its time. On a closed site a retry has failed, and revisits are dropped."""
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
    """Queue of idle workers, which wakes only as many of them as there is work for.

    Only the first sleeps until the next lane is due; when it leaves to lease, the next one becomes the first. Without
    this order a thousand idle workers would all ask whenever one lane comes up. A woken worker may die before it
    asks, or may not be allowed what is due (a second suspect, for example). So the next one follows after a short
    grace instead of trusting the one before."""

    def __init__(self, due_in: Callable[[], float], news: Callable[[], int]) -> None:
        self._due_in = due_in
        self._news = news
        self._turns: OrderedDict[asyncio.Event, bool] = OrderedDict()
        """The event of each idle worker -> whether `send` has woken it."""
        self._calls = 0

    def __len__(self) -> int:
        return len(self._turns)

    async def wait(self, grant: Grant) -> None:
        """Wait until this worker should ask again: something is due, `grant.wait` is over, or a call woke it.

        A worker that leaves the front wakes the next one, even if it is cancelled: otherwise all others would stay
        asleep."""
        loop, calls, turn = asyncio.get_running_loop(), self._calls, asyncio.Event()
        asks_at, grace = float("inf") if grant.wait is None else loop.time() + grant.wait, 0.0
        self._turns[turn] = False
        try:
            while self._calls == calls and not self._turns[turn]:
                pause, is_first = None, self._is_first(turn)
                if is_first:
                    due_in = self._due_in()
                    if due_in <= 0:
                        # Something is due that this worker was just refused: until there is news, another request would
                        # be in vain.
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
        """Have the first worker compute its sleep again: the next lane may be due at another time."""
        if (first := next(iter(self._turns), None)) is not None:
            first.set()

    def send(self) -> None:
        """Wake one more worker: more lanes are due than the caller could take."""
        if (turn := next((turn for turn, is_sent in self._turns.items() if not is_sent), None)) is not None:
            self._turns[turn] = True
            turn.set()

    def call(self) -> None:
        """Wake all workers: the job is paused, stopped or finished, which each must see."""
        self._calls += 1
        for turn in self._turns:
            turn.set()

    def _is_first(self, turn: asyncio.Event) -> bool:
        return next(iter(self._turns)) is turn


log = logging.getLogger("gossamer.frontier")
_TOKEN_BITS = 40
_SLICE = 500


class EmbeddedFrontier:
    """A frontier with its schedule in this process; `journal` stores what has to survive the process.

    `lease` and `extend` work in memory without the lock, so they answer while a commit waits for the disk; losses found
    by `lease` are written when the lock is free. `add`, `settling`, `release`, `abandon`, `blame`, `steer` and `limit`
    take the lock: their changes must not interleave. Their writes are completed even if the caller is cancelled
    (`to_the_end`)."""

    def __init__(self, journal: Journal, past: Past, *, settings: Settings, clock: Clock) -> None:
        self.secret = past.secret
        self.marks = dict(past.marks)
        self._journal = journal
        self._clock = clock
        self._state = State(settings, clock)
        # Above all tokens of earlier owners: the journal raised the epoch when it was opened.
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
        self._notify()
        return len(change.urls)

    async def _keep_urls(self, change: Change) -> None:
        """Queue new requests once they are on disk: a lease must never hand out what a crash could forget."""
        await self._write(change)
        self._state.enqueue(change)

    async def _hasten(self, change: Change) -> None:
        """Bring the revisits of pages forward that a link or a sitemap reports as changed.

        It never raises: without it, the pages are visited at their planned time."""
        try:
            for name, hints in change.hints.items():
                await self._hasten_site(name, hints)
        except FrontierError as error:
            log.debug("could not bring revisits forward: %s", error)

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
            # Let other tasks run.
            await asyncio.sleep(0)
        if change.hastened:
            await self._write(change)
            state.hints.update({number: hint for number, (hint, _) in change.hastened.items()})
            state.schedule.hasten(site, {number: now + due - epoch for number, (_, due) in change.hastened.items()})

    async def _read(self, numbers: Sequence[int]) -> list[Request]:
        """Read requests from the journal, only to show them."""
        return self._journal.load(numbers, self._state.visits)

    async def _write(self, change: Change) -> Sequence[int]:
        """Write a change, with the new sites and losses that have gathered since the last one.

        If that fails, the change's keys are unknown again; sites and losses stay for the next change."""
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
        """Hand out the lanes that have been ready longest. Leases are not written down, only losses that it finds.

        A due lane that still has a token is one whose lease has ended: it is taken back, and may be handed out by the
        same call. Without `suspects`, or for a worker that holds one already, no suspect is handed out: if it kills
        the worker again, it must be clear which request did it. A lane that gives nothing is put back into the heap at
        the end, not at once, so that this call does not meet it again."""
        state, schedule = self._state, self._state.schedule
        if state.job != "running" or state.is_over():
            return Grant(job=state.job_state, news=state.news)
        now, news = self._clock.monotonic(), state.news
        if state.room() <= 0:
            # All that max_pages still allows is leased. Its holders may be dead, and then no lane would become due to
            # show it.
            state.expire_leases(now)
        room = state.room()
        leases: list[Lease] = []
        passed: list[Site] = []
        busy = not suspects or state.has_suspect(worker, now)
        if room > 0 and limit > 0:
            for lane in schedule.due(now, over_quota=over_quota):
                try:
                    lease = self._lease(lane, min(batch, room), seconds, now, worker, suspect=not busy)
                except FrontierError:
                    # Return the lanes that this call has leased already: the worker will not learn of them.
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
            # For other workers: for example suspects that this one may not have besides its own.
            schedule.wake(site)
        if state.new_lapses and not self._lock.locked():
            await self._write_losses()
        elif state.new_lapses and (self._keeping is None or self._keeping.done()):
            # A commit holds the lock, perhaps for longer than the returned leases last: do not wait for it.
            self._keeping = asyncio.create_task(self._write_losses())
        if state.news != news:
            self._notify()
        elif leases and due_at is not None and due_at <= now:
            self._line.send()
        wait = None if due_at is None else max(0.0, due_at - now)
        return Grant(leases=tuple(leases), wait=wait, job=state.job_state, news=state.news)

    def _lease(self, lane: Lane, batch: int, seconds: float, now: float, worker: str, *, suspect: bool) -> Lease | None:
        """Lease one lane; None if it has nothing for this worker.

        The requests are read before the lane gets its token: if the journal cannot read them, they go back to the
        queue and no trace of the lease remains."""
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
        """The requests of a batch, with their tries and hints. They go back to the head if they cannot be read."""
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

    async def _write_losses(self) -> None:
        """Write counted losses to the journal once the lock is free."""
        async with self._lock:
            await self._write_lapses()

    async def _write_lapses(self) -> None:
        """Write the counted losses down, so that a request that kills the owner as well is still found (P10)."""
        try:
            await to_the_end(self._write(Change()))
        except FrontierError:
            # They are written with the next change.
            pass

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        """Renew leases that have not ended. A lease that has ended is not revived, even if its lane is still free."""
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
        """Check the tokens and pin the lanes. The caller writes the records of what is accepted, then commits.

        The lock is held until the block ends: a slow sink delays other commits, not leases. If the block ends without
        a commit, because a sink or the disk failed, the requests stay with their worker, which tries again."""
        async with self._lock:
            settlement = Settlement(self._state, outcomes, notes, write=self._commit)
            try:
                yield settlement
            finally:
                settlement.unpin()
                self._notify()

    async def _commit(self, settlement: Settlement) -> None:
        # To its end, although the caller may be cancelled: a written change that is not applied would split memory from
        # disk until the next start.
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
        self._notify()

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Take back the leases of a dead worker at once, and return how many it had.

        Only the `blamed` keys, which its crash marker names, count as lost; the rest of its batches goes back to the
        head without a loss. The lanes rest for one delay: the worker may just have sent a request."""
        state = self._state
        async with self._lock:
            now = self._clock.monotonic()
            lanes = [lane for lane in state.held.values() if lane.worker == worker]
            for lane in lanes:
                guilty = frozenset(lane.batch[key] for key in blamed if key in lane.batch)
                state.take_back(lane, now + state.schedule.lane_delay(lane.site), blamed=guilty)
            if state.new_lapses:
                await self._write_lapses()
        self._notify()
        return len(lanes)

    async def blame(self, keys: Sequence[int]) -> None:
        """Count one loss against each of these requests: the previous owner died while it handled them.

        Leases do not survive an owner, so the requests are queued, and are looked up by key in the journal."""
        state = self._state
        async with self._lock:
            for key in keys:
                found = await asyncio.to_thread(self._journal.lookup, key) if key in state.seen else None
                if found is not None:
                    state.blame(int(found["number"]), state.schedule.sites[found["site"]])
            if state.new_lapses:
                await self._write_lapses()
        self._notify()

    @property
    def state(self) -> JobState:
        """Return whether the job is running, paused, stopping, or finished."""
        return self._state.job_state

    async def idle(self, grant: Grant) -> None:
        # News since the grant ends the wait at once, unless other workers already wait: then the news is for the first
        # of them, or a thousand idle workers would ask each time.
        if grant.news == self._state.news or (self._line and self._state.job_state == "running"):
            await self._line.wait(grant)

    def _notify(self) -> None:
        """Record that something has changed, and wake the workers that it concerns."""
        self._state.news += 1
        if self._state.job_state == "running":
            self._line.look()
        else:
            self._line.call()

    def _due_in(self) -> float:
        due_at = self._state.schedule.next_due()
        return float("inf") if due_at is None else due_at - self._clock.monotonic()

    def unknown(self, keys: Iterable[int]) -> set[int]:
        """Return those of these keys that are new, or not written to disk yet."""
        return self._state.unknown(set(keys))

    async def counts(self) -> Counts:
        return self._state.counts()

    async def steer(self, job: JobState) -> None:
        """Pause, resume, or stop the job. The state survives this process, except that a stop ends with the run."""
        async with self._lock:
            await to_the_end(self._keep_job(job))
        self._notify()

    async def _keep_job(self, job: JobState) -> None:
        await self._write(Change(job=job))
        self._state.job = job

    async def limit(self, settings: Settings) -> None:
        """Apply these settings, which differ from the current ones in limits and delays only."""
        async with self._lock:
            self._state.limit(settings)
        self._notify()

    def lanes(self) -> RegionView:
        """Count the lanes in which requests wait or are leased."""
        return self._state.schedule.lanes(self._clock.monotonic())

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        return await self.find(key_of(self.secret, url))

    async def find(self, key: int) -> Mapping[str, Any] | None:
        """Return everything that is stored about the URL with this key; None if it was never seen."""
        if key not in self._state.seen:
            return None
        # The file has no index on keys: a thread scans it, and the crawl continues.
        found = await asyncio.to_thread(self._journal.lookup, key)
        site = self._state.schedule.sites.get(found["site"]) if found is not None else None
        if found is None or site is None:
            return None
        where = self._state.url_state(site, key, found)
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
        """Write pending changes, and close the journal. All leases are void from now on."""
        if self._keeping is not None:
            await asyncio.wait((self._keeping,))
        async with self._lock:
            try:
                if self._state.new_lapses or self._state.new_sites:
                    await self._write(Change())
            finally:
                self._journal.close()


def open_memory(settings: Settings, *, clock: Clock, secret: bytes) -> EmbeddedFrontier:
    """Open a frontier that ends with this process."""
    past = Past()
    past.secret = secret
    return EmbeddedFrontier(MemoryJournal(), past, settings=settings, clock=clock)
