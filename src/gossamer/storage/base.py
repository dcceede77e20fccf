"""The interfaces of storage: sinks that write records, readers that read them, and stored pages.

A reader has the same promise in every format. It sees what was complete when a call began, and nothing of it twice:
the last line may be half written, a WARC file may end in the middle of a record, a log may become a Parquet file in
between. Such ends are left out without a word; anything else that cannot be read is an error that names the file."""

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
"""What a format keeps: the row of each page; items, and also which page each is from; key and token of each visit;
every visit, not only the last; whole pages; columns, which answer SQL sooner than lines do."""
PAGE_FIELDS: Mapping[str, Any] = {field.name: field.type for field in msgspec.structs.fields(PageRow)}
"""The fields of a page's row, and their types."""


class SinkFormat(NamedTuple):
    """A format: how sinks of it may be named, where writer and reader are, as `module:function`, and what it keeps."""

    forms: tuple[str, ...]
    sink: str
    reader: str = ""
    """Finds what a job has in this format; without one, what is written cannot be read back."""
    keeps: frozenset[Keeps] = frozenset()
    is_shared: bool = False
    """Whether it is on a server, so that workers of all machines write to the same one."""


class SqlSource(NamedTuple):
    """Files that make a part of a view, and the SELECT by which DuckDB reads them; `{files}` stands for their list."""

    files: Sequence[Path]
    select: str
    has_keys: bool = False


class Reader(Protocol):
    """Reads what a job has in one format. It blocks, changes nothing, and may be asked by several threads at once."""

    @property
    def place(self) -> str:
        """Where that is, for people: without passwords."""
        ...

    @property
    def keeps(self) -> frozenset[Keeps]: ...

    @property
    def cursor(self) -> type[Cursor]:
        """The kind of cursor that `search` gives and takes."""
        ...

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        """The last record of every page, or with `all_visits` each; with their `items` where these are kept by page.

        Where `keys` are not kept, a record's key and token are 0."""
        ...

    def rows(self, terms: Search) -> Iterator[PageRow]:
        """The rows of all visits that fit, in no order; one of which a repeated commit left two may be there twice."""
        ...

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        """Visits that fit, the newest first, `limit` at most, and where to go on; None when all was looked at.

        A format without an order by time is read through for as long as `go_on` says; then it is a ConfigError."""
        ...

    def items(self) -> Iterator[bytes]:
        """The items of all pages as JSON."""
        ...

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        """What makes the views `_visits` and `_items`, and those of types of items. What DuckDB cannot read itself is
        written to `spill`, as lines."""
        ...


class BodyReader(Protocol):
    """Reads pages with their bodies."""

    def versions(self, url: str) -> list[Version]:
        """The stored answers of a URL; redirects and errors are among them."""
        ...

    def row(self, version: Version) -> PageRow:
        """The row of a version, or as much of it as is known."""
        ...

    def page(self, version: Version) -> StoredPage | None:
        """A version as a page; None for one that is none, as a redirect or a 404."""
        ...

    def stream(self, version: Version, size: int) -> Iterator[bytes]:
        """The body of a version in pieces of at most `size` bytes."""
        ...

    def parts(self, which: Which = "last") -> Iterator[ReadPart]:
        """All pages as pieces of work for several processes."""
        ...

    def pages(self, part: ReadPart, on_fault: OnFault | None = None) -> Iterator[StoredPage]:
        """The pages of one part. What cannot be read is told to `on_fault`, or raised."""
        ...


@runtime_checkable
class KeepsRejected(Protocol):
    """A reader of a format that also has the items that fit no type; others leave them to `items-rejected.jsonl`."""

    def rejected(self) -> Iterator[bytes]:
        """They and why, as JSON."""
        ...


OpenReaders = Callable[..., Iterator[Reader]]
"""Finds the readers of one format that a `StoredJob` has."""


def page_row(values: Mapping[str, Any]) -> PageRow:
    """A row of a table, in which there may be more; what is null is not there."""
    return PageRow(**{name: value for name, value in values.items() if name in PAGE_FIELDS and value is not None})


