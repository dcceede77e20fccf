"""How outcomes come to count: their tokens are checked, their change is written down, and only then is it applied."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from gossamer.frontier import journal as kept
from gossamer.frontier.journal import Change, JournalSite, OutcomeRow
from gossamer.frontier.schedule import Lane, Site
from gossamer.frontier.state import State, closed_status
from gossamer.model import Outcome, Receipt, SiteNote

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
