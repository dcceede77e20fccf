from __future__ import annotations

from pathlib import Path

import gates
import pytest
import run
from score import UNEXPLAINED


@pytest.mark.parametrize("module", run.modules())
def test_scores_stay_above_their_floors_and_failures_have_reasons(module: str, shared: Path) -> None:
    for suite, passed, total, deviations in run.scores(module):
        assert passed <= total
        assert passed >= run.floor()[suite], f"{suite}: {passed} of {total}: {deviations}"
        assert UNEXPLAINED not in deviations.values(), suite


@pytest.mark.usefixtures("shared")
def test_every_suite_is_read_or_has_a_reason() -> None:
    assert run.unread() == []
    assert all(run.skipped().values())


@pytest.mark.usefixtures("shared")
def test_gates_match_the_list() -> None:
    assert gates.listed() == gates.GATES
    assert [gate for gate, tests in gates.gates().items() if not tests] == []


def test_a_gate_with_a_skip_an_expected_failure_or_no_test_is_open() -> None:
    heard = gates.Heard()
    heard.passed["good"] = 2
    heard.wrong["skips"] = ["skips: skipped"]
    tests = {"H01": ["good"], "H02": ["good", "skips"], "H03": [], "H04": ["never"]}
    found = [line.partition(":")[0] for line in gates.failures(tests, heard)]
    assert found == ["H02", "H03", "H04"]
