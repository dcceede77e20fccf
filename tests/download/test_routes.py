"""Generations of hosts: shared, bounded, and dropped when unused."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Awaitable, Callable
from math import inf

import pytest

from gossamer.clock import ManualClock
from gossamer.download import routes as module
from gossamer.download.routes import Route, Routes


class Client:
    def __init__(self, pins: dict[str, str]) -> None:
        self.pins = pins


def run(test: Callable[[Routes[Client], ManualClock, list[dict[str, str]]], Awaitable[None]], max_hosts: int) -> None:
    built: list[dict[str, str]] = []

    def build(pins: dict[str, str]) -> Client:
        built.append(pins)
        return Client(pins)

    async def main() -> None:
        clock = ManualClock()
        await test(Routes(build, clock, max_hosts=max_hosts), clock, built)

    asyncio.run(main())


def name(number: int) -> Route[Client]:
    return Route(f"h{number}.test", "127.0.0.1", (), inf)


def client(route: Route[Client]) -> Client:
    assert route.generation is not None
    return route.generation.client


def test_hosts_opened_together_share_a_client() -> None:
    async def test(routes: Routes[Client], clock: ManualClock, built: list[dict[str, str]]) -> None:
        opened = await asyncio.gather(*(routes.open(name(number)) for number in range(450)))
        assert [len(pins) for pins in built] == [200, 200, 50]
        assert len({client(route) for route in opened}) == 3
        assert all(client(route).pins[route.host] == "127.0.0.1" for route in opened)
        assert all(routes.find(route.host) is route for route in opened)

    run(test, 1000)


def test_concurrent_opens_of_a_host_share_a_route() -> None:
    async def test(routes: Routes[Client], clock: ManualClock, built: list[dict[str, str]]) -> None:
        first, second = await asyncio.gather(routes.open(name(1)), routes.open(name(1)))
        assert first is second
        assert built == [{"h1.test": "127.0.0.1"}]

    run(test, 10)


def test_cancelled_waiter_does_not_affect_others() -> None:
    async def test(routes: Routes[Client], clock: ManualClock, built: list[dict[str, str]]) -> None:
        tasks = [asyncio.create_task(routes.open(name(1))) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        assert client(await tasks[1]).pins

    run(test, 10)


def test_literal_addresses_share_a_client() -> None:
    async def test(routes: Routes[Client], clock: ManualClock, built: list[dict[str, str]]) -> None:
        for number in range(1, 20):
            await routes.open(Route(f"127.0.0.{number}", f"127.0.0.{number}", (), inf))
        await routes.open(Route("[::1]", "::1", (), inf))
        assert built == [{}]

    run(test, 100)


def test_number_of_hosts_is_bounded_and_the_oldest_are_dropped() -> None:
    async def test(routes: Routes[Client], clock: ManualClock, built: list[dict[str, str]]) -> None:
        for number in range(100):
            await routes.open(name(number))
            clock.advance(module.IDLE_SECONDS / 20)
            assert len(routes) <= 10
        assert routes.find("h99.test") is not None
        assert routes.find("h0.test") is None
        for number in range(100):
            await routes.open(Route(f"127.0.0.{number}", f"127.0.0.{number}", (), inf))
            assert len(routes) <= 10

    run(test, 10)


def test_routes_in_use_move_to_the_next_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GENERATIONS", 5)

    async def test(routes: Routes[Client], clock: ManualClock, built: list[dict[str, str]]) -> None:
        busy = await routes.open(name(0))
        for number in range(1, 50):
            await routes.open(name(number))
            busy.used_at = clock.monotonic()
            assert routes.find("h0.test") is busy
            assert client(busy).pins["h0.test"] == "127.0.0.1"
            clock.advance(1)
        assert len(built) == 50

    run(test, 1000)


def test_idle_generation_is_dropped_with_its_client() -> None:
    async def test(routes: Routes[Client], clock: ManualClock, built: list[dict[str, str]]) -> None:
        route = await routes.open(name(1))
        gone = weakref.ref(client(route))
        clock.advance(module.IDLE_SECONDS + 1)
        await routes.open(name(2))
        assert routes.find("h1.test") is None
        assert gone() is not None, "who is fetching keeps it"
        del route
        gc.collect()
        assert gone() is None

    run(test, 1000)


def test_a_new_address_replaces_the_old_one() -> None:
    async def test(routes: Routes[Client], clock: ManualClock, built: list[dict[str, str]]) -> None:
        old = await routes.open(name(1))
        new = await routes.open(Route("h1.test", "127.0.0.2", (), inf))
        assert routes.find("h1.test") is new
        assert client(new).pins == {"h1.test": "127.0.0.2"}
        routes.forget(old)
        assert routes.find("h1.test") is new
        routes.forget(new)
        assert routes.find("h1.test") is None

    run(test, 1000)


def test_client_build_error_reaches_the_callers() -> None:
    def build(pins: dict[str, str]) -> Client:
        raise OSError("no certificates")

    async def main() -> None:
        routes = Routes(build, ManualClock(), max_hosts=10)
        for number in range(2):
            with pytest.raises(OSError, match="no certificates"):
                await routes.open(name(number))

    asyncio.run(main())


FEW_FILES = """
import asyncio, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from gossamer.clock import SystemClock
from gossamer.download import open_downloader
from gossamer.model import Request
from gossamer.settings import build

async def main(port):
    settings = build({"allow_private": True, "resolve": ["*.test=127.0.0.1"], "concurrency": 200})
    downloader = open_downloader(settings, clock=SystemClock())
    urls = [f"http://h{number}.test:{port}/" for number in range(200)]
    answers = await asyncio.gather(*(downloader.fetch(Request(url=url)) for url in urls))
    assert {answer.body for answer in answers} == {b"ok"}
    await downloader.aclose()

asyncio.run(main(sys.argv[1]))
os._exit(0)
"""


def test_two_hundred_hosts_are_fetched_with_sixty_four_descriptors() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            await asyncio.sleep(0.01)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FEW_FILES, str(port), stderr=asyncio.subprocess.PIPE
        )
        _, errors = await child.communicate()
        assert child.returncode == 0, errors.decode()
        server.close()

    asyncio.run(main())
