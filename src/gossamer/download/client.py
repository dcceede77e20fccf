"""The asynchronous downloader: HTTP/1.1 over asyncio and OpenSSL, with its own connection pool."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from math import inf
from typing import NamedTuple

from gossamer.clock import Clock
from gossamer.download import http1
from gossamer.download.base import check_before_sending
from gossamer.download.connections import (
    Connection,
    Connections,
    ProxyFault,
    Target,
    is_out_of_files,
    proxy_authorization,
)
from gossamer.download.decoding import decode_partly, encodings
from gossamer.download.dns import NameResolver, Resolver
from gossamer.download.guard import CheckedUrl, check_address, check_url
from gossamer.download.headers import RequestHeaders
from gossamer.download.proxies import Blame, Proxies, Proxy
from gossamer.download.tls import Contexts, check_identity
from gossamer.errors import ConnectFailed, FetchError, Forbidden, ProtocolBroken, TimedOut, TooLarge
from gossamer.model import ROBOTS, ROBOTS_BYTES, SITEMAP, SITEMAP_BYTES, Headers, Request, Response
from gossamer.settings import Settings
from gossamer.urls import host_port

# Larger bodies are decoded in a thread, to keep the event loop responsive.
DECODE_INLINE_BYTES = 32 * 1024
FILES_WAIT_SECONDS = 0.25
FILES_TRIES = 12
RESERVED_FILES = 40
MAX_HOSTS = 4096
MAX_ADDRESSES = 4
SAFE_METHODS = ("GET", "HEAD")
"""Methods that may be sent twice because they change nothing."""
FILE = "file"
"""The label of file downloads, which may be larger than pages."""
_ACCEPTED_CUTS = {
    ROBOTS: frozenset(("max_body_bytes", "max_decoded_bytes", "headers")),
    FILE: frozenset(("headers",)),
}
"""Which truncations are accepted whatever the settings say. RFC 9309 accepts a robots.txt cut at a size limit, but a
prefix of one whose connection broke could allow too much; a part of a file is useless."""


class HttpCall(NamedTuple):
    """One request as it is sent."""

    request: Request
    target_url: CheckedUrl
    headers: dict[str, str] | None
    body: bytes
    max_bytes: int
    """Time limit for receiving the body."""
    began: float

    @property
    def site(self) -> str:
        return self.request.site or host_port(self.request.url)


class HttpReply(NamedTuple):
    """One response as it was received."""

    status: int
    version: str
    headers: Headers
    head: bytes
    body: bytes
    cut: str
    headers_at: float
    sent_at: float
    fetched_at: float
    address: str = ""
    via: str = ""


class Host:
    """The addresses of a host, and how its servers close connections."""

    __slots__ = ("addresses", "ended_count", "expires_at")

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.expires_at = -inf
        self.ended_count = 0
        """Number of times a server closed a kept-alive connection without notice."""

    @property
    def keeps_alive(self) -> bool:
        """Whether to keep connections alive. One unannounced close may be chance; after the second, none is kept."""
        return self.ended_count < 2


class HttpDownloader:
    """Fetches with HTTP/1.1.

    The client resolves and checks names itself and connects only to the checked addresses. Behind a proxy, the proxy
    resolves the name; the client's own lookup is checked as well unless private addresses are allowed. The proxy's own
    address is the user's choice and is not checked.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        resolver: NameResolver | None = None,
        *,
        accepts_any_certificate: bool = False,
    ) -> None:
        check_identity(settings.client_cert)
        self._settings, self._clock = settings, clock
        self._resolver = resolver or Resolver(clock, settings.resolve, nameservers=settings.nameservers)
        self._outgoing = RequestHeaders(settings)
        self._proxies = Proxies(settings, clock)
        self._contexts = Contexts(settings, accepts_any_certificate=accepts_any_certificate)
        self._connections = Connections(
            allow_private=settings.allow_private,
            connect_seconds=settings.connect_seconds,
            proxy_tls=self._contexts.of_proxies,
        )
        self._hosts: OrderedDict[str, Host] = OrderedDict()
        # Reserve descriptors for the process itself, its journal, and its clients.
        files = max(0, _file_limit() - RESERVED_FILES)
        self._most_idle = min(MAX_HOSTS, max(4, files // 3))
        at_once = max(2, files // 4)
        self._gate = asyncio.Semaphore(at_once) if at_once < settings.concurrency else None
        self._closed = False

    async def fetch(self, request: Request) -> Response:
        """Return the response to one request; raises FetchError for everything else."""
        if self._gate is None:
            return await self._fetch(request)
        async with self._gate:
            return await self._fetch(request)

    async def address_of(self, request: Request) -> str:
        """Return the address of a request as far as it is known before sending; the name is looked up only once."""
        try:
            target_url = self._checked_url(request)
            if self._proxies:
                return ""
            if target_url.address:
                return target_url.address
            host = self._hosts.get(target_url.host)
            return host.addresses[0] if host and host.addresses else (await self._addresses(target_url.host))[0][0]
        except Exception:  # the fetch meets the same error and decides what happens to the page
            return ""

    async def aclose(self) -> None:
        self._closed = True
        self._connections.close()
        await self._resolver.aclose()

    async def _fetch(self, request: Request) -> Response:
        if self._closed:
            raise ConnectFailed("the downloader is closed")
        target_url = self._checked_url(request)
        if not http1.is_token(request.method):
            raise Forbidden(f"{request.method[:40]!r} is not a valid method")
        call = HttpCall(
            request,
            target_url,
            self._outgoing.for_request(request),
            self._outgoing.body(request),
            self._limit(request, self._settings.max_body_bytes),
            self._clock.monotonic(),
        )
        try:
            if self._proxies and (chosen := self._proxies.choose(call.site, request.via)):
                reply = await self._send_by_proxy(call, chosen)
            else:
                reply = await self._send(call)
            return await self._respond(call, reply)
        except FetchError:
            raise
        except Exception as error:  # every fault becomes the result of this page
            raise http1.as_fetch_error(error) from error

    def _checked_url(self, request: Request) -> CheckedUrl:
        return check_url(request.url)

    async def _send(self, call: HttpCall) -> HttpReply:
        target_url = call.target_url
        host = self._hosts.get(target_url.host)
        if host is None:
            host = self._hosts[target_url.host] = Host()
            if len(self._hosts) > MAX_HOSTS:
                self._hosts.popitem(last=False)
        target = Target(
            target_url.host, target_url.port, self._contexts.of_site(call.site) if target_url.is_tls else None
        )
        connection = None
        if host.expires_at >= call.began:
            connection = self._connections.take(target, host.addresses)
        if connection is None:
            connection = await self._connect(call, target, host)
        reply = await self._exchange(call, target, connection, host)
        return reply._replace(address=connection.address)

    async def _connect(self, call: HttpCall, target: Target, host: Host) -> Connection:
        """Return an idle connection or a new one. Out of file descriptors, close idle connections first."""
        try:
            async with asyncio.timeout(self._settings.fetch_seconds):
                for turn in range(FILES_TRIES):
                    try:
                        if host.expires_at < self._clock.monotonic():
                            await self._look_up(call.target_url, host)
                            if (kept := self._connections.take(target, host.addresses)) is not None:
                                return kept
                        return await self._open(target, host)
                    except OSError as error:
                        if turn + 1 == FILES_TRIES or not is_out_of_files(error):
                            raise ConnectFailed(f"{target.host}: {error.strerror}") from None
                        self._connections.close_idle()
                        await self._clock.sleep(FILES_WAIT_SECONDS)
        except TimeoutError:
            pass
        raise TimedOut(f"{target.host}: connect timeout")

    async def _open(self, target: Target, host: Host) -> Connection:
        addresses = host.addresses
        try:
            connection = await self._connections.open(target, addresses)
        except FetchError:
            # Forget the addresses, so that the next fetch resolves the name again.
            host.expires_at = -inf
            raise
        if connection.address != host.addresses[0] and addresses == host.addresses:
            others = tuple(address for address in addresses if address != connection.address)
            host.addresses = (connection.address, *others)
        return connection

    async def _look_up(self, target_url: CheckedUrl, host: Host) -> None:
        if target_url.address:
            check_address(target_url.address, self._settings.allow_private)
            host.addresses, host.expires_at = (target_url.address,), inf
            return
        addresses, expires_at = await self._addresses(target_url.host)
        if not (host.addresses and set(host.addresses) == set(addresses[:MAX_ADDRESSES])):
            host.addresses = addresses[:MAX_ADDRESSES]
        host.expires_at = max(expires_at, self._clock.monotonic())

    async def _addresses(self, host: str) -> tuple[tuple[str, ...], float]:
        """Resolve a name and check every address: one forbidden address forbids the name."""
        answer = await self._resolver.resolve(host)
        for address in answer.addresses:
            check_address(address, self._settings.allow_private)
        return answer

    async def _exchange(self, call: HttpCall, target: Target, connection: Connection, host: Host) -> HttpReply:
        """Send the request, read the response, and keep the connection for the next request if possible."""
        request, settings = call.request, self._settings
        if self._closed:
            connection.abort()
            raise ConnectFailed("the downloader was closed")
        # In this order, a delay between the two readings cannot make the response look later than it was.
        fetched_at = self._clock.epoch()
        sent_at = self._clock.monotonic()
        try:
            check_before_sending.get()()
        except FetchError:
            self._keep(target, connection, host)
            raise
        answer = http1.ResponseParser(
            request.method,
            call.max_bytes,
            self._clock.monotonic,
            truncates=self._accepts_cut(request.label, "max_body_bytes:?"),
        )
        seconds = max(0.01, settings.fetch_seconds + call.began - sent_at)
        is_kept = connection.uses > 0
        try:
            await connection.exchange(self._request_bytes(call, target, host), answer, seconds, "fetch_seconds")
        except ConnectFailed as error:
            if is_kept and error.was_open:
                host.ended_count += 1
                if request.method in SAFE_METHODS:
                    # The server may have seen the request: the caller knows the site's delay and decides on a retry.
                    message = f"{call.target_url.host}: closed a kept-alive connection"
                    raise ConnectFailed(message, was_open=True, was_kept=True) from None
            error.args = (f"{call.target_url.host}: {error}",)
            raise
        except FetchError as error:
            error.args = (f"{call.target_url.host}: {error}",)
            raise
        if answer.is_reusable:
            self._keep(target, connection, host)
        cut = f"{answer.cut} headers:{answer.skipped}".strip() if answer.skipped else answer.cut
        return HttpReply(
            answer.status,
            answer.version,
            answer.headers,
            answer.head,
            answer.body,
            cut,
            answer.headers_at,
            sent_at,
            fetched_at,
        )

    def _keep(self, target: Target, connection: Connection, host: Host) -> None:
        if host.keeps_alive and not self._closed:
            most = self._settings.per_site + 1
            self._connections.keep(target, connection, most=most, most_of_all=self._most_idle)
        else:
            connection.abort()

    def _request_bytes(self, call: HttpCall, target: Target, host: Host) -> bytes:
        target_url, request = call.target_url, call.request
        headers = self._outgoing.everywhere if call.headers is None else self._outgoing.everywhere | call.headers
        if not host.keeps_alive:
            headers = headers | {"connection": "close"}
        where = target_url.path
        if target.proxy is not None and target.proxy.speaks_http and not target_url.is_tls:
            where = f"http://{target_url.authority}{where}"
            for line in proxy_authorization(target.proxy):
                name, _, value = line.partition(": ")
                headers = headers | {name.lower(): value}
        return http1.request(request.method, where, target_url.authority, headers.items(), call.body)

    async def _send_by_proxy(self, call: HttpCall, proxies: tuple[Proxy, ...]) -> HttpReply:
        """Send through the first proxy that reaches the host; try the next one if nothing was sent yet."""
        target_url = call.target_url
        if target_url.address:
            check_address(target_url.address, self._settings.allow_private)
        elif not self._settings.allow_private:
            await self._addresses(target_url.host)
        fault: FetchError | None = None
        for proxy in proxies:
            target = Target(
                target_url.host,
                target_url.port,
                self._contexts.of_site(call.site) if target_url.is_tls else None,
                proxy,
            )
            if not target_url.is_tls and proxy.speaks_http:
                # One connection to the proxy serves every host.
                target = Target("", 0, None, proxy)
            try:
                connection = self._connections.take(target) or await self._connections.open_by_proxy(target)
            except ProxyFault as error:
                fault = await self._proxies.fault(proxy, target_url.host, error.blame, error.error)
                if error.blame == "host":
                    break
                continue
            try:
                reply = await self._exchange(call, target, connection, Host())
            except ConnectFailed as error:
                if error.was_kept:
                    raise
                blame: Blame = "host" if target_url.is_tls else "either"
                fault = await self._proxies.fault(proxy, target_url.host, blame, error)
                break
            except FetchError as error:
                blame = "host" if target_url.is_tls or isinstance(error, TimedOut) else "either"
                fault = await self._proxies.fault(proxy, target_url.host, blame, error)
                break
            if (
                fault := self._proxies.answered(proxy, target_url.host, reply.status, is_tls=target_url.is_tls)
            ) is not None:
                continue
            return reply._replace(via=proxy.name)
        assert fault is not None
        raise fault

    async def _respond(self, call: HttpCall, reply: HttpReply) -> Response:
        if reply.status < 200:
            raise ProtocolBroken(f"invalid response status {reply.status}")
        elapsed = self._clock.monotonic() - reply.sent_at
        cut, label = reply.cut, call.request.label
        if cut and not self._accepts_cut(label, cut):
            raise _cut_error(cut, call)
        body = reply.body
        values = [value for name, value in reply.headers if name == "content-encoding"] if body else None
        if values and (codings := encodings(values)):
            limit_bytes = self._limit(call.request, self._settings.max_decoded_bytes)
            if len(body) <= DECODE_INLINE_BYTES:
                body, fault = decode_partly(body, codings, limit_bytes)
            else:
                body, fault = await asyncio.to_thread(decode_partly, body, codings, limit_bytes)
            # A truncated body is not expected to end its encoding.
            if fault is not None and (isinstance(fault, TooLarge) or cut.startswith("headers:") or not cut):
                what = "max_decoded_bytes:?" if isinstance(fault, TooLarge) else "encoding:?"
                if not self._accepts_cut(label, what):
                    raise fault
                cut = f"{cut} {what}".strip()
        return Response(
            url=call.request.url,
            status=reply.status,
            headers=reply.headers,
            head=reply.head,
            body=body,
            cut=cut,
            http_version=reply.version,
            address=reply.address,
            via=reply.via,
            fetched_at=reply.fetched_at,
            elapsed=elapsed,
            latency=reply.headers_at - reply.sent_at,
            headers_at=reply.headers_at,
            wire_bytes=len(reply.body),
            sent=self._outgoing.storable(call.headers),
        )

    def _accepts_cut(self, label: str, cut: str) -> bool:
        """Whether a response truncated for this reason is accepted."""
        may_be_cut = _ACCEPTED_CUTS.get(label)
        if may_be_cut is not None:
            return all(part.partition(":")[0] in may_be_cut for part in cut.split())
        return self._settings.partial == "keep"

    def _limit(self, request: Request, limit_bytes: int) -> int:
        if request.label == SITEMAP:
            return max(limit_bytes, SITEMAP_BYTES)
        return {FILE: self._settings.max_file_bytes, ROBOTS: ROBOTS_BYTES}.get(request.label, limit_bytes)


def _cut_error(cut: str, call: HttpCall) -> FetchError:
    """Return the error for a truncated response where only complete ones are accepted."""
    reason, _, lost = cut.partition(" ")[0].partition(":")
    host = call.target_url.host
    if reason == "max_body_bytes":
        return TooLarge(f"{host}: body of more than {call.max_bytes} bytes")
    if reason == "fetch_seconds":
        return TimedOut(f"{host}: timeout before the response was complete")
    if reason == "headers":
        return ProtocolBroken(f"{host}: {lost} malformed header lines")
    if reason == "content_length":
        return ProtocolBroken(f"{host}: body length differs from Content-Length")
    return ProtocolBroken(f"{host}: body truncated")


def _file_limit() -> int:
    """Return the limit of open files and sockets of this process."""
    if sys.platform == "win32":
        return 8192
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1_000_000 if limit == resource.RLIM_INFINITY else limit
