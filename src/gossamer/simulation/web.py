"""The simulated web: hosts that answer, late, wrongly or not at all, and keep a log of who asked when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from typing import NamedTuple

from gossamer import urls
from gossamer.clock import Clock
from gossamer.errors import ConnectFailed, FetchError, NameUnknown, ProtocolBroken, TimedOut
from gossamer.middleware.base import Fetch
from gossamer.model import Request, Response
from gossamer.simulation.life import Life
from gossamer.simulation.scenario import Scenario, SiteSpec

_PATIENCE_SECONDS = 60.0
RUNAWAY = 200
"""Requests per page that no crawl needs: a run that makes more is stopped."""


class Hit(NamedTuple):
    """One request as the server saw it; `status` 0 is no answer."""

    at: float
    host: str
    path: str
    worker: str
    status: int
    answered_at: float


class SimulatedWeb:
    """Everything that the workers can reach."""

    def __init__(self, scenario: Scenario, *, note: Callable[..., None], runaway: Callable[[], None]) -> None:
        self._scenario = scenario
        self._sites = {spec.host: spec for spec in scenario.sites}
        self._chance = random.Random(f"web/{scenario.seed}")
        self._faults = {spec.host: spec.faults for spec in scenario.sites}
        self._rebuffs = {spec.host: 2 for spec in scenario.sites if spec.robots == "late"}
        self._note = note
        self._runaway = runaway
        self._most = RUNAWAY * (sum(spec.pages for spec in scenario.sites) + 10)
        self.hits: list[Hit] = []
        self.seeds = [f"http://{spec.host}/" for spec in scenario.sites]

    def expected(self) -> dict[str, str]:
        """Every page that a crawl has to fetch, with the page that alone leads to it; parents come first."""
        found: dict[str, str] = {}
        for spec in self._scenario.sites:
            for number in range(0 if spec.temper in ("dead", "gone") else spec.pages):
                parent = f"http://{spec.host}{path((number - 1) // 2)}" if number else ""
                found[f"http://{spec.host}{path(number)}"] = parent
        return found

    def middleware(self, life: Life, clock: Clock) -> Callable[[Fetch], Fetch]:
        """Answers in place of the network, for one worker."""

        async def fetch(request: Request) -> Response:
            began, epoch = clock.monotonic(), clock.epoch()
            status, headers, body = await self._ask(life, request.url)
            if request.url == self._scenario.poison:
                life.handling = request.key
                life.kill()
                await asyncio.sleep(0)
            now = clock.monotonic()
            return Response(
                url=request.url,
                status=status,
                headers=headers,
                body=body,
                fetched_at=epoch,
                elapsed=now - began,
                latency=now - began,
                headers_at=now,
            )

        return lambda _: fetch

    async def _ask(self, life: Life, url: str) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
        spec = self._sites[urls.host_port(url).partition(":")[0]]
        if spec.temper == "gone":
            await asyncio.sleep(spec.trip_seconds)
            raise NameUnknown(f"no such name: {spec.host}")
        if spec.temper == "dead":
            await asyncio.sleep(self._scenario.settings.connect_seconds)
            raise ConnectFailed(f"no answer from {spec.host}")
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[tuple[int, tuple[tuple[str, str], ...], bytes]] = loop.create_future()
        # What is on the wire arrives, though its sender be dead.
        serving = loop.create_task(self._serve(life.name, spec, urls.path_query(url), reply), context=Context())
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await reply
        except TimeoutError:
            raise TimedOut(f"no answer from {spec.host}") from None
        finally:
            del serving

    async def _serve(
        self,
        worker: str,
        spec: SiteSpec,
        asked: str,
        reply: asyncio.Future[tuple[int, tuple[tuple[str, str], ...], bytes]],
    ) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(spec.trip_seconds)
        at = loop.time()
        status, body, error = self._answer(spec, asked)
        seconds = spec.answer_seconds * self._chance.uniform(0.5, 1.5)
        self.hits.append(Hit(at, spec.host, asked, worker, status, at + seconds))
        self._note("hit", spec.host, asked, worker, status)
        if len(self.hits) > self._most:
            self._runaway()
        await asyncio.sleep(seconds + spec.trip_seconds)
        if not reply.done() and error is not None:
            reply.set_exception(error)
        elif not reply.done() and status:
            reply.set_result((status, (("content-type", "text/html" if body[:1] == b"<" else "text/plain"),), body))

    def _answer(self, spec: SiteSpec, asked: str) -> tuple[int, bytes, FetchError | None]:
        if asked == "/robots.txt":
            if self._rebuffs.get(spec.host):
                self._rebuffs[spec.host] -= 1
                return 503, b"", None
            if spec.robots == "none":
                return 404, b"", None
            slow = f"Crawl-delay: {spec.crawl_delay:g}\n" if spec.crawl_delay else ""
            return 200, f"User-agent: *\nDisallow: /private\n{slow}".encode(), None
        if spec.temper == "flaky" and self._faults[spec.host] and self._chance.random() < 0.5:
            self._faults[spec.host] -= 1
            return self._chance.choice(
                ((500, b"", None), (503, b"", None), (0, b"", None), (0, b"", ProtocolBroken("the answer was cut off")))
            )
        known = [path(number) for number in range(spec.pages)]
        if asked not in known:
            return (404, b"", None) if not asked.startswith("/private") else (200, b"<p>secret</p>", None)
        return 200, self._page(spec, known.index(asked)), None

    def _page(self, spec: SiteSpec, number: int) -> bytes:
        children = [path(child) for child in (2 * number + 1, 2 * number + 2) if child < spec.pages]
        private = ["/private/1"] if spec.robots != "none" else []
        links = [*children, *private, "/", *(f"http://{host}/" for host in spec.links)]
        return (
            "".join(f'<a href="{link}">{link}</a>' for link in links).join(("<html><body>", "</body></html>")).encode()
        )


def path(number: int) -> str:
    """The path of a page."""
    return f"/p{number}" if number else "/"
