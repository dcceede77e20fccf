from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import ClassVar

import pytest
from hypothesis import settings

from gossamer.settings import Settings
from gossamer.testing import harnesses
from gossamer.testing.frontier_machine import FrontierMachine
from gossamer.testing.harness import Harness
from gossamer.testing.servers import MariaServer, PostgresServer


class PostgresMachine(FrontierMachine):
    url: ClassVar[str]

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return harnesses.sql(settings, self.url)


class MariaMachine(PostgresMachine):
    url: ClassVar[str]


class TestPostgreSQL(PostgresMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=12, stateful_step_count=40, deadline=None)

    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: PostgresServer) -> None:
        PostgresMachine.url = postgres_server.url


class TestMariaDB(MariaMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=12, stateful_step_count=40, deadline=None)

    @pytest.fixture(autouse=True)
    def _server(self, maria_server: MariaServer) -> None:
        MariaMachine.url = maria_server.url
