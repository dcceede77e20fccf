"""Prints the scores of the outside suites and fails if one fell, if a failure has no reason, or a suite is not read."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from score import UNEXPLAINED, Score

HERE = Path(__file__).parent
SHARED = HERE.parents[1].parent / "shared" / "suites"
NOT_SCORED = {
    "webstats": "figures of the real web, for the simulated one; there are no cases",
}


def modules() -> list[str]:
    """The names of the modules that score suites."""
    return sorted(path.stem for path in HERE.glob("scores_*.py"))


def scores(module: str) -> Iterator[Score]:
    """Return the result of a module's `scores()`: one Score or several."""
    found = importlib.import_module(module).scores()
    yield from [found] if isinstance(found, Score) else found


def skipped() -> dict[str, str]:
    """Folders and files of the suites that are not scored, and why."""
    found = dict(NOT_SCORED)
    for module in modules():
        found |= getattr(importlib.import_module(module), "SKIPPED", {})
    return found


def unread() -> list[str]:
    """Folders of suites that no module reads, and that no reason is given for."""
    read = {folder for module in modules() for folder in importlib.import_module(module).READS} | set(NOT_SCORED)
    return sorted(path.name for path in SHARED.iterdir() if path.is_dir() and path.name not in read)


def floor() -> dict[str, int]:
    """The least number of cases that each suite has to pass."""
    found: dict[str, int] = json.loads((HERE / "floor.json").read_text("utf-8"))
    return found


def main() -> int:
    if not SHARED.is_dir():
        print(f"skipped: {SHARED} is not there", file=sys.stderr)
        return 0
    sys.path.insert(0, str(HERE))
    least, seen = floor(), set()
    fallen = [f"{folder}: no module reads this suite" for folder in unread()]
    for module in modules():
        for suite, passed, total, deviations in scores(module):
            seen.add(suite)
            print(f"{suite:28} {passed:6} / {total}")
            for case, reason in deviations.items():
                print(f"    expected to fail: {case}: {reason}" if reason != UNEXPLAINED else f"    failed: {case}")
            fallen += [
                f"{suite}: {case} fails without a reason" for case, why in deviations.items() if why == UNEXPLAINED
            ]
            if passed < least.get(suite, total):
                fallen.append(f"{suite}: {passed} passed, it has to be {least.get(suite, total)}")
    for name, reason in skipped().items():
        print(f"skipped: {name}: {reason}")
    fallen += [f"{suite}: in floor.json, but not scored" for suite in least if suite not in seen]
    for line in fallen:
        print(f"fallen: {line}", file=sys.stderr)
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
