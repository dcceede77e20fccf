"""A job over several Redis servers and in a Redis Cluster, with servers that join and fail during the crawl."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from gossamer.errors import ConfigError, JobMissing, Unavailable
from gossamer.frontier.backends import list_jobs
from gossamer.frontier.placement import placement, shard_of
from gossamer.frontier.redis.connection import server_name
from gossamer.frontier.redis.move import RedisShardMove, spread
from gossamer.frontier.redis.server import job_key
from gossamer.frontier.redis.shards import open_redis
from gossamer.lab.simweb.log import gaps, max_overlap
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Request
from gossamer.settings import Settings
from gossamer.testing.harness import keys, outcomes, page, pages
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import environment, kill_tree, start, stored, until

DELAY = 0.02
AT_ONCE = Settings(delay=0.0, robots=False)


@pytest.fixture
def servers(redis_server: RedisServer) -> Iterator[list[RedisServer]]:
    """Four servers that are started for the test."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer(appendonly="yes")) for _ in range(4)]


def several(servers: list[RedisServer]) -> str:
    return ",".join(server.url for server in servers)


def is_whole(web: SimWeb, folder: Path) -> None:
    log = web.log()
    assert not web.judge().missed
    assert set(stored(folder)) == web.plan.reachable()
    assert set(stored(folder).values()) == {1}
    assert min(gaps(log).values()) >= DELAY
    assert max(max_overlap(log).values()) == 1


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 9, 64, 600])
def test_every_server_has_its_share_of_the_shards(shards: int) -> None:
    for count in range(1, 6):
        servers = [f"10.0.0.{number}:6379/0" for number in range(count)]
        found = placement(shards, servers)
        assert len(found) == shards
        assert {found.count(server) for server in servers} <= {shards // count, -(-shards // count)}
        assert placement(shards, servers[::-1]) == found, "the order of the addresses is nothing"


def test_a_further_server_takes_its_share_from_all_and_few_others_move() -> None:
    three, four = ["a:1/0", "b:1/0", "c:1/0"], ["a:1/0", "b:1/0", "c:1/0", "d:1/0"]
    before, after = placement(600, three), placement(600, four)
    moved = [shard for shard in range(600) if before[shard] != after[shard]]
    assert {before[shard] for shard in moved if after[shard] == "d:1/0"} == set(three)
    assert 150 <= len(moved) < 170


def test_sites_are_spread_evenly_and_permanently() -> None:
    found = [shard_of(f"{number}.example", 16) for number in range(16_000)]
    assert all(800 < found.count(shard) < 1200 for shard in range(16))
    # Frontiers outlive versions: another result here would lose the sites of every job.
    assert [shard_of(f"{number}.example", 16) for number in range(8)] == [1, 9, 2, 5, 9, 5, 7, 15]


def test_a_crawl_over_three_servers_uses_them_all_and_is_whole(servers: list[RedisServer], tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=12, pages_per_site=25, page_bytes=2000, latency_seconds=0.005) as web:
        process = start(
            folder, web, "--frontier", several(servers[:3]), "--delay", str(DELAY), "--workers", "2", "--shards", "9"
        )
        assert process.wait(60) == 0, process.stderr.read() if process.stderr else ""
        kill_tree(process)
        is_whole(web, folder)
        assert not web.judge().repeated
    places = placement(9, [server_name(server.url) for server in servers[:3]])
    found = 0
    for server in servers[:3]:
        for site in sites_on(server):
            assert places[shard_of(site, 9)] == server_name(server.url)
            found += 1
    assert found == 12


def sites_on(server: RedisServer) -> list[str]:
    with redis.Redis.from_url(server.url) as store:
        return [key.decode().partition(":site:")[2] for key in store.scan_iter("*:site:*", count=1000)]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "gossamer", *words]


