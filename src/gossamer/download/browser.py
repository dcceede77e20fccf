"""The browser downloader: runs a page's scripts in Chromium and guards every request that the page makes."""

from __future__ import annotations

import asyncio
import hashlib
import html
import logging
import os
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gossamer.clock import Clock
from gossamer.download.base import Downloader, Permit
from gossamer.download.chromium import Browsers, find_chromium
from gossamer.download.client import FILE, HttpDownloader
from gossamer.download.dns import NameResolver, Resolver
from gossamer.errors import FetchError, RenderFailed, TooLarge
from gossamer.model import REDIRECTS, ROBOTS, SITEMAP, Headers, Request, Response
from gossamer.settings import MIB, Settings
from gossamer.urls import host, host_port, join, origin

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Page, Route
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
_OMITTED = frozenset(("content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive", "alt-svc"))


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


class PageLoads:
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
                    await route.fulfill(
                        status=response.status, headers=_for_browser(response.headers), body=response.body
                    )
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


def _for_browser(headers: Headers) -> dict[str, str]:
    """Headers as the browser is given them: repeated ones joined, none that a browser could not take."""
    told: dict[str, str] = {}
    for name, value in headers:
        if name in _OMITTED or not value.isascii() or not value.isprintable():
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


def as_shown(document: Response, html: bytes, loads: PageLoads, *, elapsed: float, cookies: Headers = ()) -> Response:
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


QUIET_SECONDS = 0.4
SCRIPT_SECONDS = 10.0
SHOT_SECONDS = 15.0
AGAIN_SECONDS = 1.0
WIDTH, HEIGHT, MAX_SHOT_HEIGHT = 1280, 1024, 10_000
MAX_TARGET_LENGTH = 8192
# Run in a world of its own, where the page cannot have changed what these words mean.
_DOM = """(limit => {
  const root = document.documentElement, type = document.doctype;
  const text = root ? root.outerHTML : "";
  return text.length > limit ? null : (type ? new XMLSerializer().serializeToString(type) + "\\n" : "") + text;
})(%d)"""
_IDLE = "new Promise(done => requestIdleCallback(() => done(1), {timeout: 2000}))"
_SCROLL = """(() => {
  const before = window.scrollY;
  window.scrollBy(0, window.innerHeight);
  return window.scrollY > before;
})()"""
_LEFT_BEHIND = "local_storage,indexeddb,cache_storage,file_systems,websql,service_workers"
_HEIGHT = "Math.ceil(document.documentElement ? document.documentElement.scrollHeight : 0)"
log = logging.getLogger("gossamer.browser")


