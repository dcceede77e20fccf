"""The answer that a page came in: what its head says, the type and encoding of its body, and the body as text."""

from __future__ import annotations

import json
from typing import Any

from gossamer import urls
from gossamer.errors import ExtractError
from gossamer.extract import sniff
from gossamer.extract.encoding import decode, detect
from gossamer.model import Headers, Request, Response


class DecodedResponse:
    """A response and the request that it answers; nothing of the body is read before it is asked for."""

    __slots__ = ("_encoding", "_html", "_is_html", "_mime_type", "request", "response")

    def __init__(self, response: Response, request: Request) -> None:
        self.response = response
        self.request = request
        self._encoding: str | None = None
        self._html: str | None = None
        self._is_html: bool | None = None
        self._mime_type: str | None = None

    @property
    def url(self) -> str:
        """The URL that answered."""
        return self.response.url

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.response.status

    @property
    def headers(self) -> Headers:
        """The headers as they came, names in lower case."""
        return self.response.headers

    @property
    def body(self) -> bytes:
        """The body, decoded by its Content-Encoding."""
        return self.response.body

    @property
    def depth(self) -> int:
        """How many links away from a seed the page is."""
        return self.request.depth

    @property
    def label(self) -> str:
        """The label of the request, which chose the handler."""
        return self.request.label

    @property
    def meta(self) -> dict[str, Any]:
        """What the spider gave along with the request."""
        return self.request.given or {}

    @property
    def referrer(self) -> str:
        """The page on which this one was found; empty for a seed."""
        return self.request.referrer

    def header(self, name: str, default: str = "") -> str:
        """The first header of that name, in any case."""
        return self.response.header(name.lower(), default)

    @property
    def mime_type(self) -> str:
        """The type that a browser takes the body for, as in `text/html`: as the server says, or by its first bytes."""
        if self._mime_type is None:
            nosniff = self.header("x-content-type-options").partition(",")[0].strip().lower() == "nosniff"
            self._mime_type = sniff.computed_type(self.body, self._all("content-type"), nosniff=nosniff)
        return self._mime_type

    @property
    def is_html(self) -> bool:
        """Whether the body is HTML by its type, and not plainly something else by its first bytes."""
        if self._is_html is None:
            self._is_html = sniff.is_html(self.body, self.mime_type)
        return self._is_html

    @property
    def is_xml(self) -> bool:
        """Whether the body is XML that is not a page in XHTML: a feed, a picture in SVG, or any other document."""
        return sniff.is_xml(self.mime_type) and not self.is_html

    @property
    def is_text(self) -> bool:
        """Whether the body is text of some kind: HTML, XML, JSON, plain ..."""
        return sniff.is_text(self.mime_type)

    @property
    def encoding(self) -> str:
        """The name of the encoding that the body is in, as a browser finds it."""
        if self._encoding is None:
            self._encoding = detect(
                self.body, ", ".join(self._all("content-type")), host=urls.host(urls.host_port(self.url))
            )
        return self._encoding

    @property
    def html(self) -> str:
        """The body as text."""
        if self._html is None:
            self._html = decode(self.body, self.encoding)
        return self._html

    def json(self) -> Any:
        """The body as JSON; an ExtractError if it is not."""
        try:
            return json.loads(self.html)
        except (ValueError, RecursionError) as error:
            raise ExtractError(f"{self.url} is not JSON: {error}") from error

    def _all(self, name: str) -> list[str]:
        """All headers of a name, given in lower case."""
        return [value for key, value in self.response.headers if key == name]
