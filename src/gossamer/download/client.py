"""The asynchronous downloader, and all that the blocking one shares with it."""

from __future__ import annotations

import asyncio
import sys
import zlib
from datetime import timedelta
from math import inf
from typing import Any, NamedTuple

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.http import HeaderMap, Url

from gossamer.clock import Clock
from gossamer.download.decoding import decode, encodings
from gossamer.download.dns import Names, Resolver
from gossamer.download.faults import never_connected, out_of_files, translate
from gossamer.download.guard import Target, check_address, check_url
from gossamer.download.oddheaders import OddHeaders, readable
from gossamer.download.outgoing import Outgoing, configure, read_authorities, read_proxies
from gossamer.download.routes import Route, Routes
from gossamer.errors import ConnectFailed, FetchError, ProtocolBroken, TimedOut, TooLarge
from gossamer.model import SITEMAP, SITEMAP_BYTES, Headers, Request, Response
from gossamer.settings import Settings

READ_BYTES = 256 * 1024
# Larger bodies are decoded in a thread, so that the loop goes on meanwhile.
DECODE_INLINE_BYTES = 32 * 1024
SLACK_SECONDS = 0.5
FILES_WAIT_SECONDS = 0.25
BUILD_TRIES = 12
OWN_FILES = 40
MAX_HOSTS = 4096
MAX_SPARES = 2


class Call(NamedTuple):
    """One request as it is sent; `seconds` is given where less than the whole time is left for it."""

    method: str
    url: Url
    headers: HeaderMap | None
    body: bytes
    seconds: float | None = None
    limit_bytes: int = 0
    """How long the body may be on the wire."""


class Reply(NamedTuple):
    """One answer as it came."""

    status: int
    version: str
    headers: Headers
    odd: HeaderMap | None
    body: bytes
    headers_at: float


