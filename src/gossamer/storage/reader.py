"""Opens the data of a job, a folder, or single files: readers, best first, and stored pages with bodies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gossamer import urls
from gossamer.errors import ArchiveError, NotKept
from gossamer.job_folder import folder_of, stored_settings
from gossamer.model import PageRow, Record
from gossamer.redact import masked_address
from gossamer.storage import parquet_reader
from gossamer.storage.base import Keeps, OnFault, Reader, StoredPage, Version, Which
from gossamer.storage.registry import FORMATS, find_readers, formats_keeping, parted
from gossamer.storage.segments import has_segments
from gossamer.storage.tree import TreeArchive
from gossamer.storage.warc.reader import ENDINGS, ReadPart, WarcArchive, warc_files
from gossamer.storage.warc.records import FOLDER as ARCHIVE

_MISSING: Mapping[Keeps, str] = {
    "rows": "has no rows of pages",
    "items": "has no items",
    "items by page": "does not say which pages its items are from",
    "keys": "has no keys of pages",
    "visits": "stores only the last visit of each page",
    "bodies": "has no pages with bodies",
    "columns": "has no columns",
}


@dataclass(frozen=True)
class StoredJob:
    """The stored data of a job: in its folder, and where its sinks write. A folder of files may stand for a job."""

    folder: Path
    sinks: Sequence[str] = ()
    """The sinks that the job was started with."""
    job: str = ""
    """The job's name in a fleet; empty for a local job."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All settings, if known."""

    @classmethod
    def of(cls, found: Path | StoredJob) -> Self | StoredJob:
        """Return the data in a folder, with the settings found there; without settings if it is not a job's folder."""
        return found if isinstance(found, StoredJob) else cls.with_settings(found, stored_settings(found))

    @classmethod
    def with_settings(cls, folder: Path, settings: Mapping[str, Any], job: str = "") -> Self:
        """Create it for a job with known settings."""
        named = settings.get("sink", ())
        sinks = [name for name in named if isinstance(name, str)] if isinstance(named, list | tuple) else []
        return cls(folder, sinks, job, settings)

    @property
    def is_job(self) -> bool:
        """Whether the folder is a job's, not just one with files of some format."""
        return bool(self.settings or self.sinks) or has_segments(self.folder) or (self.folder / ARCHIVE).is_dir()

    @property
    def is_fleets(self) -> bool:
        """Whether fleet workers wrote it: then it may also contain uncommitted visits."""
        return bool(self.job) or has_segments(self.folder)

    @property
    def elsewhere(self) -> list[str]:
        """Its sinks outside the folder, for display."""
        return elsewhere(self.sinks)

    def targets(self, *names: str) -> list[Path]:
        """Return the paths in sinks of these formats, such as `/data` in `warc:/data`."""
        parts = (parted(name) for name in self.sinks)
        return [Path(target.partition("?")[0]) for name, target in parts if name in names and target.startswith("/")]

    def readers(self) -> list[Reader]:
        """Return the readers of all data found, best first."""
        return [reader for find in find_readers(self.sinks) for reader in find(self)]

    def first(self, *what: Keeps, prefer: Keeps | None = None) -> Reader | None:
        """Return the best reader with all of this data; of several, one with the preferred data."""
        able = [reader for reader in self.readers() if reader.keeps.issuperset(what)]
        return next((reader for reader in able if prefer in reader.keeps), able[0] if able else None)

    def need(self, *what: Keeps, prefer: Keeps | None = None) -> Reader:
        """Like `first`; raises NotKept, which names what is missing and which sink stores it."""
        if (reader := self.first(*what, prefer=prefer)) is not None:
            return reader
        raise self.missing_data(*what)

    def missing_data(self, *what: Keeps) -> NotKept:
        """Return the error for missing data."""
        hint = f"crawl with --sink {' or --sink '.join(formats_keeping(*what))} as a further sink"
        if not self.folder.is_dir() and not self.sinks:
            return NotKept(f"{self.folder} does not exist", hint="see crawls/ for the names of jobs")
        if readers := self.readers():
            places = ", ".join(dict.fromkeys(reader.place for reader in readers))
            missing = [one for one in what if not any(one in reader.keeps for reader in readers)] or what[-1:]
            return NotKept(f"{places} {_MISSING[missing[0]]}", hint=hint)
        unread = [masked_address(name) for name in self.sinks if parted(name)[0] in FORMATS and not _is_readable(name)]
        if unread:
            return NotKept(f"{', '.join(unread)}: this sink cannot be read back", hint=hint)
        if remote := self.elsewhere:
            return NotKept(f"no data in {self.folder} or in {', '.join(remote)}", hint="has the crawl started?")
        return NotKept(f"no data in {self.folder}", hint="name the job's folder, or --frontier URL for a fleet's job")

    def expects(self, *what: Keeps) -> bool:
        """Whether there is no data yet, but a sink of the job will store this."""
        kept = [form.keeps for name in self.sinks if (form := FORMATS.get(parted(name)[0])) is not None]
        return not self.readers() and any(keeps.issuperset(what) for keeps in kept)

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        """Yield the last record of every page, or with `all_visits` each; NotKept if there are none."""
        wanted: tuple[Keeps, ...] = ("rows", "items by page") if items else ("rows",)
        return self.need(*wanted).records(all_visits=all_visits, items=items)

    def items(self) -> Iterator[bytes]:
        """Yield the items of all pages as JSON; NotKept if there are none."""
        return self.need("items").items()