SPOOL = "spool"
TABLES = "parquet"
"""Folders of files on their way to a bucket, and of Parquet files; named here, because their own modules need a
package that may be missing."""


class Sink(Protocol):
    """Keeps records. What `write` has returned for is durable."""

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        """Store all of them; the marks (file -> length) up to which the output is good, of the files that changed.

        If it raises, nothing of the call counts: what it wrote is cut off again, and the call may be repeated."""
        ...

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Go back to marks of an earlier moment, because what was written since then did not come to count."""
        ...

    async def aclose(self) -> None:
        """Let go of files and connections."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a sink is told when it is opened."""

    kind: str = ""
    """What stands before the colon of its name."""
    target: str
    """What stands behind the colon of its name: /path in warc:/path, //host/db in mysql://host/db."""
    folder: Path
    """Of the job; in a fleet, where its workers put their segments."""
    settings: Settings
    marks: Mapping[str, int] | None = None
    """Lengths of files that the frontier vouches for; None in a fleet, where nobody does."""
    worker: str = ""
    """The worker that opens it, in a fleet: others write to their own."""
    types: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The types of items that the job declares: name -> field -> what it holds, as `str`, `int` or `json`."""
    job: str = ""
    """The name of the job, in a fleet: the folders of its workers may be called otherwise."""

    @property
    def home(self) -> Path:
        """The folder, from the root."""
        return self.folder.absolute()

    @property
    def name(self) -> str:
        """What the job is called in the names of files."""
        return self.job or self.home.name

    def prefix(self, *, elsewhere: bool) -> str:
        """What the names of files begin with that nobody else writes.

        `elsewhere` than in the job's folder others may write too, and a job of the same name among them."""
        own = f"{self.name}-{self.worker}" if self.worker else self.name
        return f"{own}-{name_digest(self.home)}" if elsewhere else own


def name_digest(home: Path) -> str:
    """What tells jobs of one name apart in the names of files: a digest of the folder, from the root."""
    return blake2b(os.fsencode(home), digest_size=4).hexdigest()


class Opens(Protocol):
    """Makes a sink: a class whose `__init__` takes an `Opening`, or a function."""

    def __call__(self, opening: Opening) -> Sink: ...


def without_page(record: Record) -> Record:
    """The record without what only sinks want that keep pages whole."""
    if record.body or record.found is not None or record.exchange is not None:
        return msgspec.structs.replace(record, body=b"", found=None, exchange=None)
    return record


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One stored answer of a URL: enough to choose it and to read it, without the body."""

    url: str
    fetched_at: float
    """Epoch seconds; whole ones where an index says it."""
    status: int
    type: str = ""
    """The media type that the server named; empty where it is not known."""
    digest: str = ""
    """As the index writes it, sha1: and base 32; equal bodies have equal digests."""
    is_revisit: bool = False
    """Whether the body is in an earlier record, which had the same."""
    file: str = ""
    """The file that holds it."""
    offset: int = 0
    """Where in the file."""


class StoredPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page as it was fetched. What other tools stored has no more than its URL, time, status, headers and body."""

    url: str
    status: int
    headers: Headers = ()
    """Of the answer, names in lower case."""
    body: bytes = b""
    fetched_at: float = 0.0
    method: str = "GET"
    posted: bytes = b""
    """Body of the request."""
    label: str = ""
    meta: dict[str, Any] | None = None
    row: PageRow | None = None
    """The page's line, as the crawl wrote it."""
    cut: str = ""
    """What was dropped of it, as in `PageRow.cut`."""
    key: int = 0
    token: int = 0
    items: int = 0
    """How many items the crawl took from it."""
    file: str = ""
    offset: int = 0

    @property
    def request(self) -> Request:
        """The request that brought it, as far as it is known."""
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
        """The answer, as a spider sees it."""
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
"""A body that is longer is not taken into memory; `Stored.stream` reads it in pieces."""

Which = Literal["last", "all"]
OnFault = Callable[[ArchiveError], None]
