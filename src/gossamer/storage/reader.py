"""Opens what a job, a folder, or some files hold: its readers, best first, and stored pages with bodies."""

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
from gossamer.storage.tree import TreeShelf
from gossamer.storage.warc.reader import ENDINGS, ReadPart, WarcArchive, warc_files
from gossamer.storage.warc.records import FOLDER as ARCHIVE

_LACKS: Mapping[Keeps, str] = {
    "rows": "has no rows of pages",
    "items": "has no items",
    "items by page": "does not say which pages its items are from",
    "keys": "has no keys of pages",
    "visits": "has only the last visit of each page",
    "bodies": "has no page with its body",
    "columns": "has no columns",
}


@dataclass(frozen=True)
class StoredJob:
    """What a job has stored: in its folder, and where its sinks say. A folder of files may stand for a job."""

    folder: Path
    sinks: Sequence[str] = ()
    """Those that it was started with."""
    job: str = ""
    """The name by which a fleet knows it; empty for a job of this machine."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All its settings, where they are known."""

    @classmethod
    def of(cls, found: Path | StoredJob) -> Self | StoredJob:
        """What is in a folder, with the settings that are there; none if it is no job's."""
        return found if isinstance(found, StoredJob) else cls.with_settings(found, stored_settings(found))

    @classmethod
    def with_settings(cls, folder: Path, settings: Mapping[str, Any], job: str = "") -> Self:
        """A job whose settings are at hand."""
        named = settings.get("sink", ())
        sinks = [name for name in named if isinstance(name, str)] if isinstance(named, list | tuple) else []
        return cls(folder, sinks, job, settings)

    @property
    def is_job(self) -> bool:
        """Whether the folder is a job's, and not one that holds files of some format and nothing else."""
        return bool(self.settings or self.sinks) or has_segments(self.folder) or (self.folder / ARCHIVE).is_dir()

    @property
    def is_fleets(self) -> bool:
        """Whether workers without an owner wrote it: then a visit that did not count may be there too."""
        return bool(self.job) or has_segments(self.folder)

    @property
    def elsewhere(self) -> list[str]:
        """Its sinks that write to a place outside of the folder, as they may be shown."""
        return elsewhere(self.sinks)

    def targets(self, *names: str) -> list[Path]:
        """The paths that sinks of these formats name, as `/data` in `warc:/data`."""
        parts = (parted(name) for name in self.sinks)
        return [Path(target.partition("?")[0]) for name, target in parts if name in names and target.startswith("/")]

    def readers(self) -> list[Reader]:
        """The readers of all that is there, the best first."""
        return [reader for find in find_readers(self.sinks) for reader in find(self)]

    def first(self, *what: Keeps, prefer: Keeps | None = None) -> Reader | None:
        """The best reader that keeps all of this; of several rather one that keeps what is preferred."""
        able = [reader for reader in self.readers() if reader.keeps.issuperset(what)]
        return next((reader for reader in able if prefer in reader.keeps), able[0] if able else None)

    def need(self, *what: Keeps, prefer: Keeps | None = None) -> Reader:
        """The same; NotKept says what is missing, where the rest is, and which sink keeps it."""
        if (reader := self.first(*what, prefer=prefer)) is not None:
            return reader
        raise self.lacks(*what)

    def lacks(self, *what: Keeps) -> NotKept:
        """What to say where nothing here keeps all of this."""
        hint = f"crawl with --sink {' or --sink '.join(formats_keeping(*what))}, beside others"
        if not self.folder.is_dir() and not self.sinks:
            return NotKept(f"{self.folder} does not exist", hint="see crawls/ for the names of jobs")
        if readers := self.readers():
            places = ", ".join(dict.fromkeys(reader.place for reader in readers))
            missing = [one for one in what if not any(one in reader.keeps for reader in readers)] or what[-1:]
            return NotKept(f"{places} {_LACKS[missing[0]]}", hint=hint)
        unread = [masked_address(name) for name in self.sinks if parted(name)[0] in FORMATS and not _is_readable(name)]
        if unread:
            return NotKept(f"{', '.join(unread)}: what is stored there cannot be read back", hint=hint)
        if away := self.elsewhere:
            return NotKept(f"nothing is stored in {self.folder}, nor in {', '.join(away)}", hint="has the crawl begun?")
        return NotKept(
            f"nothing is stored in {self.folder}", hint="name its folder, or --frontier URL for a fleet's job"
        )

    def awaits(self, *what: Keeps) -> bool:
        """Whether nothing is stored yet, and a sink of the job will keep this."""
        kept = [form.keeps for name in self.sinks if (form := FORMATS.get(parted(name)[0])) is not None]
        return not self.readers() and any(keeps.issuperset(what) for keeps in kept)

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        """The last record of every page, or with `all_visits` each; NotKept if nothing of it is here."""
        wanted: tuple[Keeps, ...] = ("rows", "items by page") if items else ("rows",)
        return self.need(*wanted).records(all_visits=all_visits, items=items)


