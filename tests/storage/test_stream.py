"""A stream of results: programs that follow a crawl, and servers that break off, fill up or lose their answers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import redis

from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.lab.simweb.process import SimWeb
from gossamer.settings import Settings
from gossamer.storage.base import Sink
from gossamer.storage.registry import fleet_sinks
from gossamer.testing.network import FaultyRedisProxy
from gossamer.testing.servers import RedisServer
from gossamer.testing.sink_writer import visit


def opened(url: str, options: str) -> Sink:
    name = url.replace("redis://", "redis+stream://")
    (sink,) = fleet_sinks(Settings(sink=(f"{name}?{options}",)), Path("unused"), "one")
    return sink


def numbers(server: RedisServer, stream: str) -> list[int]:
    with redis.Redis.from_url(server.url) as client:
        return [int(fields[b"key"]) - 1 for _, fields in client.xrange(stream)]


async def persistent(call: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await call()
                return
            except SinkFull:
                await asyncio.sleep(0.02)


def test_a_consumer_group_gets_every_page_of_a_crawl_once(tmp_path: Path, redis_server: RedisServer) -> None:
    """Two consumers share the work, while the crawl runs."""
    stream = "followed"
    with SimWeb(sites=2, pages_per_site=15) as web, redis.Redis.from_url(redis_server.url) as client:
        client.xgroup_create(stream, "readers", id="0", mkstream=True)
        with subprocess.Popen(
            [
                *(sys.executable, "-m", "gossamer", "crawl", *web.seeds, "--job", str(tmp_path / "job"), "--quiet"),
                *("--allow-private", "--delay", "0", "--no-robots"),
                *("--sink", redis_server.url.replace("redis://", "redis+stream://") + f"?stream={stream}"),
            ],
            stdout=subprocess.DEVNULL,
        ) as crawl:
            got: dict[str, list[str]] = {"one": [], "two": []}
            idle = 0
            while crawl.poll() is None or idle < 2:
                idle += 1
                for name, urls in got.items():
                    for _, entries in client.xreadgroup("readers", name, {stream: ">"}, count=3, block=100) or ():
                        idle = 0
                        for number, fields in entries:
                            page = json.loads(fields[b"page"])
                            assert page["url"].encode() == fields[b"url"]
                            urls.append(page["url"])
                            client.xack(stream, "readers", number)
        assert crawl.returncode == 0
        assert client.xpending(stream, "readers")["pending"] == 0
    everything = got["one"] + got["two"]
    assert len(everything) == len(set(everything)) == 30
    assert all(got.values())


def test_repeated_call_adds_no_duplicates(redis_server: RedisServer) -> None:
    async def run() -> None:
        with FaultyRedisProxy(redis_server.port, fault="mute", every=7) as proxy:
            sink = opened(redis_server.url_at(proxy.port), "stream=muted")
            for number in range(10):
                some = [visit(number * 2), visit(number * 2 + 1)]
                await persistent(lambda batch=some: sink.write(batch))  # type: ignore[misc]
            assert proxy.faults
            proxy.fault = ""
            await sink.write([visit(n) for n in range(20)])
            await sink.write([visit(3, token=9)])
            await sink.aclose()

    asyncio.run(run())
    assert numbers(redis_server, "muted") == [*range(20), 3]


def test_full_server_is_waited_for_and_maxlen_bounds_the_stream() -> None:
    """F60, for data in memory."""

    async def run(server: RedisServer) -> None:
        sink, number = opened(server.url, "stream=all"), 0
        while True:
            try:
                await sink.write([visit(number, title="x" * 10_000)])
            except SinkFull:
                break
            number += 1
        assert numbers(server, "all") == list(range(number))
        with redis.Redis.from_url(server.url) as client:
            client.xtrim("all", maxlen=1, approximate=False)
        await persistent(lambda: sink.write([visit(number)]))
        assert numbers(server, "all") == [number - 1, number]
        await sink.aclose()
        sink = opened(server.url, "stream=short&maxlen=100")
        for some in range(number // 100 + 3):
            await sink.write([visit(some * 100 + n, title="x" * 1000) for n in range(100)])
        assert len(numbers(server, "short")) < 300
        await sink.aclose()
        # A server that is gone is waited for too.
        server.kill()
        sink = opened(server.url, "stream=short")
        with pytest.raises(SinkFull):
            await sink.write([visit(0)])
        await sink.aclose()

    with RedisServer(maxmemory="5mb", maxmemory_policy="noeviction") as server:
        asyncio.run(run(server))


def test_invalid_names_and_passwords_are_refused(redis_server: RedisServer) -> None:
    for wrong in ("stream={x}", "stream=x&maxlen=many", "stream=x&nosuch=1"):
        with pytest.raises(ConfigError):
            opened(redis_server.url, wrong)
    with RedisServer(password="right") as server:
        sink = opened(server.url.replace("right", "wr0ng"), "stream=x")
        with pytest.raises(SinkError) as caught:
            asyncio.run(sink.write([visit(0)]))
        assert not isinstance(caught.value, SinkFull)
        assert "wr0ng" not in f"{caught.value} {caught.value.hint}"
