"""The dialect of PostgreSQL: statements, arrays, session, and errors.

Round trips dominate the cost of a call, and the driver sends one statement at a time. So what belongs together is one
statement:

- A lease starts with `moment_and_ready`: clock, counts, and locked ready sites. `complete` starts with
  `moment_and_leases`: clock, locked sites, and leases. Their parts run in the order in which they are written, so sites
  are locked before leases are read.
- The writes of a call are one statement, `write`, just before the COMMIT: so the row of the stripe is locked for a
  moment only. Finished requests (`finish`) wait for it and travel with it, unless a statement before it may read them.
- New rows of the queue go through COPY.

All values are parameters of prepared statements. Lists of numbers are passed as the text of an array, see `array`. As
text of one message with the COMMIT, the writes would save a round trip; measured with `benchmarks/frontier_sql.py`, CPU
a page was the same within 2 % (290 us and 172 us for pages with all links and with new links only).

Locks: `share` and `whole` are advisory locks of the transaction; `stripe` and `shard` lock rows of the counters and of
the shard. Isolation is READ COMMITTED: a statement that had to wait reads what the other transaction has committed.

The session turns off sequential scans, hash joins, and merge joins. Every statement finds its rows by an index, but a
plan that was made while the tables were empty would scan them, and go on doing so when they are large.

`seen` decides who adds a key (P1). Looking first and then inserting is the cheaper way; a key that another transaction
inserts in between violates the primary key, the transaction is repeated, and for some time the dialect inserts with ON
CONFLICT DO NOTHING instead.

Idle workers LISTEN. NOTIFY inside a transaction takes a lock that serializes all commits of the server, so it is sent
after the commit, and only if `waiting_until` says that somebody may wait. It may be lost with the connection; waiting
has a time limit.

What can fail: deadlocks, serialization failures, and unique violations are conflicts, and `Database.run` repeats the
transaction. A lost connection, or a server that is shut down or read-only, is a loss, and the transaction is repeated
on a new connection. A standby is refused, because its promotion would not end the connection. `server_run` contains the
start of the server, the identity of its data, and its timeline, which changes with each promotion."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gossamer import dsn
from gossamer.errors import UNREACHED, FrontierError, JobMissing, SchemaMismatch, Unavailable
from gossamer.extras import unusable
from gossamer.frontier.sql.database import (
    FORBIDDEN,
    FULL,
    MISSING,
    ROWS,
    TOO_MANY_CLIENTS,
    UNDER_WAY,
    UNKNOWN,
    schema,
    statements,
)
from gossamer.frontier.sql.transaction import is_changed

try:
    import asyncpg
    from asyncpg import exceptions as faults
except ImportError as missing:
    raise unusable("postgresql", "the frontier in PostgreSQL", missing) from missing


def transposed(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Rows as columns, which is how `unnest` takes them."""
    return [list(column) for column in zip(*rows, strict=True)]


def array(values: list[Any]) -> Any:
    """A list of numbers as the text of an array, which the driver encodes much faster; other lists unchanged."""
    if values and not isinstance(values[0], (int, type(None))):
        return values
    if None in values:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    return "{" + ",".join(map(str, values)) + "}"


