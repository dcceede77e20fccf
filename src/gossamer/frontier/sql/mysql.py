"""The dialect of MariaDB and MySQL: statements, bulk packets, session, and errors.

The frontier needs few statements for each call, but a round trip for each of them would dominate. So this dialect
gathers statements and sends them together:

- `_later` adds a statement whose answer nobody needs; it travels with the next one, at the latest with COMMIT.
- `ahead` names statements that the frontier is about to run; their rows arrive with the present answer and wait in
  `_answers`. If the frontier then runs something else, they are dropped, so a wrong guess costs time only.
- MariaDB runs such a group as one block (BEGIN NOT ATOMIC); MySQL takes several statements in one packet. The first
  error ends the group, and the transaction is rolled back as a whole.

Outside of bulk packets, values are written into the statements as text. Each kind has one writer (`literal`, `quoted`);
strings are escaped by the driver under an sql_mode that the session sets. Many rows travel in a bulk packet where the
server supports it.

Isolation is READ COMMITTED, so that reads after a lock see what the holder has committed, and few gaps are locked. A
transaction starts with its first statement. The lock of a call is a row of `gossamer_shards` (`share`, `whole`) or of
the counters (`stripe`, `shard`); it is taken by the first statement of the call or just before it.

Which of several workers added a key first (P1) follows from INSERT IGNORE: the keys that were there are in the
warnings. If the number of warnings does not fit the number of rows added, nothing is assumed: the transaction is
repeated, and asks for known keys first.

What can fail:

- Deadlocks, lock timeouts, and duplicate rows of concurrent inserts are conflicts: `Database.run` repeats the
  transaction.
- A server that is read-only, or becomes so, counts as a lost connection. A replica must not be used: its promotion
  would leave the connection open, and nobody would notice which commits it lacks.
- A server that hangs up in the middle of a message makes the driver raise errors of Python, which `is_hung_up`
  recognizes by their traceback.
- A restart changes `server_run`, which contains the start of the server in seconds; a replacement changes the identity
  in it. With innodb_flush_log_at_trx_commit other than 1 a restart may lose commits (`forgets`)."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Any

import msgspec

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
    import asyncmy
    from asyncmy import errors as faults
    from asyncmy.constants.CLIENT import MULTI_STATEMENTS
    from asyncmy.converters import escape_string
except ImportError as missing:
    raise unusable("mysql", "the frontier in MariaDB or MySQL", missing) from missing


_TOO_MANY_PREPARED = 1461


class Bulk:
    """Prepared statements of one connection, each run over many rows in one packet (a protocol of MariaDB)."""

    def __init__(self) -> None:
        self._prepared: dict[str, Any] = {}
        self._refused = False

    def forget(self) -> None:
        """Start over on a new connection, which has no prepared statements."""
        self._prepared.clear()
        self._refused = False

    async def run(self, connection: Any, text: str, rows: Sequence[Sequence[Any]], *, seconds: float) -> int | None:
        """Run a statement over all rows; how many it has changed.

        None if nothing was done, and the caller has to write the rows as text: the server lacks the protocol, has too
        many prepared statements, or a column is NULL in every row, so that its type is unknown."""
        if self._refused:
            return None
        try:
            async with asyncio.timeout(seconds):
                if text not in self._prepared:
                    self._prepared[text] = await connection.prepare(text)
                result = await self._prepared[text].execute_bulk(rows)
        except faults.NotSupportedError:
            # Raised by the driver before it has sent anything.
            self._refused = True
            return None
        except faults.OperationalError as error:
            if error.args[:1] != (_TOO_MANY_PREPARED,):
                raise
            self._refused = True
            return None
        except ValueError:
            return None
        return int(result.affected_rows)


def size(rows: Sequence[Sequence[Any]]) -> int:
    """Approximate size in bytes of a packet with these rows; only URL and extra may be long."""
    width = len(rows[0])
    return 10 * width * len(rows) + sum([len(row[5]) + len(row[7] or b"") for row in rows] if width > 5 else ())


_CONFLICT = {1205, 1213, 1020, 1062, 1615, 3572}
_FORBIDS = {1044, 1142, 1143, 1227}
_READ_ONLY_CODES = {1290, 1836}
HUNG_UP = (RuntimeError, AttributeError, IndexError, struct.error)
"""Errors of Python that the driver raises when a server hangs up in the middle of a message."""
_LOST = {0, 1047, 1053, 1077, 1079, 1080, 1152, 1153, 1158, 1159, 1160, 1161, 1184, 1927, 2003, 2006, 2013, 2055, 4031}
_PASSING = {
    3, 14, 1021, 1026, 1028, 1030, 1031, 1037, 1038, 1040, 1041, 1042, 1114, 1129, 1203, 1226, 1290, 1317, 1836, 1969,
    3024,
}  # fmt: skip
# The overflow of `frozen`, by which calls fail while the shard is being moved.
_OUT_OF_RANGE = 1690
_UNREACHED, _TOO_MANY, _FULL = {2003}, {1040, 1203, 1226}, {3, 14, 1021, 1114}
_UNKNOWN, _MISSING, _FORBIDDEN = {1045, 1251, 1275, 1698, 3118}, {1049}, _FORBIDS
_HINTS = (
    (_UNREACHED, UNREACHED),
    (_TOO_MANY, TOO_MANY_CLIENTS),
    (_FULL, FULL),
    (_UNKNOWN, UNKNOWN),
    (_MISSING, MISSING),
    (_FORBIDDEN, f"{FORBIDDEN} and CREATE VIEW"),
)


def is_conflict(error: BaseException) -> bool:
    """Whether the transaction was undone because of another one, and may be tried again at once."""
    return isinstance(error, faults.MySQLError) and _number(error) in _CONFLICT


def is_loss(error: BaseException) -> bool:
    """Whether the connection is gone."""
    if isinstance(error, faults.MySQLError):
        # An internal error is the driver's: it has lost count of the packets.
        unusable = isinstance(error, (faults.InterfaceError, faults.InternalError))
        return _number(error) in _LOST | _READ_ONLY_CODES or unusable
    return isinstance(error, (OSError, TimeoutError, EOFError)) or is_hung_up(error)


def is_hung_up(error: BaseException) -> bool:
    """Whether the error came out of the driver after the server hung up: its code is in the traceback."""
    trace = error.__traceback__
    while trace is not None:
        if "asyncmy" in trace.tb_frame.f_code.co_filename:
            return isinstance(error, HUNG_UP)
        trace = trace.tb_next
    return False


def is_forbidden(error: BaseException) -> bool:
    """Whether the user may not do this."""
    return isinstance(error, faults.MySQLError) and _number(error) in _FORBIDS


def explain(error: BaseException, server: str) -> FrontierError | None:
    """The error of ours for a driver's error; None if it does not come from the driver."""
    if isinstance(error, (OSError, TimeoutError, EOFError)) or is_hung_up(error):
        return Unavailable(f"{server}: {error or type(error).__name__}", hint=UNREACHED)
    if not isinstance(error, faults.MySQLError):
        return None
    number, text = _number(error), str(error.args[-1] if error.args else error)[:300]
    if number == 1146:
        return JobMissing(
            "the job's tables are not in this database any more", hint="was the database emptied or restored?"
        )
    if number == 1054:
        return SchemaMismatch("the tables were made by another version of Gossamer", hint="use that version")
    if number == _OUT_OF_RANGE and "frozen" in text:
        return Unavailable(f"{server}: the shard is being moved to another database", hint=UNDER_WAY)
    hint = next((hint for numbers, hint in _HINTS if number in numbers), "")
    if number in _UNKNOWN | _MISSING | _FORBIDDEN:
        return FrontierError(f"{server} refused: {text}", hint=hint)
    if number in _PASSING or number in _LOST or number in _CONFLICT or is_loss(error):
        return Unavailable(f"{server}: {text}", hint=hint or (UNREACHED if number in _LOST else ""))
    return FrontierError(f"{server}: {text} ({number})")


