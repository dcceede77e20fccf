"""What a page in the browser loads: every request goes through our own guarded client, within the page's limits."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from gossamer.clock import Clock
from gossamer.download.base import Downloader, Permit
from gossamer.errors import FetchError, TooLarge
from gossamer.model import REDIRECTS, Headers, Request, Response
from gossamer.settings import MIB, Settings
from gossamer.urls import host_port, join, origin

if TYPE_CHECKING:
    from playwright.async_api import Page, Route
    from playwright.async_api import Request as Wanted

AT_ONCE = 6
MAX_HOPS = 5
SHELF_BYTES = 64 * MIB
FRESH_SECONDS, LONGEST_FRESH_SECONDS = 300.0, 3600.0
ALWAYS = frozenset(("script", "stylesheet", "xhr", "fetch"))
CHOICES = frozenset(("image", "font", "media"))
METHODS = frozenset(("GET", "HEAD", "POST"))
# What the browser says of itself, and what our client says better.
_NOT_SENT = ("user-agent", "accept-encoding", "host", "connection", "content-length", "sec-", "proxy-", "upgrade")
_NOT_TOLD = frozenset(
    ("content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive", "alt-svc")
)


class LoadCache:
    """Scripts and style sheets that pages share, so that a site is not asked for them with every page; bounded."""

    def __init__(self, clock: Clock, max_bytes: int = SHELF_BYTES) -> None:
        self._clock, self._max_bytes = clock, max_bytes
        self._kept: OrderedDict[tuple[str, str], tuple[float, Response]] = OrderedDict()
        self._bytes = 0

    def get(self, site: str, url: str) -> Response | None:
        """What the pages of a site got for this URL, if it is still fresh."""
        good_until, response = self._kept.get((site, url), (0.0, None))
        return response if good_until > self._clock.monotonic() else None

    def put(self, site: str, url: str, response: Response) -> None:
        """Keep an answer for as long as it says, an hour at most, and five minutes if it says nothing."""
        seconds = _fresh_seconds(response)
        if seconds <= 0 or len(response.body) > self._max_bytes // 8:
            return
        self._drop((site, url))
        self._kept[site, url] = (self._clock.monotonic() + seconds, response)
        self._bytes += len(response.body)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: tuple[str, str]) -> None:
        _, response = self._kept.pop(key, (0.0, None))
        if response is not None:
            self._bytes -= len(response.body)


class Loads:
    """The requests of one page. The first is answered with the document that was fetched; the rest are counted.

    `own` fetches from the page's site, with its headers; `other` from elsewhere, where credentials must not go."""

    def __init__(
        self,
        document: Response,
        *,
        own: Downloader,
        other: Downloader,
        shelf: LoadCache,
        settings: Settings,
        clock: Clock,
        permit: Permit | None = None,
    ) -> None:
        self._permit = permit
        self._document, self._own, self._other, self._shelf, self._clock = document, own, other, shelf, clock
        self._site = host_port(document.url)
        self._types = ALWAYS | (CHOICES & set(settings.browser_loads))
        self._frames = "frame" in settings.browser_loads
        self._left = settings.browser_requests
        self._left_bytes = 2 * settings.max_decoded_bytes
        self._places = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[Response]] = set()
        self._given = False
        self._under_way = 0
        self._changed = asyncio.Event()
        self.page: Page | None = None
        self.elsewhere = ""
        """Where the page wanted to go next, by script or refresh; empty if it stayed."""
        self.requests = 0
        self.wire_bytes = 0
        self.headers_at = document.headers_at

    async def answer(self, route: Route) -> None:
        """Answer one request of the page, or abort it; nothing is raised."""
        from playwright.async_api import Error

        self._under_way += 1
        self._changed.set()
        try:
            with suppress(Error):
                try:
                    response = await self._response(route.request)
                except (asyncio.CancelledError, Exception):  # whatever a page asks for, at worst it does not get it
                    response = None
                if response is None:
                    # The page stays as it is; any other code would show an error page in its place.
                    await route.abort("aborted")
                else:
                    await route.fulfill(status=response.status, headers=_told(response.headers), body=response.body)
        finally:
            self._under_way -= 1
            self._changed.set()

    async def quiet(self, seconds: float) -> None:
        """Until nothing has been asked for or answered for so long."""
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(None if self._under_way else seconds):
                    await self._changed.wait()
            except TimeoutError:
                return

    def close(self) -> None:
        """Give up what is still being loaded."""
        self._left = 0
        for task in self._tasks:
            task.cancel()

    async def _response(self, wanted: Wanted) -> Response | None:
        if wanted.is_navigation_request():
            if self.page is None or wanted.frame != self.page.main_frame:
                if not self._frames:
                    return None
            elif not self._given:
                self._given = True
                return self._document
            else:
                self.elsewhere = self.elsewhere or wanted.url
                return None
        elif wanted.resource_type not in self._types:
            return None
        if wanted.method not in METHODS or self._left <= 0 or self._left_bytes <= 0:
            return None
        self._left -= 1
        self.requests += 1
        shared = wanted.method == "GET" and wanted.resource_type in ("script", "stylesheet")
        if shared and (known := self._shelf.get(self._site, wanted.url)) is not None:
            return known
        async with self._places:
            task = asyncio.create_task(self._load(wanted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            response = await task
        if shared and response.status == 200:
            self._shelf.put(self._site, wanted.url, response)
        return response

    async def _load(self, wanted: Wanted) -> Response:
        """The answer at the end of the redirects, which the browser would follow past our client."""
        url, method, body = wanted.url.partition("#")[0], wanted.method, wanted.post_data_buffer or b""
        headers = {
            name: value
            for name, value in wanted.headers.items()
            if not name.startswith(_NOT_SENT) and value.isascii() and name != ":"
        }
        for _ in range(MAX_HOPS + 1):
            is_own = host_port(url) == self._site
            fetch = (self._own if is_own else self._other).fetch
            if self._permit is not None and not await self._permit(url, fetch):
                raise FetchError("robots.txt does not allow it")
            request = Request(url, site=host_port(url), method=method, headers=headers or None, body=body)
            response = await fetch(request)
            self._count(response, is_own)
            target = join(url, response.header("location")) if response.status in REDIRECTS else None
            if target is None:
                break
            if origin(target) != origin(url):
                headers = {n: v for n, v in headers.items() if n not in ("cookie", "authorization")}
            if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                method, body = "GET", b""
            url = target
        if response.status in REDIRECTS:
            raise FetchError("too many redirects")
        strayed = origin(url) != origin(wanted.url) and wanted.resource_type in ("xhr", "fetch")
        # For the browser this still comes from where it asked: what it would have hidden is hidden here.
        if strayed and response.header("access-control-allow-origin") not in ("*", origin(self._document.url)):
            raise FetchError("another origin, which does not share")
        return response

    def _count(self, response: Response, is_own: bool) -> None:
        self.wire_bytes += response.wire_bytes
        self._left_bytes -= len(response.body)
        if is_own:
            self.headers_at = max(self.headers_at, response.headers_at)
        if self._left_bytes < 0:
            raise TooLarge("the page loads too much")


def _told(headers: Headers) -> dict[str, str]:
    """Headers as the browser is given them: repeated ones joined, none that a browser could not take."""
    told: dict[str, str] = {}
    for name, value in headers:
        if name in _NOT_TOLD or not value.isascii() or not value.isprintable():
            continue
        between = "\n" if name == "set-cookie" else ", "
        told[name] = f"{told[name]}{between}{value}" if name in told else value
    return told


def _fresh_seconds(response: Response) -> float:
    said = [part.strip().lower() for part in response.header("cache-control").split(",")]
    varies = {part.strip().lower() for part in response.header("vary").split(",")} - {"", "accept-encoding"}
    if varies or response.header("set-cookie") or {"no-store", "no-cache", "private"} & set(said):
        return 0.0
    for part in said:
        if part.startswith("max-age=") and part[8:].isdecimal():
            return min(float(part[8:18]), LONGEST_FRESH_SECONDS)
    return FRESH_SECONDS


def as_shown(document: Response, html: bytes, loads: Loads, *, elapsed: float, cookies: Headers = ()) -> Response:
    """The document with what the browser made of it in place of its body; status and headers stay the server's."""
    headers = tuple(pair for pair in document.headers if pair[0] not in ("content-type", "set-cookie"))
    kept = tuple(pair for pair in document.headers if pair[0] == "set-cookie")
    return msgspec.structs.replace(
        document,
        headers=(*headers, ("content-type", "text/html; charset=utf-8"), *kept, *cookies),
        body=html,
        elapsed=elapsed,
        headers_at=loads.headers_at,
        wire_bytes=document.wire_bytes + loads.wire_bytes,
    )
