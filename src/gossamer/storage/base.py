"""The interface of readers: what a format keeps, and how that is read while it is still being written.

A reader has the same promise in every format. It sees what was complete when a call began, and nothing of it twice:
the last line may be half written, a WARC file may end in the middle of a record, a log may become a Parquet file in
between. Such ends are left out without a word; anything else that cannot be read is an error that names the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from gossamer.model import PageRow, Record

if TYPE_CHECKING:
    from gossamer.storage.query import Cursor, GoOn, Search
    from gossamer.stored.page import StoredPage, Version
    from gossamer.stored.shelf import OnFault, ReadPart, Which

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
