"""Pages in PostgreSQL and MariaDB: late workers, deadlocks, servers that are killed or full, tables of others."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.model import PageRow, Record, Rejected
from gossamer.settings import Settings
from gossamer.storage.base import Sink
from gossamer.storage.registry import fleet_sinks, is_shared, open_sinks, wants_segments
from gossamer.testing.servers import MariaServer, PostgresServer, SqlServer
from gossamer.testing.sink_writer import visit
from gossamer.testing.sinks import small_disk


@pytest.fixture(scope="module", params=["postgres_server", "maria_server"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def table() -> str:
    return f"t{secrets.token_hex(4)}"


def opened(server: SqlServer, table: str) -> Sink:
    (sink,) = fleet_sinks(Settings(sink=(f"{server.url}?table={table}",)), Path("unused"), "one")
    return sink


def rows(server: SqlServer, table: str, columns: str = "title, token") -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in server.ask(f"SELECT {columns} FROM {table}"))


async def persistent(call: Callable[[], Awaitable[object]]) -> int:
    """As the engine does: what cannot be stored for now is tried again; how often it could not."""
    refused = 0
    async with asyncio.timeout(60):
        while True:
            try:
                await call()
                return refused
            except SinkFull:
                refused += 1
            await asyncio.sleep(0.05)


def item(number: int, *, token: int, items: int = 1, rejected: int = 0, status: int = 200) -> Record:
    page = PageRow(url=f"http://e.example/{number}", title=f"{number} at {token}", status=status)
    odd = tuple(Rejected(url=page.url, field="price", error="not a \0 number", item={"n": n}) for n in range(rejected))
    found = tuple({"n": n, "token": token} for n in range(items))
    return Record(key=number, token=token, page=page, items=found, rejected=odd)


def test_late_worker_and_304_change_nothing(server: SqlServer, table: str) -> None:
    async def run() -> None:
        sink = opened(server, table)
        await sink.write([item(1, token=5, items=3, rejected=2), item(2, token=5, rejected=1)])
        await sink.write([item(1, token=9, items=1)])
        await sink.write([item(1, token=7, items=4, rejected=3), item(2, token=7, items=0, rejected=2)])
        # One call may bring two visits of a page.
        await sink.write([item(3, token=8, items=2), item(3, token=6)])
        # Nor does a visit that found the page unchanged, alone in its call or not.
        await sink.write([item(1, token=11, items=0, status=304)])
        await sink.write([item(3, token=12, items=0, status=304), item(2, token=7, items=0, rejected=2)])
        await sink.aclose()

    asyncio.run(run())
    assert rows(server, table) == [("1 at 9", 9), ("2 at 7", 7), ("3 at 8", 8)]
    key = "`key`" if server.scheme == "mysql" else "key"
    assert rows(server, f"{table}_items", f"{key}, number") == [(1, 0), (3, 0), (3, 1)]
    assert rows(server, f"{table}_items_rejected", f"{key}, number") == [(2, 0), (2, 1)]
    (kept, _) = server.ask(f"SELECT item FROM {table}_items_rejected")
    assert json.loads(kept[0])["field"] == "price"


def test_workers_that_write_the_same_pages_at_once_leave_the_highest_token_of_each(
    server: SqlServer, table: str
) -> None:
    async def work(token: int) -> None:
        sink = opened(server, table)
        for start in range(0, 60, 15):
            some = [item(number, token=token, items=2) for number in range(start, start + 30)]
            # Each in an order of its own.
            await persistent(lambda batch=some[:: 1 if token % 2 else -1]: sink.write(batch))  # type: ignore[misc]
        await sink.aclose()

    async def run() -> None:
        await asyncio.gather(*map(work, range(1, 9)))

    asyncio.run(run())
    assert rows(server, table, "token") == [(8,)] * 75
    assert rows(server, f"{table}_items", "number") == [(0,)] * 75 + [(1,)] * 75


@pytest.mark.parametrize("kind", [PostgresServer, pytest.param(MariaServer, marks=pytest.mark.long)])
def test_killed_server_keeps_acknowledged_rows_and_is_waited_for(kind: type[SqlServer], table: str) -> None:
    # Without fsync PostgreSQL starts sooner; a kill does not affect the operating system's cache.
    options: dict[str, Any] = {"fsync": "off"} if kind is PostgresServer else {}
    with kind(**options) as server:
        asyncio.run(kill_and_start(server, table))
        assert len(rows(server, table)) == 2001


# Servers die with the thread that started them, so it is not done in another one.
async def kill_and_start(server: SqlServer, table: str) -> None:
    sink = opened(server, table)
    await sink.write([visit(0)])
    writing = asyncio.create_task(persistent(lambda: sink.write([visit(n) for n in range(1, 2000)])))
    await asyncio.sleep(0)
    server.kill()
    # The server is down: a pause, not the end.
    with pytest.raises(SinkFull):
        await sink.write([visit(2000)])
    server.start()
    assert await writing
    await persistent(lambda: sink.write([visit(2000)]))
    await sink.aclose()


def test_closed_connections_are_reopened(server: SqlServer, table: str) -> None:
    others = {
        "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        "mysql": "SELECT id FROM information_schema.processlist WHERE user = 'gossamer' AND id <> CONNECTION_ID()",
    }[server.scheme]

    async def run() -> None:
        sink = opened(server, table)
        for number in range(5):
            writing = asyncio.create_task(
                persistent(lambda first=number * 300: sink.write([visit(first + n) for n in range(300)]))  # type: ignore[misc]
            )
            found = await asyncio.to_thread(server.ask, others)
            if server.scheme == "mysql":
                for (connection,) in found:
                    with suppress(Exception):
                        await asyncio.to_thread(server.ask, f"KILL {connection}")
            await writing
        await sink.aclose()

    asyncio.run(run())
    assert len(rows(server, table)) == 1500


@contextmanager
def small_tables(server: SqlServer) -> Iterator[tuple[str, Path]]:
    """The address of a server whose tables are on a disk of 16 MB, and that disk's path."""
    name = f"small{secrets.token_hex(4)}"
    place = (server.data if server.scheme == "mysql" else server.folder) / name
    if server.scheme == "mysql":
        server.ask(f"CREATE DATABASE {name}")
    with small_disk(place, 16_000_000) as disk:
        shutil.chown(disk, "nobody")
        if server.scheme == "postgresql":
            server.ask(f"CREATE TABLESPACE {name} LOCATION '{place}'")
            server.ask(f"CREATE DATABASE {name} TEMPLATE template0")
            server.ask(f"ALTER DATABASE {name} SET default_tablespace = '{name}'")
        yield server.url.removesuffix("gossamer") + name, disk
        if server.scheme == "postgresql":
            server.ask(f"DROP DATABASE {name}")
            server.ask(f"DROP TABLESPACE {name}")


