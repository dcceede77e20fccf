"""Every stored visit of one URL, as its row, from whichever of a job's sinks keeps rows."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from gossamer.errors import ArchiveError, ConfigError
from gossamer.model import PageRow
from gossamer.sink.csv import PAGES as CSV_PAGES
from gossamer.sink.jsonl import PAGES, SUFFIXES, lines_of
from gossamer.stored.open import open_stored
from gossamer.stored.places import Place

MOST_VERSIONS = 1000
_decode = msgspec.json.Decoder(PageRow).decode
_FIELDS = {field.name: field.type for field in msgspec.structs.fields(PageRow)}


def versions_of(place: Place, url: str) -> list[PageRow]:
    """The newest first, a thousand at most; a ConfigError if the job has its rows in none of its files.

    WARC files and trees are asked by their index and their names, SQLite by a scan in its own code; files of lines,
    CSV and Parquet are read through, in bounded memory."""
    found: dict[tuple[float, str], PageRow] = {}
    for row in _rows(place, url):
        # A commit that was repeated leaves two rows of one visit.
        found[row.fetched_at, row.digest] = row
        if len(found) > 2 * MOST_VERSIONS:
            found = _newest(found)
    return list(_newest(found).values())


def _newest(found: dict[tuple[float, str], PageRow]) -> dict[tuple[float, str], PageRow]:
    newest = sorted(found.items(), key=lambda one: -one[1].fetched_at)
    return dict(newest[:MOST_VERSIONS])


def _rows(place: Place, url: str) -> Iterator[PageRow]:
    folder = place.folder
    if any((folder / f"{PAGES}{suffix}").exists() for suffix in SUFFIXES.values()):
        return _of_lines(folder, url)
    if (tables := place.parquet) is not None:
        return _of_parquet(tables, url)
    if (database := place.sqlite_file) is not None:
        return _of_sqlite(database, url)
    if (folder / CSV_PAGES).exists():
        return _of_csv(folder / CSV_PAGES, url)
    if place.warcs or place.trees:
        return _of_bodies(place, url)
    raise ConfigError(
        f"the pages of this job are in {', '.join(place.elsewhere) or 'none of its files'}",
        hint="ask there, or crawl with --sink jsonl beside it",
    )


def _of_lines(folder: Path, url: str) -> Iterator[PageRow]:
    needle = b'{"url":' + msgspec.json.encode(url) + b","
    for line in lines_of(folder, PAGES):
        if line.startswith(needle):
            # The last one may be written at this moment.
            with suppress(msgspec.DecodeError):
                yield _decode(line)


def _of_parquet(folder: Path, url: str) -> Iterator[PageRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from gossamer.sink import parquet_files as files

    waiting = files.logs(folder)
    for log in waiting:
        with suppress(FileNotFoundError):
            yield from (row.page for row in files.rows_of(log) if row.page.url == url)
    for path in files.sealed(folder, but={log.name for log in waiting}):
        table = pq.read_table(path, filters=[("url", "==", url)], partitioning=None)
        at = table.schema.get_field_index("fetched_at")
        table = table.set_column(at, "fetched_at", table.column(at).cast(pa.int64()))
        for row in table.to_pylist():
            row["fetched_at"] /= 1e6
            yield page_row(row)


def _of_sqlite(path: Path, url: str) -> Iterator[PageRow]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        for row in database.execute("SELECT * FROM pages WHERE url = ?", (url,)):
            yield page_row(dict(row))


def _of_csv(path: Path, url: str) -> Iterator[PageRow]:
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row.get("url", "").removeprefix("'") == url:
                yield csv_row(row)


def csv_row(row: Mapping[str, str]) -> PageRow:
    """A line of CSV."""
    return page_row({name: _typed(name, text) for name, text in row.items() if name in _FIELDS})


def _typed(name: str, text: str) -> Any:
    kind = _FIELDS[name]
    if kind in (int, float):
        return kind(text or 0)
    return text.removeprefix("'") if text or kind is str else None


def _of_bodies(place: Place, url: str) -> Iterator[PageRow]:
    with open_stored(place) as stored:
        for version in stored.versions(url):
            with suppress(ArchiveError):
                yield stored.row(version)


def page_row(values: Mapping[str, Any]) -> PageRow:
    """A row of a table, in which there may be more."""
    return PageRow(**{name: value for name, value in values.items() if name in _FIELDS and value is not None})
