from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from gossamer.cli import gossamer, lab
from gossamer.engine import commit, visit
from gossamer.engine import run as engine
from gossamer.frontier.embedded import frontier, schedule
from gossamer.frontier.embedded import state as frontier_state
from gossamer.jobs import worker
from gossamer.lab.simulation import run
from gossamer.lab.simulation.run import Report, simulate
from gossamer.lab.simulation.scenario import FAULTS, draw

SOURCE = Path(run.__file__).parent
LEASE_WORDS = {"expires_at", "deadline", "lapses", "next_at", "hold_until", "last_token", "settling", "ttl"}


@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_invariants_hold_in_fifty_scenarios(first: int) -> None:
    """A thousand in total; `gossamer simulate --seeds 1 --seed N` repeats one."""
    broken = {seed: found for seed in range(first, first + 50) if (found := simulate(draw(seed)).violations)}
    assert not broken


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_invariants_hold_in_more_scenarios() -> None:
    broken = {seed: found for seed in range(1000, 5000) if (found := simulate(draw(seed)).violations)}
    assert not broken


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fleet_loses_nothing(fault: str) -> None:
    """Data loss, pauses, lost disks, and moved shards; `gossamer simulate --fault NAME --seed N` repeats one."""
    assert not _broken(fault, range(25))


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 1000, 125))
@pytest.mark.parametrize("fault", FAULTS)
def test_fleet_loses_nothing_in_a_thousand_scenarios(fault: str, first: int) -> None:
    assert not _broken(fault, range(first, first + 125))


def _broken(fault: str, seeds: range) -> dict[int, tuple[str, ...]]:
    return {seed: found for seed in seeds if (found := simulate(draw(seed, fault=fault)).violations)}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_injected(fault: str) -> None:
    """In most scenarios, and with links between servers."""
    befell = sum((simulate(draw(seed, fault=fault)).befell for seed in range(6)), Counter[str]())
    named = {"forget": ("restart", "takeover", "everything")}.get(fault, (fault,))
    assert sum(befell[name] for name in named) >= 3


def test_a_fleet_with_a_fault_replays_exactly() -> None:
    for fault in FAULTS:
        assert simulate(draw(3, fault=fault)) == simulate(draw(3, fault=fault))


def test_a_seed_replays_exactly_in_another_process() -> None:
    """Also with another hash seed, and after other scenarios."""
    here = [simulate(draw(seed)) for seed in (4, 7)]
    asked = [sys.executable, "-m", "gossamer", "simulate", "--seeds", "1", "--seed", "7", "--json"]
    done = subprocess.run(asked, env={**os.environ, "PYTHONHASHSEED": "5"}, capture_output=True, check=True)
    there = json.loads(done.stdout)
    assert there["digest"] == here[1].digest
    assert there == json.loads(json.dumps(here[1]._asdict()))
    assert here[0].digest != here[1].digest


def test_a_seed_that_fails_is_printed_with_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier_state.State, "plan_urls", lambda self, change, requests, parent: None)
    first = CliRunner().invoke(
        gossamer, ["simulate", "--seeds", "2", "--seed", "3", "--sites", "2"], standalone_mode=False
    )
    assert first.return_value == 1
    line = next(line for line in first.output.splitlines() if line.startswith("seed 3 fails: "))
    again = line.removeprefix("seed 3 fails: gossamer ").split()
    assert again == ["simulate", "--seeds", "1", "--seed", "3", "--sites", "2"]
    second = CliRunner().invoke(gossamer, again, standalone_mode=False)
    assert second.output.splitlines()[:2] == first.output.splitlines()[:2]


def test_the_engine_and_the_frontier_are_the_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these functions is used in a run: if it does nothing, the run changes."""
    used: set[str] = set()

    def watch(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def seen(*args: object, **named: object) -> object:
            used.add(f"{owner.__module__}.{owner.__name__}.{name}")
            return real(*args, **named)

        monkeypatch.setattr(owner, name, seen)

    parts: list[tuple[type, str]] = [
        (engine.Engine, "run"),
        (visit.Visit, "run"),
        (commit.Committer, "run"),
        (commit.OwnerStore, "commit"),
        (commit.FleetStore, "commit"),
        (frontier.EmbeddedFrontier, "lease"),
        (frontier.EmbeddedFrontier, "extend"),
        (schedule.Schedule, "take"),
        (frontier_state.State, "take_back"),
        (frontier.Settlement, "_plan"),
    ]
    for owner, name in parts:
        watch(owner, name)
    for seed in range(2, 8):
        simulate(draw(seed))
    assert used == {f"{owner.__module__}.{owner.__name__}.{name}" for owner, name in parts}


def test_the_simulation_runs_what_users_run() -> None:
    """The engine is put together by the same function, the frontier is the same class, and a link only passes calls on:
    each of its methods that a frontier has calls the frontier's own."""
    assert vars(run)["build_worker"] is worker.build_worker
    assert vars(run)["EmbeddedFrontier"] is frontier.EmbeddedFrontier
    carries = {"add", "lease", "extend", "complete", "release", "idle", "counts"}
    for path in SOURCE.glob("*.py"):
        for made in (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ClassDef)):
            methods = {node.name: node for node in made.body if isinstance(node, ast.AsyncFunctionDef)}
            carrier = made.name in ("LossyLink", "ShardLink", "OpenShard")
            assert carrier or not carries & methods.keys(), f"{path.name}: {made.name} is a frontier"
            if made.name == "OpenShard":
                for name in carries - {"complete"}:
                    assert f".{name}(" in ast.unparse(methods[name]), f"{name} is not the embedded frontier's"
            if made.name == "LossyLink":
                assert carries <= methods.keys()
                for name in carries:
                    assert f"server.frontier.{name}(" in ast.unparse(methods[name])


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.name)
def test_the_simulation_has_no_lease_logic_of_its_own(path: Path) -> None:
    """It neither derives from the engine or the frontier, nor touches what leases are made of; its journal and link
    only carry."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            allowed = {"NamedTuple", "MemoryJournal", "Past", "VirtualLoop", "Exception", "Unavailable", "LossyLink"}
            assert bases <= allowed, node.name
        if isinstance(node, ast.Attribute):
            # The journal keeps what it is given, and a shard asks the frontier to settle together with its outbox.
            carried = (path.name, node.attr) in {("stores.py", "lapses"), ("shards.py", "settling")}
            assert node.attr not in LEASE_WORDS or carried, f"{path.name}:{node.lineno} has {node.attr}"


def test_given_sizes_are_used() -> None:
    scenario = draw(5, workers=9, sites=4, pages=2)
    assert (scenario.workers, len(scenario.sites), {site.pages for site in scenario.sites}) == (9, 4, {2})
    assert isinstance(simulate(scenario), Report)
    assert lab.simulate.name == "simulate"