class HttpDownloader:
    """Fetches with HTTP/1.1 and, where TLS offers it, HTTP/2.

    Names are resolved and checked here and the client is pinned to the address: it connects to what was checked.
    Behind a proxy it is the proxy that resolves; there our own resolver's answer is checked too, unless private
    addresses are allowed. The proxy's own address is the user's choice and is not checked.
    """

    def __init__(self, settings: Settings, clock: Clock, resolver: Names | None = None) -> None:
        self._settings, self._clock = settings, clock
        self._resolver = resolver or Resolver(clock, settings.resolve)
        self._outgoing = Outgoing(settings)
        self._authorities = read_authorities(settings.ca_file)
        self._proxies = read_proxies(settings.proxy)
        self._proxy_clients: dict[int, Any] = {}
        # The process itself, its journal and its clients need some too.
        files = max(0, _file_limit() - OWN_FILES)
        self._routes: Routes[Any] = Routes(self._build, clock, max_hosts=min(MAX_HOSTS, max(4, files // 3)))
        at_once = max(2, files // 4)
        self._gate = asyncio.Semaphore(at_once) if at_once < settings.concurrency else None
        self._odd = OddHeaders()
        self._closed = False

    async def fetch(self, request: Request) -> Response:
        """The answer to one request; a FetchError for everything that is not an answer."""
        try:
            async with asyncio.timeout(self._settings.fetch_seconds + SLACK_SECONDS):
                if self._gate is None:
                    return await self._fetch(request)
                async with self._gate:
                    return await self._fetch(request)
        except TimeoutError:
            raise TimedOut(f"no whole answer within {self._settings.fetch_seconds:g} s") from None

    async def aclose(self) -> None:
        self._closed = True
        for client in (*self._routes.close(), *self._proxy_clients.values()):
            await self._close(client)
        self._proxy_clients.clear()
        await self._resolver.aclose()

    async def _fetch(self, request: Request) -> Response:
        if self._closed:
            raise ConnectFailed("the downloader is closed")
        began = self._clock.monotonic()
        target = check_url(request.url)
        headers, limit_bytes = self._outgoing.for_request(request), self._limit(request, self._settings.max_body_bytes)
        call = Call(request.method, target.url, headers, request.body, limit_bytes=limit_bytes)
        try:
            if self._proxies:
                return await self._fetch_by_proxy(request, call, target)
            with self._routes:
                return await self._fetch_directly(request, call, target, began)
        except FetchError:
            raise
        except Exception as error:  # a page's fate is decided here, whatever the client raises
            raise translate(error, target.host) from None

    async def _fetch_directly(self, request: Request, call: Call, target: Target, began: float) -> Response:
        route = self._routes.find(target.host)
        if route is None or route.expires_at < began:
            route = await self._find_route(target, route)
        while True:
            generation = route.generation
            if generation is None:
                raise ConnectFailed("the downloader was closed")
            route.used_at = sent_at = self._clock.monotonic()
            if sent_at - began > 0.1:
                call = call._replace(seconds=max(0.01, self._settings.fetch_seconds + began - sent_at))
            fetched_at = self._clock.epoch()
            try:
                reply = await self._exchange(generation.client, call)
            except Exception as error:  # translated above; here only what another connection can cure
                if out_of_files(error):
                    self._routes.shed()
                    await self._clock.sleep(FILES_WAIT_SECONDS)
                    route = await self._find_route(target, None)
                elif never_connected(error) and route.spares:
                    spare = Route[Any](route.host, route.spares[0], route.spares[1:], route.expires_at)
                    route = await self._routes.open(spare)
                else:
                    if never_connected(error):
                        # The next fetch begins again with the first of its addresses.
                        self._routes.forget(route)
                    raise
                continue
            return await self._respond(
                request, call, reply, sent_at=sent_at, fetched_at=fetched_at, address=route.address
            )

    async def _fetch_by_proxy(self, request: Request, call: Call, target: Target) -> Response:
        """Through the proxy that is the host's, or, when that one cannot be reached, the next."""
        if target.address:
            check_address(target.address, self._settings.allow_private)
        elif not self._settings.allow_private:
            await self._addresses(target.host)
        first = zlib.crc32(target.host.encode())
        for turn in range(len(self._proxies)):
            number = (first + turn) % len(self._proxies)
            client = self._proxy_clients.get(number)
            if client is None:
                client = self._proxy_clients[number] = await asyncio.to_thread(self._build, {}, number)
            sent_at, fetched_at = self._clock.monotonic(), self._clock.epoch()
            try:
                reply = await self._exchange(client, call)
            except Exception as error:  # translated above
                if never_connected(error) and turn + 1 < len(self._proxies):
                    continue
                raise translate(error, f"{target.host} by proxy {number + 1}") from None
            if reply.status == 407:
                raise ConnectFailed(f"proxy {number + 1} wants other credentials")
            return await self._respond(request, call, reply, sent_at=sent_at, fetched_at=fetched_at, address="")
        raise AssertionError("the last turn returns or raises")

    async def _find_route(self, target: Target, known: Route[Any] | None) -> Route[Any]:
        """A route to the target. A client takes files to build: where none are left, older ones are let go first."""
        for _ in range(BUILD_TRIES):
            try:
                return await self._open_route(target, known)
            except FetchError:
                raise
            except Exception:  # what a client's builder raises for want of files has many names
                self._routes.shed()
                await self._clock.sleep(FILES_WAIT_SECONDS)
        return await self._open_route(target, known)

    async def _open_route(self, target: Target, known: Route[Any] | None) -> Route[Any]:
        if target.address:
            check_address(target.address, self._settings.allow_private)
            return await self._routes.open(Route(target.host, target.address, (), inf))
        addresses, expires_at = await self._addresses(target.host)
        if known is not None and known.address in addresses and self._routes.find(target.host) is known:
            known.spares = tuple(address for address in addresses if address != known.address)[:MAX_SPARES]
            known.expires_at = expires_at
            return known
        return await self._routes.open(Route(target.host, addresses[0], addresses[1 : 1 + MAX_SPARES], expires_at))

    async def _addresses(self, host: str) -> tuple[tuple[str, ...], float]:
        """What the name stands for, all of it allowed: one forbidden address among them forbids the name."""
        answer = await self._resolver.resolve(host)
        for address in answer.addresses:
            check_address(address, self._settings.allow_private)
        return answer

    async def _respond(
        self, request: Request, call: Call, reply: Reply, *, sent_at: float, fetched_at: float, address: str
    ) -> Response:
        if reply.status < 200:
            raise ProtocolBroken(f"status {reply.status} is not an answer")
        elapsed = self._clock.monotonic() - sent_at
        headers, body = reply.headers, reply.body
        if reply.odd is not None:
            headers += await self._odd.read(reply.odd)
        values = [value for name, value in headers if name == "content-encoding"] if body else None
        if values:
            codings = encodings(values)
            limit_bytes = self._limit(request, self._settings.max_decoded_bytes)
            if len(body) <= DECODE_INLINE_BYTES:
                body = decode(body, codings, limit_bytes)
            else:
                body = await asyncio.to_thread(decode, body, codings, limit_bytes)
        return Response(
            url=request.url,
            status=reply.status,
            headers=headers,
            body=body,
            http_version=reply.version,
            address=address,
            fetched_at=fetched_at,
            elapsed=elapsed,
            latency=reply.headers_at - sent_at,
            headers_at=reply.headers_at,
            wire_bytes=len(reply.body),
            sent=self._outgoing.all_of(call.headers),
        )

    def _body_bytes(self, call: Call, status: int, headers: Headers) -> int | None:
        """How long the body will be, if that is certain; TooLarge if that is over the limit."""
        if call.method == "HEAD" or status in (204, 304):
            return 0
        length: int | None = None
        for name, value in headers:
            if name == "transfer-encoding":
                return None
            if name == "content-length":
                length = int(value) if value.isdecimal() else None
        if length is not None and length > call.limit_bytes:
            raise self._too_large(call)
        return length

    def _limit(self, request: Request, limit_bytes: int) -> int:
        return max(limit_bytes, SITEMAP_BYTES) if request.label == SITEMAP else limit_bytes

    def _too_large(self, call: Call) -> TooLarge:
        return TooLarge(f"body of more than {call.limit_bytes} bytes")

    # The rest is what the blocking downloader does otherwise.

    def _build(self, pins: dict[str, str], proxy: int | None = None) -> Any:
        return self._configured(ClientBuilder(), pins, proxy).build()

    def _configured(self, builder: Any, pins: dict[str, str], proxy: int | None) -> Any:
        builder = configure(builder, self._settings, self._outgoing.everywhere, self._authorities)
        if proxy is not None:
            return builder.proxy(self._proxies[proxy])
        for host, address in pins.items():
            builder = builder.resolve(host, address, 0)
        return builder

    async def _close(self, client: Any) -> None:
        await client.close()

    async def _exchange(self, client: Client, call: Call) -> Reply:
        """Send one request and read the answer up to the limit of its size."""
        builder = client.request(call.method, call.url)
        if call.headers is not None:
            builder = builder.headers(call.headers)
        if call.body:
            builder = builder.body_bytes(call.body)
        if call.seconds is not None:
            builder = builder.timeout(timedelta(seconds=call.seconds))
        # Without the 0 it would return only with the first part of the body, and the headers' time would be wrong.
        async with builder.streamed_read_buffer_limit(0).build_streamed() as response:
            headers_at = self._clock.monotonic()
            status = response.status
            headers, odd = readable(response.headers)
            if self._body_bytes(call, status, headers) is not None:
                body = (await response.bytes()).to_bytes()
            else:
                pieces, size = [], 0
                while (piece := await response.body_reader.read(READ_BYTES)) is not None:
                    size += len(piece)
                    if size > call.limit_bytes:
                        raise self._too_large(call)
                    pieces.append(piece)
                body = b"".join(pieces)
            return Reply(status, response.version, headers, odd, body, headers_at)


def _file_limit() -> int:
    """How many files and sockets this process may have open."""
    if sys.platform == "win32":
        return 8192
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1_000_000 if limit == resource.RLIM_INFINITY else limit
