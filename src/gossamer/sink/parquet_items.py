"""Items as rows: all of each as JSON, and columns of their own for fields that hold text, numbers or truth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gossamer.extras import unusable

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as missing:
    raise unusable("parquet", "Parquet", missing) from missing

SCHEMA = pa.schema(
    [
        *(("key", pa.int64()), ("token", pa.int64()), ("site", pa.string()), ("url", pa.string())),
        *(("fetched_at", pa.timestamp("us", tz="UTC")), ("number", pa.int64()), ("item", pa.string())),
    ]
)
_NAME = re.compile(r"[A-Za-z_]\w{0,62}", re.ASCII)
_MOST = 100
# All numbers are of one type: a price may be 10 in the first file and 10.5 in the next.
_ITEM_TYPES = {str: pa.string(), bool: pa.bool_(), int: pa.float64(), float: pa.float64()}


class ItemColumns:
    """The fields that have columns. A type, once it is given, stays: what does not fit it is null, and in the JSON."""

    def __init__(self, known: pa.Schema | None = None) -> None:
        own = () if known is None else (field for field in known if field.name not in SCHEMA.names)
        self._types: dict[str, pa.DataType] = {field.name: field.type for field in own}
        # Tools take names that differ only in case for the same.
        self._taken = {name.lower() for name in (*SCHEMA.names, *self._types)}

    @property
    def schema(self) -> pa.Schema:
        """Of the rows that are made now."""
        return pa.schema([*SCHEMA, *self._types.items()])

    def values(self, items: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
        """The columns of these items, those among them that are seen for the first time."""
        for item in items:
            for name in item.keys() - self._types.keys():
                self._learn(name, item[name])
        return {
            name: [_fitting(item.get(name), kind) for item in items] for name, kind in self._types.items()
        }  # fmt: skip

    def _learn(self, name: str, value: Any) -> None:
        kind = _ITEM_TYPES.get(type(value))
        if kind is None or len(self._types) >= _MOST or not _NAME.fullmatch(name) or name.lower() in self._taken:
            return
        self._types[name] = kind
        self._taken.add(name.lower())


def known_columns(paths: Sequence[Path]) -> ItemColumns:
    """The columns of files that are there already, as the last of them has them."""
    return ItemColumns(pq.read_schema(paths[-1]) if paths else None)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    if _ITEM_TYPES.get(type(value)) != kind:
        return None
    try:
        return float(value) if kind == pa.float64() else value
    except OverflowError:
        return None


def decoded(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Items as they were, of JSON or of what was made of it."""
    return [msgspec.json.decode(item) if isinstance(item, msgspec.Raw) else item for item in items]
