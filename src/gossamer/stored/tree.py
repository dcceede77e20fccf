"""Pages that the sink `folder` keeps as files: their URLs are in what another sink keeps, their bodies in the tree."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gossamer.errors import ArchiveError, NotKept
from gossamer.extract.mime import computed_type, is_html
from gossamer.model import PageRow
from gossamer.sink.tree import HTMLS, place_of
from gossamer.stored.page import StoredPage, Version
from gossamer.stored.shelf import OnFault, ReadPart, Which
from gossamer.stored.visits import MAX_BODY_BYTES

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob

_PART_BYTES = 500_000
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PageRow).decode


class TreeShelf:
    """A tree of bodies. It has one version of each page, the last, and knows neither headers nor labels."""

    def __init__(self, tree: Path, folder: Path, drafts: Path, job: StoredJob | None = None) -> None:
        """`job` is where the rows of its pages are; only `parts` asks for these."""
        self._tree = tree
        self._folder = folder
        self._job = job
        name = blake2b(os.fsencode(f"{tree}\0{folder}"), digest_size=12).hexdigest()
        self._listing = drafts / f"{name}.rows"

    def versions(self, url: str) -> list[Version]:
        """The stored body of a URL, if there is one; its time is that of the file."""
        path = body_path(self._tree, url)
        try:
            found = path.stat()
        except OSError:
            return []
        return [Version(url=url, fetched_at=found.st_mtime, status=200, file=str(path))]

    def page(self, version: Version) -> StoredPage | None:
        """One page, whole."""
        row = PageRow(url=version.url, status=version.status, fetched_at=version.fetched_at)
        return self._page(row)

    def row(self, version: Version) -> PageRow:
        """What is known of a body without its row."""
        return row_of_body(version.url, Path(version.file))

    def stream(self, version: Version, size: int) -> Iterator[bytes]:
        """The body in pieces."""
        try:
            with Path(version.file).open("rb") as file:
                while piece := file.read(size):
                    yield piece
        except OSError as error:
            raise ArchiveError(f"{version.file}: {error.strerror}") from error

    def parts(self, which: Which = "last") -> Iterator[ReadPart]:
        """All pages, a thousand or so at a time, in the order of the job's lines."""
        start = end = 0
        with self._listing.open("wb") as file:
            for row in self._pages():
                end += file.write(_encode(row) + b"\n")
        with self._listing.open("rb") as file:
            while start < end:
                file.seek(min(start + _PART_BYTES, end - 1))
                file.readline()
                yield ReadPart(source=str(self._folder), start=start, stop=file.tell())
                start = file.tell()

    def pages(self, part: ReadPart, on_fault: OnFault | None = None) -> Iterator[StoredPage]:
        """The pages of a part; a body that is gone is told to `on_fault`, or raised."""
        for row in self._listed(part):
            try:
                page = self._page(row)
            except ArchiveError as fault:
                if on_fault is None:
                    raise
                on_fault(fault)
                continue
            yield page

    def _listed(self, part: ReadPart) -> Iterator[PageRow]:
        with self._listing.open("rb") as file:
            file.seek(part.start)
            while (part.stop is None or file.tell() < part.stop) and (line := file.readline()):
                yield _decode(line)

    def _page(self, row: PageRow) -> StoredPage:
        path = body_path(self._tree, row.url)
        try:
            if os.stat(path).st_size > MAX_BODY_BYTES:
                raise ArchiveError(f"{row.url} ({path}): a body of over {MAX_BODY_BYTES} bytes")
            body = path.read_bytes()
        except OSError as error:
            raise ArchiveError(f"{row.url} ({path}): {error.strerror}") from error
        # The type that the server named is not kept; without one, only what is plainly HTML would be taken for it.
        headers = (("content-type", "text/html"),) if is_html(body, computed_type(body)) else ()
        fetched_at = row.fetched_at
        return StoredPage(
            url=row.url, status=row.status, headers=headers, body=body, fetched_at=fetched_at, row=row, file=str(path)
        )

    def _pages(self) -> Iterator[PageRow]:
        """The row of each page whose body was stored, once: the last one. Costs about 100 bytes of memory a page."""
        if self._job is None or (reader := self._job.first("rows")) is None:
            folder = self._job.folder if self._job is not None else "the job"
            raise NotKept(
                f"{self._tree} keeps bodies without their URLs, and {folder} has no pages.jsonl to tell them",
                hint="crawl with --sink jsonl --sink folder:/path, or with --sink warc, which keeps both",
            )
        last: dict[int, int] = {}
        # Read once, as it is now: a job that goes on may have other rows in other places a moment later.
        with tempfile.TemporaryFile() as file:
            for record in reader.records(all_visits=not self._job.is_fleets):
                if _is_page(record.page):
                    last[hash(record.page.url)] = file.tell()
                    file.write(_encode(record.page) + b"\n")
            file.seek(0)
            at = 0
            for line in file:
                row = _decode(line)
                if last[hash(row.url)] == at:
                    yield row
                at += len(line)


def body_path(tree: Path, url: str) -> Path:
    """Where the body of a page is."""
    place = place_of(url)
    return tree / HTMLS / place.host / place.key


def row_of_body(url: str, path: Path) -> PageRow:
    """What is known of a body without its row: when it was stored, and how long it is."""
    about = path.stat()
    return PageRow(url=url, status=200, fetched_at=about.st_mtime, bytes=about.st_size)


def _is_page(row: PageRow) -> bool:
    return 200 <= row.status < 400 and row.status != 304 and not row.location and not row.error
