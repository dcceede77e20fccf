"""The interfaces of storage: sinks write records, readers read them and stored pages.

Readers keep one promise in every format: a call sees what was complete when it began, and nothing twice. Files may
change meanwhile: the last line may be half written, a WARC file may end inside a record, and a log may become a
Parquet file. Incomplete ends are skipped; anything else that cannot be read is an error that names the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from gossamer.errors import ArchiveError
from gossamer.model import Headers, PageRow, Record, Request, Response
from gossamer.settings import Settings

if TYPE_CHECKING:
    from gossamer.storage.query import Cursor, GoOn, Search
    from gossamer.storage.warc.reader import ReadPart


Keeps = Literal["rows", "items", "items by page", "keys", "visits", "bodies", "columns"]
"""What a format stores: a row for each page; items, and also the page of each item; key and token of each visit;
every visit, not only the last; pages with bodies; columns, which are faster in SQL than lines."""
PAGE_FIELDS: Mapping[str, Any] = {field.name: field.type for field in msgspec.structs.fields(PageRow)}
"""The fields of a page's row and their types."""


class SinkFormat(NamedTuple):
    """A format: names of its sinks, import paths (`module:function`) of writer and reader, and what it stores."""

    forms: tuple[str, ...]
    sink: str
    reader: str = ""
    """Finds a job's data in this format; None for formats that cannot be read back."""
    keeps: frozenset[Keeps] = frozenset()
    is_shared: bool = False
    """Whether it is on a server that workers of all machines write to."""
    can_share_path: bool = False
    """Whether workers of several machines can write to the same path."""
    has_tables: bool = False
    """Whether its address can name a table: `?table=NAME`."""
    files: tuple[str, ...] = ()
    """Files and folders that it writes in the job's folder."""
    check: str = ""
    """Import path of a function that raises ConfigError for an invalid target; empty if `forms` is enough."""
    unfinished: str = ""
    """Import path of an `Unfinished` function, for formats with files that a crashed worker leaves open."""


class SqlSource(NamedTuple):
    """Files that are part of a view, and the SELECT with which DuckDB reads them; `{files}` stands for their list."""

    files: Sequence[Path]
    select: str
    has_keys: bool = False


class Reader(Protocol):
    """Reads a job's data in one format. It blocks, changes nothing, and is thread-safe."""

    @property
    def place(self) -> str:
        """The location for display, without passwords."""
        ...

    @property
    def keeps(self) -> frozenset[Keeps]: ...

    @property
    def cursor(self) -> type[Cursor]:
        """The cursor type that `search` takes and returns."""
        ...

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        """Yield the last record of every page, or with `all_visits` each; with `items` in formats that link them.

        In formats without `keys`, a record's key and token are 0."""
        ...

    def rows(self, terms: Search) -> Iterator[PageRow]:
        """Yield the rows of all matching visits, unordered; one that was committed twice may appear twice."""
        ...

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        """Return matching visits, newest first, at most `limit`, and a cursor to continue; None after the last.

        A format without an index by time is scanned while `go_on` returns true; then ConfigError is raised."""
        ...

    def items(self) -> Iterator[bytes]:
        """Yield the items of all pages as JSON."""
        ...

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        """Return the sources of the views `_visits`, `_items`, and those of item types. Data that DuckDB cannot read
        itself is written to `spill` as JSON lines."""
        ...


class BodyReader(Protocol):
    """Reads pages with their bodies."""

    def versions(self, url: str) -> list[Version]:
        """Return the stored responses of a URL, including redirects and errors."""
        ...

    def row(self, version: Version) -> PageRow:
        """Return the row of a version, as far as it is known."""
        ...

    def page(self, version: Version) -> StoredPage | None:
        """Return a version as a page; None for responses that are not pages, such as a redirect or a 404."""
        ...

    def stream(self, version: Version, size: int) -> Iterator[bytes]:
        """Yield the body of a version in chunks of at most `size` bytes."""
        ...

    def parts(self, which: Which = "last") -> Iterator[ReadPart]:
        """Split all pages into parts that several processes can read."""
        ...

    def pages(self, part: ReadPart, on_fault: OnFault | None = None) -> Iterator[StoredPage]:
        """Yield the pages of one part. Faults are passed to `on_fault`, or raised without it."""
        ...


@runtime_checkable
class ReadsRejected(Protocol):
    """A reader of a format that also stores rejected items; others leave them to `items-rejected.jsonl`."""

    def rejected(self) -> Iterator[bytes]:
        """Yield rejected items, with the reasons, as JSON."""
        ...


Unfinished = Callable[[str, Path], Iterator[tuple[Path, Callable[[Path], None]]]]
"""Takes the target of a sink and the job's folder. Yields the files that are open, or that dead writers left, and the
function that finishes each."""
OpenReaders = Callable[..., Iterator[Reader]]
"""Yields the readers of one format for a `StoredJob`."""


