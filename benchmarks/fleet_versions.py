"""Compare fleet crawls of this checkout and another one: CPU per page and pages per second, on each store.

    python benchmarks/fleet_versions.py ../before [--stores redis redis2 postgresql mariadb] [--workers 8] [--runs 5]
                                                  [--together]

`../before` is another checkout of Gossamer, such as `git worktree add ../before TAG`. Both crawl the same web with the
same number of workers, in shuffled order, on fresh servers. CPU includes all processes and the store's servers, but not
the web server. The CPU of a crawl with one page per host is subtracted: the cost to start, and to wait at the end for
data that a store could lose. The result is the median ratio of paired runs.

On a shared machine, `--together` runs both versions at the same time, so that other processes affect both: their effect
on caches and clock rates can exceed the difference between the versions.
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
    """CPU seconds and rate of one crawl."""

    workers: float
    store: float
    pages: int
    rate: float


def servers(store: str, stack: ExitStack) -> tuple[str, list[int]]:
    """Start fresh servers of one kind; returns the frontier's address and their process ids."""
    if store.startswith("redis"):
        count = int(store.removeprefix("redis") or 1)
        # With a log that is synced once per second, as in production.
        found = [stack.enter_context(RedisServer(appendonly="yes", appendfsync="everysec")) for _ in range(count)]
        return ",".join(server.url for server in found), [server.pid for server in found]
    server = stack.enter_context(PostgresServer() if store == "postgresql" else MariaServer())
    return server.url, [server.pid]


def crawl(checkout: Path, store: str, workers: int, plan: WebPlan) -> Run:
    """Crawl the whole web; fails if a page is missing."""
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
    """Run one crawl with each version, each measured in its own process."""
    with ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1)) for _ in checkouts]
        found = {}
        for pool, checkout in zip(pools, checkouts):
            found[checkout] = pool.submit(crawl, checkout, store, workers, plan)
            if not together:
                found[checkout].result()
        return {checkout: run.result() for checkout, run in found.items()}


def seconds(pids: list[int]) -> float:
    """CPU of servers so far, including running and exited children."""
    return sum(process_seconds(pid, ended=True) + sum(map(process_seconds, children(pid))) for pid in pids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--stores", nargs="+", default=["redis", "redis2", "postgresql", "mariadb"])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--hosts", type=int, default=80)
    parser.add_argument("--together", action="store_true", help="run both versions at the same time")
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
