"""Reads Parquet files and their row logs through DuckDB, without pyarrow.

Logs become Parquet files and are deleted while others read. An open log stays readable, so the logs are opened before
the files are listed: no visit is missed, and none is read twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from gossamer.errors import ArchiveError
from gossamer.extras import unusable
from gossamer.model import PageRow, Record
from gossamer.storage import duckdb_views, query
from gossamer.storage.base import TABLES, Keeps, Reader, SqlSource, name_digest, page_row
from gossamer.storage.query import Cursor, GoOn, Search, TimeCursor
from gossamer.storage.warc.records import OPEN

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob


_SELECT_PAGES = (
    "SELECT * REPLACE (make_timestamp(epoch_us(fetched_at)) AS fetched_at)"
    " FROM read_parquet({files}, union_by_name = true, hive_partitioning = false)"
)
# Without the columns that the sink makes of fields: rows in a log do not have them.
_SELECT_ITEMS = _SELECT_PAGES.replace(
    "* REPLACE (make_timestamp(epoch_us(fetched_at)) AS fetched_at)",
    "key, token, site, url, make_timestamp(epoch_us(fetched_at)) AS fetched_at, number, item::JSON AS item",
)


def parquet_readers(job: StoredJob) -> Iterator[Reader]:
    """Yield the readers of the job's folder, of the one in `parquet:/path`, and of the folder itself."""
    if (job.folder / TABLES).is_dir():
        yield ParquetReader(job.folder / TABLES)
    elif (job.folder / "pages").is_dir() or (job.folder.name == TABLES and job.folder.is_dir()):
        yield ParquetReader(job.folder)
    for folder in job.targets("parquet"):
        if folder.is_dir():
            yield ParquetReader(folder, _ours(job))


def _ours(job: StoredJob) -> Callable[[str], bool]:
    """Return a test for the file names of this job, in a folder that several jobs may write to."""
    if job.is_fleets:
        # Workers have their own folders, so the digests in file names differ.
        name = quote(job.job or job.folder.absolute().name, safe="")
        pattern = re.compile(rf"{re.escape(name)}-.+-[0-9a-f]{{8}}-\d+")
    else:
        name = quote(job.folder.absolute().name, safe="")
        pattern = re.compile(rf"{re.escape(name)}-{name_digest(job.folder.absolute())}-\d+")
    return lambda name: pattern.fullmatch(name) is not None


class ParquetReader:
    """Reads a folder with `pages/`, `items/`, and logs; in a shared folder, only files that are `ours`."""

    cursor: type[Cursor] = TimeCursor
    keeps: frozenset[Keeps] = frozenset(("rows", "items", "items by page", "keys", "visits", "columns"))

    def __init__(self, folder: Path, ours: Callable[[str], bool] | None = None) -> None:
        self._folder, self._ours = folder, ours
        self.place = str(folder)

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        from gossamer.storage.parquet_files import Snapshot

        with Snapshot(self._folder, self._ours) as snapshot:
            counts = query.find_current(snapshot.stamps(), all_visits=all_visits)
            for record, is_wanted in zip(snapshot.records(items=items), counts, strict=True):
                if is_wanted:
                    yield record

    def rows(self, terms: Search) -> Iterator[PageRow]:
        from gossamer.storage.parquet_files import Snapshot

        with Snapshot(self._folder, self._ours) as snapshot:
            yield from filter(terms.fits, snapshot.pages(filters=_filters(terms)))

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        rows = self._newest(terms, after if isinstance(after, TimeCursor) else None, limit + 1)
        return query.newest(rows, terms, after=after, limit=limit, go_on=go_on)

    def _newest(self, terms: Search, before: TimeCursor | None, limit: int) -> Iterator[PageRow | None]:
        """Yield the newest matching rows of each file."""
        from gossamer.storage.parquet_files import Snapshot

        with Snapshot(self._folder, self._ours) as snapshot:
            yield from snapshot.waiting_pages()
            for path in snapshot.files:
                yield None
                yield from _newest_in(path, terms, before, limit)

    def items(self) -> Iterator[bytes]:
        for record in self.records(items=True):
            yield from map(msgspec.json.encode, record.items)

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        logs = [path for path in sorted(self._folder.glob("*.jsonl")) if self._ours is None or self._ours(path.stem)]
        waiting = {path.stem for path in logs}
        pages, items = (self._sealed(kind, waiting) for kind in ("pages", "items"))
        return {
            "_visits": [
                SqlSource(pages, _SELECT_PAGES, has_keys=True),
                SqlSource(logs, duckdb_views.RECORD_PAGES, has_keys=True),
            ],
            "_items": [SqlSource(items, _SELECT_ITEMS), SqlSource(logs, duckdb_views.RECORD_ITEMS)],
        }

    def _sealed(self, kind: str, waiting: Container[str]) -> list[Path]:
        found = sorted((self._folder / kind).rglob("*.parquet"))
        return [path for path in found if path.stem not in waiting and (self._ours is None or self._ours(path.stem))]