_SESSION = """
SET synchronous_commit = on; SET jit = off; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;
SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off; SET timezone = 'UTC';
SET default_transaction_isolation = 'read committed'; SET idle_in_transaction_session_timeout = '60s';
SET lock_timeout = '20s'; SET standard_conforming_strings = on
"""
_BEGIN = {
    "": "BEGIN",
    "share": "BEGIN; SELECT pg_advisory_xact_lock_shared(1735357299, {shard})",
    "whole": "BEGIN; SELECT pg_advisory_xact_lock(1735357299, {shard})",
    "stripe": "BEGIN; SELECT 1 FROM gossamer_counters WHERE shard = {shard} AND stripe = {stripe} FOR UPDATE",
    "shard": "BEGIN; SELECT 1 FROM gossamer_shards WHERE shard = {shard} FOR UPDATE;"
    " SELECT 1 FROM gossamer_counters WHERE shard = {shard} AND stripe = {stripe} FOR UPDATE",
}
# NOTIFY serializes the commits of the whole server: send it after the commit, and only if somebody may wait.
_COMMIT_AND_RING = (
    "COMMIT; SELECT pg_notify('gossamer_{shard}', '') FROM gossamer_shards"
    " WHERE shard = {shard} AND waiting_until > EXTRACT(EPOCH FROM clock_timestamp()) * 1000000"
)
_QUEUE: tuple[str, ...] = (
    "shard", "site", "place", "standing", "age", "id", "url", "depth", "priority", "tries", "lapses", "again", "extra",
)  # fmt: skip
_NEW = (*_QUEUE[:8], "extra")
_LEARN = """
SELECT pg_is_in_recovery(), (EXTRACT(EPOCH FROM pg_postmaster_start_time()) * 1000000)::bigint,
    current_setting('fsync') = 'off' OR current_setting('full_page_writes') = 'off',
    to_regclass('gossamer_parcels') IS NOT NULL, current_setting('server_version_num')::int
"""
# The identity of the data, and the timeline, which grows with each promotion. Some hosting providers forbid these.
_LINEAGE = (
    "SELECT system_identifier::text FROM pg_control_system()",
    "SELECT ltrim(left(pg_walfile_name(pg_current_wal_lsn()), 8), '0')",
)
_SIZE = (
    "SELECT SUM(pg_total_relation_size(c.oid)) FROM pg_class c"
    " WHERE c.relname LIKE 'gossamer\\_%' AND c.relkind = 'r' AND pg_table_is_visible(c.oid)"
)
_OLDEST = 120000
_WARY = 32
_CONNECT_SECONDS, _ANSWER_SECONDS = 10.0, 30.0
_LONGEST_WAIT_MICRO = 16_000_000
# Classes of SQLSTATE: connection, resources (full, too many), intervention by an operator, the system's own errors.
_PASSING = ("08", "53", "57", "58", "25006", "55P03", "XX000")
_READ_ONLY = "25006"
_CONFLICT = ("40001", "40P01", "23505")
_REFUSED = ("28", "3D", "42501")
_HINTS = (
    ("08", UNREACHED),
    ("53300", TOO_MANY_CLIENTS),
    ("53100", FULL),
    ("28", UNKNOWN),
    ("3D", MISSING),
    ("42501", FORBIDDEN),
)
# The overflow of `frozen`, by which calls fail while the shard is being moved.
_OUT_OF_RANGE = "22003"
_WEAK = (
    ("fsync", "a power cut may lose what was acknowledged, or the whole database (fsync is off)", "set fsync = on"),
    ("full_page_writes", "a power cut may damage the database (full_page_writes is off)", "set full_page_writes = on"),
)

# Without the right to see the state of a standby, at least its row is visible.
_STANDBYS = """
SELECT count(*) FROM pg_stat_replication
WHERE COALESCE(sync_state, CASE current_setting('synchronous_standby_names') WHEN '' THEN 'async' END) = 'async'
"""


