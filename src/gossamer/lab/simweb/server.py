"""The HTTP and HTTPS server of the simulated web."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import struct
import sys
import traceback
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, cast

import brotli
import msgspec

from gossamer.clock import Clock, SystemClock
from gossamer.compression import zstd
from gossamer.errors import ConfigError
from gossamer.lab.simweb import features
from gossamer.lab.simweb.features import Fault, SimAnswer, refused
from gossamer.lab.simweb.log import LogWriter
from gossamer.lab.simweb.pages import PageRenderer
from gossamer.lab.simweb.site import WebPlan

_REASONS = {status.value: status.phrase for status in HTTPStatus}
CODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda body: gzip.compress(body, 1, mtime=0),
    "br": lambda body: bytes(brotli.compress(body, quality=1)),
    "zstd": lambda body: zstd.compress(body, 1),
}


class SimReply(NamedTuple):
    """A response as bytes on the wire."""

    head: bytes
    body: bytes
    status: int
    wait_seconds: float
    fault: Fault


def framed(answer: SimAnswer, coding: str = "") -> SimReply:
    """Encode a response as HTTP/1.1, optionally with a content encoding."""
    body = CODERS[coding](answer.body) if coding else answer.body
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Unknown')}",
        f"Content-Type: {answer.content_type}",
    ]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    if coding:
        lines.append(f"Content-Encoding: {coding}")
    if answer.chunked:
        lines.append("Transfer-Encoding: chunked")
        chunks = [body[start : start + 4096] for start in range(0, len(body), 4096)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    else:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join((*lines, "", "")).encode("latin-1")
    return SimReply(head, body, answer.status, answer.wait_seconds, answer.fault)


def header(head: bytes, name: bytes, lower: bytes | None = None) -> bytes:
    """The value of a header in the head of a request, which begins with a line break; empty if absent."""
    start = (lower if lower is not None else head).find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    return head[start : head.find(b"\r\n", start)].strip()


ADDRESSES_IN_A_CERTIFICATE = 1000
NAMES_IN_A_CERTIFICATE = 50


def server_context(plan: WebPlan, ca_file: Path) -> ssl.SSLContext:
    """Create the server's TLS context, and write the certificate authority for clients to `ca_file`.

    Connections to addresses send no SNI, so one certificate has all addresses; names get one certificate per 50."""
    try:
        import trustme
    except ImportError:
        raise ConfigError("TLS on the simulated web requires the package trustme", hint="pip install trustme") from None
    # Hosts outside the web have certificates too, so that a crawler that goes there appears in the log.
    hosts = plan.sites + 5
    if not plan.names and hosts > ADDRESSES_IN_A_CERTIFICATE:
        raise ConfigError(
            f"a certificate for {plan.sites} addresses is too large",
            hint="use --names, which has one certificate per 50 hosts",
        )
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(ca_file))

    @lru_cache(maxsize=256)
    def context(first: int) -> ssl.SSLContext:
        count = NAMES_IN_A_CERTIFICATE if plan.names else ADDRESSES_IN_A_CERTIFICATE
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*(plan.host(site) for site in range(first, min(first + count, hosts)))).configure_cert(
            made
        )
        return made

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        site = plan.site_of(name) if name else None
        if site is not None and site < hosts:
            connection.context = context(site - site % NAMES_IN_A_CERTIFICATE)

    default = context(0)
    if plan.names:
        default.sni_callback = choose
    return default


MAX_HEAD_BYTES = 65_536
MAX_VISITS = 1_000_000
FLUSH_SECONDS = 0.05


class SimServer:
    """Serves a plan. Caches rendered responses up to `cache_bytes`; nothing else grows with the crawl."""

    def __init__(
        self,
        plan: WebPlan,
        *,
        log_path: Path | None = None,
        ca_file: Path | None = None,
        cache_bytes: int = 192 << 20,
        clock: Clock | None = None,
    ) -> None:
        self.plan = plan
        self.pages = PageRenderer(plan)
        self.dark: set[int] = set()
        """Sites that reset every connection, as if they were offline."""
        self._clock = clock or SystemClock()
        self._epoch = self._clock.epoch() - self._clock.monotonic()
        self._log = LogWriter(log_path)
        self._ca_file = ca_file
        self._codings = [
            next((name for name in CODERS if name in plan.features(site)), "") for site in range(len(plan.kinds))
        ]
        self._cache: dict[tuple[int, str, str], SimReply] = {}
        self._cache_room = cache_bytes
        self._visits: dict[tuple[int, str], int] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> WebPlan:
        """Start to listen; returns the plan with the port in use."""
        _raise_file_limit()
        listener = _listen(self.plan)
        self.plan = msgspec.structs.replace(self.plan, port=listener.getsockname()[1])
        self.pages = PageRenderer(self.plan)
        context: ssl.SSLContext | None = None
        if self.plan.tls:
            if self._ca_file is None:
                raise ConfigError("TLS requires a file for the certificate authority")
            context = server_context(self.plan, self._ca_file)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: SimConnection(self, loop), sock=listener, ssl=context, backlog=4096
        )
        return self.plan

    async def aclose(self) -> None:
        """Stop listening, and flush the log."""
        if self._server is not None:
            self._server.close()
        self._log.close()

    def now(self) -> float:
        """Epoch seconds that never go back, even if the system clock does."""
        return self._epoch + self._clock.monotonic()

    def flush(self) -> None:
        """Flush the log for readers."""
        self._log.flush()

    def reply(self, site: int, target: str, head: bytes) -> SimReply:
        """The response to one GET; `head` has the headers in lower case.

        It counts as a visit if the first response differs from later ones."""
        coding = self._codings[site % len(self._codings)]
        if coding and coding.encode() not in header(head, b"accept-encoding"):
            coding = ""
        key = (site, target, coding)
        found = self._cache.get(key)
        if found is not None:
            return found
        answer = self.pages.answer(site, target)
        if answer.times:
            visit = self._visits.get((site, target), 0)
            if len(self._visits) >= MAX_VISITS:
                self._visits.clear()
            self._visits[site, target] = visit + 1
            if visit >= answer.times:
                answer = self.pages.answer(site, target, visit=visit)
        made = framed(answer, coding if answer.coding else "")
        # Nothing is evicted: a crawl requests each page once, so older entries are worth as much as newer ones.
        if not answer.times and len(made.body) <= self._cache_room:
            self._cache_room -= len(made.body)
            self._cache[key] = made
        return made

    def record(self, connection: SimConnection, *, finished_at: float) -> None:
        """Log a request."""
        times = (connection.arrived_at, connection.headers_at or finished_at, finished_at)
        where = (connection.origin, connection.method, connection.target)
        if self._log.write(times, where, connection.status, (connection.port, connection.agent)):
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._log.flush)


class SimConnection(asyncio.Protocol):
    """One client connection. Requests are processed one by one; pipelined ones wait."""

    def __init__(self, server: SimServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._buffer = b""
        self._busy = self._paused = self._sending = self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._site: int | None = None
        self.port = 0
        self.origin = self.method = self.target = self.agent = ""
        self.status = 0
        self.arrived_at = self.headers_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        local, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if not (_is_loopback(local) and _is_loopback(peer)):
            self._closing = True
            self._transport.abort()
            return
        self.port = peer[1]
        # Every write is sent at once, and a full buffer is reported: a response is finished when all of it was sent.
        self._transport.set_write_buffer_limits(high=0)
        if not self._server.plan.names:
            self._place(self._server.plan.site_of(local[0]))

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if not self._busy:
            self._next()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        # TLS may pause and resume within one write, whose request is finished by `_send`.
        if self._busy and self.headers_at and not self._sending:
            self._finish()
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._busy:
            self._busy, self.status = False, 0
            self._server.record(self, finished_at=self._server.now())

    def _next(self) -> None:
        """Process the received requests until one must wait."""
        while self._buffer and not self._busy and not self._closing:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    self.arrived_at, self.method, self.target = self._server.now(), "-", "-"
                    self._refuse(431, "The head of the request is too large.")
                return
            body_bytes = _length_of_form(self._buffer[: end + 2])
            if len(self._buffer) < end + 4 + body_bytes:
                return
            body = self._buffer[end + 4 : end + 4 + body_bytes]
            head, self._buffer = self._buffer[: end + 2], self._buffer[end + 4 + body_bytes :]
            try:
                self._take(head, body)
            except Exception:
                # Show an internal error, but keep serving.
                traceback.print_exc()
                self._refuse(500, "The simulated web has a fault of its own.")

    def _take(self, head: bytes, body: bytes) -> None:
        self.arrived_at, self.headers_at, self.status = self._server.now(), 0.0, 0
        words = head[: head.index(b"\r\n")].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self.method = self.target = "-"
            self._refuse(400, "That is not an HTTP/1.1 request.")
            return
        self.method, self.target, version = words
        head = head[head.index(b"\r\n") :]
        lower = head.lower()
        self.agent = header(head, b"user-agent", lower).decode("latin-1")
        if (
            b"\r\nconnection: close" in lower
            or version == "HTTP/1.0"
            or b"\r\ncontent-length:" in lower
            or b"\r\ntransfer-enc" in lower
        ):
            # Bodies other than forms are not read, so the connection cannot be reused.
            self._closing = True
        if self._server.plan.names:
            site = self._server.plan.site_of(header(lower, b"host").decode("latin-1").partition(":")[0])
            if site is None or site != self._site:
                self._place(site)
        if self._site is None:
            self._refuse(421, f"This web has no such host; its first one is {self._server.plan.url(0)}")
            return
        self._busy = True
        plan = self._server.plan
        if self._site in self._server.dark:
            reply = framed(SimAnswer(fault="reset"))
        elif self.method == "POST" and (taken := features.posted(plan, self._site, self.target, body)):
            reply = framed(taken)
        elif self.method not in ("GET", "HEAD"):
            reply = framed(refused(405, "Only GET and HEAD."))
        elif self.target.startswith(features.PRIVATE) and (member := self._member(head, lower)):
            reply = framed(member)
        else:
            reply = self._server.reply(self._site, self.target, lower)
        if reply.fault == "hang":
            return
        if reply.wait_seconds:
            self._timer = self._loop.call_later(reply.wait_seconds, self._send_late, reply)
        else:
            self._send(reply)

    def _member(self, head: bytes, lower: bytes) -> SimAnswer | None:
        cookie = header(head, b"cookie", lower).decode("latin-1")
        return features.answer_member(self._server.plan, self._site or 0, self.target, cookie)

    def _place(self, site: int | None) -> None:
        self._site = site
        self.origin = self._server.plan.url(site, "") if site is not None else "http://unknown.invalid"

    def _send_late(self, reply: SimReply) -> None:
        self._timer = None
        self._send(reply)
        self._next()

    def _send(self, reply: SimReply) -> None:
        # Take the time before the write: the client may receive the headers before this process runs again.
        self.headers_at = self._server.now()
        if reply.fault:
            self._break_off(reply)
            return
        self.status = reply.status
        self._sending = True
        self._transport.writelines((reply.head,) if self.method == "HEAD" else (reply.head, reply.body))
        self._sending = False
        if not self._paused:
            self._finish()

    def _break_off(self, reply: SimReply) -> None:
        self._closing = True
        if reply.fault == "reset":
            plug = self._transport.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
            return
        if reply.fault == "cut":
            self._transport.write(reply.head + reply.body[: len(reply.body) // 2])
        self._transport.close()

    def _finish(self) -> None:
        self._busy = False
        self._server.record(self, finished_at=self._server.now())
        if self._closing:
            self._transport.close()

    def _refuse(self, status: int, text: str) -> None:
        self._closing = self._busy = True
        self._send(framed(refused(status, text)))


def _length_of_form(head: bytes) -> int:
    """Length of the form body after the head; 0 if there is none, or if it is too long for a form."""
    if not head.startswith(b"POST "):
        return 0
    length = header(head, b"content-length", head.lower())
    return int(length) if length.isdigit() and len(length) < 6 else 0


def _is_loopback(address: tuple[str, int] | None) -> bool:
    return bool(address) and address is not None and address[0].startswith("127.")


def _listen(plan: WebPlan) -> socket.socket:
    """Open a listening socket. For addresses it binds to all interfaces, and accepts only loopback connections."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    everywhere = not plan.names and sys.platform == "linux"
    if everywhere:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        except OSError:
            # Older kernels require privileges for this; every connection is checked as well.
            pass
    try:
        listener.bind(("0.0.0.0" if everywhere else "127.0.0.1", plan.port))  # noqa: S104
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"port {plan.port}: {error.strerror}", hint="choose another --port, or --port 0 for a free one"
        ) from None
    listener.setblocking(False)
    return listener


def _raise_file_limit() -> None:
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass
