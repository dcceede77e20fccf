"""Reads the segments of a fleet's workers as one: every visit carries key and token, and the highest token counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gossamer.model import PageRow, Record
from gossamer.sink import segments
from gossamer.storage import selects
from gossamer.storage.base import Keeps, Reader, SqlSource
from gossamer.storage.jsonl_reader import lines_with, rows_in, search_lines
from gossamer.storage.query import ByteCursor, Cursor, GoOn, Search

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob


def segment_readers(job: StoredJob) -> Iterator[Reader]:
    """That of the segments in a job's folder."""
    if segments.has_segments(job.folder):
        yield SegmentReader(job.folder)


class SegmentReader:
    """The files in `segments/`. What a late worker stored beside the visit that counts is left out of `records`."""

    keeps: frozenset[Keeps] = frozenset(("rows", "items", "items by page", "keys", "visits"))
    cursor: type[Cursor] = ByteCursor

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = str(folder / segments.FOLDER)

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        return segments.gather(self._folder, all_visits=all_visits)

    def rows(self, terms: Search) -> Iterator[PageRow]:
        needles = terms.needles()
        for path in self._files():
            yield from (row for row in rows_in(lines_with(path, needles), terms) if row is not None)

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        newest = sorted(self._files(), key=lambda path: (-path.stat().st_mtime, path.name))
        return search_lines(newest, terms, after=after, limit=limit)

    def items(self) -> Iterator[bytes]:
        for record in segments.gather(self._folder):
            yield from map(msgspec.json.encode, record.items)

    def rejected(self) -> Iterator[bytes]:
        for record in segments.gather(self._folder):
            yield from map(msgspec.json.encode, record.rejected)

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        files = self._files()
        return {
            "_visits": [SqlSource(files, selects.RECORD_PAGES, has_keys=True)],
            "_items": [SqlSource(files, selects.RECORD_ITEMS)],
        }

    def _files(self) -> list[Path]:
        return sorted((self._folder / segments.FOLDER).glob(f"*{segments.SUFFIX}"))
