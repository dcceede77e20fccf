"""Tables on a database server: columns, typed item tables, and the sink that `postgresql` and `mysql` share.

The sink turns a batch of records into rows and commits them in one transaction. The table `pages` has one row per page,
keyed by the page's key. Items are in `items`, or in one table per declared type.

Invariants: a row is replaced only by a visit with an equal or higher token, so a late worker changes nothing; a page
and its items change in the same transaction; columns are added, and never changed or dropped.

Failure cases: an error means one of three verdicts. `again`: a deadlock or conflict, retried at once. `wait`: the
server is down, full, or busy, and the crawl waits (SinkFull). `stop`: the data or the tables are wrong, and the job
ends (SinkError). A call that fails has committed nothing or everything; repeating it gives the same rows."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args
from urllib.parse import parse_qsl, urlencode

import msgspec

from gossamer import dsn
from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.extras import unusable
from gossamer.model import PageRow, Record
from gossamer.settings import expand
from gossamer.storage.base import Opening

PAGE, NUMBER, MORE = "_page", "_number", "_more"
"""Key of the page, index of the item on the page, and fields that the type does not have, as JSON."""
KINDS = ("str", "int", "float", "bool", "decimal", "time", "date", "json")
_LONGEST = 60
_encode = msgspec.json.Encoder().encode
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class ItemTable(NamedTuple):
    """The table of one item type."""

    type: str
    name: str
    columns: Mapping[str, str]
    """Field -> kind; `MORE` is last."""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, in the order of a row's values."""
        return (PAGE, NUMBER, *self.columns)


class ItemRows(NamedTuple):
    """Item rows of some pages: key, number, and JSON of items without a type; typed rows of the others."""

    plain: list[tuple[int, int, str]]
    typed: dict[str, list[tuple[Any, ...]]]


def item_tables(types: Mapping[str, Mapping[str, str]], items: str) -> dict[str, ItemTable]:
    """Map item types to tables, named after the table of untyped items; ConfigError if two names collide."""
    tables: dict[str, ItemTable] = {}
    names: set[str] = set()
    for kind, fields in types.items():
        name = f"{items}_{re.sub(r'[^a-z0-9_]', '_', kind.lower())}"[:_LONGEST]
        lowered = [field.lower() for field in fields]
        clash = next((field for field in fields if lowered.count(field.lower()) > 1), None)
        long = next((field for field in fields if len(field.encode()) > _LONGEST or not field or "\0" in field), None)
        if name in names or name == f"{items}_rejected":
            raise ConfigError(f"items of type {kind} would share the table {name}", hint="rename the type")
        if clash is not None or long is not None or {PAGE, NUMBER, MORE} & set(lowered):
            field = clash or long or next(field for field in fields if field.lower() in (PAGE, NUMBER, MORE))
            raise ConfigError(
                f"items of type {kind}: the field {field!r:.80} cannot be a column", hint="rename the field"
            )
        names.add(name)
        tables[kind] = ItemTable(kind, name, {**fields, MORE: "json"})
    return tables


def item_rows(records: Iterable[Record], tables: Mapping[str, ItemTable]) -> ItemRows:
    """Return the rows of all items."""
    rows = ItemRows([], {kind: [] for kind in tables})
    for record in records:
        for number, item in enumerate(record.items):
            table = tables.get(record.types[number]) if number < len(record.types) else None
            if table is None:
                rows.plain.append((record.key, number, _encode(item).decode()))
            else:
                rows.typed[table.type].append((record.key, number, *_item_values(item, table)))
    return rows


def _item_values(item: dict[str, Any], table: ItemTable) -> Iterable[Any]:
    fields = table.columns
    for name, kind in fields.items():
        if name == MORE:
            more = {key: value for key, value in item.items() if key not in fields}
            yield _encode(more).decode() if more else None
        else:
            yield _item_value(item.get(name), kind, name, table)


def _item_value(value: Any, kind: str, name: str, table: ItemTable) -> Any:
    if value is None:
        return None
    if kind == "json":
        return _encode(value).decode()
    if kind == "int" and isinstance(value, int):
        if not _LEAST <= value <= _MOST:
            raise SinkError(
                f"{table.name}.{name}: {value} does not fit in 64 bits", hint="declare the field as str or float"
            )
        return int(value)
    if kind == "float":
        # Not all databases can store NaN and infinity.
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    if kind == "bool":
        return bool(value)
    text = value if isinstance(value, str) else _encode(value).decode()
    return text if kind != "decimal" or Decimal(text).is_finite() else None