class BrowserDownloader:
    """Shows every HTML page in a browser that has no network but our own client: guard, limits and TLS are the same.

    What is no HTML, no success or a redirect is handed on as it came. A browser that dies costs another showing of the
    document at hand, not another fetch; the second time the page fails with RenderFailed."""

    def __init__(self, settings: Settings, clock: Clock, resolver: NameResolver | None = None) -> None:
        self._settings, self._clock = settings, clock
        self.browsers = Browsers(settings, find_chromium(settings.browser_path), _profile(settings))
        resolver = resolver or Resolver(clock, settings.resolve, nameservers=settings.nameservers)
        self._http = HttpDownloader(settings, clock, resolver)
        # Headers of the job and of its sites may be credentials: other sites do not get them from a page's scripts.
        self._other = HttpDownloader(msgspec.structs.replace(settings, headers={}, sites={}), clock, resolver)
        self._shelf = LoadCache(clock)
        self.permit: Permit | None = None
        """Asked before a page loads anything; without it, it may load all that the settings allow."""

    async def fetch(self, request: Request) -> Response:
        """The answer to one request, with the DOM for its body once its scripts have run."""
        document = await self._http.fetch(_unconditional(request))
        return await self.show(request, document) if is_shown(request, document) else document

    async def address_of(self, request: Request) -> str:
        """Where the document will come from."""
        return await self._http.address_of(request)

    async def aclose(self) -> None:
        await self._http.aclose()
        await self._other.aclose()
        await self.browsers.aclose()

    async def show(self, request: Request, document: Response) -> Response:
        """The document after its scripts; the time that waiting for a tab takes does not count."""
        from playwright.async_api import Error

        left = seconds = max(1.0, self._settings.fetch_seconds - document.elapsed)
        why = ""
        for _ in range(2):
            limit = asyncio.timeout(None)
            began = self._clock.monotonic()
            try:
                async with self.browsers.context() as context, limit:
                    began = self._clock.monotonic()
                    limit.reschedule(asyncio.get_running_loop().time() + left)
                    return await self._shown(context, request, document)
            except TimeoutError:
                break
            except Error as error:
                why = str(error).partition("\n")[0]
                left -= self._clock.monotonic() - began
                if left < AGAIN_SECONDS:
                    break
        raise RenderFailed(why or f"its scripts did not end within {seconds:.3g} s")

    async def _shown(self, context: BrowserContext, request: Request, document: Response) -> Response:
        began = self._clock.monotonic()
        loads = PageLoads(
            document,
            own=self._http,
            other=self._other,
            shelf=self._shelf,
            settings=self._settings,
            clock=self._clock,
            permit=self.permit,
        )
        try:
            sent = _sent_cookies(request)
            page, session = await self._clean_page(context, document.url, sent, loads)
            loads.page = page
            world = await self._open(page, session, document.url, loads)
            body = await self._dom(world, loads)
            if self._settings.screenshots:
                await self._shoot(page, world, document.url)
            cookies = await self._set_cookies(context, document.url, sent) if self._settings.cookies else ()
        finally:
            loads.close()
        elapsed = document.elapsed + self._clock.monotonic() - began
        return as_shown(document, body, loads, elapsed=elapsed, cookies=cookies)

    async def _clean_page(
        self, context: BrowserContext, url: str, sent: list[dict[str, str]], loads: PageLoads
    ) -> tuple[Page, CDPSession]:
        """An empty page with the cookies of the request, and nothing that earlier pages of its origin left behind."""
        await context.unroute_all(behavior="ignoreErrors")
        await context.clear_cookies()
        if sent:
            await context.add_cookies([{"name": each["name"], "value": each["value"], "url": url} for each in sent])
        await context.route("**/*", loads.answer)
        page = await context.new_page()
        page.on("popup", lambda popup: popup.close())
        session = await context.new_cdp_session(page)
        await session.send("Storage.clearDataForOrigin", {"origin": origin(url), "storageTypes": _LEFT_BEHIND})
        return page, session

    async def _open(self, page: Page, session: CDPSession, url: str, loads: PageLoads) -> JsWorld:
        """Show the page and wait for what the settings name; if that does not come in its time, go on without."""
        from playwright.async_api import Error

        wait = self._settings.browser_wait
        try:
            async with asyncio.timeout(self._settings.browser_wait_seconds):
                try:
                    await page.goto(
                        url, wait_until="load" if wait in ("load", "idle") else "domcontentloaded", timeout=0
                    )
                except Error:
                    # It went elsewhere before it was whole. What there is of it is there.
                    if not loads.elsewhere:
                        raise
                if wait not in ("load", "dom", "idle"):
                    await page.wait_for_selector(f"css={wait}", state="attached", timeout=0)
                elif wait == "idle":
                    await self._rest(await JsWorld.enter(session), loads)
        except TimeoutError:
            pass
        world = await JsWorld.enter(session)
        for _ in range(self._settings.browser_scroll):
            if not await world.evaluate(_SCROLL):
                break
            try:
                async with asyncio.timeout(self._settings.browser_wait_seconds):
                    await self._rest(world, loads)
            except TimeoutError:
                pass
        return world

    async def _rest(self, world: JsWorld, loads: PageLoads) -> None:
        """Until nothing is loading any more, and the page's scripts have done what there was to do with it."""
        before = -1
        while before != loads.requests:
            before = loads.requests
            await loads.quiet(QUIET_SECONDS)
            await world.evaluate(_IDLE)

    async def _dom(self, world: JsWorld, loads: PageLoads) -> bytes:
        limit_bytes = self._settings.max_decoded_bytes
        text = await world.evaluate(_DOM % limit_bytes)
        # Text of the page may hold halves of characters.
        body = text.encode("utf-8", "replace") if isinstance(text, str) else b""
        if text is None or len(body) > limit_bytes:
            raise TooLarge(f"a page of more than {limit_bytes} bytes in the browser")
        if loads.elsewhere.startswith(("http:", "https:")) and len(loads.elsewhere) <= MAX_TARGET_LENGTH:
            target = html.escape(loads.elsewhere)
            body += f'\n<meta http-equiv="refresh" content="0; url={target}">'.encode()
        return body

    async def _shoot(self, page: Page, world: JsWorld, url: str) -> None:
        from playwright.async_api import Error

        height = min(MAX_SHOT_HEIGHT, max(HEIGHT, int(await world.evaluate(_HEIGHT) or 0)))
        clip: Any = {"x": 0, "y": 0, "width": WIDTH, "height": height}
        try:
            async with asyncio.timeout(SHOT_SECONDS):
                png = await page.screenshot(full_page=True, clip=clip, timeout=0)
            await asyncio.to_thread(_write, shot_path(self._settings.screenshots, url), png)
        except (Error, TimeoutError, OSError) as error:
            log.warning("no screenshot of %s: %s", url, str(error).partition("\n")[0] or "it takes too long")

    async def _set_cookies(self, context: BrowserContext, url: str, sent: list[dict[str, str]]) -> Headers:
        """What scripts and loads have changed of the site's cookies, as the headers that would have done it."""
        known = {(cookie["name"], cookie["value"]) for cookie in sent}
        found = []
        for cookie in await context.cookies(url):
            name, value = cookie.get("name", ""), cookie.get("value", "")
            if (name, value) in known:
                continue
            parts = [f"{name}={value}", f"Path={cookie.get('path', '/')}"]
            if (domain := cookie.get("domain", "")).startswith("."):
                parts.append(f"Domain={domain[1:]}")
            if (seconds := cookie.get("expires", -1) - self._clock.epoch()) > 0:
                parts.append(f"Max-Age={int(seconds)}")
            if cookie.get("secure"):
                parts.append("Secure")
            found.append(("set-cookie", "; ".join(parts)))
        return tuple(found)


