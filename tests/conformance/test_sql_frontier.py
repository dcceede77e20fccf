from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from gossamer.settings import Settings
from gossamer.testing import harnesses
from gossamer.testing.frontier import FrontierSuite
from gossamer.testing.harness import Harness
from gossamer.testing.servers import MariaServer, PostgresServer

HOSTILE = Path(__file__).parents[2] / "../shared/suites/hostile-strings/blns.json"


class _Sql(FrontierSuite):
    url = ""

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.sql(settings, self.url)

    def strings(self) -> list[str]:
        if not HOSTILE.exists():
            pytest.skip(f"{HOSTILE} is not there: hostile strings are not checked")
        return [*super().strings(), *json.loads(HOSTILE.read_text("utf-8"))]


class TestPostgreSQL(_Sql):
    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: PostgresServer) -> None:
        self.url = postgres_server.url


class TestMariaDB(_Sql):
    @pytest.fixture(autouse=True)
    def _server(self, maria_server: MariaServer) -> None:
        self.url = maria_server.url
