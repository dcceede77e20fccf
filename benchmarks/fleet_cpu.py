"""Fleets of two and four workers compared with an embedded crawl: CPU per page, and the cost of the Redis frontier.

    python benchmarks/fleet_cpu.py [--runs 7] [--pages 20000] [--hosts 40]

The crawls fetch the same pages in turn, in shuffled order: embedded (one process, SQLite), and one, two, and four
workers on Redis. CPU includes all processes and the Redis server, but not the web server. The frontier's cost is
measured by replaying the same crawl without fetching: leases, outcomes, and links of every page, client and server. The
ratio compares two workers with the embedded crawl plus that cost, per run; the median of the runs counts. Start and end
are included; crawls of one page per host measure them separately.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urldefrag, urljoin

from _fleet import Account, Crawl, finish, machine, process_seconds, start
from gossamer import urls
from gossamer.engine.links import Linker, RecentKeys
from gossamer.frontier.backends import create_fleet
from gossamer.lab.simweb.pages import PageRenderer
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.simweb.site import WebPlan
from gossamer.model import Outcome, Request
from gossamer.settings import Settings
from gossamer.testing.servers import RedisServer

BATCH = 64
HREF = re.compile(rb'<a [^>]*href="([^"]+)"')
CASES = {
    "embedded": (),
    "1 worker on Redis": ("--workers", "1"),
    "2 workers on Redis": ("--workers", "2"),
    "4 workers on Redis": ("--workers", "4"),
}


def plan(hosts: int, pages: int) -> WebPlan:
    return WebPlan(sites=hosts, pages_per_site=pages // hosts, page_bytes=40_000, links_per_page=100)


def crawl(case: str, web_plan: WebPlan) -> Crawl:
    with SimWeb(web_plan) as web, RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        frontier = () if case == "embedded" else ("--frontier", server.url)
        account = Account(server)
        finish(start(web, Path(folder), "--no-robots", "--delay", "0", "--concurrency", "100", *frontier, *CASES[case]))
        return account.crawl(web, [Path(folder) / "job" / "pages.jsonl"])


def links_of(pages: PageRenderer, plan: WebPlan, request: Request) -> tuple[str, ...]:
    """Generate the links of a page without fetching it."""
    site = plan.site_of(urls.host(urls.host_port(request.url)))
    if site is None or site >= plan.sites:
        return ()
    body = pages.answer(site, urls.path_query(request.url)).body
    found = (urldefrag(urljoin(request.url, href.decode())).url for href in HREF.findall(body))
    return tuple(dict.fromkeys(found))


async def play_back(web_plan: WebPlan) -> tuple[float, float, int]:
    """CPU seconds of the client and of Redis for the frontier alone, and the number of pages."""
    pages, settings, recent = PageRenderer(web_plan), Settings(delay=0, robots=False, allow_private=True), RecentKeys()
    client, count = 0.0, 0
    with RedisServer() as server:
        idle = process_seconds(server.pid)
        frontier = await create_fleet(server.url, "playback", settings, worker="bench")
        linker = Linker(settings, frontier.secret, recent)
        await frontier.add([linker.seed(url) for url in web_plan.seeds()])
        while True:
            began = time.process_time()
            grant = await frontier.lease(BATCH, batch=settings.batch, seconds=60)
            client += time.process_time() - began
            held = [(lease, request) for lease in grant.leases for request in lease.requests]
            if not held:
                break
            for first in range(0, len(held), BATCH):
                outcomes = []
                for lease, request in held[first : first + BATCH]:
                    links = tuple(linker.follow(request, links_of(pages, web_plan, request)))
                    outcomes.append(
                        Outcome(
                            site=lease.site,
                            lane=lease.lane,
                            token=lease.token,
                            key=request.key,
                            status="done",
                            code=200,
                            links=links,
                        )
                    )
                began = time.process_time()
                await frontier.complete(outcomes)
                client += time.process_time() - began
                count += len(outcomes)
                for outcome in outcomes:
                    recent.update(link.key for link in outcome.links)
        await frontier.aclose()
        return client, process_seconds(server.pid) - idle, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--hosts", type=int, default=40)
    choice = parser.parse_args()
    with RedisServer() as server:
        print(machine(server), flush=True)
    web_plan = plan(choice.hosts, choice.pages)
    client, served, count = asyncio.run(play_back(web_plan))
    frontier = (client + served) / count * 1000
    print(
        f"the frontier alone: {frontier:.3f} ms a page ({client / count * 1000:.3f} client, "
        f"{served / count * 1000:.3f} Redis), {count} pages",
        flush=True,
    )
    costs: dict[str, list[float]] = {case: [] for case in CASES}
    starts: dict[str, list[float]] = {case: [] for case in CASES}
    names = list(CASES)
    for number in range(choice.runs):
        for case in names[number % len(names) :] + names[: number % len(names)]:
            starts[case].append(crawl(case, plan(choice.hosts, choice.hosts)).cost * choice.hosts / choice.pages)
            found = crawl(case, web_plan)
            costs[case].append(found.cost)
            print(
                f"  run {number + 1}: {case:20} {found.cost:6.3f} ms a page "
                f"({found.redis_seconds / found.pages * 1000:.3f} Redis), {found.pages} pages, {found.lost} lost, "
                f"{found.repeated} repeated, {found.rate:.0f} pages/s",
                flush=True,
            )
    report(costs, frontier, "with start and end")
    rest = {case: [cost - start for cost, start in zip(costs[case], starts[case])] for case in CASES}
    report(rest, frontier, "without start and end")


def report(costs: dict[str, list[float]], frontier: float, title: str) -> None:
    """Print the CPU per page of each case, and the ratios of paired runs."""
    embedded, one, two, four = costs.values()
    print(f"\n{title + ', ms a page':36} {'median':>8} {'least':>8} {'most':>8}")
    for name, found in (
        *costs.items(),
        ("2 workers / (embedded + frontier)", [b / (a + frontier) for a, b in zip(embedded, two)]),
        ("2 workers / 1 worker", [b / a for a, b in zip(one, two)]),
        ("4 workers / 1 worker", [b / a for a, b in zip(one, four)]),
        ("2 workers / embedded", [b / a for a, b in zip(embedded, two)]),
    ):
        print(f"{name:36} {statistics.median(found):8.3f} {min(found):8.3f} {max(found):8.3f}")


if __name__ == "__main__":
    main()
