"""Custom middleware around fetching and around parsing: a function that takes the next layer and returns a layer.

    gossamer crawl http://127.0.0.1:8000/ --spider examples/custom_middleware.py --allow-private

Run `gossamer simweb --port 8000` in another terminal first: it serves the site of this example.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from gossamer import Page, Request, Response, Spider

Fetch = Callable[[Request], Awaitable[Response]]
Parse = Callable[[Page], Awaitable[list[Any]]]


def in_english(fetch: Fetch) -> Fetch:
    """Request English pages from every site."""

    async def fetch_in_english(request: Request) -> Response:
        headers = {**(request.headers or {}), "accept-language": "en"}
        return await fetch(msgspec.structs.replace(request, headers=headers))

    return fetch_in_english


def with_source(parse: Parse) -> Parse:
    """Add the URL of the page to every item."""

    async def parse_with_source(page: Page) -> list[Any]:
        found = await parse(page)
        return [{**one, "url": page.url} if isinstance(one, dict) else one for one in found]

    return parse_with_source


class Names(Spider):
    follows_links = True
    fetch_middleware = (in_english,)
    parse_middleware = (with_source,)

    def parse(self, page: Page) -> Iterator[Any]:
        for name in page.css("div.item .name::text").getall():
            yield {"name": name}
