from __future__ import annotations

from pathlib import Path

import pytest
import scores_extract


@pytest.mark.usefixtures("shared")
def test_all_cases_pass_but_documented_ones() -> None:
    for score in scores_extract.scores():
        explained = dict(scores_extract.EXPLAINED.get(score.suite, {}))
        assert score.deviations == explained, score.suite
        assert score.passed + len(explained) == score.total


def test_no_suite_is_empty(shared: Path) -> None:
    assert shared.is_dir()
    totals = {score.suite: score.total for score in scores_extract.scores()}
    assert totals == {
        "html-encoding-html5lib": 83,
        "encoding-wpt": 75,
        "html-meta-refresh": 73,
        "html-srcset": 236,
        "html-base": 7,
        "html-links-scrapy": 59,
    }
