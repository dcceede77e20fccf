"""A web in virtual time, without sockets: scripted sites, and sites with changing pages."""

from __future__ import annotations

import asyncio
import itertools
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gossamer import urls
from gossamer.clock import Clock
from gossamer.errors import FetchError
from gossamer.extract.spider import Spider
from gossamer.jobs.local_run import LocalRun, RunSummary
from gossamer.lab.virtual_time import LoopClock, run
from gossamer.middleware import Fetch
from gossamer.model import Request, Response
from gossamer.settings import Settings

Reply = int | bytes | FetchError | tuple[int, Mapping[str, str]] | None
"""A status, a body, an error, a status with headers, or None for the default page."""
Script = Callable[[str, str, float], Reply]
"""Returns the reply of a host to a path at a time."""


class ScriptedHit(NamedTuple):
    """One request to the stage."""

    at: float
    host: str
    path: str


class Stage:
    """Hosts a.test, b.test, ...: the first page of each links to /1, /2, ..., as many as `pages` sets for it."""

    def __init__(self, clock: Clock, pages: Mapping[str, int], script: Script, *, seconds_each: float = 0.0) -> None:
        self._clock = clock
        self._pages = pages
        self._script = script
        self._seconds_each = seconds_each
        self._started_at = clock.monotonic()
        self.asked: list[ScriptedHit] = []
        """Requests for pages, without those for robots.txt."""

    def middleware(self, _: Fetch) -> Fetch:
        """Middleware that replies instead of the network."""
        return self.fetch

    async def fetch(self, request: Request) -> Response:
        """Return the response, or raise the fault, for the current time."""
        host, path = urls.host_port(request.url), urls.path_query(request.url)
        at = self._clock.monotonic() - self._started_at
        reply = self._script(host, path, at)
        if path != "/robots.txt":
            self.asked.append(ScriptedHit(at, host, path))
        if self._seconds_each:
            await asyncio.sleep(self._seconds_each)
        if isinstance(reply, FetchError):
            raise reply
        body = reply if isinstance(reply, bytes) else self._body(host, path)
        reply = 200 if isinstance(reply, bytes) else reply
        status, headers = reply if isinstance(reply, tuple) else (reply or self._status(host, path), {})
        return Response(
            url=request.url,
            status=status,
            headers=(("content-type", "text/html"), *headers.items()),
            body=body if status == 200 else b"",
            fetched_at=self._clock.epoch(),
            headers_at=self._clock.monotonic(),
        )

    def _status(self, host: str, path: str) -> int:
        return 404 if path == "/robots.txt" or host not in self._pages else 200

    def _body(self, host: str, path: str) -> bytes:
        links = range(1, self._pages.get(host, 0)) if path == "/" else ()
        return f"<title>{host}{path}</title>".encode() + b"".join(b'<a href="/%d">x</a>' % link for link in links)

    def times(self, host: str) -> list[float]:
        """Times of the requests for pages to a host."""
        return [asked.at for asked in self.asked if asked.host == host]

    def paths(self, host: str) -> set[str]:
        """Paths requested from a host."""
        return {asked.path for asked in self.asked if asked.host == host}


def play(
    pages: Mapping[str, int],
    script: Script = lambda host, path, at: None,
    *,
    folder: Path | None = None,
    seconds_each: float = 0.0,
    **settings: Any,
) -> tuple[Stage, RunSummary]:
    """Crawl a stage in virtual time until the crawl finishes."""

    async def crawl() -> tuple[Stage, RunSummary]:
        clock = LoopClock()
        stage, spider = Stage(clock, pages, script, seconds_each=seconds_each), Spider()
        spider.fetch_middleware = [stage.middleware]
        seeds = [f"http://{host}/" for host in pages]
        return stage, await LocalRun(folder, Settings(**settings), seeds, spider=spider, clock=clock).run()

    return run(crawl())


DAY = 86_400.0
WEEK = 7 * DAY


class ChangingHit(NamedTuple):
    """One request for a page: time, URL, status, and the version that the client has afterwards."""

    at: float
    url: str
    status: int
    version: int
    conditional: bool


