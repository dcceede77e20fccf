"""Reads the tables of the sinks postgresql and mysql: pages, and items with their pages.

Readers block, but the drivers are asynchronous. So each call runs an event loop in its own thread, and one connection
with one read-only transaction: it sees the tables as they were when it began, whatever workers write meanwhile. Rows
are fetched in batches in the order of the key, so memory is bounded. No connection is made before the first row is
read: listing a job's data connects to no server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as Late
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from gossamer import dsn
from gossamer.errors import GossamerError, NotKept, SinkError
from gossamer.extras import unusable
from gossamer.model import PageRow, Record
from gossamer.settings import Settings
from gossamer.storage import duckdb_views, query
from gossamer.storage.base import Keeps, Opening, Reader, SqlSource, page_row
from gossamer.storage.query import Cursor, GoOn, Search, TimeCursor
from gossamer.storage.registry import parted
from gossamer.storage.tables import COLUMNS, MORE, NUMBER, PAGE, TableNames, address, first_line

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob

T = TypeVar("T")
_BATCH = 500
"""Rows in one batch. The text of a page may be long."""
_ALL_KEYS = -(1 << 63)
_READ_SECONDS = 600.0
_POLL_SECONDS = 0.2
_SQL_TYPES = {
    "int": "BIGINT",
    "float": "DOUBLE",
    "bool": "BOOLEAN",
    "json": "JSON",
    "time": "TIMESTAMP",
    "date": "DATE",
}


def table_readers(job: StoredJob) -> Iterator[Reader]:
    """Yield a reader for each server address among the job's sinks."""
    for name in job.sinks:
        kind, target = parted(name)
        if (server := _SERVERS.get(kind)) is not None:
            opening = Opening(target=target, folder=job.folder, settings=Settings())
            url, names, _ = address(opening, server.scheme)
            yield TablesReader(server(url), names)