def new_columns(existing: Mapping[str, str], table: ItemTable, types: Mapping[str, str], server: str) -> Sequence[str]:
    """Return the columns that a table lacks; `existing` maps its columns to types. SinkError if a type differs."""
    known = {name.lower(): kind for name, kind in existing.items()}
    if PAGE not in known or NUMBER not in known:
        raise SinkError(
            f"{server}: the table {table.name} exists already and was not created by Gossamer",
            hint="rename the item type, or choose other tables: append ?table=NAME to the address",
        )
    for name, kind in table.columns.items():
        found = known.get(name.lower())
        if found is not None and found.lower() != types[kind].lower():
            raise SinkError(
                f"{server}: {table.name}.{name} is {found}, but the type {table.type} now needs {types[kind]}",
                hint="alter the column, or rename the field or the type: columns are only ever added",
            )
    return [name for name in table.columns if name.lower() not in known]


TABLE = "pages"
Verdict = Literal["again", "wait", "stop"]
"""How to handle an error: retry at once, wait, or stop the job."""
_TRIES = 4
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
Row = TypeVar("Row", bound=tuple[Any, ...])


def _kind(field: msgspec.structs.FieldInfo) -> str:
    """Return `str`, `int`, `float`, `bool`, or `json` for anything else."""
    kinds = {each.__name__ for each in get_args(field.type) or (field.type,)} - {"UnsetType", "NoneType"}
    known = kinds.pop() if len(kinds) == 1 else "json"
    return known if known in ("str", "int", "float", "bool") else "json"


COLUMNS: Mapping[str, str] = {field.name: _kind(field) for field in msgspec.structs.fields(PageRow)}
"""The fields of a page's row, and their kinds."""
NAMES = ("key", "token", *COLUMNS)


class TableNames(NamedTuple):
    """The tables of a sink."""

    pages: str
    items: str
    rejected: str
    """For items that do not match the spider's declared types."""


class Batch(NamedTuple):
    """The rows of the last visit of each page, ordered by key, so that concurrent writers wait and do not deadlock."""

    keys: list[int]
    tokens: list[int]
    rows: list[tuple[Any, ...]]
    """The values of `NAMES`."""
    items: list[tuple[int, int, str]]
    """Key of the page, number, and JSON of items without a declared type."""
    rejected: list[tuple[int, int, str]]
    """Key of the page, number, and JSON of rejected items."""
    typed: Mapping[str, Sequence[tuple[Any, ...]]]
    """Type -> the rows of its items, in the order of the table's columns."""


class TableConnection(Protocol):
    """A connection to one kind of server."""

    server: str
    """The server's address, without a password."""

    @property
    def is_open(self) -> bool: ...

    async def connect(self) -> None:
        """Connect, and create missing tables."""
        ...

    async def store(self, batch: Batch) -> None:
        """Store all rows in one transaction; a stored page with a higher token stays, and so do its items."""
        ...

    async def close(self) -> None: ...

    def abort(self) -> None:
        """Close the connection at once, without a protocol message."""
        ...

    def verdict(self, error: Exception) -> Verdict | None:
        """Return how to handle a driver's error; None for other errors."""
        ...