@pytest.mark.long
def test_a_server_that_is_added_in_the_middle_takes_its_shards(servers: list[RedisServer], tmp_path: Path) -> None:
    """The command that moves them is killed twice, and run again; workers that knew three servers find the fourth."""
    folder = tmp_path / "job"
    with SimWeb(sites=16, pages_per_site=60, page_bytes=2000, latency_seconds=0.01) as web:
        crawl = start(
            folder, web, "--frontier", several(servers[:3]), "--delay", "0.7", "--workers", "2", "--shards", "12",
            "--forget-seconds", "5",
        )  # fmt: skip
        until(lambda: len(web.log()) > 100)
        spreading = command("spread", str(folder), "--frontier", several(servers))
        for seconds in (0.5, 7.0):
            killed = subprocess.Popen(
                spreading, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
            )
            time.sleep(seconds)
            killed.kill()
            killed.wait()
        done = subprocess.run(spreading, capture_output=True, text=True, timeout=60, env=environment(), check=False)
        assert done.returncode == 0, done.stderr
        assert f"12 shards on {len(servers)} servers" in done.stderr
        under_way = len(web.log())
        assert under_way < len(web.plan.reachable()), "it was to be in the middle"
        assert crawl.wait(90) == 0, crawl.stderr.read() if crawl.stderr else ""
        kill_tree(crawl)
        is_whole(web, folder)
        assert not web.judge().repeated
    places = placement(12, [server_name(server.url) for server in servers])
    for server in servers:
        assert all(places[shard_of(site, 12)] == server_name(server.url) for site in sites_on(server))
    assert sum(len(sites_on(server)) for server in servers) == 16


async def all_moves(url: str, job: str) -> list[RedisShardMove]:
    return [move async for move in spread(url, job)]


@pytest.mark.long
def test_moving_keeps_leases_clocks_and_what_is_known(servers: list[RedisServer]) -> None:
    async def run() -> None:
        one, both = servers[0].url, several(servers[:2])
        old = await open_redis(one, "j", Settings(delay=30.0, robots=False), worker="w", shards="8")
        await old.add([page(number, f"{number}.example") for number in range(64)])
        await old.add([page(number + 100, f"{number}.example") for number in range(64)])
        leases = (await old.lease(20, batch=1, seconds=60)).leases
        assert len(leases) == 20
        moves = await all_moves(both, "j")
        names = [server_name(server.url) for server in servers[:2]]
        assert [move.target for move in moves] == placement(8, names)
        assert await all_moves(both, "j") == [RedisShardMove(move.shard, move.target, move.target, 0) for move in moves]
        receipt = await old.complete([outcome for lease in leases for outcome in outcomes(lease)])
        assert (receipt.accepted, receipt.stale) == (20, 0), "a worker that does not know of it finds the new place"
        new = await open_redis(servers[1].url, "j", worker="x")
        assert await new.add([page(number, f"{number}.example") for number in range(64)]) == 0
        counts = await new.counts()
        assert (counts.done, counts.queued, counts.leased, counts.sites) == (20, 108, 0, 64)
        rest = (await new.lease(100, batch=1, seconds=60)).leases
        assert {lease.site for lease in rest} == {f"{n}.example" for n in range(64)} - {lease.site for lease in leases}
        # All back to the first: what an earlier move left there is no longer true.
        assert {move.target for move in await all_moves(one, "j")} == {server_name(one)}
        assert (await old.counts()) == (await new.counts())
        assert len(await new.extend(rest, seconds=60)) == 44
        with redis.Redis.from_url(servers[1].url) as store:
            assert all(key.endswith((b"}:job", b"}:root")) for key in store.scan_iter(count=1000))
        await old.aclose()
        await new.aclose()

    asyncio.run(run())


