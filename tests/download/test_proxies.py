"""Proxies: real ones on loopback, and the attribution of their faults."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from gossamer.clock import SystemClock
from gossamer.download import open_downloader
from gossamer.download import proxies as module
from gossamer.download.base import Downloader
from gossamer.errors import ConfigError, ConnectFailed, ProxyFailed, TlsRefused
from gossamer.model import Request
from gossamer.settings import build
from gossamer.testing.network import ProxyServer, SocksServer

PASSWORD = "hush-hush"


class Web:
    """Returns the requested host; counts connections."""

    def __init__(self, tls: ssl.SSLContext | None = None, status: bytes = b"200 OK") -> None:
        self._tls, self._status = tls, status
        self.heads: list[str] = []

    async def __aenter__(self) -> Web:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def url(self, host: str) -> str:
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}/"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: 4\r\nConnection: close\r\n\r\npage" % self._status)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


class Later(SystemClock):
    """The real clock, which a test can put forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def run(test: Callable[[AsyncExitStack], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), AsyncExitStack() as stack:
            await test(stack)

    asyncio.run(main())


async def downloader(stack: AsyncExitStack, clock: SystemClock | None = None, **values: Any) -> Downloader:
    settings = build({"allow_private": True, "connect_seconds": 3, "fetch_seconds": 8, **values})
    made = open_downloader(settings, clock=clock or SystemClock())
    stack.push_async_callback(made.aclose)
    return made


def authority(folder: Path, *names: str) -> ssl.SSLContext:
    made = trustme.CA()
    made.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.issue_cert(*names).configure_cert(context)
    return context


@pytest.mark.parametrize("kind", ["async", "threads"])
@pytest.mark.parametrize("is_tls", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("scheme", ["http", "https", "socks5"])
def test_pages_are_fetched_through_every_kind_of_proxy(
    scheme: str, is_tls: bool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy resolves the name and gets its password, which appears in no message or record."""
    context = authority(tmp_path, "far.test", "127.0.0.1")
    monkeypatch.setenv("FAR_PASSWORD", PASSWORD)

    async def test(stack: AsyncExitStack) -> None:
        web = await stack.enter_async_context(Web(context if is_tls else None))
        made = SocksServer if scheme == "socks5" else ProxyServer
        proxy = await stack.enter_async_context(made(password=PASSWORD, tls=context if scheme == "https" else None))
        address = proxy.url.replace(PASSWORD, "${FAR_PASSWORD}")
        fetcher = await downloader(stack, proxy=[address], ca_file=str(tmp_path / "ca.pem"), downloader=kind)
        answer = await fetcher.fetch(Request(url=web.url("far.test")))
        assert (answer.status, answer.body, answer.address) == (200, b"page", "")
        assert answer.via == f"{scheme}://127.0.0.1:{proxy.port}"
        assert proxy.asked == ["far.test"]
        assert "proxy-authorization" not in web.heads[0].lower()
        wrong = await downloader(
            stack, proxy=[address.replace("${FAR_PASSWORD}", "wr0ng")], ca_file=str(tmp_path / "ca.pem")
        )
        with pytest.raises(ProxyFailed) as caught:
            await wrong.fetch(Request(url=web.url("far.test")))
        assert "wr0ng" not in str(caught.value)

    run(test)


def test_dead_proxy_backs_off_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(stack: AsyncExitStack) -> None:
        clock = Later()
        web = await stack.enter_async_context(Web())
        live = await stack.enter_async_context(ProxyServer())
        async with ProxyServer() as gone:
            pass
        fetcher = await downloader(stack, clock, proxy=[gone.url, live.url], proxy_rotation="request")
        for number in range(4):
            assert (await fetcher.fetch(Request(url=web.url(f"{number}.test")))).body == b"page"
        assert len(live.asked) == 4
        async with ProxyServer(port=gone.port) as back:
            for number in range(4):
                await fetcher.fetch(Request(url=web.url(f"{number}.test")))
            assert back.asked == []
            clock.ahead += module.BACKOFF_SECONDS
            for number in range(4):
                await fetcher.fetch(Request(url=web.url(f"{number}.test")))
            assert len(back.asked) == 2

    run(test)


def test_site_keeps_its_proxy_while_it_is_healthy() -> None:
    async def test(stack: AsyncExitStack) -> None:
        web = await stack.enter_async_context(Web())
        several = [await stack.enter_async_context(ProxyServer()) for _ in range(3)]
        fetcher = await downloader(stack, proxy=[proxy.url for proxy in several])
        by = {}
        for number in range(40):
            answers = [await fetcher.fetch(Request(url=web.url(f"{number}.test"))) for _ in range(2)]
            assert len({answer.via for answer in answers}) == 1
            by[number] = answers[0].via
        assert set(by.values()) == {proxy.url for proxy in several}
        await several[0].__aexit__(None, None, None)
        for number, before in by.items():
            now = (await fetcher.fetch(Request(url=web.url(f"{number}.test")))).via
            assert now == before if before != several[0].url else now != before

    run(test)


def test_site_may_have_its_own_proxy_or_none(tmp_path: Path) -> None:
    async def test(stack: AsyncExitStack) -> None:
        web = await stack.enter_async_context(Web())
        common, own = [await stack.enter_async_context(ProxyServer()) for _ in range(2)]
        listed = tmp_path / "proxies.txt"
        listed.write_text(f"# ours\n\n{common.url}  # the good one\n")
        sites = {f"own.test:{web.port}": {"proxy": own.url}, f"near.test:{web.port}": {"proxy": "direct"}}
        fetcher = await downloader(stack, proxy=[f"@{listed}"], sites=sites, resolve=["near.test=127.0.0.1"])
        vias = [(await fetcher.fetch(Request(url=web.url(host)))).via for host in ("any.test", "own.test", "near.test")]
        assert vias == [common.url, own.url, ""]
        await own.__aexit__(None, None, None)
        with pytest.raises(ProxyFailed):
            await fetcher.fetch(Request(url=web.url("own.test")))

    run(test)


@pytest.mark.parametrize("made", [ProxyServer, SocksServer])
def test_host_unreachable_through_all_proxies_is_blamed(made: type[ProxyServer], tmp_path: Path) -> None:
    context = authority(tmp_path, "live.test")

    async def test(stack: AsyncExitStack) -> None:
        web = await stack.enter_async_context(Web(context))
        refuse = frozenset(("dead.test",))
        several = [await stack.enter_async_context(made(refuse=refuse)) for _ in range(2)]
        fetcher = await downloader(stack, proxy=[proxy.url for proxy in several], ca_file=str(tmp_path / "ca.pem"))
        for _ in range(3):
            with pytest.raises(ConnectFailed):
                await fetcher.fetch(Request(url=web.url("dead.test")))
            assert (await fetcher.fetch(Request(url=web.url("live.test")))).body == b"page"
        with pytest.raises(TlsRefused):
            await fetcher.fetch(Request(url=web.url("other.test")))

    run(test)


@pytest.mark.parametrize("is_tls", [False, True], ids=["http", "https"])
def test_proxy_that_reaches_no_host_is_blamed(is_tls: bool, tmp_path: Path) -> None:
    context = authority(tmp_path, "x.test") if is_tls else None
    hosts = [f"{number}.test" for number in range(module.MAX_FAULTY_HOSTS)]

    async def test(stack: AsyncExitStack) -> None:
        web = await stack.enter_async_context(Web(context))
        broken = await stack.enter_async_context(ProxyServer(refuse=frozenset(hosts)))
        fetcher = await downloader(stack, proxy=[broken.url])
        ends = []
        for host in hosts:
            try:
                ends.append((await fetcher.fetch(Request(url=web.url(host)))).status)
            except ConnectFailed:
                ends.append(502)
            except ProxyFailed:
                ends.append(0)
        assert ends == [502] * (len(hosts) - 1) + [0]
        with pytest.raises(ProxyFailed, match="none of 1"):
            await fetcher.fetch(Request(url=web.url("x.test")))

    run(test)


def test_hanging_proxy_is_distinguished_from_a_slow_host() -> None:
    """A hang while connecting: a probe tests whether the proxy accepts connections."""

    async def test(stack: AsyncExitStack) -> None:
        # A listener whose queue is full: what comes now is neither accepted nor refused.
        hole = socket.create_server(("127.0.0.1", 0), backlog=0)
        stack.callback(hole.close)
        port = hole.getsockname()[1]
        stack.callback(socket.create_connection(("127.0.0.1", port)).close)
        fetcher = await downloader(stack, proxy=[f"http://127.0.0.1:{port}"], connect_seconds=0.5)
        with pytest.raises(ProxyFailed):
            await fetcher.fetch(Request(url="http://a.test/"))

    run(test)


@pytest.mark.parametrize(
    "values",
    [
        {"proxy": ["ftp://u:hush@x:1"]},
        {"proxy": ["http://"]},
        {"proxy": ["@/nowhere/at/all"]},
        {"proxy": ["http://u:${NOT_SET_ANYWHERE}@x:1"]},
        {"sites": {"a.test": {"proxy": "socks4://hush@x:1"}}},
        {"headers": {"x": "${NOT_SET_ANYWHERE}"}},
    ],
)
def test_invalid_proxy_error_omits_the_password(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        open_downloader(build(values), clock=SystemClock())
    assert "hush" not in str(caught.value)
