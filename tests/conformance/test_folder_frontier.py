from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from gossamer.settings import Settings
from gossamer.testing import harnesses
from gossamer.testing.frontier import FrontierSuite
from gossamer.testing.harness import Harness

HOSTILE = Path(__file__).parents[2] / "../shared/suites/hostile-strings/blns.json"


class TestFolder(FrontierSuite):
    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.folder(settings)

    def strings(self) -> list[str]:
        if not HOSTILE.exists():
            pytest.skip(f"{HOSTILE} is not there: hostile strings are not checked")
        return [*super().strings(), *json.loads(HOSTILE.read_text("utf-8"))]
