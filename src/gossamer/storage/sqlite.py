"""The SQLite sink, with one row per page, and its reader."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.model import PageRow, Record
from gossamer.storage import duckdb_views, query
from gossamer.storage.base import Keeps, Opening, Reader, SqlSource, page_row
from gossamer.storage.query import Cursor, GoOn, Search, TimeCursor
from gossamer.storage.tables import MORE, NUMBER, PAGE, ItemRows, ItemTable, item_rows, item_tables, new_columns

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob


FILE = "pages.db"
_BUSY_SECONDS = 30.0
_WAITS = frozenset((sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_TYPES = {"str": "TEXT", "int": "INTEGER", "float": "REAL"}
_COLUMNS = {
    field.name: _TYPES.get(getattr(field.type, "__name__", ""), "TEXT") for field in msgspec.structs.fields(PageRow)
}
# Kinds without an SQLite type get a name with text affinity that shows what the column contains.
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
# A late worker's visit must not replace a newer one.
_UPSERT = (
    f"INSERT INTO pages ({', '.join(_NAMES)}) VALUES ({', '.join('?' * len(_NAMES))}) ON CONFLICT (key) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _NAMES[1:])
    + " WHERE excluded.token >= pages.token"
)


class SqliteSink:
    """`pages`; `items` as JSON with the key of their page; `items_TYPE` for each declared item type;
    `items_rejected` for rejected items, as JSON.

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
            existing = {name for _, name, *_ in self._database.execute("PRAGMA table_info(pages)")}
            for name in _COLUMNS.keys() - existing:
                # A file of an earlier version.
                self._database.execute(f"ALTER TABLE pages ADD COLUMN {name} {_COLUMNS[name]}")
            for table in self._tables.values():
                self._make(table)
        except (sqlite3.Error, SinkError) as error:
            self._database.close()
            raise (self._translate_error(error) if isinstance(error, sqlite3.Error) else error) from error

    def _make(self, table: ItemTable) -> None:
        """Create the table of an item type, or add missing columns."""
        columns = {name: f"{_quoted(name)} {_TYPED[kind]}" for name, kind in table.columns.items()}
        self._database.execute(
            f"CREATE TABLE IF NOT EXISTS {table.name} ({PAGE} INTEGER NOT NULL, {NUMBER} INTEGER NOT NULL,"
            f" {', '.join(columns.values())}, PRIMARY KEY ({PAGE}, {NUMBER})) WITHOUT ROWID"
        )
        existing = {name: kind for _, name, kind, *_ in self._database.execute(f"PRAGMA table_info({table.name})")}
        for name in new_columns(existing, table, _TYPED, str(self._path)):
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
                    # A 304 confirms the stored row and its items.
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
                raise (self._translate_error(error) if isinstance(error, sqlite3.Error) else error) from error

    def _add(self, rows: ItemRows) -> None:
        self._database.executemany("INSERT INTO items VALUES (?, ?, ?)", rows.plain)
        for kind, typed in rows.typed.items():
            self._database.executemany(self._inserts[kind], typed)

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Do nothing: the repeated visit replaces the one that was not committed."""

    async def aclose(self) -> None:
        with self._lock:
            self._database.close()

    def _translate_error(self, error: sqlite3.Error) -> SinkError:
        waits = getattr(error, "sqlite_errorcode", 0) & 0xFF in _WAITS
        return (SinkFull if waits else SinkError)(
            f"{self._path}: {error}", hint="free disk space, or stop other writers"
        )


def open_sqlite(opening: Opening) -> SqliteSink:
    """Open the sink `sqlite`, in the job's folder, or `sqlite:/path`."""
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


_STEPS_PER_CHECK = 1_000_000
"""SQLite virtual machine steps between two checks of the clock."""
_DECLARED = {
    "INTEGER": "BIGINT", "REAL": "DOUBLE", "BOOLEAN": "BOOLEAN", "JSON_TEXT": "JSON", "TIMESTAMP_TEXT": "TIMESTAMP",
    "DATE_TEXT": "DATE",
}  # fmt: skip


def sqlite_readers(job: StoredJob) -> Iterator[Reader]:
    """Yield the reader of the file in the job's folder, or of `sqlite:/path`."""
    path = next((path for path in (job.folder / FILE, *job.targets("sqlite")) if path.exists()), None)
    if path is not None:
        yield SqliteReader(path)


