"""The tree format, one file per page (htmls/HOST/KEY, links/HOST/KEY, errs/HOST/KEY): sink and reader."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gossamer.errors import ArchiveError, NotKept
from gossamer.extract.mime import computed_type, is_html
from gossamer.model import PageRow, Record
from gossamer.storage import files
from gossamer.storage.base import MAX_BODY_BYTES, Keeps, OnFault, Opening, Reader, SqlSource, StoredPage, Version, Which
from gossamer.storage.query import Cursor, GoOn, Search, TimeCursor
from gossamer.storage.warc.reader import ReadPart

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob


KINDS = HTMLS, LINKS, ERRS = "htmls", "links", "errs"
_LONGEST_NAME = 200
_THREADS = 8


class TreePaths(NamedTuple):
    """Location of a URL's files: the same names below each of the three folders."""

    host: str
    key: str


def place_of(url: str) -> TreePaths:
    """Return the host and port of a URL, and the first 24 hexadecimal digits of its SHA-224."""
    host = url.split("/", 3)[2] if url.count("/") >= 2 else ""
    if not host.strip(".") or len(host) > _LONGEST_NAME or "\0" in host:
        # Such names would leave the folder, or are invalid.
        host = "_" + hashlib.sha224(host.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return TreePaths(host, hashlib.sha224(url.encode("utf-8", "surrogatepass")).hexdigest()[:24])


class TreeSink:
    """Stores each page in its own file. The links are written first, so a page whose body exists is complete.

    Workers may share it: two that fetched the same page write the same file, and the last one wins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            for kind in KINDS:
                (folder / kind).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.translate_folder_error(folder, error) from error
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gossamer-tree")

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, self._store, record) for record in records))
        return {}

    def _store(self, record: Record) -> None:
        place = place_of(record.page.url)
        found = record.found
        if record.page.location:
            found = (record.page.location,)
        try:
            if record.page.status == 304 or record.page.copy_of is not msgspec.UNSET:
                # Unchanged: the stored page is still current. Near-duplicate: another page is stored in its place.
                return
            if record.page.status == 0 or record.page.status >= 400 or record.page.error:
                self._put(ERRS, place, b"")
            else:
                self._put(LINKS, place, msgspec.json.encode(found or ()))
                self._put(HTMLS, place, record.body)
                (self._folder / ERRS / place.host / place.key).unlink(missing_ok=True)
        except OSError as error:
            raise files.translate_folder_error(self._folder, error) from error

    def _put(self, kind: str, place: TreePaths, data: bytes) -> None:
        target = self._folder / kind / place.host / place.key
        temporary = target.with_name(f".{place.key}-{secrets.token_hex(6)}")
        try:
            try:
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            except FileNotFoundError:
                self._make(kind, place.host)
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def _make(self, kind: str, host: str) -> None:
        """Create the folder of a host. If the top folder is gone, it is unmounted: create nothing."""
        if not any((self._folder / name).is_dir() for name in KINDS):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        (self._folder / kind / host).mkdir(parents=True, exist_ok=True)

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Do nothing: the repeated page replaces the one that was not committed."""

    async def aclose(self) -> None:
        self._threads.shutdown(wait=True)


def open_tree(opening: Opening) -> TreeSink:
    """Open the sink `folder:/path`."""
    return TreeSink(Path(opening.target))


class Tree:
    """An existing tree of pages, of any origin."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._host = ""
        self._names: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return (self._folder / HTMLS).is_dir() or (self._folder / LINKS).is_dir()

    def has(self, url: str) -> bool:
        """Whether the URL was fetched, with success or not. Lookups host by host are cheap."""
        place = place_of(url)
        if place.host != self._host:
            self._host = place.host
            self._names = frozenset(self._list(HTMLS, place.host)) | frozenset(self._list(ERRS, place.host))
        return place.key in self._names

    def links(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each host with the links of one of its pages; invalid link files are skipped."""
        for host in self._list(LINKS, ""):
            for name in self._list(LINKS, host):
                try:
                    found = msgspec.json.decode((self._folder / LINKS / host / name).read_bytes(), type=list[str])
                except (OSError, msgspec.MsgspecError):
                    continue
                yield host, tuple(found)

    def _list(self, kind: str, host: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._folder / kind / host) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []


_PART_BYTES = 500_000
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PageRow).decode


