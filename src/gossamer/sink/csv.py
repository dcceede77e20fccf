"""Pages and items as CSV for spreadsheets, exact after any kill, with no cell that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gossamer.errors import ConfigError
from gossamer.model import PageRow, Record
from gossamer.sink.appended import AppendedFiles
from gossamer.sink.base import Opening

log = logging.getLogger("gossamer.sink")
PAGES, ITEMS = "pages.csv", "items.csv"
MORE = "more"
"""The last column of items.csv: as JSON, the fields of an item that its first line does not name."""
_COLUMNS = tuple(field.name for field in msgspec.structs.fields(PageRow))
_RUN_BY_SPREADSHEETS = frozenset("=+-@\t\r\n|%'")


class CsvSink:
    """`pages.csv` and `items.csv`. The columns of items are the fields of the first item, the page's `url` and `more`.

    Where items have a `url` themselves, the page's is `page_url`. Text that begins with = + - @ or the like has an
    apostrophe put before it, and so has text that begins with one: to read it back, take one apostrophe away."""

    def __init__(self, folder: Path, marks: Mapping[str, int]) -> None:
        self._files = AppendedFiles(folder, (PAGES, ITEMS), marks)
        # A file goes on with the columns that it was begun with.
        self._columns = columns_of(folder / PAGES) or _COLUMNS
        if missing := [name for name in _COLUMNS if name not in self._columns]:
            log.warning(
                "%s was begun by an earlier version, and goes on without: %s", folder / PAGES, ", ".join(missing)
            )
        known = columns_of(folder / ITEMS)
        self._fields = tuple(name.removeprefix("'") for name in known[1:-1]) if known else None

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        fields = self._fields if self._files.marks[ITEMS] else None
        pages, items = io.StringIO(newline=""), io.StringIO(newline="")
        page_rows, item_rows = csv.writer(pages), csv.writer(items)
        if records and not self._files.marks[PAGES]:
            page_rows.writerow(self._columns)
        for record in records:
            page_rows.writerow([cell(getattr(record.page, name, None)) for name in self._columns])
            for item in record.items:
                if fields is None:
                    fields = tuple(item)
                    page = "page_url" if "url" in fields else "url"
                    item_rows.writerow([page, *map(cell, fields), MORE])
                more = {name: value for name, value in item.items() if name not in fields}
                known = (cell(item.get(name)) for name in fields)
                item_rows.writerow([cell(record.page.url), *known, cell(more) if more else ""])
        marks = await self._files.append({PAGES: _bytes(pages), ITEMS: _bytes(items)})
        self._fields = fields
        return marks

    async def rewind(self, marks: Mapping[str, int]) -> None:
        self._files.rewind(marks)

    async def aclose(self) -> None:
        self._files.close()


def open_csv(opening: Opening) -> CsvSink:
    """The sink named `csv`."""
    if opening.marks is None:
        raise ConfigError("csv is for crawls on one machine", hint="in a fleet, export its segments when it is done")
    return CsvSink(opening.folder, opening.marks)


def cell(value: Any) -> str | int | float:
    """A value as it stands in a CSV file."""
    if value is None or value is msgspec.UNSET:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"'{text}" if text[:1] in _RUN_BY_SPREADSHEETS and text else text


def columns_of(path: Path) -> tuple[str, ...]:
    """The columns of a file, by its first line."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(next(csv.reader(file), ()))


def _bytes(text: io.StringIO) -> bytes:
    return text.getvalue().encode("utf-8", "replace")
