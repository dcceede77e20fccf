from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gossamer.storage.postgresql import unescaped
from gossamer.testing.servers import RedisServer, SqlServer
from gossamer.testing.sinks import Kept, SinkSuite

STRINGS = Path(__file__).parents[2] / "../shared/suites/hostile-strings/blns.json"


class _OnServer(SinkSuite):
    exact, keeps_visits, disk = False, False, False

    def strings(self) -> Sequence[str]:
        if not STRINGS.exists():
            pytest.skip(f"{STRINGS} is not there: its strings are not checked")
        return [*super().strings(), *json.loads(STRINGS.read_text("utf-8")), "\ufdd0", "\ufdd0\0␀", "\U0010ffff\ufdd0␀"]

    @pytest.mark.long
    def test_kills_at_any_moment_leave_each_record_once(self, tmp_path: Path) -> None:
        super().test_kills_at_any_moment_leave_each_record_once(tmp_path)


class _Tables(_OnServer):
    server: SqlServer

    def on(self, server: SqlServer) -> None:
        self.server = server
        self.table = f"t{secrets.token_hex(4)}"
        self.target = f"{server.url.partition(':')[2]}?table={self.table}"

    def rows(self, columns: str) -> Iterator[tuple[str, str, str, int, int]]:
        """As a user reads them; nothing if there is no table yet."""
        join = f"SELECT {columns} FROM {self.table} JOIN {self.table}_items USING ({self.quote}key{self.quote})"
        yield from self.server.ask(join)

    quote = ""


class TestPostgreSQL(_Tables):
    opens = "gossamer.storage.postgresql:open_postgresql"

    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: SqlServer) -> None:
        self.on(postgres_server)

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        for url, title, item, size, number in self.rows("url, title, item, bytes, number"):
            assert (type(size), number) == (int, 0)
            plain = {unescaped(name): _plain(value) for name, value in json.loads(item).items()}
            yield Kept(unescaped(url), unescaped(title), None, (plain,))


def _plain(value: object) -> object:
    return unescaped(value) if isinstance(value, str) else value


class TestMariaDB(_Tables):
    opens = "gossamer.storage.mysql:open_mysql"
    quote = "`"

    @pytest.fixture(autouse=True)
    def _server(self, maria_server: SqlServer) -> None:
        self.on(maria_server)

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        for url, title, item, size, number in self.rows("url, title, item, bytes, number"):
            assert (type(size), number) == (int, 0)
            yield Kept(url, title, None, (json.loads(item),))


class TestStream(_OnServer):
    """Read by redis-cli, as any consumer would read it."""

    opens = "gossamer.storage.stream:open_stream"
    kind = "redis+stream"
    keeps_visits = True

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.server, self.stream = redis_server, f"s{secrets.token_hex(4)}"
        self.target = f"{redis_server.url.partition(':')[2]}?stream={self.stream}"

    def read(self, folder: Path, urls: Sequence[str]) -> Iterator[Kept]:
        words = ["redis-cli", "-p", str(self.server.port), "--json", "XRANGE", self.stream, "-", "+"]
        for _, fields in json.loads(subprocess.check_output(words)):
            entry = dict(zip(fields[::2], fields[1::2], strict=True))
            page = json.loads(entry["page"])
            assert page["url"] == entry["url"]
            yield Kept(page["url"], page["title"], None, tuple(json.loads(entry["items"])))
