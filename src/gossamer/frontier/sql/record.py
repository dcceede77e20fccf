"""The record of a job in SQL: settings, secret, version, and the databases of its shards.

Every database of a job has the record. A client that creates a job asks the first database first, whose unique key
makes all creators agree on one secret and one placement. The shards are created next, and `made` is written last.
Opening a job adds what an earlier version did not have: the tables of the outbox.

Opening a shard compares the run of its server with the stored one, and so does every new connection: `_notice_run`
stores the new run and lets all lanes rest for the longest lease (P5)."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from gossamer import settings as configuration
from gossamer.dsn import hosts_of
from gossamer.errors import ConfigError, FrontierError, JobMissing, SchemaMismatch, Unavailable
from gossamer.frontier.sql.database import Database, Dialect, digest
from gossamer.frontier.sql.frontier import ALONE, ShardContext, SqlFrontier
from gossamer.frontier.sql.handover import HERE
from gossamer.frontier.sql.transaction import STRIPES
from gossamer.settings import Settings

FORMAT = 3
log = logging.getLogger("gossamer.frontier")


def dialect_of(url: str) -> Dialect:
    """The dialect for this address; it does not connect yet."""
    if url.startswith(("postgresql://", "postgres://")):
        from gossamer.frontier.sql.postgresql import PostgresDialect

        return PostgresDialect(url)
    if url.startswith(("mysql://", "mariadb://")):
        from gossamer.frontier.sql.mysql import MySqlDialect

        return MySqlDialect(url)
    raise ConfigError("the frontier's address is not a database address", hint="use postgresql:// or mysql://")


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
    """Join one shard of a job in a database; with settings, create it if it does not exist.

    `secret` is given for a job in several databases, in which a URL must have the same key everywhere. A shard that is
    not `alone` stores as many pages as `allow` grants it, in place of max_pages."""
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
    """Open a shard whose row is here, even if the shard has moved on: the frontier follows it."""
    row = await database.run(lambda db: _read(db, job, shard))
    kept, key, revision = understood(row[1:], job)
    own = await seat(database, int(row[0]))
    if settings is not None:
        # Stored before the first lease: a server that forgets that lease still knows how long its lanes must rest.
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
    """The connection for one shard, by the number of its row; notices restarts now and on each reconnect."""
    own = database.at(row)
    await own.run(_notice_run)
    own.greet(_notice_run)
    return own


async def make_job(database: Database, job: str, settings: Settings, secret: bytes) -> None:
    """Create the record of a job, or update its settings; an existing secret stays."""
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
    # A job on one database works without an outbox, so failing to create it is no error here.
    await ensure_outbox(database)


async def make_shard(database: Database, job: str, shard: int, *, phase: int = HERE) -> int:
    """Create a shard of an existing job; return the number of its row. A shard that is not `HERE` is not used."""

    async def work(db: Dialect) -> int:
        await db.fetch("make_shard", digest(job), shard)
        (row,) = await db.fetch("find_shard", digest(job), shard)
        db.shard = int(row[0])
        await db.fetch("make_stripes", list(range(STRIPES)))
        # With the run stored, a restart is noticed from here on.
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
    """Decode the settings, the secret, and the revision of a job's record."""
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
    """Let all lanes rest if the server has another run than the stored one: it may lack leases that are still held.

    A server whose settings let it lose commits may do so with a lost connection as the only sign."""
    suspicious = db.forgets and db.connections > 1
    for (known,) in await db.fetch("last_server"):
        if known != db.server_run or suspicious:
            await db.fetch("restarted", db.server_run, known)
            if known:
                log.warning(
                    "%s was restarted or replaced: leasing resumes when all earlier leases have ended",
                    db.server,
                )


async def ensure_outbox(database: Database) -> bool:
    """Create the tables of the outbox, which jobs of earlier versions lack; whether they exist now."""

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


_KINDS = {"postgres": "postgresql", "mariadb": "mysql"}
_placement = msgspec.json.Decoder(list[str]).decode