def page_row(values: Mapping[str, Any]) -> PageRow:
    """Convert a table row to a page row; further columns are ignored, and null means missing."""
    return PageRow(**{name: value for name, value in values.items() if name in PAGE_FIELDS and value is not None})


SPOOL = "spool"
TABLES = "parquet"
"""Folders of files waiting for upload, and of Parquet files; defined here because their own modules need packages
that may not be installed."""


class Sink(Protocol):
    """Stores records. When `write` returns, they are durable."""

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        """Store all records; return the marks (file -> length) up to which changed files are valid.

        If it raises, nothing is stored: partial output is removed, and the call may be repeated."""
        ...

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Truncate to earlier marks, because what was written since then was not committed."""
        ...

    async def aclose(self) -> None:
        """Close files and connections."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The arguments of a sink's constructor."""

    kind: str = ""
    """The part of the sink's name before the colon."""
    target: str
    """The part of its name after the colon: /path in warc:/path, //host/db in mysql://host/db."""
    folder: Path
    """The job's folder; in a fleet, the results folder."""
    settings: Settings
    marks: Mapping[str, int] | None = None
    """Committed file lengths in the frontier; None in a fleet, which has none."""
    worker: str = ""
    """In a fleet, the worker that opens the sink; other workers write to their own files."""
    types: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Declared item types: name -> field -> kind, such as `str`, `int`, or `json`."""
    job: str = ""
    """In a fleet, the job's name, which its workers' folders may not have."""

    @property
    def home(self) -> Path:
        """The folder as an absolute path."""
        return self.folder.absolute()

    @property
    def name(self) -> str:
        """The job's name in file names."""
        return self.job or self.home.name

    def prefix(self, *, elsewhere: bool) -> str:
        """Return the prefix of file names that only this job writes.

        Outside the job's folder (`elsewhere`), other jobs may write too, even one of the same name."""
        own = f"{self.name}-{self.worker}" if self.worker else self.name
        return f"{own}-{name_digest(self.home)}" if elsewhere else own


def name_digest(home: Path) -> str:
    """Return a digest of a job's absolute path, which distinguishes jobs of one name in file names."""
    return blake2b(os.fsencode(home), digest_size=4).hexdigest()


class Opens(Protocol):
    """Creates a sink: a class whose `__init__` takes an `Opening`, or a function."""

    def __call__(self, opening: Opening) -> Sink: ...


def without_page(record: Record) -> Record:
    """Return the record without the fields that only sinks of whole pages store."""
    if record.body or record.found is not None or record.exchange is not None:
        return msgspec.structs.replace(record, body=b"", found=None, exchange=None)
    return record


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One stored response of a URL: enough to select and read it, without its body."""

    url: str
    fetched_at: float
    """Epoch seconds; whole seconds if taken from an index."""
    status: int
    type: str = ""
    """The media type that the server sent; empty if unknown."""
    digest: str = ""
    """As in the index, sha1: and base 32; equal bodies have equal digests."""
    is_revisit: bool = False
    """Whether the body is in an earlier record with an equal body."""
    file: str = ""
    """The file that contains it."""
    offset: int = 0
    """Byte offset in the file."""


class StoredPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page as fetched. Pages stored by other tools have only URL, time, status, headers, and body."""

    url: str
    status: int
    headers: Headers = ()
    """Response headers, with names in lower case."""
    body: bytes = b""
    fetched_at: float = 0.0
    method: str = "GET"
    posted: bytes = b""
    """Request body."""
    label: str = ""
    meta: dict[str, Any] | None = None
    row: PageRow | None = None
    """The page's row, as the crawl wrote it."""
    cut: str = ""
    """What limits dropped, as in `PageRow.cut`."""
    key: int = 0
    token: int = 0
    items: int = 0
    """Number of items that the crawl extracted."""
    file: str = ""
    offset: int = 0

    @property
    def request(self) -> Request:
        """Return the request for this page, as far as it is known."""
        depth, referrer = (self.row.depth, self.row.referrer) if self.row is not None else (0, "")
        return Request(
            self.url,
            self.key,
            depth=depth,
            referrer=referrer,
            label=self.label,
            meta=self.meta,
            method=self.method,
            body=self.posted,
        )

    @property
    def response(self) -> Response:
        """Return the response, as a spider sees it."""
        return Response(
            url=self.url,
            status=self.status,
            headers=self.headers,
            body=self.body,
            fetched_at=self.fetched_at,
            elapsed=self.row.elapsed if self.row is not None else 0.0,
            from_cache=True,
            cut=(self.row.cut or "") if self.row is not None else self.cut,
        )


MAX_BODY_BYTES = 128 * 1024 * 1024
"""Longer bodies are not loaded into memory; read them in chunks with `Stored.stream`."""

Which = Literal["last", "all"]
OnFault = Callable[[ArchiveError], None]
