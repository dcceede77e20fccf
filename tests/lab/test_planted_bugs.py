"""Mutation tests: bugs are planted in the real code, one at a time, and the simulation finds each violated promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gossamer.engine import robots_txt
from gossamer.engine.commit import FleetStore, OwnerStore
from gossamer.engine.robots import SiteRobots
from gossamer.engine.run import Engine
from gossamer.engine.visit import Visit
from gossamer.errors import SchemaMismatch
from gossamer.frontier.embedded import frontier, state
from gossamer.frontier.embedded.frontier import Settlement
from gossamer.frontier.embedded.schedule import NEVER, Lane, Schedule, Site
from gossamer.frontier.embedded.state import State
from gossamer.frontier.policy import SiteQuota
from gossamer.lab.simulation.run import simulate
from gossamer.lab.simulation.scenario import draw
from gossamer.model import Lease, Outcome

SEEDS = 200
"""Maximum number of scenarios per bug; most bugs show in one of the first."""
FLEET: dict[str, Any] = {"stores": "fleet", "restarts": 0}
CALM: dict[str, Any] = {"kills": 0, "pauses": 0, "cuts": 0, "loss": 0.0, "store_faults": 0.0, "poison": ""}
OWNER: dict[str, Any] = {"stores": "owner", "restarts": 2, "forgets_seconds": 0.0}
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
    real = State.take_back
    patch.setattr(
        State,
        "take_back",
        lambda self, lane, now, *, blamed: real(self, lane, now - self.schedule.lane_delay(lane.site), blamed=blamed),
    )


def ignore_the_delay_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    real = state.restore

    def without_delay(state: State, past: Any) -> None:
        real(state, past)
        for site in state.schedule.sites.values():
            for lane in site.lanes:
                lane.next_at = state.clock.monotonic()
            state.schedule.wake(site)

    patch.setattr(frontier, "restore", without_delay)


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
    patch.setattr(SiteRobots, "allows", lambda self, url: True)


def fetch_after_the_lease_has_ended(patch: pytest.MonkeyPatch) -> None:
    def renewed(self: Visit, sent_at: float, ttl: float) -> None:
        self.deadline = float("inf")

    patch.setattr(Visit, "renewed", renewed)


def believe_in_every_renewal(patch: pytest.MonkeyPatch) -> None:
    real = frontier.EmbeddedFrontier.extend

    async def extend(self: Any, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        await real(self, leases, seconds=seconds)
        return list(leases)

    patch.setattr(frontier.EmbeddedFrontier, "extend", extend)


def keep_keys_of_a_failed_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "forget", lambda self, change: None)


def lose_retries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Settlement, "_queue_again", lambda self, *args, **named: None)


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
    real = frontier.EmbeddedFrontier._lease

    def lease(self: Any, *args: Any, **named: Any) -> Any:
        self._state.last_token -= self._state.last_token % 4 == 3
        return real(self, *args, **named)

    patch.setattr(frontier.EmbeddedFrontier, "_lease", lease)


def drop_the_lanes_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Their requests are lost with them."""
    real = State.take_back

    def take_back(self: State, lane: Any, now: float, *, blamed: frozenset[int]) -> None:
        for key in list(lane.batch):
            self.schedule.finish(lane, key)
        real(self, lane, now, blamed=frozenset())

    patch.setattr(State, "take_back", take_back)


def count_no_failures(patch: pytest.MonkeyPatch) -> None:
    real = State.count
    patch.setattr(State, "count", lambda self, status, by=1: None if status == 2 else real(self, status, by))


def never_renew(patch: pytest.MonkeyPatch) -> None:
    async def renew(self: Engine) -> None:
        await self._clock.sleep(1e9)

    patch.setattr(Engine, "_renew", renew)


def hide_delay_from_workers(patch: pytest.MonkeyPatch) -> None:
    real = frontier.EmbeddedFrontier._lease

    def lease(self: Any, *args: Any, **named: Any) -> Any:
        found = real(self, *args, **named)
        return None if found is None else msgspec.structs.replace(found, delay=0.0)

    patch.setattr(frontier.EmbeddedFrontier, "_lease", lease)


def never_ask_for_robots_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(robots_txt, "is_due", lambda known, now: known is None or known.kind == "unreachable")


def forget_the_seen_set(patch: pytest.MonkeyPatch) -> None:
    real = State.plan_urls

    def plan_urls(self: State, *args: Any, **named: Any) -> None:
        self.seen.clear()
        real(self, *args, **named)

    patch.setattr(State, "plan_urls", plan_urls)


def hand_out_lanes_that_are_held(patch: pytest.MonkeyPatch) -> None:
    real = Schedule._ready_at

    def ready_at(self: Schedule, lane: Lane) -> float | None:
        return lane.next_at if lane.token and not lane.settling else real(self, lane)

    patch.setattr(Schedule, "_ready_at", ready_at)


def finish_while_pages_are_under_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "is_over", lambda self: not self.schedule.queued and not self.schedule.delayed)


def finish_while_pages_wait_for_their_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "is_over", lambda self: not self.schedule.queued and not self.schedule.leased)


def acknowledge_what_is_not_written(patch: pytest.MonkeyPatch) -> None:
    real, calls = frontier.EmbeddedFrontier._write, [0]

    async def write(self: Any, change: Any) -> Sequence[int]:
        calls[0] += 1
        if calls[0] % 4 or change.urls or not change.outcomes:
            return await real(self, change)
        return [0] * len(change.outcomes)

    patch.setattr(frontier.EmbeddedFrontier, "_write", write)


