"""Cost per page and per URL as a crawl grows: 10^5 to 10^7 URLs, 10^3 to 10^6 sites, 1 to 16 workers.

    python benchmarks/growth.py urls [--stores embedded redis postgresql mariadb] [--sizes 1e5 1e6] [--rounds 5]
    python benchmarks/growth.py sites [--stores ...] [--sizes 1e3 1e4 1e5 1e6] [--urls 1e6]
    python benchmarks/growth.py pages [--sizes 1e3 4e3 16e3] [--rounds 5]
    python benchmarks/growth.py workers [--workers 1 2 4 8 16] [--pages 1200]          (as root)

The frontier alone, as _frontier.py plays it: 64 pages a batch, 50 links a page, 15 % of them new and the others drawn
from all known URLs, which is the worst case. "all" sends every link to the store; "cached" is what workers of a
fleet do: they drop the links that their memory of eight million keys knows, and pay for that; "usual" is the same with
links that repeat as those of the web do, four in five of them among 50,000 URLs. The embedded frontier has
the seen set in its own process, so that there is nothing to save. Every size is a process and a server of its own, all
filled first; then each plays a round in turn, so that a machine's moods meet all sizes alike. CPU is of client and
server. Memory is that of the process (embedded) or the server's own figure (Redis); for the SQL servers it is disk.
Pages: whole embedded crawls of 40 hosts, in turn; a page's cost is what the pages of a crawl cost beyond those of the
next smaller one, so that the start is in none. Workers: fleet_scaling.py, with 16 as the most. 10^7 URLs are not in the
defaults: they take most of an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import redis

from _frontier import Cost, Pages, machine
from _plot import Line, lines
from _tally import Running
from frontier_sql import settle, size
from frontier_sql import start as start_sql
from gossamer.cli.runner import run
from gossamer.clock import SystemClock
from gossamer.engine.links import RecentKeys
from gossamer.frontier.embedded.sqlite import open_sqlite
from gossamer.frontier.redis.shards import open_redis
from gossamer.frontier.sql.record import open_sql
from gossamer.lab.bench import cpu_of
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.simweb.site import WebPlan
from gossamer.settings import Settings
from gossamer.testing.servers import RedisServer

SETTINGS = Settings(delay=0, robots=False)
STORES = ("embedded", "redis", "postgresql", "mariadb")
AIM = 2.0
PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"


class Filled(NamedTuple):
    """A filled frontier."""

    bytes_a_url: float
    seconds: float


class Task(NamedTuple):
    """One frontier to fill and to measure."""

    store: str
    urls: int
    even_sites: int | None
    pages: int

    @property
    def cases(self) -> tuple[str, ...]:
        return ("all",) if self.store == "embedded" else ("usual", "cached", "all")


@asynccontextmanager
async def opened(task: Task, folder: Path) -> AsyncIterator[tuple[Pages, Callable[[], float]]]:
    """The pages to play, and a function that returns the size of the store in bytes."""
    even, recent = task.even_sites, RecentKeys(64) if task.store == "embedded" else RecentKeys()
    with ExitStack() as stack:
        if task.store == "embedded":
            local = open_sqlite(folder / "frontier.db", SETTINGS, clock=SystemClock())
            yield Pages(local, local.secret, float, recent=recent, even_sites=even), resident_bytes
            await local.aclose()
        elif task.store == "redis":
            server = stack.enter_context(RedisServer())
            watch = stack.enter_context(redis.Redis.from_url(server.url))
            fleet = await open_redis(server.url, "growth", SETTINGS, worker="bench")
            pages = Pages(fleet, fleet.secret, lambda: cpu_of(server.pid), recent=recent, even_sites=even)
            yield pages, lambda: watch.info("memory")["used_memory"]
            await fleet.aclose()
        else:
            base = stack.enter_context(start_sql(task.store))
            shared = await open_sql(base.url, "growth", SETTINGS, worker="bench")
            pages = Pages(shared, shared.secret, lambda: cpu_of(base.pid), recent=recent, even_sites=even)

            def disk() -> float:
                settle(base)
                return size(base)

            yield pages, disk
            await shared.aclose()


def resident_bytes() -> float:
    gc.collect()
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def play(task: Task, pipe: Connection) -> None:
    """Process: fill the frontier, report it, and play a round on request."""
    with tempfile.TemporaryDirectory() as folder:
        async with opened(task, Path(folder)) as (pages, taken):
            before, began = await asyncio.to_thread(taken), time.monotonic()
            await pages.fill(task.urls)
            seconds = time.monotonic() - began
            pipe.send(Filled((await asyncio.to_thread(taken) - before) / task.urls, seconds))
            while case := pipe.recv():
                pipe.send(await pages.run(case, task.pages))


def child(task: Task, pipe: Connection) -> None:
    run(play(task, pipe))


class Player:
    """A process with one frontier."""

    def __init__(self, task: Task) -> None:
        context = multiprocessing.get_context("spawn")
        self.task = task
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=child, args=(task, far), daemon=True)
        self._process.start()
        far.close()
        self.filled: Filled = self._pipe.recv()

    def round(self, case: str) -> Cost:
        self._pipe.send(case)
        return self._pipe.recv()  # type: ignore[no-any-return]

    def end(self) -> None:
        self._pipe.send("")
        self._process.join()


def compare(tasks: list[Task], rounds: int, sizes: list[int], name: str) -> dict[str, list[tuple[float, float]]]:
    """Fill one frontier for each size, play rounds in turn, and print the table of one store."""
    players: list[Player] = []
    try:
        for task, known in zip(tasks, sizes, strict=True):
            players.append(Player(task))
            print(f"  {task.store}, {known:,} {name}: filled in {players[-1].filled.seconds:.0f} s", flush=True)
        found: dict[tuple[int, str], list[Cost]] = {}
        # Warm-up round: caches fill up, and checkpoints are written.
        for number in range(rounds + 1):
            for place, player in enumerate(players):
                for case in player.task.cases:
                    cost = player.round(case)
                    if number:
                        found.setdefault((place, case), []).append(cost)
    finally:
        for player in players:
            player.end()
    curves: dict[str, list[tuple[float, float]]] = {}
    for case in tasks[0].cases:
        medians = [statistics.median(cost.cpu for cost in found[place, case]) for place in range(len(tasks))]
        for place, (player, median) in enumerate(zip(players, medians, strict=True)):
            costs = found[place, case]
            times = median / medians[0]
            note = "  missed" if name == "URLs" and player.task.store in STORES[:2] and times > AIM else ""
            print(
                f"{player.task.store:12} {case:7} {sizes[place]:>12,} {median:>9.0f} "
                f"({min(cost.cpu for cost in costs):.0f} to {max(cost.cpu for cost in costs):.0f})".ljust(62)
                + f"{statistics.median(cost.server for cost in costs):>9.0f} {times:>7.2f}"
                f"{player.filled.bytes_a_url:>12.0f}{note}",
                flush=True,
            )
        curves[f"{tasks[0].store}, {case}"] = list(zip(map(float, sizes), medians, strict=True))
    return curves


def crawl_seconds(pages: int) -> float:
    """CPU of an embedded crawl of this many pages, including its start."""
    plan = WebPlan(sites=40, pages_per_site=pages // 40, page_bytes=40_000, links_per_page=100)
    with SimWeb(plan) as web, tempfile.TemporaryDirectory(prefix="growth-") as folder:
        seeds = Path(folder, "seeds.txt")
        seeds.write_text("\n".join(web.seeds))
        words = ["--seeds", str(seeds), "--job", f"{folder}/job", "--no-robots", "--delay", "0", "--allow-private"]
        command = [sys.executable, "-m", "gossamer", "crawl", *words, "--concurrency", "100", "--quiet"]
        cost = Running(command, Path(folder, "cost.json")).cost(900.0)
        assert cost is not None
        assert not cost.code
        return cost.cpu_seconds


def linear(sizes: list[int], rounds: int) -> None:
    """Print the cost per page in crawls of growing size."""
    found: dict[int, list[Any]] = {pages: [] for pages in sizes}
    for _ in range(rounds):
        for pages in sizes:
            found[pages].append(crawl_seconds(pages))
    print(f"{'pages':>8} {'CPU s':>8} {'ms a page':>10} {'ms a further page':>18} {'times':>6}")
    fewer, seconds, first = 0, 0.0, 0.0
    for pages in sizes:
        median = statistics.median(found[pages])
        further = (median - seconds) / (pages - fewer) * 1000 if fewer else 0.0
        first = first or further
        more = f"{further:>18.3f} {further / first:>6.2f}" if first else ""
        print(f"{pages:>8,} {median:>8.2f} {median / pages * 1000:>10.3f} {more}", flush=True)
        fewer, seconds = pages, median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["urls", "sites", "pages", "workers"], nargs="?", default="urls")
    parser.add_argument("--stores", nargs="*", default=STORES, choices=STORES)
    parser.add_argument("--sizes", type=float, nargs="*")
    parser.add_argument("--urls", type=float, default=1e6, help="known URLs while sites grow")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", type=int, default=6_400, help="pages per round; for workers: pages per worker, 1200")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--plot", action="store_true", help="write the picture of docs/benchmarks.md")
    choice = parser.parse_args()
    if choice.what == "workers":
        script = Path(__file__).with_name("fleet_scaling.py")
        pages = "1200" if choice.pages == 6_400 else str(choice.pages)
        os.execv(
            sys.executable, [sys.executable, str(script), "--pages", pages, "--workers", *map(str, choice.workers)]
        )
    if choice.what == "pages":
        print(machine())
        linear([int(one) for one in choice.sizes or (1e3, 4e3, 16e3)], choice.rounds)
        return
    is_sites = choice.what == "sites"
    sizes = [int(one) for one in choice.sizes or ((1e3, 1e4, 1e5, 1e6) if is_sites else (1e5, 1e6))]
    name = "sites" if is_sites else "URLs"
    print(machine())
    print(
        f"{'store':12} {'links':7} {name:>12} {'CPU us a page (least to most)':>38} {'server':>9} {'times':>7} "
        f"{'bytes/URL':>11}"
    )
    curves: dict[str, list[tuple[float, float]]] = {}
    for store in choice.stores:
        tasks = [
            Task(store, int(choice.urls) if is_sites else one, one if is_sites else None, choice.pages) for one in sizes
        ]
        curves.update(compare(tasks, choice.rounds, sizes, name))
    print(f"load {os.getloadavg()[0]:.1f} at the end; times: of the smallest size")
    if choice.plot:
        title = f"CPU microseconds a page as the {name} grow"
        picture = lines([Line(label, points) for label, points in curves.items()], title=title, across=name)
        (PICTURES / f"growth-{choice.what}.svg").write_text(picture)


if __name__ == "__main__":
    main()
