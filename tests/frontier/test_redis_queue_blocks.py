"""Long queues in Redis: packing them into blocks changes their size, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from gossamer import urls
from gossamer.errors import FrontierError, Unavailable
from gossamer.frontier.packing import pack
from gossamer.frontier.redis.frontier import RedisFrontier
from gossamer.frontier.redis.queue_blocks import fold, fold_lists, unfold
from gossamer.frontier.redis.server import job_key
from gossamer.frontier.redis.shards import open_redis
from gossamer.model import Request, Status
from gossamer.settings import Settings
from gossamer.testing.harness import keys, note, outcomes
from gossamer.testing.servers import RedisServer

SECRET = b"0123456789abcdef"
SITE = "a.example"
PREFIX = job_key("j")[:-3]
QUEUE = f"{PREFIX}queue:{SITE}:0"


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """The server as somebody else sees it, empty."""
    connection = redis.Redis.from_url(redis_server.url)
    connection.flushall()
    yield connection
    connection.close()


@asynccontextmanager
async def workers(url: str, count: int = 1, size: int = 4, **given: Any) -> AsyncIterator[list[RedisFrontier]]:
    """Workers of a job whose blocks have this size."""
    settings = Settings(**{"delay": 0.0, "robots": False, "site_share": 1.0, **given})
    found: list[Any] = [await open_redis(url, "j", settings, worker=f"w{number}") for number in range(count)]
    with redis.Redis.from_url(url) as store:
        store.hset(job_key("j"), "fold", size)
    try:
        yield found
    finally:
        for frontier in found:
            await frontier.aclose()


def requests(frontier: RedisFrontier, count: int, first: int = 0) -> list[Request]:
    """Some with the key of their address, and some with another."""
    found = []
    for number in range(first, first + count):
        url = f"https://{SITE}/{number}"
        found.append(Request(url, urls.fingerprint(frontier.secret, url) if number % 3 else number + 1, SITE))
    return found


async def add_all(frontier: RedisFrontier, some: Sequence[Request], step: int = 7) -> None:
    for first in range(0, len(some), step):
        await frontier.add(some[first : first + step])


async def drain(*frontiers: RedisFrontier, batch: int = 3) -> list[Request]:
    """Everything, in the order in which it is handed out."""
    found: list[Request] = []
    busy = True
    while busy:
        busy = False
        for frontier in frontiers:
            for lease in (await frontier.lease(1, batch=batch, seconds=60)).leases:
                busy = True
                found += lease.requests
                await frontier.complete(outcomes(lease))
    counts = await frontiers[0].counts()
    assert (counts.queued, counts.leased, counts.finished) == (0, 0, True)
    return found


def blocks(store: redis.Redis) -> int:
    return sum(element[:1] == b"\xff" for element in store.lrange(QUEUE, 0, -1))


def check_books(store: redis.Redis, frontier: RedisFrontier, queued: int) -> None:
    """What the site's record says of its blocks is what is in the list."""
    elements = store.lrange(QUEUE, 0, -1)
    sizes = [len(unfold(element, SITE, frontier.secret)) for element in elements]  # type: ignore[arg-type]
    record = store.hgetall(f"{PREFIX}site:{SITE}")
    folded = [place for place, element in enumerate(elements) if element[:1] == b"\xff"]
    assert sum(sizes) == queued
    assert int(record.get(b"folded", 0)) == queued - len(elements)
    assert int(record.get(b"b0", 0)) == len(folded)
    if folded:
        assert folded == list(range(folded[0], folded[0] + len(folded))), "they are side by side"
        assert int(record[b"h0"]) == folded[0]


# Blocks

entry = st.one_of(
    st.binary(max_size=30),
    st.builds(
        lambda path, referrer, number: pack(Request(f"https://{SITE}/{path}", number, SITE, referrer=referrer)),
        st.text(max_size=20), st.text(max_size=20), st.integers(0, (1 << 63) - 1),
    ),
    st.text(max_size=20).map(
        lambda path: pack(
            Request(f"http://{SITE}/{path}", urls.fingerprint(SECRET, f"http://{SITE}/{path}"), SITE, depth=3)
        )
    ),
)  # fmt: skip


@given(st.lists(entry, max_size=40))
def test_packing_and_unpacking_a_block_keeps_every_entry(entries: list[bytes]) -> None:
    assert unfold(fold(entries, SITE, SECRET), SITE, SECRET) == entries


