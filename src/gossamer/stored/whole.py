"""All that was stored in some places, read as one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import Self

from gossamer import urls
from gossamer.model import PageRow
from gossamer.storage.reader import StoredJob
from gossamer.storage.warc_reader import ENDINGS
from gossamer.stored.page import StoredPage, Version
from gossamer.stored.shelf import OnFault, ReadPart, WarcArchive, Which
from gossamer.stored.tree import TreeShelf


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
