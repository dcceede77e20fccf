"""Politeness of a fleet under kills: eight workers, four of them killed with SIGKILL at random times and restarted.

    python benchmarks/fleet_politeness.py [--rounds 3] [--workers 8] [--kills 4] [--delay 1]

Measured only by the web server's log: a gap is the time from response headers to the next request to the same site,
including requests for robots.txt. After a kill, another worker can visit the site, but not before the delay is over.
Leases last 2 seconds and have 4 pages, so that sites often change workers; a worker leases up to 16 of the 128 sites,
so that all eight are busy.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from _fleet import children, finish, machine, requests, start, until, urls
from gossamer.lab.simweb.log import SimRequest, fetched, max_overlap
from gossamer.lab.simweb.process import SimWeb
from gossamer.testing.servers import RedisServer

SITES = 128


class Manners(NamedTuple):
    """Results of one crawl from the web server's log."""

    gaps: list[float]
    at_once: int
    """Maximum number of concurrent requests to any site."""
    kills: int
    lost: int
    repeated: int


def all_gaps(log: Iterable[SimRequest]) -> list[float]:
    """Seconds from response headers to the next request to the site; negative if they overlap."""
    found = []
    for _, entries in groupby(sorted(log, key=lambda entry: (entry.site, entry.arrived_at)), lambda entry: entry.site):
        answered_at: float | None = None
        for entry in entries:
            if answered_at is not None:
                found.append(entry.arrived_at - answered_at)
            answered_at = max(entry.headers_at, answered_at or 0.0)
    return found


def crawl(chance: random.Random, *, workers: int, kills: int, delay: float, pages: int) -> Manners:
    with (
        RedisServer() as server,
        SimWeb(sites=SITES, pages_per_site=pages, page_bytes=5000, links_per_page=20, latency_seconds=0.02) as web,
        tempfile.TemporaryDirectory() as folder,
    ):
        process = start(
            web, Path(folder), "--frontier", server.url, "--workers", str(workers), "--delay", str(delay),
            "--lease-seconds", "2", "--batch", "4", "--concurrency", "1",
        )  # fmt: skip
        until(lambda: len(children(process.pid)) == workers and requests(web) > SITES, process)
        # The kills end after two thirds of the crawl, so that each has time to cause problems.
        longest = pages * delay * 0.66 / max(1, kills)
        victims = chance.sample(children(process.pid), kills)
        killed = 0
        for victim in victims:
            time.sleep(chance.uniform(0.2, 1.0) * longest)
            try:
                os.kill(victim, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                print("  a worker had ended before its kill", file=sys.stderr)
        finish(process)
        log, stored = web.log(), urls(Path(folder) / "job" / "pages.jsonl")
        lost = len(web.plan.reachable() - set(stored))
    counts = fetched(log)
    return Manners(all_gaps(log), max(max_overlap(log).values()), killed, lost, sum(counts.values()) - len(counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--kills", type=int, default=4, help="different workers, each killed once")
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("--pages", type=int, default=40, help="of each site")
    choice = parser.parse_args()
    with RedisServer() as server:
        print(machine(server), flush=True)
    chance = random.Random(7)
    rounds = []
    for number in range(choice.rounds):
        found = crawl(chance, workers=choice.workers, kills=choice.kills, delay=choice.delay, pages=choice.pages)
        rounds.append(found)
        print(
            f"  round {number + 1}: {found.kills} kills, {len(found.gaps)} gaps, smallest {min(found.gaps):.4f} s, "
            f"{found.at_once} at once, {found.lost} pages lost, {found.repeated} fetches repeated",
            flush=True,
        )
    gaps = [gap for found in rounds for gap in found.gaps]
    print(
        f"\ndelay {choice.delay} s: smallest of {len(gaps)} gaps at {SITES} sites {min(gaps):.4f} s, "
        f"{sum(gap < choice.delay for gap in gaps)} below the delay, {sum(found.kills for found in rounds)} kills of "
        f"{choice.workers} workers, {sum(found.lost for found in rounds)} pages lost"
    )


if __name__ == "__main__":
    main()