class TreeArchive:
    """Reads a tree of bodies. It has only the last version of each page, and no headers or labels."""

    def __init__(self, tree: Path, folder: Path, index_folder: Path, job: StoredJob | None = None) -> None:
        """`job` has the rows of the pages, which only `parts` needs."""
        self._tree = tree
        self._folder = folder
        self._job = job
        name = blake2b(os.fsencode(f"{tree}\0{folder}"), digest_size=12).hexdigest()
        self._listing = index_folder / f"{name}.rows"

    def versions(self, url: str) -> list[Version]:
        """Return the stored body of a URL, if any; its time is that of the file."""
        path = body_path(self._tree, url)
        try:
            found = path.stat()
        except OSError:
            return []
        return [Version(url=url, fetched_at=found.st_mtime, status=200, file=str(path))]

    def page(self, version: Version) -> StoredPage | None:
        """Return one page with its body."""
        row = PageRow(url=version.url, status=version.status, fetched_at=version.fetched_at)
        return self._page(row)

    def row(self, version: Version) -> PageRow:
        """Return the known part of a row for a body without one."""
        return row_of_body(version.url, Path(version.file))

    def stream(self, version: Version, size: int) -> Iterator[bytes]:
        """Yield the body in chunks."""
        try:
            with Path(version.file).open("rb") as file:
                while piece := file.read(size):
                    yield piece
        except OSError as error:
            raise ArchiveError(f"{version.file}: {error.strerror}") from error

    def parts(self, which: Which = "last") -> Iterator[ReadPart]:
        """Split all pages into parts of about a thousand, in the order of the job's rows."""
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
        """Yield the pages of a part; a missing body is passed to `on_fault`, or raised without it."""
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
                raise ArchiveError(f"{row.url} ({path}): the body exceeds {MAX_BODY_BYTES} bytes")
            body = path.read_bytes()
        except OSError as error:
            raise ArchiveError(f"{row.url} ({path}): {error.strerror}") from error
        # The server's media type is not stored; without one, only unmistakable HTML would be parsed as HTML.
        headers = (("content-type", "text/html"),) if is_html(body, computed_type(body)) else ()
        fetched_at = row.fetched_at
        return StoredPage(
            url=row.url, status=row.status, headers=headers, body=body, fetched_at=fetched_at, row=row, file=str(path)
        )

    def _pages(self) -> Iterator[PageRow]:
        """Yield the last row of each page with a stored body. Takes about 100 bytes of memory a page."""
        if self._job is None or (reader := self._job.first("rows")) is None:
            folder = self._job.folder if self._job is not None else "the job"
            raise NotKept(
                f"{self._tree} stores bodies without their URLs, and {folder} has no pages.jsonl with them",
                hint="crawl with --sink jsonl --sink folder:/path, or with --sink warc, which stores both",
            )
        last: dict[int, int] = {}
        # Read once: the rows of a running job may change a moment later.
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
    """Return the path of a page's body."""
    place = place_of(url)
    return tree / HTMLS / place.host / place.key


def row_of_body(url: str, path: Path) -> PageRow:
    """Return a row with the time and the size of a stored body."""
    about = path.stat()
    return PageRow(url=url, status=200, fetched_at=about.st_mtime, bytes=about.st_size)


def _is_page(row: PageRow) -> bool:
    return 200 <= row.status < 400 and row.status != 304 and not row.location and not row.error


def tree_readers(job: StoredJob) -> Iterator[Reader]:
    """Yield the readers of the folders in `folder:/path`."""
    for folder in job.targets("folder"):
        if folder.is_dir():
            yield TreeReader(folder)


class TreeReader:
    """Reads a tree of bodies: looks up URLs, but cannot list them."""

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
