"""The resolver, against a name server of our own."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gossamer.clock import ManualClock, SystemClock
from gossamer.download import dns
from gossamer.download.dns import Resolver
from gossamer.errors import ConfigError, NameUnknown, NameUnresolved


class NameServer(asyncio.DatagramProtocol):
    """Knows the A records it is given; `dead.*` gets no answer, `broken.*` SERVFAIL, everything else NXDOMAIN."""

    def __init__(self, records: dict[str, list[str]], ttl: int = 300) -> None:
        self.records, self.ttl = records, ttl
        self.asked: Counter[str] = Counter()
        self.busy = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += data[at] + 1
        name, kind, question = ".".join(labels), int.from_bytes(data[at + 1 : at + 3], "big"), data[12 : at + 5]
        if kind == 1:
            self.asked[name] += 1
        if len(self.asked) >= 20:
            self.busy.set()
        if name.startswith("dead"):
            return
        code = 2 if name.startswith("broken") else 0 if name in self.records else 3
        found = self.records.get(name, []) if kind == 1 else []
        answers = b"".join(
            b"\xc0\x0c\0\1\0\1" + self.ttl.to_bytes(4, "big") + b"\0\4" + socket.inet_aton(ip) for ip in found
        )
        head = data[:2] + bytes((0x81, 0x80 | code)) + b"\0\1" + len(found).to_bytes(2, "big") + b"\0\0\0\0"
        self.transport.sendto(head + question + answers, address)


def run(
    test: Callable[[Resolver, NameServer], Awaitable[None]],
    records: dict[str, list[str]] | None = None,
    *,
    ttl: int = 300,
    clock: Any = None,
    overrides: tuple[str, ...] = (),
    try_seconds: float = 5.0,
) -> None:
    async def main() -> None:
        server = NameServer(records or {}, ttl)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: server, ("127.0.0.1", 0))
        address = f"127.0.0.1:{transport.get_extra_info('sockname')[1]}"
        resolver = Resolver(clock or SystemClock(), overrides, nameservers=[address], try_seconds=try_seconds, tries=1)
        try:
            await test(resolver, server)
        finally:
            await resolver.aclose()
            transport.close()

    asyncio.run(main())


def test_all_addresses_are_given_and_kept_for_their_time() -> None:
    clock = ManualClock()

    async def test(resolver: Resolver, server: NameServer) -> None:
        answer = await resolver.resolve("a.example")
        assert set(answer.addresses) == {"192.0.2.1", "192.0.2.2"}
        assert answer.expires_at == clock.monotonic() + 300
        clock.advance(299)
        assert await resolver.resolve("a.example") == answer
        assert server.asked["a.example"] == 1
        clock.advance(2)
        assert (await resolver.resolve("a.example")).expires_at > answer.expires_at

    run(test, {"a.example": ["192.0.2.1", "192.0.2.2"]}, clock=clock)


def test_a_time_of_zero_is_not_taken_at_its_word() -> None:
    clock = ManualClock()

    async def test(resolver: Resolver, server: NameServer) -> None:
        answer = await resolver.resolve("a.example")
        assert answer.expires_at == clock.monotonic() + dns.SHORTEST_SECONDS

    run(test, {"a.example": ["192.0.2.1"]}, ttl=0, clock=clock)


def test_names_that_do_not_exist_are_final_and_remembered_for_a_while() -> None:
    clock = ManualClock()

    async def test(resolver: Resolver, server: NameServer) -> None:
        for _ in range(3):
            with pytest.raises(NameUnknown):
                await resolver.resolve("nobody.example")
        assert server.asked["nobody.example"] == 1
        clock.advance(dns.UNKNOWN_SECONDS + 1)
        with pytest.raises(NameUnknown):
            await resolver.resolve("nobody.example")
        assert server.asked["nobody.example"] == 2

    run(test, clock=clock)


def test_names_without_an_address_or_that_are_no_names_are_unknown() -> None:
    async def test(resolver: Resolver, server: NameServer) -> None:
        for name in ("empty.example", "a..b", "x" * 70 + ".example"):
            with pytest.raises(NameUnknown):
                await resolver.resolve(name)

    run(test, {"empty.example": []})


def test_servers_that_fail_or_stay_silent_leave_the_name_unresolved() -> None:
    async def test(resolver: Resolver, server: NameServer) -> None:
        for name in ("broken.example", "dead.example"):
            with pytest.raises(NameUnresolved):
                await resolver.resolve(name)

    run(test, try_seconds=0.1)


def test_dead_names_do_not_hold_up_others() -> None:
    async def test(resolver: Resolver, server: NameServer) -> None:
        dead = [asyncio.create_task(resolver.resolve(f"dead{number}.example")) for number in range(100)]
        await server.busy.wait()
        assert (await resolver.resolve("live.example")).addresses == ("192.0.2.1",)
        assert not any(task.done() for task in dead)
        for task in dead:
            task.cancel()
        await asyncio.gather(*dead, return_exceptions=True)

    run(test, {"live.example": ["192.0.2.1"]}, try_seconds=60.0)


def test_look_ups_of_one_name_at_once_are_one_question() -> None:
    async def test(resolver: Resolver, server: NameServer) -> None:
        tasks = [asyncio.create_task(resolver.resolve("a.example")) for _ in range(50)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert {answer.addresses for answer in answers[1:]} == {("192.0.2.1",)}  # type: ignore[union-attr]
        assert server.asked["a.example"] == 1

    run(test, {"a.example": ["192.0.2.1"]})


def test_overrides_go_first_in_their_order() -> None:
    async def test(resolver: Resolver, server: NameServer) -> None:
        assert (await resolver.resolve("a.test")).addresses == ("127.0.0.9",)
        assert (await resolver.resolve("B.C.TEST.")).addresses == ("127.0.0.1",)
        assert (await resolver.resolve("six.example")).addresses == ("::1",)
        assert not server.asked

    run(test, overrides=("a.test=127.0.0.9", "*.test=127.0.0.1", "six.*=[::1]"))


def test_this_machine_is_never_asked_for() -> None:
    async def test(resolver: Resolver, server: NameServer) -> None:
        for name in ("localhost", "a.localhost", "localhost."):
            assert (await resolver.resolve(name)).addresses == ("127.0.0.1", "::1")
        assert not server.asked

    run(test)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "MAX_NAMES", 10)
    monkeypatch.setattr(dns, "CHANNEL_LOOKUPS", 7)
    names = {f"{number}.example": ["192.0.2.1"] for number in range(30)}

    async def test(resolver: Resolver, server: NameServer) -> None:
        for name in names:
            assert (await resolver.resolve(name)).addresses == ("192.0.2.1",)
        await resolver.resolve("29.example")
        assert server.asked["29.example"] == 1
        await resolver.resolve("0.example")
        assert server.asked["0.example"] == 2

    run(test, names)


@pytest.mark.parametrize("text", ["nothing", "=127.0.0.1", "*.test=", "*.test=localhost", "*.test=127.0.0.1:80"])
def test_a_wrong_override_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(ConfigError, match="resolve"):
        Resolver(SystemClock(), [text])
