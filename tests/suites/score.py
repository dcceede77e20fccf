"""The result of one suite of outside cases."""

from __future__ import annotations

from typing import NamedTuple


class Score(NamedTuple):
    """How many cases passed, and why the others do not."""

    suite: str
    passed: int
    total: int
    deviations: dict[str, str]
