"""The frontier in Redis alone: CPU per page of client and server, and bytes of Redis memory per URL.

    python benchmarks/frontier_redis.py [--urls 1e6] [--rounds 3] [--valkey]

64 pages per batch, 50 links per page, 15 % of them new; measures lease, complete, and add, but not creating the links.
It uses the same event loop as workers. Three cases: "cached" drops links in the worker's cache of recent keys, like
workers, and includes the cost of that (the cache has seen all URLs as they were added; links repeat at random here,
which is its worst case); "new" sends only new links, as a cache of all keys would; "all" sends every link. Each result
is the median of `--rounds` rounds. Memory is for URLs of about 60 characters, added without referrer, found on a page
of the same or of another site, done, and done with a scheduled revisit; it includes the data of the sites. `--sites`
sets the number of queues: with few sites, queues are long and packed into blocks.
"""

from __future__ import annotations

import argparse
import os

import redis

from _frontier import Pages, done, machine, request
from gossamer.cli.runner import run
from gossamer.engine.links import RecentKeys
from gossamer.frontier.redis.shards import open_redis
from gossamer.lab.bench import cpu_of
from gossamer.settings import Settings
from gossamer.testing.servers import RedisServer, valkey_program

SETTINGS = Settings(delay=0, robots=False)


async def measure(server: RedisServer, known: int, choice: argparse.Namespace) -> None:
    watch = redis.Redis.from_url(server.url)
    watch.flushall()
    frontier = await open_redis(server.url, "benchmark", SETTINGS, worker="bench")
    empty = watch.info("memory")["used_memory"]
    pages = Pages(frontier, frontier.secret, lambda: cpu_of(server.pid), recent=RecentKeys())
    await pages.fill(known)
    queued = (watch.info("memory")["used_memory"] - empty) / known
    results = [f"{case} {await pages.rounds(case, pages=choice.pages, rounds=choice.rounds)}" for case in choice.cases]
    await frontier.aclose()
    load = os.getloadavg()[0]
    print(f"{known:>10,}  {'  '.join(results)}  {queued:.1f} bytes a queued URL without referrer; load {load:.1f}")


async def weigh(url: str, known: int, sites: int, *, elsewhere: bool = False, again: bool = False) -> str:
    """Bytes per queued URL with a referrer on its own or on another site, and per done URL."""
    watch = redis.Redis.from_url(url)
    watch.flushall()
    frontier = await open_redis(url, "benchmark", SETTINGS, worker="bench")
    empty = watch.info("memory")["used_memory"]
    await frontier.add([request(frontier.secret, sites * 100_000 + site, site) for site in range(sites)])
    made = 0
    while made < known:
        outcomes = []
        for lease in (await frontier.lease(100, batch=1, seconds=60)).leases:
            site = int(lease.site.split("-")[1][:4])
            target = (site * 31 + 7) % sites if elsewhere else site
            links = tuple(request(frontier.secret, number, target) for number in range(made, made + 50))
            outcomes.append(done(lease, lease.requests[0].key, links))
            made += 50
        await frontier.complete(outcomes)
    counts = await frontier.counts()
    waiting = (watch.info("memory")["used_memory"] - empty) / counts.queued
    while (grant := await frontier.lease(64, batch=100, seconds=60)).leases:
        await frontier.complete(
            [
                done(lease, leased.key, again_in=1e6 if again else None)
                for lease in grant.leases
                for leased in lease.requests
            ]
        )
    over = (watch.info("memory")["used_memory"] - empty) / counts.known
    await frontier.aclose()
    where = "another site" if elsewhere else "its own site"
    end = "that comes again" if again else "that is done"
    return f"{known:>10,} on {sites:>5} sites  {waiting:.1f} with a referrer of {where}, {over:.1f} {end}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--urls", type=float, nargs="*", default=[1e5, 1e6])
    parser.add_argument("--cases", nargs="*", default=["cached", "new", "all"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pages", type=int, default=6_400)
    parser.add_argument("--weigh", type=float, default=2e5)
    parser.add_argument("--sites", type=int, nargs="*", default=[50, 1000])
    parser.add_argument("--valkey", action="store_true", help="use Valkey instead of Redis")
    choice = parser.parse_args()
    with RedisServer(program=valkey_program() if choice.valkey else "redis-server") as server:
        about = redis.Redis.from_url(server.url).info("server")
        version = f"Valkey {about['valkey_version']}" if choice.valkey else f"Redis {about['redis_version']}"
        print(f"{machine()}, {version}")
        print("known URLs, CPU us a page (client + server) for each case")
        for known in choice.urls:
            run(measure(server, int(known), choice))
        if choice.weigh:
            print("bytes of Redis memory a URL")
        for sites in choice.sites if choice.weigh else ():
            for options in ({}, {"elsewhere": True}, {"again": True}):
                print(run(weigh(server.url, int(choice.weigh), sites, **options)), flush=True)


if __name__ == "__main__":
    main()