class SqliteReader:
    """Reads `pages`, one row a page, and the tables of items. Each call sees the file as it was when the call began."""

    cursor: type[Cursor] = TimeCursor
    keeps: frozenset[Keeps] = frozenset(("rows", "items", "items by page", "keys"))

    def __init__(self, path: Path) -> None:
        self._path = path
        self.place = str(path)

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        with self._opened() as database:
            tables = _item_tables(database) if items else {}
            for row in database.execute("SELECT * FROM pages ORDER BY key"):
                of_page = _items_of(database, row["key"], tables) if items else ()
                yield Record(key=row["key"], token=row["token"], page=page_row(_values(row)), items=of_page)

    def rows(self, terms: Search) -> Iterator[PageRow]:
        where, values = _conditions(terms, None)
        with self._opened() as database:
            for row in database.execute(f"SELECT * FROM pages WHERE {where}", values):
                if terms.fits(found := page_row(_values(row))):
                    yield found

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        """Search in descending order of time, which reads only the first rows."""
        where, values = _conditions(terms, after if isinstance(after, TimeCursor) else None)
        found: list[PageRow] = []
        with self._opened() as database:
            database.set_progress_handler(lambda: not go_on(), _STEPS_PER_CHECK)
            try:
                rows = database.execute(
                    f"SELECT * FROM pages WHERE {where} ORDER BY fetched_at DESC, url DESC",
                    values,
                )
                for row in rows:
                    # Sites by registered domain are filtered here, which may need more rows.
                    if terms.fits(page := page_row(_values(row))):
                        found.append(page)
                    if len(found) > limit:
                        break
            except sqlite3.OperationalError:
                if go_on():
                    raise
                raise query.search_timeout() from None
        last = found[limit - 1] if len(found) > limit else None
        return found[:limit], TimeCursor(last.fetched_at, last.url) if last is not None else None

    def items(self) -> Iterator[bytes]:
        for record in self.records(items=True):
            yield from map(msgspec.json.encode, record.items)

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        """Return sources as JSON lines: DuckDB has no built-in reader for SQLite."""
        views = duckdb_views.spilled(self.records(items=True), spill)
        with self._opened() as database:
            for number, (table, kinds) in enumerate(_item_tables(database).items()):
                path = spill / f"items-{number}.jsonl"
                with path.open("wb") as file:
                    for row in database.execute(f"SELECT * FROM {table}"):
                        file.write(msgspec.json.encode(_in_utc(row, kinds)) + b"\n")
                columns = {name: _DECLARED.get(kind, "VARCHAR") for name, kind in kinds.items()}
                views[table] = [SqlSource([path], f"SELECT * FROM {duckdb_views.read_json(columns)})")]
        return views

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            uri = f"{self._path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)) as database:
                database.row_factory = sqlite3.Row
                database.execute("BEGIN")
                database.execute("SELECT key FROM pages LIMIT 1").fetchall()
                yield database
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                f"{self._path} was not written by the sink sqlite: {error}", hint="name a job with other sinks"
            ) from None


def _conditions(terms: Search, before: TimeCursor | None) -> tuple[str, list[Any]]:
    """Convert terms to SQL, as far as possible."""
    tests: list[tuple[str, tuple[Any, ...]]] = []
    if terms.url:
        tests.append(("url = ?", (terms.url,)))
    elif heads := terms.prefixes:
        either = " OR ".join("substr(url, 1, ?) = ?" for _ in heads)
        tests.append((f"({either})", tuple(value for head in heads for value in (len(head), head))))
    if terms.status is not None:
        tests.append(("status = ?", (terms.status,)))
    if terms.since is not None:
        tests.append(("fetched_at >= ?", (terms.since,)))
    if terms.until is not None:
        tests.append(("fetched_at < ?", (terms.until,)))
    if before is not None:
        tests.append(("(fetched_at, url) < (?, ?)", (before.fetched_at, before.url)))
    return " AND ".join(text for text, _ in tests) or "1", [value for _, some in tests for value in some]


def _values(row: sqlite3.Row) -> dict[str, Any]:
    return {name: row[name] for name in row.keys()}  # noqa: SIM118


def _item_tables(database: sqlite3.Connection) -> dict[str, dict[str, str]]:
    """Return the tables of item types: name in SQL -> column -> type."""
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'items_*'")
    tables = {}
    for (name,) in found.fetchall():
        kinds = {row["name"]: row["type"] for row in database.execute(f'PRAGMA table_info("{name}")')}
        if PAGE in kinds and NUMBER in kinds:
            tables[f'"{name}"'] = kinds
    return tables


def _items_of(
    database: sqlite3.Connection, key: int, tables: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, Any], ...]:
    """Return the items of a page, in order."""
    found = database.execute("SELECT number, item FROM items WHERE key = ?", (key,))
    numbered = [(number, json.loads(item)) for number, item in found]
    for name, kinds in tables.items():
        of_type = database.execute(f"SELECT * FROM {name} WHERE {PAGE} = ?", (key,))
        numbered += [(row[NUMBER], _typed_item(row, kinds)) for row in of_type]
    return tuple(item for _, item in sorted(numbered, key=lambda one: one[0]))


def _typed_item(row: sqlite3.Row, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Convert a row to an item; fields that the item did not have are null."""
    item: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = row[name]
        if value is not None and kind == "JSON_TEXT":
            value = json.loads(value)
        elif value is not None and kind == "BOOLEAN":
            value = bool(value)
        if name == MORE:
            item.update(value or {})
        elif name not in (PAGE, NUMBER):
            item[name] = value
    return item


def _in_utc(row: sqlite3.Row, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return a row of an item type with its times in UTC without a zone, as in all SQL views."""
    values = {NUMBER: row[NUMBER], PAGE: row[PAGE], MORE: row[MORE], **_typed_item(row, kinds)}
    for name, kind in kinds.items():
        if kind == "TIMESTAMP_TEXT" and values[name]:
            when = datetime.fromisoformat(values[name])
            if when.tzinfo is not None:
                values[name] = when.astimezone(UTC).replace(tzinfo=None).isoformat()
    return values
