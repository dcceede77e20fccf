"""The downloader's interface: one request in, one response or one typed error out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from gossamer.model import Request, Response


def _allow() -> None:
    pass


check_before_sending: ContextVar[Callable[[], None]] = ContextVar("check_before_sending", default=_allow)
"""Called by a downloader right before it sends a request, when the name is resolved and the client is built.

It raises a FetchError if the request must not be sent any more: the process may have been stopped on the way here."""


class Downloader(Protocol):
    """Fetches pages. Redirects are not followed and a status code is data: only a FetchError is ever raised."""

    async def fetch(self, request: Request) -> Response:
        """The server's answer, whole and decoded, within the settings' limits of time and size."""
        ...

    async def aclose(self) -> None:
        """Close every connection; what is still being fetched fails."""
        ...


@runtime_checkable
class Locates(Protocol):
    """A downloader that can tell where a request will go."""

    async def address_of(self, request: Request) -> str:
        """The address; empty if it is not known, or a proxy's affair."""
        ...


Permit = Callable[[str, Callable[[Request], Awaitable[Response]]], Awaitable[bool]]
"""Whether robots.txt lets a page load a URL; its rules are asked for by the fetch that is given along."""


@runtime_checkable
class Remembers(Protocol):
    """A downloader that learns about sites; what it learns is kept with the site, for every worker."""

    def recall(self, site: str, memo: Mapping[str, Any]) -> None:
        """Take up what is known of a site; called before its requests are fetched."""
        ...

    def learned(self, site: str) -> dict[str, Any] | None:
        """What is to be added to the site's memo, told once; None if there is nothing new."""
        ...
