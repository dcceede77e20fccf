"""Runs the spider over one page and gathers what it yields; the same code in the worker and in parser processes."""

from __future__ import annotations

import hashlib
import inspect
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from gossamer.engine.likeness import Look, Looks
from gossamer.errors import ExtractError
from gossamer.extract.items import plain, sound
from gossamer.extract.links import LinkMemo
from gossamer.extract.page import Page
from gossamer.extract.spider import FieldSpider, Spider, load
from gossamer.middleware.base import compose
from gossamer.middleware.robots import product_token
from gossamer.model import Request, Response
from gossamer.settings import Settings

Parse = Callable[[Page], Awaitable[list[Any]]]


class Extracted(msgspec.Struct, frozen=True, kw_only=True):
    """What a page gave: everything that is needed of it once the body is gone."""

    title: str = ""
    digest: str = ""
    link_count: int = 0
    urls: tuple[str, ...] = ()
    """Links to follow as they are."""
    requests: tuple[Request, ...] = ()
    """Links that the spider made itself."""
    items: tuple[dict[str, Any], ...] = ()
    text: str | None = None
    robots: str = ""
    """What the page asks of robots, as in `noindex, nofollow`."""
    main: str = ""
    """Digest of the main text; only where changes are looked for."""
    likeness: int | None = None
    """SimHash of the main text; only where the page may be a copy of the last one of its path."""
    error: str = ""


def make_spider(settings: Settings) -> Spider:
    """The spider that the settings name: the user's class, one made of --extract fields, or one that follows links."""
    if settings.spider:
        return load(settings.spider)()
    if settings.extract:
        return FieldSpider(settings.extract)
    return Spider()


class Extractor:
    """One spider and the settings that say what to take from a page."""

    def __init__(self, spider: Spider, settings: Settings) -> None:
        self._spider = spider
        self._settings = settings
        self._memo = LinkMemo()
        self._robot = product_token(settings.user_agent)
        self._looks = Looks(settings)
        self._parse: Parse = compose(spider.parse_middleware, self._run)

    async def extract(self, request: Request, response: Response) -> Extracted:
        """All that the page gives. A spider that raises costs the page its items, not its place in the record."""
        page = Page(response, request, memo=self._memo, robot=self._robot, nofollow=self._settings.nofollow)
        digest = hashlib.sha1(response.body, usedforsecurity=False).hexdigest() if response.body else ""
        links: Sequence[str] = ()
        requests: list[Request] = []
        items: list[dict[str, Any]] = []
        title, text, error, robots = "", None, "", ""
        look = Look()
        try:
            title = page.title if page.is_html else ""
            text = page.text if self._settings.text else None
            look = self._looks.at(page)
            for found in await self._parse(page):
                if isinstance(found, Request):
                    requests.append(sound(found))
                elif found is not None:
                    items.append(plain(found))
            links = self._links(page) if page.is_html else ()
            robots = str(page.robots)
        except Exception as failure:  # a page's fate is decided here: whatever it makes the spider or the parser raise
            error = _describe(failure)
            items, requests = [], []
        return Extracted(
            title=title,
            digest=digest,
            link_count=len(links) or len(requests),
            urls=tuple(links) if self._spider.follows_links and not error else (),
            requests=tuple(requests),
            items=tuple(items),
            text=text,
            robots=robots,
            main=look.digest,
            likeness=look.likeness,
            error=error,
        )

    def _links(self, page: Page) -> Sequence[str]:
        settings = self._settings
        return page.links(settings.links, max_links=settings.max_links)

    async def _run(self, page: Page) -> list[Any]:
        handler = self._spider.handler(page.label)
        yielded = handler(page)
        if yielded is None:
            return []
        if isinstance(yielded, AsyncIterable):
            return [found async for found in yielded]
        if inspect.isawaitable(yielded):
            yielded = await yielded
        return list(yielded) if yielded is not None else []


def _describe(failure: Exception) -> str:
    """The error and where in the spider it came from, on one line."""
    if isinstance(failure, ExtractError):
        return _storable(str(failure))
    frames = traceback.extract_tb(failure.__traceback__)
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return _storable(f"{type(failure).__name__}: {failure}{where}")


def _storable(text: str) -> str:
    """The text without halves of characters, which no file can hold."""
    return text.encode("utf-8", "replace").decode()
