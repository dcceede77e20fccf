"""Name servers, proxies, and faulty connections for tests, on loopback."""

from __future__ import annotations

import asyncio
import ssl
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

_TYPES = {1: 4, 28: 6}
"""Record types A and AAAA, with the IP version of their addresses."""


class NameServer(asyncio.DatagramProtocol):
    """A DNS server with the given records; `dead*` gets no reply, `broken*` SERVFAIL, and other names NXDOMAIN.

    `asked` counts the queries for A records by name; `busy` is set after queries for twenty names."""

    def __init__(self, records: Mapping[str, Sequence[str]], ttl: int = 300) -> None:
        self.records, self.ttl = records, ttl
        self.asked: Counter[str] = Counter()
        self.busy = asyncio.Event()
        self._transport: Any = None

    @property
    def address(self) -> str:
        """Its address, such as 127.0.0.1:5353."""
        return "{}:{}".format(*self._transport.get_extra_info("sockname"))

    async def __aenter__(self) -> Self:
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, ("127.0.0.1", 0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.close()

    def connection_made(self, transport: Any) -> None:
        """Keep the socket."""
        self._transport = transport

    def datagram_received(self, data: bytes, peer: Any) -> None:
        """Answer one query."""
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode("ascii", "replace"))
            at += data[at] + 1
        name, kind, question = ".".join(labels), int.from_bytes(data[at + 1 : at + 3], "big"), data[12 : at + 5]
        self.asked[name] += kind == 1
        if len(self.asked) >= 20:
            self.busy.set()
        if name.startswith("dead"):
            return
        code = 2 if name.startswith("broken") else 0 if name in self.records else 3
        known = [ip_address(text) for text in self.records.get(name, ())]
        found = [ip.packed for ip in known if ip.version == _TYPES.get(kind)]
        answers = b"".join(
            b"\xc0\x0c" + question[-4:] + self.ttl.to_bytes(4, "big") + len(ip).to_bytes(2, "big") + ip for ip in found
        )
        head = data[:2] + bytes((0x81, 0x80 | code)) + b"\0\1" + len(found).to_bytes(2, "big") + b"\0\0\0\0"
        self._transport.sendto(head + question + answers, peer)


_HOPPING = ("proxy-authorization:", "proxy-connection:", "connection:")


