"""The browser downloader: renders pages in Chromium and sends every request of a page through the guarded client."""

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
    from playwright.async_api import Request as PageRequest


AT_ONCE = 6
MAX_HOPS = 5
CACHE_BYTES = 64 * MIB
FRESH_SECONDS, LONGEST_FRESH_SECONDS = 300.0, 3600.0
ALWAYS = frozenset(("script", "stylesheet", "xhr", "fetch"))
CHOICES = frozenset(("image", "font", "media"))
METHODS = frozenset(("GET", "HEAD", "POST"))
# Headers that the browser sets for itself and that our client sets better.
_BROWSER_HEADERS = (
    "user-agent",
    "accept-encoding",
    "host",
    "connection",
    "content-length",
    "sec-",
    "proxy-",
    "upgrade",
)
_OMITTED = frozenset(("content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive", "alt-svc"))


class LoadCache:
    """A bounded cache of scripts and style sheets, so that the pages of a site share one download."""

    def __init__(self, clock: Clock, max_bytes: int = CACHE_BYTES) -> None:
        self._clock, self._max_bytes = clock, max_bytes
        self._kept: OrderedDict[tuple[str, str], tuple[float, Response]] = OrderedDict()
        self._bytes = 0

    def get(self, site: str, url: str) -> Response | None:
        """Return the cached response for a URL on pages of this site, if it is still fresh."""
        good_until, response = self._kept.get((site, url), (0.0, None))
        return response if good_until > self._clock.monotonic() else None

    def put(self, site: str, url: str, response: Response) -> None:
        """Cache a response for as long as its headers say: at most an hour, five minutes if they say nothing."""
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
    """Answers the requests of one page: the first with the fetched document, the others by fetching, up to a limit.

    `own` fetches from the page's site, with its headers; `other` from other sites, which must not get credentials."""

    def __init__(
        self,
        document: Response,
        *,
        own: Downloader,
        other: Downloader,
        cache: LoadCache,
        settings: Settings,
        clock: Clock,
        permit: Permit | None = None,
    ) -> None:
        self._permit = permit
        self._document, self._own, self._other, self._cache, self._clock = document, own, other, cache, clock
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
        self.navigated_to = ""
        """The URL that the page navigated to next, by script or refresh; empty if it stayed."""
        self.requests = 0
        self.wire_bytes = 0
        self.headers_at = document.headers_at

    async def answer(self, route: Route) -> None:
        """Answer one request of the page, or abort it; never raises."""
        from playwright.async_api import Error

        self._under_way += 1
        self._changed.set()
        try:
            with suppress(Error):
                try:
                    response = await self._response(route.request)
                except (asyncio.CancelledError, Exception):  # a failed load is aborted, whatever the reason
                    response = None
                if response is None:
                    # "aborted" leaves the page as it is; any other code would show an error page in its place.
                    await route.abort("aborted")
                else:
                    await route.fulfill(
                        status=response.status, headers=_for_browser(response.headers), body=response.body
                    )
        finally:
            self._under_way -= 1
            self._changed.set()

    async def wait_until_quiet(self, seconds: float) -> None:
        """Wait until no request has started or ended for this long."""
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(None if self._under_way else seconds):
                    await self._changed.wait()
            except TimeoutError:
                return

    def close(self) -> None:
        """Cancel the loads in progress."""
        self._left = 0
        for task in self._tasks:
            task.cancel()

    async def _response(self, load: PageRequest) -> Response | None:
        if load.is_navigation_request():
            if self.page is None or load.frame != self.page.main_frame:
                if not self._frames:
                    return None
            elif not self._given:
                self._given = True
                return self._document
            else:
                self.navigated_to = self.navigated_to or load.url
                return None
        elif load.resource_type not in self._types:
            return None
        if load.method not in METHODS or self._left <= 0 or self._left_bytes <= 0:
            return None
        self._left -= 1
        self.requests += 1
        shared = load.method == "GET" and load.resource_type in ("script", "stylesheet")
        if shared and (known := self._cache.get(self._site, load.url)) is not None:
            return known
        async with self._places:
            task = asyncio.create_task(self._load(load))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            response = await task
        if shared and response.status == 200:
            self._cache.put(self._site, load.url, response)
        return response

    async def _load(self, load: PageRequest) -> Response:
        """Follow redirects here, since the browser would follow them past our client, and return the last response."""
        url, method, body = load.url.partition("#")[0], load.method, load.post_data_buffer or b""
        headers = {
            name: value
            for name, value in load.headers.items()
            if not name.startswith(_BROWSER_HEADERS) and value.isascii() and name != ":"
        }
        for _ in range(MAX_HOPS + 1):
            is_own = host_port(url) == self._site
            fetch = (self._own if is_own else self._other).fetch
            if self._permit is not None and not await self._permit(url, fetch):
                raise FetchError("disallowed by robots.txt")
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
        strayed = origin(url) != origin(load.url) and load.resource_type in ("xhr", "fetch")
        # The browser does not see the redirect, so the CORS check that it would have made is made here.
        if strayed and response.header("access-control-allow-origin") not in ("*", origin(self._document.url)):
            raise FetchError("cross-origin response without Access-Control-Allow-Origin")
        return response

    def _count(self, response: Response, is_own: bool) -> None:
        self.wire_bytes += response.wire_bytes
        self._left_bytes -= len(response.body)
        if is_own:
            self.headers_at = max(self.headers_at, response.headers_at)
        if self._left_bytes < 0:
            raise TooLarge("the page's loads exceed the size limit")


