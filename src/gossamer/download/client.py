"""The asynchronous downloader, and all that the blocking one shares with it."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from datetime import timedelta
from io import BytesIO
from math import inf
from typing import Any, NamedTuple

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.http import HeaderMap, Url

from gossamer.clock import Clock
from gossamer.download.base import check_before_sending
from gossamer.download.certificates import read_identity
from gossamer.download.decoding import decode, encodings
from gossamer.download.dns import Names, Resolver
from gossamer.download.eyeballs import BetterAddress, raced
from gossamer.download.faults import (
    blame,
    connecting,
    ended_early,
    never_connected,
    out_of_files,
    translate,
)
from gossamer.download.guard import Target, check_address, check_url
from gossamer.download.heads import body_bytes, too_large
from gossamer.download.oddheaders import OddHeaders, readable
from gossamer.download.outgoing import Outgoing, closing, configure, read_authorities
from gossamer.download.proxies import Proxies, Proxy
from gossamer.download.routes import Route, Routes
from gossamer.errors import ConnectFailed, FetchError, ProtocolBroken, TimedOut
from gossamer.model import ROBOTS, ROBOTS_BYTES, SITEMAP, SITEMAP_BYTES, Headers, Request, Response
from gossamer.settings import Settings
from gossamer.urls import host_port

READ_BYTES = 256 * 1024
# Larger bodies are decoded in a thread, so that the loop goes on meanwhile.
DECODE_INLINE_BYTES = 32 * 1024
SLACK_SECONDS = 0.5
FILES_WAIT_SECONDS = 0.25
BUILD_TRIES = 12
OWN_FILES = 40
MAX_HOSTS = 4096
MAX_SPARES = 2
MAX_PROXY_CLIENTS = 256
_REPEATABLE = ("GET", "HEAD")
"""Nothing that changes anything is sent twice."""
FILE = "file"
"""The label of requests for files, which may be longer than pages."""
_LEAST_BYTES = {SITEMAP: SITEMAP_BYTES, ROBOTS: ROBOTS_BYTES}


class Call(NamedTuple):
    """One request as it is sent; `seconds` is given where less than the whole time is left for it."""

    method: str
    url: Url
    headers: HeaderMap | None
    body: bytes
    max_bytes: int
    """How long the body may be on the wire."""
    seconds: float | None = None


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

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        resolver: Names | None = None,
        *,
        accepts_any_certificate: bool = False,
    ) -> None:
        self._accepts_any_certificate = accepts_any_certificate
        self._identity = read_identity(settings.client_cert)
        self._settings, self._clock = settings, clock
        self._resolver = resolver or Resolver(clock, settings.resolve, nameservers=settings.nameservers)
        self._outgoing = Outgoing(settings)
        self._authorities = read_authorities(settings.ca_file)
        self._proxies = Proxies(settings, clock)
        self._proxy_clients: OrderedDict[Proxy, Any] = OrderedDict()
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

    async def address_of(self, request: Request) -> str:
        """Where the request will go, as far as that is known before it does; its name is asked for only once."""
        try:
            target = check_url(request.url)
            route = self._routes.find(target.host)
            if self._proxies:
                return ""
            return target.address or (route.address if route else (await self._addresses(target.host))[0][0])
        except Exception:  # whatever it is, the fetch meets it too, and decides the page's fate
            return ""

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
        call = Call(
            request.method,
            target.url,
            self._outgoing.for_request(request),
            self._outgoing.body(request),
            self._limit(request, self._settings.max_body_bytes),
        )
        try:
            if self._proxies and (chosen := self._proxies.choose(request.site or host_port(request.url), request.via)):
                return await self._fetch_by_proxy(request, call, target, chosen)
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
            # In this order: what passes between the two readings must not make the answer look later than it came.
            fetched_at = self._clock.epoch()
            route.used_at = sent_at = self._clock.monotonic()
            if sent_at - began > 0.1:
                call = call._replace(seconds=max(0.01, self._settings.fetch_seconds + began - sent_at))
            if route.closes_from <= sent_at:
                call = call._replace(headers=closing(call.headers))
            check_before_sending.get()()
            try:
                reply = await self._exchange_on(route, generation.client, call, target.port)
            except BetterAddress as better:
                others = tuple(address for address in route.spares if address != better.address)
                route = await self._routes.open(
                    Route(route.host, better.address, (*others, route.address), route.expires_at)
                )
                continue
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
                    elif ended_early(error) and route.ended(self._clock.monotonic()) and call.method in _REPEATABLE:
                        # The server may have seen it: when it is sent again is for the one to say who knows the delay.
                        said = f"{target.host}: ended a connection that was kept"
                        raise ConnectFailed(said, was_open=True, was_kept=True) from None
                    raise
                continue
            return await self._respond(
                request, call, reply, sent_at=sent_at, fetched_at=fetched_at, address=route.address
            )

    async def _exchange_on(self, route: Route[Any], client: Any, call: Call, port: int) -> Reply:
        """The exchange. While a route has not answered yet, another address may turn out to be the better one.

        Only where GET or HEAD wait too long are addresses compared."""
        if route.has_answered or not route.spares or call.method not in _REPEATABLE:
            reply = await self._exchange(client, call)
        else:
            addresses = (route.address, *route.spares)
            seconds = self._settings.connect_seconds
            reply = await raced(self._exchange(client, call), addresses, port, seconds=seconds)
        route.has_answered = True
        return reply

    async def _fetch_by_proxy(
        self, request: Request, call: Call, target: Target, proxies: tuple[Proxy, ...]
    ) -> Response:
        """Through the first of the proxies that comes to the host; the next is tried where nothing was sent yet."""
        if target.address:
            check_address(target.address, self._settings.allow_private)
        elif not self._settings.allow_private:
            await self._addresses(target.host)
        fault: FetchError | None = None
        is_tls = target.url.scheme == "https"
        for proxy in proxies:
            client = await self._proxy_client(proxy)
            fetched_at, sent_at = self._clock.epoch(), self._clock.monotonic()
            check_before_sending.get()()
            try:
                reply = await self._exchange(client, call)
            except Exception as error:  # a page's fate is decided here, whatever the client raises
                guilty = blame(error, is_tls=is_tls)
                said = translate(error, f"{target.host} by {proxy.name}")
                fault = await self._proxies.fault(proxy, target.host, guilty, said)
                if guilty == "host" or not connecting(error):
                    break
                continue
            if (fault := self._proxies.answered(proxy, target.host, reply.status, is_tls=is_tls)) is not None:
                continue
            return await self._respond(
                request, call, reply, sent_at=sent_at, fetched_at=fetched_at, address="", via=proxy.name
            )
        assert fault is not None
        raise fault

    async def _proxy_client(self, proxy: Proxy) -> Any:
        client = self._proxy_clients.get(proxy)
        if client is None:
            built = await asyncio.to_thread(self._build, {}, proxy)
            client = self._proxy_clients.setdefault(proxy, built)
            while len(self._proxy_clients) > MAX_PROXY_CLIENTS:
                # It goes, with its connections, when the last fetch that uses it has ended.
                self._proxy_clients.popitem(last=False)
        else:
            self._proxy_clients.move_to_end(proxy)
        return client

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
        self,
        request: Request,
        call: Call,
        reply: Reply,
        *,
        sent_at: float,
        fetched_at: float,
        address: str,
        via: str = "",
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
            via=via,
            fetched_at=fetched_at,
            elapsed=elapsed,
            latency=reply.headers_at - sent_at,
            headers_at=reply.headers_at,
            wire_bytes=len(reply.body),
            sent=self._outgoing.all_of(call.headers),
        )

    def _limit(self, request: Request, limit_bytes: int) -> int:
        if request.label == FILE:
            return self._settings.max_file_bytes
        return max(limit_bytes, _LEAST_BYTES.get(request.label, 0))

    # The rest is what the blocking downloader does otherwise.

    def _build(self, pins: dict[str, str], proxy: Proxy | None = None) -> Any:
        return self._configured(ClientBuilder(), pins, proxy).build()

    def _configured(self, builder: Any, pins: dict[str, str], proxy: Proxy | None) -> Any:
        builder = configure(builder, self._settings, self._outgoing.everywhere, self._authorities)
        if self._identity:
            builder = builder.identity_pem(self._identity)
        if self._accepts_any_certificate:
            builder = builder.danger_accept_invalid_certs(True)
        if proxy is not None:
            return builder.proxy(proxy.builder())
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
            length = body_bytes(call.method, status, headers, call.max_bytes)
            if length is not None and length <= READ_BYTES:
                body = (await response.bytes()).to_bytes()
            else:
                whole = BytesIO()
                while (piece := await response.body_reader.read(READ_BYTES)) is not None:
                    if whole.tell() + len(piece) > call.max_bytes:
                        raise too_large(call.max_bytes)
                    whole.write(piece)
                body = whole.getvalue()
            return Reply(status, response.version, headers, odd, body, headers_at)


def _file_limit() -> int:
    """How many files and sockets this process may have open."""
    if sys.platform == "win32":
        return 8192
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1_000_000 if limit == resource.RLIM_INFINITY else limit