class JsWorld:
    """A world of scripts beside the page's own, on the same DOM."""

    def __init__(self, session: CDPSession, number: int) -> None:
        self._session, self._number = session, number

    @classmethod
    async def enter(cls, session: CDPSession) -> JsWorld:
        tree = await session.send("Page.getFrameTree")
        made = await session.send("Page.createIsolatedWorld", {"frameId": tree["frameTree"]["frame"]["id"]})
        return cls(session, made["executionContextId"])

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression. A page whose own script never ends does not answer: the caller has a limit."""
        reply = await self._session.send(
            "Runtime.evaluate",
            {
                "expression": expression,
                "contextId": self._number,
                "returnByValue": True,
                "awaitPromise": True,
                "timeout": SCRIPT_SECONDS * 1000,
            },
        )
        if "exceptionDetails" in reply:
            raise RenderFailed(f"the page cannot be read: {reply['exceptionDetails'].get('text', '')}")
        return reply["result"].get("value")


def is_shown(request: Request, document: Response) -> bool:
    """Whether an answer is a page for a browser: HTML, whole, and not to be saved as a file.

    Rules, sitemaps and files are taken as they come, though their server call them HTML."""
    if request.label in (ROBOTS, SITEMAP, FILE):
        return False
    kind = document.header("content-type").partition(";")[0].strip().lower()
    return (
        document.status in (200, 203)
        and bool(document.body)
        and kind in ("text/html", "application/xhtml+xml")
        and not document.header("content-disposition").lstrip().lower().startswith("attachment")
    )


def shot_path(folder: str, url: str) -> Path:
    """Where the screenshot of a page is kept."""
    name = host(host_port(url)).strip("[]").replace(":", "_")
    return Path(folder).expanduser() / name / f"{hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()}.png"


def _profile(settings: Settings) -> dict[str, Any]:
    return {
        "user_agent": settings.user_agent,
        "viewport": {"width": WIDTH, "height": HEIGHT},
        "service_workers": "block",
        "accept_downloads": False,
        "permissions": [],
    }


def _write(path: Path, png: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(png)
    os.replace(draft, path)


def _unconditional(request: Request) -> Request:
    """The request without conditions: a document that is the same as before may show something new."""
    if not request.headers:
        return request
    kept = {n: v for n, v in request.headers.items() if n.lower() not in ("if-none-match", "if-modified-since")}
    return msgspec.structs.replace(request, headers=kept or None)


def _sent_cookies(request: Request) -> list[dict[str, str]]:
    """The cookies of the request, for the page's scripts and for what it loads."""
    value = next((v for n, v in (request.headers or {}).items() if n.lower() == "cookie"), "")
    pairs = (part.strip().partition("=") for part in value.split(";"))
    return [{"name": name, "value": content} for name, equals, content in pairs if name and equals]
