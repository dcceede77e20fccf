"""Specifics of the SQL frontier: readable tables, the inbox, regions, shards, and damage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gossamer import urls
from gossamer.errors import ConfigError, FrontierError, JobMissing, SchemaMismatch
from gossamer.frontier.backends import list_jobs
from gossamer.frontier.sharded import Sharded, divide
from gossamer.frontier.sql.frontier import ShardContext, SqlFrontier
from gossamer.frontier.sql.record import FORMAT, dialect_of, open_sql
from gossamer.model import Heartbeat, Outcome, Request
from gossamer.settings import Settings, SiteSettings
from gossamer.testing.harness import keys, note, outcome, outcomes, page, pages
from gossamer.testing.servers import TABLES, MariaServer, PostgresServer, SqlServer

FREE = Settings(delay=0.0, robots=False)
Check = Callable[[SqlFrontier], Coroutine[Any, Any, None]]


@pytest.fixture(scope="session", params=["postgres_server", "maria_server"])
def running(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def server(running: SqlServer) -> SqlServer:
    empty(running)
    return running


def empty(server: SqlServer) -> None:
    async def make() -> None:
        await (await open_sql(server.url, "made", FREE)).aclose()

    asyncio.run(make())
    for table in reversed(TABLES):
        server.ask(f"DELETE FROM gossamer_{table}")


def run(server: SqlServer, check: Check, settings: Settings = FREE, **options: Any) -> None:
    async def play() -> None:
        frontier = await open_sql(server.url, "job", settings, worker="one", **options)
        try:
            await check(frontier)
        finally:
            await frontier.aclose()

    asyncio.run(play())


def _germany(site: str) -> str:
    return "eu" if site.endswith(".de") else ""


def good(frontier: SqlFrontier, url: str, **values: Any) -> Request:
    return Request(url, urls.fingerprint(frontier.secret, url), urls.host_port(url), **values)


def test_people_can_read_every_task(server: SqlServer) -> None:
    """The view has each URL once, whole, in one of four states."""

    async def check(frontier: SqlFrontier) -> None:
        await frontier.add(
            [page(key, "a.example") for key in (1, 2, 3, 4, 5)] + [page(9, "b.example:8080", priority=7)]
        )
        lease = next(one for one in (await frontier.lease(9, batch=4, seconds=60)).leases if one.site == "a.example")
        await frontier.complete(
            [
                outcome(lease, 1, code=200),
                outcome(lease, 2, "failed", code=404),
                outcome(lease, 3, "retry", again_in=500.0),
            ]
        )

    run(server, check)
    rows = server.ask("SELECT url, state, priority, job FROM tasks ORDER BY url")
    assert [tuple(row) for row in rows] == [
        ("http://a.example/1", "done", 0, "job"),
        ("http://a.example/2", "failed", 0, "job"),
        ("http://a.example/3", "idle", 0, "job"),
        ("http://a.example/4", "working", 0, "job"),
        ("http://a.example/5", "idle", 0, "job"),
        ("http://b.example:8080/9", "working", 7, "job"),
    ]
    ((waits,),) = server.ask("SELECT COUNT(*) FROM tasks WHERE available_time IS NOT NULL AND state = 'idle'")
    assert waits == 1


def test_an_insert_feeds_a_running_crawl(server: SqlServer) -> None:
    """Also one that has nothing to do any more; what is no URL stays with its error, and stalls nothing."""

    async def check(frontier: SqlFrontier) -> None:
        assert (await frontier.lease(9, batch=9, seconds=60)).job == "finished"
        await asyncio.to_thread(
            server.ask,
            "INSERT INTO inbox (job, url, priority) VALUES ('job', 'HTTP://A.example:80/x#y', 3),"
            " ('job', 'mailto:x', 0), ('job', 'not a url', 0), ('other', 'http://b.example/', 0)",
        )
        await asyncio.to_thread(server.ask, "INSERT INTO inbox (url) VALUES ('https://c.example/')")
        assert not (await frontier.counts()).finished
        leases = (await frontier.lease(9, batch=9, seconds=60)).leases
        found = {request.url: request.priority for lease in leases for request in lease.requests}
        assert found == {"http://a.example/x": 3, "https://c.example/": 0}
        assert {request.key for lease in leases for request in lease.requests} == {
            good(frontier, url).key for url in found
        }
        for lease in leases:
            await frontier.complete(outcomes(lease))
        assert (await frontier.counts()).finished

    run(server, check)
    rows = server.ask("SELECT url, error IS NULL FROM gossamer_inbox ORDER BY entry")
    assert [(row[0], bool(row[1])) for row in rows] == [
        ("mailto:x", False), ("not a url", False), ("http://b.example/", True),
    ]  # fmt: skip


def test_an_insert_wakes_an_idle_worker(server: SqlServer) -> None:
    async def check(frontier: SqlFrontier) -> None:
        await frontier.add(pages(1))
        await frontier.lease(9, batch=9, seconds=10_000)
        grant = await frontier.lease(9, batch=9, seconds=10_000)
        waiting = asyncio.ensure_future(frontier.idle(grant))
        await asyncio.sleep(0)
        await asyncio.to_thread(server.ask, "INSERT INTO inbox (url) VALUES ('https://c.example/')")
        async with asyncio.timeout(60):
            await waiting
        (lease,) = (await frontier.lease(9, batch=9, seconds=60)).leases
        assert lease.site == "c.example"

    run(server, check)


def test_an_entry_of_the_inbox_waits_for_its_time(server: SqlServer) -> None:
    moment = {"postgresql": "now() + interval '1 hour'", "mysql": "NOW() + INTERVAL 1 HOUR"}[server.scheme]

    async def check(frontier: SqlFrontier) -> None:
        await asyncio.to_thread(
            server.ask, f"INSERT INTO inbox (url, available_time) VALUES ('https://c.example/', {moment})"
        )
        grant = await frontier.lease(9, batch=9, seconds=60)
        assert (grant.leases, grant.job) == ((), "running")
        assert (await frontier.counts()).delayed == 1
        await asyncio.to_thread(server.ask, "UPDATE gossamer_jobs SET clock = 4000000000000000")
        assert len((await frontier.lease(9, batch=9, seconds=60)).leases) == 1

    run(server, check)


def test_the_inbox_gives_other_shards_what_is_theirs(server: SqlServer) -> None:
    passed: list[str] = []

    async def forward(links: Any) -> tuple[set[int], set[int]]:
        passed.extend(one.url for one, _, _ in links if one.site == "b.example")
        ours = {one.key for one, _, _ in links if one.site == "a.example"}
        return ours, {one.key for one, _, _ in links} - ours

    async def check(frontier: SqlFrontier) -> None:
        await asyncio.to_thread(
            server.ask, "INSERT INTO inbox (url) VALUES ('https://a.example/'), ('https://b.example/')"
        )
        (lease,) = (await frontier.lease(9, batch=9, seconds=60)).leases
        assert lease.site == "a.example"

    run(server, check, context=ShardContext(forward=forward))
    assert passed == ["https://b.example/"]


def test_compacting_loses_no_key(server: SqlServer) -> None:
    async def check(frontier: SqlFrontier) -> None:
        await frontier.add(pages(*range(1, 50)))
        while leases := (await frontier.lease(9, batch=9, seconds=60)).leases:
            await frontier.complete(outcomes(leases[0]))
        before = await frontier.counts()
        assert await frontier.compact(older_than_seconds=3600.0) == 0
        assert await frontier.compact() == 49
        assert await frontier.compact() == 0
        assert await frontier.counts() == before
        assert await frontier.add(pages(*range(1, 51))) == 1

    run(server, check)
    ((left,),) = server.ask("SELECT COUNT(*) FROM gossamer_done")
    assert left == 0


def test_jobs_and_shards_of_one_database_are_apart(server: SqlServer) -> None:
    async def play() -> None:
        opened = [
            await open_sql(server.url, job, FREE, shard=shard)
            for job, shard in (("a", 0), ("a", 1), ("A", 0), ("a ", 0), ("ä", 0))
        ]
        for number, frontier in enumerate(opened):
            assert await frontier.add(pages(1, 2) + pages(10 + number)) == 3
        assert len({frontier.secret for frontier in opened}) == 4, "one secret a job"
        for number, frontier in enumerate(opened):
            (lease,) = (await frontier.lease(9, batch=9, seconds=60)).leases
            assert keys(lease) == [1, 2, 10 + number]
            (view,) = await frontier.shards()
            assert (view.shard, view.counts.leased, view.server.count("@")) == (number == 1, 3, 0)
            await frontier.aclose()

    asyncio.run(play())


def test_a_region_has_its_sites_and_those_of_nobody(server: SqlServer) -> None:
    async def play() -> None:
        anybody = await open_sql(server.url, "job", FREE, worker="x", context=ShardContext(region_of=_germany))
        europe = await open_sql(server.url, "job", FREE, worker="e", region="eu")
        asia = await open_sql(server.url, "job", FREE, worker="a", region="as")
        await anybody.add([page(1, "x.de"), page(2, "x.de"), page(3, "y.com")])
        lease = next(one for one in (await europe.lease(9, batch=1, seconds=60)).leases if one.site == "x.de")
        assert (await asia.lease(9, batch=1, seconds=60)).leases == ()
        await europe.complete(outcomes(lease), notes=[note(lease, region="as")])
        assert (await europe.lease(9, batch=1, seconds=60)).leases == ()
        assert [one.site for one in (await asia.lease(9, batch=1, seconds=60)).leases] == ["x.de"]
        (view,) = await asia.shards()
        assert set(view.regions) == {"as", ""}
        for frontier in (anybody, europe, asia):
            await frontier.aclose()

    asyncio.run(play())


def test_sites_of_a_region_and_those_of_nobody_have_their_turns(server: SqlServer) -> None:
    async def check(frontier: SqlFrontier) -> None:
        sites = [f"{number}.{end}" for end in ("de", "com") for number in range(3)]
        await frontier.add([page(10 * place + n, site) for place, site in enumerate(sites) for n in range(4)])
        served = []
        for _ in sites:
            (lease,) = (await frontier.lease(1, batch=1, seconds=60)).leases
            served.append(lease.site)
            await frontier.complete(outcomes(lease))
        assert sorted(served) == sorted(sites)

    run(server, check, region="eu", context=ShardContext(region_of=_germany))


def test_lookup_returns_everything_about_a_url(server: SqlServer) -> None:
    async def check(frontier: SqlFrontier) -> None:
        first, second = good(frontier, "https://a.example/1"), good(frontier, "https://a.example/2", depth=2)
        assert await frontier.lookup(first.url) is None
        await frontier.add([first, second])
        (lease,) = (await frontier.lease(1, batch=1, seconds=60)).leases
        about = await frontier.lookup("HTTPS://a.example/1")
        assert about is not None
        assert (about["state"], about["worker"]) == ("leased", "one")
        await frontier.complete(
            [Outcome(site=lease.site, lane=0, token=lease.token, key=first.key, status="failed", code=404)]
        )
        done, waits = await frontier.lookup(first.url), await frontier.lookup(second.url)
        assert done is not None
        assert waits is not None
        assert (done["state"], done["code"], waits["state"], waits["depth"]) == ("failed", 404, "queued", 2)
        await frontier.compact()
        gone = await frontier.lookup(first.url)
        assert gone is not None
        assert gone["state"] == "known"
        (site,) = await frontier.sites()
        assert (site["site"], site["queued"], site["stored"]) == ("a.example", 1, 1)

    run(server, check)


def test_the_last_heartbeat_of_each_worker_is_stored(server: SqlServer) -> None:
    async def check(frontier: SqlFrontier) -> None:
        for pages_done in (1, 2):
            await frontier.beat(Heartbeat(worker="w", pages=pages_done, region="eu"))
        await frontier.beat(Heartbeat(worker="W"))
        first, second = await frontier.workers()
        assert (first.worker, second.worker, second.pages, second.region) == ("W", "w", 2, "eu")
        assert 0.0 <= second.silent < 60.0
        await asyncio.to_thread(server.ask, "UPDATE gossamer_workers SET beat_at = beat_at - 700000000")
        assert await frontier.workers() == []

    run(server, check)


def test_a_worker_reads_changed_settings(server: SqlServer) -> None:
    async def check(frontier: SqlFrontier) -> None:
        await frontier.add(pages(1, 2, 3))
        other = await open_sql(server.url, "job", Settings(delay=7.0, robots=False))
        await other.aclose()
        (lease,) = (await frontier.lease(1, batch=1, seconds=60)).leases
        assert lease.delay == 7.0

    run(server, check)


def test_sites_and_workers_may_have_any_name(server: SqlServer) -> None:
    """H54. Names that a database might take for equal, cut, or read as its own words are names like others."""
    names = [
        "a.example",
        "A.example",
        "a.example ",
        "é.example",
        "e\u0301.example",
        "x';--.example",
        "%_\\.example",
        "q" * 900,
    ]

    async def check(frontier: SqlFrontier) -> None:
        await frontier.add([page(key, name, label=name) for key, name in enumerate(names, 1)])
        leases = (await frontier.lease(99, batch=9, seconds=60)).leases
        assert sorted(lease.site for lease in leases) == sorted(names)
        assert await frontier.abandon("ONE") == 0
        assert await frontier.abandon("one ") == 0
        assert await frontier.abandon("one") == len(names)

    run(server, check)


def test_a_url_that_the_database_cannot_hold_comes_out_whole(server: SqlServer) -> None:
    async def check(frontier: SqlFrontier) -> None:
        await frontier.add([Request("http://a.example/\0x", 1, "a.example")])
        (lease,) = (await frontier.lease(9, batch=9, seconds=60)).leases
        assert lease.requests[0].url == "http://a.example/\0x"

    run(server, check)


@pytest.mark.parametrize("in_packets", [True, False])
def test_many_links_come_out_as_they_went_in(server: SqlServer, in_packets: bool) -> None:
    """MariaDB gets many rows in packets, MySQL as SQL; whatever stands in them, and in some of them nothing."""
    texts = ("plain", "it's", "back\\slash\\", 'quo"ted', "für", "語", "a\0b", "?", "%s", "\\'); --")

    async def check(frontier: SqlFrontier) -> None:
        dialect: Any = frontier._database.dialect
        if isinstance(server, MariaServer) and not in_packets:
            dialect._bulk._refused = True
        await frontier.add([good(frontier, "https://a.example/")])
        (lease,) = (await frontier.lease(1, batch=1, seconds=60)).leases
        links = {f"https://a.example/{number}/{texts[number % 10]}": number % 3 for number in range(300)}
        found = tuple(good(frontier, url, meta={"n": 1} if special else None) for url, special in links.items())
        await frontier.complete([outcome(lease, lease.requests[0].key, links=found)])
        if isinstance(server, MariaServer):
            assert bool(dialect._bulk._prepared) is in_packets
        (lease,) = (await frontier.lease(1, batch=999, seconds=60)).leases
        assert [(one.url, one.referrer) for one in lease.requests] == [(url, "https://a.example/") for url in links]
        assert [bool(one.meta) for one in lease.requests] == [bool(special) for special in links.values()]

    run(server, check, Settings(delay=0.0, robots=False, site_share=1.0))


def test_a_row_that_no_worker_can_read_is_parked(server: SqlServer) -> None:
    value = {"postgresql": "'\\xc1'::bytea", "mysql": "x'c1'"}[server.scheme]

    async def check(frontier: SqlFrontier) -> None:
        await frontier.add(pages(1))
        await asyncio.to_thread(server.ask, f"UPDATE gossamer_queue SET extra = {value}")
        assert (await frontier.lease(9, batch=9, seconds=60)).leases == ()
        counts = await frontier.counts()
        assert (counts.parked, counts.leased, counts.finished) == (1, 0, True)

    run(server, check)


def test_an_emptied_database_is_an_error_and_never_finished(server: SqlServer) -> None:
    async def check(frontier: SqlFrontier) -> None:
        await frontier.add(pages(1, 2))
        await asyncio.to_thread(server.ask, "DELETE FROM gossamer_sites")
        with pytest.raises(FrontierError, match="damaged"):
            await frontier.lease(9, batch=9, seconds=60)
        for table in reversed(TABLES):
            await asyncio.to_thread(server.ask, f"DELETE FROM gossamer_{table}")
        for call in (frontier.lease(9, batch=9, seconds=60), frontier.counts(), frontier.add(pages(3))):
            with pytest.raises(JobMissing):
                await call

    run(server, check)


def test_a_job_is_joined_only_if_it_is_there_and_ours(server: SqlServer) -> None:
    async def play() -> None:
        with pytest.raises(JobMissing, match="nobody"):
            await open_sql(server.url, "nobody")
        await (await open_sql(server.url, "job", FREE)).aclose()
        await (await open_sql(server.url, "job")).aclose()
        await asyncio.to_thread(server.ask, "UPDATE gossamer_jobs SET format = 99")
        for settings in (FREE, None):
            with pytest.raises(SchemaMismatch, match="another version"):
                await open_sql(server.url, "job", settings)
        with pytest.raises(SchemaMismatch, match="tables"):
            await open_sql(server.url, "new", FREE)

    try:
        asyncio.run(play())
    finally:
        server.ask(f"UPDATE gossamer_jobs SET format = {FORMAT} WHERE format = 99")


def test_a_unix_socket_is_an_address_too(server: SqlServer) -> None:
    assert isinstance(server, (PostgresServer, MariaServer))
    url = server.socket_url

    async def play() -> None:
        frontier = await open_sql(url, "job", FREE)
        assert await frontier.add(pages(1)) == 1
        await frontier.aclose()

    asyncio.run(play())


def test_a_password_is_never_shown(server: SqlServer) -> None:
    """Neither of an address that cannot be read, nor of one whose user is refused."""
    scheme, port = server.scheme, server.port
    for url in (f"{scheme}://u:p4ss#w/rd@127.0.0.1:x/db", f"{scheme}://u:p4ss@127.0.0.1:1/db?odd=1"):
        with pytest.raises(ConfigError) as refused:
            dialect_of(url)
        assert "p4ss" not in f"{refused.value} {refused.value.hint}"

    async def play() -> None:
        with pytest.raises(FrontierError) as refused:
            await open_sql(f"{scheme}://stranger:p4ss@127.0.0.1:{port}/gossamer", "job", FREE)
        assert "p4ss" not in f"{refused.value} {refused.value.hint}"
        assert refused.value.hint

    asyncio.run(play())


def test_a_closed_site_takes_no_link_of_a_slower_worker(server: SqlServer) -> None:
    """One adds to a site while another closes it: what is queued at the end is nothing."""

    async def play() -> None:
        one, two = [await open_sql(server.url, "job", FREE, worker=name) for name in "ab"]
        for turn in range(20):
            site = f"{turn}.example"
            await one.add(pages(turn * 1000 + 1, turn * 1000 + 2, site=site))
            (lease,) = (await one.lease(9, batch=1, seconds=60)).leases
            more = pages(*range(turn * 1000 + 10, turn * 1000 + 200), site=site)
            await asyncio.gather(two.add(more), one.complete(outcomes(lease), notes=[note(lease, close="dark")]))
        counts = await one.counts()
        assert (counts.queued, counts.done, counts.failed, counts.finished) == (0, 20, 20 * 191, True)
        await one.aclose()
        await two.aclose()

    asyncio.run(play())


def test_no_site_is_put_to_sleep_while_requests_are_added(server: SqlServer) -> None:
    """One drains sites and puts them to sleep while another adds to them; nothing is left lying."""

    async def play() -> None:
        adder, taker = [await open_sql(server.url, "job", FREE, worker=name) for name in "ab"]
        total = 600

        async def add() -> None:
            for key in range(total):
                await adder.add([page(key, f"{key % 3}.example")])

        async def take() -> int:
            done = 0
            while done < total:
                grant = await taker.lease(9, batch=2, seconds=60)
                for lease in grant.leases:
                    done += (await taker.complete(outcomes(lease))).accepted
                if not grant.leases:
                    await taker.idle(grant)
            return done

        async with asyncio.timeout(60):
            _, done = await asyncio.gather(add(), take())
        assert done == total
        await adder.aclose()
        await taker.aclose()

    asyncio.run(play())


def test_a_budget_that_is_used_up_closes_the_site(server: SqlServer) -> None:
    settings = Settings(delay=0.0, robots=False, sites={"a.example": SiteSettings(budget=2)})

    async def check(frontier: SqlFrontier) -> None:
        await frontier.add(pages(1, 2, 3))
        (lease,) = (await frontier.lease(9, batch=9, seconds=60)).leases
        assert keys(lease) == [1, 2]
        await frontier.complete(outcomes(lease, links=(page(4), page(5, "b.example"))))
        (lease,) = (await frontier.lease(9, batch=9, seconds=60)).leases
        await frontier.complete(outcomes(lease))
        counts = await frontier.counts()
        assert (counts.done, counts.skipped, counts.finished) == (3, 2, True)

    run(server, check, settings)


def test_shards_share_out_what_the_job_may_store(server: SqlServer) -> None:
    settings = Settings(delay=0.0, robots=False, max_pages=5)

    async def play() -> None:
        first, second = [await open_sql(server.url, "job", settings, shard=n, alone=False) for n in (0, 1)]
        shards = Sharded([first, second], part=[0, 1], close=first.aclose)
        await divide([first, second], 5)
        await first.add(pages(*range(1, 9)))
        await second.add(pages(*range(11, 19), site="b.example"))
        stored = []
        async with asyncio.timeout(30):
            while (grant := await shards.lease(2, batch=2, seconds=60)).job != "finished":
                for lease in grant.leases:
                    stored += keys(lease)
                    home = first if lease.site == "a.example" else second
                    await home.complete(outcomes(lease))
        assert len(stored) == len(set(stored)) == 5
        await first.aclose()
        await second.aclose()

    asyncio.run(play())


def test_no_suspects_are_leased_where_they_are_not_asked_for(server: SqlServer) -> None:
    async def check(frontier: SqlFrontier) -> None:
        await frontier.add(pages(1))
        for _ in range(2):
            await frontier.lease(9, batch=9, seconds=60)
            await frontier.abandon("one", blamed=[1])
        answer = await frontier.lease_shard(9, batch=9, seconds=60, suspects=False)
        assert answer.grant.leases == ()
        assert answer.lost == 1
        (lease,) = (await frontier.lease(9, batch=9, seconds=60)).leases
        assert lease.suspect

    run(server, check)


def test_known_and_new_links_are_distinguished(server: SqlServer) -> None:
    """None, few and most of them: each is asked for in another way, and a key that was known is never queued again."""

    async def check(frontier: SqlFrontier) -> None:
        sizes = []
        for first, last in ((0, 100), (90, 190), (100, 210), (0, 230), (0, 240), (240, 250), (0, 250)):
            sizes.append(await frontier.add([page(key, f"{key % 7}.example") for key in range(first, last)]))
        assert sizes == [100, 90, 20, 20, 10, 10, 0]
        assert (await frontier.counts()).queued == 250
        taken = [key for lease in (await frontier.lease(9, batch=99, seconds=60)).leases for key in keys(lease)]
        assert sorted(taken) == list(range(250))

    run(server, check, Settings(delay=0.0, robots=False, site_share=1.0))


def test_links_of_workers_side_by_side_are_queued_once(server: SqlServer) -> None:
    """Four who find the same links at once, in other orders, queue each once, and their sites are there once."""

    async def play() -> None:
        fleet = [await open_sql(server.url, "job", FREE, worker=str(number)) for number in range(4)]
        try:
            for turn in range(5):
                links = [page(turn * 300 + key, f"{key % 40}-{turn}.example") for key in range(300)]
                added = await asyncio.gather(
                    *(one.add(links[number * 60 :] + links[: number * 60]) for number, one in enumerate(fleet))
                )
                assert sum(added) == 300
            counts = await fleet[0].counts()
            assert (counts.queued, counts.known, counts.sites) == (1500, 1500, 200)
        finally:
            for one in fleet:
                await one.aclose()

    asyncio.run(play())


def test_jobs_are_listed_and_a_database_without_tables_has_none(server: SqlServer) -> None:
    run(server, finished_at_once)
    assert asyncio.run(list_jobs(server.url)) == ["job"]
    server.ask("CREATE DATABASE bare")
    try:
        assert asyncio.run(list_jobs(f"{server.url.removesuffix('gossamer')}bare")) == []
    finally:
        server.ask("DROP DATABASE bare")


async def finished_at_once(frontier: SqlFrontier) -> None:
    assert (await frontier.counts()).finished