@given(st.lists(entry, min_size=1, max_size=20), st.integers(0, 10_000), st.integers(1, 255))
def test_a_block_of_which_any_byte_has_changed_is_refused(entries: list[bytes], place: int, change: int) -> None:
    block = bytearray(fold(entries, SITE, SECRET))
    # What comes first says that it is a block.
    place = 1 + place % (len(block) - 1)
    block[place] ^= change
    with pytest.raises(ValueError, match=r"."):
        unfold(bytes(block), SITE, SECRET)


def test_an_entry_is_not_taken_for_a_block() -> None:
    for key in (0, 1, (1 << 63) - 1):
        element = pack(Request(f"https://{SITE}/", key, SITE))
        assert unfold(element, SITE, SECRET) == [element]


# Order


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("strategy", ["bfs", "dfs", "best"])
def test_the_order_is_the_same_with_and_without_blocks(
    redis_server: RedisServer, store: redis.Redis, strategy: str, size: int
) -> None:
    """In turns things are added and taken, so that blocks come and go."""

    async def run(size: int) -> list[str]:
        store.flushall()
        found: list[str] = []
        async with workers(redis_server.url, size=size, strategy=strategy) as (frontier,):
            waiting = 0
            for first in range(0, 300, 100):
                await add_all(frontier, requests(frontier, 100, first))
                waiting += 100
                if size:
                    assert blocks(store) > 3
                    check_books(store, frontier, waiting)
                for _ in range(30):
                    # One at a time: how long a batch is may depend on the blocks.
                    lease = (await frontier.lease(1, batch=1, seconds=60)).leases[0]
                    found += [request.url for request in lease.requests]
                    await frontier.complete(outcomes(lease))
                waiting -= 30
                if size:
                    check_books(store, frontier, waiting)
            found += [request.url for request in await drain(frontier, batch=1)]
        return found

    plain = asyncio.run(run(0))
    assert len(plain) == len(set(plain)) == 300
    assert asyncio.run(run(size)) == plain


def test_ranks_keep_their_order(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=4, strategy="bfs") as (frontier,):
            some = [Request(f"https://{SITE}/{n}", n + 1, SITE, depth=n % 3, priority=n % 2) for n in range(120)]
            await add_all(frontier, some)
            found = await drain(frontier)
        assert found == sorted(some, key=lambda request: (-request.priority, request.depth))

    asyncio.run(run())


def test_a_random_walk_visits_everything_once_and_not_in_order(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=8, strategy="random") as (frontier,):
            some = requests(frontier, 200)
            await add_all(frontier, some)
            assert blocks(store) > 10
            check_books(store, frontier, 200)
            found = [request.url for request in await drain(frontier)]
        expected = [request.url for request in some]
        assert sorted(found) == sorted(expected)
        places = [expected.index(url) for url in found]
        rising = sum(a < b for a, b in pairwise(places))
        assert 60 < rising < 140, "neither from the front nor from the back"

    asyncio.run(run())


def test_a_request_with_everything_comes_through_a_block(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=2) as (frontier,):
            some = [
                Request(
                    f"https://{SITE}/{number}", number + 1, SITE, referrer="http://b.example/", label="x",
                    meta={"a": [number]}, method="POST", headers={"b": "c"}, body=b"\x00\xff", state={"etag": "e"},
                )
                for number in range(40)
            ]  # fmt: skip
            await frontier.add(some)
            assert blocks(store) > 5
            assert await drain(frontier) == some

    asyncio.run(run())


def test_a_job_that_goes_on_with_another_strategy_visits_everything_once(
    redis_server: RedisServer, store: redis.Redis
) -> None:
    async def run() -> None:
        found: list[Request] = []
        some: list[Request] = []
        for step, strategy in enumerate(("bfs", "dfs", "bfs", "random", "dfs", "random", "bfs")):
            async with workers(redis_server.url, size=4, strategy=strategy) as (frontier,):
                part = requests(frontier, 50, step * 50)
                some += part
                await add_all(frontier, part)
                for _ in range(10):
                    lease = (await frontier.lease(1, batch=3, seconds=60)).leases[0]
                    found += lease.requests
                    await frontier.complete(outcomes(lease))
                check_books(store, frontier, len(some) - len(found))
                if step == 6:
                    found += await drain(frontier)
        assert sorted(request.url for request in found) == sorted(request.url for request in some)

    asyncio.run(run())


