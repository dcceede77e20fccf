"""The frontier in Redis alone: CPU a page of client and server, and bytes of Redis memory a URL.

    python benchmarks/frontier_redis.py [--urls 1e6]

64 pages a batch, 50 links a page, 15 % of them new; lease, complete and add are counted, making the links is not.
Three cases: "cached" drops links that the worker's memory of recent keys knows, as workers do, and counts what that
costs (it met all URLs as they were added; links repeat at random here, which is the worst case for it); "new" sends new
links only, which is what a memory of all keys would do; "all" sends every link. A tenth of the sites has half of the
URLs, so that folding, which comes in steps, is not in one case alone. Memory is of URLs with about 60 characters,
added without referrer, found on a page of the same site or of another, done, and done with a date for the next visit;
it includes what is kept of the sites. Queues of `--sites` sites: few of them have long queues, which are folded. The
titles are of random words: counted ones would compress far better than real ones do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import time

import redis

from gossamer import urls
from gossamer.engine.recent import Recent
from gossamer.frontier.redis import RedisFrontier
from gossamer.frontier.redis_open import open_redis
from gossamer.model import Outcome, Request
from gossamer.settings import Settings
from gossamer.testing.servers import RedisServer

PAGES, LINKS, NEW, BATCH, SITES = 12_800, 50, 0.15, 64, 1000
WORDS = ["".join(random.Random(number).choices("abcdefghiklmnoprstu", k=3 + number % 7)) for number in range(2000)]


def request(secret: bytes, number: int, site: int | None = None) -> Request:
    if site is None:
        # No two grow alike: a site's share falls with its number.
        site = int(SITES * (number * 0.6180339887 % 1.0) ** 3.3)
    host = f"www.site-{site:04d}.example"
    one, two = WORDS[number * 7919 % 2000], WORDS[number * 104_729 // 2000 % 2000]
    url = f"https://{host}/articles/{number * 7_368_787 % 1_000_003:07d}/{one}-{two}"
    return Request(url, urls.fingerprint(secret, url), host, depth=1)


def server_cpu(watch: redis.Redis) -> float:
    cpu = watch.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def _done(
    site: str,
    lane: int,
    token: int,
    key: int,
    links: tuple[Request, ...] = (),
    *,
    again_in: float | None = None,
) -> Outcome:
    state = None
    if again_in is not None:
        chance = random.Random(key)
        digests = [f"{chance.getrandbits(160):040x}", f"{chance.getrandbits(64):016x}"]
        etag = f'"{chance.getrandbits(48):x}"'
        seen_at = 1_700_000_000.0 + chance.randrange(100_000)
        state = {"etag": etag, "digest": digests[0], "text": digests[1], "seen_at": seen_at, "interval": again_in}
    return Outcome(
        site=site, lane=lane, token=token, key=key, status="done", code=200, links=links, again_in=again_in, state=state
    )


async def measure(url: str, known: int) -> None:
    watch = redis.Redis.from_url(url)
    watch.flushall()
    settings = Settings(delay=0, robots=False)
    frontier = await open_redis(url, "benchmark", settings, worker="bench")
    empty = watch.info("memory")["used_memory"]
    recent = Recent()
    for first in range(0, known, 10_000):
        urls = [request(frontier.secret, number) for number in range(first, min(first + 10_000, known))]
        await frontier.add(urls)
        recent.update(url.key for url in urls)
    queued = (watch.info("memory")["used_memory"] - empty) / known
    results = []
    following = known
    for case in ("cached", "new", "all"):
        client, server, following = await pages(frontier, watch, recent, known, following, case)
        results.append(f"{case} {client + server:.0f} ({client:.0f} + {server:.0f})")
    await frontier.aclose()
    print(f"{known:>10,}  {'  '.join(results)}  {queued:>8.1f} bytes a queued URL without referrer", flush=True)


async def pages(
    frontier: RedisFrontier, watch: redis.Redis, recent: Recent, known: int, following: int, case: str
) -> tuple[float, float, int]:
    """Microseconds a page of the client and of the server."""
    chance = random.Random(7)
    count, cpu, served = 0, 0.0, 0.0
    while count < PAGES:
        before, started = server_cpu(watch), time.process_time()
        grant = await frontier.lease(2, batch=BATCH // 2, seconds=60)
        cpu += time.process_time() - started
        served += server_cpu(watch) - before
        outcomes = []
        for lease in grant.leases:
            for leased in lease.requests:
                fresh = sum(chance.random() < NEW for _ in range(LINKS))
                numbers = [*range(following, following + fresh)]
                if case != "new":
                    numbers += [chance.randrange(known) for _ in range(LINKS - fresh)]
                following += fresh
                links = tuple(request(frontier.secret, number) for number in numbers)
                if case == "cached":
                    started, hot = time.process_time(), recent.hot
                    links = tuple(link for link in links if not (link.key in hot or link.key in recent))
                    recent.update(link.key for link in links)
                    cpu += time.process_time() - started
                outcomes.append(_done(lease.site, lease.lane, lease.token, leased.key, links))
        before, started = server_cpu(watch), time.process_time()
        await frontier.complete(outcomes)
        cpu += time.process_time() - started
        served += server_cpu(watch) - before
        count += len(outcomes)
    return cpu / count * 1e6, served / count * 1e6, following


async def weigh(url: str, known: int, sites: int, *, elsewhere: bool = False, again: bool = False) -> str:
    """Bytes a URL that waits with a referrer of its own site, or of another, and a URL that is done."""
    watch = redis.Redis.from_url(url)
    watch.flushall()
    frontier = await open_redis(url, "benchmark", Settings(delay=0, robots=False), worker="bench")
    empty = watch.info("memory")["used_memory"]
    await frontier.add([request(frontier.secret, sites * 100_000 + site, site) for site in range(sites)])
    made = 0
    while made < known:
        outcomes = []
        for lease in (await frontier.lease(100, batch=1, seconds=60)).leases:
            site = int(lease.site.split("-")[1][:4])
            target = (site * 31 + 7) % sites if elsewhere else site
            links = tuple(request(frontier.secret, number, target) for number in range(made, made + 50))
            outcomes.append(_done(lease.site, lease.lane, lease.token, lease.requests[0].key, links))
            made += 50
        await frontier.complete(outcomes)
    counts = await frontier.counts()
    waiting = (watch.info("memory")["used_memory"] - empty) / counts.queued
    while (grant := await frontier.lease(64, batch=100, seconds=60)).leases:
        await frontier.complete(
            [
                _done(lease.site, lease.lane, lease.token, leased.key, again_in=1e6 if again else None)
                for lease in grant.leases
                for leased in lease.requests
            ]
        )
    done = (watch.info("memory")["used_memory"] - empty) / counts.known
    await frontier.aclose()
    where = "another site" if elsewhere else "its own site"
    end = "that comes again" if again else "that is done"
    return f"{known:>10,} on {sites:>5} sites  {waiting:.1f} with a referrer of {where}, {done:.1f} {end}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--urls", type=float, nargs="*", default=[1e5, 1e6])
    parser.add_argument("--weigh", type=float, default=2e5)
    parser.add_argument("--sites", type=int, nargs="*", default=[50, 1000])
    choice = parser.parse_args()
    with RedisServer() as server:
        version = redis.Redis.from_url(server.url).info("server")["redis_version"]
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, Redis {version}")
        print("known URLs, CPU us a page (client + server) for each case")
        for known in choice.urls:
            asyncio.run(measure(server.url, int(known)))
        if choice.weigh:
            print("bytes of Redis memory a URL")
        for sites in choice.sites if choice.weigh else ():
            for options in ({}, {"elsewhere": True}, {"again": True}):
                print(asyncio.run(weigh(server.url, int(choice.weigh), sites, **options)), flush=True)


if __name__ == "__main__":
    main()
