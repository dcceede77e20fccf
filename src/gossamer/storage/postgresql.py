"""The PostgreSQL sink: pages and items as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gossamer import dsn
from gossamer.extras import unusable
from gossamer.storage.base import Opening
from gossamer.storage.tables import (
    COLUMNS,
    NAMES,
    NUMBER,
    PAGE,
    Batch,
    ItemTable,
    TableNames,
    TableSink,
    Verdict,
    address,
    missing_columns,
    new_columns,
    rows_of,
)

try:
    import asyncpg
    from asyncpg import exceptions as faults
except ImportError as missing:
    raise unusable("postgresql", "the sink in PostgreSQL", missing) from missing


ESCAPE = "\ufdd0"
"""Followed by a ␀, it stands for a NUL, which PostgreSQL does not store; followed by itself, for itself."""
_POSTGRES_TYPES: Mapping[str, str] = {
    "str": "text", "int": "bigint", "float": "double precision", "bool": "boolean", "json": "jsonb",
    "decimal": "numeric", "time": "timestamp with time zone", "date": "date",
}  # fmt: skip
_SENT: Mapping[str, str] = {"int": "bigint", "float": "float8", "bool": "boolean"}
"""Types in which values are sent; all others are sent as text, which the server parses."""
_KINDS = {"key": "int", "token": "int", **COLUMNS}
_POSTGRES_SESSION = (
    "SET synchronous_commit = on; SET jit = off; SET default_transaction_isolation = 'read committed';"
    " SET lock_timeout = '20s'; SET idle_in_transaction_session_timeout = '60s'; SET client_encoding = 'UTF8';"
    " SET timezone = 'UTC'"
)
_ADD = (
    'INSERT INTO {} ("key", number, item)'
    " SELECT a, b, c::jsonb FROM unnest($1::bigint[], $2::int[], $3::text[]) AS given (a, b, c)"
)
_COLUMNS_OF = (
    "SELECT column_name, data_type FROM information_schema.columns"
    " WHERE table_name = $1 AND table_schema = ANY(current_schemas(false))"
)
_ANSWER_SECONDS = 60.0
# SQLSTATE classes: connection, resources (full, too many), operator intervention, system errors.
_POSTGRES_WAIT = ("08", "53", "57", "58", "25006", "55P03", "XX000")
_POSTGRES_AGAIN = ("40001", "40P01", "23505", "42P07", "42710")


class PostgresSink:
    """One connection."""

    def __init__(self, url: str, names: TableNames, tables: Mapping[str, ItemTable]) -> None:
        self._address, self.server = dsn.postgresql(url, of="the sink")
        self._names = names
        self._tables = tables
        self._connection: asyncpg.Connection[Any] | None = None
        columns = ", ".join(f'"{name}"' for name in NAMES)
        arrays = ", ".join(f"${number}::{_POSTGRES_TYPES[kind]}[]" for number, kind in enumerate(_KINDS.values(), 1))
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in NAMES[1:])
        # A late worker's visit must not replace a newer one. xmax distinguishes updated rows from inserted ones.
        self._upsert = (
            f"INSERT INTO {names.pages} AS pages ({columns}) SELECT * FROM unnest({arrays})"
            f' ON CONFLICT ("key") DO UPDATE SET {changes} WHERE excluded.token >= pages.token'
            ' RETURNING "key", xmax <> 0'
        )

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def connect(self) -> None:
        connection = await asyncpg.connect(**self._address, timeout=10.0, command_timeout=_ANSWER_SECONDS)
        self._connection = connection
        await connection.execute(_POSTGRES_SESSION)
        pages, *lists = self._names
        for table in self._tables.values():
            await self._make(connection, table)
        columns = ", ".join(f'"{name}" {_POSTGRES_TYPES[kind]}' for name, kind in COLUMNS.items())
        if not (known := await connection.fetch(_COLUMNS_OF, pages.lower())):
            await connection.execute(
                f'CREATE TABLE {pages} ("key" bigint PRIMARY KEY, token bigint NOT NULL, {columns});'
                # A hash index, because URLs may be longer than a B-tree entry.
                f"CREATE INDEX {pages}_url ON {pages} USING hash (url)"
            )
        else:
            for name in missing_columns((row[0] for row in known), self._names, self.server):
                await connection.execute(
                    f'ALTER TABLE {pages} ADD COLUMN IF NOT EXISTS "{name}" {_POSTGRES_TYPES[COLUMNS[name]]}'
                )
        for name in lists:
            await connection.execute(
                f'CREATE TABLE IF NOT EXISTS {name} ("key" bigint, number int, item jsonb NOT NULL,'
                ' PRIMARY KEY ("key", number))'
            )

    async def store(self, batch: Batch) -> None:
        connection = self._connection
        assert connection is not None
        columns = [
            _texts(column) if _KINDS[name] in ("str", "json") else column
            for name, column in zip(NAMES, zip(*batch.rows), strict=True)
        ]
        async with connection.transaction():
            stored = await connection.fetch(self._upsert, *columns)
            was_there = [row[0] for row in stored if row[1]]
            good = {row[0] for row in stored}
            everything = len(good) == len(batch.keys)
            for name, lists in ((self._names.items, batch.items), (self._names.rejected, batch.rejected)):
                if was_there:
                    await connection.execute(f'DELETE FROM {name} WHERE "key" = ANY($1::bigint[])', was_there)
                if rows := rows_of(lists, good, all_stored=everything):
                    keys, numbers, texts = zip(*rows, strict=True)
                    await connection.execute(_ADD.format(name), keys, numbers, list(map(_json, texts)))
            for table in self._tables.values():
                if was_there:
                    await connection.execute(f'DELETE FROM {table.name} WHERE "{PAGE}" = ANY($1::bigint[])', was_there)
                if typed := rows_of(batch.typed[table.type], good, all_stored=everything):
                    await connection.execute(_add(table), *_columns(table, typed))

    async def _make(self, connection: asyncpg.Connection[Any], table: ItemTable) -> None:
        """Create the table of an item type, or add missing columns."""
        existing = await connection.fetch(_COLUMNS_OF, table.name)
        if not existing:
            columns = ", ".join(
                f"{_postgres_quoted(name)} {_POSTGRES_TYPES[kind]}" for name, kind in table.columns.items()
            )
            await connection.execute(
                f'CREATE TABLE {table.name} ("{PAGE}" bigint, "{NUMBER}" int, {columns},'
                f' PRIMARY KEY ("{PAGE}", "{NUMBER}"))'
            )
            return
        for name in new_columns({row[0]: row[1] for row in existing}, table, _POSTGRES_TYPES, self.server):
            kind = _POSTGRES_TYPES[table.columns[name]]
            await connection.execute(
                f"ALTER TABLE {table.name} ADD COLUMN IF NOT EXISTS {_postgres_quoted(name)} {kind}"
            )

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    def abort(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def verdict(self, error: Exception) -> Verdict | None:
        if isinstance(error, faults.PostgresError):
            state = str(error.sqlstate or "")
            if state in _POSTGRES_AGAIN or state[:2] == "08":
                return "again"
            return "wait" if state.startswith(_POSTGRES_WAIT) else "stop"
        if isinstance(error, OSError | TimeoutError | faults.InterfaceError | faults.InternalClientError):
            # Invalid data is an InterfaceError too, which a new connection would not fix.
            return "stop" if isinstance(error, faults.DataError | ValueError) else "again"
        return None


def open_postgresql(opening: Opening) -> TableSink:
    """Open the sink `postgresql://user@host/database`."""
    url, names, tables = address(opening, "postgresql")
    return TableSink(PostgresSink(url, names, tables), tables)


def escaped(text: str) -> str:
    """Encode NUL characters, which PostgreSQL does not store, without loss."""
    return text.replace(ESCAPE, ESCAPE + ESCAPE).replace("\0", ESCAPE + "␀") if _is_odd(text) else text


def unescaped(text: str) -> str:
    """Decode a text that `escaped` encoded."""
    return ESCAPE.join(part.replace(ESCAPE + "␀", "\0") for part in text.split(ESCAPE + ESCAPE))


def _is_odd(text: str) -> bool:
    return "\0" in text or ESCAPE in text


def _postgres_quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _add(table: ItemTable) -> str:
    """Return the statement that inserts rows of an item type, given as columns."""
    kinds = ("int", "int", *table.columns.values())
    sent = ", ".join(f"${number}::{_SENT.get(kind, 'text')}[]" for number, kind in enumerate(kinds, 1))
    read = ", ".join(f"c{number}::{_POSTGRES_TYPES[kind]}" for number, kind in enumerate(kinds))
    given = ", ".join(f"c{number}" for number in range(len(kinds)))
    names = ", ".join(map(_postgres_quoted, table.names))
    return f"INSERT INTO {table.name} ({names}) SELECT {read} FROM unnest({sent}) AS given ({given})"


def _columns(table: ItemTable, rows: Sequence[tuple[Any, ...]]) -> list[Sequence[Any]]:
    """Convert rows to columns, in types that PostgreSQL accepts."""
    kinds = ("int", "int", *table.columns.values())
    return [
        column
        if kind in _SENT
        else [value if value is None else _json(value) if kind == "json" else escaped(value) for value in column]
        for kind, column in zip(kinds, zip(*rows, strict=True), strict=True)
    ]


def _texts(column: tuple[Any, ...]) -> list[Any]:
    return [value if value is None else escaped(value) for value in column]


def _json(text: str) -> str:
    """Convert an item to the JSON that jsonb accepts."""
    if "\\u0000" not in text and ESCAPE not in text:
        return text
    return msgspec.json.encode(_without_nul(msgspec.json.decode(text))).decode()


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {escaped(name): _without_nul(item) for name, item in value.items()}
    return [_without_nul(item) for item in value] if isinstance(value, list) else value