class SqlJobRecord(NamedTuple):
    """What all shards share, and the server of each. In the record, "" stands for the server that has the record."""

    settings: Settings
    secret: bytes
    placement: list[str]
    is_made: bool


class Databases:
    """Connections to the databases of these addresses, opened when they are first needed."""

    def __init__(self, url: str) -> None:
        self._opened: dict[str, Database] = {}
        self._urls: dict[str, str] = {}
        for one in addresses(url):
            dialect = dialect_of(one)
            if dialect.server in self._urls:
                raise ConfigError(f"{dialect.server} is named twice", hint="give each database once")
            self._urls[dialect.server] = one
            self._opened[dialect.server] = Database(dialect)
        self.names = list(self._urls)
        if len({name.partition("://")[0] for name in self.names}) > 1:
            raise ConfigError(
                "the databases of a job are of one kind", hint="either all postgresql:// or all mysql:// addresses"
            )

    def at(self, name: str) -> Database:
        """The connection to a server."""
        if name not in self._opened:
            url = like(self._urls[self.names[0]], name)
            self._urls[name] = url
            self._opened[name] = Database(dialect_of(url))
        return self._opened[name]

    async def read(self, name: str, job: str) -> SqlJobRecord | None:
        """Read a job's record from one server; None if it has none."""

        async def work(db: Dialect) -> SqlJobRecord | None:
            for row in await db.fetch("read_root", digest(job)):
                settings, secret, _ = understood(row[:4], job)
                placement = _placement(row[4]) if row[4] else [""]
                return SqlJobRecord(settings, secret, [place or name for place in placement], bool(row[5]))
            return None

        try:
            return await self.at(name).run(work)
        except JobMissing:
            # No tables at all.
            return None

    async def find(self, job: str) -> SqlJobRecord | None:
        """Read a job's record from the first server that has it."""
        for name in self.names:
            if (root := await self.read(name, job)) is not None:
                return root
        return None

    async def write(self, name: str, job: str, root: SqlJobRecord) -> SqlJobRecord:
        """Create or update a job's record on a server; return it. An existing secret and placement stay."""
        database = self.at(name)
        text = msgspec.json.encode(root.placement).decode()
        await make_job(database, job, root.settings, root.secret)
        await database.run(lambda db: db.fetch("propose_root", digest(job), text))
        found = await self.read(name, job)
        if found is None:
            raise JobMissing(f"job {job!r} is gone from {name}", hint="was the database emptied?")
        return found

    async def place(self, name: str, job: str, placement: list[str]) -> None:
        """Store the placement on a server, and that all shards exist."""
        text = msgspec.json.encode(placement).decode()
        await self.at(name).run(lambda db: db.fetch("place_root", digest(job), text))

    async def aclose(self) -> None:
        """Close all connections."""
        for database in self._opened.values():
            await database.aclose()


def addresses(text: str) -> list[str]:
    """Split the addresses of a frontier in several databases, which are separated by commas."""
    return re.split(r",(?=[a-z+]+://)", text)


def like(url: str, name: str) -> str:
    """Build the address of a named server with the user, password, and options of a known one."""
    given = urlsplit(url)
    options = dict(parse_qsl(given.query))
    credentials, at, _ = given.netloc.rpartition("@")
    scheme, _, rest = name.partition("://")
    place, _, database = rest.rpartition("/")
    if _KINDS.get(given.scheme, given.scheme) != scheme:
        raise ConfigError(f"a shard is on {name}, which was not named", hint="give the addresses of all databases")
    for option in ("host", "port", "socket", "unix_socket"):
        options.pop(option, None)
    host, _, port = place.rpartition(":")
    if scheme == "postgresql":
        hosts, ports = hosts_of(place)
        options |= {"host": ",".join(hosts)} | ({"port": ",".join(map(str, ports))} if ports else {})
        place = ""
    elif place.startswith("/"):
        options["socket"] = place
        place = ""
    elif ":" in host:
        place = f"[{host}]:{port}"
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{credentials}{at}{place}/{quote(database)}{query}"