def _for_browser(headers: Headers) -> dict[str, str]:
    """Headers in the form that the browser accepts: repeated ones joined, invalid ones dropped."""
    accepted: dict[str, str] = {}
    for name, value in headers:
        if name in _OMITTED or not value.isascii() or not value.isprintable():
            continue
        between = "\n" if name == "set-cookie" else ", "
        accepted[name] = f"{accepted[name]}{between}{value}" if name in accepted else value
    return accepted


def _fresh_seconds(response: Response) -> float:
    directives = [part.strip().lower() for part in response.header("cache-control").split(",")]
    varies = {part.strip().lower() for part in response.header("vary").split(",")} - {"", "accept-encoding"}
    if varies or response.header("set-cookie") or {"no-store", "no-cache", "private"} & set(directives):
        return 0.0
    for part in directives:
        if part.startswith("max-age=") and part[8:].isdecimal():
            return min(float(part[8:18]), LONGEST_FRESH_SECONDS)
    return FRESH_SECONDS


def rendered_response(
    document: Response, html: bytes, loads: PageLoads, *, elapsed: float, cookies: Headers = ()
) -> Response:
    """Return the document with the rendered DOM as its body; status and headers stay the server's."""
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
SCREENSHOT_SECONDS = 15.0
RETRY_SECONDS = 1.0
WIDTH, HEIGHT, MAX_SCREENSHOT_HEIGHT = 1280, 1024, 10_000
MAX_TARGET_LENGTH = 8192
# Runs in an isolated world, where the page cannot have redefined these names.
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
_CLEARED_STORAGE = "local_storage,indexeddb,cache_storage,file_systems,websql,service_workers"
_HEIGHT = "Math.ceil(document.documentElement ? document.documentElement.scrollHeight : 0)"
log = logging.getLogger("gossamer.browser")