def test_full_server_is_waited_for(postgres_server: SqlServer) -> None:
    """F60. A batch is stored or refused as a whole; acknowledged rows stay."""
    fill_and_free(postgres_server)


@pytest.mark.long
def test_full_server_that_crashes_is_waited_for() -> None:
    """F60. MariaDB 10.11 stops when there is no space for a table, and must be restarted."""
    with MariaServer() as server:
        fill_and_free(server)


def fill_and_free(server: SqlServer) -> None:
    with small_tables(server) as (url, disk):

        async def run() -> int:
            (sink,) = open_sinks(Settings(sink=(url,)), Path("unused"), {})
            await sink.write([visit(0)])
            ballast, number = disk / "ballast", 1
            ballast.write_bytes(b"x" * 12_000_000)
            while True:
                batch = [visit(number + one, title=f"{number + one} " + secrets.token_hex(300)) for one in range(100)]
                try:
                    await sink.write(batch)
                except SinkFull:
                    break
                number += 100
            with pytest.raises(SinkFull):
                await sink.write(batch)
            ballast.unlink()
            server.revive()
            await persistent(lambda: sink.write(batch))
            await sink.aclose()
            return number + 100

        written = asyncio.run(run())

        program = (
            ["mariadb", "--no-defaults", f"--socket={server.folder}/socket", "-u", "root", "-N", "-D"]
            if server.scheme == "mysql"
            else ["psql", "-qXAth", str(server.folder), "-p", str(server.port), "-U", server.user, "-d"]
        )
        words = [*program, url.rpartition("/")[2], "-e" if server.scheme == "mysql" else "-c"]
        for table in ("pages", "items"):
            assert int(subprocess.check_output([*words, f"SELECT COUNT(*) FROM {table}"])) == written
        assert written > 100


