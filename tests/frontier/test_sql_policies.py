"""Continuous crawls and the quota of sites, in a database."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from gossamer.settings import Settings
from gossamer.testing import sqlservers
from gossamer.testing.harness import Harness
from gossamer.testing.revisits import Revisits
from gossamer.testing.share import Shares
from gossamer.testing.sqlservers import MariaServer, PostgresServer


class _Policies(Revisits, Shares):
    url = ""

    def open(self, settings: Settings) -> AbstractAsyncContextManager[Harness]:
        return sqlservers.sql(settings, self.url)


class TestPostgreSQL(_Policies):
    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: PostgresServer) -> None:
        self.url = postgres_server.url


class TestMariaDB(_Policies):
    @pytest.fixture(autouse=True)
    def _server(self, maria_server: MariaServer) -> None:
        self.url = maria_server.url
