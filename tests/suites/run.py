"""Prints the scores of the outside suites and fails if one fell below `floor.json`."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SHARED = HERE.parents[1].parent / "shared" / "suites"


def modules() -> list[str]:
    """The names of the modules that score suites."""
    return sorted(path.stem for path in HERE.glob("scores_*.py"))


def scores(module: str) -> Iterator[tuple[str, int, int, dict[str, str]]]:
    """What `scores()` of a module gives: one Score, or several."""
    found = importlib.import_module(module).scores()
    yield from [found] if hasattr(found, "suite") else found


def floor() -> dict[str, int]:
    """The least number of cases that each suite has to pass."""
    found: dict[str, int] = json.loads((HERE / "floor.json").read_text("utf-8"))
    return found


def main() -> int:
    if not SHARED.is_dir():
        print(f"skipped: {SHARED} is not there", file=sys.stderr)
        return 0
    sys.path.insert(0, str(HERE))
    least, seen, fallen = floor(), set(), []
    for module in modules():
        for suite, passed, total, deviations in scores(module):
            seen.add(suite)
            print(f"{suite:28} {passed:6} / {total}")
            for case, reason in deviations.items():
                print(f"    {case}: {reason}")
            if passed < least.get(suite, 0):
                fallen.append(f"{suite}: {passed} passed, it has to be {least[suite]}")
    fallen += [f"{suite}: in floor.json, but not scored" for suite in least if suite not in seen]
    for line in fallen:
        print(f"fallen: {line}", file=sys.stderr)
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
