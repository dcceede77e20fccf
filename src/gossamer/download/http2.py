"""The HTTP/2 downloader over pyreqwest, and the translation of its errors.

It accepts what hyper and rustls accept: malformed header lines are skipped but not counted, header values that are
neither ASCII nor UTF-8 are dropped and counted, chunk lines must end in CRLF, and TLS starts at 1.2."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import timedelta
from io import BytesIO
from math import inf
from typing import Any

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import BuilderError, ConnectError, DetailedPyreqwestError, PyreqwestError, RequestTimeoutError
from pyreqwest.http import HeaderMap

from gossamer.clock import Clock
from gossamer.download.base import check_before_sending
from gossamer.download.client import FILES_TRIES, FILES_WAIT_SECONDS, SAFE_METHODS, HttpCall, HttpDownloader, HttpReply
from gossamer.download.connections import BetterAddress, race_addresses
from gossamer.download.dns import NameResolver
from gossamer.download.guard import CheckedUrl, check_address
from gossamer.download.headers import configure, read_authorities
from gossamer.download.http1 import check_head
from gossamer.download.proxies import Blame, Proxy
from gossamer.download.routes import Route, Routes
from gossamer.download.tls import read_identity
from gossamer.errors import (
    BadCertificate,
    ConnectFailed,
    FetchError,
    OutOfMemory,
    ProtocolBroken,
    TimedOut,
    TlsRefused,
    TooLarge,
)
from gossamer.model import Headers
from gossamer.settings import Settings

_HOST_FAULTS = ("host unreachable", "network unreachable", "SOCKS error: connection refused", "ttl expired")
_PROXY_FAULTS = (
    "tcp connect error",
    "failed to create underlying connection",
    "proxy authorization required",
    "authentication",
    "credentials not accepted",
    "error during SOCKS handshake",
)
_TLS_FAULTS = (
    "certificate",
    "fatal alert",
    "peer is incompatible",
    "peer misbehaved",
    "corrupt message",
    "inappropriate message",
    "inappropriate handshake",
    "unexpected message",
    "cannot decrypt",
    "unsupported name type",
)
_CLOSED = ("connection closed before message completed", "os error 104)", "os error 32)", "os error 10054)")
_REFUSALS = (
    "AccessDenied",
    "BadCertificate",
    "CertificateExpired",
    "CertificateRequired",
    "CertificateRevoked",
    "CertificateUnknown",
    "UnknownCA",
    "UnsupportedCertificate",
)
"""Alerts about our client certificate, or that none was sent; with TLS 1.3 they arrive after the handshake."""

_TLS_ENDS = ("without sending TLS close_notify", "tls handshake eof")
"""A connection that closed without an alert. The reason may be temporary, so it is retried."""
_TLS_END_HINT = "it may be overloaded, or require a client certificate: --client-cert FILE"


def translate(error: Exception, where: str) -> FetchError:
    """Return the FetchError for an exception of the client while it talked to `where`."""
    if isinstance(error, FetchError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory(f"{where}: out of memory while reading the response")
    causes = _causes(error)
    text = f"{where}: {causes[-1] if causes else str(error) or type(error).__name__}"
    if isinstance(error, RequestTimeoutError):
        return TimedOut(
            f"{where}: connect timeout" if _connecting(causes) else f"{where}: timeout before the response was complete"
        )
    if causes and "head is too large" in causes[-1]:
        return TooLarge(f"{where}: response headers too long")
    if any(f"received fatal alert: {word}" in cause for cause in causes for word in _REFUSALS):
        return TlsRefused(text, hint="the server requires a client certificate: --client-cert FILE")
    if isinstance(error, ConnectError):
        if any(word in cause for cause in causes for word in _TLS_ENDS):
            return ConnectFailed(f"{where}: closed the connection during the TLS handshake", hint=_TLS_END_HINT)
        if _connecting(causes) and any(word in cause for cause in causes for word in _TLS_FAULTS):
            is_plain = any("InvalidContentType" in cause for cause in causes)
            kind = BadCertificate if "certificate" in text else TlsRefused
            return kind(text, hint="the port does not use TLS: try http://" if is_plain else "")
        return ConnectFailed(text, was_open=closed_before_response(error))
    if isinstance(error, BuilderError):
        # The address was checked before: what failed is building a client, usually for lack of file descriptors.
        return ConnectFailed(text)
    return ProtocolBroken(text)


def connect_failed(error: Exception) -> bool:
    """Whether no connection was made, so that another address may be tried at once."""
    causes = _causes(error)
    return _connecting(causes) and ("tcp connect error" in causes or isinstance(error, RequestTimeoutError))


def closed_before_response(error: Exception) -> bool:
    """Whether a kept-alive connection closed before any response, as servers do at their idle timeout."""
    causes = _causes(error)
    return "client error (SendRequest)" in causes and any(word in causes[-1] for word in _CLOSED)


def cut_reason(error: Exception, *, has_length: bool) -> str:
    """Return why a body ended early, as in `model.Response.cut`."""
    if isinstance(error, RequestTimeoutError):
        return "fetch_seconds"
    is_reset = any("(os error 104)" in cause or "(os error 10054)" in cause for cause in _causes(error))
    return "content_length" if has_length and not is_reset else "disconnect"


def failed_before_sending(error: Exception) -> bool:
    """Whether the error occurred before any of the request was sent."""
    return _connecting(_causes(error))


def blame(error: Exception, *, is_tls: bool) -> Blame:
    """Return who is at fault behind a proxy: the proxy, the host, either, or unknown (a connection that hangs).

    `is_tls` says that the host itself uses TLS: a failed handshake outside a tunnel is then the host's."""
    causes = _causes(error)
    if not _connecting(causes):
        return "host" if is_tls or isinstance(error, RequestTimeoutError) else "either"
    if isinstance(error, RequestTimeoutError):
        return "unknown"
    if any(word in cause for cause in causes for word in _HOST_FAULTS):
        return "host"
    if any(word in cause for cause in causes for word in _PROXY_FAULTS):
        return "proxy"
    if any(cause.startswith(("tunnel error", "SOCKS error")) for cause in causes):
        return "either"
    # Only a handshake is left. Without TLS to the host, it was with the proxy.
    return "host" if is_tls else "proxy"


