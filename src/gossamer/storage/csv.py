"""CSV for spreadsheets: the sink, exactly-once across crashes, and its reader.

A row is valid if its line is complete. Cells may contain line breaks, so a file that ends inside quotes ends with a
row that is still being written."""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from gossamer.errors import ConfigError, SinkError
from gossamer.model import PageRow, Record
from gossamer.storage import duckdb_views, query
from gossamer.storage.base import PAGE_FIELDS, Keeps, Opening, Reader, SqlSource
from gossamer.storage.files import AppendedFiles
from gossamer.storage.query import Cursor, GoOn, Search, TimeCursor

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob


log = logging.getLogger("gossamer.sink")
PAGES, ITEMS = "pages.csv", "items.csv"
MORE = "more"
"""The last column of items.csv: fields missing from the header, as JSON."""
_COLUMNS = tuple(field.name for field in msgspec.structs.fields(PageRow))
_RUN_BY_SPREADSHEETS = frozenset("=+-@\t\r\n|%'")


class CsvSink:
    """`pages.csv` and `items.csv`. The item columns are the first item's fields, the page's `url`, and `more`.

    If items have a field `url`, the page's column is `page_url`. Text that starts with = + - @ or similar gets an
    apostrophe in front, and so does text that starts with an apostrophe: remove one apostrophe to read it back."""

    def __init__(self, folder: Path, marks: Mapping[str, int]) -> None:
        self._files = AppendedFiles(folder, (PAGES, ITEMS), marks)
        # An existing file keeps its columns.
        self._columns = columns_of(folder / PAGES) or _COLUMNS
        if missing := [name for name in _COLUMNS if name not in self._columns]:
            log.warning(
                "%s is from an earlier version and stays without the columns %s", folder / PAGES, ", ".join(missing)
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
    """Open the sink `csv`."""
    if opening.marks is None:
        raise ConfigError("the sink csv works on one machine only", hint="in a fleet, run gossamer export at the end")
    return CsvSink(opening.folder, opening.marks)


def cell(value: Any) -> str | int | float:
    """Convert a value to a CSV cell."""
    if value is None or value is msgspec.UNSET:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"'{text}" if text[:1] in _RUN_BY_SPREADSHEETS and text else text


def columns_of(path: Path) -> tuple[str, ...]:
    """Read the columns of a file from its first line."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(next(csv.reader(file), ()))


def _bytes(text: io.StringIO) -> bytes:
    return text.getvalue().encode("utf-8", "replace")


_LONGEST_CELL = 1 << 30


def csv_readers(job: StoredJob) -> Iterator[Reader]:
    """Yield the reader of pages.csv and items.csv in a job's folder, if they exist."""
    if (job.folder / PAGES).exists():
        yield CsvReader(job.folder)


class CsvReader:
    """Reads `pages.csv` and `items.csv`, and removes the apostrophes that keep spreadsheets from running formulas."""

    cursor: type[Cursor] = TimeCursor

    def __init__(self, folder: Path) -> None:
        self._pages, self._items = folder / PAGES, folder / ITEMS
        self.place = str(self._pages)
        self.keeps: frozenset[Keeps] = frozenset(("rows", "items", "visits"))

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        return self._records() if all_visits else query.current_by_url(self._records)

    def _records(self) -> Iterator[Record]:
        for row in self._rows():
            yield Record(key=0, token=0, page=row)

    def rows(self, terms: Search) -> Iterator[PageRow]:
        return filter(terms.fits, self._rows())

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        return query.newest(self._rows(), terms, after=after, limit=limit, go_on=go_on)

    def items(self) -> Iterator[bytes]:
        if not self._items.exists():
            return
        rows = csv_rows(self._items)
        names = next(rows, [])
        for cells in rows:
            # The first column is the page; the last one holds further fields as JSON.
            item: dict[str, Any] = {
                _text(name): _text(cell) for name, cell in zip(names[1:-1], cells[1:-1], strict=False) if cell
            }
            if len(cells) == len(names) and names[-1] == MORE and cells[-1]:
                item.update(msgspec.json.decode(cells[-1]))
            yield msgspec.json.encode(item)

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        items: list[SqlSource] = []
        if len(names := columns_of(self._items) if self._items.exists() else ()) > 1:
            items = [SqlSource([self._items], _select_items(names))]
        return {"_visits": [SqlSource([self._pages], _select_pages(columns_of(self._pages)))], "_items": items}

    def _rows(self) -> Iterator[PageRow]:
        rows = csv_rows(self._pages)
        names = next(rows, [])
        for cells in rows:
            yield _page_row(dict(zip(names, cells, strict=False)))


def csv_rows(path: Path) -> Iterator[list[str]]:
    """Yield the complete rows of a file, starting with the header."""
    csv.field_size_limit(_LONGEST_CELL)
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        lines = _Lines(file, os.fstat(file.fileno()).st_size)
        try:
            yield from csv.reader(lines, strict=True)
        except csv.Error as error:
            if not lines.is_over:
                raise SinkError(f"{path}, line {lines.number}: {error}", hint="was the file edited?") from None


class _Lines:
    """The complete lines within the first bytes of a file."""

    def __init__(self, file: IO[str], size: int) -> None:
        self._file, self._left = file, size
        self.number = 0
        self.is_over = False

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self._left -= len(line) if line.isascii() else len(line.encode("utf-8", "surrogatepass"))
            # A line break inside a cell may be a lone carriage return.
            if self._left < 0 or (not self._left and not line.endswith("\n")):
                break
            self.number += 1
            yield line
        self.is_over = True


def _page_row(cells: Mapping[str, str]) -> PageRow:
    values: dict[str, Any] = {}
    for name, text in cells.items():
        kind = PAGE_FIELDS.get(name)
        # Optional fields are empty cells if missing.
        if kind is None or (not text and kind not in (int, float, str)):
            continue
        with suppress(ValueError):
            values[name] = kind(text or 0) if kind in (int, float) else _text(text)
    return PageRow(**{"url": "", **values})


def _text(cell: str) -> str:
    return cell.removeprefix("'")


def _select_pages(existing: Sequence[str]) -> str:
    """Return the SELECT for a pages.csv with these columns; a file of an earlier version has fewer."""
    columns = ", ".join(
        f"{_of_cell(name, kind) if name in existing else _NO_TEXT} AS {name}"
        for name, kind in duckdb_views.PAGE_COLUMNS.items()
    )
    return f"SELECT {duckdb_views.SITE}, * REPLACE ({duckdb_views.FETCHED_AT}) FROM (SELECT {columns} FROM {_READ})"


def _select_items(names: Sequence[str]) -> str:
    """Return the SELECT for an items.csv; an item has the fields that are not empty in its row."""
    # By position: SQL does not distinguish names that differ only in case.
    fields = ", ".join(
        f"{duckdb_views.quoted(_text(name))}, nullif({_bare(f'c{place}')}, {_NO_TEXT})"
        for place, name in enumerate(names[1:-1], 1)
    )
    known = f"json_merge_patch('{{}}', json_object({fields}))" if fields else "'{}'"
    more = f"coalesce(nullif(c{len(names) - 1}, {_NO_TEXT}), '{{}}')"
    places = ", ".join(f"'c{place}'" for place in range(len(names)))
    return (
        f"SELECT {_bare('c0')} AS url, split_part({_bare('c0')}, '/', 3) AS site,"
        f" json_merge_patch({known}, {more}) AS item FROM {_READ[:-1]}, names = [{places}])"
    )


_NO_TEXT = "''"
_READ = "read_csv({files}, all_varchar = true, header = true, delim = ',', quote = '\"', escape = '\"')"


def _of_cell(name: str, kind: str) -> str:
    return f"{name}::{kind}" if kind != "VARCHAR" else _bare(name)


def _bare(column: str) -> str:
    """Return the expression for a cell without its protective apostrophe."""
    return f"regexp_replace(coalesce({column}, ''), '^{_NO_TEXT}', '')"