def elsewhere(sinks: Sequence[str]) -> list[str]:
    """Return the sinks that write outside the job's folder, for display."""
    return [masked_address(name) for name in sinks if ":/" in name]


def _is_readable(name: str) -> bool:
    return bool(FORMATS[parted(name)[0]].reader)


class Stored:
    """All stored data of some places. Read-only and thread-safe. Close it, or use it in `with`, to remove temporary
    indexes."""

    def __init__(
        self,
        warcs: Sequence[Path],
        trees: Sequence[tuple[Path, Path]] = (),
        *,
        index_folder: Path | None = None,
        only: Mapping[str, Set[int]] | None = None,
        jobs: Mapping[Path, StoredJob] | None = None,
    ) -> None:
        """`jobs` maps the folder of a tree to the job with the rows of its pages."""
        # A private folder: the stored data may be read-only, or another user's.
        self._own = tempfile.TemporaryDirectory(prefix="gossamer-index-") if index_folder is None else None
        self.index_folder = Path(self._own.name) if self._own is not None else index_folder or Path()
        """Folder of temporary indexes; processes that read the same data may share it."""
        self.warcs = tuple(warcs)
        self.trees = tuple(trees)
        """Trees of bodies, each with the folder of the job whose rows have their URLs."""
        self._archive = WarcArchive(self.warcs, self.index_folder, shared=index_folder is not None, only=only)
        self._trees = {
            str(folder): TreeArchive(tree, folder, self.index_folder, (jobs or {}).get(folder))
            for tree, folder in self.trees
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary indexes."""
        if self._own is not None:
            self._own.cleanup()

    def versions(self, url: str) -> list[Version]:
        """Return the stored responses of a URL, oldest first, including redirects and errors."""
        wanted = urls.normal(url) or url
        found = self._archive.versions(wanted)
        if not found:
            found = [version for tree in self._trees.values() for version in tree.versions(wanted)]
        return sorted(found, key=lambda version: (version.fetched_at, version.file, version.offset))

    def find(self, url: str, at: float | None = None) -> Version | None:
        """Return the version nearest to a time, or the last one; None if the URL was never stored."""
        found = self.versions(url)
        if at is None or not found:
            return found[-1] if found else None
        return min(found, key=lambda version: abs(version.fetched_at - at))

    def page(self, version: Version) -> StoredPage | None:
        """Return a version as a page with its body; None if it is not a page, such as a redirect."""
        return self._holder(version).page(version)

    def stream(self, version: Version, *, size: int = 65_536) -> Iterator[bytes]:
        """Yield the body of a version, also of redirects and errors, in chunks of at most `size` bytes."""
        return self._holder(version).stream(version, size)

    def row(self, version: Version) -> PageRow:
        """Return the row of a version, as the crawl wrote it, or as far as it is known."""
        return self._holder(version).row(version)

    def parts(self, which: Which = "last") -> Iterator[ReadPart]:
        """Split all pages into parts for several processes; read in order, they give the same as `pages`."""
        yield from self._archive.parts(which)
        for tree in self._trees.values():
            yield from tree.parts(which)

    def part(self, part: ReadPart, on_fault: OnFault | None = None) -> Iterator[StoredPage]:
        """Yield the pages of one part."""
        holder = self._trees.get(part.source)
        yield from (holder.pages(part, on_fault) if holder is not None else self._archive.pages(part, on_fault))

    def pages(self, which: Which = "last", on_fault: OnFault | None = None) -> Iterator[StoredPage]:
        """Yield every page that a spider handled, in the order of files: the last version of each, or all.

        Faults are passed to `on_fault`, and reading continues; without it, they are raised."""
        for part in self.parts(which):
            yield from self.part(part, on_fault)

    def _holder(self, version: Version) -> WarcArchive | TreeArchive:
        if version.file.endswith(ENDINGS):
            return self._archive
        return next(tree for tree in self._trees.values())


def open_stored(*places: str | Path | StoredJob) -> Stored:
    """Open the data of a job (name, folder, or path), of folders of WARC files, or of single files; ArchiveError
    explains what is missing."""
    warcs: list[Path] = []
    trees: list[tuple[Path, Path]] = []
    jobs: dict[Path, StoredJob] = {}
    only: dict[str, set[int]] = {}
    for place in places:
        if isinstance(place, StoredJob):
            _add_place(place, warcs, trees, jobs)
            continue
        path = Path(place)
        if tables := _tables(path):
            for table in tables:
                for file, offsets in parquet_reader.places(table).items():
                    only.setdefault(str(file), set()).update(offsets)
            continue
        if path.is_file():
            if not path.name.endswith(ENDINGS):
                raise ArchiveError(
                    f"{path} is not a WARC file", hint="name a job, or files that end in .warc.gz, .warc or .parquet"
                )
            warcs.append(path)
            continue
        folder = path if path.is_dir() else folder_of(str(place), ())
        if not folder.is_dir():
            remote = "://" in str(place)
            hint = (
                "download its objects into a folder, and name that" if remote else "see crawls/ for the names of jobs"
            )
            raise ArchiveError(f"{masked_address(str(place))}: no such job, folder or file", hint=hint)
        _add_place(StoredJob.of(folder), warcs, trees, jobs)
    # A file may be named twice.
    for whole in map(str, warcs):
        only.pop(whole, None)
    return Stored(list(dict.fromkeys([*warcs, *map(Path, only)])), list(dict.fromkeys(trees)), only=only, jobs=jobs)


def _tables(path: Path) -> list[Path]:
    """Return a Parquet file of pages, or those in a folder of the sink `parquet`, or below one of its parts."""
    if path.is_file():
        return [path] if path.name.endswith(parquet_reader.PARQUET_SUFFIX) else []
    if not path.is_dir() or (place := StoredJob.of(path)).is_job or warc_files(place):
        return []
    below = path / "pages" if (path / "pages").is_dir() else path
    return sorted(below.rglob(f"*{parquet_reader.PARQUET_SUFFIX}"))


def _add_place(
    place: StoredJob, warcs: list[Path], trees: list[tuple[Path, Path]], jobs: dict[Path, StoredJob]
) -> None:
    """Add the data of a place. Pages in WARC files are not read again from a tree."""
    found = warc_files(place)
    kept = [(tree, place.folder) for tree in place.targets("folder")] if place.is_job and not found else []
    if not found and not kept:
        raise _no_bodies(place)
    warcs += found
    trees += kept
    jobs[place.folder] = place


def _no_bodies(place: StoredJob) -> NotKept:
    """Return the error for a job without bodies."""
    if remote := [name for name in place.elsewhere if name.startswith("warc+")]:
        return NotKept(
            f"the pages of {place.folder} are in {', '.join(remote)}",
            hint="download its objects into a folder, and name that",
        )
    return NotKept(
        f"{place.folder} has no pages with bodies: no sink stored them",
        hint="crawl with --sink jsonl --sink warc; for a fleet's job, add --frontier URL",
    )
