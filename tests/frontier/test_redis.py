"""Specifics of the Redis frontier: packed keys, hostile names, and an error for each failure."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Coroutine, Iterator
from itertools import islice
from typing import Any

import hiredis
import msgspec
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import ConfigError, FrontierError, JobMissing, SchemaMismatch, Unavailable
from gossamer.frontier.packing import expand, pack, shorten_url, unpack
from gossamer.frontier.redis.frontier import RedisFrontier
from gossamer.frontier.redis.server import KINDS, job_key, root_key
from gossamer.frontier.redis.shards import open_redis
from gossamer.model import Grant, Request
from gossamer.settings import Settings
from gossamer.testing.harness import keys, outcomes, page, pages
from gossamer.testing.network import FaultyRedisProxy
from gossamer.testing.servers import RedisServer
from gossamer.urls import fingerprint

AT_ONCE = Settings(delay=0.0, robots=False)
PASSWORD = "open-sesame"


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """The server as somebody else sees it, empty."""
    connection = redis.Redis.from_url(redis_server.url)
    connection.flushall()
    yield connection
    connection.close()


class Opened:
    """Frontiers that are closed at the end of a block."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._open: list[RedisFrontier] = []

    async def __aenter__(self) -> Opened:
        return self

    async def __aexit__(self, *_: object) -> None:
        for frontier in self._open:
            await frontier.aclose()

    async def __call__(self, job: str = "j", given: Settings | None = AT_ONCE, worker: str = "w") -> RedisFrontier:
        opened = await open_redis(self.url, job, given, worker=worker)
        assert isinstance(opened, RedisFrontier)
        self._open.append(opened)
        return self._open[-1]


async def take(frontier: RedisFrontier, limit: int = 100, *, batch: int = 100, seconds: float = 60.0) -> Grant:
    return await frontier.lease(limit, batch=batch, seconds=seconds)


async def crawl(frontier: RedisFrontier) -> list[int]:
    """Take and finish everything; the keys in their order."""
    found: list[int] = []
    while (grant := await take(frontier)).leases:
        for lease in grant.leases:
            found += keys(lease)
            await frontier.complete(outcomes(lease))
    assert grant.job == "finished"
    return found


def test_tokens_grow_though_redis_has_lost_its_last_second(redis_server: RedisServer, store: redis.Redis) -> None:
    async def play() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened()
            await frontier.add(pages(1, 2))
            before = store.hget(job_key("j"), "token")
            (lease,) = (await take(frontier, batch=1)).leases
            await frontier.release([lease])
            store.hset(job_key("j"), "token", before or "0")
            (again,) = (await take(frontier, batch=1)).leases
            assert again.token > lease.token

    asyncio.run(play())


def test_a_parked_request_is_no_suspect(redis_server: RedisServer, store: redis.Redis) -> None:
    async def play() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened(given=Settings(delay=0.0, robots=False, max_deliveries=2))
            await frontier.add(pages(1))
            for _ in range(2):
                (lease,) = (await take(frontier)).leases
                await frontier.abandon("w", blamed=keys(lease))
            assert (await frontier.counts()).parked == 1
            assert store.hget(job_key("j"), "lapsed") in (None, b"0")
            assert not store.exists(job_key("j")[:-3] + "lapses")

    asyncio.run(play())


def test_sites_of_a_region_and_those_of_nobody_have_their_turns(redis_server: RedisServer, store: redis.Redis) -> None:
    async def play() -> None:
        given = Settings(delay=0.0, robots=False, regions={"eu": (".de",)})
        frontier = await open_redis(redis_server.url, "j", given, worker="w", region="eu")
        sites = [f"{number}.{end}" for end in ("de", "com") for number in range(3)]
        await frontier.add([page(10 * place + n, site) for place, site in enumerate(sites) for n in range(4)])
        served = []
        for _ in sites:
            (lease,) = (await frontier.lease(1, batch=1, seconds=60)).leases
            served.append(lease.site)
            await frontier.complete(outcomes(lease))
        await frontier.aclose()
        assert sorted(served) == sorted(sites)

    asyncio.run(play())


