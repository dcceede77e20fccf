"""Finds what a job folder, or a list of files, holds, and reads it as one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from gossamer import urls
from gossamer.errors import ArchiveError
from gossamer.job import SETTINGS, folder_of, stored_settings
from gossamer.sink.segments import FOLDER as SEGMENTS
from gossamer.sink.warc import FOLDER, OPEN, SUFFIX
from gossamer.stored.page import StoredPage, Version
from gossamer.stored.shelf import OnFault, Part, Shelf, Which
from gossamer.stored.tree import TreeShelf

_WARC = (SUFFIX, SUFFIX + OPEN, ".warc")


class Stored:
    """All that was stored in some places. Reads only; several threads may ask at once. Close it, or use it in `with`:
    it may have had to make indexes."""

    def __init__(self, warcs: Sequence[Path], trees: Sequence[tuple[Path, Path]] = ()) -> None:
        # A folder of our own: what was stored may be read-only, or somebody else's.
        self._drafts = tempfile.TemporaryDirectory(prefix="gossamer-index-")
        self.warcs = tuple(warcs)
        self.trees = tuple(trees)
        """Trees of bodies, each with the folder of the job whose lines tell their URLs."""
        self._shelf = Shelf(self.warcs, Path(self._drafts.name))
        self._trees = {str(folder): TreeShelf(tree, folder) for tree, folder in self.trees}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take away what was made for reading."""
        self._drafts.cleanup()

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

    def parts(self, which: Which = "last") -> Iterator[Part]:
        """All pages as pieces of work for several processes; in their order, they are what `pages` gives."""
        yield from self._shelf.parts(which)
        for tree in self._trees.values():
            yield from tree.parts(which)

    def part(self, part: Part, on_fault: OnFault | None = None) -> Iterator[StoredPage]:
        """The pages of one part."""
        holder = self._trees.get(part.source)
        yield from (holder.pages(part, on_fault) if holder is not None else self._shelf.pages(part, on_fault))

    def pages(self, which: Which = "last", on_fault: OnFault | None = None) -> Iterator[StoredPage]:
        """Every page that a spider was shown, one at a time, in the order of files: the last version of each, or all.

        What cannot be read is told to `on_fault`, and what follows is read; without it, it is raised."""
        for part in self.parts(which):
            yield from self.part(part, on_fault)

    def _holder(self, version: Version) -> Shelf | TreeShelf:
        if version.file.endswith(_WARC):
            return self._shelf
        return next(tree for tree in self._trees.values())


def open_stored(*places: str | Path) -> Stored:
    """What a job (its name or folder), folders of WARC files, or single files hold; an ArchiveError says what lacks."""
    warcs: list[Path] = []
    trees: list[tuple[Path, Path]] = []
    for place in places:
        path = Path(place)
        if path.is_file():
            if not path.name.endswith(_WARC):
                raise ArchiveError(f"{path} is no WARC file", hint="name a job, or files that end in .warc.gz or .warc")
            warcs.append(path)
            continue
        folder = path if path.is_dir() else folder_of(str(place), ())
        if not folder.is_dir():
            raise ArchiveError(f"{place}: no such job, folder or file", hint="see crawls/ for the names of jobs")
        found, kept = _in_folder(folder)
        if not found and not kept:
            raise ArchiveError(
                f"{folder} has no page with its body: no sink stored them",
                hint="crawl with --sink warc (beside --sink jsonl), then ask again",
            )
        warcs += found
        trees += kept
    # The same file may have been named twice.
    return Stored(list(dict.fromkeys(warcs)), list(dict.fromkeys(trees)))


def _in_folder(folder: Path) -> tuple[list[Path], list[tuple[Path, Path]]]:
    """The WARC files of a folder, which is a job's or holds nothing else, and its trees of bodies."""
    is_job = (folder / SETTINGS).is_file() or (folder / SEGMENTS).is_dir() or (folder / FOLDER).is_dir()
    if not is_job:
        return _warcs(folder), []
    warcs, trees = _warcs(folder / FOLDER), []
    for name in _sinks(folder):
        kind, _, target = name.partition(":")
        if kind == "warc" and target:
            # Others write there too: the names of a job's files begin with its name and a digest of its folder.
            prefix = quote(folder.absolute().name, safe="")
            tag = blake2b(os.fsencode(folder.absolute()), digest_size=4).hexdigest()
            warcs += [path for path in _warcs(Path(target)) if path.name.startswith(prefix) and tag in path.name]
        elif kind == "folder" and target.startswith("/"):
            trees.append((Path(target), folder))
    # What a WARC file has is not read a second time from a tree.
    return warcs, [] if warcs else trees


def _sinks(folder: Path) -> Sequence[str]:
    settings: dict[str, Any] = stored_settings(folder)
    named = settings.get("sink", ())
    return [name for name in named if isinstance(name, str)] if isinstance(named, list | tuple) else ()


def _warcs(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(_WARC) and path.is_file())
    except OSError:
        return []
