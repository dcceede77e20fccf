"""The resolver, against a local name server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gossamer.clock import ManualClock, SystemClock
from gossamer.download import dns
from gossamer.download.dns import Resolver
from gossamer.errors import ConfigError, NameUnknown, NameUnresolved
from gossamer.testing.network import NameServer


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
        async with NameServer(records or {}, ttl) as server:
            resolver = Resolver(
                clock or SystemClock(), overrides, nameservers=[server.address], try_seconds=try_seconds, tries=1
            )
            try:
                await test(resolver, server)
            finally:
                await resolver.aclose()

    asyncio.run(main())


def test_all_addresses_are_returned_and_cached_for_their_ttl() -> None:
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


def test_zero_ttl_is_raised_to_the_minimum() -> None:
    clock = ManualClock()

    async def test(resolver: Resolver, server: NameServer) -> None:
        answer = await resolver.resolve("a.example")
        assert answer.expires_at == clock.monotonic() + dns.MIN_TTL_SECONDS

    run(test, {"a.example": ["192.0.2.1"]}, ttl=0, clock=clock)


def test_nxdomain_is_final_and_cached() -> None:
    clock = ManualClock()

    async def test(resolver: Resolver, server: NameServer) -> None:
        for _ in range(3):
            with pytest.raises(NameUnknown):
                await resolver.resolve("nobody.example")
        assert server.asked["nobody.example"] == 1
        clock.advance(dns.NXDOMAIN_SECONDS + 1)
        with pytest.raises(NameUnknown):
            await resolver.resolve("nobody.example")
        assert server.asked["nobody.example"] == 2

    run(test, clock=clock)


def test_names_without_address_and_invalid_names_are_unknown() -> None:
    async def test(resolver: Resolver, server: NameServer) -> None:
        for name in ("empty.example", "a..b", "x" * 70 + ".example"):
            with pytest.raises(NameUnknown):
                await resolver.resolve(name)

    run(test, {"empty.example": []})


def test_failing_or_silent_servers_leave_the_name_unresolved() -> None:
    async def test(resolver: Resolver, server: NameServer) -> None:
        for name in ("broken.example", "dead.example"):
            with pytest.raises(NameUnresolved):
                await resolver.resolve(name)

    run(test, try_seconds=0.1)


def test_unresolvable_names_do_not_delay_others() -> None:
    async def test(resolver: Resolver, server: NameServer) -> None:
        dead = [asyncio.create_task(resolver.resolve(f"dead{number}.example")) for number in range(100)]
        await server.busy.wait()
        assert (await resolver.resolve("live.example")).addresses == ("192.0.2.1",)
        assert not any(task.done() for task in dead)
        for task in dead:
            task.cancel()
        await asyncio.gather(*dead, return_exceptions=True)

    run(test, {"live.example": ["192.0.2.1"]}, try_seconds=60.0)


def test_concurrent_lookups_of_a_name_are_coalesced() -> None:
    async def test(resolver: Resolver, server: NameServer) -> None:
        tasks = [asyncio.create_task(resolver.resolve("a.example")) for _ in range(50)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert {answer.addresses for answer in answers[1:]} == {("192.0.2.1",)}  # type: ignore[union-attr]
        assert server.asked["a.example"] == 1

    run(test, {"a.example": ["192.0.2.1"]})


def test_overrides_apply_first_in_order() -> None:
    async def test(resolver: Resolver, server: NameServer) -> None:
        assert (await resolver.resolve("a.test")).addresses == ("127.0.0.9",)
        assert (await resolver.resolve("B.C.TEST.")).addresses == ("127.0.0.1",)
        assert (await resolver.resolve("six.example")).addresses == ("::1",)
        assert not server.asked

    run(test, overrides=("a.test=127.0.0.9", "*.test=127.0.0.1", "six.*=[::1]"))


def test_localhost_is_never_looked_up() -> None:
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
def test_invalid_override_is_named_in_the_error(text: str) -> None:
    with pytest.raises(ConfigError, match="resolve"):
        Resolver(SystemClock(), [text])


def test_address_families_are_interleaved() -> None:
    """The few addresses that are tried must not all be of one unreachable family."""

    async def test(resolver: Resolver, server: NameServer) -> None:
        found = (await resolver.resolve("a.example")).addresses
        assert set(found) == {"127.0.0.2", "127.0.0.3", "127.0.0.4", "::1"}
        assert "::1" in found[:2]

    run(test, {"a.example": ["127.0.0.2", "127.0.0.3", "127.0.0.4", "::1"]})


@pytest.mark.parametrize("text", ["dns.example", "1.2.3", "127.0.0.1:x", "127.0.0.1:99999", "[::1"])
def test_invalid_name_server_is_named_in_the_error(text: str) -> None:
    with pytest.raises(ConfigError, match="nameservers"):
        Resolver(SystemClock(), nameservers=[text])


@pytest.mark.parametrize("text", ["192.0.2.1", "192.0.2.1:5353", "2001:db8::1", "[2001:db8::1]:53"])
def test_name_servers_may_have_a_port(text: str) -> None:
    Resolver(SystemClock(), nameservers=[text])
