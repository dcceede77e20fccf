"""The values that sources give: requests to come, pages that were fetched, and fingerprints of what was seen."""

from __future__ import annotations

from typing import Any, NamedTuple


class ImportedRequest(NamedTuple):
    """A request that a source holds; one that `is_done` was fetched before."""

    url: str
    method: str = "GET"
    body: bytes = b""
    priority: int = 0
    is_done: bool = False
    fetched_at: float | None = None
    """Epoch seconds of that, where it is known."""
    fields: dict[str, Any] | None = None
    """All of a request of Scrapy's, as `Request.to_dict` made it."""
    is_sitemap: bool = False
    """Whether it is the address of a sitemap, and not of a page."""


class ImportedFingerprint(NamedTuple):
    """The fingerprint of a request that was queued once; the request itself cannot be told from it."""

    fingerprint: bytes


class Unread(NamedTuple):
    """Something that cannot be taken over, and why; `url` if it is a request that waits."""

    what: str
    why: str
    url: str = ""


Finding = ImportedRequest | ImportedFingerprint | Unread