# Batches


def test_with_blocks_as_large_as_batches_every_batch_is_whole(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=16) as (frontier,):
            await add_all(frontier, requests(frontier, 320))
            for _ in range(20):
                lease = (await frontier.lease(1, batch=16, seconds=60)).leases[0]
                assert len(lease.requests) == 16
                await frontier.complete(outcomes(lease))

    asyncio.run(run())


def test_a_lease_that_finds_a_block_first_is_not_empty(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=4) as (frontier,):
            await frontier.add(requests(frontier, 40))
            # Another client took what was loose, saw the block, and died.
            await frontier._call("lease", limit=1, batch=4, seconds=60, worker="dead", regions=[""], suspects=True)
            store.hset(job_key("j"), "clock", "4000000000")
            lease = (await frontier.lease(1, batch=4, seconds=60)).leases[0]
            await frontier.complete(outcomes(lease))
            lease = (await frontier.lease(1, batch=4, seconds=60)).leases[0]
            assert keys(lease) == [request.key for request in requests(frontier, 8)[4:]]

    asyncio.run(run())


# Several clients, and such as die


def test_concurrent_folding_and_leasing_loses_nothing(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run(strategy: str) -> None:
        store.flushall()
        async with workers(redis_server.url, 3, size=4, strategy=strategy, per_site=4) as frontiers:
            some = requests(frontiers[0], 600)

            async def put(frontier: RedisFrontier, part: Sequence[Request]) -> None:
                await add_all(frontier, part, 11)

            async def take(frontier: RedisFrontier) -> list[Request]:
                found: list[Request] = []
                for _ in range(60):
                    for lease in (await frontier.lease(2, batch=3, seconds=60)).leases:
                        found += lease.requests
                        await frontier.complete(outcomes(lease))
                return found

            results: list[Any] = await asyncio.gather(
                *(put(frontier, some[number::3]) for number, frontier in enumerate(frontiers)),
                *(take(frontier) for frontier in frontiers),
            )
            found = [request for part in results[3:] for request in part]
            check_books(store, frontiers[0], 600 - len(found))
            found += await drain(*frontiers)
        assert sorted(request.key for request in found) == sorted(request.key for request in some)

    for strategy in ("bfs", "dfs", "random"):
        asyncio.run(run(strategy))


@pytest.mark.parametrize("strategy", ["bfs", "dfs", "random"])
def test_a_late_fold_changes_nothing(redis_server: RedisServer, store: redis.Redis, strategy: str) -> None:
    """Between reading and folding another client folds the same, or takes some of it."""

    async def run() -> None:
        async with workers(redis_server.url, 2, size=4, strategy=strategy) as (slow, quick):
            store.hset(job_key("j"), "fold", 0)
            await slow.add(requests(slow, 40))
            store.hset(job_key("j"), "fold", 4)

            async def late(operation: str, **given: Any) -> Any:
                if any("blocks" in wanted for wanted in given["lists"]):
                    await meanwhile.pop()()
                    before = store.lrange(QUEUE, 0, -1)
                    await slow._call(operation, **given)
                    assert store.lrange(QUEUE, 0, -1) == before
                    return [[]] * len(given["lists"])
                return await slow._call(operation, **given)

            async def fold_too() -> None:
                await fold_lists(quick._call, [[SITE, "0"]], quick.secret)

            meanwhile = [fold_too]
            await fold_lists(late, [[SITE, "0"]], slow.secret)
            assert blocks(store) > 3
            check_books(store, slow, 40)

            await add_all(quick, requests(quick, 3, 100))
            store.hset(job_key("j"), "fold", 0)
            await quick.add(requests(quick, 20, 200))
            store.hset(job_key("j"), "fold", 4)

            async def take_and_add() -> None:
                for _ in range(6):
                    await quick.complete(outcomes((await quick.lease(1, batch=4, seconds=60)).leases[0]))
                await quick.add(requests(quick, 9, 300))

            meanwhile = [take_and_add]
            await fold_lists(late, [[SITE, "0"]], slow.secret)
            assert not meanwhile, "there was something to fold"
            left = (await quick.counts()).queued
            check_books(store, slow, left)
            assert len({request.key for request in await drain(quick)}) == left

    asyncio.run(run())


def test_a_client_that_dies_between_reading_and_folding_leaves_all_as_it_was(
    redis_server: RedisServer, store: redis.Redis
) -> None:
    async def run() -> None:
        async with workers(redis_server.url, 2, size=4) as (dying, other):
            store.hset(job_key("j"), "fold", 0)
            some = requests(dying, 40)
            await dying.add(some)
            before = store.lrange(QUEUE, 0, -1)
            store.hset(job_key("j"), "fold", 4)
            assert (await dying._call("fold", lists=[{"site": SITE, "rank": "0"}]))[0]
            assert store.lrange(QUEUE, 0, -1) == before
            await other.add(requests(other, 4, 50))
            assert blocks(store) > 3, "another is asked to"
            assert [request.url for request in await drain(other)] == [
                request.url for request in some + requests(other, 4, 50)
            ]

    asyncio.run(run())


def test_when_folding_fails_what_was_added_is_added(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=4) as (frontier,):
            call = frontier._call

            async def broken(operation: str, *entries: Any, **given: Any) -> Any:
                if operation == "fold":
                    raise Unavailable("gone for a moment")
                return await call(operation, *entries, **given)

            frontier._call = broken  # type: ignore[assignment, method-assign]
            assert await frontier.add(requests(frontier, 40)) == 40
            assert blocks(store) == 0
            frontier._call = call  # type: ignore[method-assign]
            await frontier.add(requests(frontier, 4, 50))
            assert blocks(store) > 3

    asyncio.run(run())


def test_when_unfolding_fails_what_was_leased_is_leased(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=4) as (frontier,):
            await frontier.add(requests(frontier, 40))
            call = frontier._call

            async def broken(operation: str, *entries: Any, **given: Any) -> Any:
                if operation == "unfold":
                    raise Unavailable("out of memory")
                return await call(operation, *entries, **given)

            frontier._call = broken  # type: ignore[assignment, method-assign]
            lease = (await frontier.lease(1, batch=4, seconds=60)).leases[0]
            assert len(lease.requests) == 4
            await frontier.complete(outcomes(lease))
            with pytest.raises(Unavailable):
                await frontier.lease(1, batch=4, seconds=60)
            frontier._call = call  # type: ignore[method-assign]
            assert len(await drain(frontier)) == 36

    asyncio.run(run())


# Revisits


@pytest.mark.parametrize("strategy", ["bfs", "dfs", "random"])
def test_far_revisits_are_folded_and_come_back_with_their_state(
    redis_server: RedisServer, store: redis.Redis, strategy: str
) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=4, strategy=strategy) as (frontier,):
            store.hset(job_key("j"), "clock", "1700000000")
            some = requests(frontier, 60)
            await frontier.add(some)
            visited = 0
            while (grant := await frontier.lease(1, batch=4, seconds=60)).leases:
                (lease,) = grant.leases
                visited += len(lease.requests)
                status: Status = "failed" if visited % 3 else "done"
                await frontier.complete(outcomes(lease, status, again_in=604_800.0, state={"etag": str(visited)}))
            counts = await frontier.counts()
            assert (counts.done + counts.failed, counts.revisits, counts.finished) == (60, 60, True)
            assert (counts.queued, counts.delayed) == (0, 0)
            assert store.zcard(f"{PREFIX}later:{SITE}") == 2, "one slot for each status"
            one = next(request for request in some if request.key != int(request.url.rpartition("/")[2]) + 1)
            found = await frontier.lookup(one.url)
            assert found is not None
            assert found["state"] in ("done", "failed")
            assert 1700000000 + 604_800 <= found["due"] <= 1700000000 + 604_800 + 16_384
            assert not (await frontier.sites() or [{"queued": 0}])[0]["queued"]

            store.hset(job_key("j"), "clock", str(1700000000 + 604_799))
            assert not (await frontier.lease(1, batch=4, seconds=60)).leases
            store.hset(job_key("j"), "clock", str(1700000000 + 604_800 + 16_384))
            lease = (await frontier.lease(1, batch=4, seconds=60)).leases[0]
            await frontier.complete(outcomes(lease))
            counts = await frontier.counts()
            assert (counts.done + counts.failed, counts.revisits) == (len(lease.requests), 0)
            assert counts.queued == (await frontier.sites())[0]["queued"] == 60 - len(lease.requests)
            again = [*lease.requests, *await drain(frontier)]
            assert sorted(request.url for request in again) == sorted(request.url for request in some)
            assert all(request.state for request in again)
            counts = await frontier.counts()
            assert (counts.done, counts.failed, counts.revisits) == (60, 0, 0)
        assert not [field for field in store.hkeys(f"{PREFIX}site:{SITE}") if field[1:2] == b"-"], "nothing is left"

    asyncio.run(run())