def test_a_server_that_is_down_stops_its_own_shards_only(servers: list[RedisServer]) -> None:
    async def run() -> None:
        frontier = await open_redis(several(servers[:3]), "j", AT_ONCE, worker="w", shards="12")
        sites = [f"{number}.example" for number in range(60)]
        await frontier.add([page(number, site) for number, site in enumerate(sites)])
        names = [server_name(server.url) for server in servers[:3]]
        places = placement(12, names)
        down = names.index(places[shard_of(sites[0], 12)])
        lost = {site for site in sites if places[shard_of(site, 12)] == names[down]}
        servers[down].stop()
        found: list[Any] = []
        while len(found) < 60 - len(lost):
            found += (await frontier.lease(100, batch=1, seconds=60)).leases
        assert {lease.site for lease in found} == set(sites) - lost
        with pytest.raises(Unavailable):
            await frontier.counts()
        with pytest.raises(Unavailable):
            # A link to a site of the lost server: nothing may be acknowledged.
            await frontier.complete(outcomes(found[0], links=(Request("http://x/", 999, next(iter(lost))),)))
        servers[down].start()
        while (await frontier.counts()).queued == 0:
            await asyncio.sleep(0.05)
        counts = await frontier.counts()
        assert (counts.leased, counts.done, counts.finished) == (len(found), 0, False)
        assert (await frontier.complete(outcomes(found[0]))).accepted == 1
        await frontier.aclose()

    asyncio.run(run())


def test_a_server_that_comes_back_empty_is_a_missing_job_and_never_finished(servers: list[RedisServer]) -> None:
    async def run() -> None:
        url = several(servers[:3])
        frontier = await open_redis(url, "j", AT_ONCE, shards="6")
        await frontier.add(pages(1, 2, 3))
        emptied = placement(6, [server_name(server.url) for server in servers[:3]])[0]
        with redis.Redis.from_url(f"redis://{emptied}") as store:
            store.flushall()
        for call in (frontier.counts(), frontier.lease(100, batch=1, seconds=60)):
            with pytest.raises(JobMissing):
                await call
        with pytest.raises(JobMissing, match="shard"):
            await open_redis(url, "j", AT_ONCE)
        await frontier.aclose()

    asyncio.run(run())


def test_a_job_may_have_more_shards_than_a_client_has_connections(servers: list[RedisServer]) -> None:
    async def run() -> None:
        frontier = await open_redis(servers[0].url, "many", AT_ONCE, shards="256")
        assert await frontier.add([page(number, f"{number}.example") for number in range(600)]) == 600
        assert (await frontier.counts()).queued == 600
        assert len((await frontier.lease(600, batch=1, seconds=60)).leases) == 600
        assert (await frontier.counts()).leased == 600
        await frontier.aclose()

    asyncio.run(run())


def test_a_worker_that_is_pinned_takes_its_part_of_the_sites_and_ends_with_the_others(
    servers: list[RedisServer], tmp_path: Path
) -> None:
    async def run() -> None:
        url = servers[0].url
        low = await open_redis(url, "j", AT_ONCE, worker="low", shards="0-3/8")
        high = await open_redis(url, "j", worker="high", shards="4-7/8")
        for wrong in ("0-1/4", "16"):
            with pytest.raises(ConfigError, match="8 shards"):
                await open_redis(url, "j", shards=wrong)
        sites = [f"{number}.example" for number in range(40)]
        await low.add([page(number, site) for number, site in enumerate(sites)])
        mine = (await low.lease(100, batch=9, seconds=60)).leases
        assert {lease.site for lease in mine} == {site for site in sites if shard_of(site, 8) < 4}
        for lease in mine:
            await low.complete(outcomes(lease))
        assert (await low.lease(100, batch=9, seconds=60)).job == "running", "another has pages that may bring links"
        theirs = (await high.lease(100, batch=9, seconds=60)).leases
        assert {lease.site for lease in theirs} == {site for site in sites if shard_of(site, 8) >= 4}
        for lease in theirs[1:]:
            await high.complete(outcomes(lease))
        link = page(77, next(site for site in sites if shard_of(site, 8) < 4))
        await high.complete(outcomes(theirs[0], links=(link,)))
        found: list[int] = []
        while (grant := await low.lease(9, batch=9, seconds=60)).job != "finished":
            for lease in grant.leases:
                found += keys(lease)
                await low.complete(outcomes(lease))
            await low.idle(grant)
        assert found == [77]
        assert (await high.lease(9, batch=9, seconds=60)).job == "finished"
        await low.aclose()
        await high.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(3))
