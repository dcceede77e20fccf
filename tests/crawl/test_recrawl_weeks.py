"""A continuous crawl over twelve virtual weeks on every frontier, while workers and servers are killed."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from gossamer.cli import jobs
from gossamer.frontier.base import FleetFrontier
from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.frontier.embedded.sqlite import open_sqlite
from gossamer.frontier.folder.files import SharedFolder
from gossamer.frontier.folder.frontier import FolderFrontier, open_folder
from gossamer.frontier.redis.server import client, job_key
from gossamer.frontier.redis.shards import open_redis
from gossamer.frontier.sharded import Sharded
from gossamer.frontier.sql.database import Database
from gossamer.frontier.sql.record import dialect_of
from gossamer.frontier.sql.shards import open_databases
from gossamer.jobs.fleet import FleetJob
from gossamer.lab.virtual_time import LoopClock, patiently, run
from gossamer.settings import Settings
from gossamer.testing import weeks
from gossamer.testing.servers import MEMORY, TABLES, MariaServer, PostgresServer, RedisServer, SqlServer

JOB = "weeks"
SLOT_SECONDS = 16_384.0
"""Redis keeps far revisits together that are due within such a time, and hands them out at its end."""


class Place:
    """A frontier in virtual time that outlives its workers."""

    late = 0.0
    """Seconds by which a visit may be later than on other frontiers."""
    set_clock: weeks.SetClock | None = None

    async def open(self, life: int) -> Any:
        """A new worker, after all others have died."""
        raise NotImplementedError

    async def kill(self) -> None:
        """What `kill -9` does to the worker, and to the server if there is one."""
        raise NotImplementedError


class Embedded(Place):
    """The files are taken as they are at some moment, which is what `kill -9` leaves."""

    _frontier: EmbeddedFrontier

    def __init__(self, folder: Path, settings: Settings, clock: LoopClock) -> None:
        self._path = folder / "0" / "frontier.db"
        self._path.parent.mkdir()
        self._settings, self._clock = settings, clock

    async def open(self, life: int) -> EmbeddedFrontier:
        self._frontier = open_sqlite(self._path, self._settings, clock=self._clock)
        return self._frontier

    async def kill(self) -> None:
        old = self._path.parent
        self._path = old.parent / f"{int(old.name) + 1}" / self._path.name
        shutil.copytree(old, self._path.parent)
        await self._frontier.aclose()


class ThreadClock(LoopClock):
    """The loop's time, for its threads too."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def monotonic(self) -> float:
        return self._loop.time()


class LoopShare(SharedFolder):
    """A folder whose server lives in the loop's time."""

    def __init__(self, root: Path, clock: LoopClock) -> None:
        super().__init__(root)
        self._clock = clock

    def clock_of(self, handle: int) -> float:
        return self._clock.epoch()


class Folder(Place):
    _frontier: FolderFrontier

    def __init__(self, folder: Path, settings: Settings, clock: LoopClock) -> None:
        self._folder, self._settings, self._clock = folder, settings, clock

    async def open(self, life: int) -> FolderFrontier:
        self._frontier = await open_folder(
            f"folder:{self._folder}?shards=3",
            JOB,
            self._settings,
            worker=f"life-{life}",
            clock=self._clock,
            share=LoopShare(self._folder / "frontier" / JOB, self._clock),
            rounds=False,
        )
        await self._frontier.abandon(f"life-{life - 1}")
        return self._frontier

    async def kill(self) -> None:
        self._frontier.owner.abort()


class Redis(Place):
    """What the server has acknowledged is in its file, though nobody waits for the disk."""

    late = SLOT_SECONDS
    _frontier: FleetFrontier

    def __init__(self, server: RedisServer, shards: int, settings: Settings) -> None:
        self._server, self._shards, self._settings = server, shards, settings

    async def open(self, life: int) -> FleetFrontier:
        self._client = client.Redis.from_url(self._server.url)
        if not life:
            await self._client.flushall()
        self._frontier = await open_redis(
            self._server.url, JOB, self._settings, worker=f"life-{life}", shards=f"{self._shards}"
        )
        if isinstance(self._frontier, Sharded):
            self._frontier.quiet_seconds = 0.0
        return self._frontier

    async def set_clock(self, epoch: float) -> None:
        for shard in range(self._shards):
            await self._client.hset(job_key(JOB, shard), "clock", f"{epoch:.6f}")

    async def kill(self) -> None:
        self._server.restart()
        await self._frontier.aclose()
        await self._client.aclose()


