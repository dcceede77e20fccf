"""Gossamer's fleet compared with scrapy-redis: the same crawl by 1 and 2 workers, and with one of two workers killed.

    python benchmarks/fleet_peers.py [--runs 3] [--pages 4000] [--hosts 40] [--kills 3]

The crawl is that of peers.py: 40 KB pages, all links followed, title and link count to JSON Lines, no delay, no
robots.txt. CPU includes all processes and the Redis server, which is new for each run, but not the web server. Runs
alternate; medians are compared. scrapy-redis never finishes: its workers are stopped when the queue is empty and they
are idle. A killed worker is restarted at once, by Gossamer itself or by this script.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import redis

from _fleet import Account, Crawl, children, finish, machine, process_seconds, requests, start, until
from _peers import PYTHON_PACKAGES, SCRIPTS, environment
from gossamer.engine.supervision import dies_with_us
from gossamer.lab.simweb.process import SimWeb
from gossamer.testing.servers import RedisServer

QUIET_SECONDS = 3.0
Contender = Callable[[SimWeb, RedisServer, Path], Crawl]


def gossamer(web: SimWeb, server: RedisServer, folder: Path, *, workers: int, kill: bool = False) -> Crawl:
    account = Account(server)
    process = start(
        web, folder, "--frontier", server.url, "--workers", str(workers), "--no-robots", "--delay", "0",
        "--concurrency", "100",
    )  # fmt: skip
    if kill:
        until(lambda: requests(web) >= half(web), process)
        os.kill(children(process.pid)[0], signal.SIGKILL)
    finish(process)
    return account.crawl(web, [folder / "job" / "pages.jsonl"])


def scrapy_redis(
    web: SimWeb, server: RedisServer, folder: Path, *, workers: int, kill: bool = False, seen: bool = False
) -> Crawl:
    python = str(environment("scrapy-redis"))
    store = redis.Redis.from_url(server.url)
    store.lpush("pages:start_urls", *(json.dumps({"url": url}) for url in web.seeds))
    outputs: list[Path] = []

    def worker() -> subprocess.Popen[bytes]:
        number = str(len(outputs))
        outputs.append(folder / f"pages.jsonl.{number}")
        script, output = str(SCRIPTS / "scrapy_redis_crawl.py"), str(folder / "pages.jsonl")
        command = [python, script, "seeds", output, "--redis", server.url, *(("--seen",) if seen else ())]
        return subprocess.Popen(
            command,
            env={**os.environ, "WORKER": number},
            preexec_fn=dies_with_us(),  # noqa: PLW1509
        )

    account = Account(server)
    running = [worker() for _ in range(workers)]
    try:
        if kill:
            until(lambda: requests(web) >= half(web), *running)
            running[0].kill()
            running[0].wait()
            running[0] = worker()
        until(partial(is_quiet, web, store, running), *running)
    finally:
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait()
        store.close()
    return account.crawl(web, outputs)


def is_quiet(web: SimWeb, store: redis.Redis, running: list[subprocess.Popen[bytes]]) -> bool:
    """Whether the queue is empty, the web had no recent requests, and all workers are idle."""

    def state() -> tuple[int, int]:
        return store.zcard("pages:requests") + store.llen("pages:start_urls"), requests(web)

    before, busy = state(), [process_seconds(process.pid) for process in running]
    time.sleep(QUIET_SECONDS)
    used = [process_seconds(process.pid) - seconds for process, seconds in zip(running, busy)]
    return before[0] == 0 and before[1] > 0 and state() == before and max(used) < QUIET_SECONDS / 10


def half(web: SimWeb) -> int:
    return web.plan.sites * web.plan.pages_per_site // 2


def contenders(*, tuned: bool) -> dict[str, Contender]:
    found: dict[str, Contender] = {}
    for workers in (1, 2):
        found[f"gossamer, workers {workers}"] = partial(gossamer, workers=workers)
        found[f"scrapy-redis, workers {workers}"] = partial(scrapy_redis, workers=workers)
        if tuned:
            found[f"scrapy-redis, own seen set, workers {workers}"] = partial(scrapy_redis, workers=workers, seen=True)
    return found


def run(contender: Contender, hosts: int, pages: int) -> Crawl:
    with (
        SimWeb(sites=hosts, pages_per_site=pages // hosts, page_bytes=40_000, links_per_page=100) as web,
        RedisServer() as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        return contender(web, server, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pages", type=int, default=4000)
    parser.add_argument("--hosts", type=int, default=40)
    parser.add_argument("--kills", type=int, default=3, help="runs with a worker killed half way; 0: none")
    parser.add_argument("--tuned", action="store_true", help="scrapy-redis with a seen set in the spider too")
    choice = parser.parse_args()
    with RedisServer() as server:
        print(f"{machine(server)}, {PYTHON_PACKAGES['scrapy-redis']}", flush=True)
    crawls: dict[str, list[Crawl]] = {name: [] for name in contenders(tuned=choice.tuned)}
    for number in range(choice.runs):
        for name, contender in contenders(tuned=choice.tuned).items():
            crawl = run(contender, choice.hosts, choice.pages)
            crawls[name].append(crawl)
            print(f"  run {number + 1}: {name:38} {crawl.cost:7.2f} ms a page, {crawl.pages} pages", flush=True)
    if choice.runs:
        compare(crawls)
    if choice.kills:
        print(f"\none of two workers killed (-9) half way, {choice.kills} times each")
        for number in range(choice.kills):
            for name, contender in (
                ("gossamer", partial(gossamer, workers=2, kill=True)),
                ("scrapy-redis", partial(scrapy_redis, workers=2, kill=True)),
            ):
                crawl = run(contender, choice.hosts, choice.pages)
                print(
                    f"  run {number + 1}: {name:14} {crawl.lost:5} pages lost ({crawl.unanswered} never fetched, "
                    f"{crawl.lost - crawl.unanswered} fetched and not stored), {crawl.repeated} fetches repeated",
                    flush=True,
                )


def compare(crawls: dict[str, list[Crawl]]) -> None:
    columns = ("CPU ms a page", "least", "most", "of it Redis", "pages/s", "lost", "repeated", "times")
    print(f"\n{'':38} " + " ".join(f"{column:>13}" for column in columns))
    for name, found in crawls.items():
        costs = [crawl.cost for crawl in found]
        base = statistics.median(crawl.cost for crawl in crawls[f"gossamer, workers {name[-1]}"])
        median = statistics.median(costs)
        served = statistics.median(crawl.redis_seconds / crawl.pages * 1000 for crawl in found)
        speed = statistics.median(crawl.rate for crawl in found)
        lost, repeated = max(crawl.lost for crawl in found), max(crawl.repeated for crawl in found)
        print(
            f"{name:38} {median:13.2f} {min(costs):13.2f} {max(costs):13.2f} {served:13.2f} {speed:13.0f} {lost:13} "
            f"{repeated:13} {median / base:13.1f}"
        )
    print("times: CPU of the same number of Gossamer's workers; lost and repeated: the most of any run")


if __name__ == "__main__":
    main()
