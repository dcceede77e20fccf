"""A job's record in a database: opening it, making it, and refusing what is not ours."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from gossamer import settings as configuration
from gossamer.errors import ConfigError, FrontierError, JobMissing, SchemaMismatch, Unavailable
from gossamer.frontier.sql.call import STRIPES
from gossamer.frontier.sql.database import Database, Dialect, digest
from gossamer.frontier.sql.frontier import ALONE, ShardContext, SqlFrontier
from gossamer.frontier.sql.handover import HERE
from gossamer.settings import Settings

FORMAT = 3
log = logging.getLogger("gossamer.frontier")


def dialect_of(url: str) -> Dialect:
    """A connection, not yet open, to the server at this address."""
    if url.startswith(("postgresql://", "postgres://")):
        from gossamer.frontier.sql.postgresql import PostgresDialect

        return PostgresDialect(url)
    if url.startswith(("mysql://", "mariadb://")):
        from gossamer.frontier.sql.mysql import MySqlDialect

        return MySqlDialect(url)
    raise ConfigError("the frontier's address is not one of a database", hint="use postgresql:// or mysql://")


async def open_sql(
    url: str,
    job: str,
    settings: Settings | None = None,
    *,
    worker: str = "",
    region: str = "",
    shard: int = 0,
    secret: bytes | None = None,
    alone: bool = True,
    context: ShardContext = ALONE,
) -> SqlFrontier:
    """Join one shard of a job in a database; with settings, make it if it is not there.

    `secret` is for a job that is spread over several databases: the keys of its URLs are the same in all of them. One
    that is not `alone` stores what `allow` lets it, in place of max_pages."""
    database = Database(dialect_of(url))
    try:
        if settings is not None:
            await make_job(database, job, settings, secret or secrets.token_bytes(16))
            await make_shard(database, job, shard)
        return await open_shard(
            database, job, shard, settings, worker=worker, region=region, alone=alone, context=context
        )
    except BaseException:
        await database.aclose()
        raise


async def open_shard(
    database: Database,
    job: str,
    shard: int,
    settings: Settings | None,
    *,
    worker: str,
    region: str,
    alone: bool,
    context: ShardContext = ALONE,
) -> SqlFrontier:
    """A shard that is there, or was before it went elsewhere."""
    row = await database.run(lambda db: _read(db, job, shard))
    kept, key, revision = understood(row[1:], job)
    own = await seat(database, int(row[0]))
    if settings is not None:
        # Known before there are any: a server that forgets the first leases has its lanes rest for as long.
        longest = round(settings.lease_seconds * 1e6)
        await own.run(lambda db: db.fetch("set_longest", longest))
    return SqlFrontier(
        own,
        job,
        settings or kept,
        secret=key,
        revision=revision,
        worker=worker,
        region=region,
        shard=shard,
        alone=alone,
        context=context,
    )


async def seat(database: Database, row: int) -> Database:
    """The connection for one shard, by the number of its row."""
    own = database.at(row)
    await own.run(_notice_run)
    own.greet(_notice_run)
    return own


async def make_job(database: Database, job: str, settings: Settings, secret: bytes) -> None:
    """A job's record with these settings; the secret is kept if it is there."""
    text = msgspec.json.encode(configuration.dump(settings)).decode()

    async def work(db: Dialect) -> None:
        await db.make_tables()
        if await db.fetch("other_format", FORMAT):
            raise SchemaMismatch(
                f"the tables in {db.server} were made by another version of Gossamer",
                hint="use the version that made them, or give this job a database of its own",
            )
        await db.fetch("make_job", digest(job), job, FORMAT, text, secret)
        await db.fetch("renew_job", digest(job), FORMAT, text)

    await database.run(work)
    # A job on one database works without it.
    await ensure_outbox(database)


async def make_shard(database: Database, job: str, shard: int, *, phase: int = HERE) -> int:
    """A shard of a job that is there; the number of its row. One that is not `HERE` is not used."""

    async def work(db: Dialect) -> int:
        await db.fetch("make_shard", digest(job), shard)
        (row,) = await db.fetch("find_shard", digest(job), shard)
        db.shard = int(row[0])
        await db.fetch("make_stripes", list(range(STRIPES)))
        # From here on a server that forgets is noticed.
        await db.fetch("restarted", db.server_run, "")
        if phase != HERE:
            await db.fetch("set_phase", phase, "")
        return int(row[0])

    return await database.run(work)


async def _read(db: Dialect, job: str, shard: int) -> Sequence[Any]:
    rows = await db.fetch("read_job", digest(job), shard)
    if not rows:
        raise JobMissing(
            f"there is no job {job!r} in {db.server}, or not this part of it",
            hint="start it with: gossamer crawl --frontier ... --job NAME; was the database emptied or restored?",
        )
    return rows[0]


def understood(row: Sequence[Any], job: str) -> tuple[Settings, bytes, int]:
    """The settings, the secret and the revision of a job's record."""
    form, revision, text, secret = row
    if form != FORMAT:
        raise SchemaMismatch(
            f"job {job!r} was written by another version of Gossamer", hint="use the version that made it"
        )
    try:
        return configuration.build(msgspec.json.decode(text)), bytes(secret), int(revision)
    except (TypeError, ValueError, ConfigError) as error:
        raise SchemaMismatch(
            f"the record of job {job!r} cannot be read: {error}", hint="was it written by another version of Gossamer?"
        ) from None


async def _notice_run(db: Dialect) -> None:
    """Another run of the server may lack leases that were granted before: all lanes rest until these have ended.

    A server whose settings let it forget may do so with no sign of it but a lost connection."""
    suspicious = db.forgets and db.connections > 1
    for (known,) in await db.fetch("last_server"):
        if known != db.server_run or suspicious:
            await db.fetch("restarted", db.server_run, known)
            if known:
                log.warning(
                    "%s was started again, or replaced: no site is leased until all earlier leases have ended",
                    db.server,
                )


async def ensure_outbox(database: Database) -> bool:
    """See that a database has the tables of the outbox, which jobs of earlier versions lack; whether it has them."""

    async def look(db: Dialect) -> bool:
        return db.has_outbox

    if await database.run(look, whole=False):
        return True
    try:
        await database.run(lambda db: db.make_outbox())
    except Unavailable:
        raise
    except FrontierError as error:
        log.debug("%s has no outbox: %s", database.dialect.server, error)
        return False
    return True
