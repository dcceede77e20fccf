"""Reads the bodies that the sink `folder` keeps as files. Their URLs are in what other sinks of the job keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer.model import PageRow, Record
from gossamer.storage.base import Keeps, Reader, SqlSource
from gossamer.storage.query import Cursor, GoOn, Search, TimeCursor
from gossamer.stored.tree import body_path, row_of_body

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob


def tree_readers(job: StoredJob) -> Iterator[Reader]:
    """Those of the folders that `folder:/path` names."""
    for folder in job.targets("folder"):
        if folder.is_dir():
            yield TreeReader(folder)


class TreeReader:
    """A tree of bodies: it answers for a URL, and can list none."""

    cursor: type[Cursor] = TimeCursor
    keeps: frozenset[Keeps] = frozenset(("bodies",))

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = str(folder)

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        return iter(())

    def rows(self, terms: Search) -> Iterator[PageRow]:
        path = body_path(self.folder, terms.url)
        if terms.url and path.is_file() and terms.fits(row := row_of_body(terms.url, path)):
            yield row

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        return list(self.rows(terms)), None

    def items(self) -> Iterator[bytes]:
        return iter(())

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        return {}