def test_a_limit_over_shards_is_never_passed_and_is_reached(servers: list[RedisServer], seed: int) -> None:
    async def run() -> None:
        choose = random.Random(seed)
        url, limited = several(servers[:2]), Settings(delay=0.0, robots=False, max_pages=50)
        workers = [await open_redis(url, "j", limited, worker=str(number), shards="6") for number in range(3)]
        await workers[0].add([page(number, f"{number % 17}.example") for number in range(200)])
        stored = 0
        while True:
            worker = choose.choice(workers)
            grant = await worker.lease(choose.randint(1, 4), batch=choose.randint(1, 4), seconds=60)
            for lease in grant.leases:
                if choose.random() < 0.2:
                    await worker.release([lease])
                    continue
                stored += len(lease.requests)
                await worker.complete(outcomes(lease))
            assert stored <= 50
            if grant.job == "finished":
                break
        assert stored == 50
        assert (await workers[0].counts()).stored == 50
        for worker in workers:
            await worker.aclose()

    asyncio.run(run())


class Cluster:
    """A Redis Cluster of real servers."""

    def __init__(self, stack: ExitStack, nodes: int, *, replicas: int = 0) -> None:
        self._stack = stack
        self.nodes = [self._node() for _ in range(nodes * (1 + replicas))]
        places = [f"127.0.0.1:{node.port}" for node in self.nodes]
        self._ask("--cluster", "create", *places, "--cluster-replicas", str(replicas), "--cluster-yes")
        until(self._is_whole)
        # A replica that has not synced with its primary yet cannot replace it.
        until(lambda: all("master_link_status:down" not in self._ask("-p", str(n.port), "info") for n in self.nodes))

    def _node(self) -> RedisServer:
        return self._stack.enter_context(
            RedisServer(
                cluster_enabled="yes",
                cluster_node_timeout="2000",
                appendonly="yes",
                cluster_config_file="n.conf",
                repl_diskless_sync_delay="0",
            )
        )

    def _ask(self, *words: str) -> str:
        done = subprocess.run(["redis-cli", *words], capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _is_whole(self) -> bool:
        return all(
            "cluster_state:ok" in self._ask("-p", str(node.port), "cluster", "info")
            and f"cluster_known_nodes:{len(self.nodes)}" in self._ask("-p", str(node.port), "cluster", "info")
            for node in self.nodes
        )

    def grow(self) -> RedisServer:
        """Add a node that has no slots yet."""
        self.nodes.append(self._node())
        place = f"127.0.0.1:{self.nodes[-1].port}"
        self._ask("--cluster", "add-node", place, f"127.0.0.1:{self.nodes[0].port}")
        until(self._is_whole)
        return self.nodes[-1]

    def rebalance(self) -> None:
        """Give every node its share of the slots."""
        first = f"127.0.0.1:{self.nodes[0].port}"
        self._ask("--cluster", "rebalance", first, "--cluster-use-empty-masters", "--cluster-yes")


@pytest.fixture
def cluster(redis_server: RedisServer) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, 3)


@pytest.mark.long
def test_a_crawl_in_a_cluster_goes_on_while_slots_move_to_a_new_node(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=16, pages_per_site=60, page_bytes=2000, latency_seconds=0.01) as web:
        crawl = start(
            folder, web, "--frontier", cluster.nodes[0].url, "--delay", "0.25", "--workers", "2", "--shards", "24",
            "--lease-seconds", "4",
        )  # fmt: skip
        node = cluster.grow()
        until(lambda: len(web.log()) > 100)
        assert len(web.log()) < len(web.plan.reachable()) / 2, "it was to be in the middle"
        cluster.rebalance()
        assert crawl.wait(90) == 0, crawl.stderr.read() if crawl.stderr else ""
        kill_tree(crawl)
        is_whole(web, folder)
        assert not web.judge().repeated
    with redis.Redis.from_url(node.url) as store:
        assert any(b":site:" in key for key in store.scan_iter(count=1000))