class _Server(Protocol):
    """A connection to one kind of server, in the event loop of a call."""

    name: str
    """The server's address, without a password."""

    async def connect(self) -> Any:
        """Connect, and begin a read-only transaction."""
        ...

    async def fetch(self, connection: Any, statement: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        """Fetch rows; each `?` in the statement stands for a value, names are in double quotes."""
        ...

    async def close(self, connection: Any) -> None: ...

    def is_missing(self, error: Exception) -> bool:
        """Whether the error means that a table does not exist."""
        ...

    def text(self, text: str) -> str:
        """Decode a stored text."""
        ...

    def stored(self, text: str) -> str:
        """Encode a text as it is stored."""
        ...

    columns: str
    """The statement that lists table, column, and kind of the tables with a name prefix."""


class _Typed(NamedTuple):
    """The table of a declared item type."""

    name: str
    view: str
    kinds: Mapping[str, str]


class _Snapshot:
    """One transaction, for use from a blocking thread."""

    def __init__(self, server: _Server, run: Any, connection: Any) -> None:
        self.server = server
        self._run = run
        self._connection = connection

    def ask(self, statement: str, *values: Any, go_on: GoOn | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._run(self.server.fetch(self._connection, statement, values), go_on)
        return found

    def parts(self, table: str, where: str, values: Sequence[Any]) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of a table of pages in batches, ordered by key."""
        last = _ALL_KEYS
        while True:
            statement = f'SELECT * FROM {table} WHERE "key" > ? AND {where} ORDER BY "key" LIMIT {_BATCH}'
            rows = self.ask(statement, last, *values)
            if rows:
                yield rows
                last = rows[-1]["key"]
            if len(rows) < _BATCH:
                return


class TablesReader:
    """Reads `pages`, one row a page, and the tables of items."""

    cursor: type[Cursor] = TimeCursor
    keeps: frozenset[Keeps] = frozenset(("rows", "items", "items by page", "keys"))

    def __init__(self, server: _Server, names: TableNames) -> None:
        self._server = server
        self._names = names
        self.place = server.name

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        with self._opened() as snapshot:
            typed = self._typed(snapshot) if items else []
            for rows in snapshot.parts(self._names.pages, "1 = 1", ()):
                of_page = self._items(snapshot, typed, rows[0]["key"], rows[-1]["key"]) if items else {}
                for row in rows:
                    found = tuple(of_page.get(row["key"], ()))
                    yield Record(key=row["key"], token=row["token"], page=self._page(row), items=found)

    def rows(self, terms: Search) -> Iterator[PageRow]:
        where, values = self._conditions(terms, None)
        with self._opened() as snapshot:
            for rows in snapshot.parts(self._names.pages, where, values):
                yield from filter(terms.fits, map(self._page, rows))

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        """Search in the server's order by time; terms that SQL cannot express are filtered here."""
        before = after if isinstance(after, TimeCursor) else None
        found: list[PageRow] = []
        with self._opened() as snapshot:
            while len(found) <= limit:
                if not go_on():
                    raise query.search_timeout()
                where, values = self._conditions(terms, before)
                statement = (
                    f"SELECT * FROM {self._names.pages} WHERE {where} ORDER BY fetched_at DESC, url DESC LIMIT {_BATCH}"
                )
                rows = [self._page(row) for row in snapshot.ask(statement, *values, go_on=go_on)]
                found += filter(terms.fits, rows)
                if len(rows) < _BATCH:
                    break
                before = TimeCursor(rows[-1].fetched_at, rows[-1].url)
        last = found[limit - 1] if len(found) > limit else None
        return found[:limit], TimeCursor(last.fetched_at, last.url) if last is not None else None

    def items(self) -> Iterator[bytes]:
        for record in self.records(items=True):
            yield from map(msgspec.json.encode, record.items)

    def rejected(self) -> Iterator[bytes]:
        """Yield rejected items, in the order of their pages."""
        with self._opened() as snapshot:
            for row in self._numbered(snapshot, self._names.rejected, ("key", "number")):
                yield msgspec.json.encode(self._json(row["item"]))

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        """Return sources as JSON lines: DuckDB has no built-in reader for these servers."""
        views = duckdb_views.spilled(self.records(items=True), spill)
        with self._opened() as snapshot:
            for number, table in enumerate(self._typed(snapshot)):
                path = spill / f"items-{number}.jsonl"
                with path.open("wb") as file:
                    for row in self._numbered(snapshot, table.name, (PAGE, NUMBER)):
                        values = {name: self._value(kind, row[name]) for name, kind in table.kinds.items()}
                        file.write(msgspec.json.encode(_without_zone(values, table.kinds)) + b"\n")
                columns = {name: _SQL_TYPES.get(kind, "VARCHAR") for name, kind in table.kinds.items()}
                views[table.view] = [SqlSource([path], f"SELECT * FROM {duckdb_views.read_json(columns)})")]
        return views

    def _page(self, row: Mapping[str, Any]) -> PageRow:
        kept = {name: self._value(COLUMNS[name], value) for name, value in row.items() if name in COLUMNS}
        return page_row(kept)

    def _value(self, kind: str, value: Any) -> Any:
        """Convert a stored value to the one that the sink received."""
        if value is None:
            return None
        if kind == "json":
            return self._json(value)
        if kind == "bool":
            return bool(value)
        if isinstance(value, datetime):
            return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).isoformat()
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, Decimal):
            return _plain(value)
        return self._server.text(value) if isinstance(value, str) else value

    def _json(self, text: str) -> Any:
        return self._as_given(msgspec.json.decode(text))

    def _as_given(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._server.text(value)
        if isinstance(value, dict):
            return {self._server.text(name): self._as_given(one) for name, one in value.items()}
        return [self._as_given(one) for one in value] if isinstance(value, list) else value

    def _items(
        self, snapshot: _Snapshot, typed: Sequence[_Typed], first: int, last: int
    ) -> dict[int, list[dict[str, Any]]]:
        """Return the items of the pages between two keys, in order."""
        found: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        between = f'SELECT * FROM {self._names.items} WHERE "key" BETWEEN ? AND ?'
        for row in snapshot.ask(between, first, last):
            found.setdefault(row["key"], []).append((row["number"], self._json(row["item"])))
        for table in typed:
            for row in snapshot.ask(f'SELECT * FROM {table.name} WHERE "{PAGE}" BETWEEN ? AND ?', first, last):
                item = {
                    name: self._value(kind, row[name])
                    for name, kind in table.kinds.items()
                    if name not in (PAGE, NUMBER, MORE)
                }
                more = self._value("json", row[MORE]) or {}
                found.setdefault(row[PAGE], []).append((row[NUMBER], {**item, **more}))
        return {key: [item for _, item in sorted(some, key=lambda one: one[0])] for key, some in found.items()}

    def _numbered(self, snapshot: _Snapshot, table: str, order: tuple[str, str]) -> Iterator[dict[str, Any]]:
        """Yield all rows of a table of items, ordered by page and number."""
        page, number = order
        last = (_ALL_KEYS, 0)
        while True:
            rows = snapshot.ask(
                f'SELECT * FROM {table} WHERE "{page}" > ? OR ("{page}" = ? AND "{number}" > ?)'
                f' ORDER BY "{page}", "{number}" LIMIT {_BATCH}',
                *(last[0], *last),
            )
            yield from rows
            if len(rows) < _BATCH:
                return
            last = (rows[-1][page], rows[-1][number])

    def _typed(self, snapshot: _Snapshot) -> list[_Typed]:
        """Return the tables of item types."""
        head = f"{self._names.items}_".lower()
        found: dict[str, dict[str, str]] = {}
        for row in snapshot.ask(self._server.columns, len(head), head):
            found.setdefault(row["t"], {})[row["c"]] = row["k"]
        return [
            _Typed(name, f'"items_{name[len(head) :]}"', {PAGE: "int", NUMBER: "int", **kinds})
            for name, kinds in sorted(found.items())
            if PAGE in kinds and NUMBER in kinds
        ]

    def _conditions(self, terms: Search, before: TimeCursor | None) -> tuple[str, list[Any]]:
        """Convert terms to SQL, as far as possible."""
        text = self._server.stored
        tests: list[tuple[str, tuple[Any, ...]]] = []
        if terms.url:
            tests.append(("url = ?", (text(terms.url),)))
        elif heads := [text(head) for head in terms.prefixes]:
            either = " OR ".join("left(url, ?) = ?" for _ in heads)
            tests.append((f"({either})", tuple(value for head in heads for value in (len(head), head))))
        if terms.status is not None:
            tests.append(("status = ?", (terms.status,)))
        if terms.since is not None:
            tests.append(("fetched_at >= ?", (float(terms.since),)))
        if terms.until is not None:
            tests.append(("fetched_at < ?", (float(terms.until),)))
        if before is not None:
            at = float(before.fetched_at)
            tests.append(("(fetched_at < ? OR (fetched_at = ? AND url < ?))", (at, at, text(before.url))))
        return " AND ".join(test for test, _ in tests) or "1 = 1", [value for _, some in tests for value in some]

    @contextmanager
    def _opened(self) -> Iterator[_Snapshot]:
        with _loop() as run:
            try:
                connection = run(self._server.connect())
                try:
                    yield _Snapshot(self._server, run, connection)
                finally:
                    with suppress(Exception):
                        run(self._server.close(connection))
            except GossamerError:
                raise
            except Late:
                raise SinkError(f"{self.place}: query timeout", hint=_READ_HINT) from None
            except Exception as error:
                if self._server.is_missing(error):
                    raise NotKept(
                        f"{self.place} has no table {self._names.pages}", hint="has the crawl stored a page yet?"
                    ) from None
                if isinstance(error, _faults(self._server)):
                    raise SinkError(f"{self.place}: {first_line(error)}", hint=_READ_HINT) from error
                raise


class _PostgreSQL:
    scheme = "postgresql"
    columns = (
        "SELECT table_name AS t, column_name AS c, CASE data_type WHEN 'bigint' THEN 'int' WHEN 'boolean' THEN 'bool'"
        " WHEN 'double precision' THEN 'float' WHEN 'jsonb' THEN 'json' WHEN 'numeric' THEN 'decimal'"
        " WHEN 'timestamp with time zone' THEN 'time' WHEN 'date' THEN 'date' ELSE 'str' END AS k"
        " FROM information_schema.columns WHERE table_schema = ANY(current_schemas(false))"
        " AND left(table_name, ?) = ? ORDER BY table_name, ordinal_position"
    )

    def __init__(self, url: str) -> None:
        self._address, self.name = dsn.postgresql(url, of="the sink")

    async def connect(self) -> Any:
        try:
            import asyncpg
        except ImportError as missing:
            raise unusable("postgresql", "reading from PostgreSQL", missing) from missing
        connection = await asyncpg.connect(**self._address, timeout=10.0, command_timeout=_READ_SECONDS)
        await connection.execute("SET timezone = 'UTC'; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return connection

    async def fetch(self, connection: Any, statement: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        first, *rest = statement.split("?")
        numbered = first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))
        return [dict(row) for row in await connection.fetch(numbered, *values)]

    async def close(self, connection: Any) -> None:
        await connection.close(timeout=2.0)

    def is_missing(self, error: Exception) -> bool:
        return getattr(error, "sqlstate", "") == "42P01"

    def text(self, text: str) -> str:
        from gossamer.storage.postgresql import unescaped

        return unescaped(text)

    def stored(self, text: str) -> str:
        from gossamer.storage.postgresql import escaped

        return escaped(text)


class _MySQL:
    scheme = "mysql"
    columns = (
        "SELECT table_name AS t, column_name AS c, column_comment AS k FROM information_schema.columns"
        " WHERE table_schema = DATABASE() AND left(lower(table_name), ?) = ? ORDER BY table_name, ordinal_position"
    )

    def __init__(self, url: str) -> None:
        self._address, self.name = dsn.mysql(url, of="the sink")

    async def connect(self) -> Any:
        try:
            import asyncmy
        except ImportError as missing:
            raise unusable("mysql", "reading from MariaDB or MySQL", missing) from missing
        connection = await asyncio.wait_for(
            asyncmy.connect(**self._address, charset="utf8mb4", connect_timeout=10), 15.0
        )
        for statement in (
            "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
            "SET SESSION sql_mode = 'ANSI_QUOTES'",
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        ):
            await self.fetch(connection, statement, ())
        return connection

    async def fetch(self, connection: Any, statement: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        from asyncmy.cursors import DictCursor

        async with asyncio.timeout(_READ_SECONDS), connection.cursor(cursor=DictCursor) as cursor:
            await cursor.execute(statement.replace("?", "%s"), tuple(values) or None)
            return list(await cursor.fetchall()) if cursor.description else []

    async def close(self, connection: Any) -> None:
        await asyncio.wait_for(connection.ensure_closed(), 2.0)

    def is_missing(self, error: Exception) -> bool:
        return type(error).__module__.startswith("asyncmy") and error.args[:1] == (1146,)

    def text(self, text: str) -> str:
        return text

    def stored(self, text: str) -> str:
        return text


_SERVERS: Mapping[str, type[_PostgreSQL] | type[_MySQL]] = {
    "postgresql": _PostgreSQL,
    "postgres": _PostgreSQL,
    "mysql": _MySQL,
    "mariadb": _MySQL,
}
"""By the format names of the registry."""
_READ_HINT = "is the server up, and does this user have read permission?"


def _faults(server: _Server) -> tuple[type[Exception], ...]:
    """Return the exception types of a server's driver and connection."""
    found: tuple[type[Exception], ...] = (OSError, TimeoutError, EOFError)
    if isinstance(server, _PostgreSQL):
        import asyncpg

        return (*found, asyncpg.PostgresError, asyncpg.InterfaceError)
    from asyncmy.errors import MySQLError

    return (*found, MySQLError)


@contextmanager
def _loop() -> Iterator[Any]:
    """Run an event loop in a thread; yield a function that runs a coroutine there and waits for it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gossamer-tables", daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, T], go_on: GoOn | None = None) -> T:
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            while True:
                try:
                    return future.result(_POLL_SECONDS if go_on is not None else None)
                except Late:
                    if future.done():
                        raise
                    if go_on is not None and not go_on():
                        raise query.search_timeout() from None
        finally:
            future.cancel()

    try:
        yield run
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _plain(value: Decimal) -> str:
    """Format a decimal without the zeros that MySQL pads it with."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if len(text.partition(".")[2]) == 30 else text


def _without_zone(values: dict[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Convert times to UTC without a zone, as in all SQL views."""
    return {
        name: value.removesuffix("+00:00") if kinds[name] == "time" and value else value
        for name, value in values.items()
    }
