"""Frontiers alone: CPU of a page with its links, of client and server, and bytes of a URL in each of its states."""

from __future__ import annotations

import asyncio
import random
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from gossamer import urls
from gossamer.clock import SystemClock
from gossamer.frontier.backends import backend_of, create_fleet, owned_backend, owned_url
from gossamer.frontier.base import Frontier, JobFrontier
from gossamer.measure.servers import cpu_of
from gossamer.model import Lease, Outcome, Request
from gossamer.plan.figures import StoreCost
from gossamer.settings import Settings

_LINKS, _NEW, _BATCH = 50, 0.15, 64
_WEEK_SECONDS = 604_800.0
_STEP = 5000


class _Opened(NamedTuple):
    """A frontier to be measured, and what weighs it."""

    frontier: Frontier
    secret: bytes
    weight: Callable[[], Awaitable[float]]
    server_seconds: Callable[[], Awaitable[float | None]]


def measure_store(url: str, *, known: int, pages: int, pid: int = 0) -> StoreCost:
    """The frontier at this address, or the embedded one where it is empty.

    `pid` is the server's process if it is ours, for databases that do not tell their CPU time; else that is the time
    that they were waited for, which is too much by the way there. Jobs of its own are made, and taken away."""
    # Each in a new process: memory that another one has given back would not be seen to grow.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        queued, done, client, server = pool.submit(_run, "visit", url, known, pages, pid).result()
        (again,) = pool.submit(_run, "revisit", url, known, pages, pid).result()
    return StoreCost(
        client_cpu_seconds=client, server_cpu_seconds=server, queued_bytes=max(queued, 0.0),
        done_bytes=max(done, 0.0), again_bytes=max(again, 0.0),
        in_memory=backend_of(url).keeps_in_memory,
    )  # fmt: skip


def _run(what: str, url: str, known: int, pages: int, pid: int) -> tuple[float, ...]:
    return asyncio.run(_visit(url, known, pages, pid) if what == "visit" else _revisit(url, known, pid))


async def _visit(url: str, known: int, pages: int, pid: int) -> tuple[float, ...]:
    """Bytes of a queued URL and of one that is done, and what a page costs client and server."""
    async with _opened(url, pid) as opened:
        empty = await _empty(opened)
        await _fill(opened, known)
        queued = (await opened.weight() - empty) / known
        client, server = await _pages(opened, known, pages)
        await _finish(opened, None)
        counts = await opened.frontier.counts()
        return queued, (await opened.weight() - empty) / max(1, counts.known), client, server


async def _revisit(url: str, known: int, pid: int) -> tuple[float, ...]:
    """Bytes of a URL that is done and comes again."""
    async with _opened(url, pid) as opened:
        empty = await _empty(opened)
        await _fill(opened, known)
        await _finish(opened, _WEEK_SECONDS)
        return ((await opened.weight() - empty) / known,)


async def _empty(opened: _Opened) -> float:
    """What the store weighs before; it has loaded by then what it needs for any call."""
    await opened.frontier.counts()
    return await opened.weight()


async def _fill(opened: _Opened, known: int) -> None:
    for first in range(0, known, _STEP):
        numbers = range(first, min(first + _STEP, known))
        await opened.frontier.add([_request(opened.secret, number, known) for number in numbers])


@asynccontextmanager
async def _opened(url: str, pid: int) -> AsyncIterator[_Opened]:
    settings, job = Settings(delay=0, robots=False), f"bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        url = owned_url(url, Path(folder))
        backend = backend_of(url)
        meter = backend.meter(url)

        async def server_seconds() -> float | None:
            used = await meter.cpu_seconds()
            return cpu_of(pid) if used is None and pid and sys.platform == "linux" else used

        frontier: JobFrontier
        if backend.is_shared:
            frontier = await create_fleet(url, job, settings, worker="bench")
        else:
            frontier = await owned_backend(url).create(url, job, settings, clock=SystemClock())
        try:
            yield _Opened(frontier, frontier.secret, meter.weight, server_seconds)
        finally:
            await frontier.aclose()
            await backend.remove(url, job)
            await meter.aclose()


async def _pages(opened: _Opened, known: int, pages: int) -> tuple[float, float]:
    """CPU seconds of a page in the client and in the server, where only new links are sent, as workers nearly do."""
    chance, following, count, client, wall = random.Random(7), known, 0, 0.0, 0.0
    before = await opened.server_seconds()
    while count < pages:
        started, began = time.process_time(), time.perf_counter()
        grant = await opened.frontier.lease(2, batch=_BATCH // 2, seconds=60)
        client, wall = client + time.process_time() - started, wall + time.perf_counter() - began
        outcomes = []
        for lease in grant.leases:
            for one in lease.requests:
                fresh = sum(chance.random() < _NEW for _ in range(_LINKS))
                links = [_request(opened.secret, number, known) for number in range(following, following + fresh)]
                following += fresh
                outcomes.append(_outcome(lease, one.key, tuple(links)))
        started, began = time.process_time(), time.perf_counter()
        await opened.frontier.complete(outcomes)
        client, wall = client + time.process_time() - started, wall + time.perf_counter() - began
        count += len(outcomes)
    after = await opened.server_seconds()
    server = after - before if before is not None and after is not None else max(0.0, wall - client)
    return client / count, server / count


async def _finish(opened: _Opened, again_in: float | None) -> None:
    """Complete all that is queued."""
    while (grant := await opened.frontier.lease(64, batch=100, seconds=60)).leases:
        await opened.frontier.complete(
            [_outcome(lease, one.key, again_in=again_in) for lease in grant.leases for one in lease.requests]
        )


def _request(secret: bytes, number: int, known: int) -> Request:
    """A URL of about 60 characters that compresses as badly as real ones; sites have a thousand or so."""
    site = number * 7919 % max(1, known // 1000)
    chance = random.Random(number)
    word = "".join(chance.choices("abcdefghiklmnoprstu", k=12))
    url = f"https://www.site-{site:04d}.example/articles/{chance.randrange(10**7):07d}/{word}"
    return Request(url, urls.key_of(secret, url), f"www.site-{site:04d}.example", depth=1)


def _outcome(lease: Lease, key: int, links: tuple[Request, ...] = (), *, again_in: float | None = None) -> Outcome:
    state = None
    if again_in is not None:
        chance = random.Random(key)
        digest, etag = f"{chance.getrandbits(160):040x}", f'"{chance.getrandbits(48):x}"'
        state = {"etag": etag, "digest": digest, "seen_at": 1_700_000_000.0, "interval": again_in}
    return Outcome(
        site=lease.site, lane=lease.lane, token=lease.token, key=key, status="done", code=200, links=links,
        again_in=again_in, state=state,
    )  # fmt: skip