def test_closing_a_site_forgets_its_far_revisits(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=4) as (frontier,):
            await frontier.add(requests(frontier, 70))
            for _ in range(7):
                lease = (await frontier.lease(1, batch=4, seconds=60)).leases[0]
                await frontier.complete(outcomes(lease, again_in=604_800.0))
            lease = (await frontier.lease(1, batch=4, seconds=60)).leases[0]
            before = await frontier.counts()
            assert before.revisits == before.done > 20
            await frontier.complete(outcomes(lease), notes=[note(lease, close="dark")])
            counts = await frontier.counts()
            assert (counts.revisits, counts.queued, counts.delayed, counts.finished) == (0, 0, 0, True)
            assert counts.done + counts.failed == 70
        assert not store.keys(f"{PREFIX.replace('{', '*').replace('}', '*')}queue:*")

    asyncio.run(run())


# Books


def test_closing_a_site_counts_what_is_in_its_blocks(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=4) as (frontier,):
            await frontier.add(requests(frontier, 100))
            assert (await frontier.sites())[0]["queued"] == 100
            lease = (await frontier.lease(1, batch=2, seconds=60)).leases[0]
            assert (await frontier.sites())[0]["queued"] == 98
            await frontier.complete(outcomes(lease), notes=[note(lease, close="dark")])
            counts = await frontier.counts()
            assert (counts.done, counts.failed, counts.queued, counts.finished) == (2, 98, 0, True)
        record = store.hgetall(f"{PREFIX}site:{SITE}")
        assert not {b"b0", b"h0", b"folded"} & set(record)

    asyncio.run(run())