async def raises(kind: type[FrontierError], call: Coroutine[Any, Any, Any]) -> str:
    """The words, with the hint, of an error of exactly this kind."""
    with pytest.raises(FrontierError) as caught:
        await call
    assert type(caught.value) is kind, caught.value
    return f"{caught.value} {caught.value.hint}"


async def insist(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Call again, as the engine does, while the frontier is not available."""
    for _ in range(20):
        try:
            return await call()
        except Unavailable:
            continue
    raise AssertionError("it stays unavailable")


def names(store: redis.Redis, job: str, kind: str) -> list[bytes]:
    return list(store.scan_iter(f"{job_key(job)[:-3]}{kind}:*", count=1000))


# Keys and entries


def test_a_hundred_thousand_keys_are_packed_and_exact(redis_server: RedisServer, store: redis.Redis) -> None:
    known = [number * 92_233_720_368_547 + 11 for number in range(100_000)]

    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened()
            for first in range(0, len(known), 10_000):
                some = [page(key, f"{key % 50}.example") for key in known[first : first + 10_000]]
                assert await frontier.add(some) == 10_000
                assert await frontier.add(some[::3]) == 0
            assert (await frontier.counts()).known == 100_000

    asyncio.run(run())
    buckets = names(store, "j", "seen")
    assert {store.object("encoding", bucket) for bucket in buckets} == {b"intset"}
    assert sum(store.scard(bucket) for bucket in buckets) == 100_000
    bytes_a_key = sum(store.memory_usage(bucket, samples=0) or 0 for bucket in buckets) / 100_000
    print(f"{bytes_a_key:.1f} bytes a known key")
    assert bytes_a_key < 12


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(0, (1 << 63) - 1), max_size=900), min_size=1, max_size=6), st.integers(0, 5000))
def test_no_key_is_lost_or_seen_twice_while_buckets_split(
    redis_server: RedisServer, batches: list[list[int]], step: int
) -> None:
    """Keys at random, and rows of them, which fill some buckets more than others."""
    store = redis.Redis.from_url(redis_server.url)
    store.flushall()
    rows = [[number * (1 << step % 40) + step for number in range(1500)] for step in (step, step + 1, step + 9)]

    async def run() -> None:
        seen: set[int] = set()
        async with Opened(redis_server.url) as opened:
            frontier = await opened()
            for batch in (*batches, *rows, *batches):
                assert await frontier.add([page(key) for key in batch]) == len(set(batch) - seen)
                seen |= set(batch)
        found = [int(key) for bucket in names(store, "j", "seen") for key in store.smembers(bucket)]
        assert sorted(found) == sorted(seen)

    asyncio.run(run())
    store.close()


def used(store: redis.Redis) -> int:
    """Bytes in use but for scripts, which have the same size for forty thousand URLs as for a million."""
    about = store.info("memory")
    return int(about["used_memory"] - about["used_memory_scripts"])


def test_a_url_costs_few_bytes_while_it_waits_and_fewer_when_it_is_done(
    redis_server: RedisServer, store: redis.Redis
) -> None:
    """URLs of 60 characters, found on pages of their site; the limits are the figures that are promised."""

    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened()
            sites = [f"www.site-{number:04d}.example" for number in range(10)]
            await frontier.add([Request(f"https://{site}/", number + 1, site) for number, site in enumerate(sites)])
            before, numbers = used(store), iter(range(1000, 41_000))
            for _ in range(8):
                for lease in (await take(frontier, batch=1)).leases:
                    links = []
                    for number in islice(numbers, 500):
                        url = f"https://{lease.site}/articles/{number:09d}/title-words"
                        assert len(url) == 60
                        links.append(Request(url, number * 230_584_300_921 + 7, lease.site, depth=1))
                    await frontier.complete(outcomes(lease, links=tuple(links)))
            counts = await frontier.counts()
            queued = (used(store) - before) / counts.queued
            await crawl(frontier)
            done = (used(store) - before) / counts.known
            print(f"{queued:.1f} bytes a queued URL, {done:.1f} a finished one")
            assert queued < 100
            assert done < 12

    asyncio.run(run())


@given(st.text(), st.text())
def test_an_address_comes_out_of_its_short_form_as_it_was(url: str, site: str) -> None:
    for whole in (url, f"https://{site}/{url}", f"http://{site}/{url}", f"https://{site}{url}", f"http://{url}"):
        assert expand(shorten_url(whole, site), site) == whole


def test_the_address_of_a_site_is_kept_without_its_origin() -> None:
    request = Request("https://a.example/x", 5, "a.example", depth=1, referrer="http://a.example/y")
    assert b"a.example" not in pack(request)
    assert unpack(pack(request), "a.example") == request


def test_tokens_grow_over_workers_restarts_and_a_clock_that_is_set_back(
    redis_server: RedisServer, store: redis.Redis
) -> None:
    async def run() -> None:
        tokens: list[int] = []
        async with Opened(redis_server.url) as opened:
            for step in range(6):
                store.hset(job_key("j"), "clock", str(2_000_000_000 - step * 1000)) if step else None
                frontier = await opened(worker=f"w{step}")
                await frontier.add(pages(2 * step, 2 * step + 1) + pages(100 + step, site="b.example"))
                grant = await take(frontier, batch=1)
                tokens += sorted(lease.token for lease in grant.leases)
                await frontier.release(grant.leases)
        assert len(tokens) == 12
        assert tokens == sorted(set(tokens))

    asyncio.run(run())


def test_a_clock_that_is_set_back_does_not_stop_the_crawl(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened(given=Settings(delay=5.0, robots=False))
            store.hset(job_key("j"), "clock", "2000000000")
            await frontier.add(pages(1, 2))
            await frontier.complete(outcomes((await take(frontier, batch=1)).leases[0]))
            store.hset(job_key("j"), "clock", "1900000000")
            assert not (await take(frontier)).leases
            store.hincrbyfloat(job_key("j"), "clock", 4.0)
            assert not (await take(frontier)).leases
            store.hincrbyfloat(job_key("j"), "clock", 1.1)
            assert (await take(frontier)).leases

    asyncio.run(run())


# Names and strangers

HOSTILE = ("a:b", "{a}", "a}{b", "*", "[a-z]?", "a\nb\r\n", "'\"\\", " ", "j:job", "é\U0001f577", "a" * 300)


def test_job_names_with_redis_pattern_characters_work(redis_server: RedisServer, store: redis.Redis) -> None:
    """H54: no two jobs share a key, nor two sites of one job, and a job's keys are all in one slot."""

    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            frontiers = {job: await opened(job) for job in HOSTILE}
            for job, frontier in frontiers.items():
                for number, site in enumerate(HOSTILE):
                    await frontier.add([Request(f"http://x/{job}", number + 1, site), Request("u", number + 50, site)])
            for job, frontier in frontiers.items():
                grant = await take(frontier)
                assert {lease.site for lease in grant.leases} == set(HOSTILE)
                for lease in grant.leases:
                    number = HOSTILE.index(lease.site)
                    assert keys(lease) == [number + 1, number + 50]
                    assert lease.requests[0].url == f"http://x/{job}"
                    await frontier.complete(outcomes(lease, links=(Request("v", number + 90, lease.site),)))
                assert sorted(await crawl(frontier)) == [number + 90 for number in range(len(HOSTILE))]
                counts = await frontier.counts()
                assert (counts.done, counts.sites) == (3 * len(HOSTILE), len(HOSTILE))

    asyncio.run(run())
    found = list(store.scan_iter(count=1000))
    tags = {key[key.index(b"{") + 1 : key.index(b"}")] for key in found if not key.endswith(b"}:root")}
    assert len(tags) == len(HOSTILE), "the hash tag is the job's alone"


@pytest.mark.parametrize(
    "stranger",
    [b"", b"x", pickle.dumps(print), b"12345678" + pickle.dumps(print), b"12345678\x91", b"12345678\x93\x01\x02\x03",
     b"12345678\x91\xa3abc", b"12345678\xc0", b"12345678" + b"\xff" * 100_000],
    ids=["empty", "short", "pickle", "key and pickle", "cut", "numbers", "no address", "nil", "long"],
)  # fmt: skip
def test_an_invalid_entry_is_parked(
    redis_server: RedisServer, store: redis.Redis, stranger: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """H56, H57: nothing of it is run, and the others in the queue are fetched."""

    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened()
            await frontier.add(pages(1, 2, 3) + pages(4, site="b.example"))
            store.lset(f"{job_key('j')[:-3]}queue:a.example:0", 1, stranger)  # type: ignore[arg-type]
            store.lset(f"{job_key('j')[:-3]}queue:b.example:0", 0, stranger)  # type: ignore[arg-type]
            assert sorted(await crawl(frontier)) == [1, 3]
            counts = await frontier.counts()
            assert (counts.done, counts.parked, counts.finished) == (2, 2, True)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "b.example cannot be read and is parked" in caplog.text
    assert len(caplog.text) < 20_000


def test_an_entry_that_is_there_twice_is_handed_out_once(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened()
            await frontier.add(pages(1, 2, 3))
            queue = f"{job_key('j')[:-3]}queue:a.example:0"
            store.lset(queue, 1, store.lindex(queue, 0))  # type: ignore[arg-type]
            assert await crawl(frontier) == [1, 3]
            counts = await frontier.counts()
            assert (counts.done, counts.parked, counts.leased, counts.finished) == (2, 1, 0, True)

    asyncio.run(run())


def test_an_invalid_delayed_entry_is_parked(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened()
            await frontier.add(pages(1, 2))
            lease = (await take(frontier)).leases[0]
            await frontier.complete(outcomes(lease, "retry", again_in=0.0))
            later = f"{job_key('j')[:-3]}later:a.example"
            victim = store.zrange(later, 0, 0)[0]
            store.zrem(later, victim)  # type: ignore[arg-type]
            store.zadd(later, {pickle.dumps(print): 1.0})
            assert len(await crawl(frontier)) == 1
            assert (await frontier.counts()).parked == 1

    asyncio.run(run())


def test_a_job_of_another_version_is_refused_at_once_and_in_the_middle(
    redis_server: RedisServer, store: redis.Redis
) -> None:
    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened()
            await frontier.add(pages(1))
            before = {key: store.hgetall(key) for key in (root_key("j"), job_key("j"))}
            for other in ("99", "x", ""):
                for key in before:
                    store.hset(key, "format", other)
                for given in (None, AT_ONCE):
                    assert "version" in await raises(SchemaMismatch, opened("j", given))
                assert "version" in await raises(SchemaMismatch, take(frontier))
                for key, record in before.items():
                    assert store.hgetall(key) == {**record, b"format": other.encode()}, "it is left as it was"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("field", "value"),
    [("settings", "{"), ("settings", '{"nonsense": 1}'), ("settings", None), ("settings", "3"), ("secret", None)],
)
def test_a_record_that_cannot_be_read_is_refused_with_words(
    redis_server: RedisServer, store: redis.Redis, field: str, value: str | None
) -> None:
    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            await opened()
            store.hset(root_key("j"), field, value) if value is not None else store.hdel(root_key("j"), field)
            assert "'j'" in await raises(SchemaMismatch, opened("j", None))

    asyncio.run(run())


def test_a_key_that_is_no_record_is_refused(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            store.set(root_key("j"), "something else")
            await raises(FrontierError, opened("j", None))
            await raises(FrontierError, opened())
            assert store.get(root_key("j")) == b"something else"

    asyncio.run(run())


def test_several_jobs_in_one_redis_are_isolated(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            one, two = await opened("one"), await opened("two", Settings(delay=0.0, strategy="dfs"))
            assert one.secret != two.secret
            await one.add(pages(1, 2, 3))
            await two.add(pages(3, 4))
            assert (await two.lease(5, batch=1, seconds=60)).leases[0].requests[0].key == 4
            assert await crawl(one) == [1, 2, 3]
            assert (await two.counts()).leased == 1
            await one.steer("paused")
            assert (await two.counts()).job == "running"
            assert (await opened("two", None)).settings.strategy == "dfs"

    asyncio.run(run())


# Passwords


def test_a_password_is_used_and_never_shown() -> None:
    async def run(server: RedisServer) -> None:
        async with Opened(server.url) as opened:
            frontier = await opened()
            await frontier.add(pages(1))
            said = []
            for address in (f"redis://:wrong-{PASSWORD}@127.0.0.1:{server.port}/0", f"redis://127.0.0.1:{server.port}"):
                words = await raises(FrontierError, open_redis(address, "j"))
                assert "password" in words
                said.append(words)
            said.append(await raises(Unavailable, open_redis(f"redis://:{PASSWORD}@127.0.0.1:1/0", "j")))
            for address in (
                f"redis://:a/{PASSWORD}@127.0.0.1:1",
                f"redis://x:{PASSWORD}@127.0.0.1:port",
                "redis://:a@b:70000",
            ):
                with pytest.raises((ConfigError, FrontierError)) as caught:
                    await open_redis(address, "j")
                assert caught.value.__cause__ is None or isinstance(caught.value, FrontierError)
                said.append(f"{caught.value} {caught.value.hint}")
            server.kill()
            said.append(await raises(Unavailable, take(frontier)))
            assert PASSWORD not in " ".join(said), said
            assert PASSWORD not in repr(frontier)

    with RedisServer(password=PASSWORD) as server:
        asyncio.run(run(server))


# A Redis that fails


def test_a_redis_that_comes_back_empty_has_no_job_and_is_not_finished() -> None:
    """F26."""

    async def run(server: RedisServer) -> None:
        async with Opened(server.url) as opened:
            frontier = await opened()
            await frontier.add(pages(1, 2))
            lease = (await take(frontier, batch=1)).leases[0]
            server.restart()
            calls = (
                lambda: take(frontier),
                frontier.counts,
                lambda: frontier.complete(outcomes(lease)),
                lambda: frontier.extend([lease], seconds=60),
                lambda: frontier.add(pages(3)),
                lambda: frontier.release([lease]),
                lambda: opened("j", None),
            )
            for call in calls:
                assert "'j'" in await raises(JobMissing, call())
            assert redis.Redis.from_url(server.url).dbsize() == 0, "nothing is made of it"

    with RedisServer() as server:
        asyncio.run(run(server))


def test_f31_a_grant_names_a_new_run_after_a_fail_over() -> None:
    """A client reconnects automatically; what the worker remembers may still be lost on the server."""

    async def run(server: RedisServer) -> None:
        async with Opened(server.url) as opened:
            frontier = await opened()
            await frontier.add(pages(1, 2, 3))
            first, second = await take(frontier, batch=1), await take(frontier)
            assert first.run == second.run != 0
            server.restart()
            assert (await take(frontier)).run not in (0, first.run)

    with RedisServer(appendonly="yes") as server:
        asyncio.run(run(server))


def test_flushall_is_a_missing_job(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened()
            await frontier.add(pages(1))
            store.flushall()
            await raises(JobMissing, take(frontier))

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["site:a.example", "queue:a.example:0", "ready:", "batch:b.example:0"])
def test_a_deleted_key_is_detected_and_named(redis_server: RedisServer, store: redis.Redis, kind: str) -> None:
    """F32."""

    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened()
            store.hset(job_key("j"), "clock", "1000")
            await frontier.add(pages(1, site="b.example"))
            lease = (await take(frontier)).leases[0]
            await frontier.add(pages(2, 3))
            if not kind.startswith("batch"):
                await frontier.complete(outcomes(lease))
            assert store.delete(f"{job_key('j')[:-3]}{kind}") == 1
            store.hincrbyfloat(job_key("j"), "clock", 100.0)
            assert kind in await raises(FrontierError, take(frontier))

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["site:a.example", "queue:a.example:0", "ready:", "ranks:a.example", "held", "seen:2"])
def test_a_key_of_the_wrong_kind_is_named(redis_server: RedisServer, store: redis.Redis, kind: str) -> None:
    """F32; also in a job whose name is a pattern."""

    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            other, frontier = await opened("job"), await opened("j*[b]")
            await other.add(pages(1))
            await frontier.add(pages(1))
            key = f"{job_key('j*[b]')[:-3]}{kind}"
            store.delete(key)
            store.setbit(key, 7, 1)
            words = ""
            for call in (lambda: frontier.add(pages(2)), lambda: take(frontier)):
                try:
                    await call()
                except FrontierError as error:
                    words = f"{type(error).__name__}: {error}"
                    break
            assert words.startswith("FrontierError")
            assert f"{kind} is not a {KINDS[kind.partition(':')[0]]}" in words

    asyncio.run(run())


def replies(data: bytes) -> int:
    """How many answers came in one piece: those to the two commands of a greeting may."""
    reader = hiredis.Reader()
    reader.feed(data)
    return sum(1 for _ in iter(reader.gets, False)) or 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", Unavailable),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", Unavailable),
        ("READONLY You can't write against a read only replica.", Unavailable),
        (
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            Unavailable,
        ),
        ("OOM command not allowed when used memory > 'maxmemory'.", Unavailable),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Unavailable),
        ("NOREPLICAS Not enough good replicas to write.", Unavailable),
        ("CLUSTERDOWN The cluster is down", Unavailable),
        ("ERR max number of clients reached", Unavailable),
        ("NOAUTH Authentication required.", FrontierError),
        ("WRONGPASS invalid username-password pair or user is disabled.", FrontierError),
        ("NOPERM this user has no permissions to run the 'evalsha' command", FrontierError),
        ("ERR something that nobody has heard of", FrontierError),
    ],
)
def test_redis_errors_are_temporary_or_final(
    redis_server: RedisServer, store: redis.Redis, answer: str, kind: type[FrontierError]
) -> None:
    """F33: what passes is retried by the engine; what does not is final."""

    async def run() -> None:
        with FaultyRedisProxy(redis_server.port) as proxy:
            async with Opened(redis_server.url_at(proxy.port)) as opened:
                frontier = await opened()
                # The server knows the script of a lease from here on; else its answer would be that it does not.
                await take(frontier)
                await frontier.add(pages(1))
                proxy.rewrite = lambda data: f"-{answer}\r\n".encode() * replies(data)
                for call in (lambda: take(frontier), frontier.counts):
                    await raises(kind, call())
                await raises(kind, opened())
                proxy.rewrite = None
                # The server did what was asked, and only its answer was lost: another site is still to be had.
                await frontier.add(pages(2, site="b.example"))
                assert keys(*(await take(frontier)).leases) == [2]

    asyncio.run(run())


