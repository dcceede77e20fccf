"""Fuzzing of whole HTTP responses, byte by byte, through the real downloader."""

from __future__ import annotations

import asyncio

from fuzz_texts import octets
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.clock import SystemClock
from gossamer.download import open_downloader
from gossamer.errors import FetchError
from gossamer.middleware.cookies import CookieJar
from gossamer.model import Request, Response
from gossamer.settings import build

PIECES = (
    *(
        b"HTTP/1.1 ",
        b"HTTP/1.0 ",
        b"HTTP/2.0",
        b"200",
        b"204",
        b"304",
        b"100",
        b"101",
        b"999",
        b" OK",
        b"\r\n",
        b"\n",
        b"\r",
        b": ",
    ),
    *(
        b"Content-Length: ",
        b"0",
        b"3",
        b"-1",
        b"+3",
        b"3,3",
        b"99999999999999999999",
        b"Transfer-Encoding: ",
        b"chunked",
        b"abc",
    ),
    *(
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"FFFFFFFFFFFFFFFFF\r\n",
        b"Content-Encoding: ",
        b"gzip",
        b"br",
        b"\x1f\x8b\x08",
        b"\r\n\r\n",
    ),
    *(
        b"Set-Cookie: ",
        b"a=b",
        b"Location: ",
        b"/x",
        b"Connection: close",
        b"X: \xff\xfe",
        b"Content-Type: text/html; charset=",
        b" fold",
    ),
)
HEADS = st.sampled_from(
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n", b"HTTP/1.1 302 Found\r\nLocation: "]
)
REPLIES = st.lists(st.tuples(HEADS, octets(*PIECES)).map(b"".join), min_size=1, max_size=16)
LIMITS = {
    "allow_private": True,
    "fetch_seconds": 1,
    "connect_seconds": 1,
    "max_body_bytes": 1000,
    "max_decoded_bytes": 2000,
}


async def fetched(replies: list[bytes]) -> list[Response | FetchError]:
    """What the downloader makes of each reply, one after another on as few connections as it likes."""
    left = iter(replies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(next(left, b""))
                await writer.drain()
                writer.close()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    downloader = open_downloader(build(LIMITS), clock=SystemClock())
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    found: list[Response | FetchError] = []
    try:
        for _ in replies:
            try:
                found.append(await downloader.fetch(Request(url=url)))
            except FetchError as error:
                found.append(error)
    finally:
        await downloader.aclose()
        server.close()
    return found


@given(REPLIES)
@settings(
    max_examples=min(settings().max_examples, 40) if settings().max_examples <= 100 else settings().max_examples // 10
)
def test_h21_to_h25_reply_is_a_response_within_limits_or_a_typed_error(replies: list[bytes]) -> None:
    jar = CookieJar(SystemClock())
    for found in asyncio.run(fetched(replies)):
        if isinstance(found, Response):
            assert 200 <= found.status <= 999
            assert len(found.body) <= 2000
            assert all("\n" not in name + value and "\0" not in value for name, value in found.headers)
            jar.store(found)
