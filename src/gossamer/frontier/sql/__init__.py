"""The SQL backends: a task table in PostgreSQL, MariaDB, or MySQL; one schedule, two dialects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from gossamer.clock import Clock
from gossamer.errors import GossamerError, JobMissing
from gossamer.frontier.base import FleetBackend, FleetFrontier, Meter, Opener, ShardMove, skew
from gossamer.frontier.sql.frontier import SqlFrontier
from gossamer.frontier.sql.move import spread_sql
from gossamer.frontier.sql.record import open_sql
from gossamer.frontier.sql.shards import compact_databases, open_databases
from gossamer.model import Finding
from gossamer.settings import Settings

if TYPE_CHECKING:
    from gossamer.frontier.sql.database import Dialect


__all__ = ["SqlFrontier", "compact_databases", "open_databases", "open_sql", "spread_sql"]

_MOST_JOBS, _STEP = 1000, 1000
_CONNECT_SECONDS = 15.0


class SqlBackend(FleetBackend):
    """Jobs in databases of one kind; each call is one transaction."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.forms = (f"{name}://user@host/database",)

    async def open(self, url: str, job: str, by: Opener) -> FleetFrontier:
        from gossamer.frontier.sql.shards import open_databases

        return await open_databases(url, job, worker=by.worker, region=by.region, shards=by.shards)

    async def create(self, url: str, job: str, settings: Settings, by: Opener) -> FleetFrontier:
        from gossamer.frontier.sql.shards import open_databases

        return await open_databases(url, job, settings, worker=by.worker, region=by.region, shards=by.shards)

    async def list_jobs(self, url: str) -> list[str]:
        from gossamer.frontier.sql.database import Database
        from gossamer.frontier.sql.record import addresses, dialect_of

        found: set[str] = set()
        for address in addresses(url):
            database = Database(dialect_of(address))
            try:
                # A database that has no tables yet has no jobs.
                with suppress(JobMissing):
                    found.update(str(name) for (name,) in await database.run(lambda db: db.fetch("list_jobs")))
            finally:
                await database.aclose()
        return sorted(found)[:_MOST_JOBS]

    async def remove(self, url: str, job: str) -> bool:
        from gossamer.frontier.sql.database import CARGO, OUTBOX, digest
        from gossamer.frontier.sql.record import Databases

        databases = Databases(url)
        try:
            root = await databases.find(job)
            was_there = root is not None
            for name in dict.fromkeys([*databases.names, *(root.placement if root is not None else ())]):
                database = databases.at(name)
                try:
                    shards = await database.run(lambda db: db.fetch("shards_of", digest(job)))
                except JobMissing:
                    # No tables at all.
                    continue
                for (shard,) in shards:
                    own = database.at(int(shard))
                    has_outbox = await own.run(_has_outbox)
                    for table in (*CARGO, *(OUTBOX if has_outbox else ())):
                        while await own.run(lambda db, table=table: db.page(table, (), 1)):  # type: ignore[misc]
                            await own.run(lambda db, table=table: db.drop(table, _STEP))  # type: ignore[misc]
                    await own.run(lambda db: db.fetch("remove_workers"))
                    await own.run(lambda db: db.fetch("remove_shard"))
                await database.run(lambda db: db.fetch("remove_job", digest(job)))
                was_there = was_there or bool(shards)
        finally:
            await databases.aclose()
        return was_there

    async def check(self, url: str, *, clock: Clock, forget_seconds: float) -> AsyncIterator[Finding]:
        from gossamer.frontier.sql.record import addresses

        several = addresses(url)
        for one in several:
            async for found in _check(one, clock, is_one_of_several=len(several) > 1, forget_seconds=forget_seconds):
                yield found

    def meter(self, url: str) -> Meter:
        from gossamer.frontier.sql.record import dialect_of

        return _DatabaseMeter(dialect_of(url))

    async def move_shards(self, url: str, job: str) -> AsyncIterator[ShardMove]:
        """Move every shard to its database among these, and yield where each is."""
        from gossamer.frontier.sql.move import spread_sql

        async for move in spread_sql(url, job):
            yield ShardMove(move.shard, move.source, move.target, f"{move.rows:,} rows")

    async def compact(self, url: str, job: str, *, older_than_seconds: float) -> int:
        """Delete the rows of URLs that were finished that long ago, in all shards; how many. Their keys stay known."""
        from gossamer.frontier.sql.shards import compact_databases

        return await compact_databases(url, job, older_than_seconds)


async def _check(url: str, clock: Clock, *, is_one_of_several: bool, forget_seconds: float) -> AsyncIterator[Finding]:
    from gossamer.frontier.sql.record import dialect_of

    try:
        database = dialect_of(url)
    except GossamerError as error:
        yield Finding("frontier", "bad", str(error), error.hint)
        return
    try:
        await asyncio.wait_for(database.connect(), _CONNECT_SECONDS)
        ((version,),) = await database.ask("SELECT version()")
        yield Finding("frontier", "good", f"{database.server}, {str(version).partition(' (')[0]}")
        yield await skew(clock, database.time)
        whose = f"{database.server}: " if is_one_of_several else ""
        weaknesses = await database.weaknesses()
        for what, fix in weaknesses:
            yield Finding("durability", "weak", whose + what, fix)
        if not weaknesses:
            yield Finding("durability", "good", f"{whose}what was acknowledged survives a kill and a power cut")
        if count := await database.standbys():
            yield _on_standbys(count, whose, forget_seconds if is_one_of_several else None)
    except TimeoutError:
        yield Finding("frontier", "bad", "the database does not answer", "check that it is running, and its address")
    except Exception as error:
        explained = error if isinstance(error, GossamerError) else database.explain(error)
        if explained is None:
            raise
        yield Finding("frontier", "bad", str(explained), explained.hint)
    finally:
        await database.close()


async def _has_outbox(dialect: Dialect) -> bool:
    return dialect.has_outbox


def _on_standbys(count: int, whose: str, forget_seconds: float | None) -> Finding:
    """The effect of a fail-over to an asynchronous standby.

    With `forget_seconds` the job is in several databases, where a page and its links may be in two of them. No setting
    of a server limits how far its standby may lag."""
    what = "its asynchronous standby" if count == 1 else f"one of its {count} asynchronous standbys"
    if forget_seconds is None:
        says = f"{whose}a fail-over to {what} repeats the pages that are missing there, and loses none"
        return Finding("standbys", "good", says)
    says = f"{whose}a fail-over to {what} that lacks more than {forget_seconds:g} s (forget_seconds) loses pages"
    fix = "make it synchronous, or submit the job with --forget-seconds above its max lag"
    return Finding("standbys", "weak", says, fix)


class _DatabaseMeter:
    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    async def weight(self) -> float:
        await self._dialect.connect()
        try:
            return await self._dialect.size()
        finally:
            await self._dialect.close()

    async def cpu_seconds(self) -> float | None:
        return None

    async def aclose(self) -> None:
        pass


POSTGRESQL, MYSQL = SqlBackend("postgresql"), SqlBackend("mysql")
