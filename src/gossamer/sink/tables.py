"""Pages and items as tables of a database server: what goes into them, and how its faults are met."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args
from urllib.parse import parse_qsl, urlencode

import msgspec

from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.model import PageRow, Record
from gossamer.settings import expand
from gossamer.sink.base import Opening
from gossamer.sink.typed import ItemTable, item_rows, item_tables

TABLE = "pages"
Verdict = Literal["again", "wait", "stop"]
"""What an error calls for: another try at once, a pause, or the end of the job."""
_TRIES = 4
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_encode = msgspec.json.Encoder().encode
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
