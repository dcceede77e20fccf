"""Tables on a database server: columns, typed item tables, statements; the sinks are `postgresql` and `mysql`."""

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
"""The key of the page, which of its items it is, and the fields that the type does not name, as JSON."""
KINDS = ("str", "int", "float", "bool", "decimal", "time", "date", "json")
_LONGEST = 60
_encode = msgspec.json.Encoder().encode
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class ItemTable(NamedTuple):
    """The table of one type."""

    type: str
    name: str
    columns: Mapping[str, str]
    """Field -> its kind; `MORE` comes last."""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, in the order of a row's values."""
        return (PAGE, NUMBER, *self.columns)


class ItemRows(NamedTuple):
    """What the items of some pages come to: key, number and JSON of those without a type; rows of the others."""

    plain: list[tuple[int, int, str]]
    typed: dict[str, list[tuple[Any, ...]]]


def item_tables(types: Mapping[str, Mapping[str, str]], items: str) -> dict[str, ItemTable]:
    """Type -> its table, named after the table of items that have none; ConfigError where two would be one."""
    tables: dict[str, ItemTable] = {}
    names: set[str] = set()
    for kind, fields in types.items():
        name = f"{items}_{re.sub(r'[^a-z0-9_]', '_', kind.lower())}"[:_LONGEST]
        lowered = [field.lower() for field in fields]
        clash = next((field for field in fields if lowered.count(field.lower()) > 1), None)
        long = next((field for field in fields if len(field.encode()) > _LONGEST or not field or "\0" in field), None)
        if name in names or name == f"{items}_rejected":
            raise ConfigError(f"items of type {kind} would share the table {name}", hint="call the type otherwise")
        if clash is not None or long is not None or {PAGE, NUMBER, MORE} & set(lowered):
            field = clash or long or next(field for field in fields if field.lower() in (PAGE, NUMBER, MORE))
            raise ConfigError(
                f"items of type {kind}: the field {field!r:.80} cannot be a column", hint="call it otherwise"
            )
        names.add(name)
        tables[kind] = ItemTable(kind, name, {**fields, MORE: "json"})
    return tables


def item_rows(records: Iterable[Record], tables: Mapping[str, ItemTable]) -> ItemRows:
    """The rows of all items."""
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
                f"{table.name}.{name}: {value} is no number of 64 bits", hint="declare the field as str or float"
            )
        return int(value)
    if kind == "float":
        # There is no number that says that there is none in every database.
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    if kind == "bool":
        return bool(value)
    text = value if isinstance(value, str) else _encode(value).decode()
    return text if kind != "decimal" or Decimal(text).is_finite() else None


def new_columns(there: Mapping[str, str], table: ItemTable, types: Mapping[str, str], server: str) -> Sequence[str]:
    """The columns that a table lacks, as `there` names what it has and of which type; SinkError if one has another."""
    known = {name.lower(): kind for name, kind in there.items()}
    if PAGE not in known or NUMBER not in known:
        raise SinkError(
            f"{server}: there is a table {table.name} already, and it is not one of Gossamer's",
            hint="call the type of items otherwise, or name other tables: ?table=NAME behind the address",
        )
    for name, kind in table.columns.items():
        found = known.get(name.lower())
        if found is not None and found.lower() != types[kind].lower():
            raise SinkError(
                f"{server}: {table.name}.{name} is {found}, and the type {table.type} needs {types[kind]} now",
                hint="change the column by hand, or call the field or the type otherwise: columns are only ever added",
            )
    return [name for name in table.columns if name.lower() not in known]


TABLE = "pages"
Verdict = Literal["again", "wait", "stop"]
"""What an error calls for: another try at once, a pause, or the end of the job."""
_TRIES = 4
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
Row = TypeVar("Row", bound=tuple[Any, ...])


def _kind(field: msgspec.structs.FieldInfo) -> str:
    """`str`, `int`, `float`, `bool`, or `json` for anything else."""
    kinds = {each.__name__ for each in get_args(field.type) or (field.type,)} - {"UnsetType", "NoneType"}
    known = kinds.pop() if len(kinds) == 1 else "json"
    return known if known in ("str", "int", "float", "bool") else "json"


COLUMNS: Mapping[str, str] = {field.name: _kind(field) for field in msgspec.structs.fields(PageRow)}
"""The fields of a page's line, and their kinds."""
NAMES = ("key", "token", *COLUMNS)


class TableNames(NamedTuple):
    """The tables of a sink."""

    pages: str
    items: str
    rejected: str
    """For items that do not fit the types that the spider declares."""


