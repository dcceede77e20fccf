"""Databases that are killed, cut off, full, or overloaded: each page counts once, and none is lost."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import asyncmy.errors
import pytest

from gossamer.errors import FrontierError, Unavailable
from gossamer.frontier.sql.database import Database
from gossamer.frontier.sql.frontier import SqlFrontier
from gossamer.frontier.sql.record import dialect_of, open_sql
from gossamer.settings import Settings
from gossamer.testing.harness import outcome, page, pages
from gossamer.testing.servers import MariaServer, PostgresServer, SqlServer

# After every start of a server lanes rest for a lease.
FREE = Settings(delay=0.0, robots=False, max_deliveries=100, lease_seconds=2.0)
SITES, SEEDS, CHILDREN = 5, 20, 3
TOTAL = SITES * SEEDS * (1 + CHILDREN)
KINDS: list[type[PostgresServer] | type[MariaServer]] = [PostgresServer, MariaServer]
UPTIME = "SHOW GLOBAL STATUS LIKE 'Uptime'"
T = TypeVar("T")


@pytest.fixture(params=KINDS, ids=["PostgreSQL", "MariaDB"])
def kind(request: pytest.FixtureRequest) -> type[PostgresServer] | type[MariaServer]:
    found: type[PostgresServer] | type[MariaServer] = request.param
    if not found.is_there() and os.environ.get("CI") != "true":
        pytest.skip(f"{found.__doc__} is not installed")
    return found


async def persistent(call: Callable[[], Awaitable[T]]) -> T:
    """As the engine does: what is unavailable is asked for again."""
    while True:
        with suppress(Unavailable):
            return await call()
        await asyncio.sleep(0.05)


def seeds() -> list[Any]:
    return [page(site * 1000 + number, f"{site}.example") for site in range(SITES) for number in range(SEEDS)]


def found_on(key: int) -> tuple[Any, ...]:
    """The links of a seed: each leads to pages of the next site."""
    if key >= 100_000:
        return ()
    site = (key // 1000 + 1) % SITES
    return tuple(page(100_000 + key * 10 + number, f"{site}.example") for number in range(CHILDREN))


async def work(frontier: SqlFrontier, *, lease_seconds: float = 2.0) -> int:
    """Work until the job is finished; return how many outcomes were reported as accepted."""
    accepted = 0
    while True:
        grant = await persistent(lambda: frontier.lease(2, batch=3, seconds=lease_seconds))
        if grant.job == "finished":
            return accepted
        for lease in grant.leases:
            results = [outcome(lease, one.key, links=found_on(one.key)) for one in lease.requests]
            accepted += (await persistent(lambda some=results: frontier.complete(some))).accepted  # type: ignore[misc]
        if not grant.leases:
            await frontier.idle(grant)


async def crawl(url: str, *, workers: int = 2) -> SqlFrontier:
    """Put the seeds in and have workers do all of it."""
    first = await persistent(lambda: open_sql(url, "job", FREE, worker="first"))
    await persistent(lambda: first.add(seeds()))
    others = [await persistent(lambda n=number: open_sql(url, "job", worker=f"w{n}")) for number in range(workers)]  # type: ignore[misc]
    async with asyncio.timeout(100):
        await asyncio.gather(*(work(each) for each in others))
    for each in others:
        await each.aclose()
    return first


async def is_whole(frontier: SqlFrontier) -> None:
    """I1 and I2: every page is done, once; and the rows say what the counters say."""
    counts = await persistent(frontier.counts)
    assert (counts.done, counts.known, counts.queued, counts.delayed, counts.leased, counts.parked) == (
        TOTAL, TOTAL, 0, 0, 0, 0,
    )  # fmt: skip
    assert counts.finished
    for table, number in (("seen", TOTAL), ("done", TOTAL), ("queue", 0), ("leases", 0)):
        ((rows,),) = await frontier._database.run(
            lambda db, table=table: db.ask(f"SELECT COUNT(*) FROM gossamer_{table}"),  # type: ignore[misc]
            whole=False,
        )
        assert rows == number, table
    await frontier.aclose()


def test_f34_f38_a_server_killed_in_the_middle_loses_nothing(kind: type[SqlServer]) -> None:
    """kill -9 of PostgreSQL (F34) and of mariadbd (F38) while workers commit; it recovers, and they go on."""

    async def play(server: SqlServer) -> None:
        async def kill() -> None:
            chance = random.Random(3)
            for _ in range(3):
                await asyncio.sleep(chance.uniform(0.1, 0.4))
                await asyncio.to_thread(server.restart)

        killing = asyncio.ensure_future(kill())
        frontier = await crawl(server.url)
        await killing
        await is_whole(frontier)

    with kind(in_memory=True) as server:
        asyncio.run(play(server))


def test_f35_connections_that_are_ended_by_the_server_are_made_again(kind: type[SqlServer]) -> None:
    async def play(server: SqlServer) -> None:
        async def terminate() -> None:
            database = Database(dialect_of(server.url))
            while True:
                await asyncio.sleep(0.7)
                with suppress(Unavailable):
                    await database.run(lambda db: end_others(db, server), whole=False)

        ending = asyncio.ensure_future(terminate())
        frontier = await crawl(server.url)
        ending.cancel()
        await is_whole(frontier)

    with kind(in_memory=True) as server:
        asyncio.run(play(server))


async def end_others(db: Any, server: SqlServer) -> None:
    if isinstance(server, PostgresServer):
        await db.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = 'gossamer'"
        )
        return
    found = await db.ask(
        "SELECT id FROM information_schema.processlist WHERE user = 'gossamer' AND id <> CONNECTION_ID()"
    )
    for (number,) in found:
        # It may have ended already.
        with suppress(asyncmy.errors.OperationalError):
            await db.ask(f"KILL {number}")


def test_f36_a_deadlock_is_tried_again_unnoticed(kind: type[SqlServer]) -> None:
    """40P01 and 1213: another transaction takes the locks in the other order, and the server chooses us to give way."""

    async def play(server: SqlServer) -> None:
        frontier = await open_sql(server.url, "job", FREE, worker="one")
        await frontier.add(pages(1, 2))
        (lease,) = (await frontier.lease(1, batch=1, seconds=60)).leases
        other = dialect_of(server.url)
        await other.connect()
        await other.begin()
        if isinstance(server, PostgresServer):
            await other.ask("SET deadlock_timeout = '100s'")
        else:
            # The server undoes the transaction that has changed less.
            rows = ",".join(f"(1,{number},1,'')" for number in range(2000))
            await other.ask(f"INSERT INTO gossamer_workers (shard, digest, beat_at, pulse) VALUES {rows}")
        await other.ask("UPDATE gossamer_counters SET stale = stale + 1")
        completing = asyncio.ensure_future(frontier.complete([outcome(lease, lease.requests[0].key, links=(page(3),))]))
        await until_somebody_waits(server)
        await other.ask("SELECT site FROM gossamer_sites FOR UPDATE")
        await other.rollback()
        assert (await completing).accepted == 1
        assert frontier.conflicts > 0, "there was no deadlock"
        counts = await frontier.counts()
        assert (counts.done, counts.queued) == (1, 2)
        await other.close()
        await frontier.aclose()

    with kind(in_memory=True) as server:
        asyncio.run(play(server))


async def until_somebody_waits(server: SqlServer) -> None:
    """Return when a transaction waits for a lock of another."""
    watch = Database(dialect_of(server.url))
    text = {
        "postgresql": "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
        "mysql": "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    }[server.scheme]
    async with asyncio.timeout(60):
        while not (await watch.run(lambda db: db.ask(text), whole=False))[0][0]:
            # InnoDB shows the same answer for 0.1 s after it was last asked.
            await asyncio.sleep(0.15)
    await watch.aclose()


def test_f37_a_connection_that_idled_too_long_is_made_again_unnoticed(kind: type[SqlServer]) -> None:
    async def play(server: SqlServer) -> None:
        frontier = await open_sql(server.url, "job", FREE, worker="one")
        for key in range(3):
            await frontier.add(pages(key))
            await until_alone(server)
        assert (await frontier.counts()).queued == 3
        await frontier.aclose()

    with kind(in_memory=True) as server:
        if isinstance(server, PostgresServer):
            server.ask("ALTER DATABASE gossamer SET idle_session_timeout = '200ms'")
        else:
            server.ask("SET GLOBAL wait_timeout = 1")
        asyncio.run(play(server))


async def until_alone(server: SqlServer) -> None:
    """Return when the server has closed all connections of ours but the one that asks."""
    text = {
        "postgresql": "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = 'gossamer' AND pid <> pg_backend_pid()",
        "mysql": "SELECT COUNT(*) FROM information_schema.processlist"
        " WHERE user = 'gossamer' AND id <> CONNECTION_ID()",
    }[server.scheme]
    async with asyncio.timeout(20):
        while (await asyncio.to_thread(server.ask, text))[0][0]:
            await asyncio.sleep(0.1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small volume")
def test_f39_a_full_volume_is_waited_for(kind: type[SqlServer]) -> None:
    # Not below the folder of the tests, which is root's alone: servers do not run as root.
    volume = Path(tempfile.mkdtemp(prefix="volume-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=500m,mode=755", "tmpfs", str(volume)], check=False, capture_output=True
    )
    if mounted.returncode:
        volume.rmdir()
        pytest.skip("no volume can be mounted here")
    options: dict[str, Any] = (
        {"innodb_log_file_size": "16M"} if kind is MariaServer else {"max_wal_size": "64MB", "min_wal_size": "32MB"}
    )
    try:
        with kind(folder=volume, **options) as server:
            asyncio.run(fill_and_free(server, volume / "ballast"))
    finally:
        subprocess.run(["umount", "-l", str(volume)], check=False)
        volume.rmdir()


async def fill_and_free(server: SqlServer, ballast: Path) -> None:
    frontier = await open_sql(server.url, "job", FREE, worker="one")
    await frontier.add(pages(1))
    with ballast.open("wb") as file:
        try:
            while True:
                file.write(b"\0" * 65_536)
                file.flush()
        except OSError:
            pass
    added, refused = 1, 0
    async with asyncio.timeout(90):
        while not refused:
            some = [page(key, f"{key % 50}.example", label="x" * 400) for key in range(added + 1, added + 2001)]
            try:
                added += await frontier.add(some)
            except Unavailable:
                refused += 1
    ballast.unlink()
    if server._process is None or server._process.poll() is not None:
        server.start()
    some = [page(key, f"{key % 50}.example") for key in range(1, added + 2001)]
    assert await persistent(lambda: frontier.add(some)) in (0, 2000), "what was refused was not half there"
    counts = await persistent(frontier.counts)
    assert counts.known == counts.queued == added + 2000
    await frontier.aclose()


def test_f40_more_workers_than_connections_take_turns(kind: type[SqlServer]) -> None:
    async def one(url: str, number: int) -> None:
        frontier = await persistent(lambda: open_sql(url, "job", worker=f"w{number}"))
        await persistent(lambda: frontier.add(pages(number)))
        await frontier.aclose()

    async def play(server: SqlServer) -> None:
        first = await open_sql(server.url, "job", FREE, worker="first")
        async with asyncio.timeout(60):
            await asyncio.gather(*(one(server.url, number) for number in range(1, 65)))
        assert (await first.counts()).queued == 64
        await first.aclose()

    with kind(max_connections="10") as server:
        asyncio.run(play(server))


class Cutter:
    """A way to a server that breaks: every so many messages of a client its connection ends, before the server has
    heard the message, or after, without the answer."""

    def __init__(self, port: int, every: int) -> None:
        self._port = port
        self._every = every
        self.cuts = self._messages = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, onward = await asyncio.open_connection("127.0.0.1", self._port)
        state = {"muted": False}

        async def back() -> None:
            while (data := await answers.read(65_536)) and not state["muted"]:
                writer.write(data)
                await writer.drain()
            writer.close()

        answering = asyncio.ensure_future(back())
        try:
            while data := await reader.read(65_536):
                self._messages += 1
                if self._messages % self._every == 0:
                    self.cuts += 1
                    state["muted"] = self.cuts % 2 == 0
                    if not state["muted"]:
                        break
                onward.write(data)
                await onward.drain()
        except OSError:
            pass
        finally:
            onward.close()
            writer.close()
            await asyncio.gather(answering, return_exceptions=True)


def test_connections_that_break_in_the_middle_of_calls_lose_nothing(kind: type[SqlServer]) -> None:
    """Also the connection on which a commit was sent: nobody can know whether it counts, so it is sent again."""

    async def play(server: SqlServer) -> None:
        cutter = Cutter(server.port, every=43)
        frontier = await crawl(server.url_at(await cutter.start()))
        assert cutter.cuts > 5
        await is_whole(frontier)

    with kind(in_memory=True) as server:
        asyncio.run(play(server))


def test_a_server_that_sleeps_is_waited_for(kind: type[SqlServer]) -> None:
    async def play(server: SqlServer) -> None:
        async def pause() -> None:
            await asyncio.sleep(0.3)
            server.pause()
            await asyncio.sleep(1.0)
            server.resume()

        pausing = asyncio.ensure_future(pause())
        frontier = await crawl(server.url)
        await pausing
        await is_whole(frontier)

    with kind(in_memory=True) as server:
        asyncio.run(play(server))


def test_a_server_that_is_not_there_is_unavailable(kind: type[SqlServer]) -> None:
    async def play(server: SqlServer) -> None:
        frontier = await open_sql(server.url, "job", FREE)
        await asyncio.to_thread(server.kill)
        began = time.monotonic()
        for call in (frontier.add(pages(1)), frontier.counts(), frontier.lease(1, batch=1, seconds=1)):
            with pytest.raises(Unavailable):
                await call
        assert time.monotonic() - began < 60
        await asyncio.to_thread(server.start)
        assert await persistent(lambda: frontier.add(pages(1))) == 1
        await frontier.aclose()

    with kind(in_memory=True) as server:
        asyncio.run(play(server))


MAKE_USER = {
    PostgresServer: ("CREATE ROLE plain LOGIN PASSWORD 'plain'", "GRANT CREATE ON SCHEMA public TO plain"),
    MariaServer: (
        "CREATE USER plain@'%' IDENTIFIED BY 'plain'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, CREATE VIEW ON gossamer.* TO plain@'%'",
    ),
}


def test_a_user_needs_no_more_rights_than_the_manual_says(kind: type[SqlServer]) -> None:
    with kind(in_memory=True) as server:
        give_rights(server, *MAKE_USER[kind])
        asyncio.run(is_whole_as(server.url.replace(f"{server.user}@", "plain:plain@")))


async def is_whole_as(url: str) -> None:
    await is_whole(await crawl(url))


def give_rights(server: SqlServer, *statements: str) -> None:
    """As the server's first user, who alone may."""
    for statement in statements:
        if isinstance(server, PostgresServer):
            server.ask(statement)
        else:
            server.run("mariadb", "--no-defaults", f"--socket={server.folder}/socket", "-u", "root", "-e", statement)


