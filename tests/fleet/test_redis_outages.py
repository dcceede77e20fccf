"""Workers wait for a Redis server that is unavailable for any reason, and continue automatically."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from gossamer.errors import Unavailable
from gossamer.frontier.backends import create_fleet, open_fleet
from gossamer.lab.simweb.log import gaps
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Heartbeat, Lease, Outcome
from gossamer.settings import Settings
from gossamer.testing.harness import pages
from gossamer.testing.network import Fault, FaultyRedisProxy
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import children, kill_tree, start, stored, until

DELAY = 0.05
pytestmark = pytest.mark.skipif(
    not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
)
WAYS: dict[str, Fault] = {"refused": "refuse", "reset": "reset", "closed": "hang up", "silent": "silent"}
ERRORS = {
    "loading": "LOADING Redis is loading the dataset in memory",
    "read only": "READONLY You can't write against a read only replica.",
    "in a script": "READONLY You can't write against a read only replica. script: 5a, on @user_script:201.",
    "no primary": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "no cluster": "CLUSTERDOWN The cluster is down",
    "no slot": "CLUSTERDOWN Hash slot not served",
    "disk full": "MISCONF Errors writing to the AOF file: No space left on device",
    "snapshot fails": "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist.",
    "no replicas": "NOREPLICAS Not enough good replicas to write.",
    "memory full": "OOM command not allowed when used memory > 'maxmemory'.",
    "busy": "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "too many": "ERR max number of clients reached",
}


@contextmanager
def before(server: RedisServer) -> Iterator[FaultyRedisProxy]:
    with FaultyRedisProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    return redis_server


def away(proxy: FaultyRedisProxy, how: str) -> None:
    if how in WAYS:
        proxy.fail(WAYS[how])
    else:
        proxy.error = ERRORS[how]


def back(proxy: FaultyRedisProxy) -> None:
    proxy.error = ""
    proxy.fail("")


@pytest.mark.parametrize("how", [*(way for way in WAYS if way != "silent"), *ERRORS])
def test_every_call_raises_unavailable_until_the_server_is_back(server: RedisServer, how: str) -> None:
    async def run(proxy: FaultyRedisProxy) -> None:
        url = server.url_at(proxy.port)
        frontier = await create_fleet(url, "j", Settings(delay=0.0, robots=False), worker="w")
        try:
            await frontier.add(pages(*range(8)))
            lease = (await frontier.lease(1, batch=4, seconds=600)).leases[0]
            calls = {
                "add": lambda: frontier.add(pages(20, 21)),
                "lease": lambda: frontier.lease(1, batch=1, seconds=600),
                "extend": lambda: frontier.extend([lease], seconds=600),
                "complete": lambda: frontier.complete(_done(lease)),
                "release": lambda: frontier.release([lease]),
                "abandon": lambda: frontier.abandon("nobody"),
                "counts": frontier.counts,
                "shards": frontier.shards,
                "beat": lambda: frontier.beat(Heartbeat(worker="w")),
                "workers": frontier.workers,
                "refresh": frontier.refresh,
                "steer": lambda: frontier.steer("running"),
                "sites": lambda: frontier.sites(10),
                "every_site": lambda: frontier.every_site("", 10),
                "lookup": lambda: frontier.lookup("http://a.example/1"),
                "site": lambda: frontier.site("a.example"),
                "join": lambda: _join(url),
            }
            away(proxy, how)
            for name, call in calls.items():
                assert await _is_unavailable(call), name
            grant = await _lease_when_back(frontier, proxy)
            assert grant is not None
            for call in calls.values():
                await call()  # type: ignore[no-untyped-call]
        finally:
            await frontier.aclose()

    with before(server) as proxy:
        asyncio.run(run(proxy))


async def _is_unavailable(call: Callable[[], Awaitable[object]]) -> bool:
    try:
        await call()
    except Unavailable:
        return True
    return False


async def _join(url: str) -> None:
    await (await open_fleet(url, "j", worker="x")).aclose()


def _done(lease: Lease) -> list[Outcome]:
    first = lease.requests[0]
    return [Outcome(site=lease.site, lane=lease.lane, token=lease.token, key=first.key, status="done")]


async def _lease_when_back(frontier: object, proxy: FaultyRedisProxy) -> object:
    back(proxy)
    for _ in range(100):
        try:
            return await frontier.lease(1, batch=1, seconds=600)  # type: ignore[attr-defined]
        except Unavailable:
            await asyncio.sleep(0.05)
    return None


def goes_on(server: RedisServer, folder: Path, how: str, seconds: float) -> None:
    """The same two workers crawl all of a web whose Redis is unavailable twice."""
    with before(server) as proxy, SimWeb(sites=8, pages_per_site=40, page_bytes=2000, latency_seconds=0.01) as web:
        words = ("--delay", str(DELAY), "--workers", "2", "--lease-seconds", "5", "--shards", "3")
        process = start(folder, web, "--frontier", server.url_at(proxy.port), *words)
        try:
            for share in (0.15, 0.5):
                until(lambda share=share: len(web.log()) > share * 320)  # type: ignore[misc]
                workers = children(process.pid)
                away(proxy, how)
                time.sleep(seconds)
                back(proxy)
                # They may have fetched all that they held meanwhile.
                assert sorted(children(process.pid)) == sorted(workers), "they were started again"
            assert process.wait(90) == 0, process.stderr.read() if process.stderr else ""
            said = process.stderr.read() if process.stderr else ""
        finally:
            kill_tree(process)
        assert len(workers) >= 2
        assert "Traceback" not in said
        assert set(stored(folder)) == web.plan.reachable()
        assert set(stored(folder).values()) == {1}
        assert min(gaps(web.log()).values()) >= DELAY


@pytest.mark.long
@pytest.mark.parametrize("how", [*WAYS, *ERRORS])
def test_two_workers_wait_and_go_on(server: RedisServer, tmp_path: Path, how: str) -> None:
    goes_on(server, tmp_path / "job", how, 12.0 if how == "silent" else 3.0)


def test_two_workers_wait_for_a_server_that_is_reset_and_loading(server: RedisServer, tmp_path: Path) -> None:
    goes_on(server, tmp_path / "job", "loading", 1.5)


@pytest.mark.long
def test_two_workers_wait_while_their_server_is_a_replica_of_nobody(server: RedisServer, tmp_path: Path) -> None:
    """It takes no writes, as a primary does that comes back behind its successor; then it is the primary again."""
    folder = tmp_path / "job"
    with (
        redis.Redis.from_url(server.url) as store,
        SimWeb(sites=8, pages_per_site=40, page_bytes=2000, latency_seconds=0.01) as web,
    ):
        words = ("--delay", str(DELAY), "--workers", "2", "--lease-seconds", "5", "--shards", "3")
        process = start(folder, web, "--frontier", server.url, *words)
        try:
            until(lambda: len(web.log()) > 60)
            store.replicaof("127.0.0.1", "1")
            time.sleep(3.0)
            store.replicaof("NO", "ONE")
            assert process.wait(90) == 0, process.stderr.read() if process.stderr else ""
        finally:
            kill_tree(process)
            store.replicaof("NO", "ONE")
        assert set(stored(folder)) == web.plan.reachable()
        assert min(gaps(web.log()).values()) >= DELAY
