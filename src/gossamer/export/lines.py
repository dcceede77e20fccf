"""Exports as text: pages or items, one a line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain, islice
from typing import IO, NamedTuple

import msgspec

from gossamer.export import Export
from gossamer.model import PageRow
from gossamer.storage.csv import cell

_COLUMNS = tuple(column.name for column in msgspec.structs.fields(PageRow))
_encode = msgspec.json.Encoder().encode


def write_jsonl(export: Export) -> int:
    """Pages as pages.jsonl has them."""
    return _lines(export, (_encode(record.page) for record in export.records()))


def write_urls(export: Export) -> int:
    """URLs of pages."""
    return _lines(export, (record.page.url.encode("utf-8", "replace") for record in export.records()))


def write_items(export: Export) -> int:
    """Items as items.jsonl has them."""
    return _lines(export, _items(export))


def write_csv(export: Export) -> int:
    """Pages as pages.csv has them, without formulas."""
    count = 0
    records = export.records()
    # Before the names of the columns: nothing is printed where there is nothing to export.
    first = list(islice(records, 1))
    with export.output() as out:
        rows = csv.writer(_Encoded(out))
        rows.writerow(_COLUMNS)
        for record in chain(first, records):
            rows.writerow([cell(getattr(record.page, name)) for name in _COLUMNS])
            count += 1
    return count


class _Encoded(NamedTuple):
    """What a writer of CSV writes to."""

    out: IO[bytes]

    def write(self, text: str) -> int:
        return self.out.write(text.encode("utf-8", "replace"))


def _lines(export: Export, lines: Iterator[bytes]) -> int:
    count = 0
    with export.output() as out:
        for line in lines:
            out.write(line + b"\n")
            count += 1
    return count


def _items(export: Export) -> Iterator[bytes]:
    if not export.where and not export.all_visits:
        yield from export.source.need("items").items()
        return
    for record in export.records(with_items=True):
        yield from map(_encode, record.items)