def test_a_full_redis_holds_up_what_needs_room_and_goes_on_when_it_has_some() -> None:
    """F27: links wait, outcomes without links and renewals do not, nothing is half done."""

    async def run(server: RedisServer, store: redis.Redis) -> None:
        async with Opened(server.url) as opened:
            frontier = await opened()
            await frontier.add(pages(1, 2, 3))
            lease = (await take(frontier)).leases[0]
            store.config_set("maxmemory", "1")
            links = tuple(pages(*range(10, 30)))
            for call in (
                lambda: frontier.add(pages(4)),
                lambda: take(frontier),
                lambda: frontier.complete(outcomes(lease, links=links)),
            ):
                assert "memory" in await raises(Unavailable, call())
            assert await frontier.extend([lease], seconds=60) == [lease]
            assert (await frontier.complete(outcomes(lease)[:1])).accepted == 1
            counts = await frontier.counts()
            assert (counts.known, counts.leased, counts.done) == (3, 2, 1)
            store.config_set("maxmemory", "0")
            assert (await frontier.complete(outcomes(lease, links=links))).accepted == 2
            assert sorted(await crawl(frontier)) == list(range(10, 30))

    with RedisServer(maxmemory_policy="noeviction") as server:
        asyncio.run(run(server, redis.Redis.from_url(server.url)))


