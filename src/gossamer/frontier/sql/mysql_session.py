"""One connection to MariaDB or MySQL, on which statements wait for one another and travel together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from gossamer import dsn
from gossamer.errors import FrontierError
from gossamer.extras import unusable
from gossamer.frontier.sql.database import statements
from gossamer.frontier.sql.mysql_text import PARTS, is_too_old, written

try:
    import asyncmy
    from asyncmy import errors as faults
    from asyncmy.constants.CLIENT import MULTI_STATEMENTS

    from gossamer.frontier.sql.mysql_bulk import Bulk, size
    from gossamer.frontier.sql.mysql_faults import HUNG_UP, explain, is_conflict, is_forbidden, is_loss
except ImportError as missing:
    raise unusable("mysql", "the frontier in MariaDB or MySQL", missing) from missing

__all__ = ["LOCKS", "PACKET", "MySqlConnection", "explain", "faults", "is_conflict", "is_forbidden", "is_loss"]
LOCKS = {"": "", "share": " LOCK IN SHARE MODE", "whole": " FOR UPDATE"}
_SESSION = (
    "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00', innodb_lock_wait_timeout = 20, autocommit = 0,"
    " max_error_count = 65535",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
PACKET = 4_000_000
_CONNECT_SECONDS, _ANSWER_SECONDS = 15.0, 30.0
# From here on rows are cheaper in a packet of their own.
_MANY = 64
_QUESTIONS = ("SELECT", "(SELECT", "SHOW")
_READ_ONLY = 1290
# In one statement, so that both are of the same second. Only one of the two tables is there.
_STARTED = (
    "SELECT CAST(UNIX_TIMESTAMP() - variable_value AS SIGNED) FROM {}.global_status WHERE variable_name = 'Uptime'"
)
_IDENTITY = (
    "SHOW GLOBAL VARIABLES WHERE variable_name IN ('server_uid', 'server_uuid', 'hostname', 'port', 'read_only',"
    " 'super_read_only', 'innodb_read_only', 'innodb_flush_log_at_trx_commit')"
)
_OFF = ("OFF", "0", "")


class MySqlConnection:
    """What one connection has been told, and what it has answered."""

    def __init__(self, url: str) -> None:
        self.shard = 0
        self._address, self.server = dsn.mysql(url)
        self._statements = {name: PARTS.split(text) for name, text in statements("mysql.sql").items()}
        self._connection: Any = None
        self._pending: list[str] = []
        self._also: list[tuple[Any, ...]] = []
        self._answers: list[tuple[tuple[Any, ...], list[Sequence[Any]]]] = []
        """What travelled with the last statement, until it is fetched."""
        self._affected = 0
        self._lock = ""
        """What is to be locked with the next statement."""
        self._has_blocks = False
        """Whether the server takes many statements as one, and answers them at once."""
        self._bulk = Bulk()
        self._many_known = False
        """Whether most keys were known when last some were put: then it is cheaper to ask first."""
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
            # The driver is confused where the server hangs up before it has said who it is.
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
                # Lists of numbers are looked up in the index one by one, not made into a table first.
                await self._run("SET SESSION in_predicate_conversion_threshold = 0")
            else:
                await self._run("SET SESSION range_optimizer_max_mem_size = 0")
            await self.learn()
        except BaseException:
            self.abort()
            raise

    async def learn(self) -> None:
        """Ask which run of which server this is, and refuse one that only reads."""
        values = {str(name).lower(): str(value) for name, value in await self._run(_IDENTITY)}
        if any(values.get(name, "OFF") not in _OFF for name in ("read_only", "super_read_only", "innodb_read_only")):
            # When it becomes the primary, this connection stays, and nobody would notice what it lacks.
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
        """Run what is pending and then this, in one go; the rows of this."""
        connection = self._connection
        if connection is None:
            raise faults.OperationalError(2006, "the connection is closed")
        if self._lock:
            self._pending.insert(0, written(self._statements["lock_moment"], (self.shard,)) + LOCKS[self._lock])
        before, also = len(self._pending), list(self._also)
        asked = [written(self._statements[name], (self.shard, *given)) for name, *given in also]
        parts = [*self._pending, text, *asked]
        # In a block nobody says how many rows an INSERT has added.
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
        """Have a statement go with the next one, since nobody needs its answer."""
        self._pending.append(written(self._statements[name], (self.shard, *given)))

    async def _put_many(self, name: str, marks: str, rows: Sequence[Sequence[Any]]) -> int | None:
        """Run an INSERT of many rows at once, if the server can and a packet can hold them; how many were added."""
        if len(rows) < _MANY or self._connection is None or size(rows) > PACKET:
            return None
        if self._pending or self._lock:
            await self._run("DO 0")
        text = f"{self._statements[name][0]}({self.shard},{marks})"
        return await self._bulk.run(self._connection, text, rows, seconds=_ANSWER_SECONDS)

    async def _put(self, name: str, rows: Sequence[str]) -> None:
        """The same for an INSERT of many rows, in parts that a packet can hold."""
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
