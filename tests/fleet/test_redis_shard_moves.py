"""Moving shards between Redis servers that may lose data: every step of the protocol in `redis/move.py`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from gossamer.errors import ConfigError, GossamerError, JobMissing, Unavailable
from gossamer.frontier.outbox import wait_for_stable_run
from gossamer.frontier.placement import placement
from gossamer.frontier.redis import move, routing
from gossamer.frontier.redis.connection import RedisConnections, addresses, server_name
from gossamer.frontier.redis.frontier import RedisFrontier
from gossamer.frontier.redis.move import RedisShardMove, spread
from gossamer.frontier.redis.routing import Copy, look, step
from gossamer.frontier.redis.server import job_key
from gossamer.frontier.redis.shards import open_redis
from gossamer.model import Lease
from gossamer.settings import Settings
from gossamer.testing.harness import outcomes, page
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parent))
from powercut import forget, logged_servers

AT_ONCE = Settings(delay=0.0, robots=False)
MOVER: Any = move
ROUTING: Any = routing
"""The module, whose steps the tests replace."""
Call = Callable[[], Awaitable[Any]]


class Moving:
    """A job with one shard, and two servers that it may be on; it begins on the first."""

    def __init__(self, servers: list[RedisServer], frontier: RedisFrontier) -> None:
        self.servers = servers
        self.frontier = frontier
        self.links = RedisConnections([server.url for server in servers])
        self.names = [server_name(server.url) for server in servers]

    async def to(self, number: int) -> list[RedisShardMove]:
        """All of it, to this server."""
        ours, both = self.names[number], ",".join(server.url for server in self.servers)
        MOVER.placement = lambda count, _: [ours] * count
        try:
            return [move async for move in spread(both, "j", forget_seconds=0.05)]
        finally:
            MOVER.placement = placement

    async def until(self, stopped: str, number: int = 1) -> None:
        """As far as the mover comes that dies before this step."""
        real = MOVER.step

        async def dying(
            links: RedisConnections, server: str, job: str, shard: int, operation: str, **given: Any
        ) -> Any:
            if operation in (stopped, "kill", "stay"):
                raise _Died(operation)
            return await real(links, server, job, shard, operation, **given)

        MOVER.step = ROUTING.step = dying
        try:
            with pytest.raises(_Died):
                await self.to(number)
        finally:
            MOVER.step = ROUTING.step = real

    async def copy(self, number: int) -> Copy | None:
        return await look(self.links, self.names[number], "j", 0)

    async def place(self) -> int:
        """Who serves it, to a client that knows nothing."""
        other = await open_redis(",".join(server.url for server in self.servers), "j")
        assert isinstance(other, RedisFrontier)
        try:
            await other.counts()
            return self.names.index(other._server or self.links.names[0])
        finally:
            await other.aclose()

    def keys(self, number: int) -> int:
        """Keys of the shard, without its record."""
        with redis.Redis.from_url(self.servers[number].url) as store:
            return sum(not key.endswith(b"}:job") for key in store.scan_iter("gossamer:{j:0}:*", count=1000))

    async def forgetting(self, number: int, call: Call) -> None:
        """This server loses everything written from now on; the others keep it."""
        here = asyncio.get_running_loop()
        await asyncio.to_thread(
            forget, self.servers[number], lambda: asyncio.run_coroutine_threadsafe(_as_coroutine(call), here).result(60)
        )
        await asyncio.to_thread(self.servers[number].start)

    async def whole(self) -> None:
        """All 50 pages are there, once."""
        counts = await self.frontier.counts()
        assert (counts.known, counts.queued + counts.leased + counts.done) == (50, 50)


class _Died(GossamerError):
    pass


async def _as_coroutine(call: Call) -> Any:
    return await call()


@pytest.fixture
def servers() -> Iterator[list[RedisServer]]:
    with logged_servers(2) as running:
        yield running


@asynccontextmanager
async def begun(servers: list[RedisServer]) -> AsyncIterator[Moving]:
    frontier = await open_redis(servers[0].url, "j", AT_ONCE, worker="w")
    assert isinstance(frontier, RedisFrontier)
    moving = Moving(servers, frontier)
    frontier._links = RedisConnections([server.url for server in servers])
    try:
        await frontier.add([page(number, f"{number % 5}.test") for number in range(50)])
        yield moving
    finally:
        await frontier.aclose()
        await moving.links.aclose()


def over(servers: list[RedisServer], test: Callable[[Moving], Awaitable[None]]) -> None:
    async def run() -> None:
        async with begun(servers) as moving:
            await test(moving)

    asyncio.run(run())


async def lease(moving: Moving) -> Lease:
    return (await moving.frontier.lease(1, batch=10, seconds=20)).leases[0]


def test_a_source_keeps_its_data_until_the_target_cannot_lose_them(servers: list[RedisServer]) -> None:
    async def test(moving: Moving) -> None:
        held = await lease(moving)
        both = ",".join(server.url for server in servers)
        MOVER.placement = lambda *_: [moving.names[1]]
        try:
            mover = spread(both, "j", forget_seconds=1.5)
            assert (await anext(mover)).target == moving.names[1]
        finally:
            MOVER.placement = placement
        assert moving.keys(0) == moving.keys(1) > 0
        assert await moving.place() == 1
        began = time.monotonic()
        assert [move async for move in mover] == []
        assert time.monotonic() - began >= 1.5
        assert moving.keys(0) == 0
        assert (await moving.frontier.complete(outcomes(held))).accepted == 10
        source, target = await moving.copy(0), await moving.copy(1)
        assert source is not None
        assert target is not None
        assert (source.moved, source.is_kept, target.generation - source.generation) == (moving.names[1], False, 1)
        assert (target.moved, target.arriving, target.leaving) == ("", "", "")
        await moving.whole()

    over(servers, test)


def test_calls_go_on_after_an_announcement_that_nobody_follows_up(servers: list[RedisServer]) -> None:
    async def test(moving: Moving) -> None:
        await moving.until("depart")
        assert await moving.place() == 0
        servers[0].restart()
        await moving.whole()
        servers[1].kill()
        await moving.whole()
        servers[0].restart()
        with pytest.raises(Unavailable):
            await moving.frontier.counts()
        servers[1].start()
        await moving.whole()
        await moving.to(1)
        assert await moving.place() == 1

    over(servers, test)


@pytest.mark.parametrize("step_before", ["prepare", "leave"])
def test_a_mover_that_dies_before_the_source_has_left_stops_nobody(
    servers: list[RedisServer], step_before: str
) -> None:
    async def test(moving: Moving) -> None:
        await moving.until(step_before)
        with pytest.raises(Unavailable):
            await moving.frontier.counts()
        with redis.Redis.from_url(servers[0].url) as store:
            assert int(store.hget(job_key("j"), "moving_until") or 0) - store.time()[0] <= 15
            store.hset(job_key("j"), "moving_until", 0)
        await moving.whole()
        assert await moving.place() == 0
        held = await lease(moving)
        await moving.to(1)
        assert await moving.place() == 1
        assert (await moving.frontier.complete(outcomes(held))).accepted == 10
        await moving.whole()

    over(servers, test)


def test_a_mover_that_dies_after_the_source_has_left_leaves_the_opening_to_clients(servers: list[RedisServer]) -> None:
    async def test(moving: Moving) -> None:
        await moving.until("settle")
        found = await moving.copy(1)
        assert found is not None
        assert found.arriving == moving.names[0]
        await moving.whole()
        assert await moving.place() == 1
        found = await moving.copy(1)
        assert found is not None
        assert found.is_live
        await moving.to(1)
        assert moving.keys(0) == 0

    over(servers, test)


def test_a_source_that_forgets_the_move_follows_the_open_copy(servers: list[RedisServer]) -> None:
    async def test(moving: Moving) -> None:
        await moving.until("depart")

        async def moved_and_used() -> None:
            await moving.until("bury")
            held = await lease(moving)
            await moving.frontier.complete(outcomes(held))

        await moving.forgetting(0, moved_and_used)
        assert await moving.place() == 1
        assert (await moving.frontier.counts()).done == 10
        await moving.whole()
        await moving.to(1)
        assert moving.keys(0) == 0
        await moving.whole()

    over(servers, test)


def test_a_source_that_forgets_the_move_kills_the_closed_copy(servers: list[RedisServer]) -> None:
    async def test(moving: Moving) -> None:
        await moving.until("depart")
        held = await lease(moving)
        await moving.forgetting(0, lambda: moving.until("settle"))
        closed = await moving.copy(1)
        assert closed is not None
        assert await moving.place() == 0
        assert await moving.copy(1) is None
        with pytest.raises(redis.RedisError, match="JOBMISSING"):
            await step(moving.links, moving.names[1], "j", 0, "settle", nonce=closed.nonce)
        await moving.whole()
        assert (await moving.frontier.lease(1, batch=1, seconds=2)).leases == (), "lanes rest"
        assert (await moving.frontier.complete(outcomes(held))).accepted == 10
        await moving.to(1)
        await moving.whole()
        assert await moving.place() == 1

    over(servers, test)


def test_a_target_that_forgets_the_shard_gives_it_back(servers: list[RedisServer]) -> None:
    async def test(moving: Moving) -> None:
        held = await lease(moving)

        async def moved_and_used() -> None:
            await moving.until("bury")
            await moving.frontier.complete(outcomes(held))
            assert (await moving.frontier.counts()).done == 10

        await moving.forgetting(1, moved_and_used)
        # The client was with the target.
        assert moving.frontier._server == moving.names[1]
        assert (await moving.frontier.counts()).done == 0
        await moving.whole()
        assert await moving.place() == 0
        assert (await moving.frontier.lease(1, batch=1, seconds=2)).leases == (), "lanes rest"
        assert (await moving.frontier.complete(outcomes(held))).accepted == 10
        await moving.to(1)
        assert await moving.place() == 1
        assert moving.keys(0) == 0
        await moving.whole()

    over(servers, test)


def test_a_target_that_remembers_an_earlier_stay_alone_gives_the_shard_back(servers: list[RedisServer]) -> None:
    """Each server then names the other one."""

    async def test(moving: Moving) -> None:
        await moving.to(1)
        await moving.to(0)
        await moving.forgetting(1, lambda: moving.until("bury"))
        source, target = await moving.copy(0), await moving.copy(1)
        assert source is not None
        assert target is not None
        assert (source.moved, target.moved) == (moving.names[1], moving.names[0])
        await moving.whole()
        assert await moving.place() == 0
        await moving.to(1)
        assert await moving.place() == 1
        await moving.whole()

    over(servers, test)


@pytest.mark.parametrize("first", ["client", "mover"])
def test_a_target_with_a_part_of_the_shard_gives_it_back(servers: list[RedisServer], first: str) -> None:
    """It has come back to a moment at which the copy had begun: its record names the generation, and has no data."""

    async def test(moving: Moving) -> None:
        await moving.until("bury")
        source = await moving.copy(0)
        assert source is not None
        with redis.Redis.from_url(servers[1].url) as target:
            record = job_key("j", 0)
            generation = target.hget(record, "generation")
            target.flushall()
            begun = {"arriving": moving.names[0], "nonce": source.nonce, "generation": generation}
            target.hset(record, mapping={"format": 2, **begun})
        if first == "client":
            await moving.whole()
            assert await moving.place() == 0
        await moving.to(1)
        assert await moving.place() == 1
        await moving.whole()

    over(servers, test)


def test_a_move_that_both_servers_lose_did_not_happen(servers: list[RedisServer]) -> None:
    async def test(moving: Moving) -> None:
        await moving.until("depart")
        await moving.forgetting(0, lambda: moving.forgetting(1, lambda: moving.until("bury")))
        assert await moving.place() == 0
        await moving.whole()
        await moving.to(1)
        await moving.whole()

    over(servers, test)


def test_a_target_that_forgets_while_data_come_in_is_given_them_again(servers: list[RedisServer]) -> None:
    async def test(moving: Moving) -> None:
        real = MOVER.step
        attempts: list[str] = []

        async def cut(links: RedisConnections, server: str, job: str, shard: int, operation: str, **given: Any) -> Any:
            if operation == "leave" and len(attempts) < 2:
                attempts.append(operation)
                await asyncio.to_thread(servers[len(attempts) - 1].restart)
            return await real(links, server, job, shard, operation, **given)

        MOVER.step = ROUTING.step = cut
        try:
            await moving.to(1)
        finally:
            MOVER.step = ROUTING.step = real
        assert len(attempts) == 2
        assert await moving.place() == 1
        await moving.whole()

    over(servers, test)


def test_late_steps_of_an_earlier_attempt_are_refused(servers: list[RedisServer]) -> None:
    """Clients that were paused for long come with steps of another time."""

    async def test(moving: Moving) -> None:
        run = (await moving.frontier.run()).encode().decode()
        here, there = moving.names

        async def late(server: str, operation: str, **given: Any) -> Any:
            return await step(moving.links, server, "j", 0, operation, **given)

        await moving.until("depart")
        for other in (run, "another"):
            assert await late(here, "confirm", target=there, run=other) == 0
            assert await late(here, "follow", target=there, nonce="n", generation=99, run=other) == 0
        assert await late(here, "leave", target=there, nonce="n", run=run) == 0
        assert await late(here, "reclaim", target=there, nonce="n") == 0
        assert await late(here, "bury", target=there, nonce="n") == 0
        assert await late(here, "clear", nonce="n", names=[f"{job_key('j')}"]) == 0
        assert await late(here, "prepare", source=there, nonce="n", generation=99) is None
        assert await late(here, "kill", nonce="n") == 0
        await moving.until("bury")
        for operation in ("reclaim", "bury", "leave", "stay", "renew"):
            given: dict[str, Any] = {"target": there, "nonce": "n", "run": run, "seconds": 9}
            assert await late(here, operation, **given) == 0
        assert await late(there, "settle", nonce="n") == 0
        assert await late(there, "land", nonce="n", run=run, names=[], ends=[]) == 0
        assert await late(there, "clear", nonce="n", names=[job_key("j")]) == 0
        await moving.whole()
        assert await moving.place() == 1

    over(servers, test)


def test_two_movers_at_once_move_it_once(servers: list[RedisServer]) -> None:
    async def test(moving: Moving) -> None:
        await asyncio.gather(moving.to(1), moving.to(1))
        assert await moving.place() == 1
        await moving.whole()

    over(servers, test)


def test_a_shard_that_no_server_has_is_a_missing_job(servers: list[RedisServer]) -> None:
    async def test(moving: Moving) -> None:
        await moving.to(1)
        with redis.Redis.from_url(servers[1].url) as store:
            store.delete(job_key("j"))
        servers[0].kill()
        with pytest.raises(Unavailable):
            await moving.frontier.counts()
        servers[0].start()
        with pytest.raises(JobMissing):
            await moving.frontier.counts()

    over(servers, test)


def test_a_user_without_info_does_not_move_shards(servers: list[RedisServer]) -> None:
    async def test(moving: Moving) -> None:
        for server in servers:
            with redis.Redis.from_url(server.url) as store:
                store.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", "-info")
        url = ",".join(server.url_as("few", "x") for server in servers)
        names = placement(1, [server_name(one) for one in addresses(url)])
        if names[0] == moving.names[0]:
            await moving.to(1)
        with pytest.raises(ConfigError, match="INFO"):
            [move async for move in spread(url, "j", forget_seconds=0.05)]

    over(servers, test)


def test_waiting_for_a_stable_run_restarts_with_a_new_run() -> None:
    async def run() -> None:
        answers: list[str | None] = ["a", "a", None, "b", "b", None]
        asked = 0

        async def present() -> str:
            nonlocal asked
            asked += 1
            answer = answers.pop(0) if answers else "b"
            if answer is None:
                raise Unavailable("away")
            return answer

        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await wait_for_stable_run(present, 2.5) == "b"
        assert asked >= 6
        assert loop.time() - began >= 2.5

    asyncio.run(run())
