"""A job in several databases: each site in one shard, each shard in one database, even while it moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gossamer import urls
from gossamer.errors import ConfigError, JobMissing, Unavailable
from gossamer.frontier.base import FleetFrontier
from gossamer.frontier.sql.database import CARGO, Database
from gossamer.frontier.sql.handover import ShardLocation
from gossamer.frontier.sql.move import freeze_shard, spread_sql
from gossamer.frontier.sql.record import like, open_sql
from gossamer.frontier.sql.shards import open_databases
from gossamer.model import Request
from gossamer.settings import Settings
from gossamer.testing.harness import outcome, outcomes, page
from gossamer.testing.servers import SqlServer

FREE = Settings(delay=0.0, robots=False)
SITES = 24


@pytest.fixture(scope="session", params=["postgres_server", "maria_server"])
def running(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def places(running: SqlServer, empty_databases: Callable[..., list[str]]) -> list[str]:
    return empty_databases(running, "first", "second", "third")


def good(fleet: FleetFrontier, url: str) -> Request:
    return Request(url, urls.fingerprint(fleet.secret, url), urls.host_port(url))


def seeds(sites: int = SITES, each: int = 3) -> list[Request]:
    return [page(site * 100 + number, f"{site}.example") for site in range(sites) for number in range(each)]


async def fetch_all(fleet: FleetFrontier, links: Callable[[int], list[Request]] | None = None) -> Counter[int]:
    """Crawl to the end; how often each key was fetched."""
    fetched: Counter[int] = Counter()
    while (grant := await fleet.lease(5, batch=2, seconds=60)).job != "finished":
        for lease in grant.leases:
            fetched.update(request.key for request in lease.requests)
            await fleet.complete(
                [outcome(lease, one.key, links=tuple(links(one.key)) if links else ()) for one in lease.requests]
            )
        if not grant.leases:
            await fleet.idle(grant)
    return fetched


async def counted(url: str) -> dict[str, int]:
    """How many rows each table has in one database."""
    frontier = await open_sql(url, "other", FREE)
    try:
        found = {}
        for table in CARGO:
            rows = await frontier._database.run(
                lambda db, table=table: db.ask(f"SELECT COUNT(*) FROM gossamer_{table}"),  # type: ignore[misc]
                whole=False,
            )
            found[table] = int(rows[0][0])
        return found
    finally:
        await frontier.aclose()


def test_a_job_in_two_databases_fetches_everything_once(places: list[str]) -> None:
    url = ",".join(places[:2])

    def links(key: int) -> list[Request]:
        target = key + 7
        return [page(target, f"{target // 100}.example")] if key % 100 == 0 and target // 100 < SITES else []

    async def play() -> None:
        fleet = await open_databases(url, "job", FREE, worker="one", shards="8")
        try:
            assert await fleet.add(seeds()) == SITES * 3
            other = await open_databases(url, "job", worker="two")
            assert other.secret == fleet.secret
            views = await other.shards()
            assert [view.shard for view in views] == list(range(8))
            assert len({view.server for view in views}) == 2
            assert sum(view.counts.queued for view in views) == SITES * 3
            assert all(view.counts.queued for view in views)
            await other.aclose()
            fetched = await fetch_all(fleet, links)
            assert len(fetched) == SITES * 4
            assert set(fetched.values()) == {1}
            counts = await fleet.counts()
            assert (counts.done, counts.known, counts.sites) == (SITES * 4, SITES * 4, SITES)
        finally:
            await fleet.aclose()

    asyncio.run(play())


def test_max_pages_hold_over_all_databases(places: list[str]) -> None:
    async def play() -> None:
        settings = Settings(delay=0.0, robots=False, max_pages=20)
        fleet = await open_databases(",".join(places[:2]), "job", settings, shards="4")
        try:
            await fleet.add(seeds())
            assert (await fetch_all(fleet)).total() == 20
        finally:
            await fleet.aclose()

    asyncio.run(play())


def test_an_inbox_feeds_all_shards(running: SqlServer, places: list[str]) -> None:
    """It is read where its database is, and what belongs to other shards is brought there."""

    async def play() -> None:
        fleet = await open_databases(",".join(places[:2]), "job", FREE, worker="one", shards="4")
        feeder = await open_sql(places[0], "other", FREE)
        try:
            wanted = {f"https://{number}.example/" for number in range(12)}
            values = ", ".join(f"('job', '{url}')" for url in sorted(wanted))
            await feeder._database.run(
                lambda db: db.ask(f"INSERT INTO gossamer_inbox (job, url) VALUES {values}"), whole=True
            )
            assert await fetch_all(fleet) == Counter(good(fleet, url).key for url in wanted)
            assert len({view.shard for view in await fleet.shards() if view.counts.done}) > 2
        finally:
            await feeder.aclose()
            await fleet.aclose()

    asyncio.run(play())


def test_addresses_that_do_not_belong_together_are_refused(places: list[str]) -> None:
    async def refused(url: str, error: type[Exception], **options: Any) -> None:
        with pytest.raises(error):
            await open_databases(url, "job", **options)

    async def play() -> None:
        await refused(places[0], JobMissing)
        await refused(f"{places[0]},{places[0]}", ConfigError, settings=FREE)
        await refused("postgresql://a/x,mysql://b/x", ConfigError, settings=FREE)
        fleet = await open_databases(",".join(places[:2]), "job", FREE, shards="4")
        await fleet.aclose()
        await refused(",".join(places[:2]), ConfigError, shards="0-1/8")
        await (await open_databases(places[2], "job", FREE)).aclose()
        await refused(",".join(places), ConfigError, settings=FREE)

    asyncio.run(play())


def test_shards_move_to_a_further_database_and_back(places: list[str]) -> None:
    """A worker that knows one address goes on with its leases, and nothing is lost or done twice."""

    async def play() -> None:
        fleet = await open_databases(places[0], "job", FREE, worker="one", shards="6")
        try:
            await fleet.add(seeds())
            held = (await fleet.lease(8, batch=2, seconds=60)).leases
            fetched = Counter(one.key for lease in held for one in lease.requests)
            before = await fleet.counts()
            moves = [move async for move in spread_sql(",".join(places[:2]), "job", forget_seconds=0.0)]
            assert [move.shard for move in moves] == list(range(6))
            assert [move.rows > 0 for move in moves] == [move.source != move.target for move in moves]
            assert await fleet.counts() == before
            for lease in held[:4]:
                assert (await fleet.complete(outcomes(lease))).accepted == len(lease.requests)
            await fleet.release(held[4:])
            fetched.subtract(one.key for lease in held[4:] for one in lease.requests)
            assert {view.server for view in await fleet.shards()} == {move.target for move in moves}
            left = {move.target async for move in spread_sql(places[1], "job", forget_seconds=0.0)}
            assert {view.server for view in await fleet.shards()} == left
            assert len(left) == 1
            assert not any(rows for table, rows in (await counted(places[0])).items() if table != "counters")
            fetched += await fetch_all(fleet)
            assert len(fetched) == SITES * 3
            assert set(fetched.values()) == {1}
            joined = await open_databases(places[1], "job", worker="two")
            assert (await joined.counts()).done == SITES * 3
            await joined.aclose()
        finally:
            await fleet.aclose()

    asyncio.run(play())


class Killed(Exception):
    pass


async def killed_after(count: int, monkeypatch: pytest.MonkeyPatch, url: str) -> bool:
    """Spread a job, but die after so many transactions; whether it came to its end."""
    run, left = Database.run, count

    async def dying(self: Database, work: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return await run(self, work, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Database, "run", dying)
        try:
            async for _ in spread_sql(url, "job", forget_seconds=0.0):
                pass
        except Killed:
            return False
    return True


def test_a_move_that_is_killed_anywhere_is_finished_by_the_next(
    places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        fleet = await open_databases(places[0], "job", FREE, worker="one", shards="2")
        waited = 0
        try:
            await fleet.add(seeds(8))
            fetched: Counter[int] = Counter()
            for first, url in enumerate((",".join(places[:2]), ",".join(places[1:]), places[2]), 3):
                # Every second place, and others in each round.
                kills = first
                while not await killed_after(kills, monkeypatch, url):
                    kills += 2
                    try:
                        for lease in (await fleet.lease(1, batch=1, seconds=60)).leases:
                            await fleet.complete(outcomes(lease))
                            fetched.update(one.key for one in lease.requests)
                    except Unavailable:
                        waited += 1
            assert waited > 3
            fetched += await fetch_all(fleet)
            assert len(fetched) == 8 * 3
            assert set(fetched.values()) == {1}
            assert (await fleet.counts()).done == 8 * 3
        finally:
            await fleet.aclose()
        for place in places[:2]:
            assert not any(rows for table, rows in (await counted(place)).items() if table != "counters")

    asyncio.run(play())


def test_concurrent_moves_do_no_harm(places: list[str]) -> None:
    async def spread(url: str) -> None:
        async for _ in spread_sql(url, "job", forget_seconds=0.0):
            pass

    async def patient(fleet: FleetFrontier) -> Counter[int]:
        fetched: Counter[int] = Counter()
        while True:
            try:
                grant = await fleet.lease(1, batch=1, seconds=60)
            except Unavailable:
                await asyncio.sleep(0.01)
                continue
            if grant.job == "finished":
                return fetched
            for lease in grant.leases:
                fetched.update(one.key for one in lease.requests)
                await asyncio.sleep(0.01)
                while True:
                    try:
                        await fleet.complete(outcomes(lease))
                        break
                    except Unavailable:
                        await asyncio.sleep(0.01)

    async def play() -> None:
        fleet = await open_databases(places[0], "job", FREE, worker="one", shards="3")
        try:
            await fleet.add(seeds())
            (lease,) = (await fleet.lease(1, batch=2, seconds=60)).leases
            crawl = asyncio.create_task(patient(fleet))
            for url in (",".join(places[:2]), places[1], places[0]):
                await asyncio.gather(*(spread(f"{url},{places[2]}") for _ in range(3)))
            await fleet.complete(outcomes(lease))
            fetched = Counter(one.key for one in lease.requests) + await crawl
            assert (await fleet.counts()).done == SITES * 3
            assert len(fetched) == SITES * 3
            assert set(fetched.values()) == {1}
        finally:
            await fleet.aclose()

    asyncio.run(play())


def test_a_suspended_mover_changes_nothing_afterwards(places: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has moved the shard meanwhile, and it was crawled to its end."""
    run = Database.run

    async def spread(job: str) -> None:
        for url in (",".join(places[:2]), places[1]):
            async for _ in spread_sql(url, job, forget_seconds=0.0):
                pass

    async def check(sleeps_after: int) -> None:
        left, awake, asleep = sleeps_after, asyncio.Event(), asyncio.Event()

        async def sleepy(self: Database, work: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
            nonlocal left
            task = asyncio.current_task()
            if task is not None and task.get_name() == "sleepy":
                left -= 1
                if left == 0:
                    asleep.set()
                    await awake.wait()
            return await run(self, work, **options)

        monkeypatch.setattr(Database, "run", sleepy)
        job = f"job{sleeps_after}"
        fleet = await open_databases(places[0], job, FREE, worker="one", shards="1")
        try:
            await fleet.add(seeds(4))
            slow = asyncio.create_task(spread(job), name="sleepy")
            await asyncio.wait({slow, asyncio.create_task(asleep.wait())}, return_when="FIRST_COMPLETED")
            await spread(job)
            assert (await fetch_all(fleet)).total() == 12
            before = await fleet.counts()
            awake.set()
            await slow
            assert await fleet.counts() == before
            assert not (await fleet.lease(9, batch=9, seconds=60)).leases
        finally:
            await fleet.aclose()

    async def play() -> None:
        for sleeps_after in range(4, 40, 3):
            await check(sleeps_after)
        assert (await counted(places[0]))["queue"] + (await counted(places[1]))["queue"] == 0

    asyncio.run(play())


def test_a_lease_ends_when_it_would_have_whatever_the_clock_of_the_new_server_says(places: list[str]) -> None:
    async def play() -> None:
        fleet = await open_databases(places[0], "job", FREE, worker="one", shards="1")
        feeder = await open_sql(places[0], "other", FREE)
        try:
            # It is 2023 there.
            await feeder._database.run(lambda db: db.ask("UPDATE gossamer_jobs SET clock = 1700000000000000"))
            request = good(fleet, "http://a.example/")
            await fleet.add([request])
            (lease,) = (await fleet.lease(1, batch=1, seconds=600)).leases
            assert [move.target async for move in spread_sql(f"{places[0]},{places[1]}", "job", forget_seconds=0.0)]
            assert [move.rows async for move in spread_sql(places[1], "job", forget_seconds=0.0)] != []
            found = await fleet.lookup(request.url)
            assert found is not None
            assert 500 < found["lease_ends_in"] <= 600
            assert not (await fleet.lease(1, batch=1, seconds=600)).leases
            assert (await fleet.complete(outcomes(lease))).accepted == 1
            (view,) = await fleet.shards()
            assert view.server.endswith("/second")
        finally:
            await feeder.aclose()
            await fleet.aclose()

    asyncio.run(play())


def test_a_late_transaction_cannot_write_to_a_shard_that_leaves(places: list[str]) -> None:
    async def play() -> None:
        frontier = await open_sql(places[0], "job", FREE)
        mover = await open_sql(places[0], "job", FREE)
        try:

            async def late(call: Any) -> None:
                await frontier._admission.admit(call, [(page(1), "", 0)])
                await mover._database.run(lambda db: freeze_shard(db, ShardLocation(0, "elsewhere", "", "ticket")))
                await call.flush()

            with pytest.raises(Unavailable, match="being moved"):
                await frontier._call(late)
            with pytest.raises(Unavailable, match="being moved to elsewhere"):
                await frontier.add([page(2)])
            assert (await counted(places[0]))["seen"] == 0
        finally:
            await frontier.aclose()
            await mover.aclose()

    asyncio.run(play())


def test_a_server_is_reached_by_its_name() -> None:
    assert like("postgresql://u:p@a:1/x?sslmode=require", "postgresql://b:2/y") == (
        "postgresql://u:p@/y?sslmode=require&host=b&port=2"
    )
    assert like("postgresql://u@a/x", "postgresql:///run/pg:5433/y") == "postgresql://u@/y?host=%2Frun%2Fpg&port=5433"
    assert like("postgresql://u:p@a,b/x", "postgresql://c:1,d:2/y") == "postgresql://u:p@/y?host=c%2Cd&port=1%2C2"
    assert like("mysql://u:p@a/x", "mysql://b:3307/y") == "mysql://u:p@b:3307/y"
    assert like("mariadb://u@/x?socket=/a", "mysql:///run/b/y") == "mysql://u@/y?socket=%2Frun%2Fb"
    with pytest.raises(ConfigError):
        like("mysql://u@a/x", "postgresql://b/y")