def test_a_url_in_a_block_is_found(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=4) as (frontier,):
            some = [
                Request(url := f"https://{SITE}/{number}", urls.fingerprint(frontier.secret, url), SITE)
                for number in range(40)
            ]
            await frontier.add(some)
            for request in some:
                found = await frontier.lookup(request.url)
                assert found is not None
                assert (found["state"], found["request"]["url"]) == ("queued", request.url)

    asyncio.run(run())


@pytest.mark.parametrize("strategy", ["bfs", "dfs", "random"])
def test_an_unreadable_block_is_parked(
    redis_server: RedisServer, store: redis.Redis, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=4, strategy=strategy) as (frontier,):
            await frontier.add(requests(frontier, 42))
            elements = store.lrange(QUEUE, 0, -1)
            places = [place for place, element in enumerate(elements) if element[:1] == b"\xff"]
            for place in (places[0], places[2], places[-1]):
                store.lset(QUEUE, place, elements[place][:12] + b"nonsense")  # type: ignore[arg-type, operator]
            assert len(await drain(frontier)) == 42 - 3 * 4
            counts = await frontier.counts()
            assert (counts.done, counts.parked, counts.queued) == (42 - 3 * 4, 3 * 4, 0)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert caplog.text.count("4 requests of a.example cannot be read and are parked") == 3


def test_when_the_last_that_waits_is_a_damaged_block_the_job_ends(
    redis_server: RedisServer, store: redis.Redis
) -> None:
    async def run() -> None:
        async with workers(redis_server.url, size=2) as (frontier,):
            await frontier.add(requests(frontier, 10))
            assert blocks(store) == 4
            store.lset(QUEUE, 5, b"\xff\x00\x00\x02")  # type: ignore[arg-type]
            assert len(await drain(frontier)) == 8
            assert (await frontier.counts()).parked == 2

    asyncio.run(run())


def test_a_block_that_something_else_took_away_is_named(redis_server: RedisServer, store: redis.Redis) -> None:
    """F32."""

    async def run() -> None:
        async with workers(redis_server.url, size=4) as (frontier,):
            await frontier.add(requests(frontier, 20))
            store.ltrim(QUEUE, 0, 3)
            with pytest.raises(FrontierError, match=r"queue:a\.example:0 has lost a block"):
                await frontier.lease(1, batch=4, seconds=60)

    asyncio.run(run())