def _number(error: BaseException) -> int:
    return int(error.args[0]) if error.args and isinstance(error.args[0], int) else -1


PARTS = re.compile(r"\$(\d+|c\d|rows|text|where|json2|json|a|b)\b")
_encode = msgspec.json.Encoder().encode


def written(
    parts: Sequence[str],
    given: Sequence[Any],
    *,
    row: Sequence[Any] = (),
    rows: Sequence[Sequence[Any]] = (),
    where: str = "",
) -> str:
    """Write a statement with its values. `parts` alternates between text and the names of values."""
    found = list(parts)
    for index in range(1, len(parts), 2):
        name = parts[index]
        if name == "rows":
            head = f"({given[0]},"
            found[index] = ",".join([head + ",".join(map(literal, each)) + ")" for each in rows])
        elif name == "json":
            found[index] = quoted(_encode(rows).decode())
        elif name == "json2":
            found[index] = quoted(_encode(given[1]).decode())
        elif name == "where":
            found[index] = where
        elif name[0] == "c":
            found[index] = _by_site(rows, int(name[1:]))
        elif name in ("a", "b"):
            found[index] = str(int(row[name == "b"]))
        else:
            found[index] = literal(given[int(name) - 1])
    return "".join(found)


def literal(value: Any) -> str:
    """A value as SQL text. Other types than these are refused: nothing unforeseen gets into a statement."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, (list, tuple)):
        # An empty list is not valid SQL; no key is negative.
        return f"({','.join(map(str, map(int, value))) or '-1'})"
    raise TypeError(f"{type(value).__name__} has no place in a statement")


def quoted(text: str) -> str:
    # Escaped by the driver, as for its own parameters. It relies on backslash escapes, which our sql_mode keeps on.
    return f"'{escape_string(text)}'"


def _by_site(rows: Sequence[Sequence[Any]], column: int) -> str:
    """The value of a column for each site: one value if all are equal, else a CASE."""
    values = [literal(row[column]) for row in rows]
    if len(set(values)) == 1:
        return values[0]
    cases = [f"WHEN {row[0]} THEN {value}" for row, value in zip(rows, values, strict=True)]
    return f"CASE site {' '.join(cases)} END"


def stretch(where: Sequence[int], ages: Sequence[int], *, young: int) -> str:
    """A condition for the rows with these ages, as one range if all are older than `young`, else as a list.

    The requests of a batch follow each other, so a range is cheaper to read. Between young rows other workers may be
    inserting at this moment, and a range would wait for their locks."""
    site, place, standing = where
    first, last = min(ages), max(ages)
    some = f"IN {literal(ages)}" if max(abs(first), abs(last)) > young else f"BETWEEN {first} AND {last}"
    return f"(site = {site} AND place = {place} AND standing = {standing} AND age {some})"


def moment(text: str) -> tuple[Any, ...]:
    """Parse a moment. It is one text, because every column of an answer costs a packet."""
    state, revision, clock, skew, restarts, rest_until, longest, allowance, phase, rest, place = text.split("\n")
    most = int(allowance) if allowance else None
    times = (int(revision), int(clock), int(skew), int(restarts), int(rest_until), int(longest))
    return (state, *times, most, int(phase), place, *map(int, rest.split(",")))


def new_rows(shard: int, rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows of new requests as text for an INSERT; columns with defaults are left out."""
    head = f"({shard},"
    extras = {row[7]: literal(row[7]) for row in rows}
    return [
        f"{head}{site},{place},{standing},{age},{key},{quoted(url)},{depth},{extras[extra]})"
        for site, place, standing, age, key, url, depth, extra in rows
    ]