class TableSink:
    """`pages`, one row a page; `items`, as JSON with the key of their page; `items_TYPE` for each declared type;
    `items_rejected` for rejected items.

    Any number of workers may share them. The sink waits for a server that is down, full, or busy; what the server has
    not committed counts as not written."""

    def __init__(self, link: TableConnection, tables: Mapping[str, ItemTable]) -> None:
        self._link = link
        self._tables = tables
        self._turn = asyncio.Lock()

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        batch = batch_of(records, self._tables)
        if batch.keys:
            async with self._turn:
                await self._store(batch)
        return {}

    async def _store(self, batch: Batch) -> None:
        for left in reversed(range(_TRIES)):
            try:
                if not self._link.is_open:
                    await self._link.connect()
                await self._link.store(batch)
                return
            except SinkError:
                self._link.abort()
                raise
            except Exception as error:
                # Whatever went wrong, the server rolls back an uncommitted transaction.
                self._link.abort()
                verdict = self._link.verdict(error)
                if verdict is None:
                    raise
                if verdict == "stop":
                    raise SinkError(f"{self._link.server}: {first_line(error)}", hint=_HINT) from error
                if verdict == "wait" or not left:
                    raise SinkFull(f"{self._link.server}: {first_line(error)}", hint=_HINT) from error
            except BaseException:
                self._link.abort()
                raise
            await asyncio.sleep(random.uniform(0.0, 0.02 * 2**-left))

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Do nothing: the repeated visit replaces the one that was not committed."""

    async def aclose(self) -> None:
        async with self._turn:
            try:
                await asyncio.wait_for(self._link.close(), 2.0)
            except Exception:
                # Everything acknowledged is committed.
                self._link.abort()


_HINT = "is the server up, with free disk space, and does this user have write permission?"


def batch_of(records: Iterable[Record], tables: Mapping[str, ItemTable]) -> Batch:
    """Collect the rows to store for these visits: of several of one page, the last.

    A 304 confirms the stored row and its items, which stay."""
    last: dict[int, Record] = {}
    for record in records:
        if record.page.status == 304:
            continue
        if record.key not in last or record.token >= last[record.key].token:
            last[record.key] = record
    ordered = [last[key] for key in sorted(last)]
    rows = item_rows(ordered, tables)
    return Batch(
        [record.key for record in ordered],
        [record.token for record in ordered],
        [(record.key, record.token, *map(_value, _values(record.page))) for record in ordered],
        rows.plain,
        [
            (record.key, number, _encode(one).decode())
            for record in ordered
            for number, one in enumerate(record.rejected)
        ],
        rows.typed,
    )


def _values(page: PageRow) -> Iterable[Any]:
    return (getattr(page, name) for name in COLUMNS)


def _value(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    return None if value is msgspec.UNSET else _encode(value).decode()


def address(opening: Opening, scheme: str) -> tuple[str, TableNames, dict[str, ItemTable]]:
    """Return a sink's server address, with environment variables substituted, and its tables, including those of
    the job's declared item types."""
    url = expand(f"{scheme}:{opening.target}", source="sink")
    url, _, query = url.partition("?")
    options = dict(parse_qsl(query))
    table = options.pop("table", TABLE)
    if not _NAME.fullmatch(table):
        raise ConfigError(f"sink: {table!r} is not a valid table name", hint="use up to 40 letters, digits and _")
    items = "items" if table == TABLE else f"{table}_items"
    names = TableNames(table, items, f"{items}_rejected")
    return (f"{url}?{urlencode(options)}" if options else url), names, item_tables(opening.types, items)


def missing_columns(existing: Iterable[str], names: TableNames, server: str) -> list[str]:
    """Return the columns that a table of an earlier version lacks; SinkError if it is not a table of this sink."""
    known = {name.lower() for name in existing}
    if not {"key", "token", "url"} <= known:
        raise SinkError(
            f"{server}: the table {names.pages} exists already and was not created by Gossamer",
            hint="choose another table: append ?table=NAME to the address",
        )
    return [name for name in COLUMNS if name not in known]


def rows_of(rows: Sequence[Row], stored: Collection[int], *, all_stored: bool) -> Sequence[Row]:
    """Return the item rows of those pages that were stored."""
    return rows if all_stored else [row for row in rows if row[0] in stored]


def in_parts(rows: Sequence[str], head: str, tail: str, *, most_bytes: int) -> Iterable[str]:
    """Build statements of many rows, each below the packet limit."""
    part: list[str] = []
    size = 0
    for row in rows:
        if part and size + len(row) > most_bytes:
            yield head + ",".join(part) + tail
            part, size = [], 0
        part.append(row)
        size += len(row) + 1
    if part:
        yield head + ",".join(part) + tail


def first_line(error: Exception) -> str:
    """Return an error's first line."""
    text = str(error.args[-1]) if error.args else ""
    return (text.splitlines() or [""])[0][:300] or type(error).__name__


async def ask(url: str, statement: str) -> list[Any]:
    """Run a query and return its rows; the address is one of PostgreSQL or MySQL, as in sinks and frontiers."""
    try:
        if url.startswith(("postgresql://", "postgres://")):
            return await _ask_postgresql(url, statement)
        return await _ask_mysql(url, statement)
    except ImportError as missing:
        kind = "postgresql" if url.startswith("postgres") else "mysql"
        raise unusable(kind, "this database", missing) from missing


async def _ask_postgresql(url: str, statement: str) -> list[Any]:
    import asyncpg

    place, server = dsn.postgresql(url, of="the database")
    try:
        connection = await asyncpg.connect(**place, timeout=10.0)
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise SinkError(f"{server}: {error}") from error


async def _ask_mysql(url: str, statement: str) -> list[Any]:
    import asyncmy
    from asyncmy import errors as faults

    place, server = dsn.mysql(url, of="the database")
    try:
        connection = await asyncmy.connect(**place, charset="utf8mb4", connect_timeout=10, autocommit=True)
        try:
            async with connection.cursor() as cursor:
                await cursor.execute(statement)
                return list(await cursor.fetchall()) if cursor.description else []
        finally:
            await connection.ensure_closed()
    except faults.MySQLError as error:
        raise SinkError(f"{server}: {error}") from error
