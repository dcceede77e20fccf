"""The outbox of a shard in a database, and how workers detect a restarted or replaced server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gossamer.errors import FrontierError, Leaving, Unavailable
from gossamer.frontier.outbox import Box, Parcel, pack_links, unpack_links
from gossamer.frontier.sql.database import digest
from gossamer.frontier.sql.frontier import SqlFrontier
from gossamer.frontier.sql.handover import ANNOUNCED, ShardLocation
from gossamer.frontier.sql.record import Databases, open_shard, open_sql
from gossamer.frontier.sql.shards import open_databases
from gossamer.settings import Settings
from gossamer.testing.harness import outcome, outcomes, page
from gossamer.testing.servers import PostgresServer, SqlServer

FREE = Settings(delay=0.0, robots=False)
SLOW = Settings(delay=1.0, robots=False, lease_seconds=5.0)
SECONDS = 5.0


@pytest.fixture(scope="session", params=["postgres_server", "maria_server"])
def running(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def places(running: SqlServer, empty_databases: Callable[..., list[str]]) -> list[str]:
    return empty_databases(running, "first", "second")


async def ask(frontier: SqlFrontier, text: str) -> list[Any]:
    return await frontier._database.run(lambda db: db.ask(text))


async def advance(frontier: SqlFrontier, seconds: float) -> None:
    await ask(frontier, f"UPDATE gossamer_jobs SET clock = COALESCE(clock, 1700000000000000) + {round(seconds * 1e6)}")


async def shard(url: str, settings: Settings = FREE, *, worker: str = "one") -> SqlFrontier:
    """One shard of several, on a clock that stands still."""
    frontier = await open_sql(url, "job", settings, worker=worker, alone=False)
    await advance(frontier, 0.0)
    return frontier


def parcel(*keys: int, server: str = "there", run: str = "1") -> Parcel:
    return Parcel(server, run, pack_links([page(key) for key in keys]))


def keys(packed: list[bytes]) -> list[list[int]]:
    return [[link.key for link in unpack_links(one)] for one in packed]


async def kept(frontier: SqlFrontier, runs: dict[str, str] | None = None) -> list[Box]:
    return await frontier.sweep(runs or {}, seconds=SECONDS)


def play(test: Callable[[], Any]) -> None:
    asyncio.run(test())


def test_parcels_come_back_in_their_order_by_server_and_run(places: list[str]) -> None:
    async def test() -> None:
        frontier = await shard(places[0])
        receipt = await frontier.complete([], parcels=[parcel(1), parcel(2), parcel(9, run="2")])
        assert receipt.outbox == 3
        assert (await frontier.complete([], parcels=[parcel(3), parcel(8, server="elsewhere")])).outbox == 2
        assert (await frontier.counts()).outbox == 5
        assert (await frontier.lease(1, batch=1, seconds=9)).outbox == 5
        boxes = {(box.server, box.run): box for box in await kept(frontier)}
        assert {place: box.size for place, box in boxes.items()} == {
            ("there", "1"): 3, ("there", "2"): 1, ("elsewhere", "1"): 1,
        }  # fmt: skip
        assert keys(await frontier.parcels(boxes["there", "1"], 9)) == [[1], [2], [3]]
        assert keys(await frontier.parcels(boxes["there", "1"], 2)) == [[1], [2]]
        await frontier.aclose()

    play(test)


def test_parcels_are_put_in_with_the_page_or_not_at_all(places: list[str]) -> None:
    """Also with stale outcomes; and a page whose parcels cannot be stored is not done."""

    async def test() -> None:
        frontier = await shard(places[0])
        await frontier.add([page(1), page(2)])
        (lease,) = (await frontier.lease(1, batch=2, seconds=9)).leases
        stale = outcome(lease, 1)
        assert (await frontier.complete([outcome(lease, 1)], parcels=[parcel(11)])).accepted == 1
        receipt = await frontier.complete([stale], parcels=[parcel(12)])
        assert (receipt.accepted, receipt.outbox) == (0, 1)
        before = await ask(frontier, "SELECT COUNT(*) FROM gossamer_parcels")
        await ask(frontier, "UPDATE gossamer_boxes SET added = taken")
        with pytest.raises((Unavailable, FrontierError)):
            # Their numbers are taken.
            await frontier.complete([outcome(lease, 2)], parcels=[parcel(13)])
        assert await ask(frontier, "SELECT COUNT(*) FROM gossamer_parcels") == before
        assert (await frontier.counts()).done == 1
        await frontier.aclose()

    play(test)


def test_a_page_requires_the_run_that_took_its_links(places: list[str]) -> None:
    """Links that another shard of the same server took are in no outbox: a later run may have forgotten them."""

    async def test() -> None:
        frontier = await shard(places[0])
        await frontier.add([page(1), page(2)])
        (lease,) = (await frontier.lease(1, batch=2, seconds=9)).leases
        with pytest.raises(Unavailable, match="was restarted"):
            await frontier.complete([outcome(lease, 1)], run="another")
        assert (await frontier.counts()).leased == 2
        assert (await frontier.complete([outcome(lease, 1)], run=await frontier.run())).accepted == 1
        await frontier.aclose()

    play(test)


def test_a_shard_that_may_move_takes_links_for_its_neighbors_as_parcels_only(places: list[str]) -> None:
    """Once it is in another database, this one may forget the links, and no page of it comes again."""

    async def test() -> None:
        frontier = await shard(places[0])
        await frontier.add([page(1)])
        (lease,) = (await frontier.lease(1, batch=1, seconds=9)).leases
        run = await frontier.run()
        place = ShardLocation(generation=1, target=places[1], run=run).text
        await ask(frontier, f"UPDATE gossamer_shards SET phase = {ANNOUNCED}, place = '{place}'")
        with pytest.raises(Leaving):
            await frontier.complete([outcome(lease, 1)], run=run)
        assert (await frontier.counts()).leased == 1
        receipt = await frontier.complete([outcome(lease, 1)], parcels=[parcel(11)])
        assert (receipt.accepted, receipt.outbox) == (1, 1)
        await frontier.aclose()

    play(test)


def test_a_job_is_not_finished_while_its_outbox_holds_links(places: list[str]) -> None:
    async def test() -> None:
        frontier = await shard(places[0])
        assert (await frontier.counts()).finished
        await frontier.complete([], parcels=[parcel(1)])
        assert not (await frontier.counts()).finished
        assert (await frontier.lease(1, batch=1, seconds=9)).job == "running"
        (box,) = await kept(frontier)
        await frontier.replace(box, 1, [])
        assert (await frontier.counts()).finished
        assert (await frontier.lease(1, batch=1, seconds=9)).job == "finished"
        await frontier.aclose()

    play(test)


def test_parcels_age_only_while_their_run_is_watched(places: list[str]) -> None:
    """At most two seconds a sweep; what came after the count began waits for the next one."""

    async def test() -> None:
        frontier = await shard(places[0])
        runs = {"there": "1"}
        await frontier.complete([], parcels=[parcel(1), parcel(2)])
        for seconds in (0.0, 1.0, 100.0):
            await advance(frontier, seconds)
            assert [box.size for box in await kept(frontier, runs)] == [2]
        await frontier.complete([], parcels=[parcel(3)])
        await advance(frontier, 1.5)
        # 1 + 2 + 1.5 seconds: not yet.
        assert [box.size for box in await kept(frontier, runs)] == [3]
        await advance(frontier, 100.0)
        assert [box.size for box in await kept(frontier, {"there": "another"})] == [3]
        await advance(frontier, 1.0)
        (box,) = await kept(frontier, runs)
        assert box.size == 1
        assert keys(await frontier.parcels(box, 9)) == [[3]]
        for _ in range(4):
            await advance(frontier, 2.0)
            boxes = await kept(frontier, runs)
        assert boxes == []
        assert await ask(frontier, "SELECT COUNT(*) FROM gossamer_parcels") in ([(0,)], [[0]])
        await frontier.aclose()

    play(test)


def test_concurrent_sweeps_age_a_box_once(places: list[str]) -> None:
    async def test() -> None:
        one, two = await shard(places[0]), await shard(places[0], worker="two")
        await one.complete([], parcels=[parcel(1)])
        for _ in range(4):
            for frontier in (one, two):
                assert len(await kept(frontier, {"there": "1"})) == 1
            await advance(one, 1.0)
        assert len(await kept(two, {"there": "1"})) == 1
        await advance(one, 1.0)
        assert await kept(one, {"there": "1"}) == []
        await one.aclose()
        await two.aclose()

    play(test)


def test_a_late_replacement_takes_nothing_that_came_later(places: list[str]) -> None:
    """Also where the box was emptied, thrown away and made again."""

    async def test() -> None:
        one, two = await shard(places[0]), await shard(places[0], worker="two")
        two._stripe = one._stripe
        await one.complete([], parcels=[parcel(1), parcel(2)])
        (late,) = await kept(two)
        (box,) = await kept(one)
        await one.replace(box, 1, [parcel(7, run="2")])
        await two.replace(late, 2, [])
        assert await two.parcels(late, 9) == []
        boxes = {box.run: box for box in await kept(one)}
        assert {run: keys(await one.parcels(box, 9)) for run, box in boxes.items()} == {"1": [[2]], "2": [[7]]}
        assert boxes["1"].first == box.first + 1
        for each in boxes.values():
            await one.replace(each, 1, [])
        await advance(one, 8000.0)
        assert await kept(one) == []
        assert not await ask(one, "SELECT box FROM gossamer_boxes")
        await one.complete([], parcels=[parcel(3), parcel(4)])
        await two.replace(late, 2, [])
        await two.replace(boxes["1"], 1, [])
        (box,) = await kept(one)
        assert keys(await one.parcels(box, 9)) == [[3], [4]]
        await one.aclose()
        await two.aclose()

    play(test)


def test_a_replacement_that_was_planned_with_an_earlier_run_changes_nothing(places: list[str]) -> None:
    async def test() -> None:
        frontier = await shard(places[0])
        await frontier.complete([], parcels=[parcel(1)])
        (box,) = await kept(frontier)
        frontier._database.dialect.abort()
        await frontier.replace(box, 1, [])
        assert [box.size for box in await kept(frontier)] == [1]
        await frontier.aclose()

    play(test)


def test_a_parcel_of_any_size_is_kept(places: list[str]) -> None:
    async def test() -> None:
        frontier = await shard(places[0])
        await frontier.complete([], parcels=[parcel(*range(60_000))])
        (box,) = await kept(frontier)
        assert box.size > 1
        assert [key for some in keys(await frontier.parcels(box, 999)) for key in some] == list(range(60_000))
        await frontier.aclose()

    play(test)


def test_a_job_of_an_earlier_version_goes_on_without_an_outbox_until_it_needs_one(places: list[str]) -> None:
    async def test() -> None:
        frontier = await open_databases(places[0], "job", FREE, shards="4")
        await frontier.add([page(number, f"{number}.example") for number in range(8)])
        await frontier.aclose()
        for table in ("parcels", "boxes"):
            alone = await open_sql(places[0], "job", shard=0)
            await ask(alone, f"DROP TABLE gossamer_{table}")
            await alone.aclose()
        databases = Databases(places[0])
        old = await open_shard(databases.at(databases.names[0]), "job", 1, None, worker="", region="", alone=False)
        assert not (await old.counts()).outbox
        assert await kept(old) == []
        with pytest.raises(FrontierError, match="outbox"):
            await old.complete([], parcels=[parcel(1)])
        assert (await old.lease(9, batch=1, seconds=9)).job == "running"
        again = await open_databases(places[0], "job", worker="two")
        assert (await old.complete([], parcels=[parcel(1)])).outbox == 1
        assert (await again.counts()).outbox == 1
        await again.aclose()
        await databases.aclose()

    play(test)


def test_all_shards_and_workers_give_the_run_of_a_server_the_same_name(places: list[str]) -> None:
    async def test() -> None:
        opened = [await shard(place, worker=f"{number}") for place in places for number in range(2)]
        names = {await frontier.run() for frontier in opened for _ in range(20)}
        assert len(names) == 1
        assert " " not in next(iter(names))
        added, name = await opened[0].deliver([page(1), page(2)])
        assert (added, {name}) == (2, names)
        assert await opened[0].deliver([]) == (0, name)
        assert opened[0].server != opened[2].server
        for frontier in opened:
            await frontier.aclose()

    play(test)


def test_answers_say_whether_the_connection_is_another(places: list[str]) -> None:
    async def test() -> None:
        frontier = await shard(places[0])
        await frontier.add([page(1)])
        grant = await frontier.lease(1, batch=1, seconds=9)
        assert grant.run == (await frontier.lease(1, batch=1, seconds=9)).run != 0
        assert (await frontier.complete(outcomes(grant.leases[0]))).run == grant.run
        frontier._database.dialect.abort()
        other = await frontier.complete([])
        assert other.run != grant.run
        assert (await frontier.lease(1, batch=1, seconds=9)).run == other.run
        await frontier.aclose()

    play(test)


async def as_after_a_fail_over(frontier: SqlFrontier) -> None:
    """The next connection finds another run of the server than the shard knows."""
    await ask(frontier, "UPDATE gossamer_shards SET server = 'before'")
    frontier._database.dialect.abort()


def test_all_lanes_rest_once_the_server_is_another(places: list[str]) -> None:
    """Until the longest lease that may have been lost has ended; what is still held goes on, and then rests too."""

    async def test() -> None:
        one = await shard(places[0], SLOW)
        await one.add([page(1, "a.example"), page(2, "a.example"), page(3, "b.example")])
        (lease,) = (await one.lease(1, batch=1, seconds=30)).leases
        await as_after_a_fail_over(one)
        assert len(await one.extend([lease], seconds=30)) == 1
        await one.add([page(4, "new.example")])
        grant = await one.lease(9, batch=9, seconds=10)
        assert grant.leases == ()
        assert (await one.complete(outcomes(lease))).accepted == 1
        await advance(one, 29.0)
        assert (await one.lease(9, batch=9, seconds=10)).leases == ()
        await advance(one, 2.1)
        leases = (await one.lease(9, batch=9, seconds=10)).leases
        assert sorted(each.site for each in leases) == ["a.example", "b.example", "new.example"]
        # From here on it is as it was before.
        await one.complete([each for some in leases for each in outcomes(some)])
        await advance(one, 1.1)
        assert (await one.counts()).finished
        await one.aclose()

    play(test)


def test_a_lease_of_the_earlier_run_that_ends_unnoticed_rests_too(places: list[str]) -> None:
    """Its holder may have extended it in the second that was forgotten."""

    async def test() -> None:
        one = await shard(places[0], SLOW)
        await one.add([page(1, "a.example")])
        assert (await one.lease(1, batch=1, seconds=5)).leases
        await one.add([page(2, "b.example")])
        assert (await one.lease(1, batch=1, seconds=30)).leases
        await as_after_a_fail_over(one)
        await advance(one, 10.0)
        assert (await one.lease(9, batch=9, seconds=5)).leases == ()
        await advance(one, 15.0)
        assert (await one.lease(9, batch=9, seconds=5)).leases == ()
        await advance(one, 7.0)
        assert len((await one.lease(9, batch=9, seconds=5)).leases) == 2
        await one.aclose()

    play(test)


def test_another_connection_to_the_same_run_has_nothing_rest(running: SqlServer, places: list[str]) -> None:
    """Unless the server's settings let it forget with no other sign."""

    async def test() -> None:
        one = await shard(places[0])
        await one.add([page(1)])
        one._database.dialect.abort()
        assert len((await one.lease(1, batch=1, seconds=60)).leases) == 1
        await one.add([page(2, "b.example")])
        learn = one._database.dialect.learn

        async def forgetful() -> None:
            await learn()
            one._database.dialect.forgets = True

        one._database.dialect.learn = forgetful  # type: ignore[method-assign]
        one._database.dialect.abort()
        assert (await one.lease(1, batch=1, seconds=60)).leases == ()
        await one.aclose()

    play(test)


def test_a_server_that_only_reads_is_no_place_for_a_worker(running: SqlServer, places: list[str]) -> None:
    async def test() -> None:
        one = await shard(places[0])
        if isinstance(running, PostgresServer):
            # As when a primary is fenced.
            await one._database.run(
                lambda db: db.ask("ALTER DATABASE first SET default_transaction_read_only = on"), whole=False
            )
        else:
            await ask(one, "SET GLOBAL read_only = ON")
        one._database.dialect.abort()
        try:
            with pytest.raises(Unavailable):
                await one.add([page(1)])
            with pytest.raises(Unavailable):
                await one.complete([], parcels=[parcel(1)])
        finally:
            await asyncio.to_thread(_take_writes, running)
        assert await one.add([page(1)]) == 1
        await one.aclose()

    play(test)


def _take_writes(server: SqlServer) -> None:
    if isinstance(server, PostgresServer):
        server.ask("ALTER DATABASE first RESET default_transaction_read_only")
    else:
        server.run(
            "mariadb", "--no-defaults", f"--socket={server.folder}/socket", "-u", "root", "-e",
            "SET GLOBAL read_only = OFF",
        )  # fmt: skip


def test_boxes_are_named_by_server_and_run() -> None:
    assert digest("a b") != digest("a c")
