"""The MariaDB and MySQL sink: pages and items as tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gossamer import dsn
from gossamer.errors import SinkError
from gossamer.extras import unusable
from gossamer.storage.base import Opening
from gossamer.storage.tables import (
    COLUMNS,
    KINDS,
    NAMES,
    NUMBER,
    PAGE,
    Batch,
    ItemTable,
    TableNames,
    TableSink,
    Verdict,
    address,
    in_parts,
    missing_columns,
    new_columns,
    rows_of,
)

try:
    import asyncmy
    from asyncmy import errors as faults
except ImportError as missing:
    raise unusable("mysql", "the sink in MariaDB or MySQL", missing) from missing


_MYSQL_TYPES: Mapping[str, str] = {
    "str": "LONGTEXT", "int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "json": "LONGTEXT",
    "decimal": "DECIMAL(65,30)", "time": "DATETIME(6)", "date": "DATE",
}  # fmt: skip
_MYSQL_SESSION = (
    "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = 20, autocommit = 0",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
_TABLE = "ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin"
_ANSWER_SECONDS = 60.0
_MYSQL_AGAIN = {
    0, 1020, 1047, 1050, 1053, 1060, 1062, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1205, 1213, 1927, 2006,
    2013, 2055, 3572, 4031,
}  # fmt: skip
_MYSQL_WAIT = {
    3, 14, 1021, 1026, 1028, 1030, 1031, 1037, 1038, 1040, 1041, 1042, 1114, 1129, 1203, 1226, 1290, 1317, 1836, 1969,
    2003, 3024,
}  # fmt: skip


class MySqlSink:
    """One connection."""

    def __init__(self, url: str, names: TableNames, tables: Mapping[str, ItemTable]) -> None:
        self._address, self.server = dsn.mysql(url, of="the sink")
        self._names = names
        self._tables = tables
        self._connection: Any = None
        self._packet_bytes = 0
        columns = ", ".join(f"`{name}`" for name in NAMES)
        # A late worker's visit must not replace a newer one. The token is last: assignments run in order.
        changes = ", ".join(f"`{name}` = IF(VALUES(token) >= token, VALUES(`{name}`), `{name}`)" for name in COLUMNS)
        self._insert = f"INSERT INTO {names.pages} ({columns}) VALUES "
        self._update = f" ON DUPLICATE KEY UPDATE {changes}, token = GREATEST(token, VALUES(token))"

    @property
    def is_open(self) -> bool:
        return self._connection is not None and bool(self._connection.connected)

    async def connect(self) -> None:
        self._connection = await asyncio.wait_for(
            asyncmy.connect(**self._address, charset="utf8mb4", connect_timeout=10), 15.0
        )
        for statement in _MYSQL_SESSION:
            await self._run(statement)
        self._packet_bytes = int((await self._run("SELECT @@max_allowed_packet"))[0][0])
        pages, *lists = self._names
        existing = await self._run(
            "SELECT table_name, column_name FROM information_schema.columns"
            f" WHERE table_schema = DATABASE() AND table_name IN ({', '.join(map(_literal, self._names))})"
        )
        known = [column for table, column in existing if table.lower() == pages.lower()]
        if known:
            for name in missing_columns(known, self._names, self.server):
                await self._run(f"ALTER TABLE {pages} ADD COLUMN `{name}` {_MYSQL_TYPES[COLUMNS[name]]}")
        else:
            columns = ", ".join(f"`{name}` {_MYSQL_TYPES[kind]}" for name, kind in COLUMNS.items())
            await self._run(
                f"CREATE TABLE {pages} (`key` BIGINT PRIMARY KEY, token BIGINT NOT NULL, {columns},"
                f" INDEX by_url (url(190))) {_TABLE}"
            )
        for typed in self._tables.values():
            await self._make(typed)
        for name in lists:
            if not any(table.lower() == name.lower() for table, _ in existing):
                await self._run(
                    f"CREATE TABLE {name} (`key` BIGINT, number INT, item LONGTEXT NOT NULL"
                    f" CHECK (JSON_VALID(item)), PRIMARY KEY (`key`, number)) {_TABLE}"
                )

    async def store(self, batch: Batch) -> None:
        await self._put([_row(row) for row in batch.rows], self._insert, self._update)
        keys = ",".join(map(str, batch.keys))
        existing = dict(await self._run(f"SELECT `key`, token FROM {self._names.pages} WHERE `key` IN ({keys})"))
        good = {key for key, token in zip(batch.keys, batch.tokens, strict=True) if existing.get(key) == token}
        stored = ",".join(map(str, sorted(good)))
        everything = len(good) == len(batch.keys)
        for name, lists in ((self._names.items, batch.items), (self._names.rejected, batch.rejected)):
            if good:
                await self._run(f"DELETE FROM {name} WHERE `key` IN ({stored})")
            rows = rows_of(lists, good, all_stored=everything)
            await self._put(list(map(_row, rows)), f"INSERT INTO {name} VALUES ", "")
        for table in self._tables.values():
            if good:
                await self._run(f"DELETE FROM {table.name} WHERE `{PAGE}` IN ({stored})")
            typed = rows_of(batch.typed[table.type], good, all_stored=everything)
            head = f"INSERT INTO {table.name} ({', '.join(map(_mysql_quoted, table.names))}) VALUES "
            await self._put([_typed_row(row, table) for row in typed], head, "")
        await self._run("COMMIT")

    async def _make(self, table: ItemTable) -> None:
        """Create the table of an item type, or add missing columns. A column's comment is its kind."""
        existing = await self._run(
            "SELECT column_name, column_comment FROM information_schema.columns"
            f" WHERE table_schema = DATABASE() AND table_name = {_literal(table.name)}"
        )
        columns = {
            name: f"{_mysql_quoted(name)} {_MYSQL_TYPES[kind]} COMMENT '{kind}'" for name, kind in table.columns.items()
        }
        if not existing:
            await self._run(
                f"CREATE TABLE {table.name} (`{PAGE}` BIGINT, `{NUMBER}` INT, {', '.join(columns.values())},"
                f" PRIMARY KEY (`{PAGE}`, `{NUMBER}`)) {_TABLE}"
            )
            return
        for name in new_columns(dict(existing), table, {kind: kind for kind in KINDS}, self.server):
            await self._run(f"ALTER TABLE {table.name} ADD COLUMN {columns[name]}")

    async def _put(self, rows: Sequence[str], head: str, tail: str) -> None:
        limit = self._packet_bytes - 1000
        for row in rows:
            # Checked here, because the server would only close the connection.
            if len(row) * 4 > limit and len(row.encode()) + len(head) + len(tail) > limit:
                raise SinkError(
                    f"{self.server}: a row of {len(row):,} characters is longer than its max_allowed_packet",
                    hint="raise max_allowed_packet on the server",
                )
        for statement in in_parts(rows, head, tail, most_bytes=min(1_000_000, limit // 4)):
            await self._run(statement)

    async def _run(self, text: str) -> Sequence[Any]:
        async with asyncio.timeout(_ANSWER_SECONDS), self._connection.cursor() as cursor:
            await cursor.execute(text)
            return list(await cursor.fetchall()) if cursor.description else []

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.ensure_closed()

    def abort(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def verdict(self, error: Exception) -> Verdict | None:
        if isinstance(error, faults.MySQLError):
            number = error.args[0] if error.args and isinstance(error.args[0], int) else -1
            if number in _MYSQL_AGAIN or isinstance(error, faults.InterfaceError):
                return "again"
            return "wait" if number in _MYSQL_WAIT else "stop"
        return "again" if isinstance(error, OSError | TimeoutError | EOFError) else None


def open_mysql(opening: Opening) -> TableSink:
    """Open the sink `mysql://user@host/database`."""
    url, names, tables = address(opening, "mysql")
    return TableSink(MySqlSink(url, names, tables), tables)


def _row(values: Iterable[Any]) -> str:
    return "(" + ",".join(map(_literal, values)) + ")"


def _mysql_quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _typed_row(row: Sequence[Any], table: ItemTable) -> str:
    kinds = ("int", "int", *table.columns.values())
    return _row(_utc(value) if kind == "time" and value else value for kind, value in zip(kinds, row, strict=True))


def _utc(text: str) -> str:
    """Convert a time to the column's form: UTC without a zone."""
    when = datetime.fromisoformat(text)
    return (when.astimezone(UTC) if when.tzinfo is not None else when).replace(tzinfo=None).isoformat(" ")


def _literal(value: Any) -> str:
    if isinstance(value, str):
        # Quoted for the session's sql_mode and utf8mb4, where no other character is special.
        return "'" + value.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0") + "'"
    if value is None:
        return "NULL"
    return str(int(value)) if isinstance(value, int) else repr(float(value))