class ChangingWeb:
    """Sites s0.test, s1.test, ... whose first page links to /p0, /p1, ...; each page changes at its own rate.

    Changes are a Poisson process derived from the seed. Pages with an even number have an ETag; the markup around the
    text, with a menu and an advertisement, differs in every response. `answers` can return another reply for a path: a
    status, or None for the default page."""

    def __init__(
        self,
        clock: Clock,
        *,
        sites: int,
        pages: int,
        days_per_change: Callable[[int], float],
        seconds: float = 60 * WEEK,
        answers: Callable[[str, float], int | None] = lambda path, at: None,
        seed: int = 1,
    ) -> None:
        self._clock = clock
        self._started_at = clock.epoch()
        self._pages = pages
        self._answers = answers
        self._noise = random.Random(seed)
        self.hits: list[ChangingHit] = []
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        self.seeds = [f"http://s{site}.test/" for site in range(sites)]
        self.changes: dict[str, list[float]] = {}
        """URL -> times of its changes, in seconds since the start."""
        for site in range(sites):
            for page in range(pages):
                draw, at, times = random.Random(f"{seed}/{site}/{page}"), 0.0, []
                while (at := at + draw.expovariate(1.0 / (days_per_change(page) * DAY))) < seconds:
                    times.append(at)
                self.changes[f"http://s{site}.test/p{page}"] = times

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self._clock.epoch() - self._started_at

    def version(self, url: str, at: float) -> int:
        """Number of changes of a page until a time."""
        return bisect_right(self.changes.get(url, []), at)

    def middleware(self, _: Fetch) -> Fetch:
        """Middleware that replies instead of the network."""
        return self.fetch

    async def fetch(self, request: Request) -> Response:
        """Return the response for the current time."""
        path = urls.path_query(request.url)
        if path == "/robots.txt":
            return self._response(request, 404)
        version = self.version(request.url, self.now)
        asked = (request.headers or {}).get("If-None-Match", "")
        status = self._answers(path, self.now) or (404 if path != "/" and request.url not in self.changes else 200)
        tag = f'"{version}"' if path != "/" and int(path[2:] or 1) % 2 == 0 else ""
        if status == 200 and tag and tag == asked:
            status = 304
        self.hits.append(ChangingHit(self.now, request.url, status, version, bool(asked)))
        for number, reached in self._awaited:
            if len(self.hits) >= number and not reached.done():
                reached.set_result(None)
        headers = (("content-type", "text/html; charset=utf-8"), *((("etag", tag),) if tag else ()))
        return self._response(request, status, headers, self._body(path, version) if status == 200 else b"")

    async def more(self, hits: int) -> None:
        """Wait for some more requests."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.append((len(self.hits) + hits, reached))
        await reached

    def _body(self, path: str, version: int) -> bytes:
        if path == "/":
            text = "".join(f'<a href="/p{page}">Page {page}</a>' for page in range(self._pages))
        else:
            text = f"<h1>Page {path}</h1><p>This is version {version} of it.</p>"
        noise = self._noise.random()
        return (
            f"<html><head><title>{path}</title><script>visit({noise})</script></head>"
            f"<body><nav>menu {noise}</nav><main>{text}</main><aside>advertisement {noise}</aside></body></html>"
        ).encode()

    def _response(
        self, request: Request, status: int, headers: tuple[tuple[str, str], ...] = (), body: bytes = b""
    ) -> Response:
        return Response(
            url=request.url,
            status=status,
            headers=headers,
            body=body,
            fetched_at=self._clock.epoch(),
            headers_at=self._clock.monotonic(),
        )

    def times(self, url: str) -> list[float]:
        """Times of the requests for a page, in seconds since the start."""
        return [hit.at for hit in self.hits if hit.url == url]

    def freshness(self, start: float, end: float) -> float:
        """Freshness between two times: the share of pages and time in which the last fetched copy is up to date."""
        seen: dict[str, list[tuple[float, int]]] = {}
        for hit in self.hits:
            if hit.status in (200, 304):
                seen.setdefault(hit.url, []).append((hit.at, hit.version))
        fresh = 0.0
        for url, times in self.changes.items():
            visits = [*seen.get(url, []), (end, 0)]
            for (at, version), (until, _) in itertools.pairwise(visits):
                stale_at = times[version] if version < len(times) else end
                fresh += max(0.0, min(until, stale_at, end) - max(at, start))
        return fresh / ((end - start) * len(self.changes))
