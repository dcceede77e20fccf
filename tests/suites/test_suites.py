from __future__ import annotations

from pathlib import Path

import pytest
import run


@pytest.mark.parametrize("module", run.modules())
def test_no_score_falls_below_its_floor(module: str, shared: Path) -> None:
    for suite, passed, total, _ in run.scores(module):
        assert passed <= total
        assert passed >= run.floor()[suite], f"{suite}: {passed} of {total}"