class BrowserDownloader:
    """Renders every HTML page in a browser whose only network is our own client: same guard, same limits, same TLS.

    Responses that are not HTML, not successful, or redirects are returned as fetched. If the browser crashes, the same
    document is rendered again without another fetch; after the second crash the page fails with RenderFailed."""

    def __init__(self, settings: Settings, clock: Clock, resolver: NameResolver | None = None) -> None:
        self._settings, self._clock = settings, clock
        self.browsers = Browsers(settings, find_chromium(settings.browser_path), _profile(settings))
        resolver = resolver or Resolver(clock, settings.resolve, nameservers=settings.nameservers)
        self._http = HttpDownloader(settings, clock, resolver)
        # Headers of the job and its sites may hold credentials: a page's scripts must not send them to other sites.
        self._other = HttpDownloader(msgspec.structs.replace(settings, headers={}, sites={}), clock, resolver)
        self._cache = LoadCache(clock)
        self.permit: Permit | None = None
        """Called before a page loads a URL; if None, all loads that the settings allow are permitted."""

    async def fetch(self, request: Request) -> Response:
        """Return the response to one request, with the DOM as its body after the page's scripts ran."""
        document = await self._http.fetch(_unconditional(request))
        return await self.render(request, document) if is_renderable(request, document) else document

    async def address_of(self, request: Request) -> str:
        """Return the address that the document will come from."""
        return await self._http.address_of(request)

    async def aclose(self) -> None:
        await self._http.aclose()
        await self._other.aclose()
        await self.browsers.aclose()

    async def render(self, request: Request, document: Response) -> Response:
        """Render a document; time spent waiting for a tab does not count against the limit."""
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
                    return await self._render(context, request, document)
            except TimeoutError:
                break
            except Error as error:
                why = str(error).partition("\n")[0]
                left -= self._clock.monotonic() - began
                if left < RETRY_SECONDS:
                    break
        raise RenderFailed(why or f"scripts did not finish within {seconds:.3g} s")

    async def _render(self, context: BrowserContext, request: Request, document: Response) -> Response:
        began = self._clock.monotonic()
        loads = PageLoads(
            document,
            own=self._http,
            other=self._other,
            cache=self._cache,
            settings=self._settings,
            clock=self._clock,
            permit=self.permit,
        )
        try:
            sent = _request_cookies(request)
            page, session = await self._clean_page(context, document.url, sent, loads)
            loads.page = page
            world = await self._open(page, session, document.url, loads)
            body = await self._dom(world, loads)
            if self._settings.screenshots:
                await self._take_screenshot(page, world, document.url)
            cookies = await self._set_cookies(context, document.url, sent) if self._settings.cookies else ()
        finally:
            loads.close()
        elapsed = document.elapsed + self._clock.monotonic() - began
        return rendered_response(document, body, loads, elapsed=elapsed, cookies=cookies)

    async def _clean_page(
        self, context: BrowserContext, url: str, sent: list[dict[str, str]], loads: PageLoads
    ) -> tuple[Page, CDPSession]:
        """Return an empty page with the request's cookies and without storage left by earlier pages of its origin."""
        await context.unroute_all(behavior="ignoreErrors")
        await context.clear_cookies()
        if sent:
            await context.add_cookies([{"name": each["name"], "value": each["value"], "url": url} for each in sent])
        await context.route("**/*", loads.answer)
        page = await context.new_page()
        page.on("popup", lambda popup: popup.close())
        session = await context.new_cdp_session(page)
        await session.send("Storage.clearDataForOrigin", {"origin": origin(url), "storageTypes": _CLEARED_STORAGE})
        return page, session

    async def _open(self, page: Page, session: CDPSession, url: str, loads: PageLoads) -> JsWorld:
        """Load the page and wait for what the settings name; continue without it when its time is up."""
        from playwright.async_api import Error

        wait = self._settings.browser_wait
        try:
            async with asyncio.timeout(self._settings.browser_wait_seconds):
                try:
                    await page.goto(
                        url, wait_until="load" if wait in ("load", "idle") else "domcontentloaded", timeout=0
                    )
                except Error:
                    # The page navigated away before it was complete: use what has loaded.
                    if not loads.navigated_to:
                        raise
                if wait not in ("load", "dom", "idle"):
                    await page.wait_for_selector(f"css={wait}", state="attached", timeout=0)
                elif wait == "idle":
                    await self._wait_until_idle(await JsWorld.enter(session), loads)
        except TimeoutError:
            pass
        world = await JsWorld.enter(session)
        for _ in range(self._settings.browser_scroll):
            if not await world.evaluate(_SCROLL):
                break
            try:
                async with asyncio.timeout(self._settings.browser_wait_seconds):
                    await self._wait_until_idle(world, loads)
            except TimeoutError:
                pass
        return world

    async def _wait_until_idle(self, world: JsWorld, loads: PageLoads) -> None:
        """Wait until nothing is loading and the page's scripts are idle."""
        before = -1
        while before != loads.requests:
            before = loads.requests
            await loads.wait_until_quiet(QUIET_SECONDS)
            await world.evaluate(_IDLE)

    async def _dom(self, world: JsWorld, loads: PageLoads) -> bytes:
        limit_bytes = self._settings.max_decoded_bytes
        text = await world.evaluate(_DOM % limit_bytes)
        # Page text may contain lone surrogates.
        body = text.encode("utf-8", "replace") if isinstance(text, str) else b""
        if text is None or len(body) > limit_bytes:
            raise TooLarge(f"rendered page of more than {limit_bytes} bytes")
        if loads.navigated_to.startswith(("http:", "https:")) and len(loads.navigated_to) <= MAX_TARGET_LENGTH:
            target = html.escape(loads.navigated_to)
            body += f'\n<meta http-equiv="refresh" content="0; url={target}">'.encode()
        return body

    async def _take_screenshot(self, page: Page, world: JsWorld, url: str) -> None:
        from playwright.async_api import Error

        height = min(MAX_SCREENSHOT_HEIGHT, max(HEIGHT, int(await world.evaluate(_HEIGHT) or 0)))
        clip: Any = {"x": 0, "y": 0, "width": WIDTH, "height": height}
        try:
            async with asyncio.timeout(SCREENSHOT_SECONDS):
                png = await page.screenshot(full_page=True, clip=clip, timeout=0)
            await asyncio.to_thread(_write, screenshot_path(self._settings.screenshots, url), png)
        except (Error, TimeoutError, OSError) as error:
            log.warning("no screenshot of %s: %s", url, str(error).partition("\n")[0] or "timed out")

    async def _set_cookies(self, context: BrowserContext, url: str, sent: list[dict[str, str]]) -> Headers:
        """Return the cookies that scripts and loads changed, as the Set-Cookie headers that would have set them."""
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
    """An isolated JavaScript world beside the page's own, on the same DOM."""

    def __init__(self, session: CDPSession, number: int) -> None:
        self._session, self._number = session, number

    @classmethod
    async def enter(cls, session: CDPSession) -> JsWorld:
        tree = await session.send("Page.getFrameTree")
        made = await session.send("Page.createIsolatedWorld", {"frameId": tree["frameTree"]["frame"]["id"]})
        return cls(session, made["executionContextId"])

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression. A page with an endless script never answers: the caller sets a timeout."""
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
            raise RenderFailed(f"cannot read the page: {reply['exceptionDetails'].get('text', '')}")
        return reply["result"].get("value")


def is_renderable(request: Request, document: Response) -> bool:
    """Return whether a response should be rendered: complete HTML that is not a download.

    robots.txt, sitemaps, and files are never rendered, even if the server labels them as HTML."""
    if request.label in (ROBOTS, SITEMAP, FILE):
        return False
    kind = document.header("content-type").partition(";")[0].strip().lower()
    return (
        document.status in (200, 203)
        and bool(document.body)
        and kind in ("text/html", "application/xhtml+xml")
        and not document.header("content-disposition").lstrip().lower().startswith("attachment")
    )


def screenshot_path(folder: str, url: str) -> Path:
    """Return the path of a page's screenshot."""
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
    """Return the request without conditional headers: an unchanged document may render differently."""
    if not request.headers:
        return request
    kept = {n: v for n, v in request.headers.items() if n.lower() not in ("if-none-match", "if-modified-since")}
    return msgspec.structs.replace(request, headers=kept or None)


def _request_cookies(request: Request) -> list[dict[str, str]]:
    """Return the request's cookies, for the page's scripts and loads."""
    value = next((v for n, v in (request.headers or {}).items() if n.lower() == "cookie"), "")
    pairs = (part.strip().partition("=") for part in value.split(";"))
    return [{"name": name, "value": content} for name, equals, content in pairs if name and equals]