class ProxyServer:
    """An HTTP proxy that connects every name and address to `upstream`, on the requested port.

    With `password` it requires `user:password`; `asked` lists the requested hosts in order; for hosts in `refuse` it
    returns 502, like a proxy that cannot reach them."""

    scheme = "http"

    def __init__(
        self,
        *,
        password: str = "",
        upstream: str = "127.0.0.1",
        refuse: frozenset[str] = frozenset(),
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self._password, self._upstream, self._refuse, self._tls = password, upstream, refuse, tls
        self.port = port
        self.asked: list[str] = []
        self.heads: list[str] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Its URL, with the required credentials."""
        scheme = "https" if self._tls and self.scheme == "http" else self.scheme
        secret = f"user:{self._password}@" if self._password else ""
        return f"{scheme}://{secret}127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Cancelled only when the server closes.
            with suppress(OSError, asyncio.IncompleteReadError, ValueError, IndexError, asyncio.CancelledError):
                await self._talk(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heads.append(head)
        first, *fields = head[:-4].split("\r\n")
        method, target, version = first.split(" ")
        if self._password and not self._knows(fields):
            writer.write(b'HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm="x"\r\nContent-Length: 0\r\n\r\n')
            await writer.drain()
            return
        url = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = url.hostname or "", url.port or 80
        self.asked.append(host)
        if host in self._refuse:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        far_reader, far_writer = await asyncio.open_connection(self._upstream, port)
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            await _join((reader, writer), (far_reader, far_writer))
            return
        try:
            path = url._replace(scheme="", netloc="").geturl() or "/"
            far_writer.write(_rewritten(f"{method} {path} {version}", fields))
            far_writer.write(await reader.readexactly(_length(fields) or 0))
            answer = (await far_reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *said = answer[:-4].split("\r\n")
            length = _length(said)
            # One request per connection: the next one may be for another host.
            writer.write(_rewritten(line, said))
            writer.write(await (far_reader.read() if length is None else far_reader.readexactly(length)))
            await writer.drain()
        finally:
            far_writer.close()

    def _knows(self, fields: list[str]) -> bool:
        for field in fields:
            name, _, value = field.partition(":")
            if name.lower() == "proxy-authorization":
                return b64decode(value.split()[-1]).decode() == f"user:{self._password}"
        return False


class SocksServer(ProxyServer):
    """A SOCKS 5 proxy; hosts in `refuse` are unreachable for it."""

    scheme = "socks5"

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        methods = await reader.readexactly((await reader.readexactly(2))[1])
        wanted = 2 if self._password else 0
        writer.write(bytes((5, wanted if wanted in methods else 255)))
        if wanted not in methods:
            await writer.drain()
            return
        if wanted:
            name = await reader.readexactly((await reader.readexactly(2))[1])
            word = await reader.readexactly((await reader.readexactly(1))[0])
            is_known = (name, word) == (b"user", self._password.encode())
            writer.write(bytes((1, 0 if is_known else 1)))
            if not is_known:
                await writer.drain()
                return
        kind = (await reader.readexactly(4))[3]
        length = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
        raw = await reader.readexactly(length)
        host = raw.decode("ascii") if kind == 3 else ".".join(map(str, raw))
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.asked.append(host)
        if host in self._refuse:
            writer.write(b"\5\4\0\1\0\0\0\0\0\0")
            await writer.drain()
            return
        far = await asyncio.open_connection(self._upstream, port)
        writer.write(b"\5\0\0\1\0\0\0\0\0\0")
        await _join((reader, writer), far)


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _rewritten(line: str, fields: list[str]) -> bytes:
    kept = [field for field in fields if not field.lower().startswith(_HOPPING)]
    return "\r\n".join([line, *kept, "Connection: close", "", ""]).encode("latin-1")


def _length(fields: list[str]) -> int | None:
    found = [field.partition(":")[2] for field in fields if field.lower().startswith("content-length:")]
    return int(found[0]) if found else None


async def _join(near: Ends, far: Ends) -> None:
    """Forward bytes in both directions until both sides close."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            else:
                writer.close()

    try:
        await asyncio.gather(carry(near[0], far[1]), carry(far[0], near[1]))
    finally:
        far[1].close()


_HOST = "127.0.0.1"
_LIMIT_BYTES = 1 << 26
_READ_BYTES = 1 << 16

Fault = Literal["", "refuse", "reset", "hang up", "silent"]
CommandFault = Literal["", "cut", "mute"]


class FaultyProxy:
    """A TCP proxy in its own thread that injects faults; clients connect to `port`.

    `refuse`: nothing listens. `reset` and `hang up`: connections are accepted and closed at once. `silent`: connections
    are accepted, but no data passes, on new or on open ones. `lose` closes one connection after the server has
    processed a message, without forwarding the reply."""

    def __init__(self, port: int) -> None:
        self.server_port = port
        """Target port of new connections; open ones keep theirs."""
        self.port = 0
        self.faults = 0
        """Number of connections and commands that met a fault."""
        self.lose = b""
        """The reply to the next message that contains this is lost with its connection; reset to empty afterwards."""
        self._fault: Fault = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._speaks = asyncio.Event()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._do(self._break("refuse"))
        self._do(self._until_closed())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def lead(self, port: int) -> None:
        """Close all connections, clear the fault, and forward new connections to another port."""
        self.server_port = port
        self.fail("")

    def fail(self, fault: Fault) -> None:
        """Inject this fault from now on; only `silent` leaves connections open."""
        self._do(self._break(fault))

    def cut_all(self) -> None:
        """Close all connections."""
        self._loop.call_soon_threadsafe(self._abort)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._started.set()
        self._loop.run_forever()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, _HOST, self.port, limit=_LIMIT_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _break(self, fault: Fault) -> None:
        self._fault = fault
        if fault == "refuse" and self._server is not None:
            self._server.close()
            self._server = None
        elif fault != "refuse" and self._server is None:
            await self._listen()
        if fault == "silent":
            self._speaks.clear()
        else:
            self._speaks.set()
            self._abort()

    async def _until_closed(self) -> None:
        while self._open:
            await asyncio.sleep(0.01)

    def _abort(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._fault in ("reset", "hang up"):
            self.faults += 1
            # Closing sends FIN; aborting sends RST if data was received.
            client.close() if self._fault == "hang up" else client.transport.abort()
            return
        self._open.add(client)
        writers = [client]
        try:
            if self._fault == "silent":
                await self._speaks.wait()
                raise EOFError
            answers, server = await asyncio.open_connection(_HOST, self.server_port, limit=_LIMIT_BYTES)
            self._open.add(server)
            writers.append(server)
            link = _Link(reader, client, answers, server)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(link))
                tasks.create_task(self._answer(link))
        except* (OSError, EOFError):
            pass
        finally:
            for writer in writers:
                writer.transport.abort()
            self._open.difference_update(writers)

    async def _forward(self, link: _Link) -> None:
        while data := await link.commands.read(_READ_BYTES):
            if self.lose and self.lose in data:
                self.lose, link.muted = b"", True
                self.faults += 1
            await self._pass(data, link.server)
        raise EOFError

    async def _answer(self, link: _Link) -> None:
        while (data := await link.answers.read(_READ_BYTES)) and not link.muted:
            await self._pass(data, link.client)
        raise EOFError

    async def _pass(self, data: bytes, target: asyncio.StreamWriter) -> None:
        if self._fault == "silent":
            await self._speaks.wait()
            raise EOFError
        target.write(data)
        await target.drain()


class FaultyRedisProxy(FaultyProxy):
    """A faulty proxy for a Redis server, per command.

    Every `every`-th command meets the `fault`: `cut` closes the connection before the server gets the command, `mute`
    after the server has run it, without the reply. `error` replies to all commands except those of a greeting. Each
    reply is delayed by `latency_seconds`, and `rewrite` can replace it. All attributes can be changed at any time.
    """

    GREETINGS = (b"HELLO", b"AUTH", b"CLIENT", b"SELECT", b"PING")

    def __init__(self, port: int, *, fault: CommandFault = "", every: int = 0) -> None:
        super().__init__(port)
        self.fault: CommandFault = fault
        self.every = every
        self.error = ""
        self.latency_seconds = 0.0
        self.rewrite: Callable[[bytes], bytes] | None = None
        self._commands = 0

    async def _forward(self, link: _Link) -> None:
        while True:
            command = await _read_command(link.commands)
            self._commands += 1
            if self.error and command.split(b"\r\n", 3)[2].upper() not in self.GREETINGS:
                link.client.write(f"-{self.error}\r\n".encode())
                continue
            if self.fault and self.every > 0 and self._commands % self.every == 0:
                self.faults += 1
                if self.fault == "cut":
                    raise EOFError
                link.muted = True
            await self._pass(command, link.server)

    async def _answer(self, link: _Link) -> None:
        while True:
            data = await link.answers.read(_READ_BYTES)
            if not data or link.muted:
                raise EOFError
            if self.latency_seconds:
                await asyncio.sleep(self.latency_seconds)
            await self._pass(data if self.rewrite is None else self.rewrite(data), link.client)


class _Link:
    """A client's connection, and the proxy's connection to the server."""

    def __init__(
        self,
        commands: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        self.commands = commands
        self.client = client
        self.answers = answers
        self.server = server
        self.muted = False


async def _read_command(reader: asyncio.StreamReader) -> bytes:
    """Read the bytes of one command, an array of strings."""
    head = await reader.readuntil(b"\r\n")
    parts = [head]
    for _ in range(int(head[1:])):
        size = await reader.readuntil(b"\r\n")
        parts += [size, await reader.readexactly(int(size[1:]) + 2)]
    return b"".join(parts)