def is_out_of_files(error: Exception) -> bool:
    """Whether this process has no file descriptors left."""
    return any("(os error 24)" in cause for cause in _causes(error))


def _connecting(causes: list[str]) -> bool:
    return "client error (Connect)" in causes


def _causes(error: Exception) -> list[str]:
    if not isinstance(error, DetailedPyreqwestError):
        return []
    return [cause["message"] for cause in error.details["causes"] or ()]


SLACK_SECONDS = 0.5
MAX_SPARES = 2
MAX_PROXY_CLIENTS = 256


class Http2Downloader(HttpDownloader):
    """Fetches with HTTP/1.1 or, where TLS negotiates it, HTTP/2; each client is pinned to checked addresses."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        resolver: NameResolver | None = None,
        *,
        accepts_any_certificate: bool = False,
    ) -> None:
        super().__init__(settings, clock, resolver, accepts_any_certificate=accepts_any_certificate)
        self._accepts_any_certificate = accepts_any_certificate
        self._identity = read_identity(settings.client_cert)
        self._authorities = read_authorities(settings.ca_file)
        self._proxy_clients: OrderedDict[Proxy, Any] = OrderedDict()
        self._routes: Routes[Any] = Routes(self._build, clock, max_hosts=self._most_idle)

    async def address_of(self, request: Any) -> str:
        """Return the address of a request as far as it is known before sending; the name is looked up only once."""
        try:
            route = self._routes.find(self._checked_url(request).host)
            return route.address if route and not self._proxies else await super().address_of(request)
        except Exception:  # the fetch meets the same error and decides what happens to the page
            return ""

    async def aclose(self) -> None:
        self._closed = True
        for client in (*self._routes.close(), *self._proxy_clients.values()):
            await self._close(client)
        self._proxy_clients.clear()
        await super().aclose()

    async def _send(self, call: HttpCall) -> HttpReply:
        try:
            async with asyncio.timeout(self._settings.fetch_seconds + SLACK_SECONDS):
                with self._routes:
                    return await self._send_on_route(call)
        except TimeoutError:
            raise TimedOut(f"no complete response within {self._settings.fetch_seconds:g} s") from None
        except FetchError:
            raise
        except Exception as error:  # every error of the client becomes the result of this page
            raise translate(error, call.target_url.host) from None

    async def _send_on_route(self, call: HttpCall) -> HttpReply:
        target_url = call.target_url
        route = self._routes.find(target_url.host)
        if route is None or route.expires_at < call.began:
            route = await self._find_route(target_url, route)
        while True:
            generation = route.generation
            if generation is None:
                raise ConnectFailed("the downloader was closed")
            # In this order, a delay between the two readings cannot make the response look later than it was.
            fetched_at = self._clock.epoch()
            route.used_at = sent_at = self._clock.monotonic()
            headers = _map(call, closes=route.closes_from <= sent_at)
            check_before_sending.get()()
            try:
                reply = await self._exchange_on(route, generation.client, call, headers, sent_at)
            except BetterAddress as better:
                others = tuple(address for address in route.spares if address != better.address)
                route = await self._routes.open(
                    Route(route.host, better.address, (*others, route.address), route.expires_at)
                )
                continue
            except Exception as error:  # translated by the caller; here only what another connection can fix
                if is_out_of_files(error):
                    self._routes.drop_older()
                    await self._clock.sleep(FILES_WAIT_SECONDS)
                    route = await self._find_route(target_url, None)
                elif connect_failed(error) and route.spares:
                    spare = Route[Any](route.host, route.spares[0], route.spares[1:], route.expires_at)
                    route = await self._routes.open(spare)
                else:
                    method = call.request.method
                    if connect_failed(error):
                        # The next fetch starts again with the preferred address.
                        self._routes.forget(route)
                    elif (
                        closed_before_response(error)
                        and route.closed_early(self._clock.monotonic())
                        and method in SAFE_METHODS
                    ):
                        # The server may have seen the request: the caller, who knows the delay, decides on a retry.
                        message = f"{target_url.host}: closed a kept-alive connection"
                        raise ConnectFailed(message, was_open=True, was_kept=True) from None
                    raise
                continue
            return reply._replace(fetched_at=fetched_at, sent_at=sent_at, address=route.address)

    async def _exchange_on(
        self, route: Route[Any], client: Any, call: HttpCall, headers: HeaderMap | None, sent_at: float
    ) -> HttpReply:
        """Run the exchange. Before a route's first response, another address may prove to be the better one.

        Addresses are compared only when a GET or HEAD waits too long."""
        seconds = max(0.01, self._settings.fetch_seconds + call.began - sent_at)
        if route.has_answered or not route.spares or call.request.method not in SAFE_METHODS:
            reply = await self._ask(client, call, headers, seconds)
        else:
            reply = await race_addresses(
                self._ask(client, call, headers, seconds),
                (route.address, *route.spares),
                call.target_url.port,
                seconds=self._settings.connect_seconds,
            )
        route.has_answered = True
        return reply

    async def _send_by_proxy(self, call: HttpCall, proxies: tuple[Proxy, ...]) -> HttpReply:
        """Send through the first proxy that reaches the host; try the next one if nothing was sent yet."""
        target_url = call.target_url
        if target_url.address:
            check_address(target_url.address, self._settings.allow_private)
        elif not self._settings.allow_private:
            await self._addresses(target_url.host)
        fault: FetchError | None = None
        for proxy in proxies:
            client = await self._proxy_client(proxy)
            fetched_at, sent_at = self._clock.epoch(), self._clock.monotonic()
            check_before_sending.get()()
            try:
                reply = await self._ask(client, call, _map(call), self._settings.fetch_seconds)
            except Exception as error:  # every error of the client becomes the result of this page
                guilty = blame(error, is_tls=target_url.is_tls)
                translated = translate(error, f"{target_url.host} through {proxy.name}")
                fault = await self._proxies.fault(proxy, target_url.host, guilty, translated)
                if guilty == "host" or not failed_before_sending(error):
                    break
                continue
            if (
                fault := self._proxies.answered(proxy, target_url.host, reply.status, is_tls=target_url.is_tls)
            ) is not None:
                continue
            return reply._replace(fetched_at=fetched_at, sent_at=sent_at, via=proxy.name)
        assert fault is not None
        raise fault

    async def _proxy_client(self, proxy: Proxy) -> Any:
        client = self._proxy_clients.get(proxy)
        if client is None:
            built = await asyncio.to_thread(self._build, {}, proxy)
            client = self._proxy_clients.setdefault(proxy, built)
            while len(self._proxy_clients) > MAX_PROXY_CLIENTS:
                # The client closes, with its connections, when the last fetch that uses it ends.
                self._proxy_clients.popitem(last=False)
        else:
            self._proxy_clients.move_to_end(proxy)
        return client

    async def _find_route(self, target_url: CheckedUrl, known: Route[Any] | None) -> Route[Any]:
        """Return a route. Building a client needs file descriptors: if none are left, close older clients first."""
        for _ in range(FILES_TRIES):
            try:
                return await self._open_route(target_url, known)
            except FetchError:
                raise
            except Exception:  # without file descriptors, the builder raises errors of many kinds
                self._routes.drop_older()
                await self._clock.sleep(FILES_WAIT_SECONDS)
        return await self._open_route(target_url, known)

    async def _open_route(self, target_url: CheckedUrl, known: Route[Any] | None) -> Route[Any]:
        if target_url.address:
            check_address(target_url.address, self._settings.allow_private)
            return await self._routes.open(Route(target_url.host, target_url.address, (), inf))
        addresses, expires_at = await self._addresses(target_url.host)
        if known is not None and known.address in addresses and self._routes.find(target_url.host) is known:
            known.spares = tuple(address for address in addresses if address != known.address)[:MAX_SPARES]
            known.expires_at = expires_at
            return known
        return await self._routes.open(Route(target_url.host, addresses[0], addresses[1 : 1 + MAX_SPARES], expires_at))

    # The blocking downloader overrides the methods below.

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

    async def _ask(self, client: Client, call: HttpCall, headers: HeaderMap | None, seconds: float) -> HttpReply:
        """Send one request and read the response up to the size limit."""
        builder = build_request(client, call, headers, seconds)
        # Without the 0 it would return only with the first part of the body, and the headers' time would be wrong.
        async with builder.streamed_read_buffer_limit(0).build_streamed() as response:
            body = Body(
                call,
                response,
                self._clock.monotonic(),
                truncates=self._accepts_cut(call.request.label, "max_body_bytes:?"),
            )
            try:
                while body.wants_more and (piece := await response.body_reader.read_chunk()) is not None:
                    body.add(piece)
            except PyreqwestError as error:
                body.broke_off(error)
            return body.reply()


class Body:
    """The response to one call as it arrives, for both the asynchronous and the blocking client."""

    def __init__(self, call: HttpCall, response: Any, headers_at: float, *, truncates: bool) -> None:
        self._status, self._version, self._headers_at = response.status, response.version, headers_at
        self._headers, dropped = decode_headers(response.headers)
        self._cut = ""
        self._dropped = f"headers:{dropped}" if dropped else ""
        self._whole = BytesIO()
        check_head(self._headers)
        self._max_bytes = call.max_bytes
        self._length: int | None = None
        self.wants_more = call.request.method != "HEAD" and self._status not in (204, 304)
        for name, value in self._headers:
            if name == "transfer-encoding":
                self._length = None
                break
            if name == "content-length":
                self._length = int(value) if value.isascii() and value.isdigit() else None
        if self.wants_more and (self._length or 0) > self._max_bytes and not truncates:
            raise TooLarge(f"body of more than {self._max_bytes} bytes")

    def add(self, piece: Any) -> None:
        room = self._max_bytes - self._whole.tell()
        if len(piece) <= room:
            self._whole.write(piece)
            return
        self._whole.write(memoryview(piece)[:room])
        lost = "?" if self._length is None else self._length - self._max_bytes
        self._cut, self.wants_more = f"max_body_bytes:{lost}", False

    def broke_off(self, error: PyreqwestError) -> None:
        lost = "?" if self._length is None else self._length - self._whole.tell()
        self._cut = f"{cut_reason(error, has_length=self._length is not None)}:{lost}"

    def reply(self) -> HttpReply:
        cut = f"{self._cut} {self._dropped}".strip()
        return HttpReply(
            self._status, self._version, self._headers, b"", self._whole.getvalue(), cut, self._headers_at, 0.0, 0.0
        )


def build_request(client: Any, call: HttpCall, headers: HeaderMap | None, seconds: float) -> Any:
    """Build the request, for either kind of client."""
    builder = client.request(call.request.method, call.target_url.url).timeout(timedelta(seconds=seconds))
    if headers is not None:
        builder = builder.headers(headers)
    if call.body:
        builder = builder.body_bytes(call.body)
    return builder


def decode_headers(headers: HeaderMap) -> tuple[Headers, int]:
    """Return the headers that the library can decode, and the number of those that it cannot."""
    try:
        return tuple(headers.items()), 0
    except ValueError:
        pass
    plain: list[tuple[str, str]] = []
    dropped = 0
    for name in dict.fromkeys(headers.keys()):
        try:
            plain.extend((name, value) for value in headers.getall(name))
        except ValueError:
            dropped += 1
    return tuple(plain), dropped


def _map(call: HttpCall, *, closes: bool = False) -> HeaderMap | None:
    headers = dict(call.headers or {})
    if closes:
        headers["connection"] = "close"
    return HeaderMap(headers) if headers else None