def test_foreign_table_is_refused_and_older_table_gets_new_columns(server: SqlServer, table: str) -> None:
    key = "`key`" if server.scheme == "mysql" else "key"
    server.ask(f"CREATE TABLE {table} (id INT, url TEXT)")
    server.ask(f"CREATE TABLE {table}old ({key} BIGINT PRIMARY KEY, token BIGINT, url TEXT)")

    async def run() -> None:
        with pytest.raises(SinkError, match=r"not created by Gossamer") as caught:
            await opened(server, table).write([visit(0)])
        assert not isinstance(caught.value, SinkFull)
        assert "?table=" in caught.value.hint
        sink = opened(server, f"{table}old")
        await sink.write([visit(0)])
        await sink.aclose()

    asyncio.run(run())
    assert rows(server, f"{table}old", "title, bytes") == [("Page 0", 200)]


def test_urls_of_any_length_are_stored(server: SqlServer, table: str) -> None:
    url = "http://e.example/" + "\U0001f600" * 50_000

    async def run() -> None:
        sink = opened(server, table)
        await sink.write([Record(key=1, token=1, page=PageRow(url=url, title="'; DROP TABLE x; -- %s {} \\"))])
        if server.scheme == "mysql":
            with pytest.raises(SinkError, match="max_allowed_packet"):
                await sink.write([Record(key=2, token=1, page=PageRow(url=url, title="x" * 17_000_000))])
        await sink.aclose()

    asyncio.run(run())
    assert rows(server, table, "url, title") == [(url, "'; DROP TABLE x; -- %s {} \\")]


def test_passwords_come_from_the_environment_and_are_never_shown(
    server: SqlServer, table: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("SINK_PASSWORD", "s3cr3t/@")
    secret = "s3cr3t%2F%40"
    scheme, _, rest = server.url.partition("://")
    where = rest.partition("@")[2].replace("gossamer", "nosuchdatabase")
    for password in ("${SINK_PASSWORD}", secret):
        name = f"{scheme}://somebody:{password}@{where}"
        monkeypatch.setenv("SINK_PASSWORD", secret)
        with caplog.at_level(logging.DEBUG):
            (sink,) = open_sinks(Settings(sink=(name,)), tmp_path, {})
            with pytest.raises(SinkError) as caught:
                asyncio.run(sink.write([visit(0)]))
        assert "s3cr3t" not in f"{caught.value} {caught.value.hint} {caplog.text}"
        assert not isinstance(caught.value, SinkFull)
    assert "${NAME}" in caplog.text
    for wrong in (f"{scheme}://u:s3cr3t@[x/db", f"{server.url}?table=a;b", f"{server.url}?s3cr=1"):
        with pytest.raises(ConfigError) as refused:
            open_sinks(Settings(sink=(wrong,)), tmp_path, {})
        assert "s3cr3t" not in f"{refused.value} {refused.value.hint}"


def test_server_sinks_are_shared_and_replace_segments() -> None:
    database = "mysql://u@h/db"
    assert is_shared([database])
    assert is_shared([database, "postgresql://h/d", "redis+stream://h:1/0?stream=x", "warc:/mnt/x", "folder:/mnt/x"])
    for local in ("jsonl", "sqlite", "warc", "csv", "sqlite:/x"):
        assert not is_shared([local])
        assert not is_shared([database, local])
    assert wants_segments(["jsonl"])
    assert wants_segments([database, "jsonl:/mnt/x"])
    assert wants_segments(["warc:/mnt/x"])
    assert not wants_segments([database])


def test_cut_is_a_column(server: SqlServer, table: str) -> None:
    async def run() -> None:
        sink = opened(server, table)
        pages = PageRow(url="http://e.example/1", cut="max_links:7"), PageRow(url="http://e.example/2")
        await sink.write([Record(key=key, token=1, page=page) for key, page in enumerate(pages)])
        await sink.aclose()

    asyncio.run(run())
    assert rows(server, table, "url, cut") == [("http://e.example/1", "max_links:7"), ("http://e.example/2", None)]