def test_a_redis_that_evicts_keys_is_refused() -> None:
    """F27."""

    async def run(server: RedisServer) -> None:
        assert "noeviction" in await raises(FrontierError, open_redis(server.url, "j", AT_ONCE))
        store = redis.Redis.from_url(server.url)
        store.config_set("maxmemory-policy", "volatile-lru")
        await (await open_redis(server.url, "j", AT_ONCE)).aclose()
        store.close()

    with RedisServer(maxmemory="100mb", maxmemory_policy="allkeys-lru") as server:
        asyncio.run(run(server))


def test_a_user_with_few_rights_may_crawl(redis_server: RedisServer, store: redis.Redis) -> None:
    """Managed servers often forbid INFO and CONFIG: then what they say cannot be checked."""
    store.acl_setuser("crawler", enabled=True, passwords=["+secret"], keys=["gossamer:*"], channels=["gossamer:*"],
                      categories=["+@all", "-@admin", "-@dangerous"])  # fmt: skip

    async def run() -> None:
        async with Opened(f"redis://crawler:secret@127.0.0.1:{redis_server.port}/0") as opened:
            frontier = await opened()
            await frontier.add(pages(1))
            assert await crawl(frontier) == [1]

    try:
        asyncio.run(run())
    finally:
        store.acl_deluser("crawler")


