"""The result of one suite of outside cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

UNEXPLAINED = "not explained"


class Score(NamedTuple):
    """How many cases passed, and why the others do not."""

    suite: str
    passed: int
    total: int
    deviations: dict[str, str]


def tally(suite: str, results: Mapping[str, bool], explained: Mapping[str, str] | None = None) -> Score:
    """The score of named cases; those that fail are given the reasons that are known."""
    reasons = explained or {}
    failed = {case: reasons.get(case, UNEXPLAINED) for case, passed in results.items() if not passed}
    return Score(suite, len(results) - len(failed), len(results), failed)
