"""One fleet crawl by this checkout and by another, in turn: CPU a page and pages a second, on each store.

    python benchmarks/fleet_versions.py ../before [--stores redis redis2 postgresql mariadb] [--workers 8] [--runs 5]
                                                  [--together]

`../before` is another checkout of Gossamer, such as `git worktree add ../before TAG`. Both crawl the same web with the
same workers, in another order each time, each on fresh servers. CPU is of all processes and of the store's servers;
the web server is not counted. A crawl of one page a host is measured beside each, and its CPU is taken off: what it
takes to start, and to wait at the end for what a store could forget. The ratio of paired runs counts, by its median.

On a machine that others use, `--together` has both versions crawl at the same moment: they share what the others do to
caches and clock rates, which changes CPU a page by more than the versions differ.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from _fleet import children, finish, process_seconds, rate, urls
from _tally import environment
from gossamer.engine.supervision import dies_with_us
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.simweb.site import WebPlan
from gossamer.testing.servers import MariaServer, PostgresServer, RedisServer

OURS = Path(__file__).parents[1]


class Run(NamedTuple):
    """What one crawl cost, in CPU seconds, and how fast it was."""

    workers: float
    store: float
    pages: int
    rate: float


def servers(store: str, stack: ExitStack) -> tuple[str, list[int]]:
    """Fresh servers of one kind: the address of a frontier on them, and their process ids."""
    if store.startswith("redis"):
        count = int(store.removeprefix("redis") or 1)
        # As a power cut may find them: with a log that is synced once a second.
        found = [stack.enter_context(RedisServer(appendonly="yes", appendfsync="everysec")) for _ in range(count)]
        return ",".join(server.url for server in found), [server.pid for server in found]
    server = stack.enter_context(PostgresServer() if store == "postgresql" else MariaServer())
    return server.url, [server.pid]


def crawl(checkout: Path, store: str, workers: int, plan: WebPlan) -> Run:
    """Crawl the whole web; fail where a page is missing."""
    with ExitStack() as stack:
        web = stack.enter_context(SimWeb(plan))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url, pids = servers(store, stack)
        (folder / "seeds.txt").write_text("\n".join(web.seeds))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        served = seconds(pids)
        command = [
            sys.executable, "-m", "gossamer", "crawl", "--seeds", str(folder / "seeds.txt"),
            "--job", str(folder / "job"), "--allow-private", "--quiet", "--no-robots", "--delay", "0",
            "--concurrency", "50", "--frontier", url, "--workers", str(workers),
        ]  # fmt: skip
        source = {**environment(), "PYTHONPATH": str(checkout / "src")}
        finish(subprocess.Popen(command, stdout=subprocess.DEVNULL, env=source, preexec_fn=dies_with_us()))  # noqa: PLW1509
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        stored = set(urls(folder / "job" / "pages.jsonl")) & web.plan.reachable()
        if stored != web.plan.reachable():
            sys.exit(f"{checkout} on {store}: {len(web.plan.reachable() - stored)} pages are missing")
        return Run(
            workers=now.ru_utime - before.ru_utime + now.ru_stime - before.ru_stime,
            store=seconds(pids) - served,
            pages=len(stored),
            rate=rate(web.log()),
        )


def each(checkouts: Sequence[Path], store: str, workers: int, plan: WebPlan, *, together: bool) -> dict[Path, Run]:
    """One crawl by each version, each measured in a process of its own."""
    with ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1)) for _ in checkouts]
        found = {}
        for pool, checkout in zip(pools, checkouts):
            found[checkout] = pool.submit(crawl, checkout, store, workers, plan)
            if not together:
                found[checkout].result()
        return {checkout: run.result() for checkout, run in found.items()}


def seconds(pids: list[int]) -> float:
    """CPU of servers so far, with that of their children: of those that run, and of those that have ended."""
    return sum(process_seconds(pid, ended=True) + sum(map(process_seconds, children(pid))) for pid in pids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--stores", nargs="+", default=["redis", "redis2", "postgresql", "mariadb"])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--hosts", type=int, default=80)
    parser.add_argument("--together", action="store_true", help="both versions at the same moment")
    choice = parser.parse_args()
    whole = WebPlan(
        sites=choice.hosts, pages_per_site=choice.pages // choice.hosts, page_bytes=40_000, links_per_page=100
    )
    start = WebPlan(sites=choice.hosts, pages_per_site=1, page_bytes=40_000, links_per_page=100)
    print(f"{os.cpu_count()} cores, {choice.workers} workers, {choice.pages} pages on {choice.hosts} hosts", flush=True)
    for store in choice.stores:
        ratios, whole_ratios, speeds = [], [], []
        for number in range(choice.runs):
            costs: dict[Path, tuple[float, float, float]] = {}
            both = (choice.other.resolve(), OURS)[:: 1 if number % 2 else -1]
            idles = each(both, store, choice.workers, start, together=choice.together)
            wholes = each(both, store, choice.workers, whole, together=choice.together)
            for checkout in both:
                idle, found = idles[checkout], wholes[checkout]
                total = (found.workers + found.store) / found.pages * 1000
                net = total - (idle.workers + idle.store) / found.pages * 1000
                costs[checkout] = (net, total, found.rate)
                print(
                    f"  {store} run {number + 1} {'ours' if checkout == OURS else 'other':6} {net:6.3f} ms a page, "
                    f"{total:.3f} with start and end ({found.store / found.pages * 1000:.3f} store), "
                    f"{found.rate:.0f} pages/s",
                    flush=True,
                )
            ours, other = costs[OURS], costs[choice.other.resolve()]
            ratios.append(ours[0] / other[0])
            whole_ratios.append(ours[1] / other[1])
            speeds.append(ours[2] / other[2])
        print(
            f"{store:12} ours / other: CPU {statistics.median(ratios):.3f}, with start and end "
            f"{statistics.median(whole_ratios):.3f}, pages/s {statistics.median(speeds):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