def test_a_lost_answer_costs_nothing() -> None:
    """F29: a claim that nobody got returns by its lease, an insert is made once, an outcome counts once."""

    async def run(server: RedisServer) -> None:
        store = redis.Redis.from_url(server.url)
        with FaultyRedisProxy(server.port) as proxy:
            async with Opened(server.url_at(proxy.port)) as opened:
                frontier = await opened(given=Settings(delay=0.0, robots=False, max_deliveries=9))
                await frontier.add(pages(0))
                store.hset(job_key("j"), "clock", "1000")
                proxy.fault, proxy.every = "mute", 7
                done: list[int] = []
                for round_number in range(60):
                    new = pages(*range(10 * round_number, 10 * round_number + 10), site=f"{round_number % 7}.example")
                    await insist(lambda new=new: frontier.add(new))  # type: ignore[misc]
                    for lease in (await insist(lambda: take(frontier, 3, batch=4, seconds=30))).leases:
                        found = outcomes(lease, links=(page(10_000 + lease.token % 97),))
                        receipt = await insist(lambda found=found: frontier.complete(found))  # type: ignore[misc]
                        assert receipt.accepted + receipt.repeated == len(lease.requests)
                        done += keys(lease)
                    store.hincrbyfloat(job_key("j"), "clock", 10.0)
                assert proxy.faults > 20
                proxy.fault = ""
                while (grant := await take(frontier)).job != "finished":
                    store.hincrbyfloat(job_key("j"), "clock", 100.0)
                    for lease in grant.leases:
                        assert (await frontier.complete(outcomes(lease))).accepted == len(lease.requests)
                        done += keys(lease)
                counts = await frontier.counts()
                assert len(done) == len(set(done)), "nothing is done twice"
                assert (counts.done, counts.known, counts.parked) == (len(done), len(done), 0)
                assert counts.finished
                assert set(range(600)) <= set(done)
        store.close()

    with RedisServer() as server:
        asyncio.run(run(server))


