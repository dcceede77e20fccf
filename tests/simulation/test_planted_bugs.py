"""Bugs that are planted into the real code, one at a time: the simulation finds each within a few seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from gossamer.engine.gate import Gate
from gossamer.engine.store import FleetStore, OwnerStore
from gossamer.engine.visit import Visit
from gossamer.frontier import local
from gossamer.frontier.settlement import Settlement
from gossamer.frontier.state import State
from gossamer.model import Lease, Outcome
from gossamer.simulation.run import simulate
from gossamer.simulation.scenario import draw

SEEDS = 60
Plant = Callable[[pytest.MonkeyPatch], None]


def drop_the_token_check(patch: pytest.MonkeyPatch) -> None:
    real = Settlement._plan

    def plan(self: Settlement, outcomes: Sequence[Outcome]) -> Any:
        sites = self._state.schedule.sites
        now = [
            msgspec.structs.replace(outcome, token=sites[outcome.site].lanes[outcome.lane].token)
            for outcome in outcomes
        ]
        return real(self, now)

    patch.setattr(Settlement, "_plan", plan)


def forget_links(patch: pytest.MonkeyPatch) -> None:
    real = Settlement._plan

    def plan(self: Settlement, outcomes: Sequence[Outcome]) -> Any:
        return real(self, [msgspec.structs.replace(outcome, links=outcome.links[:1]) for outcome in outcomes])

    patch.setattr(Settlement, "_plan", plan)


def ignore_the_delay_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    real = State.lapse
    patch.setattr(
        State,
        "lapse",
        lambda self, lane, now, *, blamed: real(self, lane, now - self.schedule.lane_delay(lane.site), blamed=blamed),
    )


def ignore_the_delay_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    real = local.restore

    def restore(state: State, past: Any) -> None:
        real(state, past)
        for site in state.schedule.sites.values():
            for lane in site.lanes:
                lane.next_at = state.clock.monotonic()
            state.schedule.wake(site)

    patch.setattr(local, "restore", restore)


def complete_before_the_sink_wrote(patch: pytest.MonkeyPatch) -> None:
    async def commit(self: FleetStore, results: Any, notes: Any) -> Any:
        receipt = await self._frontier.complete([result.outcome for result in results], notes=notes)
        if records := [result.record for result in results if result.record is not None]:
            await self._sinks[0].write(records)
        return receipt

    patch.setattr(FleetStore, "commit", commit)


def write_again_on_every_try(patch: pytest.MonkeyPatch) -> None:
    real = FleetStore.commit

    async def commit(self: FleetStore, results: Any, notes: Any) -> Any:
        self._written = []
        return await real(self, results, notes)

    patch.setattr(FleetStore, "commit", commit)


def write_before_the_tokens_are_checked(patch: pytest.MonkeyPatch) -> None:
    async def commit(self: OwnerStore, results: Any, notes: Any) -> Any:
        if records := [result.record for result in results if result.record is not None]:
            await self._sinks[0].write(records)
        return await self._frontier.complete([result.outcome for result in results], notes=notes)

    patch.setattr(OwnerStore, "_commit", commit)


def ignore_robots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gate, "allows", lambda self, url: True)


def fetch_after_the_lease_has_ended(patch: pytest.MonkeyPatch) -> None:
    def renewed(self: Visit, sent_at: float, ttl: float) -> None:
        self.deadline = float("inf")

    patch.setattr(Visit, "renewed", renewed)


def believe_in_every_renewal(patch: pytest.MonkeyPatch) -> None:
    real = local.LocalFrontier.extend

    async def extend(self: Any, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        await real(self, leases, seconds=seconds)
        return list(leases)

    patch.setattr(local.LocalFrontier, "extend", extend)


def keep_keys_of_a_failed_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "forget", lambda self, change: None)


def lose_retries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Settlement, "_come_again", lambda self, *args, **named: None)


def count_retries_as_ends(patch: pytest.MonkeyPatch) -> None:
    real = Settlement._plan

    def plan(self: Settlement, outcomes: Sequence[Outcome]) -> Any:
        ends = [
            msgspec.structs.replace(outcome, status="failed", again_in=None) if outcome.status == "retry" else outcome
            for outcome in outcomes
        ]
        return real(self, ends)

    patch.setattr(Settlement, "_plan", plan)


def hand_tokens_out_twice(patch: pytest.MonkeyPatch) -> None:
    real = local.LocalFrontier._lease

    def lease(self: Any, *args: Any, **named: Any) -> Any:
        self._state.last_token -= self._state.last_token % 4 == 3
        return real(self, *args, **named)

    patch.setattr(local.LocalFrontier, "_lease", lease)


def drop_the_lanes_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Their requests are forgotten with them."""
    real = State.lapse

    def lapse(self: State, lane: Any, now: float, *, blamed: frozenset[int]) -> None:
        for key in list(lane.batch):
            self.schedule.settle(lane, key)
        real(self, lane, now, blamed=frozenset())

    patch.setattr(State, "lapse", lapse)


BUGS: list[tuple[Plant, str, int]] = [
    (drop_the_token_check, "P4", 7),
    (forget_links, "I1", 0),
    (ignore_the_delay_after_a_crash, "I4", 11),
    (ignore_the_delay_after_a_restart, "I4", 19),
    (complete_before_the_sink_wrote, "I6", 4),
    (write_again_on_every_try, "I6", 2),
    (write_before_the_tokens_are_checked, "I6", 6),
    (ignore_robots, "I5", 0),
    (fetch_after_the_lease_has_ended, "I4", 12),
    (lose_retries, "I1", 3),
    (count_retries_as_ends, "I1", 3),
    (hand_tokens_out_twice, "P4", 2),
    (drop_the_lanes_of_the_dead, "I1", 1),
]
"""Bug, the promise that it breaks, and the first seed that shows it."""
RARE: list[tuple[Plant, str]] = [(believe_in_every_renewal, "I4"), (keep_keys_of_a_failed_write, "I1")]


@pytest.mark.parametrize(("plant", "promise", "first"), BUGS, ids=[plant.__name__ for plant, _, _ in BUGS])
def test_a_planted_bug_is_found(plant: Plant, promise: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert shows(promise, range(first, first + 8))


@pytest.mark.long
@pytest.mark.parametrize(("plant", "promise"), RARE, ids=[plant.__name__ for plant, _ in RARE])
def test_a_rare_planted_bug_is_found(plant: Plant, promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert shows(promise, range(SEEDS))


def shows(promise: str, seeds: range) -> bool:
    """Whether one of these seeds breaks the promise."""
    return any(line.startswith(promise) for seed in seeds for line in simulate(draw(seed)).violations)
