"""Databases that are unavailable for any reason: each call raises Unavailable, and works again afterwards."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import FrontierError, Unavailable
from gossamer.frontier.sql import mysql, postgresql
from gossamer.frontier.sql.frontier import SqlFrontier
from gossamer.frontier.sql.record import open_sql
from gossamer.frontier.sql.shards import open_databases
from gossamer.model import Grant, Heartbeat
from gossamer.settings import Settings
from gossamer.testing.harness import outcomes, page
from gossamer.testing.servers import PostgresServer, SqlServer

sys.path.insert(0, str(Path(__file__).parent))
from gossamer.testing.network import Fault, FaultyProxy

FREE = Settings(delay=0.0, robots=False)
MODES: tuple[Fault, ...] = ("refuse", "reset", "hang up", "silent")


@pytest.fixture(scope="session", params=["postgres_server", "maria_server"])
def running(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def place(running: SqlServer, empty_databases: Callable[..., list[str]]) -> str:
    return empty_databases(running, "away")[0]


@pytest.fixture
def switch(running: SqlServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(running.port) as found:
        yield found


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (postgresql, mysql):
        monkeypatch.setattr(module, "_CONNECT_SECONDS", 0.4)
        monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.4)


def through(place: str, running: SqlServer, switch: FaultyProxy) -> str:
    return place.replace(f":{running.port}/", f":{switch.port}/")


def calls(frontier: SqlFrontier, grant: Grant) -> dict[str, Callable[[], Awaitable[Any]]]:
    (lease,) = grant.leases
    return {
        "lease": lambda: frontier.lease(1, batch=1, seconds=60),
        "complete": lambda: frontier.complete(outcomes(lease)),
        "extend": lambda: frontier.extend([lease], seconds=60),
        "release": lambda: frontier.release([lease]),
        "beat": lambda: frontier.beat(Heartbeat(worker="one")),
        "refresh": lambda: frontier.refresh(),
        "counts": lambda: frontier.counts(),
        "add": lambda: frontier.add([page(9)]),
        "run": lambda: frontier.run(),
        "sweep": lambda: frontier.sweep({}, seconds=5.0),
    }


async def begun(url: str) -> tuple[SqlFrontier, Grant]:
    frontier = await open_sql(url, "job", FREE, worker="one")
    await frontier.add([page(1)])
    return frontier, await frontier.lease(1, batch=1, seconds=60)


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=pytest.mark.long if mode == "silent" else ()) for mode in MODES]
)
def test_every_call_waits_for_a_server_that_is_away(
    running: SqlServer, place: str, switch: FaultyProxy, mode: Fault
) -> None:
    async def play() -> None:
        url = through(place, running, switch)
        frontier, grant = await begun(url)
        for call in calls(frontier, grant).values():
            if frontier._database.dialect.is_open is False:
                await frontier.counts()
            await asyncio.to_thread(switch.fail, mode)
            for _ in range(2):
                # On the connection that was open, then without one.
                with pytest.raises(Unavailable):
                    await call()
            async with asyncio.timeout(10):
                await frontier.idle(Grant(wait=0.2))
            with pytest.raises(Unavailable):
                await open_databases(url, "job", worker="another")
            await asyncio.to_thread(switch.fail, "")
            await call()
        assert (await frontier.counts()).done == 1
        await frontier.aclose()

    asyncio.run(play())


@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_goes_away_in_the_middle_of_calls_is_waited_for(
    running: SqlServer, place: str, switch: FaultyProxy, mode: Fault
) -> None:
    """Connections break at moments that nobody chose, also in the middle of a statement."""

    async def busy(frontier: SqlFrontier) -> int:
        done = 0
        for number in range(400):
            while True:
                with suppress(Unavailable):
                    done += await frontier.add([page(number * 50 + key, f"{key}.example") for key in range(50)])
                    break
                await asyncio.sleep(0.02)
        return done

    async def play() -> None:
        url = through(place, running, switch)
        frontier = await open_sql(url, "job", FREE, worker="one")
        working = asyncio.create_task(busy(frontier))
        for _ in range(6):
            await asyncio.sleep(0.15)
            await asyncio.to_thread(switch.fail, mode)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(switch.fail, "")
        await working
        counts = await frontier.counts()
        assert (counts.known, counts.queued) == (20_000, 20_000)
        await frontier.aclose()

    asyncio.run(play())


def test_a_standby_is_no_server_until_it_is_promoted(running: SqlServer, place: str, switch: FaultyProxy) -> None:
    """Were a worker connected to it, its promotion would not end the connection."""
    if not isinstance(running, PostgresServer):
        pytest.skip("a replica of MariaDB is one that is read-only, which is tested beside the outbox")
    from standbys import PostgresPair

    pair = PostgresPair()
    with pair:

        async def play() -> None:
            frontier, grant = await begun(pair.url)
            run = await frontier.run()
            await asyncio.to_thread(pair.switch.lead, pair.standby.port)
            for call in calls(frontier, grant).values():
                with pytest.raises(Unavailable, match="standby"):
                    await call()
            assert not frontier._database.dialect.is_open
            await asyncio.to_thread(pair.promote)
            assert await frontier.run() != run
            assert (await frontier.complete(outcomes(grant.leases[0]))).accepted == 1
            await frontier.aclose()

        asyncio.run(play())


def test_a_wrong_password_is_final(running: SqlServer, place: str) -> None:
    if not isinstance(running, PostgresServer):
        running.run(
            "mariadb", "--no-defaults", f"--socket={running.folder}/socket", "-u", "root", "-e",
            "CREATE OR REPLACE USER locked@'%' IDENTIFIED BY 'secret'",
        )  # fmt: skip
        with pytest.raises(FrontierError) as caught:
            asyncio.run(open_sql(place.replace("gossamer@", "locked:wrong@"), "job", FREE))
        assert not isinstance(caught.value, Unavailable)


def test_of_several_hosts_the_one_that_takes_writes_is_found(running: SqlServer, place: str) -> None:
    """postgresql://a,b/db, as libpq has it: a standby, a closed port, and the primary."""
    if not isinstance(running, PostgresServer):
        pytest.skip("one host is all that the driver takes")
    from standbys import PostgresPair

    with socket.socket() as closed, PostgresPair() as pair:
        closed.bind(("127.0.0.1", 0))
        nobody = closed.getsockname()[1]
        hosts = f"127.0.0.1:{pair.standby.port},127.0.0.1:{nobody},127.0.0.1:{pair.primary.port}"

        async def play() -> None:
            frontier, _ = await begun(f"postgresql://postgres@{hosts}/gossamer?target_session_attrs=read-write")
            await frontier.aclose()
            frontier, _ = await begun(f"postgresql://postgres@{hosts}/gossamer")
            run = await frontier.run()
            await asyncio.to_thread(pair.primary.kill)
            await asyncio.to_thread(pair.promote)
            assert await frontier.add([page(5)]) == 1
            assert await frontier.run() != run
            await frontier.aclose()

        asyncio.run(play())
