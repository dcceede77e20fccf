"""Forward proxies on loopback, HTTP with CONNECT and SOCKS 5: whatever name they are asked for, they stay on it."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_HOPPING = ("proxy-authorization:", "proxy-connection:", "connection:")


class ProxyServer:
    """An HTTP proxy. Names and addresses alike are reached at `upstream`, on the port that was asked for.

    With `password` it wants `user:password`; `asked` are the hosts that it was asked for, in order; `refuse` are hosts
    that it answers 502 for, as a proxy does that cannot reach them."""

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
        """Its address, with the credentials it wants."""
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
            # Cancelled only when the server closes: there is nobody left to tell.
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
            # One request a connection: the next one may be for another host.
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
    """Carry bytes both ways until both sides are done."""

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
