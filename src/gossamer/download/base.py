"""The downloader's interface: one request in, one response or one typed error out."""

from __future__ import annotations

from typing import Protocol

from gossamer.model import Request, Response


class Downloader(Protocol):
    """Fetches pages. Redirects are not followed and a status code is data: only a FetchError is ever raised."""

    async def fetch(self, request: Request) -> Response:
        """The server's answer, whole and decoded, within the settings' limits of time and size."""
        ...

    async def aclose(self) -> None:
        """Close every connection; what is still being fetched fails."""
        ...
