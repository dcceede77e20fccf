"""Mutation tests of a fleet's handling of data loss: the simulation finds each planted bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gossamer.engine.run import Engine
from gossamer.frontier import outbox
from gossamer.frontier.sharded import Sharded
from gossamer.lab.simulation import servers
from gossamer.lab.simulation.run import simulate
from gossamer.lab.simulation.scenario import draw
from gossamer.lab.simulation.servers import Mover
from gossamer.lab.simulation.shards import OpenShard, Outbox, ServerRun, ShardState

SEEDS = 60
Plant = Callable[[pytest.MonkeyPatch], None]


def acknowledge_before_the_outbox(patch: pytest.MonkeyPatch) -> None:
    real = Sharded._deliver

    async def deliver(self: Sharded, *args: Any, **named: Any) -> Any:
        added, _, runs = await real(self, *args, **named)
        return added, {}, runs

    patch.setattr(Sharded, "_deliver", deliver)


def forget_the_run(patch: pytest.MonkeyPatch) -> None:
    """A server that has lost data reports the same run as before."""
    patch.setattr(
        servers, "ServerRun", lambda name, number: ServerRun(name and f"{name.partition(':')[0]}:1", min(number, 1))
    )


def keep_the_memory_of_sent_links(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_note_run", lambda self, run: None)
    patch.setattr(Engine, "_forget", lambda self: None)


def count_time_in_which_the_server_was_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outbox, "MOST_STEP_SECONDS", float("inf"))


def let_lanes_rest_for_no_time(patch: pytest.MonkeyPatch) -> None:
    real = OpenShard._open
    patch.setattr(OpenShard, "_open", lambda self, epoch, *, rests: real(self, epoch, rests=False))


def finish_with_links_in_an_outbox(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "size", 0)


def take_a_copy_for_good_at_once(patch: pytest.MonkeyPatch) -> None:
    """The source is emptied before its target has been up long enough."""

    async def lived(self: Mover, name: str, holds: Callable[[ShardState], bool]) -> ShardState:
        return await self._ask(name, OpenShard.look)

    patch.setattr(Mover, "_lived", lived)


def serve_without_asking_the_target(patch: pytest.MonkeyPatch) -> None:
    real = OpenShard._open

    def open_shard(self: OpenShard, epoch: int, *, rests: bool) -> None:
        real(self, epoch, rests=rests)
        self.journal.header = self.journal.header._replace(server="")

    patch.setattr(OpenShard, "_open", open_shard)


def repair_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("gossamer.lab.simulation.run.repair", lambda servers, records: set())


BUGS: list[tuple[Plant, str, str, int]] = [
    (acknowledge_before_the_outbox, "I1", "forget", 27),
    (forget_the_run, "I1", "forget", 0),
    (keep_the_memory_of_sent_links, "I1", "forget", 105),
    (count_time_in_which_the_server_was_away, "I1", "forget", 18),
    (let_lanes_rest_for_no_time, "P5", "forget", 25),
    (finish_with_links_in_an_outbox, "I1", "forget", 50),
    (take_a_copy_for_good_at_once, "I1", "move", 23),
    (serve_without_asking_the_target, "P4", "move", 50),
    (repair_nothing, "I6", "disk", 0),
]
"""Bug, the violated promise, the fault that reveals it, and the first seed."""


@pytest.mark.parametrize(("plant", "promise", "fault", "first"), BUGS, ids=[bug[0].__name__ for bug in BUGS])
def test_a_planted_bug_of_a_fleet_is_found(
    plant: Plant, promise: str, fault: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    harsh = {"forgets": 8, "moves": 6} if fault == "move" else {}
    worlds = (replace(draw(seed, fault=fault), **harsh) for seed in range(first, first + SEEDS))  # type: ignore[arg-type]
    assert any(line.startswith(promise) for world in worlds for line in simulate(world).violations)