def test_a_restart_that_may_have_lost_a_lease_makes_lanes_wait_for_its_end(
    redis_server: RedisServer, store: redis.Redis
) -> None:
    """P5: a worker whose lease the server forgot goes on with its site until the lease would have ended."""

    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            # Other tests promote this server: then lanes rest for `forget_seconds` more.
            frontier = await opened(given=Settings(delay=2.0, robots=False, forget_seconds=5.0))
            store.hset(job_key("j"), "clock", "1000")
            for number, site in enumerate(("lost", "held", "idle")):
                await frontier.add(pages(*range(number * 10, number * 10 + 5), site=site))
            leases = {lease.site: lease for lease in (await take(frontier, batch=1, seconds=30)).leases}
            # What a crash does that loses the last second: the lease of one site was never written down.
            prefix = job_key("j")[:-3]
            lost = leases["lost"]
            store.rpush(f"{prefix}front:lost", store.hvals(f"{prefix}batch:lost:0")[0][4:])
            store.delete(f"{prefix}batch:lost:0")
            store.hdel(f"{prefix}held", str(lost.token))
            store.hset(f"{prefix}site:lost", mapping={"t0": "0", "leased": "0"})
            store.zadd(f"{prefix}ready:", {"0 lost": 1000})
            store.hincrby(job_key("j"), "leased", -1)
            store.hincrby(job_key("j"), "queued", 1)
            await frontier.release([leases["idle"]])
            store.hset(job_key("j"), "run", "that of the server before it was started again")
            store.hincrbyfloat(job_key("j"), "clock", 5.0)
            assert (await take(frontier)).leases == (), "nobody knows which of them is being fetched from"
            assert await frontier.extend([leases["held"]], seconds=30) != [], "a lease that it knows goes on"
            await frontier.complete(outcomes(leases["held"]))
            store.hincrbyfloat(job_key("j"), "clock", 2.1)
            assert [lease.site for lease in (await take(frontier)).leases] == ["held"], "its clock is known"
            store.hincrbyfloat(job_key("j"), "clock", 35.0)
            grant = await take(frontier)
            assert sorted(lease.site for lease in grant.leases) == ["idle", "lost"]

    asyncio.run(run())