class Table(Place):
    """A database."""

    _frontier: FleetFrontier
    _database: Database

    def __init__(self, server: SqlServer, settings: Settings) -> None:
        self._server, self._settings = server, settings

    async def open(self, life: int) -> FleetFrontier:
        self._database = Database(dialect_of(self._server.url))
        if not life:
            await self._database.run(lambda db: db.make_tables())
            for table in reversed(TABLES):
                await self._ask(f"DELETE FROM gossamer_{table}")
        self._frontier = await open_databases(self._server.url, JOB, self._settings, worker=f"life-{life}")
        return self._frontier

    async def _ask(self, text: str) -> None:
        await self._database.run(lambda db: db.ask(text), whole=False)

    async def set_clock(self, epoch: float) -> None:
        await self._ask(f"UPDATE gossamer_jobs SET clock = {round(epoch * 1e6)}")

    async def kill(self) -> None:
        self._server.restart()
        await self._frontier.aclose()
        await self._database.aclose()


Kind = tuple[str, Any]
SERVERS = {
    "redis": "redis_server",
    "redis-shards": "redis_server",
    "postgresql": "postgres_server",
    "mariadb": "maria_server",
}


@pytest.fixture(scope="session", params=["embedded", "folder", *SERVERS])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    """A frontier, and a server for it that is not running. Nobody waits for the disk: only processes are killed."""
    name: str = request.param
    if name in SERVERS:
        # Skipped where it is not installed, but not in CI.
        request.getfixturevalue(SERVERS[name])
    server: Any = None
    if name.startswith("redis"):
        server = RedisServer(appendonly="yes", appendfsync="no")
    elif name == "postgresql":
        server = PostgresServer(fsync="off")
    elif name == "mariadb":
        server = MariaServer(innodb_flush_log_at_trx_commit="2")
    with server or nullcontext():
        if server is not None:
            server.kill()
        yield name, server


@asynccontextmanager
async def opened(kind: Kind, settings: Settings, clock: LoopClock) -> AsyncIterator[Place]:
    """An empty frontier of that kind."""
    name, server = kind
    if server is not None:
        server.start()
    with tempfile.TemporaryDirectory(prefix="gossamer-", dir=MEMORY) as folder:
        try:
            if name == "embedded":
                yield Embedded(Path(folder), settings, clock)
            elif name == "folder":
                yield Folder(Path(folder), settings, clock)
            elif isinstance(server, SqlServer):
                yield Table(server, settings)
            else:
                yield Redis(server, 3 if name == "redis-shards" else 1, settings)
        finally:
            if server is not None:
                server.kill()


def test_twelve_weeks_by_the_table(kind: Kind) -> None:
    twelve_weeks(kind, "table")


@pytest.mark.long
@pytest.mark.parametrize("recrawl", ["adaptive", "budget=20/d"])
def test_twelve_weeks_by_what_changes(kind: Kind, recrawl: str) -> None:
    twelve_weeks(kind, recrawl)


def twelve_weeks(kind: Kind, recrawl: str) -> None:
    """A crawl that is killed twice: fetch times by the table, freshness as predicted and shown, and nothing lost."""
    random.seed(1)

    async def weeks_go_by() -> None:
        clock = ThreadClock()
        web, chosen = weeks.changing_web(clock), weeks.settings(recrawl=recrawl)
        ends: list[float] = []
        async with opened(kind, chosen, clock) as place:
            for life, until in enumerate(weeks.LIVES):
                frontier = await patiently(place.open(life))
                counts = await weeks.live(
                    frontier, web, clock, secret=frontier.secret, until=until, chosen=chosen, set_clock=place.set_clock
                )
                ends.append(web.now)
                shown = {}
                if not isinstance(frontier, EmbeddedFrontier):
                    job = FleetJob(frontier, "redis://", JOB, Path("unused"))
                    shown = jobs.status_json(await patiently(job.status()))
                await patiently(place.kill())
            assert not counts.finished
            assert counts.known == 4 * 25
            assert counts.revisits + counts.leased >= 4 * 25
            if recrawl == "table":
                weeks.check_table(web, kills=ends[:-1], late=place.late)
            weeks.check_freshness(web, counts.freshness)
            if shown:
                assert f"{counts.freshness:.1%} of the stored pages" in "\n".join(jobs.status_lines(JOB, shown))

    run(weeks_go_by())
