"""The frontier in a shared folder with a million entries: duration of a lease and of a start.

    python benchmarks/frontier_folder.py [--urls 1000000] [--sites 20000] [--folder DIR]

One worker owns all 64 shards, which is the worst case: with n workers, each owns an nth of them. A claim is one `lease`
of up to 8 lanes with up to 32 requests each, as an engine calls it, while results are committed concurrently and the
worker sends a heartbeat every second. The folder is on a local disk, so the cost of a file server is not included.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import tempfile
import time
from collections.abc import Iterator

from gossamer.frontier.folder.frontier import FolderFrontier, open_folder
from gossamer.model import Outcome, Request
from gossamer.settings import Settings

JOB = "bench"
SETTINGS = Settings(delay=0.0, robots=False)


def requests(urls: int, sites: int) -> Iterator[Request]:
    for number in range(urls):
        site = f"site-{number % sites}.example"
        yield Request(f"http://{site}/section/page-{number}.html", number * 0x9E3779B97F4A7C15 % (1 << 62), site)


def percentile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * part))] * 1000


async def fill(frontier: FolderFrontier, urls: int, sites: int) -> float:
    began = time.perf_counter()
    some: list[Request] = []
    for request in requests(urls, sites):
        some.append(request)
        if len(some) == 20_000:
            await frontier.add(some)
            some = []
    await frontier.add(some)
    return time.perf_counter() - began


async def claim(frontier: FolderFrontier, rounds: int) -> tuple[list[float], list[float]]:
    """Measure the durations of claims and commits."""
    claims: list[float] = []
    commits: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        grant = await frontier.lease(8, batch=32, seconds=60.0)
        claims.append(time.perf_counter() - began)
        results = [
            Outcome(site=lease.site, lane=lease.lane, token=lease.token, key=request.key, status="done", code=200)
            for lease in grant.leases
            for request in lease.requests
        ]
        began = time.perf_counter()
        await frontier.complete(results)
        commits.append(time.perf_counter() - began)
    return claims, commits


async def measure(folder: str, urls: int, sites: int, rounds: int) -> None:
    url = f"folder:{folder}"
    first = await open_folder(url, JOB, SETTINGS, worker="first")
    filled = await fill(first, urls, sites)
    print(f"{urls:,} entries on {sites:,} sites added in {filled:.1f} s", flush=True)
    report("claims", *await claim(first, rounds))
    if first._rounds is not None:
        first._rounds.cancel()
    first.owner.abort()
    began = time.perf_counter()
    heir = await open_folder(url, JOB, worker="heir")
    taken = await heir.abandon("first")
    while not (await heir.lease(1, batch=1, seconds=60.0)).leases:
        await asyncio.sleep(0.01)
    print(f"start after a kill: {taken} shards taken over, first lease after {time.perf_counter() - began:.1f} s")
    report("claims of the heir", *await claim(heir, rounds))
    await heir.aclose()
    used = sum(os.path.getsize(os.path.join(where, name)) for where, _, names in os.walk(folder) for name in names)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{used / urls:.0f} bytes an entry in the folder; {memory / 1e6:.0f} MB of memory at most, both lives together"
    )


def report(what: str, claims: list[float], commits: list[float]) -> None:
    print(
        f"{what}: p50 {percentile(claims, 0.5):.1f} ms, p99 {percentile(claims, 0.99):.1f} ms, "
        f"longest {max(claims) * 1000:.1f} ms of {len(claims)}; commits: p50 {percentile(commits, 0.5):.1f} ms, "
        f"p99 {percentile(commits, 0.99):.1f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--urls", type=int, default=1_000_000)
    parser.add_argument("--sites", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--folder", help="parent of the shared folder")
    choice = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(dir=choice.folder) as folder:
        asyncio.run(measure(folder, choice.urls, choice.sites, choice.rounds))


if __name__ == "__main__":
    main()