def elsewhere(sinks: Sequence[str]) -> list[str]:
    """Of these sinks those that write to a place outside of the job's folder, as they may be shown."""
    return [masked_address(name) for name in sinks if ":/" in name]


def _is_readable(name: str) -> bool:
    return bool(FORMATS[parted(name)[0]].reader)


class Stored:
    """All that was stored in some places. Reads only; several threads may ask at once. Close it, or use it in `with`:
    it may have had to make indexes."""

    def __init__(
        self,
        warcs: Sequence[Path],
        trees: Sequence[tuple[Path, Path]] = (),
        *,
        drafts: Path | None = None,
        only: Mapping[str, Set[int]] | None = None,
        jobs: Mapping[Path, StoredJob] | None = None,
    ) -> None:
        """`jobs` has for the folders of trees what knows the rows of their pages."""
        # A folder of our own: what was stored may be read-only, or somebody else's.
        self._own = tempfile.TemporaryDirectory(prefix="gossamer-index-") if drafts is None else None
        self.drafts = Path(self._own.name) if self._own is not None else drafts or Path()
        """Where indexes are that had to be made; processes that read the same may share them."""
        self.warcs = tuple(warcs)
        self.trees = tuple(trees)
        """Trees of bodies, each with the folder of the job whose rows tell their URLs."""
        self._shelf = WarcArchive(self.warcs, self.drafts, shared=drafts is not None, only=only)
        self._trees = {
            str(folder): TreeShelf(tree, folder, self.drafts, (jobs or {}).get(folder)) for tree, folder in self.trees
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take away what was made for reading."""
        if self._own is not None:
            self._own.cleanup()

    def versions(self, url: str) -> list[Version]:
        """The stored answers of a URL, the oldest first; redirects and errors are among them."""
        wanted = urls.normal(url) or url
        found = self._shelf.versions(wanted)
        if not found:
            found = [version for tree in self._trees.values() for version in tree.versions(wanted)]
        return sorted(found, key=lambda version: (version.fetched_at, version.file, version.offset))

    def find(self, url: str, at: float | None = None) -> Version | None:
        """The version that is nearest to a time, or the last one; None if the URL was never stored."""
        found = self.versions(url)
        if at is None or not found:
            return found[-1] if found else None
        return min(found, key=lambda version: abs(version.fetched_at - at))

    def page(self, version: Version) -> StoredPage | None:
        """A version as a page; None for one that is none, as a redirect or a 404. Its body is taken into memory."""
        return self._holder(version).page(version)

    def stream(self, version: Version, *, size: int = 65_536) -> Iterator[bytes]:
        """The body of a version, redirects and errors too, in pieces of at most `size` bytes."""
        return self._holder(version).stream(version, size)

    def row(self, version: Version) -> PageRow:
        """The line of a version, as the crawl wrote it, or as much of it as is known."""
        return self._holder(version).row(version)

    def parts(self, which: Which = "last") -> Iterator[ReadPart]:
        """All pages as pieces of work for several processes; in their order, they are what `pages` gives."""
        yield from self._shelf.parts(which)
        for tree in self._trees.values():
            yield from tree.parts(which)

    def part(self, part: ReadPart, on_fault: OnFault | None = None) -> Iterator[StoredPage]:
        """The pages of one part."""
        holder = self._trees.get(part.source)
        yield from (holder.pages(part, on_fault) if holder is not None else self._shelf.pages(part, on_fault))

    def pages(self, which: Which = "last", on_fault: OnFault | None = None) -> Iterator[StoredPage]:
        """Every page that a spider was shown, one at a time, in the order of files: the last version of each, or all.

        What cannot be read is told to `on_fault`, and what follows is read; without it, it is raised."""
        for part in self.parts(which):
            yield from self.part(part, on_fault)

    def _holder(self, version: Version) -> WarcArchive | TreeShelf:
        if version.file.endswith(ENDINGS):
            return self._shelf
        return next(tree for tree in self._trees.values())


def open_stored(*places: str | Path | StoredJob) -> Stored:
    """What a job (its name, folder or place), folders of WARC files, or single files hold; an ArchiveError says what
    lacks."""
    warcs: list[Path] = []
    trees: list[tuple[Path, Path]] = []
    jobs: dict[Path, StoredJob] = {}
    only: dict[str, set[int]] = {}
    for place in places:
        if isinstance(place, StoredJob):
            _take(place, warcs, trees, jobs)
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
                    f"{path} is no WARC file", hint="name a job, or files that end in .warc.gz, .warc or .parquet"
                )
            warcs.append(path)
            continue
        folder = path if path.is_dir() else folder_of(str(place), ())
        if not folder.is_dir():
            away = "://" in str(place)
            hint = "fetch its objects into a folder, and name that" if away else "see crawls/ for the names of jobs"
            raise ArchiveError(f"{masked_address(str(place))}: no such job, folder or file", hint=hint)
        _take(StoredJob.of(folder), warcs, trees, jobs)
    # The same file may have been named twice.
    for whole in map(str, warcs):
        only.pop(whole, None)
    return Stored(list(dict.fromkeys([*warcs, *map(Path, only)])), list(dict.fromkeys(trees)), only=only, jobs=jobs)


def _tables(path: Path) -> list[Path]:
    """A Parquet file of pages, or those in a folder of the sink `parquet`, or below one of its parts."""
    if path.is_file():
        return [path] if path.name.endswith(parquet_reader.PARQUET_SUFFIX) else []
    if not path.is_dir() or (place := StoredJob.of(path)).is_job or warc_files(place):
        return []
    below = path / "pages" if (path / "pages").is_dir() else path
    return sorted(below.rglob(f"*{parquet_reader.PARQUET_SUFFIX}"))


def _take(place: StoredJob, warcs: list[Path], trees: list[tuple[Path, Path]], jobs: dict[Path, StoredJob]) -> None:
    """Add what a place holds. What a WARC file has is not read a second time from a tree."""
    found = warc_files(place)
    kept = [(tree, place.folder) for tree in place.targets("folder")] if place.is_job and not found else []
    if not found and not kept:
        raise _bodiless(place)
    warcs += found
    trees += kept
    jobs[place.folder] = place


def _bodiless(place: StoredJob) -> NotKept:
    """What to say of a job that has no bodies here."""
    if away := [name for name in place.elsewhere if name.startswith("warc+")]:
        return NotKept(
            f"the pages of {place.folder} are in {', '.join(away)}",
            hint="fetch its objects into a folder, and name that",
        )
    return NotKept(
        f"{place.folder} has no page with its body: no sink stored them",
        hint="crawl with --sink warc (beside --sink jsonl); of a fleet, --frontier URL says where they are",
    )
