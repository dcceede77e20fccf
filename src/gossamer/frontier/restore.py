"""How an embedded frontier gets its memory back from what its journal kept."""

from __future__ import annotations

from typing import NamedTuple

from gossamer.frontier import journal as kept
from gossamer.frontier import policy
from gossamer.frontier.journal import JournalSite, Past
from gossamer.frontier.schedule import Site
from gossamer.frontier.state import State, closed_status


class _Endings(NamedTuple):
    """What became of each URL so far: its last status by number, and for those that come again the row, the time, and
    how many of their visits were stored."""

    last: bytearray
    again: dict[int, tuple[int | None, float]]
    visits: dict[int, int]


def restore(state: State, past: Past) -> None:
    """Fill an empty state. Leases are not kept: those of the last run are void."""
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
            # Most are like this, and there may be millions.
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
    """Ranks by priority, depth and hops, each worked out once."""

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
        # Nobody knows when the last request of the previous run went out: its sites wait one delay.
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
            # A retry that left no state goes out again with that of the visit before.
            again[number] = (before if status == kept.RETRY and not has_state else row_number, again_at)
        state.last_number = max(state.last_number, number)
    return _Endings(last, again, visits)
