"""The simulated web, and a witness that compares the replies of a frontier with its earlier ones."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from typing import NamedTuple

from gossamer import urls
from gossamer.clock import Clock
from gossamer.download.base import check_before_sending
from gossamer.errors import ConnectFailed, FetchError, NameUnknown, ProtocolBroken, TimedOut
from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.lab.simulation.scenario import Scenario, SiteSpec
from gossamer.lab.simulation.shards import OpenShard
from gossamer.lab.virtual_time import Life, give_up
from gossamer.middleware import Fetch
from gossamer.model import Grant, Outcome, Receipt, Request, Response

_PATIENCE_SECONDS = 60.0
RUNAWAY = 200
"""Maximum number of requests per page; a run that sends more is stopped."""
_PAGE = re.compile(r"/(?:(p|late|moved)(\d+))?")
Answer = tuple[int, tuple[tuple[str, str], ...], bytes]


class SimHit(NamedTuple):
    """One request in the server's log; `status` 0 means no response."""

    at: float
    host: str
    path: str
    worker: str
    status: int
    answered_at: float


class SimulatedWeb:
    """All sites that the workers can reach."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        note: Callable[..., None],
        runaway: Callable[[], None],
        kill: Callable[[Life], None],
    ) -> None:
        self._scenario = scenario
        self._chance = random.Random(f"web/{scenario.seed}")
        self._faults: dict[str, int] = {}
        self._rebuffs: dict[str, int] = {}
        self._note = note
        self._runaway = runaway
        self._kill = kill
        self._most = RUNAWAY * (12 * len(scenario.sites) + 10)
        self.hits: list[SimHit] = []

    def seeds(self) -> Iterator[str]:
        """The first page of each site."""
        return (f"http://s{number}.test/" for number in range(len(self._scenario.sites)))

    def expected(self, spec: SiteSpec) -> Iterator[tuple[str, str]]:
        """Every URL of a site that a crawl must fetch, with the only page that links to it; parents first."""
        for number in range(spec.pages if spec.answers else 0):
            parent = self._parent(spec, number) if number else ""
            if is_moved(spec, number):
                yield (moved := f"http://{spec.host}/moved{number}"), parent
                parent = moved
            yield f"http://{spec.host}{path(spec, number)}", parent

    def _parent(self, spec: SiteSpec, number: int) -> str:
        sites = self._scenario.sites
        parent = sites.of(sites.parent(spec.host, number))
        return f"http://{parent.host}{path(parent, (number - 1) // 2)}"

    def middleware(self, life: Life, clock: Clock) -> Callable[[Fetch], Fetch]:
        """Middleware that replies instead of the network, for one worker."""

        async def fetch(request: Request) -> Response:
            began, epoch = clock.monotonic(), clock.epoch()
            status, headers, body = await self._ask(life, request.url)
            if request.url == self._scenario.poison:
                life.handling = request.key
                self._kill(life)
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

    async def _ask(self, life: Life, url: str) -> Answer:
        spec = self._scenario.sites.of(urls.host_port(url))
        if spec.temper == "gone":
            await asyncio.sleep(spec.trip_seconds)
            raise NameUnknown(f"no such name: {spec.host}")
        if spec.temper == "dead":
            await asyncio.sleep(self._scenario.settings.connect_seconds)
            raise ConnectFailed(f"no response from {spec.host}")
        if self._scenario.servers:
            # Connecting takes time, during which the worker may be stopped; the real downloader checks again as well.
            await asyncio.sleep(spec.trip_seconds)
            check_before_sending.get()()
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Answer] = loop.create_future()
        # A sent request arrives even if its sender dies.
        on_wire = Context()
        loop.call_later(
            spec.trip_seconds, self._serve, life.name, spec, urls.path_query(url), reply, on_wire, context=on_wire
        )
        patient = loop.call_later(_PATIENCE_SECONDS, give_up, reply, TimedOut(f"no answer from {spec.host}"))
        try:
            return await reply
        finally:
            patient.cancel()

    def _serve(
        self, worker: str, spec: SiteSpec, requested: str, reply: asyncio.Future[Answer], on_wire: Context
    ) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time()
        status, body, error = self._answer(spec, requested, at)
        seconds = spec.answer_seconds * self._chance.uniform(0.5, 1.5)
        self.hits.append(SimHit(at, spec.host, requested, worker, status, at + seconds))
        self._note("hit", spec.host, requested, worker, status)
        if len(self.hits) > self._most:
            self._runaway()
        back_in = seconds + spec.trip_seconds
        if error is not None:
            loop.call_later(back_in, give_up, reply, error, context=on_wire)
        elif status:
            kind = "text/html" if body[:1] == b"<" else "text/plain"
            header, body = (("location", body.decode()), b"") if status == 301 else (("content-type", kind), body)
            loop.call_later(back_in, _arrive, reply, (status, (header,), body), context=on_wire)

    def _answer(self, spec: SiteSpec, requested: str, at: float) -> tuple[int, bytes, FetchError | None]:
        if requested == "/robots.txt":
            return self._robots(spec, at)
        if spec.temper == "broken":
            return 500, b"", None
        if spec.temper == "flaky":
            left = self._faults.setdefault(spec.host, spec.faults)
            if left and self._chance.random() < 0.5:
                self._faults[spec.host] = left - 1
                cut = ProtocolBroken("the answer was cut off")
                return self._chance.choice(((500, b"", None), (503, b"", None), (0, b"", None), (0, b"", cut)))
        if requested.startswith("/private"):
            return 200, b"<p>secret</p>", None
        found = _PAGE.fullmatch(requested)
        if found is None or int(found[2] or 0) >= spec.pages:
            return 404, b"", None
        number = int(found[2] or 0)
        if found[1] == "moved":
            return 301, path(spec, number).encode(), None
        return 200, self._page(spec, number), None

    def _robots(self, spec: SiteSpec, at: float) -> tuple[int, bytes, FetchError | None]:
        left = self._rebuffs.setdefault(spec.host, 2) if spec.robots == "late" else 0
        if left:
            self._rebuffs[spec.host] = left - 1
            return 503, b"", None
        if spec.robots == "none":
            return 404, b"", None
        slow = f"Crawl-delay: {spec.crawl_delay:g}\n" if spec.crawl_delay else ""
        closed = "Disallow: /late\n" if spec.closes_at and at >= spec.closes_at else ""
        return 200, f"User-agent: *\nDisallow: /private\n{closed}{slow}".encode(), None

    def _page(self, spec: SiteSpec, number: int) -> bytes:
        named = [
            ("" if site.host == spec.host else f"http://{site.host}")
            + (f"/moved{child}" if is_moved(site, child) else path(site, child))
            for site, child in self._scenario.sites.children(spec, number)
        ]
        private = ["/private/1"] if spec.robots != "none" else []
        links = [*named, *private, "/", *(f"http://{host}/" for host in spec.links)]
        return (
            "".join(f'<a href="{link}">{link}</a>' for link in links).join(("<html><body>", "</body></html>")).encode()
        )


def _arrive(reply: asyncio.Future[Answer], answer: Answer) -> None:
    if not reply.done():
        reply.set_result(answer)


def path(spec: SiteSpec, number: int) -> str:
    """The path of a page."""
    is_leaf = 2 * number + 1 >= spec.pages
    return f"/{'late' if spec.closes_at and is_leaf else 'p'}{number}" if number else "/"


def is_moved(spec: SiteSpec, number: int) -> bool:
    """Whether links lead to this page by a redirect."""
    return spec.moves and number % 3 == 1


RUNAWAY_TURNS = 3_000
"""Maximum number of lease calls, plus 200 for each worker and site; a run with more is stopped."""


class Witness:
    """Checks every reply of the frontier."""

    def __init__(self, scenario: Scenario, runaway: Callable[[], None]) -> None:
        self._runaway = runaway
        self._most = (RUNAWAY_TURNS + 200 * (scenario.workers + len(scenario.sites))) * (1 + 4 * scenario.shards)
        self._hears_all = not scenario.shards
        self._grants = 0
        self.deliveries: Counter[int] = Counter()
        """Key -> number of times it was leased."""
        self.accepted: set[int] = set()
        """Keys with an acknowledged outcome."""
        self.faults: list[str] = []
        self.is_finished = False
        self._newest: dict[tuple[str, int], int] = {}
        settings = scenario.settings
        # This check iterates over all sites.
        self._looks_at_shares = settings.share_window < 100 and len(scenario.sites) < 100
        self._share = int(settings.site_share * settings.share_window)
        self._suspicious: set[str] = set()
        """Sites with a page that was leased more than once: if its workers died, not every worker may lease it."""
        self._last: deque[str] = deque(maxlen=settings.share_window // 2)

    async def ready_sites(self, frontier: EmbeddedFrontier | OpenShard) -> set[str]:
        """The ready sites within their quota; computed only for small quotas."""
        found: set[str] = set()
        for view in await frontier.sites() if self._looks_at_shares else ():
            site = await frontier.site(view["site"])
            assert site is not None
            is_ready = site["queued"] and not site["workers"] and not site["ready_in"] and not site["closed"]
            if is_ready and site["share_left"] > 0:
                found.add(site["site"])
        return found

    def granted(self, grant: Grant, ready: set[str], *, is_late: bool = False) -> None:
        """Check that tokens only grow, a finished job leases nothing, and no site is leased twice while others wait."""
        self._grants += 1
        if self._grants > self._most:
            self._runaway()
        passed_over = ready - {lease.site for lease in grant.leases} - self._suspicious
        for lease in grant.leases:
            newest = self._newest.get((lease.site, lease.lane), 0)
            if lease.token <= newest and not is_late:
                self.faults.append(f"P4: token {lease.token:x} of {lease.site} did not grow")
            self._newest[lease.site, lease.lane] = max(newest, lease.token)
            for request in lease.requests:
                self.deliveries[request.key] += 1
                if self.deliveries[request.key] > 1:
                    self._suspicious.add(lease.site)
            if self.is_finished:
                self.faults.append(f"P6: {lease.site} was handed out after the job had been finished")
            if self._looks_at_shares:
                self._last.extend([lease.site] * len(lease.requests))
                if passed_over and not lease.suspect and self._last.count(lease.site) > self._share:
                    self.faults.append(f"quota: {lease.site} has more than its share, and {sorted(passed_over)} wait")
        # One shard can finish before the others.
        self.is_finished = self.is_finished or (self._hears_all and grant.job == "finished")

    def restarted(self, *, forgot: bool) -> None:
        """The frontier was restarted from its journal, which does not contain the window of the quota."""
        self._last.clear()
        if forgot:
            # Its earlier replies may depend on lost data.
            self.is_finished = False
            self.accepted.clear()

    def superseded(self, outcomes: Sequence[Outcome]) -> int:
        """Number of outcomes with a token whose lane has been leased again."""
        return sum(self._newest.get((outcome.site, outcome.lane), 0) > outcome.token for outcome in outcomes)

    def completed(self, outcomes: Sequence[Outcome], late: int, receipt: Receipt) -> None:
        """Record accepted outcomes, given the number of stale ones."""
        if receipt.accepted > len(outcomes) - late:
            self.faults.append(
                f"P4: {late} outcomes with a stale token, and {receipt.accepted} of {len(outcomes)} count"
            )
        if receipt.accepted == len(outcomes):
            self.accepted.update(outcome.key for outcome in outcomes)
        if receipt.accepted and self.is_finished:
            self.faults.append("P6: a page was completed after the job had finished")
