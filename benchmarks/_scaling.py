"""Scaling of a latency-bound crawl with the number of workers, each in its own namespaces: setup and evaluation.

Every page takes 200 ms, and a worker fetches 8 pages at once, without delay; a site has 30 pages, and there are 80
sites (2,400 pages) per worker. A worker's network leads only to this machine, where a relay forwards to the web server.
Workers join while the job is paused, and it is resumed when all have joined, so their start is not measured. There are
two results per crawl, both from the web server's log:

  whole    all pages, divided by the time from the first request to the last response. A site is fetched page by page,
           so in the last seconds, up to six, fewer pages are fetched at once. The longer the crawl, the less this
           matters
  steady   the pages in the middle 80 % of that time, divided by its length, without start and end

Three more values distinguish a slow fleet from a slow machine: the cores that the workers used, the latency of the web
server (200 ms, unless it had to wait for a core), and the load average at the end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from _fleet import DEADLINE_SECONDS, process_seconds
from _namespaces import Namespaces, Relay, are_allowed
from gossamer.lab.simweb.log import SimRequest, fetched
from gossamer.lab.simweb.process import SimWeb

AT_ONCE, LATENCY_SECONDS, SITE_PAGES = 8, 0.2, 30
JOB = "scaling"


class Speed(NamedTuple):
    """Result of one crawl, in pages per second."""

    whole: float
    steady: float
    missed: int
    repeated: int
    busy: float
    """CPU cores used by the workers, and by the store if it is a process."""
    served: float
    """Latency in the web server's log."""


class Stage(NamedTuple):
    """The web and the machines of one crawl."""

    namespaces: Namespaces
    web: SimWeb
    workers: int

    def submit(self, url: str, folder: Path) -> None:
        """Create the job on this frontier, paused."""
        seeds = folder / "seeds.txt"
        seeds.write_text("\n".join(self.web.seeds))
        command(
            url, "submit", "--seeds", str(seeds), "--job", JOB, "--sink", f"jsonl:{folder}/pages", "--delay", "0",
            "--no-robots", "--allow-private", "--concurrency", str(AT_ONCE),
            "--resolve", f"*.sim={self.namespaces.address}",
        )  # fmt: skip
        command(url, "pause", JOB)

    def hire(self, url: str) -> list[subprocess.Popen[bytes]]:
        """Start the workers in their namespaces."""
        worker = [sys.executable, "-m", "gossamer", "worker", "--job", JOB, "--name"]
        return [
            self.namespaces.start(number, [*worker, f"w{number}"], GOSSAMER_FRONTIER=url)
            for number in range(self.workers)
        ]

    def run(self, url: str, running: Sequence[subprocess.Popen[bytes]], *, store: Sequence[int] = ()) -> Speed:
        """Resume the job and wait for its end; `store` are the processes of the frontier."""

        def used() -> float:
            return sum(map(process_seconds, (*store, *(process.pid for process in running))))

        before = after = used()
        command(url, "resume", JOB)
        end = time.monotonic() + DEADLINE_SECONDS
        while any(process.poll() is None for process in running) and time.monotonic() < end:
            after = max(after, used())
            time.sleep(0.5)
        if any(process.poll() != 0 for process in running):
            sys.exit("a worker failed")
        log, missed = self.web.log(), len(self.web.judge().missed)
        whole, steady = speeds(log)
        counts = fetched(log)
        served = statistics.mean(entry.finished_at - entry.arrived_at for entry in log)
        busy = (after - before) / (len(log) / whole)
        return Speed(whole, steady, missed, sum(counts.values()) - len(counts), busy, served)


@contextmanager
def stage(workers: int, pages: int) -> Iterator[Stage]:
    """Set up namespaces and a web for the workers, with `pages` pages for each."""
    with (
        Namespaces(workers) as namespaces,
        SimWeb(
            sites=pages // SITE_PAGES * workers,
            pages_per_site=SITE_PAGES,
            page_bytes=10_000,
            links_per_page=20,
            latency_seconds=LATENCY_SECONDS,
            names=True,
        ) as web,
        Relay(namespaces.address, web.plan.port),
    ):
        yield Stage(namespaces, web, workers)


def command(url: str, *words: str) -> None:
    """Run a command on the job."""
    done = subprocess.run(
        [sys.executable, "-m", "gossamer", *words],
        env={**os.environ, "GOSSAMER_FRONTIER": url},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"gossamer {words[0]} failed: {done.stderr}")


def speeds(log: list[SimRequest]) -> tuple[float, float]:
    """Pages per second of the whole crawl, and of its middle 80 %."""
    first, last = log[0].arrived_at, max(entry.finished_at for entry in log)
    tenth = (last - first) / 10
    middle = [entry for entry in log if first + tenth <= entry.finished_at < last - tenth]
    return len(log) / (last - first), len(middle) / (8 * tenth)


def compare(title: str, crawl: Callable[[int, int], Speed], machine: Callable[[], str], workers: list[int]) -> None:
    """Parse the options, crawl with each number of workers in turn, and print the table."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--workers", type=int, nargs="*", default=workers)
    parser.add_argument("--pages", type=int, default=2400, help="pages per worker")
    parser.add_argument("--rounds", type=int, default=1)
    choice = parser.parse_args()
    if not are_allowed():
        print("skipped: creating network namespaces requires root")
        return
    print(f"{machine()}, load average {os.getloadavg()[0]:.1f}", flush=True)
    found: dict[int, list[Speed]] = {number: [] for number in choice.workers}
    for turn in range(choice.rounds):
        for number, some in found.items():
            speed = crawl(number, choice.pages)
            some.append(speed)
            print(
                f"  round {turn + 1}: {number} workers: {speed.whole:.1f} pages/s, steady {speed.steady:.1f}, "
                f"{speed.missed} missed, {speed.repeated} repeated, {speed.busy:.2f} cores busy, "
                f"answers after {speed.served * 1000:.0f} ms, load average {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    _report(found)


def _report(found: dict[int, list[Speed]]) -> None:
    """Print a table of pages per second, and of their share of linear scaling."""
    least = min(found)
    base = [statistics.median(getattr(speed, name) for speed in found[least]) / least for name in ("whole", "steady")]
    print(f"\n{'workers':>7} {'pages/s':>9} {'of linear':>10} {'steady':>9} {'of linear':>10} {'of the limit':>13}")
    for workers, some in found.items():
        whole, steady = (statistics.median(getattr(speed, name) for speed in some) for name in ("whole", "steady"))
        limit = workers * AT_ONCE / LATENCY_SECONDS
        print(
            f"{workers:>7} {whole:>9.1f} {whole / workers / base[0]:>10.3f} {steady:>9.1f} "
            f"{steady / workers / base[1]:>10.3f} {steady / limit:>13.3f}"
        )
    print(f"the limit: {AT_ONCE} pages at once of {LATENCY_SECONDS * 1000:.0f} ms each for every worker")
