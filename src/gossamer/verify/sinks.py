"""The sinks of a proof: made its own, read back row by row, and taken away again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gossamer.errors import ConfigError
from gossamer.export.stored import lines_name, of_archives, of_csv, of_parquet, of_sqlite, parquet_folder, records
from gossamer.masks import masked_address
from gossamer.model import PageRow, Record
from gossamer.settings import expand
from gossamer.sink import KINDS
from gossamer.sink.csv import PAGES as CSV_PAGES
from gossamer.sink.jsonl import PAGES, lines_of
from gossamer.sink.sqlite import FILE
from gossamer.stored.places import Place
from gossamer.verify.tables import ask
from gossamer.verify.verdict import Row

_FILES = ("jsonl", "csv", "sqlite", "warc", "parquet")
_TABLES = ("postgresql", "postgres", "mysql", "mariadb")


def made_its_own(sinks: Sequence[str], table: str) -> list[str]:
    """Sinks as the proof uses them: files in its own folder, tables of its own; ConfigError for what is neither."""
    found = []
    for name in sinks:
        kind = _kind(name)
        if kind in _TABLES and "table=" not in name:
            found.append(f"{name}{'&' if '?' in name else '?'}table={table}")
        elif kind in _TABLES or (kind in KINDS and (kind not in _FILES or ":/" in name)):
            raise ConfigError(
                f"sink {masked_address(name)}: verify would write beside what is there, or could not read it back",
                hint=f"it makes files and tables of its own: name {', '.join(_FILES)}, postgresql:// or mysql://",
            )
        else:
            found.append(name)
    return found


async def read_back(name: str, folder: Path, *, is_fleet: bool) -> list[Row]:
    """The rows that a sink holds. A fleet's workers may have kept a visit that did not count: the last word counts."""
    if (kind := _kind(name)) in _TABLES:
        rows = await _ask(name, "SELECT url, status FROM {}")
        return [Row(str(url), int(status or 0)) for url, status in rows]
    return [Row(record.page.url, record.page.status or 0) for record in _of_files(kind, folder, is_fleet=is_fleet)]


async def take_away(name: str) -> None:
    """Drop the tables of a sink; its files go with their folder."""
    if _kind(name) in _TABLES:
        for ending in ("", "_items", "_items_rejected"):
            await _ask(name, f"DROP TABLE IF EXISTS {{}}{ending}")


def _of_files(kind: str, folder: Path, *, is_fleet: bool) -> Iterator[Record]:
    if kind == "jsonl" and lines_name(folder, PAGES) is not None:
        yield from _of_lines(folder)
    elif kind == "csv" and (folder / CSV_PAGES).exists():
        yield from of_csv(folder / CSV_PAGES)
    elif kind == "sqlite" and (folder / FILE).exists():
        yield from of_sqlite(folder / FILE)
    elif kind == "warc":
        yield from of_archives(Place.of(folder).warcs, all_visits=not is_fleet)
    elif kind == "parquet" and (tables := parquet_folder(folder)) is not None:
        yield from of_parquet(tables, all_visits=not is_fleet)
    elif kind not in _FILES:
        # A sink of another package: whatever it left that can be read.
        yield from records(folder, all_visits=not is_fleet)


def _of_lines(folder: Path) -> Iterator[Record]:
    decode = msgspec.json.Decoder(PageRow).decode
    for line in lines_of(folder, PAGES):
        yield Record(key=0, token=0, page=decode(line))


async def _ask(name: str, statement: str) -> list[Any]:
    """A statement about the table that a sink's name ends with; none of its words are anybody's but ours."""
    url, _, table = expand(name, source="sink").rpartition("table=")
    return await ask(url[:-1], statement.format(table))


def _kind(name: str) -> str:
    return re.split(r"[:?]", name, maxsplit=1)[0]
