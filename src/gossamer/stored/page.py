"""A stored page as a value: what came over the wire, and what the crawl knew of it."""

from __future__ import annotations

from typing import Any

import msgspec

from gossamer.model import Headers, PageRow, Request, Response


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
