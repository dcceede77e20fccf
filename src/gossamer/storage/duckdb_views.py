"""SELECTs with which DuckDB reads JSON lines: their columns and types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gossamer.model import PageRow, Record
from gossamer.storage.base import SqlSource

_TYPES: Mapping[Any, str] = {int: "BIGINT", float: "DOUBLE"}


def columns_for(kind: type) -> dict[str, str]:
    """Map the fields of a line to their SQL types."""
    return {field.name: _TYPES.get(field.type, "VARCHAR") for field in msgspec.structs.fields(kind)}


def quoted(text: str) -> str:
    """Quote a text for SQL."""
    return "'" + text.replace("'", "''") + "'"


def read_json(columns: Mapping[str, str]) -> str:
    """Return the call that reads JSON lines, without its last parenthesis. An incomplete line, as a crash leaves it, is
    a row of nulls."""
    kinds = ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in columns.items())
    return f"read_json({{files}}, format = 'newline_delimited', columns = {{{kinds}}}, ignore_errors = true"


PAGE_COLUMNS = columns_for(PageRow)
KEY_COLUMNS = {"key": "BIGINT", "token": "BIGINT"}
FETCHED_AT = "make_timestamp((fetched_at * 1e6)::BIGINT) AS fetched_at"
SITE = "split_part(url, '/', 3) AS site"
_STRUCT = "STRUCT(" + ", ".join(f"{name} {kind}" for name, kind in PAGE_COLUMNS.items()) + ")"
_LINE = {**KEY_COLUMNS, "page": _STRUCT, "items": "JSON[]", "warc": "JSON[]"}
RECORD_PAGES = (
    f"SELECT key, token, {SITE}, * EXCLUDE (key, token, fetched_at, w), {FETCHED_AT}, w[1]->>'$' AS warc_file,"
    " w[2]::BIGINT AS warc_offset, w[3]::BIGINT AS warc_length, w[4]::BOOLEAN AS warc_revisit"
    f" FROM (SELECT key, token, unnest(page), warc AS w FROM {read_json(_LINE)}) WHERE page IS NOT NULL)"
)
"""Pages of record lines, with key, token, and items, as in segments."""
RECORD_ITEMS = (
    "SELECT key, token, split_part(page.url, '/', 3) AS site, page.url AS url,"
    " make_timestamp((page.fetched_at * 1e6)::BIGINT) AS fetched_at, number - 1 AS number, items[number] AS item"
    f" FROM (SELECT *, unnest(range(1, 1 + len(items))) AS number FROM {read_json(_LINE)}) WHERE items IS NOT NULL)"
)
ROW_PAGES = f"SELECT {SITE}, * REPLACE ({FETCHED_AT}) FROM {read_json(PAGE_COLUMNS)}) WHERE url IS NOT NULL"
"""Pages of row lines, as in pages.jsonl."""
ITEM_LINES = (
    "SELECT json AS item FROM read_json_objects({files}, format = 'newline_delimited', ignore_errors = true)"
    " WHERE json IS NOT NULL"
)


def spilled(records: Iterable[Record], spill: Path) -> dict[str, list[SqlSource]]:
    """Write records of a format that DuckDB does not read as JSON lines."""
    path = spill / "records.jsonl"
    with path.open("wb") as file:
        for record in records:
            file.write(msgspec.json.encode(record) + b"\n")
    return {
        "_visits": [SqlSource([path], RECORD_PAGES, has_keys=True)],
        "_items": [SqlSource([path], RECORD_ITEMS)],
    }