def test_a_refusal_names_its_fix(kind: type[SqlServer]) -> None:
    with kind(in_memory=True) as server:
        give_rights(server, *MAKE_USER[kind][:1])
        if kind is MariaServer:
            give_rights(server, "GRANT SELECT ON gossamer.* TO plain@'%'")
        else:
            rules = server.data / "pg_hba.conf"
            rules.write_text("host all plain all scram-sha-256\n" + rules.read_text())
            server.ask("SELECT pg_reload_conf()")
        wrong = server.url.replace(f"{server.user}@", "plain:wrong@")
        weak = server.url.replace(f"{server.user}@", "plain:plain@")
        for url, hint in (
            (wrong, "check the user and the password"),
            (f"{server.url}_not_there", "CREATE DATABASE"),
            (weak, "SELECT, INSERT, UPDATE, and DELETE"),
            (server.url_at(1), "check that the server is running"),
        ):
            with pytest.raises(FrontierError) as caught:
                asyncio.run(open_sql(url, "job", FREE, worker="one"))
            assert hint in caught.value.hint
            assert "plain:" not in str(caught.value)


def test_a_server_that_may_lose_its_last_second_has_its_lanes_rest_after_a_start(kind: type[SqlServer]) -> None:
    """A lease that it lost with that second may still be held: nobody else goes to that site before it ends."""
    options: dict[str, Any] = {"fsync": "off"} if kind is PostgresServer else {"innodb_flush_log_at_trx_commit": "0"}

    async def play(server: SqlServer) -> None:
        frontier = await open_sql(server.url, "job", FREE, worker="one")
        await frontier.add(pages(1) + pages(2, site="b.example"))
        leases = (await frontier.lease(1, batch=1, seconds=3600)).leases
        # MariaDB reports its uptime in whole seconds.
        while kind is MariaServer and int((await asyncio.to_thread(server.ask, UPTIME))[0][1]) < 3:
            await asyncio.sleep(0.1)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        again = await persistent(lambda: open_sql(server.url, "job", worker="two"))
        assert len(leases) == 1
        grant = await again.lease(9, batch=1, seconds=60)
        assert grant.leases == ()
        assert grant.wait is not None
        await again.aclose()
        await frontier.aclose()

    with kind(**options) as server:
        asyncio.run(play(server))