def test_lanes_rest_longer_after_a_promotion() -> None:
    """P5: a primary that was replaced may grant and extend leases until it is demoted, for `forget_seconds` at most."""
    given = Settings(delay=0.0, robots=False, forget_seconds=7.0)

    async def first_wait(server: RedisServer) -> float:
        async with Opened(server.url) as opened:
            grant = await take(await opened(given=given), seconds=30)
            assert grant.leases == ()
            assert grant.wait is not None
            return grant.wait

    async def begin(server: RedisServer) -> None:
        async with Opened(server.url) as opened:
            frontier = await opened(given=given)
            await frontier.add(pages(*range(5), site="a"))
            await frontier.release((await take(frontier, seconds=30)).leases)

    options: dict[str, Any] = {"appendonly": "yes", "repl_diskless_sync_delay": "0"}
    with RedisServer(**options) as first:
        asyncio.run(begin(first))
        with RedisServer(replicaof=f"127.0.0.1 {first.port}", **options) as second:
            with redis.Redis.from_url(second.url) as store:
                while store.info("replication")["master_link_status"] != "up":
                    store.ping()
                store.execute_command("REPLICAOF", "NO", "ONE")
            assert 36 < asyncio.run(first_wait(second)) < 37.5, "the longest lease and forget_seconds"
        first.restart()
        assert 29 < asyncio.run(first_wait(first)) < 30.5


def test_a_url_can_be_looked_up_wherever_it_is(redis_server: RedisServer, store: redis.Redis) -> None:
    async def run() -> None:
        async with Opened(redis_server.url) as opened:
            frontier = await opened()
            found = [
                Request(url := f"https://a.example/{number}", fingerprint(frontier.secret, url), "a.example")
                for number in range(2000)
            ]
            await frontier.add(found)
            lease = (await take(frontier, 1, batch=3)).leases[0]
            first, second, third = (request.url for request in lease.requests)
            results = outcomes(lease)
            await frontier.complete([msgspec.structs.replace(results[0], status="retry", again_in=60.0), results[1]])
            states = {url: await frontier.lookup(url) for url in (first, second, third, *(r.url for r in found[-1:]))}
            assert [about and about["state"] for about in states.values()] == ["delayed", "known", "leased", "queued"]
            assert (states[third] or {})["worker"] == "w"
            middle = await frontier.lookup(found[1000].url)
            assert middle is not None
            assert (middle["state"], middle["request"]["url"]) == ("queued", found[1000].url), "inside a block"
            assert await frontier.lookup("https://a.example/never") is None
            assert (await frontier.sites())[0]["queued"] == 1997

    asyncio.run(run())
