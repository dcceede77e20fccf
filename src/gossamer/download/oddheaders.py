"""Header values that are not ASCII, which the client library holds but does not give out as text."""

from __future__ import annotations

import asyncio
import secrets

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.http import HeaderMap

from gossamer.model import Headers


def readable(headers: HeaderMap) -> tuple[Headers, HeaderMap | None]:
    """The headers that can be read as text, and a map of the others if there are any."""
    try:
        return tuple(headers.items()), None
    except ValueError:
        pass
    plain: list[tuple[str, str]] = []
    odd = headers.copy()
    for name in dict.fromkeys(headers.keys()):
        try:
            plain.extend((name, value) for value in headers.getall(name))
        except ValueError:
            continue
        del odd[name]
    return tuple(plain), odd


class OddHeaders:
    """Reads odd values by sending them, as the headers of a request, to a socket of our own.

    Servers do put raw UTF-8 into Location; without this such redirects would be lost, or fetched twice."""

    def __init__(self) -> None:
        self._client: Client | None = None

    async def read(self, odd: HeaderMap) -> Headers:
        """The values as text: UTF-8 if they are that, else Latin-1."""
        if self._client is None:
            self._client = ClientBuilder().no_proxy().build()
        path = f"/{secrets.token_hex(8)}"
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(f"GET {path} ".encode()) and not received.done():
                received.set_result(head)
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            writer.close()

        names = {name.encode() for name in odd.keys()}  # noqa: SIM118
        async with await asyncio.start_server(listen, "127.0.0.1", 0, limit=1 << 20) as server:
            port = server.sockets[0].getsockname()[1]
            try:
                await self._client.get(f"http://127.0.0.1:{port}{path}").headers(odd).build().send()
            except PyreqwestError:
                # A page is worth more than a header that no request can carry.
                return ()
            head = await received
        pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:])
        return tuple((name.lower().decode(), _text(value.strip())) for name, _, value in pairs if name.lower() in names)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
