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

FILE = "pages.db"
_BUSY_SECONDS = 30.0
_WAITS = frozenset((sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_TYPES = {"str": "TEXT", "int": "INTEGER", "float": "REAL"}
_COLUMNS = {
    field.name: _TYPES.get(getattr(field.type, "__name__", ""), "TEXT") for field in msgspec.structs.fields(PageRow)
}
_NAMES = ("key", "token", *_COLUMNS)
_TABLES = f"""
CREATE TABLE IF NOT EXISTS pages (
    key INTEGER PRIMARY KEY, token INTEGER NOT NULL, {", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())}
);
CREATE TABLE IF NOT EXISTS items (
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
    """`pages`, and `items` as JSON with the key of their page. Workers of one machine may share the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
        except sqlite3.Error as error:
            self._database.close()
            raise self._in_words(error) from error

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
                        run("DELETE FROM items WHERE key = ?", (record.key,))
                        for number, item in enumerate(record.items):
                            text = msgspec.json.encode(item).decode()
                            run("INSERT INTO items VALUES (?, ?, ?)", (record.key, number, text))
                run("COMMIT")
            except sqlite3.Error as error:
                if self._database.in_transaction:
                    run("ROLLBACK")
                raise self._in_words(error) from error

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
    return SqliteSink(Path(opening.target) if opening.target else opening.folder / FILE)


def _row(record: Record) -> tuple[object, ...]:
    values = (getattr(record.page, name) for name in _COLUMNS)
    return (record.key, record.token, *(None if value is msgspec.UNSET else value for value in values))
