"""Stored pages that are like this or that, the newest first, from whichever of a job's sinks keeps rows."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gossamer import urls
from gossamer.errors import ArchiveError, ConfigError
from gossamer.model import PageRow
from gossamer.sink.csv import PAGES as CSV_PAGES
from gossamer.sink.jsonl import PAGES, SUFFIXES, lines_of
from gossamer.stored.captures import Captures
from gossamer.stored.lookup import csv_row, page_row
from gossamer.stored.open import open_stored
from gossamer.stored.page import Version
from gossamer.stored.places import Place

_decode = msgspec.json.Decoder(PageRow).decode
_EVERY = 1000
"""Rows between two looks at the clock."""
_STEPS = 1_000_000
"""Of SQLite's own steps, the same."""


class Before(NamedTuple):
    """Where a search goes on: pages older than this; of one time, those with a lesser URL."""

    fetched_at: float
    url: str


KeepOn = Callable[[], bool]
"""Whether there is time left."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a page must be like; what is None does not matter."""

    site: str | None = None
    site_by: str = "host"
    status: int | None = None
    since: float | None = None
    until: float | None = None
    prefix: str = ""

    @property
    def beginnings(self) -> tuple[str, ...]:
        """Texts with one of which every URL that fits begins; none where that is not known."""
        if self.prefix:
            return (self.prefix,)
        if self.site is not None and self.site_by == "host":
            return (f"http://{self.site}/", f"https://{self.site}/")
        return ()

    def fits(self, row: PageRow | Version) -> bool:
        """Whether a page is so."""
        return (
            (self.status is None or row.status == self.status)
            and (self.since is None or row.fetched_at >= self.since)
            and (self.until is None or row.fetched_at < self.until)
            and row.url.startswith(self.prefix)
            and (self.site is None or urls.site(row.url, by=self.site_by) == self.site)
        )

    def needles(self) -> tuple[bytes, ...]:
        """Texts of which one is in every line that fits: looking for them is quicker than reading the line."""
        found = tuple(b'{"url":' + msgspec.json.encode(text)[:-1] for text in self.beginnings)
        if not found and self.status is not None:
            found = (b'"status":%d,' % self.status,)
        return found


def search(place: Place, wanted: Wanted, before: Before | None, limit: int, keep_on: KeepOn) -> list[PageRow]:
    """The newest that fit, `limit` at most; a ConfigError if the rows are in none of the job's files, or too many.

    A store that has no order by time is read through, in bounded memory, for as long as `keep_on` says."""
    rows = _rows(place, wanted, before, limit, keep_on)
    found: dict[Before, PageRow] = {}
    for number, row in enumerate(rows):
        if number % _EVERY == 0 and not keep_on():
            raise _too_many()
        if row is None or not wanted.fits(row):
            continue
        at = Before(row.fetched_at, row.url)
        if before is None or at < before:
            # A commit that was repeated leaves two rows of one visit.
            found[at] = row
            if len(found) > 4 * limit:
                found = _newest(found, limit)
    return list(_newest(found, limit).values())


def has_rows(place: Place) -> bool:
    """Whether any of the job's files can be searched."""
    folder = place.folder
    lines = any((folder / f"{PAGES}{suffix}").exists() for suffix in SUFFIXES.values())
    tables = place.parquet is not None or place.sqlite_file is not None
    return lines or tables or (folder / CSV_PAGES).exists() or bool(place.warcs)


def _too_many() -> ConfigError:
    return ConfigError(
        "the pages of this job are too many to be read through in the time that there is",
        hint="crawl with --sink jsonl beside it, which is read from its end; or ask with `gossamer sql`",
    )


def _newest(found: dict[Before, PageRow], limit: int) -> dict[Before, PageRow]:
    return dict(sorted(found.items(), reverse=True)[:limit])


def _rows(place: Place, wanted: Wanted, before: Before | None, limit: int, keep_on: KeepOn) -> Iterator[PageRow | None]:
    """Rows among which are the newest that fit; None stands for some that do not."""
    folder = place.folder
    if any((folder / f"{PAGES}{suffix}").exists() for suffix in SUFFIXES.values()):
        return _of_lines(folder, wanted)
    if (tables := place.parquet) is not None:
        return _of_parquet(tables, wanted, before, limit)
    if (database := place.sqlite_file) is not None:
        return _of_sqlite(database, wanted, before, limit, keep_on)
    if (folder / CSV_PAGES).exists():
        return _of_csv(folder / CSV_PAGES)
    if place.warcs:
        return _of_archives(place, wanted, before, limit)
    kept = ", ".join(place.elsewhere) or "no sink"
    raise ConfigError(
        f"the pages of this job are kept by {kept} alone, where they are not searched",
        hint="ask there, or crawl with --sink jsonl, sqlite, parquet, csv or warc beside it",
    )


def _of_lines(folder: Path, wanted: Wanted) -> Iterator[PageRow | None]:
    needles = wanted.needles()
    for line in lines_of(folder, PAGES):
        if needles and not any(needle in line for needle in needles):
            yield None
            continue
        # The last one may be written at this moment.
        with suppress(msgspec.DecodeError):
            yield _decode(line)


