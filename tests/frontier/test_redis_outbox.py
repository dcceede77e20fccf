"""The outbox in Redis: links for other servers are kept until those servers cannot lose them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
import redis

from gossamer.errors import Leaving, Unavailable
from gossamer.frontier.outbox import SEVERAL_RUNS, Box, Parcel, pack_links, unpack_links
from gossamer.frontier.placement import shard_of
from gossamer.frontier.redis.connection import server_name
from gossamer.frontier.redis.frontier import RedisFrontier
from gossamer.frontier.redis.server import client, job_key
from gossamer.frontier.redis.shards import open_redis
from gossamer.frontier.sharded import Sharded
from gossamer.model import Lease, Outcome, Request
from gossamer.settings import Settings
from gossamer.testing.harness import outcomes, page
from gossamer.testing.servers import RedisServer

SETTINGS = Settings(delay=0.0, robots=False, forget_seconds=10.0)
START = 1_700_000_000


class Pair:
    """A job with one shard on each of two servers, on a clock that is set by hand."""

    def __init__(self, frontier: Sharded, servers: list[RedisServer], stack: AsyncExitStack) -> None:
        self.frontier = frontier
        self.by_name = {server_name(server.url): server for server in servers}
        self._stack = stack

    def shard(self, number: int) -> RedisFrontier:
        found = self.frontier._shards[number]
        assert isinstance(found, RedisFrontier)
        return found

    def server(self, shard: int) -> RedisServer:
        # Where there is one alone, it has no name.
        return self.by_name.get(self.shard(shard).server) or next(iter(self.by_name.values()))

    async def store(self, shard: int) -> Any:
        found = client.Redis.from_url(self.server(shard).url)
        self._stack.push_async_callback(found.aclose)
        return found

    async def record(self, shard: int) -> dict[str, str]:
        found = await (await self.store(shard)).hgetall(job_key("j", shard))
        return {name.decode(): value.decode("latin-1") for name, value in found.items()}

    async def advance(self, seconds: float, *shards: int) -> None:
        for shard in shards or (0, 1):
            await (await self.store(shard)).hincrbyfloat(job_key("j", shard), "clock", seconds)

    async def leased(self, shard: int, *numbers: int) -> Lease:
        """A lease of pages in this shard."""
        await self.shard(shard).add([page(number, site(shard)) for number in numbers])
        return (await self.shard(shard).lease(1, batch=len(numbers), seconds=600)).leases[0]

    async def boxes(self, shard: int, seconds: float = 10.0) -> list[Box]:
        """A sweep with the runs of all servers as they are."""
        runs = {one.server: await one.run() for one in self.frontier._shards}
        return await self.shard(shard).sweep(runs, seconds=seconds)


def site(shard: int, of: int = 2) -> str:
    """The name of a site in this shard."""
    return next(name for n in range(1000) if shard_of(name := f"s{n}.test", of) == shard)


@asynccontextmanager
async def opened(
    servers: list[RedisServer], url: str = "", shards: str = "2", settings: Settings = SETTINGS
) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        for server in servers:
            async with client.Redis.from_url(server.url) as store:
                await store.flushall()
        frontier = await open_redis(url or ",".join(server.url for server in servers), "j", settings, shards=shards)
        stack.push_async_callback(frontier.aclose)
        assert isinstance(frontier, Sharded)
        pair = Pair(frontier, servers, stack)
        await pair.advance(START)
        yield pair


Test = Callable[[Pair], Awaitable[None]]


@pytest.fixture
def servers(redis_server: RedisServer, second_redis_server: RedisServer) -> list[RedisServer]:
    return [redis_server, second_redis_server]


@pytest.fixture
def logged() -> Iterator[list[RedisServer]]:
    """Servers that can be started again with what they have."""
    with RedisServer(appendonly="yes") as first, RedisServer(appendonly="yes") as second:
        yield [first, second]


def over(servers: list[RedisServer], test: Test) -> None:
    async def run() -> None:
        async with opened(servers) as pair:
            await test(pair)

    asyncio.run(run())


def link(number: int, shard: int) -> Request:
    return page(number, site(shard))


def parcel(server: str, run: str, *numbers: int) -> Parcel:
    return Parcel(server, run, pack_links([link(number, 1) for number in numbers]))


def test_a_page_and_its_parcel_are_committed_together(servers: list[RedisServer]) -> None:
    async def test(pair: Pair) -> None:
        lease = await pair.leased(0, 1)
        receipt = await pair.frontier.complete(outcomes(lease, links=(link(10, 1), link(11, 0))))
        assert (receipt.accepted, receipt.outbox) == (1, 1)
        (box,) = await pair.boxes(0)
        assert (box.server, box.run) == (pair.shard(1).server, await pair.shard(1).run())
        assert [one.key for one in unpack_links((await pair.shard(0).parcels(box, 9))[0])] == [10]
        assert await pair.boxes(1) == []
        assert (await pair.record(0))["outbox"] == "1"

    over(servers, test)


def test_a_stale_outcome_leaves_its_parcel_too(servers: list[RedisServer]) -> None:
    """Its links were delivered: the worker that completed the page relies on their being known there."""

    async def test(pair: Pair) -> None:
        lease = await pair.leased(0, 1)
        await pair.frontier.release([lease])
        receipt = await pair.frontier.complete(outcomes(lease, links=(link(10, 1),)))
        assert (receipt.accepted, receipt.stale, receipt.outbox) == (0, 1, 1)

    over(servers, test)


def test_parcels_need_no_outcome(servers: list[RedisServer]) -> None:
    async def test(pair: Pair) -> None:
        receipt = await pair.shard(0).complete([], parcels=[parcel("s", "r", 1), parcel("s", "r", 2, 3)])
        assert receipt.outbox == 2
        assert (await pair.shard(0).complete([])).outbox == 2

    over(servers, test)


def test_added_requests_are_kept_on_another_server(servers: list[RedisServer]) -> None:
    async def test(pair: Pair) -> None:
        await pair.frontier.add([link(1, 0), link(2, 1)])
        assert [box.server for box in await pair.boxes(0)] == [pair.shard(1).server]
        assert [box.server for box in await pair.boxes(1)] == [pair.shard(0).server]

    over(servers, test)


def test_nothing_is_completed_where_its_script_fails(servers: list[RedisServer]) -> None:
    """The page of a script that was refused waits as before, and nothing is in the outbox."""

    async def test(pair: Pair) -> None:
        lease = await pair.leased(0, 1)
        with pytest.raises(Unavailable):
            await pair.shard(0).complete(outcomes(lease), parcels=[parcel("s", "r", 1)], run=SEVERAL_RUNS)
        counts = await pair.shard(0).counts()
        assert (counts.leased, counts.done, counts.outbox) == (1, 0, 0)

    over(servers, test)


def test_parcels_come_out_in_their_order(servers: list[RedisServer]) -> None:
    async def test(pair: Pair) -> None:
        home = pair.shard(0)
        await home.complete([], parcels=[parcel("s", "r", number) for number in range(5)])
        (box,) = await home.sweep({}, seconds=10)
        assert (box.first, box.size) == (0, 5)
        found = [unpack_links(one)[0].key for one in await home.parcels(box, 3)]
        assert found == [0, 1, 2]
        await home.replace(box, 3, [])
        (box,) = await home.sweep({}, seconds=10)
        assert (box.first, box.size) == (3, 2)
        assert [unpack_links(one)[0].key for one in await home.parcels(box, 9)] == [3, 4]

    over(servers, test)


def test_a_box_ages_only_while_swept_in_the_present_run(servers: list[RedisServer]) -> None:
    async def test(pair: Pair) -> None:
        home = pair.shard(0)
        server, run = pair.shard(1).server, await pair.shard(1).run()
        await home.complete([], parcels=[parcel(server, run, 1)])
        assert len(await pair.boxes(0)) == 1
        # However long nobody looked, it counts for two seconds.
        await pair.advance(3600)
        assert len(await pair.boxes(0)) == 1
        # Another run, or none that is known, does not count at all.
        for runs in ({server: "another"}, {}):
            await pair.advance(3600)
            assert len(await home.sweep(runs, seconds=10)) == 1
        for _ in range(3):
            await pair.advance(2)
            assert len(await pair.boxes(0)) == 1
        # What comes in the meantime has its own time.
        await home.complete([], parcels=[parcel(server, run, 2)])
        await pair.advance(2)
        (box,) = await pair.boxes(0)
        assert (box.first, box.size) == (1, 1)
        for _ in range(4):
            await pair.advance(2)
            assert len(await pair.boxes(0)) == 1
        await pair.advance(2)
        assert await pair.boxes(0) == []
        assert (await pair.record(0))["outbox"] == "0"
        assert not await (await pair.store(0)).keys("*outbox*")

    over(servers, test)


def test_a_replacement_of_what_another_worker_has_replaced_changes_nothing(servers: list[RedisServer]) -> None:
    async def test(pair: Pair) -> None:
        home = pair.shard(0)
        await home.complete([], parcels=[parcel("s", "old", 1), parcel("s", "old", 2)])
        (box,) = await home.sweep({}, seconds=10)
        await home.replace(box, 2, [parcel("s", "new", 1, 2)])
        await home.replace(box, 2, [parcel("s", "newer", 1, 2)])
        (left,) = await home.sweep({}, seconds=10)
        assert (left.run, left.size) == ("new", 1)
        assert await home.parcels(box, 9) == [], "a box that is gone has nothing"
        # The same run again, as after a reader's delay: its numbers go on, so the old box is not meant.
        await home.complete([], parcels=[parcel("s", "old", 3)])
        await home.replace(box, 1, [])
        assert {one.run for one in await home.sweep({}, seconds=10)} == {"new", "old"}

    over(servers, test)


async def sweep_now(pair: Pair) -> None:
    pair.frontier._swept_at = 0.0
    await pair.frontier._sweep_outboxes()


def forget_all(server: RedisServer, shard: int) -> None:
    """Take the queue of a shard away, as a server does that comes back with an older state."""
    with redis.Redis.from_url(server.url) as store:
        for key in store.scan_iter("*"):
            if b":job" not in key and b":root" not in key and f":{shard}}}".encode() in key:
                store.delete(key)
        store.hset(job_key("j", shard), mapping={"known": 0, "queued": 0, "sites": 0, "run": "another"})


def test_a_box_of_another_run_is_delivered_again(logged: list[RedisServer]) -> None:
    async def test(pair: Pair) -> None:
        lease = await pair.leased(0, 1)
        await pair.frontier.complete(outcomes(lease, links=(link(10, 1),)))
        before = await pair.shard(1).run()
        forget_all(pair.server(1), 1)
        pair.server(1).restart()
        assert (await pair.shard(1).counts()).queued == 0
        await sweep_now(pair)
        assert await pair.shard(1).run() != before
        assert (await pair.shard(1).counts()).queued == 1
        (box,) = await pair.boxes(0)
        assert (box.run, box.size) == (await pair.shard(1).run(), 1)

    over(logged, test)


def test_a_box_of_a_server_that_has_left_the_job_is_delivered_again(servers: list[RedisServer]) -> None:
    async def test(pair: Pair) -> None:
        await pair.shard(0).complete([], parcels=[parcel("gone:1/0", "r", 10)])
        pair.frontier._outboxes.add(0)
        await sweep_now(pair)
        (box,) = await pair.boxes(0)
        assert box.server == pair.shard(1).server
        assert (await pair.shard(1).counts()).queued == 1

    over(servers, test)


def test_a_job_is_finished_only_when_its_outboxes_are_empty(servers: list[RedisServer]) -> None:
    async def test(pair: Pair) -> None:
        lease = await pair.leased(0, 1)
        await pair.frontier.complete(outcomes(lease, links=(link(10, 1),)))
        rest = (await pair.frontier.lease(9, batch=9, seconds=600)).leases
        await pair.frontier.complete([outcome for one in rest for outcome in outcomes(one)])
        grant = await pair.frontier.lease(9, batch=9, seconds=600)
        assert (grant.leases, grant.job, grant.outbox) == ((), "running", 1)
        assert grant.wait is not None
        assert grant.wait <= 1.0
        counts = await pair.frontier.counts()
        assert (counts.finished, counts.outbox, counts.queued, counts.leased) == (False, 1, 0, 0)
        for _ in range(7):
            await pair.boxes(0)
            await pair.advance(2)
        pair.frontier._last.clear()
        assert (await pair.frontier.lease(9, batch=9, seconds=600)).job == "finished"
        assert (await pair.frontier.counts()).finished

    over(servers, test)


def test_links_for_the_same_server_require_its_run(redis_server: RedisServer) -> None:
    """They are in no outbox; so a page is not completed by a run that may have forgotten them."""

    async def run() -> None:
        with RedisServer(appendonly="yes") as server:
            async with opened([server], shards="2") as pair:
                lease = await pair.leased(0, 1)
                done = outcomes(lease, links=(link(10, 1),))
                real = pair.shard(1).deliver

                async def delivered(requests: Any) -> tuple[int, str]:
                    answer = await real(requests)
                    server.restart()
                    return answer

                pair.shard(1).deliver = delivered  # type: ignore[method-assign]
                with pytest.raises(Unavailable):
                    await pair.frontier.complete(done)
                pair.shard(1).deliver = real  # type: ignore[method-assign]
                assert (await pair.shard(0).counts()).leased == 1
                receipt = await pair.frontier.complete(done)
                assert (receipt.accepted, receipt.outbox) == (1, 0)

    asyncio.run(run())


def test_a_shard_that_may_move_keeps_links_for_its_neighbors(redis_server: RedisServer) -> None:
    """Once it is on another server, the one that has the links may forget them, and no page of it comes again."""

    async def run() -> None:
        async with opened([redis_server], shards="2") as pair:
            lease = await pair.leased(0, 1)
            await (await pair.store(0)).hset(job_key("j", 0), "leaving", "127.0.0.1:1/0")
            done = outcomes(lease, links=(link(10, 1),))
            with pytest.raises(Leaving):
                await pair.frontier.complete(done)
            assert (await pair.shard(0).counts()).leased == 1
            receipt = await pair.frontier.complete(done)
            assert (receipt.accepted, receipt.outbox) == (1, 1)

    asyncio.run(run())


def test_a_restart_is_another_run_for_all_shards_and_workers(logged: list[RedisServer]) -> None:
    async def test(pair: Pair) -> None:
        run = await pair.shard(1).run()
        assert " " not in run
        other = await open_redis(pair.server(1).url, "j", worker="another")
        assert isinstance(other, Sharded)
        assert await other._shards[1].run() == run
        _, delivered_by = await pair.shard(1).deliver([link(5, 1)])
        assert delivered_by == run
        pair.server(1).restart()
        again = await pair.shard(1).run()
        assert again != run
        assert await other._shards[1].run() == again
        await other.aclose()

    over(logged, test)


def test_a_promotion_is_another_run_also_when_it_is_the_second_of_one_life() -> None:
    """A -> B -> A: the run id of A stays the same, and what B had acknowledged in between may be gone."""

    async def run() -> None:
        fast: dict[str, Any] = {"repl_diskless_sync_delay": "0"}
        with RedisServer(**fast) as a, RedisServer(replicaof=f"127.0.0.1 {a.port}", **fast) as b:
            with redis.Redis.from_url(a.url) as on_a, redis.Redis.from_url(b.url) as on_b:
                frontier = await open_redis(a.url, "j", SETTINGS)
                assert isinstance(frontier, RedisFrontier)
                first = await frontier.run()
                life = on_a.info("server")["run_id"]
                await linked(on_b, on_a)
                on_b.replicaof("NO", "ONE")
                there = await open_redis(b.url, "j")
                assert isinstance(there, RedisFrontier)
                promoted = await there.run()
                on_a.replicaof("127.0.0.1", str(b.port))
                await linked(on_a, on_b)
                on_a.replicaof("NO", "ONE")
                again = await frontier.run()
                assert on_a.info("server")["run_id"] == life
                assert len({first, promoted, again}) == 3
                await frontier.aclose()
                await there.aclose()

    asyncio.run(run())


async def linked(replica: Any, primary: Any) -> None:
    for _ in range(500):
        if replica.info("replication").get("master_link_status") == "up" and primary.wait(1, 1000):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the replica does not catch up")


def test_a_user_without_info_works_without_the_run(servers: list[RedisServer]) -> None:
    async def run() -> None:
        for server in servers:
            with redis.Redis.from_url(server.url) as store:
                store.execute_command("ACL", "SETUSER", "few", "reset", "on", ">x", "~*", "&*", "+@all", "-info")
        url = ",".join(server.url_as("few", "x") for server in servers)
        async with opened(servers, url) as pair:
            assert await pair.shard(1).run() == "unknown"
            lease = await pair.leased(0, 1)
            assert (await pair.frontier.complete(outcomes(lease, links=(link(10, 1),)))).accepted == 1
            for _ in range(7):
                await sweep_now(pair)
                await pair.advance(2)
            assert await pair.boxes(0) == []

    asyncio.run(run())


def test_a_receipt_names_the_run_that_took_it(logged: list[RedisServer]) -> None:
    """By this a worker knows when to send links again that it has sent before."""

    async def test(pair: Pair) -> None:
        lives = set()
        for number in range(3):
            lease = await pair.leased(1, 100 + number)
            done: list[Outcome] = outcomes(lease)
            lives.add((await pair.frontier.complete(done)).run)
            pair.server(1).restart()
            # Lanes rest for a lease after a restart.
            await pair.shard(1).run()
            await pair.advance(3600)
        assert len(lives) == 3

    over(logged, test)


@pytest.mark.parametrize(
    ("shard", "field", "change"),
    [(0, "reserved", -0.5), (1, "allowance", -0.5), (1, "allowance", 1.0)],
    ids=["what was given away", "what was taken", "what was given back"],
)
def test_a_limit_of_pages_is_kept_by_servers_that_forget_their_part_of_it(
    logged: list[RedisServer], shard: int, field: str, change: float
) -> None:
    async def test(pair: Pair, most: int) -> None:
        frontier, stored = pair.frontier, 0
        await frontier.add([page(number, f"s{number}.test") for number in range(1, 41)])
        for turn in range(100):
            leases = (await frontier.lease(2, batch=1, seconds=60)).leases
            stored += (await frontier.complete([one for lease in leases for one in outcomes(lease)])).accepted
            if turn == 2:
                # As if the last of it had not been synced.
                now = int((await pair.record(shard))[field])
                await (await pair.store(shard)).hincrby(job_key("j", shard), field, int(now * change))
                pair.server(shard).restart()
                await pair.shard(shard).run()
            if stored >= most and turn > 20:
                break
            if not leases:
                await asyncio.sleep(0.1)
                await pair.advance(61)
        assert stored == most
        await pair.advance(61)
        for _ in range(40):
            grant = await frontier.lease(2, batch=1, seconds=60)
            assert grant.leases == ()
            if grant.job == "finished":
                break
            await asyncio.sleep(0.1)
            await pair.advance(2)
        assert grant.job == "finished"

    async def run() -> None:
        async with opened(logged, settings=msgspec.structs.replace(SETTINGS, max_pages=20)) as pair:
            await test(pair, 20)

    asyncio.run(run())
