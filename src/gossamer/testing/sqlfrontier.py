"""The frontier in a database, opened for the suites."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from gossamer.frontier.base import FleetFrontier, Frontier
from gossamer.frontier.sharded import Sharded
from gossamer.frontier.sql.database import Database, Dialect
from gossamer.frontier.sql.frontier import SqlFrontier
from gossamer.frontier.sql.record import dialect_of
from gossamer.frontier.sql.shards import open_databases
from gossamer.model import JobState
from gossamer.settings import Settings
from gossamer.testing.harness import LEASE, Harness
from gossamer.testing.sqlservers import TABLES

_JOB = "job"


class SqlHarness(Harness):
    """A database, with a clock that stands still unless it is moved."""

    rests_after_crash = False

    def __init__(self, url: str, settings: Settings, shards: str) -> None:
        self.url = url
        # As long as the suites lease: after a fail-over sites rest for it, whether or not such a lease is known.
        self.settings = msgspec.structs.replace(settings, lease_seconds=LEASE)
        self._shards = shards
        self.one_store = shards == "1"
        self._frontiers: dict[int, tuple[FleetFrontier, str]] = {}
        self._hired = 0
        self._database = Database(dialect_of(url))

    async def ask(self, text: str) -> None:
        """Run one statement beside the frontier."""
        await self._database.run(lambda db: db.ask(text), whole=False)

    async def begin(self) -> None:
        """Empty the tables and make the job."""
        await self._database.run(lambda db: db.make_tables())
        for table in reversed(TABLES):
            await self.ask(f"DELETE FROM gossamer_{table}")  # noqa: S608
        self.frontier = await self.worker("first")
        await self.ask("UPDATE gossamer_jobs SET clock = 1700000000000000")

    async def end(self) -> None:
        """Let go of everything."""
        for frontier, _ in self._frontiers.values():
            await frontier.aclose()
        await self._database.aclose()

    async def advance(self, seconds: float) -> None:
        await self.ask(f"UPDATE gossamer_jobs SET clock = clock + {round(seconds * 1e6)}")  # noqa: S608

    async def remember(self) -> None:
        for table in TABLES:
            await self.ask(f"DROP TABLE IF EXISTS kept_{table}")
            await self.ask(f"CREATE TABLE kept_{table} AS SELECT * FROM gossamer_{table}")  # noqa: S608
        # Whoever connects next finds the server in another run than the shards know.
        await self.ask("UPDATE kept_shards SET server = 'forgotten'")

    async def forget(self) -> None:
        async def work(db: Dialect) -> None:
            ((clock,),) = await db.ask("SELECT MAX(clock) FROM gossamer_jobs")
            for table in reversed(TABLES):
                await db.ask(f"DELETE FROM gossamer_{table}")  # noqa: S608
            for table in TABLES:
                await db.ask(f"INSERT INTO gossamer_{table} SELECT * FROM kept_{table}")  # noqa: S608
            await db.ask(f"UPDATE gossamer_jobs SET clock = {int(clock)}")  # noqa: S608

        await self._database.run(work)
        for frontier, _ in self._frontiers.values():
            for shard in frontier._shards if isinstance(frontier, Sharded) else [frontier]:
                cast(SqlFrontier, shard)._database.dialect.abort()

    async def set_back(self, seconds: float) -> None:
        await self.advance(-seconds)

    async def worker(self, name: str) -> Frontier:
        frontier = await open_databases(self.url, _JOB, self.settings, worker=name, shards=self._shards)
        if isinstance(frontier, Sharded):
            frontier.quiet_seconds = 0.0
        self._frontiers[id(frontier)] = frontier, name
        return frontier

    async def lose(self, worker: Frontier) -> None:
        # As a worker does that is started in the place of one that died.
        await cast(FleetFrontier, self.frontier).abandon(self._frontiers[id(worker)][1])

    async def steer(self, job: JobState) -> None:
        await cast(FleetFrontier, self.frontier).steer(job)

    async def reopen(self, settings: Settings | None = None) -> None:
        """All workers die; the server lives on."""
        self.settings = msgspec.structs.replace(settings or self.settings, lease_seconds=LEASE)
        self._hired += 1
        gone = list(self._frontiers.values())
        self._frontiers.clear()
        self.frontier = await self.worker(f"again-{self._hired}")
        for frontier, name in gone:
            await cast(FleetFrontier, self.frontier).abandon(name)
            await frontier.aclose()


@asynccontextmanager
async def sql(settings: Settings, url: str, *, shards: str = "1") -> AsyncIterator[Harness]:
    """A database that is there for tests only: its tables are emptied."""
    harness = SqlHarness(url, settings, shards)
    await harness.begin()
    try:
        yield harness
    finally:
        await harness.end()