def _filters(terms: Search) -> list[tuple[str, str, Any]] | None:
    """Convert terms to pyarrow filters, which skip row groups."""
    found: list[tuple[str, str, Any]] = [("url", "==", terms.url)] if terms.url else []
    found += [("status", "==", terms.status)] if terms.status is not None else []
    return found or None


class _Answer(msgspec.Struct, frozen=True):
    """The columns that terms apply to."""

    url: str
    status: int
    fetched_at: float


def _newest_in(path: Path, terms: Search, before: TimeCursor | None, limit: int) -> Iterator[PageRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from gossamer.storage.parquet_files import page_values

    table = pq.read_table(path, columns=["url", "status", "fetched_at"], partitioning=None)
    times = [value / 1e6 for value in table.column("fetched_at").cast(pa.int64()).to_pylist()]
    rows = zip(table.column("url").to_pylist(), table.column("status").to_pylist(), times, strict=True)
    fit = [
        (at, url, number)
        for number, (url, status, at) in enumerate(rows)
        if terms.fits(_Answer(url, status or 0, at)) and (before is None or (at, url) < before)
    ]
    if newest := sorted(fit, reverse=True)[:limit]:
        found = pq.read_table(path, partitioning=None).take(pa.array([number for _, _, number in newest]))
        yield from map(page_row, page_values(found))


PARQUET_SUFFIX = ".parquet"


def places(path: Path) -> dict[Path, set[int]]:
    """Map each WARC file to the offsets of the pages in the rows."""
    found: dict[Path, set[int]] = {}
    files: dict[str, Path] = {}
    for name, offset in _pairs(path):
        if name not in files:
            files[name] = _file(path, name)
        found.setdefault(files[name], set()).add(offset)
    if not found:
        raise ArchiveError(
            f"{path} has no column with the locations of page bodies",
            hint="crawl with --sink parquet --sink warc to get it",
        )
    return found


def _pairs(path: Path) -> Iterator[tuple[str, int]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as missing:
        raise unusable("parquet", "Parquet", missing) from missing
    try:
        with pq.ParquetFile(path) as file:
            if "warc_offset" not in file.schema_arrow.names:
                return
            for batch in file.iter_batches(columns=["warc_file", "warc_offset"]):
                names, offsets = batch.column(0).to_pylist(), batch.column(1).to_pylist()
                yield from ((name, offset) for name, offset in zip(names, offsets, strict=True) if name is not None)
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"{path}: {error}", hint="is it a complete Parquet file?") from None


def _file(path: Path, name: str) -> Path:
    """Return the WARC file with this name: as a path, or in one of the parent folders of the rows."""
    for folder in path.absolute().parents:
        for candidate in (folder / name, folder / (name + OPEN)):
            if candidate.is_file():
                return candidate
    raise ArchiveError(f"{path} refers to {name}, which is missing", hint="keep the files of a job together")