def test_blocks_survive_a_redis_that_is_killed() -> None:
    """F25."""

    async def run(server: RedisServer) -> None:
        async with workers(server.url, size=4) as (frontier,):
            some = requests(frontier, 100)
            await add_all(frontier, some)
            server.restart()
            with redis.Redis.from_url(server.url) as store:
                assert blocks(store) > 10
                check_books(store, frontier, 100)
                store.hset(job_key("j"), "clock", "4000000000")
            assert [request.url for request in await drain(frontier)] == [request.url for request in some]

    with RedisServer(appendonly="yes", appendfsync="always") as server:
        asyncio.run(run(server))


def test_valkey_packs_queues_too(valkey_server: RedisServer) -> None:
    async def run() -> None:
        with redis.Redis.from_url(valkey_server.url) as store:
            store.flushall()
            async with workers(valkey_server.url, size=4) as (frontier,):
                some = requests(frontier, 60)
                await add_all(frontier, some)
                assert blocks(store) > 5
                assert [request.url for request in await drain(frontier)] == [request.url for request in some]

    asyncio.run(run())


def test_a_long_queue_weighs_less_than_half(redis_server: RedisServer, store: redis.Redis) -> None:
    """Addresses with little in common, found on pages of other sites; the limit is the figure that is promised."""

    async def weigh(size: int) -> float:
        store.flushall()
        async with workers(redis_server.url, size=size) as (frontier,):
            before = store.info("memory")["used_memory"]
            some = []
            for number in range(20_000):
                words = f"{number * 7_919_317 % 1_000_003:06d}-{number * 104_729 % 999_983:06x}"
                url = f"https://{SITE}/articles/{words}/a-title-of-words"
                source = f"https://www.site-{number // 8 * 31 % 977:04d}.example/articles/{number // 8:09d}/title-words"
                key = urls.fingerprint(frontier.secret, url)
                some.append(Request(url, key, SITE, depth=1, referrer=source))
            await add_all(frontier, some, 1000)
            return float((store.info("memory")["used_memory"] - before) / 20_000)

    plain, folded = asyncio.run(weigh(0)), asyncio.run(weigh(128))
    print(f"{plain:.1f} bytes a queued URL, {folded:.1f} in blocks")
    assert folded < plain / 2
    assert folded < 60


def test_hints_reach_into_the_blocks_of_far_revisits(redis_server: RedisServer, store: redis.Redis) -> None:
    """Of 60 pages some are said to have changed: they come at once, each once, and the others at their time."""

    async def due(frontier: RedisFrontier) -> list[Request]:
        found: list[Request] = []
        while (grant := await frontier.lease(1, batch=3, seconds=60)).leases:
            found += grant.leases[0].requests
            await frontier.complete(outcomes(grant.leases[0]))
        return found

    async def run() -> None:
        async with workers(redis_server.url, size=4, recrawl="table") as (frontier,):
            store.hset(job_key("j"), "clock", "1700000000")
            some = requests(frontier, 60)
            await frontier.add(some)
            while (grant := await frontier.lease(1, batch=4, seconds=60)).leases:
                state = {"seen_at": 1_699_000_000.0, "etag": "x"}
                await frontier.complete(outcomes(grant.leases[0], again_in=604_800.0, state=state))
            output = [*some[:9], *some[20:29:2], some[59]]
            hints = [msgspec.structs.replace(request, meta={"lastmod": 1_699_999_000.0}) for request in output]
            old = [msgspec.structs.replace(request, meta={"lastmod": 1_600_000_000.0}) for request in some[30:40]]
            for _ in range(2):
                assert await frontier.add([*hints, *old]) == 0
                counts = await frontier.counts()
                assert (counts.done, counts.revisits, counts.queued, counts.delayed) == (60, 60, 0, 0)
            store.hset(job_key("j"), "clock", "1700000001")
            found = await due(frontier)
            assert sorted(request.url for request in found) == sorted(request.url for request in output)
            assert {(request.state or {}).get("hint") for request in found} == {1_699_999_000.0}
            counts = await frontier.counts()
            assert (counts.done, counts.revisits) == (60, 60 - len(output))
            store.hset(job_key("j"), "clock", str(1700000000 + 604_800 + 16_384))
            rest = await due(frontier)
            assert sorted(request.url for request in [*found, *rest]) == sorted(request.url for request in some)
            counts = await frontier.counts()
            assert (counts.done, counts.revisits, counts.delayed, counts.queued) == (60, 0, 0, 0)
        assert not [field for field in store.hkeys(f"{PREFIX}site:{SITE}") if field[1:2] == b"-"], "nothing is left"

    asyncio.run(run())
