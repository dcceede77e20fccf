"""The release gates: tests of faults and hostile inputs that must all run and pass before a release."""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FAULTS = TESTS.parents[1] / "shared" / "FAULTS.md"
_RELEASE_STOPS = """
    F01 F02 F03 F04 F05 F09 F12 F26 F29 F41 F60 F70
    H01 H02 H03 H04 H05 H06 H07 H08 H09 H13 H16 H36 H48 H56 H60 H61 H62 H66
"""
GATES = _RELEASE_STOPS.split()
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[FH]\d\d(?!\d)")

_KILLS = ("crawl/test_kills.py::test_dead_workers_are_replaced_and_their_pages_fetched",)
_GUARD = "download/test_guard.py::"
NAMED: dict[str, tuple[str, ...]] = {
    "F01": (
        *_KILLS,
        "fleet/test_redis_kills.py::test_killed_workers_of_a_fleet_lose_nothing",
        "fleet/test_sql_fleet.py::test_killed_workers_on_a_database_lose_nothing",
        "fleet/test_folder_fleet.py::test_successors_of_killed_workers_lose_nothing_and_keep_the_delay",
    ),
    "F02": ("crawl/test_kills.py::test_kills_leave_the_files_exact",),
    "F09": (
        "crawl/test_kills.py::test_a_worker_suspended_past_its_lease_changes_nothing",
        "fleet/test_redis_fleet.py::test_a_worker_suspended_past_its_lease_changes_nothing",
        "fleet/test_folder_fleet.py::test_a_worker_that_was_stopped_past_its_lease_does_no_harm",
    ),
    "F12": ("crawl/test_faults.py::test_a_download_slower_than_the_lease_is_fetched_once",),
    "F29": (
        "frontier/test_redis.py::test_a_lost_answer_costs_nothing",
        "frontier/test_sql_faults.py::test_connections_that_break_in_the_middle_of_calls_lose_nothing",
    ),
    "H01": (_GUARD + "test_no_spelling_of_localhost_is_connected_to",),
    "H02": (_GUARD + "test_no_spelling_of_localhost_is_connected_to",),
    "H03": (
        _GUARD + "test_metadata_addresses_are_refused_even_when_private_ones_are_allowed",
        _GUARD + "test_metadata_names_are_refused_even_when_private_addresses_are_allowed",
        _GUARD + "test_metadata_literals_are_never_connected_to",
    ),
    "H04": (
        _GUARD + "test_addresses_that_are_not_global_are_refused",
        _GUARD + "test_no_address_private_to_python_passes",
    ),
    "H05": (_GUARD + "test_addresses_that_are_not_global_are_refused",),
    "H06": (_GUARD + "test_a_public_name_with_a_private_address_is_refused",),
    "H07": (_GUARD + "test_dns_rebinding_is_refused",),
    "H09": (_GUARD + "test_only_http_urls_are_fetched",),
    "H16": (
        "download/test_decoding.py::test_bombs_of_the_suite_stop_at_the_limit",
        "download/test_decoding.py::test_a_bomb_of_ten_gibibytes_holds_less_than_twice_the_limit",
    ),
    "H48": ("storage/test_tree.py::test_file_names_cannot_escape_the_folder",),
    "H56": ("test_architecture.py::test_nothing_is_unpickled_or_evaluated",),
}
"""Tests of gates whose names and docstrings do not contain the gate's number; the others are found by it."""


class Heard:
    """What became of each test, by its name without parameters."""

    def __init__(self) -> None:
        self.passed: dict[str, int] = defaultdict(int)
        self.wrong: dict[str, list[str]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0].removeprefix("tests/")
        if report.skipped or report.failed or hasattr(report, "wasxfail"):
            self.wrong[name].append(
                f"{report.nodeid}: {'expected to fail' if hasattr(report, 'wasxfail') else _why(report)}"
            )
        elif report.when == "call":
            self.passed[name] += 1


def gates() -> dict[str, list[str]]:
    """Gate -> its tests."""
    found = {gate: list(NAMED.get(gate, ())) for gate in GATES}
    for name, numbers in _numbered():
        for number in numbers & set(GATES):
            if name not in found[number]:
                found[number].append(name)
    return found


def listed() -> list[str]:
    """The gates as the list of faults names them."""
    line = re.search(r"^Hard gates[^:]*: (.*?)\.$", FAULTS.read_text("utf-8"), re.MULTILINE)
    assert line is not None
    found = []
    for part in line[1].split(", "):
        first, _, last = part.partition("-")
        last = last or first
        found += [f"{first[0]}{number:02}" for number in range(int(first[1:]), int(last[1:]) + 1)]
    return found


def failures(tests: dict[str, list[str]], heard: Heard) -> Iterator[str]:
    """Why gates do not hold: no test, none that ran, or one that failed, was skipped or was expected to fail."""
    for gate, names in tests.items():
        if not names:
            yield f"{gate}: there is no test"
        for name in names:
            yield from (f"{gate}: {words}" for words in heard.wrong.get(name, ()))
            if not heard.passed.get(name) and not heard.wrong.get(name):
                yield f"{gate}: {name} did not run"


def main(arguments: Iterable[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default=os.environ.get("JOBS", "2"))
    parser.add_argument("--only", nargs="*", default=GATES, help="these gates")
    choice = parser.parse_args(list(arguments))
    if FAULTS.is_file() and (missing := set(listed()) - set(GATES)):
        print(f"gates that are not looked at: {', '.join(sorted(missing))}", file=sys.stderr)
        return 1
    tests = {gate: names for gate, names in gates().items() if gate in choice.only}
    heard = Heard()
    chosen = sorted({f"tests/{name}" for names in tests.values() for name in names})
    os.chdir(TESTS.parent)
    options = ["-q", "-m", "not long", "-p", "no:cacheprovider", "--no-header", "--tb=short", "-n", choice.jobs]
    pytest.main([*options, *chosen], plugins=[heard])
    broken = list(failures(tests, heard))
    for gate, names in tests.items():
        count = sum(heard.passed.get(name, 0) for name in names)
        state = "open" if any(line.startswith(gate) for line in broken) else "holds"
        print(f"gate {gate}  {state:5}  {count} passed in {len(names)} tests")
    for line in broken:
        print(f"open: {line}", file=sys.stderr)
    return 1 if broken else 0


def _numbered() -> Iterator[tuple[str, set[str]]]:
    """Tests that carry numbers, in their names or docstrings, but for those that run only with `make test-long`."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            if any(ast.unparse(mark).startswith("pytest.mark.long") for mark in node.decorator_list):
                continue
            named = {part.upper() for part in re.findall(r"(?<=_)[fh]\d\d(?=_)", node.name)}
            numbers = named | set(_NUMBER.findall(ast.get_docstring(node) or ""))
            if numbers:
                yield f"{path.relative_to(TESTS)}::{node.name}", numbers


def _why(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    if report.skipped and isinstance(report.longrepr, tuple):
        return f"skipped: {report.longrepr[2]}"
    return str(report.outcome)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