def test_jobs_in_a_cluster_are_listed_whatever_nodes_they_are_on(cluster: Cluster) -> None:
    async def run() -> None:
        for job in ("one", "two", "three", "four", "five"):
            await (await open_redis(cluster.nodes[0].url, job, AT_ONCE)).aclose()
        assert await list_jobs(cluster.nodes[1].url) == ["five", "four", "one", "three", "two"]

    asyncio.run(run())


def test_a_call_in_a_slot_that_is_on_its_way_changes_nothing(cluster: Cluster) -> None:
    """Half of the keys are on each node: a script that ran there would see half a frontier."""

    async def run() -> None:
        frontier = await open_redis(cluster.nodes[0].url, "j", AT_ONCE, worker="w")
        await frontier.add(pages(*range(50)))
        lease = (await frontier.lease(1, batch=10, seconds=60)).leases[0]
        before = await frontier.counts()
        stores = [redis.Redis.from_url(node.url) for node in cluster.nodes]
        slot = stores[0].execute_command("CLUSTER", "KEYSLOT", job_key("j"))  # type: ignore[no-untyped-call]
        source = next(store for store in stores if store.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot))  # type: ignore[no-untyped-call]
        target = next(store for store in stores if store is not source)
        names = {store: store.execute_command("CLUSTER", "MYID") for store in (source, target)}  # type: ignore[no-untyped-call]
        target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])  # type: ignore[no-untyped-call]
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])  # type: ignore[no-untyped-call]
        moving = source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)  # type: ignore[no-untyped-call]
        port = target.connection_pool.connection_kwargs["port"]
        for key in moving:
            source.execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000)  # type: ignore[no-untyped-call]
            for call in (frontier.complete(outcomes(lease)), frontier.lease(1, batch=1, seconds=60)):
                with pytest.raises(Unavailable):
                    await call
        for store in stores:
            store.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[target])  # type: ignore[no-untyped-call]
        assert await frontier.counts() == before
        assert (await frontier.complete(outcomes(lease))).accepted == 10
        for store in stores:
            store.close()
        await frontier.aclose()

    asyncio.run(run())


@pytest.mark.long
def test_f31_the_replica_of_a_node_that_dies_takes_its_place(redis_server: RedisServer, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with (
        ExitStack() as stack,
        SimWeb(sites=12, pages_per_site=30, page_bytes=2000, latency_seconds=0.01) as web,
    ):
        cluster = Cluster(stack, 3, replicas=1)
        crawl = start(
            folder, web, "--frontier", cluster.nodes[0].url, "--delay", "0.2", "--workers", "2", "--shards", "12",
            "--lease-seconds", "2",
        )  # fmt: skip
        until(lambda: len(web.log()) > 40)
        # The address that the crawl was given is the one that dies.
        cluster.nodes[0].kill()
        assert crawl.wait(90) == 0, crawl.stderr.read() if crawl.stderr else ""
        kill_tree(crawl)
        is_whole(web, folder)


@pytest.mark.long
def test_a_stopped_server_in_a_fleet_of_three_loses_nothing(servers: list[RedisServer], tmp_path: Path) -> None:
    """One of three is killed and comes back: its sites wait, and the set is whole."""
    folder = tmp_path / "job"
    with SimWeb(sites=12, pages_per_site=40, page_bytes=2000, latency_seconds=0.005) as web:
        crawl = start(
            folder, web, "--frontier", several(servers[:3]), "--delay", str(DELAY), "--workers", "2", "--shards", "9",
            "--lease-seconds", "2",
        )  # fmt: skip
        until(lambda: len(web.log()) > 60)
        os.kill(servers[1].pid, signal.SIGSTOP)
        time.sleep(1.0)
        servers[1].restart()
        assert crawl.wait(90) == 0, crawl.stderr.read() if crawl.stderr else ""
        kill_tree(crawl)
        log = web.log()
        assert not web.judge().missed
        assert set(stored(folder)) == web.plan.reachable()
        assert set(stored(folder).values()) == {1}
        assert min(gaps(log).values()) >= DELAY
