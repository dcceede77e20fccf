"""A web on a stage: sites in virtual time and without sockets, which do to a crawler what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gossamer import urls
from gossamer.clock import Clock
from gossamer.errors import FetchError
from gossamer.extract.spider import Spider
from gossamer.jobs.local_run import LocalRun, RunSummary
from gossamer.middleware import Fetch
from gossamer.model import Request, Response
from gossamer.settings import Settings
from gossamer.testing.virtual import LoopClock, run

Reply = int | bytes | FetchError | tuple[int, Mapping[str, str]] | None
"""A status, a body, an error, a status with headers, or None for the page as it is."""
Script = Callable[[str, str, float], Reply]
"""What a host answers to a path at a time."""


class ScriptedHit(NamedTuple):
    """One request, as the stage saw it."""

    at: float
    host: str
    path: str


class Stage:
    """Hosts a.test, b.test, ... as `pages` names them: their first page links to /1, /2, ... as many as it says."""

    def __init__(self, clock: Clock, pages: Mapping[str, int], script: Script, *, seconds_each: float = 0.0) -> None:
        self._clock = clock
        self._pages = pages
        self._script = script
        self._seconds_each = seconds_each
        self._started_at = clock.monotonic()
        self.asked: list[ScriptedHit] = []
        """Requests for pages; those for robots.txt are answered and not listed."""

    def middleware(self, _: Fetch) -> Fetch:
        """Answers in place of the network."""
        return self.fetch

    async def fetch(self, request: Request) -> Response:
        """The answer, or the fault, of this moment."""
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
        """When a host was asked for pages."""
        return [asked.at for asked in self.asked if asked.host == host]

    def paths(self, host: str) -> set[str]:
        """What a host was asked for."""
        return {asked.path for asked in self.asked if asked.host == host}


def play(
    pages: Mapping[str, int],
    script: Script = lambda host, path, at: None,
    *,
    folder: Path | None = None,
    seconds_each: float = 0.0,
    **settings: Any,
) -> tuple[Stage, RunSummary]:
    """Crawl a stage in virtual time, to the end."""

    async def crawl() -> tuple[Stage, RunSummary]:
        clock = LoopClock()
        stage, spider = Stage(clock, pages, script, seconds_each=seconds_each), Spider()
        spider.fetch_middleware = [stage.middleware]
        seeds = [f"http://{host}/" for host in pages]
        return stage, await LocalRun(folder, Settings(**settings), seeds, spider=spider, clock=clock).run()

    return run(crawl())
