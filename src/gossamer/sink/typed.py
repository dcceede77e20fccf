"""Items of declared types as rows of their own tables: which columns there are, and what goes into them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from gossamer.errors import ConfigError, SinkError
from gossamer.model import Record

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