class Batch(NamedTuple):
    """One row a page, of its last visit, in the order of their keys, so that two who write wait and do not deadlock."""

    keys: list[int]
    tokens: list[int]
    rows: list[tuple[Any, ...]]
    """The values of `NAMES`."""
    items: list[tuple[int, int, str]]
    """Key of the page, number and JSON of items without a declared type."""
    rejected: list[tuple[int, int, str]]
    """The same of what was kept aside."""
    typed: Mapping[str, Sequence[tuple[Any, ...]]]
    """Type -> the rows of its items, in the order of the table's columns."""


class TableConnection(Protocol):
    """One connection to one kind of server."""

    server: str
    """Its address, without a password."""

    @property
    def is_open(self) -> bool: ...

    async def connect(self) -> None:
        """Connect, and make the tables if they are not there."""
        ...

    async def store(self, batch: Batch) -> None:
        """All of it in one transaction; a page that is there with a higher token stays, and so do its items."""
        ...

    async def close(self) -> None: ...

    def abort(self) -> None:
        """End the connection at once, without a word."""
        ...

    def verdict(self, error: Exception) -> Verdict | None:
        """What a driver's error calls for; None if it is none of a driver."""
        ...


class TableSink:
    """`pages`, one row a page; `items`, as JSON with the key of their page; `items_TYPE`, those of a declared type;
    `items_rejected`, what was kept aside.

    Any number of workers may share them. A server that is away, full or crowded is waited for; what it has not
    committed counts as not written."""

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
                # Whatever came in between, the server undoes what was not committed.
                self._link.abort()
                verdict = self._link.verdict(error)
                if verdict is None:
                    raise
                if verdict == "stop":
                    raise SinkError(f"{self._link.server}: {said(error)}", hint=_HINT) from error
                if verdict == "wait" or not left:
                    raise SinkFull(f"{self._link.server}: {said(error)}", hint=_HINT) from error
            except BaseException:
                self._link.abort()
                raise
            await asyncio.sleep(random.uniform(0.0, 0.02 * 2**-left))

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Nothing to do: a visit that comes again takes the place of the one that did not count."""

    async def aclose(self) -> None:
        async with self._turn:
            try:
                await asyncio.wait_for(self._link.close(), 2.0)
            except Exception:
                # All that was acknowledged is committed.
                self._link.abort()


_HINT = "is the server up, with space left, and may this user write there?"


def batch_of(records: Iterable[Record], tables: Mapping[str, ItemTable]) -> Batch:
    """What is to be stored of these visits: of several of one page, the last.

    A 304 says that the row and the items that are there still hold, so they stay."""
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
    """The address that a sink's name stands for, with what it names of the environment, and the tables it asks for:
    its own, and those of the types of items that the job declares."""
    url = expand(f"{scheme}:{opening.target}", source="sink")
    url, _, query = url.partition("?")
    options = dict(parse_qsl(query))
    table = options.pop("table", TABLE)
    if not _NAME.fullmatch(table):
        raise ConfigError(f"sink: {table!r} is no name for a table", hint="letters, digits and underscores, up to 40")
    items = "items" if table == TABLE else f"{table}_items"
    names = TableNames(table, items, f"{items}_rejected")
    return (f"{url}?{urlencode(options)}" if options else url), names, item_tables(opening.types, items)


def missing_columns(there: Iterable[str], names: TableNames, server: str) -> list[str]:
    """The columns that a table of an earlier version lacks; SinkError if it is not one of ours."""
    known = {name.lower() for name in there}
    if not {"key", "token", "url"} <= known:
        raise SinkError(
            f"{server}: there is a table {names.pages} already, and it is not one of Gossamer's",
            hint="name another one: ?table=NAME behind the address",
        )
    return [name for name in COLUMNS if name not in known]


def rows_of(rows: Sequence[Row], stored: Collection[int], *, all_stored: bool) -> Sequence[Row]:
    """Of what goes beside pages the rows of those that were stored."""
    return rows if all_stored else [row for row in rows if row[0] in stored]


def in_parts(rows: Sequence[str], head: str, tail: str, *, most_bytes: int) -> Iterable[str]:
    """Statements of many rows, each short enough for a packet."""
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


def said(error: Exception) -> str:
    """An error's first line."""
    text = str(error.args[-1]) if error.args else ""
    return (text.splitlines() or [""])[0][:300] or type(error).__name__


async def ask(url: str, statement: str) -> list[Any]:
    """The rows of an answer; the address is one of PostgreSQL or of MySQL, as sinks and frontiers have it."""
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
