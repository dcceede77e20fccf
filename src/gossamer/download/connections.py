"""Connection pool of the asynchronous client: Happy Eyeballs to connect, keep-alive per host, and proxy tunnels."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from gossamer.download.guard import check_address
from gossamer.download.http1 import ResponseParser, as_fetch_error
from gossamer.download.proxies import Blame, Proxy
from gossamer.download.tls import END_HINT, translate_tls
from gossamer.errors import ConnectFailed, FetchError, TimedOut

ATTEMPT_DELAY_SECONDS = 0.25
"""Head start of each address over the next (RFC 8305)."""


RACE_AFTER_SECONDS = 0.5
"""Seconds without a response after which other addresses are tried too."""

R = TypeVar("R")


class BetterAddress(Exception):
    """Another address of the host accepts connections, and the one in use does not."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


async def race_addresses(exchange: Coroutine[Any, Any, R], addresses: Sequence[str], port: int, *, seconds: float) -> R:
    """Run the exchange with the first address; BetterAddress if another address connects before it does."""
    task = asyncio.ensure_future(exchange)
    # A task that fails while it is being cancelled must not log an unretrieved exception.
    task.add_done_callback(_retrieve_exception)
    race: asyncio.Task[str | None] | None = None
    try:
        if not (await asyncio.wait((task,), timeout=RACE_AFTER_SECONDS))[0]:
            race = asyncio.create_task(first_connected(addresses, port, seconds=seconds))
            await asyncio.wait((task, race), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and race.result() not in (None, addresses[0]):
                raise BetterAddress(str(race.result()))
        return await task
    finally:
        task.cancel()
        if race is not None:
            race.cancel()


def _retrieve_exception(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def first_connected(addresses: Sequence[str], port: int, *, seconds: float) -> str | None:
    """Return the address that connects first, None if none does in time; sends nothing to any of them."""
    tasks: dict[asyncio.Task[bool], str] = {}
    waiting = list(addresses)
    try:
        async with asyncio.timeout(seconds):
            while waiting or tasks:
                if waiting:
                    address = waiting.pop(0)
                    tasks[asyncio.create_task(_connects(address, port))] = address
                # A refusal starts the next attempt at once.
                gap = ATTEMPT_DELAY_SECONDS if waiting else None
                done, _ = await asyncio.wait(tasks, timeout=gap, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    address = tasks.pop(task)
                    if task.result():
                        return address
    except TimeoutError:
        pass
    finally:
        for task in tasks:
            task.cancel()
    return None


async def _connects(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    writer.close()
    return True


async def first_success(attempts: Sequence[Callable[[], Coroutine[Any, Any, R]]], drop: Callable[[R], None]) -> R:
    """Return the result of the first attempt that succeeds; attempts start one after another, earlier after a failure.

    If all fail, raises the error of the first. Results that arrive too late are passed to `drop`."""
    waiting = list(attempts)
    tasks: set[asyncio.Task[R]] = set()
    fault: BaseException | None = None

    def late(task: asyncio.Task[R]) -> None:
        if not task.cancelled() and task.exception() is None:
            drop(task.result())

    try:
        while waiting or tasks:
            if waiting:
                tasks.add(asyncio.create_task(waiting.pop(0)()))
            gap = ATTEMPT_DELAY_SECONDS if waiting else None
            done, _ = await asyncio.wait(tasks, timeout=gap, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                tasks.discard(task)
                if (error := task.exception()) is None:
                    return task.result()
                fault = fault or error
    finally:
        for task in tasks:
            task.cancel()
            task.add_done_callback(late)
    assert fault is not None
    raise fault


IDLE_SECONDS = 30.0
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_SOCKS_HOST = {3: "network unreachable", 4: "host unreachable", 5: "connection refused", 6: "TTL expired"}


class Connection(asyncio.Protocol):
    """One connection with one request at a time. Unsolicited data closes it."""

    def __init__(self, owner: Connections | None, address: str = "") -> None:
        self._owner = owner
        self.address = address
        self.is_open = False
        self.uses = 0
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._reason = ""
        # A StreamWriter closes its connection when it is garbage-collected.
        self.opened_by: asyncio.StreamWriter | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True
        if self._owner is not None:
            self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        answer = self._parser
        if answer is None:
            self.abort()
            return
        try:
            if answer.feed(data):
                self._finish(None)
        except Exception as error:  # whatever a server's bytes cause becomes the result of this page
            self._finish(as_fetch_error(error))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._owner is not None:
            self._owner.lost(self)
        answer = self._parser
        if answer is None:
            return
        try:
            if isinstance(error, ssl.SSLError) and not answer.status:
                raise translate_tls(error, "")
            answer.end(error)
        except FetchError as fault:
            self._finish(fault)
        else:
            self._finish(None)

    async def exchange(self, request: bytes, answer: ResponseParser, seconds: float, reason: str) -> None:
        """Send a request and wait for the complete response; after `seconds` it is truncated with `reason`."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        if not self.is_open:
            answer.end(None)
        self._parser, self._waiter, self._reason = answer, loop.create_future(), reason
        self.uses += 1
        timer = loop.call_later(seconds, self._time_out)
        try:
            self._transport.write(request)
            await self._waiter
        except BaseException:
            answer.is_reusable = False
            raise
        finally:
            timer.cancel()
            self._parser = self._waiter = None
            if not answer.is_reusable:
                self.abort()

    def abort(self) -> None:
        """Close at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def fail(self, error: FetchError) -> None:
        """Fail the exchange in progress with this error."""
        self._finish(error)
        self.abort()

    def _time_out(self) -> None:
        if self._parser is None:
            # The exchange ended at the same moment.
            return
        try:
            self._parser.time_out(self._reason)
        except FetchError as error:
            self._finish(error)
        else:
            self._finish(None)

    def _finish(self, error: FetchError | None) -> None:
        self._parser = None
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


class ProxyFault(Exception):
    """A connection through a proxy failed; `blame` is the party at fault."""

    def __init__(self, error: FetchError, blame: Blame) -> None:
        super().__init__(str(error))
        self.error, self.blame = error, blame


class Target(NamedTuple):
    """The key of a connection: it serves only requests with an equal target. The target of an HTTP proxy that handles
    plain http has no host."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    proxy: Proxy | None = None


class Connections:
    """All connections of a downloader: opens them, and keeps idle ones for the next request.

    Every address is checked by the guard right before connecting, whatever the connection is for."""

    def __init__(self, *, allow_private: bool, connect_seconds: float, proxy_tls: Callable[[], ssl.SSLContext]) -> None:
        self._allow_private, self._connect_seconds, self._proxy_tls = allow_private, connect_seconds, proxy_tls
        self._open: set[Connection] = set()
        self._idle: OrderedDict[Connection, tuple[Hashable, float]] = OrderedDict()
        self._by_target: dict[Hashable, list[Connection]] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def take(self, target: Hashable, addresses: Sequence[str] = ()) -> Connection | None:
        """Return an idle connection for this target, to one of the addresses if given; None if there is none."""
        waiting = self._by_target.get(target)
        while waiting:
            connection = waiting[-1]
            self._forget_idle(connection)
            if connection.is_open and (not addresses or connection.address in addresses):
                return connection
            connection.abort()
        return None

    def keep(self, target: Hashable, connection: Connection, *, most: int, most_of_all: int) -> None:
        """Keep an open connection for the next request."""
        if not connection.is_open:
            return
        loop = asyncio.get_running_loop()
        waiting = self._by_target.setdefault(target, [])
        waiting.append(connection)
        self._idle[connection] = (target, loop.time() + IDLE_SECONDS)
        if len(waiting) > most:
            waiting[0].abort()
            self._forget_idle(waiting[0])
        if len(self._idle) > most_of_all:
            self.close_idle(1)
        if self._sweeper is None:
            self._sweeper = loop.call_later(IDLE_SECONDS, self._sweep)

    def close_idle(self, count: int | None = None) -> None:
        """Close the connections idle for longest: half of them, or `count`."""
        for _ in range((len(self._idle) + 1) // 2 if count is None else min(count, len(self._idle))):
            connection = next(iter(self._idle))
            self._forget_idle(connection)
            connection.abort()

    def close(self) -> None:
        """Close all connections; exchanges in progress fail."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self._open):
            connection.fail(ConnectFailed("the downloader was closed"))

    async def open(self, target: Target, addresses: Sequence[str]) -> Connection:
        """Open a connection to the first of the addresses that accepts it."""
        for address in addresses:
            check_address(address, self._allow_private)
        loop = asyncio.get_running_loop()

        async def attempt(address: str) -> Connection:
            name = target.host.strip("[]").rstrip(".") if target.tls else None
            _, connection = await loop.create_connection(
                lambda: Connection(self, address),
                address,
                target.port,
                ssl=target.tls,
                server_hostname=name,
                ssl_handshake_timeout=self._connect_seconds if target.tls else None,
            )
            return connection

        try:
            async with asyncio.timeout(self._connect_seconds):
                if len(addresses) == 1:
                    return await attempt(addresses[0])
                return await first_success([partial(attempt, address) for address in addresses], Connection.abort)
        except TimeoutError:
            raise TimedOut(f"{target.host}: connect timeout") from None
        except OSError as error:
            if is_out_of_files(error):
                raise
            raise translate_connect(error, target.host, is_tls=target.tls is not None) from None

    async def open_by_proxy(self, target: Target) -> Connection:
        """Open a connection through the target's proxy; ProxyFault if that fails.

        For plain http the connection ends at the HTTP proxy, which receives absolute URLs."""
        proxy = target.proxy
        assert proxy is not None
        where = f"{target.host} through {proxy.name}" if target.host else f"proxy {proxy.name}"
        blame: Blame = "proxy"
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(self._connect_seconds):
                tls = self._proxy_tls() if proxy.scheme == "https" else None
                name = proxy.host if tls else None
                reader, writer = await asyncio.open_connection(proxy.host, proxy.port, ssl=tls, server_hostname=name)
                if proxy.speaks_http:
                    if target.tls is not None:
                        blame = "either"
                        await _tunnel(reader, writer, proxy, target)
                else:
                    blame = "either"
                    await _socks(reader, writer, proxy, target)
                blame = "host"
                return await self._adopt(writer, target)
        except TimeoutError:
            error: FetchError = TimedOut(f"{where}: connect timeout")
            blame = "either" if blame == "host" else blame
        except ProxyFault as fault:
            error, blame = fault.error, fault.blame
        except (OSError, EOFError) as fault:
            if isinstance(fault, OSError) and is_out_of_files(fault):
                raise
            error = translate_connect(fault, where, is_tls=target.tls is not None)
        if writer is not None:
            writer.transport.abort()
        raise ProxyFault(error, blame)

    async def _adopt(self, writer: asyncio.StreamWriter, target: Target) -> Connection:
        connection = Connection(self)
        connection.opened_by = writer
        transport = writer.transport
        if target.tls is not None:
            name = target.host.strip("[]").rstrip(".")
            made = await asyncio.get_running_loop().start_tls(transport, connection, target.tls, server_hostname=name)
            assert made is not None
            transport = made
        else:
            transport.set_protocol(connection)
        connection.connection_made(transport)
        return connection

    def opened(self, connection: Connection) -> None:
        """Count an established connection."""
        self._open.add(connection)

    def lost(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._open.discard(connection)
        self._forget_idle(connection)

    def _forget_idle(self, connection: Connection) -> None:
        found = self._idle.pop(connection, None)
        if found is not None:
            waiting = self._by_target[found[0]]
            waiting.remove(connection)
            if not waiting:
                del self._by_target[found[0]]

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = None
        while self._idle:
            connection, (_, until) = next(iter(self._idle.items()))
            if until > loop.time():
                self._sweeper = loop.call_at(until, self._sweep)
                return
            self._forget_idle(connection)
            connection.abort()


def is_out_of_files(error: OSError) -> bool:
    """Whether this process may open no more sockets."""
    return error.errno in _OUT_OF_FILES


def translate_connect(error: OSError | EOFError, where: str, *, is_tls: bool) -> FetchError:
    """Return the FetchError for a connection that could not be established."""
    if isinstance(error, ssl.SSLError):
        return translate_tls(error, where)
    if isinstance(error, socket.gaierror):
        return ConnectFailed(f"{where}: no address for this name")
    if isinstance(error, EOFError | ConnectionResetError | ConnectionAbortedError):
        return ConnectFailed(f"{where}: closed the connection during connect", hint=END_HINT if is_tls else "")
    return ConnectFailed(f"{where}: {error.strerror or error}")


async def _tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: Proxy, target: Target) -> None:
    authority = f"{target.host}:{target.port}"
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", *proxy_authorization(proxy)]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise ProxyFault(ConnectFailed(f"proxy {proxy.name}: response too long"), "proxy") from None
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() and len(words[1]) == 3 else 0
    if not 200 <= status < 300:
        fault = ConnectFailed(f"{target.host} through {proxy.name}: CONNECT failed with status {status}")
        raise ProxyFault(fault, "proxy" if status in (0, 407) else "either")


def proxy_authorization(proxy: Proxy) -> list[str]:
    """Return the Proxy-Authorization header line, if the proxy has credentials."""
    if not proxy.credentials:
        return []
    return ["Proxy-Authorization: Basic " + b64encode(":".join(proxy.credentials).encode()).decode()]


async def _socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: Proxy, target: Target) -> None:
    """Connect through SOCKS 5 (RFC 1928, password by RFC 1929); the proxy resolves the name."""

    def refused(why: str, blame: Blame = "proxy") -> ProxyFault:
        return ProxyFault(ConnectFailed(f"{target.host} through {proxy.name}: {why}"), blame)

    method = b"\x02" if proxy.credentials else b"\x00"
    writer.write(b"\x05\x01" + method)
    version, chosen = await reader.readexactly(2)
    if version != 5 or chosen != method[0]:
        raise refused("wrong proxy credentials" if version == 5 else "not a SOCKS 5 proxy")
    if proxy.credentials:
        user, password = (part.encode()[:255] for part in proxy.credentials)
        writer.write(bytes((1, len(user))) + user + bytes((len(password),)) + password)
        if (await reader.readexactly(2))[1]:
            raise refused("wrong proxy credentials")
    name = target.host.strip("[]").encode()
    if len(name) > 255:
        raise refused("host name too long", "host")
    writer.write(b"\x05\x01\x00\x03" + bytes((len(name),)) + name + target.port.to_bytes(2))
    _, code, _, kind = await reader.readexactly(4)
    if code:
        raise refused(_SOCKS_HOST.get(code, f"SOCKS error {code}"), "host" if code in _SOCKS_HOST else "either")
    length = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
    await reader.readexactly(length + 2)