def _of_sqlite(path: Path, wanted: Wanted, before: Before | None, limit: int, keep_on: KeepOn) -> Iterator[PageRow]:
    """In the order of time, so that the first ones are enough; a site of a whole domain is found by reading on."""
    tests: list[tuple[str, tuple[Any, ...]]] = []
    if wanted.status is not None:
        tests.append(("status = ?", (wanted.status,)))
    if wanted.since is not None:
        tests.append(("fetched_at >= ?", (wanted.since,)))
    if wanted.until is not None:
        tests.append(("fetched_at < ?", (wanted.until,)))
    if before is not None:
        tests.append(("(fetched_at, url) < (?, ?)", (before.fetched_at, before.url)))
    if heads := wanted.beginnings:
        either = " OR ".join("substr(url, 1, ?) = ?" for _ in heads)
        tests.append((f"({either})", tuple(value for head in heads for value in (len(head), head))))
    where = " AND ".join(text for text, _ in tests) or "1"
    values = [value for _, some in tests for value in some]
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        database.set_progress_handler(lambda: not keep_on(), _STEPS)
        try:
            found = database.execute(f"SELECT * FROM pages WHERE {where} ORDER BY fetched_at DESC, url DESC", values)  # noqa: S608
            for row in map(page_row, map(dict, found)):
                yield row
                limit -= wanted.fits(row)
                if not limit:
                    return
        except sqlite3.DatabaseError as error:
            if not keep_on():
                raise _too_many() from None
            raise ConfigError(f"{path} is not what the sink sqlite writes: {error}", hint="ask it in SQL") from None


def _of_csv(path: Path) -> Iterator[PageRow]:
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            # The last one may be written at this moment.
            with suppress(ValueError, TypeError, AttributeError):
                yield csv_row(row)


def _of_parquet(folder: Path, wanted: Wanted, before: Before | None, limit: int) -> Iterator[PageRow | None]:
    """Of each file only the newest that fit."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from gossamer.sink import parquet_files as files

    waiting = files.logs(folder)
    for log in waiting:
        with suppress(FileNotFoundError):
            yield from (row.page for row in files.rows_of(log))
    for path in files.sealed(folder, but={log.name for log in waiting}):
        table = pq.read_table(path, columns=["url", "status", "fetched_at"], partitioning=None)
        names = table.column("url").to_pylist()
        times = [value / 1e6 for value in table.column("fetched_at").cast(pa.int64()).to_pylist()]
        fit = [
            (Before(at, url), number)
            for number, (url, status, at) in enumerate(
                zip(names, table.column("status").to_pylist(), times, strict=True)
            )
            if wanted.fits(Version(url=url, status=status or 0, fetched_at=at))
            and (before is None or (at, url) < before)
        ]
        newest = sorted(fit, reverse=True)[:limit]
        yield None
        if newest:
            rows = pq.read_table(path, partitioning=None).take(pa.array([number for _, number in newest]))
            at = rows.schema.get_field_index("fetched_at")
            rows = rows.set_column(at, "fetched_at", pc.cast(rows.column(at), pa.int64()))
            yield from (page_row({**row, "fetched_at": row["fetched_at"] / 1e6}) for row in rows.to_pylist())


def _of_archives(place: Place, wanted: Wanted, before: Before | None, limit: int) -> Iterator[PageRow | None]:
    """By their indexes, which know times in whole seconds; what is told of the newest is in the files themselves."""
    found: list[Version] = []
    edge = floor(before.fetched_at) if before is not None else None
    needles = tuple(msgspec.json.encode(text)[:-1] for text in wanted.beginnings)
    rough = Wanted(site=wanted.site, site_by=wanted.site_by, status=wanted.status, prefix=wanted.prefix)
    with open_stored(place) as stored:
        for path in stored.warcs:
            held = Captures(path, stored.drafts)
            for line in held.lines():
                yield None
                if needles and not any(needle in line for needle in needles):
                    continue
                version = held.version(line)
                at = version.fetched_at
                in_time = (wanted.since is None or at + 1 > wanted.since) and (
                    wanted.until is None or at < wanted.until
                )
                if in_time and (edge is None or at <= edge) and rough.fits(version):
                    found.append(version)
                    if len(found) > 8 * limit:
                        found = _latest(found, limit, edge)
        for version in _latest(found, limit, edge):
            with suppress(ArchiveError):
                yield stored.row(version)


def _latest(found: list[Version], limit: int, edge: float | None) -> list[Version]:
    """The newest, with all of the last second that is among them, and all of the second in which the search goes on:
    which of these come first, only the files know."""
    found = sorted(found, key=lambda version: -version.fetched_at)
    sure = [version for version in found if version.fetched_at != edge]
    if len(sure) <= limit:
        return found
    last = sure[limit - 1].fetched_at
    return [version for version in found if version.fetched_at >= last]
