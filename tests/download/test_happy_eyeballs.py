"""Hosts with several addresses, the first of which is unreachable, resolved by a local name server."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator

import pytest

from gossamer.clock import SystemClock
from gossamer.download import open_downloader
from gossamer.download.connections import BetterAddress, first_connected, race_addresses
from gossamer.errors import Forbidden, NameUnknown, TimedOut
from gossamer.model import Request
from gossamer.settings import build
from gossamer.testing.network import NameServer

HOLES = ["127.0.0.81", "127.0.0.82"]


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is a black hole at the addresses of HOLES, and free at the others."""
    held: list[socket.socket] = []
    found = 0
    for address in HOLES:
        hole = socket.create_server((address, found), backlog=0)
        found = hole.getsockname()[1]
        # With a full queue, further connections are neither accepted nor refused.
        held += [hole, socket.create_connection((address, found))]
    yield found
    for one in held:
        one.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(1.2 if b" /slow " in head else 0)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    except (OSError, asyncio.IncompleteReadError):
        writer.close()


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_unreachable_address_does_not_cost_the_connect_timeout(kind: str, port: int) -> None:
    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.83", port)
        async with server, NameServer({"a.example": [*HOLES, "127.0.0.83"], "hole.example": HOLES}) as names:
            values = {"allow_private": True, "nameservers": [names.address], "downloader": kind}
            downloader = open_downloader(build({**values, "connect_seconds": 20}), clock=SystemClock())
            for path in ("", "slow", ""):
                async with asyncio.timeout(10):
                    found = await downloader.fetch(Request(url=f"http://a.example:{port}/{path}"))
                assert (found.body, found.address) == (b"ok", "127.0.0.83")
            assert names.asked["a.example"] == 1
            with pytest.raises(NameUnknown):
                await downloader.fetch(Request(url=f"http://nobody.example:{port}/"))
            await downloader.aclose()
            short = open_downloader(build({**values, "connect_seconds": 0.6}), clock=SystemClock())
            with pytest.raises(TimedOut):
                await short.fetch(Request(url=f"http://hole.example:{port}/"))
            await short.aclose()

    asyncio.run(main())


def test_slow_response_is_not_an_unreachable_address(port: int) -> None:
    """The connected address is kept, however slow the response is: the page is requested once."""
    heads: list[bytes] = []

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if head := await reader.read(1000):
            heads.append(head)
            await asyncio.sleep(1.5)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async def main() -> None:
        one = await asyncio.start_server(slow, "127.0.0.83", port)
        two = await asyncio.start_server(slow, "127.0.0.84", port)
        async with one, two, NameServer({"a.example": ["127.0.0.83", "127.0.0.84"]}) as names:
            values = {"allow_private": True, "nameservers": [names.address]}
            downloader = open_downloader(build(values), clock=SystemClock())
            assert (await downloader.fetch(Request(url=f"http://a.example:{port}/"))).body == b"ok"
            await downloader.aclose()

    asyncio.run(main())
    assert len(heads) == 1


def test_one_forbidden_address_forbids_the_name() -> None:
    """H06: also a forbidden spare address is never connected to."""

    async def main() -> None:
        async with NameServer({"a.example": ["192.0.2.1", "127.0.0.1"]}) as names:
            downloader = open_downloader(build({"nameservers": [names.address]}), clock=SystemClock())
            with pytest.raises(Forbidden):
                await downloader.fetch(Request(url="http://a.example/"))
            await downloader.aclose()

    asyncio.run(main())


def test_first_address_to_connect_wins(port: int) -> None:
    async def main() -> None:
        async with await asyncio.start_server(answer, "127.0.0.83", port):
            assert await first_connected([*HOLES, "127.0.0.83"], port, seconds=20) == "127.0.0.83"
            # Refused at once, so the next begins at once.
            assert await first_connected(["127.0.0.85", "127.0.0.83"], port, seconds=20) == "127.0.0.83"
            assert await first_connected(["127.0.0.85"], port, seconds=20) is None
            assert await first_connected(HOLES, port, seconds=0.6) is None

    asyncio.run(main())


def test_exchange_that_fails_while_cancelled_is_not_logged(port: int) -> None:
    output: list[object] = []

    async def exchange() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ConnectionError("too late")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: output.append(context))
        async with await asyncio.start_server(answer, "127.0.0.83", port):
            with pytest.raises(BetterAddress):
                await race_addresses(exchange(), [HOLES[0], "127.0.0.83"], port, seconds=5)
            await asyncio.sleep(0)
        gc.collect()

    asyncio.run(main())
    assert output == []
