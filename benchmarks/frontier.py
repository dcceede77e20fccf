"""The embedded frontier alone: CPU per page, memory and disk space per URL, and the time to reopen it.

    python benchmarks/frontier.py [--urls 1e6]

64 pages per batch, 50 links per page, 15 % of them new; measures lease, complete, and add, but not creating the links.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from gossamer import urls
from gossamer.clock import SystemClock
from gossamer.frontier.embedded.sqlite import open_sqlite
from gossamer.model import Outcome, Request
from gossamer.settings import Settings

PAGES, LINKS, NEW, BATCH = 12_800, 50, 0.15, 64


def request(secret: bytes, number: int) -> Request:
    host = f"127.0.{number % 1000 // 250}.{number % 250}"
    url = f"http://{host}/articles/{number:09d}/some-title-words"
    return Request(url, urls.fingerprint(secret, url), host, depth=1)


def resident_bytes() -> int:
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def measure(path: Path, known: int) -> None:
    settings = Settings(delay=0, robots=False)
    chance = random.Random(7)
    before = resident_bytes()
    frontier = open_sqlite(path, settings, clock=SystemClock())
    for first in range(0, known, 10_000):
        await frontier.add([request(frontier.secret, number) for number in range(first, min(first + 10_000, known))])
    memory = (resident_bytes() - before) / known
    following, pages, cpu = known, 0, 0.0
    while pages < PAGES:
        started = time.process_time()
        grant = await frontier.lease(2, batch=BATCH // 2, seconds=60)
        cpu += time.process_time() - started
        outcomes = []
        for lease in grant.leases:
            for leased in lease.requests:
                fresh = sum(chance.random() < NEW for _ in range(LINKS))
                numbers = [
                    *range(following, following + fresh),
                    *(chance.randrange(known) for _ in range(LINKS - fresh)),
                ]
                following += fresh
                links = tuple(request(frontier.secret, number) for number in numbers)
                outcomes.append(
                    Outcome(
                        site=lease.site,
                        lane=lease.lane,
                        token=lease.token,
                        key=leased.key,
                        status="done",
                        code=200,
                        links=links,
                    )
                )
        started = time.process_time()
        await frontier.complete(outcomes)
        cpu += time.process_time() - started
        pages += len(outcomes)
    await frontier.aclose()
    started = time.monotonic()
    frontier = open_sqlite(path, settings, clock=SystemClock())
    opening = time.monotonic() - started
    counts = await frontier.counts()
    await frontier.aclose()
    disk = path.stat().st_size / counts.known
    print(f"{known:>10,} {cpu / pages * 1e6:>12.0f} {memory:>13.0f} {disk:>12.0f} {opening:>9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--urls", type=float, nargs="*", default=[1e5, 1e6])
    choice = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'known URLs':>10} {'CPU us/page':>12} {'bytes RAM/URL':>13} {'bytes disk':>12} {'open (s)':>9}")
    for known in choice.urls:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(Path(folder) / "frontier.db", int(known)))


if __name__ == "__main__":
    main()
