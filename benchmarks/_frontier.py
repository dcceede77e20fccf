"""Shared by the frontier benchmarks: URLs, pages, and measurement of client and server CPU."""

from __future__ import annotations

import asyncio
import os
import platform
import random
import time
from collections.abc import Callable
from typing import NamedTuple

from gossamer import urls
from gossamer.engine.links import RecentKeys
from gossamer.errors import Unavailable
from gossamer.frontier.base import Frontier
from gossamer.model import Lease, Outcome, Request

LINKS, NEW, BATCH, SITES = 50, 0.15, 64, 1000
CASES = ("all", "cached", "new")
HOT_URLS, HOT = 50_000, 0.8
"""Cache size in URLs -> hit rate for links that were seen before, measured in a crawl of the web (Broder, Najork, and
Wiener, Efficient URL caching for World Wide Web crawling, 2003)."""
WORDS = ["".join(random.Random(number).choices("abcdefghiklmnoprstu", k=3 + number % 7)) for number in range(2000)]


def request(secret: bytes, number: int, site: int | None = None) -> Request:
    """A URL of about 60 characters, with random words, because numbered ones compress far better than real ones."""
    if site is None:
        # A tenth of the sites has half of the URLs.
        site = int(SITES * (number * 0.6180339887 % 1.0) ** 3.3)
    host = f"www.site-{site:04d}.example"
    one, two = WORDS[number * 7919 % 2000], WORDS[number * 104_729 // 2000 % 2000]
    url = f"https://{host}/articles/{number * 7_368_787 % 1_000_003:07d}/{one}-{two}"
    return Request(url, urls.fingerprint(secret, url), host, depth=1)


def done(lease: Lease, key: int, links: tuple[Request, ...] = (), *, again_in: float | None = None) -> Outcome:
    """The outcome of a page; with `again_in`, including the state for the next visit."""
    state = None
    if again_in is not None:
        chance = random.Random(key)
        digests = [f"{chance.getrandbits(160):040x}", f"{chance.getrandbits(64):016x}"]
        etag = f'"{chance.getrandbits(48):x}"'
        seen_at = 1_700_000_000.0 + chance.randrange(100_000)
        state = {"etag": etag, "digest": digests[0], "text": digests[1], "seen_at": seen_at, "interval": again_in}
    return Outcome(
        site=lease.site, lane=lease.lane, token=lease.token, key=key, status="done", code=200, links=links,
        again_in=again_in, state=state,
    )  # fmt: skip


def machine() -> str:
    """Description of the machine, with its load average."""
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load}"


class Cost(NamedTuple):
    """Microseconds per page. `memory` is the client's share for its cache of known keys."""

    client: float
    memory: float
    server: float
    wall: float

    @property
    def cpu(self) -> float:
        return self.client + self.server

    def __str__(self) -> str:
        memory = f", {self.memory:.0f} of it memory" if self.memory else ""
        return f"{self.cpu:.0f} ({self.client:.0f}{memory} + {self.server:.0f}, wall {self.wall:.0f})"


class Pages:
    """Fetches pages that find links: leases and completes as a worker does, and says what that costs.

    `known` URLs are in the frontier before, a tenth of the sites has half of them, or each of `even_sites` as many as
    the next. Making the links is not counted, asking the memory for each is."""

    def __init__(
        self,
        frontier: Frontier,
        secret: bytes,
        served: Callable[[], float],
        *,
        recent: RecentKeys,
        even_sites: int | None = None,
    ) -> None:
        self._frontier = frontier
        self._even_sites = even_sites
        self._leases = 2
        self._secret = secret
        self._served = served
        self._recent = recent
        self._chance = random.Random(7)
        self._known = self._following = 0

    async def fill(self, known: int) -> None:
        """Add URLs, also to the cache, like a worker that ran from the start."""
        for first in range(self._known, known, 10_000):
            some = [self._request(number) for number in range(first, min(first + 10_000, known))]
            while True:
                try:
                    await self._frontier.add(some)
                    break
                except Unavailable:
                    # The server was slow; adding known requests again changes nothing.
                    await asyncio.sleep(1)
            self._recent.update(one.key for one in some)
        self._known = self._following = known
        if self._even_sites:
            # Lease enough lanes for a batch of pages, if sites have fewer pages than a lease can hold.
            self._leases = max(2, BATCH // max(1, known // self._even_sites))

    async def rounds(self, case: str, *, pages: int, rounds: int) -> Cost:
        """The median round, by its CPU time."""
        found = [await self.run(case, pages) for _ in range(rounds)]
        return sorted(found, key=lambda cost: cost.cpu)[len(found) // 2]

    async def run(self, case: str, pages: int) -> Cost:
        """One round."""
        count, client, memory, wall, recent = 0, 0.0, 0.0, 0.0, self._recent
        before = self._served()
        while count < pages:
            started, began = time.process_time(), time.perf_counter()
            grant = await self._frontier.lease(self._leases, batch=BATCH // 2, seconds=60)
            client, wall = client + time.process_time() - started, wall + time.perf_counter() - began
            found = [(lease, leased.key, self._links(case)) for lease in grant.leases for leased in lease.requests]
            if case in ("cached", "usual"):
                keys = [[link.key for link in links] for _, _, links in found]
                started = time.process_time()
                unknown = [recent.unknown(some) for some in keys]
                memory += time.process_time() - started
                found = [
                    (lease, key, [link for link in links if link.key in some])
                    for (lease, key, links), some in zip(found, unknown, strict=True)
                ]
            outcomes = [done(lease, key, tuple(links)) for lease, key, links in found]
            started, began = time.process_time(), time.perf_counter()
            await self._frontier.complete(outcomes)
            client, wall = client + time.process_time() - started, wall + time.perf_counter() - began
            if case in ("cached", "usual"):
                started = time.process_time()
                recent.update(key for some in unknown for key in some)
                memory += time.process_time() - started
            count += len(outcomes)
        served = self._served() - before
        return Cost(*(1e6 * each / count for each in (client + memory, memory, served, wall)))

    def _links(self, case: str) -> list[Request]:
        fresh = sum(self._chance.random() < NEW for _ in range(LINKS))
        numbers = [*range(self._following, self._following + fresh)]
        if case != "new":
            hot = HOT if case == "usual" else 0.0
            numbers += [
                self._chance.randrange(min(HOT_URLS, self._known) if self._chance.random() < hot else self._known)
                for _ in range(LINKS - fresh)
            ]
        self._following += fresh
        return [self._request(number) for number in numbers]

    def _request(self, number: int) -> Request:
        return request(self._secret, number, number % self._even_sites if self._even_sites else None)
