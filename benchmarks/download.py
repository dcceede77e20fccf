"""CPU per 40 KB page of the downloaders and of aiohttp: keep-alive on 20 hosts, and one page from each of many hosts.

    python benchmarks/download.py [PAGES]

The server runs in its own process, which is not measured. The clients run in turn, in many short rounds; the script
prints the median and the best. On a busy machine, compare the ratios, which are computed within a round."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.abc
import trustme
import uvloop

from gossamer.clock import SystemClock
from gossamer.download import open_downloader
from gossamer.model import Request
from gossamer.settings import build

BODY = b"<html>" + b"x" * 40_000 + b"</html>"
AT_ONCE = 100
ROUNDS = 9
Fetch = Callable[[str], Awaitable[int]]


class Page(asyncio.Protocol):
    """Returns the same page for every request."""

    answer = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nServer: bench\r\nCache-Control: no-cache\r\n"
        b'Date: Mon, 01 Jan 2024 00:00:00 GMT\r\nETag: "1"\r\nContent-Length: %d\r\n\r\n%b' % (len(BODY), BODY)
    )

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):
            self.transport.write(self.answer)


async def serve(folder: str) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(f"{folder}/ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("*.bench.test").configure_cert(context)
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Page, "0.0.0.0", 0, ssl=tls) for tls in (None, context)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.Event().wait()


async def ours(kind: str, authority: str, run: Callable[[Fetch], Awaitable[None]]) -> None:
    settings = build(
        {
            "allow_private": True,
            "resolve": ["*.test=127.0.0.1"],
            "concurrency": AT_ONCE,
            "per_site": AT_ONCE // 20,
            "downloader": kind,
            "ca_file": authority,
        }
    )
    downloader = open_downloader(settings, clock=SystemClock())

    async def fetch(url: str) -> int:
        return len((await downloader.fetch(Request(url=url))).body)

    await run(fetch)
    await downloader.aclose()


class Loopback(aiohttp.abc.AbstractResolver):
    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[aiohttp.abc.ResolveResult]:
        return [
            aiohttp.abc.ResolveResult(hostname=host, host="127.0.0.1", port=port, family=2, proto=0, flags=0),
        ]

    async def close(self) -> None: ...


async def aiohttps(authority: str, run: Callable[[Fetch], Awaitable[None]]) -> None:
    context = ssl.create_default_context(cafile=authority)
    connector = aiohttp.TCPConnector(limit=AT_ONCE * 2, resolver=Loopback(), ssl=context)
    timeout = aiohttp.ClientTimeout(total=60)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=jar, timeout=timeout) as session:

        async def fetch(url: str) -> int:
            async with session.get(url, allow_redirects=False) as response:
                return len(await response.read())

        await run(fetch)


def measure(
    client: Callable[[Callable[[Fetch], Awaitable[None]]], Awaitable[None]], urls: list[str], warm: int
) -> float:
    """CPU microseconds per page, including threads."""
    found = 0.0

    async def run(fetch: Fetch) -> None:
        nonlocal found
        await all_of(fetch, urls[:1] + urls[:warm])
        began = time.process_time()
        await all_of(fetch, urls)
        found = (time.process_time() - began) / len(urls) * 1e6

    async def all_of(fetch: Fetch, urls: list[str]) -> None:
        left = iter(urls)

        async def one() -> None:
            for url in left:
                assert await fetch(url) == len(BODY)

        await asyncio.gather(*(one() for _ in range(AT_ONCE)))

    uvloop.run(client(run))  # type: ignore[arg-type]
    return found


def main() -> None:
    pages = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
    folder = tempfile.mkdtemp()
    server = subprocess.Popen([sys.executable, __file__, "serve", folder], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        plain, tls = server.stdout.readline().split()
        authority = str(Path(folder) / "ca.pem")
        versions = {name: importlib.metadata.version(name) for name in ("pyreqwest", "aiohttp", "uvloop")}
        print(platform.python_version(), platform.machine(), versions)
        cases = {
            "keep-alive, 20 hosts": ([f"http://h{n % 20}.bench.test:{plain}/{n}" for n in range(pages)], 500),
            "new host a page": ([f"http://p{n}.bench.test:{plain}/" for n in range(pages)], 0),
            "keep-alive, 20 TLS hosts": ([f"https://h{n % 20}.bench.test:{tls}/{n}" for n in range(pages)], 500),
            "new TLS host a page": ([f"https://p{n}.bench.test:{tls}/" for n in range(pages // 3)], 0),
        }
        clients = {
            "gossamer async": lambda run: ours("async", authority, run),
            "gossamer http2": lambda run: ours("http2", authority, run),
            "gossamer threads": lambda run: ours("threads", authority, run),
            "aiohttp": lambda run: aiohttps(authority, run),
        }
        for case, (urls, warm) in cases.items():
            rounds = [{name: measure(client, urls, warm) for name, client in clients.items()} for _ in range(ROUNDS)]
            for name in clients:
                figures = [one[name] for one in rounds]
                middle, best = statistics.median(figures), min(figures)
                ratio = statistics.median(one["aiohttp"] / one[name] for one in rounds)
                print(f"{case:24} {name:18} {middle:6.0f} us a page, best {best:5.0f}; aiohttp {ratio:4.1f}x")
    finally:
        server.kill()
        server.communicate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(sys.argv[2]))
    else:
        main()