def whole_rows(shard: int, rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows of the queue with all columns, as text for an INSERT."""
    head = f"({shard},"
    return [
        f"{head}{site},{place},{standing},{age},{key},{quoted(url)},{depth},{priority},{tries},{lapses},{again},"
        f"{literal(extra)})"
        for site, place, standing, age, key, url, depth, priority, tries, lapses, again, extra in rows
    ]


def beyond(key: Sequence[str], values: Sequence[Any]) -> str:
    """A condition for rows after another in the order of a key, in a form for which the server uses the index."""
    name, value = key[0], literal(values[0])
    if len(key) == 1:
        return f"{name} > {value}"
    return f"({name} > {value} OR ({name} = {value} AND {beyond(key[1:], values[1:])}))"


def is_too_old(version: str) -> bool:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        return False
    return (int(found[1]), int(found[2])) < ((10, 6) if "maria" in version.lower() else (8, 0))


LOCKS = {"": "", "share": " LOCK IN SHARE MODE", "whole": " FOR UPDATE"}
_SESSION = (
    "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00', innodb_lock_wait_timeout = 20, autocommit = 0,"
    " max_error_count = 65535",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
PACKET = 4_000_000
_CONNECT_SECONDS, _ANSWER_SECONDS = 15.0, 30.0
# From this number on, rows are cheaper in a bulk packet.
_MANY = 64
_QUESTIONS = ("SELECT", "(SELECT", "SHOW")
_READ_ONLY = 1290
# Now minus uptime in one statement, so that both are of the same second. The schema differs between the servers.
_STARTED = (
    "SELECT CAST(UNIX_TIMESTAMP() - variable_value AS SIGNED) FROM {}.global_status WHERE variable_name = 'Uptime'"
)
_IDENTITY = (
    "SHOW GLOBAL VARIABLES WHERE variable_name IN ('server_uid', 'server_uuid', 'hostname', 'port', 'read_only',"
    " 'super_read_only', 'innodb_read_only', 'innodb_flush_log_at_trx_commit')"
)
_OFF = ("OFF", "0", "")


class MySqlConnection:
    """One connection: its session, the statements that wait to be sent, and the answers that wait to be read."""

    def __init__(self, url: str) -> None:
        self.shard = 0
        self._address, self.server = dsn.mysql(url)
        self._statements = {name: PARTS.split(text) for name, text in statements("mysql.sql").items()}
        self._connection: Any = None
        self._pending: list[str] = []
        self._also: list[tuple[Any, ...]] = []
        self._answers: list[tuple[tuple[Any, ...], list[Sequence[Any]]]] = []
        """Rows that came with the last statement, by the question that they answer."""
        self._affected = 0
        self._lock = ""
        """The lock to take with the next statement."""
        self._has_blocks = False
        """Whether the server (MariaDB) runs a block of statements and answers once."""
        self._bulk = Bulk()
        self._many_known = False
        """Whether most keys of the last call were known: then asking before inserting is cheaper."""
        self.connections = 0
        self.server_run = ""
        self.forgets = self.has_outbox = False

    @property
    def is_open(self) -> bool:
        return self._connection is not None and bool(self._connection.connected)

    async def connect(self) -> None:
        """Connect, and refuse a server that lacks what the statements need."""
        try:
            connection = await asyncio.wait_for(
                asyncmy.connect(**self._address, charset="utf8mb4", connect_timeout=10, client_flag=MULTI_STATEMENTS),
                _CONNECT_SECONDS,
            )
        except HUNG_UP as error:
            # The driver raises an error of Python if the server hangs up before its greeting.
            raise faults.OperationalError(2013, f"the server hung up: {error}") from error
        self._connection = connection
        self.connections += 1
        self._bulk.forget()
        self._forget()
        try:
            for statement in _SESSION:
                await self._run(statement)
            ((version,),) = await self._run("SELECT VERSION()")
            if is_too_old(version):
                raise FrontierError(f"{version} is too old", hint="use MySQL 8.0 or MariaDB 10.6, or newer")
            self._has_blocks = "maria" in version.lower()
            if self._has_blocks:
                # Look up lists of numbers in the index one by one instead of making them a table first.
                await self._run("SET SESSION in_predicate_conversion_threshold = 0")
            else:
                await self._run("SET SESSION range_optimizer_max_mem_size = 0")
            await self.learn()
        except BaseException:
            self.abort()
            raise

    async def learn(self) -> None:
        """Learn the run of the server, its durability, and whether the outbox exists; refuse a read-only server."""
        values = {str(name).lower(): str(value) for name, value in await self._run(_IDENTITY)}
        if any(values.get(name, "OFF") not in _OFF for name in ("read_only", "super_read_only", "innodb_read_only")):
            # Its promotion would not end this connection, and nobody would notice which commits it lacks.
            raise faults.OperationalError(_READ_ONLY, "the server is read-only")
        place = " ".join(values.get(name, "") for name in ("server_uid", "server_uuid", "hostname", "port"))
        status = "information_schema" if self._has_blocks else "performance_schema"
        ((started,),) = await self._run(_STARTED.format(status))
        self.server_run = f"{blake2b(place.encode(), digest_size=8).hexdigest()}.{int(started)}"
        self.forgets = values.get("innodb_flush_log_at_trx_commit", "1") != "1"
        ((parcels,),) = await self._run(
            "SELECT COUNT(*) FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND table_name = 'gossamer_parcels'"
        )
        self.has_outbox = bool(parcels)

    def _forget(self) -> None:
        self._lock = ""
        for waiting in (self._pending, self._also, self._answers):
            waiting.clear()

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.ensure_closed()

    def abort(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    async def _run(self, text: str) -> Sequence[Any]:
        """Send pending statements, this one, and those asked for ahead in one packet; return the rows of this one.

        The lock of the call goes first, so that everything else is read under it."""
        connection = self._connection
        if connection is None:
            raise faults.OperationalError(2006, "the connection is closed")
        if self._lock:
            self._pending.insert(0, written(self._statements["lock_moment"], (self.shard,)) + LOCKS[self._lock])
        before, also = len(self._pending), list(self._also)
        asked = [written(self._statements[name], (self.shard, *given)) for name, *given in also]
        parts = [*self._pending, text, *asked]
        # Inside a block the number of inserted rows is not reported, and `_insert_seen` depends on it.
        block = self._has_blocks and len(parts) > 1 and not text.startswith("INSERT")
        self._forget()
        found: list[Sequence[Any]] = []
        async with asyncio.timeout(_ANSWER_SECONDS), connection.cursor() as cursor:
            together = ";\n".join(parts)
            await cursor.execute(f"BEGIN NOT ATOMIC\n{together};\nEND" if block else together)
            for number in range(1 << 30):
                if number == before:
                    self._affected = cursor.rowcount
                if cursor.description or not block:
                    found.append(await cursor.fetchall() if cursor.description else ())
                if not await cursor.nextset():
                    break
        self._answers = [(ask, list(rows)) for ask, rows in zip(also, found[len(found) - len(also) :], strict=True)]
        if block and not text.startswith(_QUESTIONS):
            return ()
        return found[-1 - len(also)]

    def ahead(self, *asks: tuple[Any, ...]) -> None:
        self._also = list(asks)

    def _later(self, name: str, *given: Any) -> None:
        """Send a statement together with the next one: its answer is not needed."""
        self._pending.append(written(self._statements[name], (self.shard, *given)))

    async def _put_many(self, name: str, marks: str, rows: Sequence[Sequence[Any]]) -> int | None:
        """Insert many rows in a bulk packet; how many were added, or None if it has to be done with text."""
        if len(rows) < _MANY or self._connection is None or size(rows) > PACKET:
            return None
        if self._pending or self._lock:
            await self._run("DO 0")
        text = f"{self._statements[name][0]}({self.shard},{marks})"
        return await self._bulk.run(self._connection, text, rows, seconds=_ANSWER_SECONDS)

    async def _put(self, name: str, rows: Sequence[str]) -> None:
        """Insert rows as text, in parts that a packet can hold; the last part waits for the next statement."""
        head = self._statements[name][0]
        part: list[str] = []
        size = 0
        for row in rows:
            part.append(row)
            size += len(row)
            if size > PACKET:
                await self._run(head + ",".join(part))
                part, size = [], 0
        if part:
            self._pending.append(head + ",".join(part))


_SLOWEST_POLL_SECONDS = 1.0
_NEW = itemgetter(0, 1, 2, 3, 4, 5, 6, 11)
_SITE = itemgetter(0)
_NEW_MARKS = ",".join("?" * 8)
_IN_LIST = 900
_KEYS = 50_000
# Up to this number, single statements are cheaper than one that reads its rows from JSON.
_FEW = 8
_AGAIN = 1020
_MOMENTS = ("moment", "brief_moment")
_YOUNG_MICRO = 10_000_000
_WEAK_VARIABLES = (
    "SHOW GLOBAL VARIABLES WHERE variable_name IN"
    " ('innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', 'sync_binlog')"
)
_LARGE = ("seen", "queue", "done", "sites", "notes")
_SIZE = (
    "SELECT SUM(data_length + index_length) FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name LIKE 'gossamer\\_%'"
)
_STANDBY_COUNTS = "SHOW GLOBAL STATUS WHERE variable_name IN ('Slaves_connected', 'Rpl_semi_sync_master_clients')"


class MySqlDialect(MySqlConnection):
    """The operations of the frontier on one connection."""

    kind = "MySQL"
    always_whole = True

    async def make_tables(self) -> None:
        """Create the tables if they do not exist, under a named lock: concurrent CREATE statements would fail.

        DDL commits by itself. `gossamer_tasks` is the last object of the schema, so an attempt that was interrupted
        before it is made again; the short names after it are a convenience."""
        await self._run("SELECT GET_LOCK('gossamer', 20)")
        try:
            there = {
                row[0]
                for row in await self._run(
                    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
                    " AND table_name IN ('gossamer_tasks', 'tasks', 'inbox')"
                )
            }
            if "gossamer_tasks" in there:
                return
            # Tables of an interrupted attempt raise notes, which the driver would log.
            await self._run("SET SESSION sql_notes = 0")
            await self._make("mysql_outbox.sql")
            self.has_outbox = True
            await self._make("mysql_schema.sql")
            for short in {"tasks", "inbox"} - there:
                await self._run(f"CREATE VIEW {short} AS SELECT * FROM gossamer_{short}")  # noqa: S608
        finally:
            await self._run("SET SESSION sql_notes = 1")
            await self._run("SELECT RELEASE_LOCK('gossamer')")

    async def make_outbox(self) -> None:
        await self._run("SET SESSION sql_notes = 0")
        try:
            await self._make("mysql_outbox.sql")
        finally:
            await self._run("SET SESSION sql_notes = 1")
        self.has_outbox = True

    async def _make(self, name: str) -> None:
        for statement in schema(name).split(";\n"):
            if statement.strip():
                await self._run(statement)

    async def weaknesses(self) -> list[tuple[str, str]]:
        found = []
        rows = await self._run(_WEAK_VARIABLES)
        values = {str(name).lower(): str(value) for name, value in rows}
        if values.get("innodb_flush_log_at_trx_commit", "1") != "1":
            found.append((
                "a crash may lose the last seconds of what was acknowledged (innodb_flush_log_at_trx_commit is not 1)",
                "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
            ))  # fmt: skip
        if values.get("innodb_doublewrite", "ON").upper() in ("OFF", "0", "DETECT_ONLY"):
            found.append(
                ("a power cut may damage the database (innodb_doublewrite is off)", "turn innodb_doublewrite on")
            )
        if values.get("log_bin", "OFF").upper() in ("ON", "1") and values.get("sync_binlog", "1") == "0":
            found.append((
                "after a power cut a replica may lack what was acknowledged (sync_binlog is 0)",
                "SET GLOBAL sync_binlog = 1",
            ))  # fmt: skip
        return found

    async def time(self) -> float:
        return float((await self._run("SELECT UNIX_TIMESTAMP(NOW(6))"))[0][0])

    async def size(self) -> float:
        # Without it, the sizes are those of the last automatic analysis.
        await self._run(f"ANALYZE TABLE {', '.join(f'gossamer_{name}' for name in _LARGE)}")
        return float((await self._run(_SIZE))[0][0] or 0)

    async def standbys(self) -> int:
        # MySQL reports only semi-synchronous replicas.
        rows = await self._run(_STANDBY_COUNTS)
        counts = {str(name).lower(): int(value) for name, value in rows}
        return max(0, counts.get("slaves_connected", 0) - counts.get("rpl_semi_sync_master_clients", 0))

    async def begin(self, lock: str = "", stripe: int = 0) -> None:
        # autocommit is off: the first statement after a commit starts a transaction.
        self._forget()
        if lock == "shard":
            self._later("lock_shard")
        if lock in ("stripe", "shard"):
            self._later("lock_stripe", stripe)
        else:
            self._lock = lock

    async def commit(self, *, rings: bool = False) -> None:
        # Nobody to notify: idle workers poll.
        await self._run("COMMIT")

    async def rollback(self) -> None:
        self._forget()
        await self._run("ROLLBACK")

    async def ask(self, text: str, *given: Any) -> list[Sequence[Any]]:
        """Run a statement that is not in the .sql files."""
        return list(await self._run(written(PARTS.split(text), (None, *given))))

    async def fetch(self, name: str, *given: Any) -> list[Sequence[Any]]:
        if self._answers:
            ask, rows = self._answers.pop(0)
            if ask == (name, *given):
                return rows
        text = written(self._statements[name], (self.shard, *given))
        if name == "moment":
            for before in ("forget_moment", "set_moment", "set_now"):
                self._later(before)
        elif name == "brief_moment":
            # This statement reads the row that is the lock of the call, so it takes the lock itself.
            text, self._lock = text + LOCKS[self._lock], ""
        rows = list(await self._run(text))
        return [moment(row[0]) for row in rows if row[0] is not None] if name in _MOMENTS else rows

    async def bulk(self, name: str, rows: Sequence[Sequence[Any]], *given: Any) -> list[Sequence[Any]]:
        if not rows:
            return []
        parts, values = self._statements[name], (self.shard, *given)
        if "a" in parts[1::2]:
            text = "\nUNION ALL\n".join(written(parts, values, row=row) for row in rows)
            return list(await self._run(text))
        return list(await self._run(written(parts, values, rows=rows)))

    async def insert_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        if is_changed(rows):
            await self._put("insert_rows", whole_rows(self.shard, rows))
            return
        # Columns with defaults are left out: parsing values costs the server as much as storing them.
        # Sorted by site, neighboring rows go to the same page of the index.
        many = sorted(map(_NEW, rows), key=_SITE)
        if not await self._put_many("insert_new", _NEW_MARKS, many):
            await self._put("insert_new", new_rows(self.shard, many))

    async def write(
        self,
        counters: Sequence[int],
        *,
        ended: Sequence[int],
        given: Sequence[Sequence[Any]],
        changed: Sequence[Sequence[Any]],
        sites: Sequence[Sequence[Any]],
    ) -> None:
        if ended:
            self._later("delete_leases", ended)
        if given:
            self._pending.append(written(self._statements["insert_leases"], (self.shard,), rows=given))
        if len(changed) > _FEW:
            self._pending.append(written(self._statements["save_leases"], (self.shard,), rows=changed))
        else:
            for row in changed:
                self._later("save_lease", *row)
        if sites:
            name, numbers = "save_sites" if len(sites) > _FEW else "save_few_sites", [row[0] for row in sites]
            self._pending.append(written(self._statements[name], (self.shard, numbers), rows=sites))
        # Last: its row stays locked until the commit, and other workers of the stripe wait for it.
        self._later("count", *counters)

    async def put_seen(self, ids: Sequence[int], sites: Sequence[int]) -> tuple[set[int], list[Sequence[Any]]]:
        states = [("site_states", sites)] if sites else []
        known: set[int] = set()
        if self._many_known:
            known = {row[0] for row in await self.fetch("known", ids)}
        for first in range(0, len(ids), _KEYS):
            known |= await self._insert_seen([key for key in ids[first : first + _KEYS] if key not in known], states)
        self._many_known = len(known) > len(ids) // 2
        return known, await self.fetch(*states[0]) if states else []

    async def _insert_seen(self, keys: Sequence[int], states: Sequence[tuple[Any, ...]]) -> set[int]:
        """Insert keys; return those that existed, each of which raised a warning.

        The number of rows added must fit the number of keys in the warnings. If not (the server cut the list, or words
        the warning differently), the transaction is repeated and asks first: guessing could lose or repeat a link."""
        if not keys:
            return set()
        added = await self._put_many("insert_seen", "?", [(key,) for key in keys])
        if added is None:
            self.ahead(("duplicates",), *states)
            head = f"({self.shard},"
            await self._run(self._statements["insert_seen"][0] + ",".join([f"{head}{key})" for key in keys]))
            added = self._affected
        elif added == len(keys):
            return set()
        else:
            self.ahead(*states)
        missing = len(keys) - added
        texts = [str(row[2]) for row in await self.fetch("duplicates")]
        # The text depends on the language of the server, but the entry is always quoted as 'shard-key'.
        found = {int(match[1]) for text in texts if (match := re.search(rf"'{self.shard}-(\d+)'", text))}
        if len(found & set(keys)) != missing:
            self._many_known = True
            raise faults.OperationalError(_AGAIN, "which keys were known was not said")
        return found

    async def insert_sites(self, rows: Sequence[Sequence[Any]]) -> int:
        # If another transaction inserts the same site, the duplicate is a conflict, and the call is repeated.
        self._pending.append(written(self._statements["insert_sites"], (self.shard,), rows=rows))
        return len(rows)

    async def finish(self, rows: Sequence[Sequence[Any]], now: int) -> None:
        alike: dict[tuple[int, int], list[int]] = {}
        stretches: dict[tuple[int, ...], list[int]] = {}
        for site, place, standing, age, key, status, code in rows:
            alike.setdefault((status, code), []).append(key)
            stretches.setdefault((site, place, standing, status, code), []).append(age)
        if len(stretches) > _FEW:
            for name, given in (("keep_done", (self.shard, now)), ("drop_rows", (self.shard,))):
                self._pending.append(written(self._statements[name], given, rows=rows))
            return
        # A range over rows of the last seconds would wait for rows that other workers are inserting into it.
        where = {each: stretch(each[:3], ages, young=now - _YOUNG_MICRO) for each, ages in stretches.items()}
        for fate, keys in alike.items():
            some = " OR ".join([each for (*_, status, code), each in where.items() if (status, code) == fate])
            self._pending.append(written(self._statements["keep_alike"], (self.shard, keys, *fate, now), where=some))
        keys = [row[4] for row in rows]
        some = " OR ".join(where.values())
        self._pending.append(written(self._statements["drop_alike"], (self.shard, keys), where=some))

    async def refuse(self, rows: Sequence[Sequence[Any]], now: int) -> None:
        await self.bulk("refuse_rows", [(*row, now, 0, 0) for row in rows])

    async def close_site(self, site: int, keep: Sequence[int], status: int, now: int) -> list[Sequence[Any]]:
        found = await self.fetch("count_site", site, keep)
        if found:
            await self.fetch("keep_site", site, keep, status, now)
            await self.fetch("drop_site", site, keep)
        return found

    async def take_inbox(self, most: int) -> list[Sequence[Any]]:
        ((name,),) = await self.fetch("job_name")
        return await self.fetch("take_inbox", name, most)

    async def empty_inbox(self, entries: Sequence[int]) -> None:
        await self.fetch("empty_inbox", entries)

    async def refuse_inbox(self, entry: int, error: str) -> None:
        await self.fetch("refuse_inbox", entry, error)

    async def compact(self, before: int, last: int, most: int) -> list[int]:
        found = [row[0] for row in await self.fetch("old_done", before, last, most)]
        for first in range(0, len(found), _IN_LIST):
            await self.fetch("drop_done", found[first : first + _IN_LIST])
        return found

    async def page(self, table: str, after: Sequence[Any], most: int, *, last: bool = False) -> list[Sequence[Any]]:
        width, columns = ROWS[table]
        key, way = columns[:width], " DESC" if last else ""
        where = f" AND {beyond(key, after)}" if after else ""
        return list(
            await self._run(
                f"SELECT {', '.join(columns)} FROM gossamer_{table} FORCE INDEX (PRIMARY)"  # noqa: S608
                f" WHERE shard = {self.shard}{where} ORDER BY {', '.join(name + way for name in key)} LIMIT {int(most)}"
            )
        )

    async def put(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        _, columns = ROWS[table]
        head = f"INSERT INTO gossamer_{table} (shard, {', '.join(columns)}) VALUES "  # noqa: S608
        tail = f" ON DUPLICATE KEY UPDATE shard = gossamer_{table}.shard"
        part: list[str] = []
        size = 0
        for row in rows:
            part.append(f"({self.shard},{','.join(map(literal, row))})")
            size += len(part[-1])
            if size > PACKET:
                await self._run(head + ",".join(part) + tail)
                part, size = [], 0
        if part:
            await self._run(head + ",".join(part) + tail)

    async def drop(self, table: str, most: int) -> None:
        await self._run(f"DELETE FROM gossamer_{table} WHERE shard = {self.shard} LIMIT {int(most)}")  # noqa: S608

    async def watch(self, seen: int) -> bool:
        ((news, inbox),) = await self.fetch("news")
        return bool(inbox) or int(news or 0) > seen

    async def wait_for_news(self, round_number: int, shard: int) -> bool:
        await asyncio.sleep(min(_SLOWEST_POLL_SECONDS, 0.02 * 1.5 ** min(round_number, 20)))
        return False

    def is_conflict(self, error: BaseException) -> bool:
        return is_conflict(error)

    def is_forbidden(self, error: BaseException) -> bool:
        return is_forbidden(error)

    def is_loss(self, error: BaseException) -> bool:
        return is_loss(error)

    def explain(self, error: BaseException) -> FrontierError | None:
        return explain(error, self.server)