class PostgresDialect:
    """One connection: statements that wait for the next round trip, and answers that came with the last one."""

    kind = "PostgreSQL"
    always_whole = False

    def __init__(self, url: str) -> None:
        self.shard = 0
        self._address, self.server = dsn.postgresql(url)
        self._statements = statements("postgresql.sql")
        self._connection: asyncpg.Connection[Any] | None = None
        self._news: dict[int, asyncio.Event] = {}
        """Shard -> the event that a notification sets."""
        self._listens: set[str] = set()
        self.connections = 0
        self.server_run = ""
        self.forgets = self.has_outbox = False
        self._lineage = ""
        self._prepared: dict[str, tuple[Any, list[bool]]] = {}
        """By name a statement of `_run`, and of each of its parameters whether its type is text."""
        self._finished: list[Any] = []
        """The columns of `finish` that wait for the next statement; empty if none do."""
        self._also: Sequence[tuple[Any, ...]] = ()
        self._answers: list[tuple[tuple[Any, ...], list[Sequence[Any]]]] = []
        """Rows that came with the last statement, by the question that they answer."""
        self._wary = 0
        """For how many more calls to insert keys with ON CONFLICT, because other workers add the same ones."""

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    @property
    def _open(self) -> asyncpg.Connection[Any]:
        if self._connection is None:
            raise faults.InterfaceError("the connection is closed")
        return self._connection

    async def connect(self) -> None:
        """Connect, and refuse a server that is too old."""
        self._listens.clear()
        self._prepared.clear()
        self._forget()
        connection = await asyncpg.connect(
            **self._address,
            timeout=_CONNECT_SECONDS,
            command_timeout=_ANSWER_SECONDS,
            statement_cache_size=200,
        )
        self._connection = connection
        self.connections += 1
        try:
            await connection.execute(_SESSION)
            await self.learn()
        except BaseException:
            self.abort()
            raise

    async def learn(self) -> None:
        (row,) = await self._open.fetch(_LEARN)
        is_standby, started, self.forgets, self.has_outbox, version = row
        if version < _OLDEST:
            raise FrontierError(f"PostgreSQL {version // 10000} is too old", hint="use PostgreSQL 12 or newer")
        if is_standby:
            # Its promotion would not end this connection, and nobody would notice which commits it lacks.
            raise faults.ReadOnlySQLTransactionError("the server is a standby")
        lineage = []
        for text in _LINEAGE:
            try:
                lineage.append(str(await self._open.fetchval(text)))
            except faults.PostgresError as error:
                if self.is_loss(error):
                    raise
                lineage.append("")
        self.server_run = ".".join((*lineage, str(started)))

    async def make_tables(self) -> None:
        """Create the tables if they do not exist, under a lock: concurrent CREATE statements would fail.

        All of it is one transaction, so the tables are there completely or not at all."""
        await self._open.execute("SELECT pg_advisory_xact_lock(1735357299, 0)")
        if await self._open.fetchval("SELECT to_regclass('gossamer_tasks')") is not None:
            return
        await self._open.execute(schema("postgresql_outbox.sql"))
        self.has_outbox = True
        await self._open.execute(schema("postgresql_schema.sql"))
        for short in ("tasks", "inbox"):
            if await self._open.fetchval("SELECT to_regclass($1)", short) is None:
                await self._open.execute(f"CREATE VIEW {short} AS SELECT * FROM gossamer_{short}")  # noqa: S608

    async def make_outbox(self) -> None:
        await self._open.execute("SELECT pg_advisory_xact_lock(1735357299, 0)")
        if await self._open.fetchval("SELECT to_regclass('gossamer_parcels')") is None:
            await self._open.execute(schema("postgresql_outbox.sql"))
        self.has_outbox = True

    async def weaknesses(self) -> list[tuple[str, str]]:
        return [
            (what, fix)
            for setting, what, fix in _WEAK
            if await self._open.fetchval("SELECT current_setting($1, true)", setting) == "off"
        ]

    async def time(self) -> float:
        return float(await self._open.fetchval("SELECT EXTRACT(EPOCH FROM clock_timestamp())::float8"))

    async def size(self) -> float:
        return float(await self._open.fetchval(_SIZE) or 0)

    async def standbys(self) -> int:
        return int(await self._open.fetchval(_STANDBYS))

    async def begin(self, lock: str = "", stripe: int = 0) -> None:
        # One round trip: the answers of these statements are not needed.
        self._forget()
        text = _BEGIN[lock].format(shard=int(self.shard), stripe=int(stripe))
        await self._open.execute(text)

    async def commit(self, *, rings: bool = False) -> None:
        await self._run_finished()
        await self._open.execute(_COMMIT_AND_RING.format(shard=int(self.shard)) if rings else "COMMIT")

    async def rollback(self) -> None:
        self._forget()
        await self._open.execute("ROLLBACK")

    def _forget(self) -> None:
        self._finished = []
        self._answers.clear()
        self._also = ()

    async def _run_finished(self) -> None:
        """Write finished requests, if any wait."""
        if self._finished:
            finished, self._finished = self._finished, []
            await self._run("finish_rows", *finished)

    async def _run(self, name: str, *given: Any) -> None:
        """Run a statement whose lists may be empty, or have numbers, texts, and NULL: its own types say how to pass
        them."""
        if name not in self._prepared:
            statement = await self._open.prepare(self._statements[name])
            self._prepared[name] = statement, [kind.name == "text" for kind in statement.get_parameters()[1:]]
        statement, is_text = self._prepared[name]
        values = [
            array(value) if as_text and isinstance(value, list) else value
            for value, as_text in zip(given, is_text, strict=True)
        ]
        await statement.fetch(self.shard, *values)

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    def abort(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        for news in self._news.values():
            news.set()

    async def ask(self, text: str, *given: Any) -> list[Sequence[Any]]:
        """Run a statement that is not in the .sql files, after what waits: it may read what that writes."""
        await self._run_finished()
        return await self._open.fetch(text, *given)

    async def fetch(self, name: str, *given: Any) -> list[Sequence[Any]]:
        if self._answers:
            ask, rows = self._answers.pop(0)
            if ask == (name, *given):
                return rows
        also, self._also = self._also, ()
        if also and name == "moment":
            return await self._take(also)
        if also and name == "brief_moment":
            return await self._lock(also)
        values = [array(value) if isinstance(value, list) else value for value in given]
        return await self.ask(self._statements[name], self.shard, *values)

    def ahead(self, *asks: tuple[Any, ...]) -> None:
        # The driver sends one statement at a time, so each combination that is asked for is a statement of its own.
        self._also = asks

    async def _take(self, asks: Sequence[tuple[Any, ...]]) -> list[Sequence[Any]]:
        """Read the moment and lock ready sites, in one statement."""
        regions, most = [ask[1] for ask in asks], asks[0][2]
        rows = await self.ask(self._statements["moment_and_ready"], self.shard, regions, most)
        self._answers = [(ask, [row[:7] for row in rows if row[7] is None and row[2] == ask[1]]) for ask in asks]
        return [(row[1], *row[7][:8], row[2], *row[7][8:]) for row in rows if row[7] is not None]

    async def _lock(self, asks: Sequence[tuple[Any, ...]]) -> list[Sequence[Any]]:
        """Read the moment, lock sites, and read leases, in one statement."""
        lists = [array(ask[1]) for ask in asks]
        rows = await self.ask(self._statements["moment_and_leases"], self.shard, *lists)
        sites: list[Sequence[Any]] = [row[:7] for row in rows if row[6] is not None]
        leases: list[Sequence[Any]] = [
            (row[0], row[3], *row[7], row[1], row[2]) for row in rows if row[6] is None and row[0] is not None
        ]
        self._answers = list(zip(asks, (sites, leases), strict=True))
        return [(row[1], *row[7][:8], row[2], *row[7][8:]) for row in rows if row[0] is None]

    async def bulk(self, name: str, rows: Sequence[Sequence[Any]], *given: Any) -> list[Sequence[Any]]:
        """Run a statement over rows, which it takes as one array for each column."""
        also, self._also = self._also, ()
        if not rows:
            return []
        if also and name == "heads":
            found = await self.fetch("heads_and_notes", *transposed(rows), *given, also[0][1])
            self._answers = [(also[0], [(row[0], row[11], row[12]) for row in found if row[1] is None])]
            return [row[:12] for row in found if row[1] is not None]
        return await self.fetch(name, *transposed(rows), *given)

    async def insert_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows by COPY. What waits goes first: it may delete rows that these replace."""
        await self._run_finished()
        shard = self.shard
        if is_changed(rows):
            records: list[tuple[Any, ...]] = [(shard, *row) for row in rows]
            columns = _QUEUE
        else:
            records = [
                (shard, site, place, standing, age, key, url, depth, extra)
                for site, place, standing, age, key, url, depth, _, _, _, _, extra in rows
            ]
            columns = _NEW
        await self._open.copy_records_to_table("gossamer_queue", records=records, columns=columns)

    async def write(
        self,
        counters: Sequence[int],
        *,
        ended: Sequence[int],
        given: Sequence[Sequence[Any]],
        changed: Sequence[Sequence[Any]],
        sites: Sequence[Sequence[Any]],
    ) -> None:
        # One statement for leases, sites, counters, and finished requests.
        values: list[Any] = [*counters, list(ended)]
        for rows, width in ((given, 7), (changed, 3), (sites, 7)):
            values += transposed(rows) if rows else [[]] * width
        finished, self._finished = self._finished or [*[[]] * 7, 0], []
        await self._run("write", *values, *finished)

    async def put_seen(self, ids: Sequence[int], sites: Sequence[int]) -> tuple[set[int], list[Sequence[Any]]]:
        # Looking first and then inserting is cheaper than ON CONFLICT. If another transaction inserts a key in between,
        # this one is repeated with ON CONFLICT.
        wary, self._wary = self._wary > 0, max(0, self._wary - 1)
        try:
            rows = await self.fetch("put_wary" if wary else "put_seen", ids, sites)
        except faults.UniqueViolationError:
            self._wary = _WARY
            raise
        return {row[0] for row in rows if row[2] is None}, [row for row in rows if row[2] is not None]

    async def insert_sites(self, rows: Sequence[Sequence[Any]]) -> int:
        return len(await self.bulk("insert_sites", rows))

    async def finish(self, rows: Sequence[Sequence[Any]], now: int) -> None:
        await self._run_finished()
        self._finished = [*transposed(rows), now]

    async def refuse(self, rows: Sequence[Sequence[Any]], now: int) -> None:
        await self.fetch("refuse_rows", now, *transposed(rows))

    async def close_site(self, site: int, keep: Sequence[int], status: int, now: int) -> list[Sequence[Any]]:
        return await self.fetch("close_site", site, list(keep), status, now)

    async def take_inbox(self, most: int) -> list[Sequence[Any]]:
        return await self.fetch("take_inbox", most)

    async def empty_inbox(self, entries: Sequence[int]) -> None:
        await self.ask(self._statements["empty_inbox"], array(list(entries)))

    async def refuse_inbox(self, entry: int, error: str) -> None:
        await self.ask(self._statements["refuse_inbox"], entry, error)

    async def compact(self, before: int, last: int, most: int) -> list[int]:
        return [row[0] for row in await self.fetch("compact", before, last, most)]

    async def page(self, table: str, after: Sequence[Any], most: int, *, last: bool = False) -> list[Sequence[Any]]:
        width, columns = ROWS[table]
        key, way = columns[:width], " DESC" if last else ""
        marks = ", ".join(f"${number + 2}" for number in range(len(after)))
        where = f" AND ({', '.join(key)}) > ({marks})" if after else ""
        return await self.ask(
            f"SELECT {', '.join(columns)} FROM gossamer_{table} WHERE shard = $1{where}"  # noqa: S608
            f" ORDER BY {', '.join(name + way for name in key)} LIMIT {int(most)}",
            self.shard,
            *after,
        )

    async def put(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        _, columns = ROWS[table]
        marks = ", ".join(f"${number + 2}" for number in range(len(columns)))
        await self._open.executemany(
            f"INSERT INTO gossamer_{table} (shard, {', '.join(columns)}) VALUES ($1, {marks})"  # noqa: S608
            " ON CONFLICT DO NOTHING",
            [(self.shard, *row) for row in rows],
        )

    async def drop(self, table: str, most: int) -> None:
        await self.ask(
            f"DELETE FROM gossamer_{table} WHERE ctid = ANY(ARRAY("  # noqa: S608
            f"SELECT ctid FROM gossamer_{table} WHERE shard = $1 LIMIT {int(most)}))",
            self.shard,
        )

    async def watch(self, seen: int) -> bool:
        for channel in {f"gossamer_{self.shard}", "gossamer_inbox"} - self._listens:
            await self._open.add_listener(channel, self._on_notify)
            self._listens.add(channel)
        self._news.setdefault(self.shard, asyncio.Event()).clear()
        await self.fetch("wait", _LONGEST_WAIT_MICRO)
        # The order matters: listen, say that we wait, then read the news number. News before that was not notified.
        (row,) = await self.fetch("news")
        return int(row[0] or 0) > seen

    async def wait_for_news(self, round_number: int, shard: int) -> bool:
        await self._news[shard].wait()
        return True

    def _on_notify(self, _connection: Any, _process: Any, channel: str, _text: Any) -> None:
        for shard, news in self._news.items():
            if channel in (f"gossamer_{shard}", "gossamer_inbox"):
                news.set()

    def is_conflict(self, error: BaseException) -> bool:
        return isinstance(error, faults.PostgresError) and str(error.sqlstate) in _CONFLICT

    def is_forbidden(self, error: BaseException) -> bool:
        return isinstance(error, faults.InsufficientPrivilegeError)

    def is_loss(self, error: BaseException) -> bool:
        if isinstance(error, faults.PostgresError):
            state = str(error.sqlstate)
            return (state[:2] in ("08", "57") or state == _READ_ONLY) and not self._survives(error)
        # InternalClientError: the server hung up just before a statement was sent.
        return isinstance(error, (OSError, faults.InterfaceError, faults.InternalClientError, TimeoutError))

    def _survives(self, error: BaseException) -> bool:
        return self.is_open and isinstance(error, faults.QueryCanceledError)

    def explain(self, error: BaseException) -> FrontierError | None:
        if isinstance(error, faults.UndefinedTableError):
            return JobMissing(
                "the job's tables are not in this database any more", hint="was the database emptied or restored?"
            )
        if isinstance(error, faults.UndefinedColumnError):
            return SchemaMismatch("the tables were made by another version of Gossamer", hint="use that version")
        if isinstance(error, faults.PostgresError):
            code = str(error.sqlstate or "")
            if code == _OUT_OF_RANGE and "bigint" in str(error):
                return Unavailable(f"{self.server}: the shard is being moved to another database", hint=UNDER_WAY)
            hint = next((hint for start, hint in _HINTS if code.startswith(start)), "")
            if code.startswith(_PASSING):
                return Unavailable(f"{self.server}: {_first_line(error)}", hint=hint)
            if code.startswith(_REFUSED):
                return FrontierError(f"{self.server} refused: {_first_line(error)}", hint=hint)
            return FrontierError(f"{self.server}: {_first_line(error)} ({code})")
        if isinstance(error, (OSError, TimeoutError, faults.InterfaceError, faults.InternalClientError)):
            return Unavailable(f"{self.server}: {_first_line(error) or type(error).__name__}", hint=UNREACHED)
        return None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]
