"""The page limit of a job in several shards, if a server's answer to a call is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import redis

from gossamer.errors import Unavailable
from gossamer.frontier import sharded
from gossamer.frontier.placement import shard_of
from gossamer.frontier.redis.frontier import RedisFrontier
from gossamer.frontier.redis.shards import open_redis
from gossamer.frontier.sharded import Sharded
from gossamer.frontier.sql.frontier import SqlFrontier
from gossamer.frontier.sql.shards import open_databases
from gossamer.model import Grant
from gossamer.settings import Settings
from gossamer.testing.harness import outcomes, page
from gossamer.testing.network import FaultyProxy
from gossamer.testing.servers import RedisServer, SqlServer

MOST, BATCH = 60, 8
LIMITED = Settings(delay=0.0, robots=False, max_pages=MOST)
LOSSES = 3


class Fleet(NamedTuple):
    """A job in four shards, and its server."""

    port: int
    """Of the server itself."""
    open: Callable[[int, str], Awaitable[Sharded]]
    """Open the job through a port, as a worker."""
    frontier: type[RedisFrontier] | type[SqlFrontier]
    lost: dict[str, bytes]
    """By call what its message contains that the server runs and does not answer."""


@pytest.fixture(params=["redis_server", "postgres_server", "maria_server"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    server: RedisServer | SqlServer = request.getfixturevalue(request.param)
    if isinstance(server, RedisServer):
        in_redis = server
        with redis.Redis.from_url(server.url) as store:
            store.flushall()

        async def on_redis(port: int, worker: str) -> Any:
            return await open_redis(in_redis.url_at(port), "j", LIMITED, worker=worker, shards="4")

        return Fleet(server.port, on_redis, RedisFrontier, {"allow": b"\r\nallow\r\n", "reserve": b"\r\nreserve\r\n"})

    places = request.getfixturevalue("empty_databases")(server, "first", "second")

    async def on_sql(port: int, worker: str) -> Any:
        urls = ",".join(place.replace(f":{server.port}/", f":{port}/") for place in places)
        return await open_databases(urls, "j", LIMITED, worker=worker, shards="4")

    return Fleet(server.port, on_sql, SqlFrontier, {"allow": b"COMMIT", "reserve": b"COMMIT"})


async def lease(worker: Sharded) -> Grant:
    """Lease from one shard after the other, and again, as the engine does, while the frontier is not available."""
    for _ in range(20):
        try:
            return await worker.lease(1, batch=BATCH, seconds=60)
        except Unavailable:
            continue
    raise AssertionError("it stays unavailable")


@pytest.mark.parametrize("call", ["allow", "reserve"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_limit_is_exact_although_answers_are_lost(
    fleet: Fleet, call: str, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`allow` gives pages to a shard, `reserve` gives them back: a server that does so twice exceeds the limit.

    Lost is the answer, or, for comparison, nothing. One site is large, and the others leave most of their part."""
    sites = [next(f"{n}.example" for n in range(1000) if shard_of(f"{n}.example", 4) == shard) for shard in range(4)]
    seeds = [page(100 * shard + n, site) for shard, site in enumerate(sites) for n in range(3 if shard else 100)]

    async def play(proxy: FaultyProxy) -> int:
        original, left = getattr(fleet.frontier, call), LOSSES if is_lost else 0

        async def once(self: Any, pages: int, **given: Any) -> Any:
            nonlocal left
            gives = pages > 0 if call == "allow" else pages < 0
            if gives and left and self.worker == "one":
                left -= 1
                proxy.lose = fleet.lost[call]
            return await original(self, pages, **given)

        monkeypatch.setattr(fleet.frontier, call, once)
        one, two = [await fleet.open(proxy.port, name) for name in ("one", "two")]
        await one.add(seeds)
        stored = 0

        async def crawl(worker: Sharded) -> bool:
            nonlocal stored
            grant = await lease(worker)
            for held in grant.leases:
                stored += len(held.requests)
                await worker.complete(outcomes(held))
            return grant.job == "finished"

        is_over = False
        while not is_over:
            before = proxy.faults
            is_over = await crawl(one)
            if proxy.faults > before:
                # The first one compares the account when it leases again: before that, it is the other's turn.
                for _ in range(3):
                    await crawl(two)
        await one.aclose()
        await two.aclose()
        return stored

    with FaultyProxy(fleet.port) as proxy:
        assert asyncio.run(asyncio.wait_for(play(proxy), 60)) == MOST
        assert bool(proxy.faults) == is_lost


def test_pages_are_returned_to_the_account_once_by_workers_that_do_so_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages were reserved and no shard has them. The second worker counted the shards' parts before the first one
    returned the pages, and before a third one reserved some of them again."""
    monkeypatch.setattr(sharded, "_LOOK_AGAIN_SECONDS", -1.0)

    async def play() -> int:
        first, second = [await fleet.open(fleet.port, name) for name in ("first", "second")]
        ledger, shard = first._shards[0], first._shards[1]
        await ledger.reserve(MOST, limit=MOST)
        for worker in (first, second):
            assert await worker._return_unallowed(MOST)
        stale = await second._allowed(MOST)
        assert await first._return_unallowed(MOST)
        taken, _ = await ledger.reserve(10, limit=MOST)
        await shard.allow(taken)

        async def allowed(_total: int) -> int:
            return stale

        monkeypatch.setattr(second, "_allowed", allowed)
        await second._return_unallowed(MOST)
        _, left = await ledger.reserve(0, limit=MOST)
        for worker in (first, second):
            await worker.aclose()
        return left

    assert asyncio.run(play()) == MOST - 10
