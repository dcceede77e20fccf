"""A crawl bound by latency over 1 to 10 workers that share a folder and nothing else: pages a second.

    python benchmarks/folder_scaling.py [--workers 1 2 4 8 10] [--pages 1600] [--rounds 1] [--folder DIR]     (as root)

Every page takes 200 ms, a worker fetches 8 at once, no delay; 40 sites and 1,600 pages a worker. Each worker is in a
network and a mount namespace of its own; the network leads to the web server alone. Workers join while the job is
paused, so that their start-up does not count; the time runs from the first page to the last in the web server's log
("whole"), and once more without the first and the last tenth of it ("middle"), where no worker waits for the last pages
of others. The folder is on the local disk: what a file server and its network add is not in these figures.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from typing import NamedTuple

from _namespaces import Namespaces, Relay, are_allowed
from gossamer.frontier.folder import open_folder
from gossamer.settings import Settings
from gossamer.sim.log import Entry, fetched
from gossamer.testing.folder_worker import submit
from gossamer.testing.web import SimWeb

AT_ONCE, LATENCY_SECONDS, SITES = 8, 0.2, 40
JOB = "scaling"
DEADLINE_SECONDS = 600.0


class Speed(NamedTuple):
    """Pages a second of one crawl."""

    whole: float
    middle: float
    missed: int
    repeated: int


def speeds(log: list[Entry]) -> tuple[float, float]:
    """Pages a second of the whole crawl, and of its middle eight tenths."""
    first, last = log[0].arrived_at, max(entry.finished_at for entry in log)
    tenth = (last - first) / 10
    middle = [entry for entry in log if first + tenth <= entry.finished_at < last - tenth]
    return len(log) / (last - first), len(middle) / (8 * tenth)


async def resume_when_all_are_there(url: str, workers: int) -> None:
    frontier = await open_folder(url, JOB)
    end = time.monotonic() + DEADLINE_SECONDS
    least = 64 // workers
    while time.monotonic() < end:
        found = await frontier.workers()
        if len(found) == workers and all(pulse.shards.count(",") + 1 >= least for pulse in found):
            break
        await asyncio.sleep(0.2)
    await frontier.steer("running")
    await frontier.aclose()


def crawl(workers: int, pages: int, place: str | None) -> Speed:
    with (
        Namespaces(workers) as namespaces,
        SimWeb(
            sites=SITES * workers,
            pages_per_site=pages // SITES,
            page_bytes=10_000,
            links_per_page=20,
            latency_seconds=LATENCY_SECONDS,
            names=True,
        ) as web,
        Relay(namespaces.address, web.plan.port),
        tempfile.TemporaryDirectory(dir=place) as folder,
    ):
        url = f"folder:{folder}"
        settings = Settings(
            delay=0.0,
            robots=False,
            allow_private=True,
            concurrency=AT_ONCE,
            resolve=(f"*.sim={namespaces.address}",),
        )
        asyncio.run(submit(url, JOB, settings, list(web.seeds), state="paused"))
        module = [sys.executable, "-m", "gossamer.testing.folder_worker"]
        running = [
            namespaces.start(number, [*module, url, JOB, f"w{number}", f"{folder}/out"]) for number in range(workers)
        ]
        asyncio.run(resume_when_all_are_there(url, workers))
        if any(process.wait(DEADLINE_SECONDS) for process in running):
            sys.exit("a worker failed")
        log, missed = web.log(), len(web.judge().missed)
    counts = fetched(log)
    return Speed(*speeds(log), missed, sum(counts.values()) - len(counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8, 10])
    parser.add_argument("--pages", type=int, default=1600, help="for each worker")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", help="where the shared folder is made")
    choice = parser.parse_args()
    if not are_allowed():
        print("left out: network namespaces can be made by root alone")
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    found: dict[int, list[Speed]] = {workers: [] for workers in choice.workers}
    for number in range(choice.rounds):
        for workers, some in found.items():
            speed = crawl(workers, choice.pages, choice.folder)
            some.append(speed)
            print(
                f"  round {number + 1}: {workers} workers, {speed.whole:.1f} pages/s ({speed.middle:.1f} in the middle)"
                f", {speed.missed} missed, {speed.repeated} repeated",
                flush=True,
            )
    report(found)


def report(found: dict[int, list[Speed]]) -> None:
    """The table: pages a second, and what part of linear that is."""
    least = min(found)
    base = [statistics.median(getattr(speed, name) for speed in found[least]) / least for name in ("whole", "middle")]
    print(f"\n{'workers':>7} {'pages/s':>9} {'of linear':>10} {'middle':>9} {'of linear':>10}")
    for workers, some in found.items():
        whole, middle = (statistics.median(getattr(speed, name) for speed in some) for name in ("whole", "middle"))
        print(
            f"{workers:>7} {whole:>9.1f} {whole / workers / base[0]:>10.3f} {middle:>9.1f} "
            f"{middle / workers / base[1]:>10.3f}"
        )


if __name__ == "__main__":
    main()