def raise_on_a_stale_token(patch: pytest.MonkeyPatch) -> None:
    real = Settlement._plan

    def plan(self: Settlement, outcomes: Sequence[Outcome]) -> Any:
        receipt = real(self, outcomes)
        if receipt.stale:
            raise SchemaMismatch("a stale token")
        return receipt

    patch.setattr(Settlement, "_plan", plan)


def never_end_a_lease(patch: pytest.MonkeyPatch) -> None:
    real = Schedule._ready_at
    patch.setattr(Schedule, "_ready_at", lambda self, lane: NEVER if lane.token else real(self, lane))
    patch.setattr(State, "expire_leases", lambda self, now: None)


def blame_no_page(patch: pytest.MonkeyPatch) -> None:
    real = State.take_back
    patch.setattr(State, "take_back", lambda self, lane, now, *, blamed: real(self, lane, now, blamed=frozenset()))


def let_sites_have_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SiteQuota, "left", lambda self, site: 1 << 30)


def exceed_the_budget_of_a_site(patch: pytest.MonkeyPatch) -> None:
    def room(self: Site) -> int:
        return 1 << 62 if self.budget is None or self.stored < self.budget else 0

    patch.setattr(Site, "room", room)


def exceed_the_pages_of_a_job(patch: pytest.MonkeyPatch) -> None:
    def room(self: State) -> int:
        return 1 << 62 if self.settings.max_pages is None else self.settings.max_pages - self.stored

    patch.setattr(State, "room", room)


def try_for_ever(patch: pytest.MonkeyPatch) -> None:
    real = frontier.EmbeddedFrontier._load

    def load(self: Any, *args: Any) -> Any:
        self._state.tries.clear()
        return real(self, *args)

    patch.setattr(frontier.EmbeddedFrontier, "_load", load)


def come_again_too_soon(patch: pytest.MonkeyPatch) -> None:
    real = Settlement._queue_again

    def come_again(self: Settlement, row: Any, outcome: Outcome, *args: Any, **named: Any) -> None:
        soon = msgspec.structs.replace(outcome, again_in=(outcome.again_in or 0.0) / 10)
        real(self, row, soon, *args, **named)

    patch.setattr(Settlement, "_queue_again", come_again)


BUGS: list[tuple[Plant, str, int, dict[str, Any]]] = [
    (lose_retries, "I1", 2, {}),
    (count_retries_as_ends, "I1", 2, {}),
    (drop_the_lanes_of_the_dead, "I1", 0, {}),
    (count_no_failures, "I2", 0, {}),
    (finish_while_pages_wait_for_their_time, "I2", 10, {}),
    (never_renew, "I3", 16, CALM),
    (hide_delay_from_workers, "I4", 1, {}),
    (ignore_robots, "I5", 0, {}),
    (never_ask_for_robots_again, "I5", 33, {"skew_seconds": 0.0}),
    (complete_before_the_sink_wrote, "I6", 66, FLEET),
    (write_again_on_every_try, "I6", 1, FLEET),
    (write_before_the_tokens_are_checked, "I6", 0, OWNER),
    (forget_the_seen_set, "P1", 0, {}),
    (come_again_too_soon, "P1", 3, {}),
    (hand_out_lanes_that_are_held, "P2", 3, CALM),
    (forget_links, "P3", 0, {}),
    (drop_the_token_check, "P4", 43, {}),
    (hand_tokens_out_twice, "P4", 2, {}),
    (ignore_the_delay_after_a_crash, "P5", 6, {}),
    (ignore_the_delay_after_a_restart, "P5", 57, OWNER),
    (fetch_after_the_lease_has_ended, "P5", 30, {}),
    (finish_while_pages_are_under_way, "P6", 0, {}),
    (acknowledge_what_is_not_written, "P7", 0, {"forgets_seconds": 0.0}),
    (raise_on_a_stale_token, "P8", 6, {}),
    (never_end_a_lease, "P9", 0, {}),
    (blame_no_page, "P10", 6, {"poison": "http://s0.test/p2"}),
    (let_sites_have_all, "quota", 12, CALM),
    (exceed_the_budget_of_a_site, "budget", 19, CALM),
    (exceed_the_pages_of_a_job, "budget", 21, CALM),
    (try_for_ever, "tries", 1, {}),
]
"""Bug, the violated promise, the first seed, and fixed parts of its scenario."""
RARE: list[tuple[Plant, str]] = [(keep_keys_of_a_failed_write, "I1"), (believe_in_every_renewal, "P5")]


@pytest.mark.parametrize(("plant", "promise", "first", "chosen"), BUGS, ids=[bug[0].__name__ for bug in BUGS])
def test_a_planted_bug_is_found(
    plant: Plant, promise: str, first: int, chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert shows(promise, first, chosen)


def test_every_promise_has_a_bug_that_breaks_it() -> None:
    numbers = [f"I{number}" for number in range(1, 7)] + [f"P{number}" for number in range(1, 11)]
    assert {promise for _, promise, _, _ in BUGS} == {*numbers, "quota", "budget", "tries"}


@pytest.mark.long
@pytest.mark.parametrize(("plant", "promise"), RARE, ids=[plant.__name__ for plant, _ in RARE])
def test_a_rare_planted_bug_is_found(plant: Plant, promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert shows(promise, 0, {})


def shows(promise: str, first: int, chosen: dict[str, Any]) -> bool:
    """Whether one of the scenarios from this seed on, all with many faults, violates the promise."""
    harsh = {"kills": 6, "pauses": 4, "cuts": 3, "loss": 0.1, **chosen}
    worlds = (replace(draw(seed), **harsh) for seed in range(first, first + SEEDS))
    return any(line.startswith(f"{promise}:") for world in worlds for line in simulate(world).violations)
