"""Benchmarks of this machine: CPU and bytes per page of frontiers, crawls, and archives."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from gossamer import urls
from gossamer.clock import SystemClock
from gossamer.errors import GossamerError
from gossamer.frontier.backends import backend_of, create_fleet, owned_backend, owned_url
from gossamer.frontier.base import Frontier, JobFrontier
from gossamer.lab.plan import LARGE_BYTES, SMALL_BYTES, StoreCost
from gossamer.lab.simweb.pages import PageRenderer
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.simweb.site import WebPlan
from gossamer.model import Exchange, Lease, Outcome, PageRow, Record, Request
from gossamer.settings import Settings
from gossamer.storage.registry import open_sinks

_ARCHIVE_BATCH = 64


async def measure_archive(pages: int) -> tuple[float, float]:
    """Measure archiving: CPU seconds per 40 kB page, and bytes stored per byte of a page."""
    some = _records(pages)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        sink = open_sinks(Settings(sink=("warc",)), Path(folder), {})[0]
        began = time.process_time()
        for first in range(0, len(some), _ARCHIVE_BATCH):
            await sink.write(some[first : first + _ARCHIVE_BATCH])
        await sink.aclose()
        spent = time.process_time() - began
        stored = sum(path.stat().st_size for path in Path(folder).rglob("*.warc.gz*"))
    return spent / pages, stored / sum(len(record.body) for record in some)


def _records(count: int) -> list[Record]:
    plan = WebPlan(sites=1, pages_per_site=count, page_bytes=LARGE_BYTES)
    web = PageRenderer(plan)
    exchange = Exchange(
        sent=(("user-agent", "Gossamer"), ("accept", "text/html")),
        version="HTTP/2.0",
        address="192.0.2.1",
        headers=(("content-type", "text/html; charset=utf-8"), ("cache-control", "max-age=600")),
        wire_bytes=LARGE_BYTES,
    )
    return [
        Record(
            key=number,
            token=1,
            page=PageRow(url=f"https://site.example/{number}", status=200, fetched_at=1_700_000_000.0 + number),
            body=web.answer(0, plan.path(0, number)).body,
            exchange=exchange,
        )
        for number in range(count)
    ]


_CRAWL_LINKS = 50
_SITES = 40


class Crawled(NamedTuple):
    """CPU seconds per page, and the extra cost per host and per TLS connection."""

    small_page: float
    large_page: float
    host: float
    tls: float


def measure_crawls(*, pages: int, hosts: int, runs: int) -> Crawled:
    """Measure crawls: medians over `runs` runs, without the time to start."""
    found = [_once(pages, hosts) for _ in range(runs)]
    return Crawled(*(statistics.median(each) for each in zip(*found, strict=True)))


def _once(pages: int, hosts: int) -> Crawled:
    small, start = _deep(SMALL_BYTES, pages)
    large, _ = _deep(LARGE_BYTES, pages, start=start)
    plain, secure = _broad(hosts, start, tls=False), _broad(hosts, start, tls=True)
    return Crawled(small, large, max(0.0, plain - small), max(0.0, secure - plain))


def _deep(page_bytes: int, pages: int, *, start: float | None = None) -> tuple[float, float]:
    """CPU per page and per start, for hosts with many pages."""
    each = max(2, pages // _SITES)
    with SimWeb(sites=_SITES, pages_per_site=each, page_bytes=page_bytes, links_per_page=_CRAWL_LINKS) as web:
        if start is None:
            # A start costs as much as hundreds of pages, so measure it separately to keep its noise out.
            start = statistics.median(_crawl(web.seeds[:1], ["--max-pages", "1"]) for _ in range(3))
        return (_crawl(web.seeds, []) - start) / (_SITES * each), start


def _broad(hosts: int, start: float, *, tls: bool) -> float:
    """CPU per page for hosts with one page each, robots.txt included."""
    with SimWeb(
        sites=hosts, pages_per_site=1, page_bytes=SMALL_BYTES, links_per_page=_CRAWL_LINKS, names=True, tls=tls
    ) as web:
        words = ["--resolve", "*.sim=127.0.0.1", *(("--ca-file", str(web.ca_file)) if tls else ())]
        return (_crawl(web.seeds, words) - start) / hosts


def _crawl(seeds: Sequence[str], words: Sequence[str]) -> float:
    """CPU seconds of a whole crawl."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        (Path(folder) / "seeds.txt").write_text("\n".join(seeds), "utf-8")
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gossamer", "crawl", "--seeds", "seeds.txt", "--job", "bench", "--quiet"),
                *("--allow-private", "--delay", "0", "--concurrency", "100", *words),
            ],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise GossamerError(f"a benchmark crawl failed with exit code {process.returncode}")
        return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    """The environment without GOSSAMER_* settings, and with cached bytecode, as in an installed package."""
    unwanted = ("GOSSAMER_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and its children, including those that have ended."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.parts[2]) == pid:
            total += sum(map(int, fields[11:15]))
        elif int(fields[1]) == pid:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


_LINKS, _NEW, _BATCH = 50, 0.15, 64
_WEEK_SECONDS = 604_800.0
_STEP = 5000


class _Opened(NamedTuple):
    """A frontier to measure, and functions that return its size and its server's CPU time."""

    frontier: Frontier
    secret: bytes
    weight: Callable[[], Awaitable[float]]
    server_seconds: Callable[[], Awaitable[float | None]]


def measure_store(url: str, *, known: int, pages: int, pid: int = 0) -> StoreCost:
    """Measure the frontier at this address, or the embedded one if the address is empty.

    For databases that do not report their CPU time, pass the server's process as `pid`; otherwise the time of the
    calls is used, which includes the network. Creates temporary jobs, and deletes them."""
    # Measure each in a new process: otherwise, reused memory would hide growth.
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
    """Bytes per queued and per completed URL, and CPU per page of client and server."""
    async with _opened(url, pid) as opened:
        empty = await _empty(opened)
        await _fill(opened, known)
        queued = (await opened.weight() - empty) / known
        client, server = await _pages(opened, known, pages)
        await _finish(opened, None)
        counts = await opened.frontier.counts()
        return queued, (await opened.weight() - empty) / max(1, counts.known), client, server


async def _revisit(url: str, known: int, pid: int) -> tuple[float, ...]:
    """Bytes per completed URL that is scheduled for a revisit."""
    async with _opened(url, pid) as opened:
        empty = await _empty(opened)
        await _fill(opened, known)
        await _finish(opened, _WEEK_SECONDS)
        return ((await opened.weight() - empty) / known,)


async def _empty(opened: _Opened) -> float:
    """Size of the empty store, after a warm-up call."""
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
    """CPU seconds per page of client and server; sends only new links, almost as workers do."""
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
    """Complete all queued requests."""
    while (grant := await opened.frontier.lease(64, batch=100, seconds=60)).leases:
        await opened.frontier.complete(
            [_outcome(lease, one.key, again_in=again_in) for lease in grant.leases for one in lease.requests]
        )


def _request(secret: bytes, number: int, known: int) -> Request:
    """A URL of about 60 characters that compresses no better than real ones; about a thousand per site."""
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
