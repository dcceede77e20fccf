"""A crawl bound by latency over 1, 2, 4 and 8 workers, each in a network namespace of its own: pages a second.

    python benchmarks/fleet_scaling.py [--workers 1 2 4 8] [--pages 2400] [--rounds 1]      (as root)

Every page takes 200 ms, a worker fetches 8 at once, no delay; 40 sites and 2,400 pages a worker. The namespaces hang on
a bridge to the machine with Redis and the web server, which a relay leads to, since it serves its loopback alone.
Workers join while the job is paused, so that their start-up does not count; the time runs from the first page to the
last in the web server's log ("whole"), and once more without the first and the last tenth of it ("middle"), where
no worker waits for the last pages of others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import redis

from _fleet import DEADLINE_SECONDS, machine, process_seconds, until
from _namespaces import Namespaces, Relay, are_allowed
from gossamer.sim.log import Entry, fetched
from gossamer.testing.servers import RedisServer
from gossamer.testing.web import SimWeb

AT_ONCE, LATENCY_SECONDS, SITES = 8, 0.2, 40
JOB, PASSWORD = "scaling", "bench"


class Speed(NamedTuple):
    """Pages a second of one crawl."""

    whole: float
    middle: float
    missed: int
    repeated: int
    busy: float
    """CPU seconds a second of the workers and Redis."""
    served: float
    """Seconds from a request to its answer, by the web server: more than the latency where the machine is too busy."""


def command(server: RedisServer, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gossamer", *words],
        env={**os.environ, "GOSSAMER_FRONTIER": server.url},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"gossamer {words[0]} failed: {done.stderr}")


def speeds(log: list[Entry]) -> tuple[float, float]:
    """Pages a second of the whole crawl, and of its middle eight tenths."""
    first, last = log[0].arrived_at, max(entry.finished_at for entry in log)
    tenth = (last - first) / 10
    middle = [entry for entry in log if first + tenth <= entry.finished_at < last - tenth]
    return len(log) / (last - first), len(middle) / (8 * tenth)


def crawl(workers: int, pages: int) -> Speed:
    with (
        Namespaces(workers) as namespaces,
        RedisServer(password=PASSWORD, bind=f"127.0.0.1 {namespaces.address}") as server,
        SimWeb(
            sites=SITES * workers,
            pages_per_site=pages // SITES,
            page_bytes=10_000,
            links_per_page=20,
            latency_seconds=LATENCY_SECONDS,
            names=True,
        ) as web,
        Relay(namespaces.address, web.plan.port),
        tempfile.TemporaryDirectory() as folder,
        redis.Redis.from_url(server.url) as store,
    ):
        seeds = Path(folder) / "seeds.txt"
        seeds.write_text("\n".join(web.seeds))
        command(
            server, "submit", "--seeds", str(seeds), "--job", JOB, "--sink", f"jsonl:{folder}/pages", "--delay", "0",
            "--no-robots", "--allow-private", "--concurrency", str(AT_ONCE),
            "--resolve", f"*.sim={namespaces.address}",
        )  # fmt: skip
        command(server, "pause", JOB)
        address = f"redis://:{PASSWORD}@{namespaces.address}:{server.port}/0"
        running = [
            namespaces.start(
                number,
                [sys.executable, "-m", "gossamer", "worker", "--job", JOB, "--name", f"w{number}"],
                GOSSAMER_FRONTIER=address,
            )
            for number in range(workers)
        ]
        wanted = {namespaces.inside(number) for number in range(workers)}
        until(lambda: wanted <= {client["addr"].rpartition(":")[0] for client in store.client_list()}, *running)
        time.sleep(2)
        before = sum(map(process_seconds, (server.pid, *(process.pid for process in running))))
        command(server, "resume", JOB)
        used = before
        while any(process.poll() is None for process in running):
            used = max(used, sum(map(process_seconds, (server.pid, *(process.pid for process in running)))))
            time.sleep(0.5)
        if any(process.wait(DEADLINE_SECONDS) for process in running):
            sys.exit("a worker failed")
        log, missed = web.log(), len(web.judge().missed)
    whole, middle = speeds(log)
    counts = fetched(log)
    seconds = len(log) / whole
    served = statistics.mean(entry.finished_at - entry.arrived_at for entry in log)
    return Speed(whole, middle, missed, sum(counts.values()) - len(counts), (used - before) / seconds, served)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--pages", type=int, default=2400, help="for each worker")
    parser.add_argument("--rounds", type=int, default=1)
    choice = parser.parse_args()
    if not are_allowed():
        print("left out: network namespaces can be made by root alone")
        return
    with RedisServer() as server:
        print(machine(server), flush=True)
    found: dict[int, list[Speed]] = {workers: [] for workers in choice.workers}
    for number in range(choice.rounds):
        for workers, speeds_found in found.items():
            speed = crawl(workers, choice.pages)
            speeds_found.append(speed)
            print(
                f"  round {number + 1}: {workers} workers: {speed.whole:.1f} pages/s, middle {speed.middle:.1f}, "
                f"{speed.missed} missed, {speed.repeated} repeated, {speed.busy:.2f} cores busy, "
                f"answers after {speed.served * 1000:.0f} ms",
                flush=True,
            )
    report(found)


def report(found: dict[int, list[Speed]]) -> None:
    """The table: pages a second, and what part of linear that is."""
    least = min(found)
    base = [statistics.median(getattr(speed, name) for speed in found[least]) / least for name in ("whole", "middle")]
    print(f"\n{'workers':>7} {'pages/s':>9} {'of linear':>10} {'middle':>9} {'of linear':>10} {'of the limit':>13}")
    for workers, some in found.items():
        whole, middle = (statistics.median(getattr(speed, name) for speed in some) for name in ("whole", "middle"))
        limit = workers * AT_ONCE / LATENCY_SECONDS
        print(
            f"{workers:>7} {whole:>9.1f} {whole / workers / base[0]:>10.3f} {middle:>9.1f} "
            f"{middle / workers / base[1]:>10.3f} {middle / limit:>13.3f}"
        )
    print(f"the limit: {AT_ONCE} pages at once of {LATENCY_SECONDS * 1000:.0f} ms each for every worker")


if __name__ == "__main__":
    main()
