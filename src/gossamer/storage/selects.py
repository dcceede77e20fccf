"""The SELECTs by which DuckDB reads lines: what columns they have, and of which types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gossamer.model import PageRow, Record
from gossamer.storage.base import SqlSource

_TYPES: Mapping[Any, str] = {int: "BIGINT", float: "DOUBLE"}


def columns_for(kind: type) -> dict[str, str]:
    """The fields of a line, and the types that they have in SQL."""
    return {field.name: _TYPES.get(field.type, "VARCHAR") for field in msgspec.structs.fields(kind)}


def quoted(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def read_json(columns: Mapping[str, str]) -> str:
    """The reader of JSON lines, without its last parenthesis. A line that is not whole, as a kill leaves it, is a row
    of nulls."""
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
"""The pages of lines that are records, with key, token and items, as segments have them."""
RECORD_ITEMS = (
    "SELECT key, token, split_part(page.url, '/', 3) AS site, page.url AS url,"
    " make_timestamp((page.fetched_at * 1e6)::BIGINT) AS fetched_at, number - 1 AS number, items[number] AS item"
    f" FROM (SELECT *, unnest(range(1, 1 + len(items))) AS number FROM {read_json(_LINE)}) WHERE items IS NOT NULL)"
)
ROW_PAGES = f"SELECT {SITE}, * REPLACE ({FETCHED_AT}) FROM {read_json(PAGE_COLUMNS)}) WHERE url IS NOT NULL"
"""The pages of lines that are rows, as pages.jsonl has them."""
ITEM_LINES = (
    "SELECT json AS item FROM read_json_objects({files}, format = 'newline_delimited', ignore_errors = true)"
    " WHERE json IS NOT NULL"
)


def spilled(records: Iterable[Record], spill: Path) -> dict[str, list[SqlSource]]:
    """Records of a format that DuckDB does not read, as lines that it does."""
    path = spill / "records.jsonl"
    with path.open("wb") as file:
        for record in records:
            file.write(msgspec.json.encode(record) + b"\n")
    return {
        "_visits": [SqlSource([path], RECORD_PAGES, has_keys=True)],
        "_items": [SqlSource([path], RECORD_ITEMS)],
    }
