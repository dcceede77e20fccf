"""The downloader interface: one request in, one response or one FetchError out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from gossamer.model import Request, Response


def _allow() -> None:
    pass


check_before_sending: ContextVar[Callable[[], None]] = ContextVar("check_before_sending", default=_allow)
"""Called by a downloader right before it sends a request, after the name is resolved and the client is built.

It raises a FetchError if the request must not be sent any more, for example after the process was suspended."""


class Downloader(Protocol):
    """Fetches pages. Does not follow redirects; a status code is data. Raises only FetchError."""

    async def fetch(self, request: Request) -> Response:
        """Return the server's response, complete and decoded, within the time and size limits of the settings."""
        ...

    async def aclose(self) -> None:
        """Close all connections; requests in progress fail."""
        ...


@runtime_checkable
class AddressLookup(Protocol):
    """A downloader that can look up the address a request will connect to."""

    async def address_of(self, request: Request) -> str:
        """Return the address; empty if it is unknown or a proxy resolves it."""
        ...


Permit = Callable[[str, Callable[[Request], Awaitable[Response]]], Awaitable[bool]]
"""Returns whether robots.txt allows a page to load a URL; fetches the rules with the given function."""


@runtime_checkable
class LearnsSites(Protocol):
    """A downloader that learns about sites; the site state carries what it learned to all workers."""

    def recall(self, site: str, memo: Mapping[str, Any]) -> None:
        """Load the stored state of a site; called before its requests are fetched."""
        ...

    def learned(self, site: str) -> dict[str, Any] | None:
        """Return what to add to the site state, once; None if nothing is new."""
        ...
