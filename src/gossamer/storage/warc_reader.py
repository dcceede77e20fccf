"""Reads the rows, the items and the bodies of WARC files, by their indexes where these are enough.

A file that ends in `.open` is being written: its end may be half a record, which is left out, and it may be finished
and renamed between two reads, after which it is found by its other name."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from gossamer.errors import ArchiveError
from gossamer.model import PageRow, Record
from gossamer.sink.base import name_digest
from gossamer.sink.warc import FOLDER, OPEN, SUFFIX
from gossamer.storage import query, selects
from gossamer.storage.base import Keeps, Reader, SqlSource
from gossamer.storage.query import Cursor, GoOn, Search, TimeCursor
from gossamer.stored.captures import Captures
from gossamer.stored.page import Version
from gossamer.stored.records import current, read_records
from gossamer.stored.shelf import WarcArchive
from gossamer.stored.visits import noted_in

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob

ENDINGS = (SUFFIX, SUFFIX + OPEN, ".warc")
"""How the names of WARC files end."""
_INFO_BYTES = 1 << 20


def warc_readers(job: StoredJob) -> Iterator[Reader]:
    """That of the WARC files of a job, or of a folder that has some."""
    if paths := warc_files(job):
        yield WarcReader(paths)


def warc_files(job: StoredJob) -> list[Path]:
    """The WARC files of a job: in its folder, and those that are its own where `warc:/path` says."""
    if not job.is_job:
        return _listed(job.folder)
    return [*_listed(job.folder / FOLDER), *_shared(job)]


def _shared(job: StoredJob) -> Iterator[Path]:
    """Of folders that other jobs may write to as well, the files of this one.

    Names begin with the job's and have a digest of its folder in them. A fleet's workers may have different ones:
    their files say what they are part of."""
    home = job.folder.absolute()
    prefix, digest = quote(home.name, safe=""), name_digest(home)
    for folder in job.targets("warc"):
        for path in _listed(folder):
            is_ours = path.name.startswith(prefix) and digest in path.name
            if is_ours or (job.is_fleets and _part_of(path) == (job.job or home.name)):
                yield path


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(ENDINGS) and path.is_file())
    except OSError:
        return []


def _part_of(path: Path) -> str:
    """The job that a file says it is part of; empty if it says nothing."""
    try:
        with closing(read_records(path)) as records:
            first = next(records, None)
            block = first.read(_INFO_BYTES) if first is not None and first.kind == "warcinfo" else b""
    except ArchiveError:
        return ""
    named = (line.partition(b":") for line in block.splitlines())
    return next((value.strip().decode("utf-8", "replace") for key, _, value in named if key == b"isPartOf"), "")


class WarcReader:
    """The pages of WARC files, by the metadata records that a crawl writes behind its answers."""

    cursor: type[Cursor] = TimeCursor
    keeps: frozenset[Keeps] = frozenset(("rows", "items", "items by page", "keys", "visits", "bodies"))

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        folders = dict.fromkeys(str(path.parent) for path in paths)
        self.place = ", ".join(folders)

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        counts: list[int] = []
        stamps = self._stamps(counts)
        wanted = iter(query.last_words(stamps, all_visits=all_visits))
        for path, count in zip(self.paths, counts, strict=True):
            # A file that has grown since is read as far as it was then.
            for record, is_wanted in zip(islice(_visits_in(path, items=items), count), wanted, strict=False):
                if is_wanted:
                    yield record

    def _stamps(self, counts: list[int]) -> Iterator[tuple[int, int]]:
        """Key and token of all visits; how many each file has is added to `counts`."""
        for path in self.paths:
            counts.append(0)
            for record in _visits_in(path):
                counts[-1] += 1
                yield record.key, record.token

    def rows(self, terms: Search) -> Iterator[PageRow]:
        if not terms.url:
            rows = (record.page for path in self.paths for record in _visits_in(path))
            yield from filter(terms.fits, rows)
            return
        with self._shelf() as shelf:
            for version in shelf.versions(terms.url):
                with suppress(ArchiveError):
                    yield shelf.row(version)

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        rows = self._newest(terms, after if isinstance(after, TimeCursor) else None, limit + 1)
        return query.newest(rows, terms, after=after, limit=limit, go_on=go_on)

    def _newest(self, terms: Search, before: TimeCursor | None, limit: int) -> Iterator[PageRow | None]:
        """By the indexes, which know times in whole seconds; what is told of the newest is in the files themselves."""
        found: list[Version] = []
        edge = floor(before.fetched_at) if before is not None else None
        needles = tuple(msgspec.json.encode(text)[:-1] for text in terms.beginnings)
        rough = Search(url=terms.url, site=terms.site, site_by=terms.site_by, status=terms.status, prefix=terms.prefix)
        with tempfile.TemporaryDirectory(prefix="gossamer-index-") as drafts:
            for path in map(current, self.paths):
                held = Captures(path, Path(drafts))
                for line in held.lines():
                    yield None
                    if needles and not any(needle in line for needle in needles):
                        continue
                    version = held.version(line)
                    at = version.fetched_at
                    in_time = (terms.since is None or at + 1 > terms.since) and (
                        terms.until is None or at < terms.until
                    )
                    if in_time and (edge is None or at <= edge) and rough.fits(version):
                        found.append(version)
                        if len(found) > 8 * limit:
                            found = _latest(found, limit, edge)
            shelf = WarcArchive([current(path) for path in self.paths], Path(drafts))
            for version in _latest(found, limit, edge):
                with suppress(ArchiveError):
                    yield shelf.row(version)

    def items(self) -> Iterator[bytes]:
        for record in self.records(items=True):
            yield from map(msgspec.json.encode, record.items)

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        return selects.spilled(self.records(all_visits=True, items=True), spill)

    @contextmanager
    def _shelf(self) -> Iterator[WarcArchive]:
        # What was stored may be read-only, or somebody else's: indexes that have to be made are elsewhere.
        with tempfile.TemporaryDirectory(prefix="gossamer-index-") as drafts:
            yield WarcArchive([current(path) for path in self.paths], Path(drafts))


def _visits_in(path: Path, *, items: bool = False) -> Iterator[Record]:
    """The visits that the metadata records of a file tell of."""
    try:
        for record in read_records(path):
            noted = noted_in(record) if record.kind == "metadata" else None
            if noted is not None and noted.page is not None:
                of_page = tuple(msgspec.json.decode(item) for item in noted.items) if items else ()
                yield Record(key=noted.key, token=noted.token, page=noted.page, items=of_page)
    except ArchiveError:
        # The end of what is written at this moment.
        if not path.name.endswith(OPEN):
            raise


def _latest(found: list[Version], limit: int, edge: float | None) -> list[Version]:
    """The newest, with all of the last second that is among them, and all of the second in which the search goes on:
    which of these come first, only the files know."""
    found = sorted(found, key=lambda version: -version.fetched_at)
    sure = [version for version in found if version.fetched_at != edge]
    if len(sure) <= limit:
        return found
    last = sure[limit - 1].fetched_at
    return [version for version in found if version.fetched_at >= last]
