"""Pages and items as tables of a SQLite file: one row a page, of its last visit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gossamer.errors import SinkError, SinkFull
from gossamer.model import PageRow, Record
from gossamer.sink.base import Opening
from gossamer.sink.typed import NUMBER, PAGE, ItemRows, ItemTable, item_rows, item_tables, new_columns

FILE = "pages.db"
_BUSY_SECONDS = 30.0
_WAITS = frozenset((sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_TYPES = {"str": "TEXT", "int": "INTEGER", "float": "REAL"}
_COLUMNS = {
    field.name: _TYPES.get(getattr(field.type, "__name__", ""), "TEXT") for field in msgspec.structs.fields(PageRow)
}
# What has no type of its own here has a name that SQLite takes for text, and that says what is in it.
_TYPED = {
    "str": "TEXT", "int": "INTEGER", "float": "REAL", "bool": "BOOLEAN", "json": "JSON_TEXT",
    "decimal": "DECIMAL_TEXT", "time": "TIMESTAMP_TEXT", "date": "DATE_TEXT",
}  # fmt: skip
_NAMES = ("key", "token", *_COLUMNS)
_TABLES = f"""
CREATE TABLE IF NOT EXISTS pages (
    key INTEGER PRIMARY KEY, token INTEGER NOT NULL, {", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())}
);
CREATE TABLE IF NOT EXISTS items (
    key INTEGER NOT NULL, number INTEGER NOT NULL, item TEXT NOT NULL, PRIMARY KEY (key, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items_rejected (
    key INTEGER NOT NULL, number INTEGER NOT NULL, item TEXT NOT NULL, PRIMARY KEY (key, number)
) WITHOUT ROWID;
"""
# A late worker's visit does not replace a newer one.
_UPSERT = (
    f"INSERT INTO pages ({', '.join(_NAMES)}) VALUES ({', '.join('?' * len(_NAMES))}) ON CONFLICT (key) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _NAMES[1:])
    + " WHERE excluded.token >= pages.token"
)


class SqliteSink:
    """`pages`; `items` as JSON with the key of their page; `items_TYPE`, those of a type that the job declares;
    `items_rejected`, what was kept aside, as JSON.

    Workers of one machine may share the file."""

    def __init__(self, path: Path, types: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._path = path
        self._tables = item_tables(types or {}, "items")
        self._lists = {"items": "key", "items_rejected": "key", **{table.name: PAGE for table in self._tables.values()}}
        self._inserts = {kind: _insert(table) for kind, table in self._tables.items()}
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_TABLES)
            there = {name for _, name, *_ in self._database.execute("PRAGMA table_info(pages)")}
            for name in _COLUMNS.keys() - there:
                # A file of an earlier version.
                self._database.execute(f"ALTER TABLE pages ADD COLUMN {name} {_COLUMNS[name]}")
            for table in self._tables.values():
                self._make(table)
        except (sqlite3.Error, SinkError) as error:
            self._database.close()
            raise (self._in_words(error) if isinstance(error, sqlite3.Error) else error) from error

    def _make(self, table: ItemTable) -> None:
        """Make the table of a type of items, or add what it has got since."""
        columns = {name: f"{_quoted(name)} {_TYPED[kind]}" for name, kind in table.columns.items()}
        self._database.execute(
            f"CREATE TABLE IF NOT EXISTS {table.name} ({PAGE} INTEGER NOT NULL, {NUMBER} INTEGER NOT NULL,"
            f" {', '.join(columns.values())}, PRIMARY KEY ({PAGE}, {NUMBER})) WITHOUT ROWID"
        )
        there = {name: kind for _, name, kind, *_ in self._database.execute(f"PRAGMA table_info({table.name})")}
        for name in new_columns(there, table, _TYPED, str(self._path)):
            self._database.execute(f"ALTER TABLE {table.name} ADD COLUMN {columns[name]}")

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        await asyncio.get_running_loop().run_in_executor(None, self._write, records)
        return {}

    def _write(self, records: Sequence[Record]) -> None:
        run = self._database.execute
        with self._lock:
            try:
                run("BEGIN IMMEDIATE")
                for record in records:
                    # A 304 says that the row and the items that are there still hold.
                    if record.page.status != 304 and run(_UPSERT, _row(record)).rowcount:
                        for name, key in self._lists.items():
                            run(f"DELETE FROM {name} WHERE {key} = ?", (record.key,))
                        if record.items:
                            self._add(item_rows((record,), self._tables))
                        for number, one in enumerate(record.rejected):
                            run("INSERT INTO items_rejected VALUES (?, ?, ?)", (record.key, number, _json(one)))
                run("COMMIT")
            except (sqlite3.Error, SinkError) as error:
                if self._database.in_transaction:
                    run("ROLLBACK")
                raise (self._in_words(error) if isinstance(error, sqlite3.Error) else error) from error

    def _add(self, rows: ItemRows) -> None:
        self._database.executemany("INSERT INTO items VALUES (?, ?, ?)", rows.plain)
        for kind, typed in rows.typed.items():
            self._database.executemany(self._inserts[kind], typed)

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Nothing to do: a visit that comes again takes the place of the one that did not count."""

    async def aclose(self) -> None:
        with self._lock:
            self._database.close()

    def _in_words(self, error: sqlite3.Error) -> SinkError:
        waits = getattr(error, "sqlite_errorcode", 0) & 0xFF in _WAITS
        return (SinkFull if waits else SinkError)(f"{self._path}: {error}", hint="is there space, and nobody locks it?")


def open_sqlite(opening: Opening) -> SqliteSink:
    """The sink named `sqlite`, in the job's folder, or `sqlite:/path`."""
    return SqliteSink(Path(opening.target) if opening.target else opening.folder / FILE, opening.types)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _insert(table: ItemTable) -> str:
    names = ", ".join(map(_quoted, table.names))
    return f"INSERT INTO {table.name} ({names}) VALUES ({', '.join('?' * len(table.names))})"


def _row(record: Record) -> tuple[object, ...]:
    values = (getattr(record.page, name) for name in _COLUMNS)
    return (record.key, record.token, *(None if value is msgspec.UNSET else value for value in values))
