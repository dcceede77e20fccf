"""What every downloader promises, run against each of them."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import ssl
import subprocess
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import brotli
import pytest
import trustme

from gossamer.clock import SystemClock
from gossamer.compression import zstd
from gossamer.download import open_downloader
from gossamer.download.base import Downloader
from gossamer.download.dns import NameResolver, ResolvedName
from gossamer.errors import (
    BadCertificate,
    BadEncoding,
    ConfigError,
    ConnectFailed,
    FetchError,
    Forbidden,
    ProtocolBroken,
    ProxyFailed,
    TimedOut,
    TlsRefused,
    TooLarge,
)
from gossamer.model import ROBOTS, ROBOTS_BYTES, Request, Response
from gossamer.settings import build

PAGE = b"<html>" + b"text " * 5000 + b"</html>"
Reply = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=["async", "threads", "browser"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "browser":
        request.getfixturevalue("chromium")
    return str(request.param)


class Server:
    """A web server on loopback that answers each path with the bytes it was given, and keeps what it was sent."""

    def __init__(
        self, replies: dict[str, Reply], address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self.replies, self.address, self.tls = replies, address, tls
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, self.address, 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                self.heads.append(head)
                sizes = [
                    line.partition(":")[2] for line in head.split("\r\n") if line.lower().startswith("content-length")
                ]
                self.bodies.append(await reader.readexactly(int(sizes[0])) if sizes else b"")
                reply = self.replies[head.split(" ")[1]]
                if not isinstance(reply, bytes):
                    await reply(writer)
                    break
                writer.write(reply)
                await writer.drain()
                if b"Content-Length" not in reply and b"chunked" not in reply:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def ok(body: bytes = PAGE, headers: bytes = b"", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)


def run(
    kind: str,
    test: Callable[[Downloader], Awaitable[None]],
    *,
    resolver: NameResolver | None = None,
    **settings: Any,
) -> None:
    values = {
        "allow_private": True,
        "resolve": ["*.test=127.0.0.1"],
        "downloader": kind,
        "fetch_seconds": 20,
        **settings,
    }

    async def main() -> None:
        downloader = open_downloader(build(values), clock=SystemClock(), resolver=resolver)
        try:
            await test(downloader)
        finally:
            await downloader.aclose()

    asyncio.run(main())


def ends(kind: str, replies: dict[str, Reply], *, label: str = "", **settings: Any) -> dict[str, FetchError | Response]:
    """What became of a fetch of each path, all at once."""
    found: dict[str, FetchError | Response] = {}

    async def test(downloader: Downloader) -> None:
        async def one(path: str) -> None:
            try:
                found[path] = await downloader.fetch(Request(url=server.url(path), label=label))
            except FetchError as error:
                found[path] = error

        async with Server(replies) as server:
            await asyncio.gather(*(one(path) for path in replies))

    run(kind, test, **settings)
    return found


def test_an_answer_is_whole_and_described(kind: str) -> None:
    async def test(downloader: Downloader) -> None:
        async with Server({"/a?b=c": ok(headers=b"Content-Type: text/html\r\nX-Two: 1\r\nx-two: 2\r\n")}) as server:
            before = time.time(), time.monotonic()
            response = await downloader.fetch(Request(url=server.url("/a?b=c", "a.test")))
            after = time.time(), time.monotonic()
        assert (response.url, response.status) == (server.url("/a?b=c", "a.test"), 200)
        # A browser gives back what it made of the page.
        body = response.body.replace(b"<head></head><body>", b"").replace(b"</body>", b"")
        assert body == PAGE
        assert kind == "browser" or response.body == PAGE
        assert response.wire_bytes == len(PAGE)
        assert (response.address, response.http_version) == ("127.0.0.1", "HTTP/1.1")
        assert [pair for pair in response.headers if pair[0] == "x-two"] == [("x-two", "1"), ("x-two", "2")]
        assert response.header("content-type").partition(";")[0] == "text/html"
        assert before[0] <= response.fetched_at <= after[0]
        assert before[1] <= response.headers_at <= after[1]
        assert 0 < response.elapsed <= after[1] - before[1]
        assert not response.from_cache

    run(kind, test)


def test_a_status_is_data_and_redirects_are_not_followed(kind: str) -> None:
    statuses = [200, 201, 204, 301, 302, 304, 307, 401, 403, 404, 410, 418, 429, 451, 500, 503, 599, 999]
    replies: dict[str, Reply] = {
        f"/{code}": ok(b"" if code in (204, 304) else b"x", b"Location: /200\r\n", b"%d Words" % code)
        for code in statuses
    }
    found = ends(kind, replies)
    assert {path: getattr(answer, "status", answer) for path, answer in found.items()} == {f"/{s}": s for s in statuses}


def test_bodies_are_decoded(kind: str) -> None:
    encoded = {
        "gzip": gzip.compress(PAGE),
        "deflate": zlib.compress(PAGE),
        "br": brotli.compress(PAGE),
        "zstd": zstd.compress(PAGE),
        "gzip,br": brotli.compress(gzip.compress(PAGE)),
    }
    replies: dict[str, Reply] = {
        f"/{name}": ok(body, b"Content-Encoding: %b\r\n" % name.encode()) for name, body in encoded.items()
    }
    replies["/empty"] = ok(b"", b"Content-Encoding: gzip\r\n")
    large = random.Random(1).randbytes(300_000)
    replies["/large"] = ok(gzip.compress(large), b"Content-Encoding: gzip\r\n")
    replies["/liar"] = ok(PAGE, b"Content-Encoding: gzip\r\n")
    replies["/cut"] = ok(gzip.compress(large)[:-20], b"Content-Encoding: gzip\r\n")
    found = ends(kind, replies, partial="refuse")
    for name, body in encoded.items():
        answer = found[f"/{name}"]
        assert isinstance(answer, Response)
        assert answer.body == PAGE
        assert answer.wire_bytes == len(body)
    assert isinstance(found["/empty"], Response)
    assert isinstance(found["/large"], Response)
    assert found["/large"].body == large
    assert isinstance(found["/liar"], BadEncoding)
    assert isinstance(found["/cut"], ProtocolBroken)


def test_chunked_and_open_ended_bodies_are_whole(kind: str) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (PAGE[:7], PAGE[7:20_000], PAGE[20_000:]))
    found = ends(
        kind,
        {
            "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n",
            "/closed": b"HTTP/1.0 200 OK\r\n\r\n" + PAGE,
        },
    )
    assert {path: getattr(answer, "body", answer) for path, answer in found.items()} == {
        "/chunked": PAGE,
        "/closed": PAGE,
    }


def test_connections_are_kept_and_shared_by_nobody(kind: str) -> None:
    async def test(downloader: Downloader) -> None:
        async with Server({"/": ok()}) as server:
            for _ in range(5):
                await downloader.fetch(Request(url=server.url(host="a.test")))
            assert server.connections == 1
            await downloader.fetch(Request(url=server.url(host="b.test")))
            assert server.connections == 2
            assert [head.split("Host: ")[1].split(":")[0].lower() for head in server.heads] == ["a.test"] * 5 + [
                "b.test"
            ]

    run(kind, test)


def test_a_stale_connection_is_recognized_and_retried_at_most_twice(kind: str) -> None:
    """It answers one request a connection, says nothing of that, and is gone when the next one comes."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for is_first in (True, False):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                asked.append(head)
                if not is_first or " /never " in head:
                    break
                writer.write(ok(b"page"))
                await writer.drain()
                if "connection: close" in head.lower():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def test(downloader: Downloader) -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://a.test:{server.sockets[0].getsockname()[1]}"
            let_go = 0
            while len(asked) - let_go < 8:
                try:
                    assert (await downloader.fetch(Request(url=f"{url}/{len(asked)}"))).body == b"page"
                except ConnectFailed as error:
                    let_go += error.was_kept
            # Two connections were met that had been let go; since then none is kept.
            assert let_go == 2
            assert [("connection: close" in head.lower()) for head in asked[-5:]] == [True] * 5
            with pytest.raises(ConnectFailed):
                await downloader.fetch(Request(url=f"{url}/never"))
            url = url.replace("a.test", "b.test")
            assert (await downloader.fetch(Request(url=f"{url}/"))).body == b"page"
            with pytest.raises(ConnectFailed) as posted:
                await downloader.fetch(Request(url=f"{url}/", method="POST", body=b"once"))
            # What changes things is not worth sending again.
            assert not posted.value.was_kept

    run(kind, test)


def test_headers_come_from_settings_site_and_request(kind: str) -> None:
    async def test(downloader: Downloader) -> None:
        async with Server({"/": ok()}) as server:
            site = f"a.test:{server.port}"
            await downloader.fetch(Request(url=server.url(host="a.test"), site="a.test"))
            own = {"x-site": "mine", "Accept-Language": "de"}
            await downloader.fetch(Request(url=server.url(host="a.test"), site="a.test", headers=own))
            await downloader.fetch(Request(url=server.url(host="b.test"), site=site.replace("a", "b")))
        first, second, third = (
            {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in head.split("\r\n")[1:] if line}
            for head in server.heads
        )
        assert first.pop("host") == site
        assert set(first) == {"user-agent", "accept", "accept-language", "accept-encoding", "x-job", "x-site"}
        assert (first["user-agent"], first["x-job"], first["x-site"]) == ("Tester/1 (+mail)", "1", "site")
        assert (first["accept-language"], first["accept-encoding"]) == ("*", "gzip, br, zstd")
        assert (second["x-site"], second["accept-language"], second["x-job"]) == ("mine", "de", "1")
        assert (third["x-site"], third["accept-language"]) == ("job", "*")

    headers = {"X-Job": "1", "X-Site": "job"}
    run(kind, test, user_agent="Tester/1 (+mail)", headers=headers, sites={"a.test": {"headers": {"X-Site": "site"}}})


def test_methods_and_bodies_are_sent(kind: str) -> None:
    async def test(downloader: Downloader) -> None:
        async with Server({"/": ok()}) as server:
            await downloader.fetch(Request(url=server.url(), method="POST", body=b"a=1\0\xff"))
            head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"
            server.replies["/head"] = head
            response = await downloader.fetch(Request(url=server.url("/head"), method="HEAD"))
        assert server.heads[0].startswith("POST / HTTP/1.1\r\n")
        assert server.bodies[0] == b"a=1\0\xff"
        assert (response.status, response.body) == (200, b"")

    run(kind, test)


@pytest.mark.parametrize(
    "change",
    [
        {"headers": {"x": "a\r\nEvil: 1"}},
        {"headers": {"x": "a\nb"}},
        {"headers": {"x": "a\0b"}},
        {"headers": {"x\r\nEvil": "1"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
        {"headers": {"host": "other.example"}},
        {"method": "GET / HTTP/1.1\r\nEvil: 1\r\n\r\nGET"},
        {"method": "G T"},
        {"method": ""},
    ],
)
def test_nothing_can_be_smuggled_into_a_request(kind: str, change: dict[str, Any]) -> None:
    """H30."""

    async def test(downloader: Downloader) -> None:
        async with Server({"/": ok()}) as server:
            with pytest.raises(FetchError):
                await downloader.fetch(Request(url=server.url(), **change))
        assert server.heads == []

    run(kind, test)


def test_a_line_break_in_a_url_stays_escaped(kind: str) -> None:
    """H30."""

    async def test(downloader: Downloader) -> None:
        async with Server({"/%0d%0aEvil:%201": ok()}) as server:
            await downloader.fetch(Request(url=server.url("/%0d%0aEvil:%201")))
        assert "Evil" not in server.heads[0].split("\r\n", 1)[1]

    run(kind, test)


def test_settings_that_cannot_be_sent_are_refused_at_the_start(kind: str) -> None:
    for values in (
        {"headers": {"x": "a\r\nb"}},
        {"user_agent": "a\nb"},
        {"sites": {"a.test": {"headers": {"a b": "c"}}}},
        {"proxy": ["not a url"]},
        {"ca_file": "/nowhere/at/all.pem"},
        {"resolve": ["x"]},
    ):
        with pytest.raises(ConfigError):
            open_downloader(build({**values, "downloader": kind}), clock=SystemClock())


def test_broken_answers_end_typed(kind: str) -> None:
    """H18, H21 to H25."""

    async def reset(writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def half(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        await writer.drain()
        writer.transport.abort()

    found = ends(
        kind,
        {
            "/closed": b"",
            "/reset": reset,
            "/half": half,
            "/short": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
            "/not-http": b"SSH-2.0-OpenSSH_9\r\n",
            "/nul": b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
            "/lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 5\r\n\r\nokbad",
            "/negative": b"HTTP/1.1 200 OK\r\nContent-length: -1\r\n\r\nok",
            "/chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: CHUNKED\r\n\r\nFFFFFFFFFFFFFFFFF\r\nabc",
            "/cut-chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: CHUNKED\r\n\r\n3\r\nabc\r\n",
            "/two-codings": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: CHUNKED\r\nTransfer-Encoding: identity\r\n\r\nabc",
            "/status": b"HTTP/1.1 1000 What\r\n\r\n",
            "/switching": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            "/many": b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(100_000)) + b"\r\n",
            "/long": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 2_000_000 + b"\r\n\r\n",
        },
        partial="refuse",
        fetch_seconds=5,
    )
    kinds = {path: type(answer) for path, answer in found.items()}
    assert kinds.pop("/closed") is kinds.pop("/reset") is ConnectFailed
    assert kinds.pop("/many") is kinds.pop("/long") is TooLarge
    assert set(kinds.values()) == {ProtocolBroken}, kinds


def test_a_closed_port_is_a_failed_connection(kind: str) -> None:
    async def test(downloader: Downloader) -> None:
        async with Server({}) as server:
            pass
        with pytest.raises(ConnectFailed):
            await downloader.fetch(Request(url=server.url(host="a.test")))
        with pytest.raises(ConnectFailed):
            await downloader.fetch(Request(url=server.url()))

    run(kind, test)


def test_of_a_robots_txt_that_never_ends_the_beginning_counts(kind: str) -> None:
    """RFC 9309: at least its first 500 KiB are parsed."""

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"User-agent: *\nDisallow: /x\n")
        while True:
            writer.write(b"# never\n" * 8192)
            await writer.drain()

    text = b"User-agent: *\nDisallow: /x\n" + b"# long\n" * 1_000_000
    packed = {name: pack(text) for name, pack in (("gzip", gzip.compress), ("br", brotli.compress))}
    found = ends(
        kind,
        {
            "/endless": endless,
            "/long": ok(text),
            **{f"/{name}": ok(body, b"Content-Encoding: %b\r\n" % name.encode()) for name, body in packed.items()},
        },
        label=ROBOTS,
        max_body_bytes=100_000,
        max_decoded_bytes=100_000,
    )
    assert len(found) == 4
    for path, answer in found.items():
        assert isinstance(answer, Response), (path, answer)
        assert answer.body.startswith(b"User-agent: *\nDisallow: /x\n")
        assert len(answer.body) == ROBOTS_BYTES


def test_sizes_are_limited_while_reading(kind: str) -> None:
    """H16, H17: endless, announced and packed."""

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"a" * 65_536)
            await writer.drain()

    async def lying(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"a" * 65_536 + b"\r\n")
            await writer.drain()

    async def announced(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\nabc")
        await asyncio.sleep(3600)

    found = ends(
        kind,
        {
            "/endless": endless,
            "/lying": lying,
            "/announced": announced,
            "/over": ok(b"x" * 100_001),
            "/exact": ok(b"x" * 100_000),
            "/bomb": ok(gzip.compress(b"x" * 200_001), b"Content-Encoding: gzip\r\n"),
            "/just": ok(gzip.compress(b"x" * 200_000), b"Content-Encoding: gzip\r\n"),
            "/layers": ok(b"x", b"Content-Encoding: " + b"gzip," * 100 + b"\r\n"),
        },
        max_body_bytes=100_000,
        max_decoded_bytes=200_000,
        partial="refuse",
    )
    assert isinstance(found.pop("/exact"), Response)
    assert isinstance(found.pop("/just"), Response)
    assert isinstance(found.pop("/layers"), BadEncoding)
    assert {path: type(answer) for path, answer in found.items()} == dict.fromkeys(found, TooLarge)


def test_partial_answers_are_answers(kind: str) -> None:
    """Status, headers and what came of the body; `cut` says what is missing."""

    def breaks_off(head: bytes, body: bytes, *, hard: bool) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
        async def send(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nX: y\r\n" + head + b"\r\n" + body)
            await writer.drain()
            # What was sent last must not be lost with the connection.
            await asyncio.sleep(0.2)
            if hard:
                writer.transport.abort()

        return send

    async def stalls(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 100\r\n\r\n<p>some")
        await asyncio.sleep(3600)

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n")
        while True:
            writer.write(b"a" * 65_536)
            await writer.drain()

    packed, damaged = gzip.compress(PAGE), bytearray(gzip.compress(PAGE))
    damaged[-6] ^= 1
    chunk = b"6\r\n<p>one\r\n"
    encoded = b"X: y\r\nContent-Encoding: gzip\r\n"
    found = ends(
        kind,
        {
            "/short": breaks_off(b"Content-Length: 100\r\n", b"<p>some", hard=False),
            "/reset": breaks_off(b"Transfer-Encoding: chunked\r\n", chunk, hard=True),
            "/last-chunk": breaks_off(b"Transfer-Encoding: chunked\r\n", chunk, hard=False),
            "/stalls": stalls,
            "/endless": endless,
            "/announced": ok(b"b" * 150_000, b"X: y\r\n"),
            "/trailer": ok(packed[:-8], encoded),
            "/crc": ok(bytes(damaged), encoded),
            "/plain": ok(PAGE, encoded),
            "/bomb": ok(gzip.compress(b"c" * 300_000), encoded),
        },
        max_body_bytes=100_000,
        max_decoded_bytes=200_000,
        fetch_seconds=2,
    )
    answers = {path: answer for path, answer in found.items() if isinstance(answer, Response)}
    assert answers.keys() == found.keys(), found
    assert {answer.status for answer in answers.values()} == {200}
    assert {answer.header("x") for answer in answers.values()} == {"y"}
    expected = {
        "/short": ("content_length:93", b"<p>some"),
        "/reset": ("disconnect:?", b"<p>one"),
        "/last-chunk": ("disconnect:?", b"<p>one"),
        "/stalls": ("fetch_seconds:93", b"<p>some"),
        "/endless": ("max_body_bytes:?", b"a" * 100_000),
        "/announced": ("max_body_bytes:50000", b"b" * 100_000),
        "/trailer": ("encoding:?", PAGE),
        "/crc": ("encoding:?", PAGE),
        "/plain": ("encoding:?", PAGE),
        "/bomb": ("max_decoded_bytes:?", b"c" * 200_000),
    }
    assert {path: answer.cut for path, answer in answers.items()} == {path: cut for path, (cut, _) in expected.items()}
    if kind != "browser":
        assert {path: answer.body for path, answer in answers.items()} == {
            path: body for path, (_, body) in expected.items()
        }
    else:
        assert b"some" in answers["/short"].body


def test_odd_heads_are_read_as_far_as_they_can_be(kind: str) -> None:
    if kind == "threads":
        pytest.skip("its client reads heads of another library")
    many = b"".join(b"X-%d: y\r\n" % number for number in range(1000))
    found = ends(
        kind,
        {
            "/no-colon": ok(b"page", b"X: y\r\nwhat is this\r\n"),
            "/name": ok(b"page", b"X y: z\r\n: nameless\r\nX: y\r\n"),
            "/nul": ok(b"page", b"Y: a\0b\r\nX: y\r\n"),
            "/many": ok(b"page", many + b"X: y\r\n"),
            "/bare": b"HTTP/1.1 200 OK\nX: y\nContent-Length: 4\n\npage",
            "/chunks": b"HTTP/1.1 200 OK\nX: y\nTransfer-Encoding: chunked\n\n4\npage\n0\n\n",
            "/spaced": b"HTTP/1.1 200 OK\r\nX : y\r\nContent-Length : 4\r\n\r\npage",
            "/length": b"HTTP/1.1 200 OK\r\nX: y\r\nContent-length: four\r\n\r\npage",
        },
    )
    answers = {path: answer for path, answer in found.items() if isinstance(answer, Response)}
    assert answers.keys() == found.keys(), found
    assert {path: answer.cut for path, answer in answers.items()} == {
        **dict.fromkeys(("/many", "/bare", "/chunks", "/spaced"), ""),
        **{"/no-colon": "headers:1", "/name": "headers:2", "/nul": "headers:1", "/length": "content_length:?"},
    }
    assert {answer.header("x") for answer in answers.values()} == {"y"}
    assert len(answers["/many"].headers) == 1002
    assert all(b"page" in answer.body for answer in answers.values())
    assert answers["/nul"].head.startswith(b"HTTP/1.1 200 OK\r\nY: a\0b\r\n")


def test_a_robots_txt_that_breaks_off_is_none(kind: str) -> None:
    """Half of the rules allow more than all of them."""
    found = ends(
        kind,
        {
            "/short": b"HTTP/1.1 200 OK\r\nContent-length: 99\r\n\r\nUser-agent: *\n",
            "/packed": ok(gzip.compress(b"User-agent: *\nDisallow: /")[:-9], b"Content-Encoding: gzip\r\n"),
        },
        label=ROBOTS,
    )
    assert {type(answer) for answer in found.values()} == {ProtocolBroken}


def test_what_comes_behind_an_odd_answer_belongs_to_nobody(kind: str) -> None:
    """H26: a connection whose answer could be read in two ways is not used again."""
    if kind == "threads":
        pytest.skip("its client uses such connections again")
    poison = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
    odd = {
        "/both": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "/skipped": ok(b"x", b"no colon\r\n"),
        "/hidden": b"HTTP/1.1 200 OK\r\nContent-Length\0: 1\r\nContent-Length: 1\r\n\r\nx",
        "/folded": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n 2\r\n\r\nx",
        "/ends": ok(b"x", b"Connection: close\r\n"),
    }

    async def test(downloader: Downloader) -> None:
        for path, reply in odd.items():
            async with Server({path: reply, "/page": ok(b"the page")}) as server:

                async def late(writer: asyncio.StreamWriter, reply: bytes = reply) -> None:
                    writer.write(reply)
                    await writer.drain()
                    await asyncio.sleep(0.1)
                    writer.write(poison)
                    await writer.drain()

                server.replies[path] = late
                try:
                    answer = await downloader.fetch(Request(url=server.url(path, "a.test")))
                except FetchError:
                    pass
                else:
                    assert b"poison" not in answer.body
                assert b"the page" in (await downloader.fetch(Request(url=server.url("/page", "a.test")))).body
                assert server.connections == 2

    run(kind, test)


def test_every_stage_has_its_time(kind: str) -> None:
    """H17, H19, H20: drip-fed and silent."""

    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)

    async def drip(writer: asyncio.StreamWriter, head: bytes, drop: bytes) -> None:
        writer.write(head)
        while True:
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.05)

    found = ends(
        kind,
        {
            "/silent": silent,
            "/headers": lambda writer: drip(writer, b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
            "/body": lambda writer: drip(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"a"),
            "/chunks": lambda writer: drip(
                writer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"
            ),
            "/continue": lambda writer: drip(writer, b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        },
        fetch_seconds=0.5,
        partial="refuse",
    )
    assert {path: type(answer) for path, answer in found.items()} == dict.fromkeys(found, TimedOut)


def test_the_time_of_the_headers_is_not_that_of_the_body(kind: str) -> None:
    sent: list[float] = []

    async def late_body(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(1)
        sent.append(time.monotonic())
        writer.write(b"late")

    answer = ends(kind, {"/": late_body})["/"]
    assert isinstance(answer, Response)
    assert answer.body == b"late"
    assert answer.headers_at < sent[0]


def test_a_header_may_go_on_in_the_next_line(kind: str) -> None:
    """RFC 9112, 5.2; what is not a value of its kind with spaces in it stays refused."""
    found = ends(
        kind,
        {
            "/value": ok(b"page", b"X: one\r\n two\r\n\t three\r\n"),
            "/length": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n 5\r\n\r\npage",
            "/coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n x\r\n\r\n4\r\npage\r\n0\r\n\r\n",
            "/first": b"HTTP/1.1 200 OK\r\n X: one\r\nContent-Length: 4\r\n\r\npage",
        },
        partial="refuse",
        fetch_seconds=5,
    )
    value = found.pop("/value")
    assert isinstance(value, Response)
    assert (value.header("x").split(), value.body) == (["one", "two", "three"], b"page")
    assert {type(answer) for answer in found.values()} == {ProtocolBroken}


def test_header_values_that_are_not_ascii_are_read(kind: str) -> None:
    """H23."""
    if kind == "threads":
        pytest.skip("its client gives out ASCII only: other values are counted in `cut`")
    answer = ends(
        kind,
        {"/": ok(b"x", "Location: /grün\r\nX-Plain: 1\r\nX-Old: ".encode() + b"gr\xfcn\r\nX-Old: a\r\n", b"302 Found")},
    )["/"]
    assert isinstance(answer, Response)
    assert answer.header("location") == "/grün"
    assert answer.header("x-plain") == "1"
    assert [value for name, value in answer.headers if name == "x-old"] == ["grün", "a"]


class Fixed:
    """Names with the addresses they are given."""

    def __init__(self, **names: tuple[str, ...]) -> None:
        self.names = names
        self.asked: list[str] = []

    async def resolve(self, host: str) -> ResolvedName:
        self.asked.append(host)
        return ResolvedName(self.names[host.split(".", maxsplit=1)[0]], time.monotonic() + 60)

    async def aclose(self) -> None: ...


def test_a_dead_address_is_left_for_a_live_one_and_stays_left(kind: str) -> None:
    names = Fixed(two=("127.0.0.2", "127.0.0.3", "127.0.0.1"))

    async def test(downloader: Downloader) -> None:
        async with Server({"/": ok()}) as server:
            for _ in range(3):
                response = await downloader.fetch(Request(url=server.url(host="two.example")))
                assert response.address == "127.0.0.1"
        assert names.asked == ["two.example"]
        if kind != "threads":
            # There the next request may go before the connection of the last is free again.
            assert server.connections == 1

    run(kind, test, resolver=names)


def test_the_connection_goes_to_the_address_that_was_checked(kind: str) -> None:
    """A name that would resolve to another address the second time: nobody asks a second time."""

    async def test(downloader: Downloader) -> None:
        async with Server({"/": ok(b"first")}) as first:
            names.names["rebind"] = ("127.0.0.1",)
            url = first.url(host="rebind.example")
            assert (await downloader.fetch(Request(url=url))).body == b"first"
            names.names["rebind"] = ("10.0.0.1",)
            assert (await downloader.fetch(Request(url=url))).address == "127.0.0.1"
        assert names.asked == ["rebind.example"]

    names = Fixed()
    run(kind, test, resolver=names)


def test_private_addresses_are_refused_by_default(kind: str) -> None:
    """H01, H02, H05."""

    async def test(downloader: Downloader) -> None:
        async with Server({"/": ok()}) as server:
            for host in ("127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "a.test", "2130706433"):
                with pytest.raises(Forbidden):
                    await downloader.fetch(Request(url=server.url(host=host)))
        assert server.connections == 0

    run(kind, test, allow_private=False)


def test_many_hosts_at_once_are_all_answered(kind: str) -> None:
    async def test(downloader: Downloader) -> None:
        async with Server({"/": ok(b"x")}, address="0.0.0.0") as server:
            urls = [server.url(host=f"h{number}.test") for number in range(500)]
            urls += [server.url(host=f"127.0.0.{number}") for number in range(1, 30)]
            answers = await asyncio.gather(*(downloader.fetch(Request(url=url)) for url in urls))
        assert {answer.status for answer in answers} == {200}
        assert len(server.heads) == len(urls)

    run(kind, test)


def test_a_cancelled_fetch_is_cancelled(kind: str) -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await asyncio.sleep(3600)

    async def test(downloader: Downloader) -> None:
        async with Server({"/": silent}) as server:
            task = asyncio.create_task(downloader.fetch(Request(url=server.url())))
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    arrived = asyncio.Event()
    run(kind, test)


def test_closing_fails_what_is_under_way(kind: str) -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await asyncio.sleep(3600)

    async def test(downloader: Downloader) -> None:
        async with Server({"/": silent}) as server:
            task = asyncio.create_task(downloader.fetch(Request(url=server.url())))
            await arrived.wait()
            await downloader.aclose()
            with pytest.raises(FetchError):
                await task
            with pytest.raises(FetchError):
                await downloader.fetch(Request(url=server.url()))

    arrived = asyncio.Event()
    run(kind, test)


def test_a_second_answer_on_a_connection_belongs_to_nobody(kind: str) -> None:
    """H26."""

    async def test(downloader: Downloader) -> None:
        twice = ok(b"one") + ok(b"smuggled")
        async with Server({"/1": twice, "/2": ok(b"two")}) as server:
            assert (await downloader.fetch(Request(url=server.url("/1", "a.test")))).body == b"one"
            await asyncio.sleep(0.1)
            assert (await downloader.fetch(Request(url=server.url("/2", "a.test")))).body == b"two"

    run(kind, test)


def test_h24_h25_an_answer_with_too_much_does_not_poison_the_next(kind: str) -> None:
    """Bodies where none may be, parts that nobody asked for, statuses that are none; then the page itself."""
    poison = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
    replies: dict[str, Reply] = {
        "/204": b"HTTP/1.1 204 No Content\r\n\r\n" + poison,
        "/304": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 6\r\n\r\n" + poison,
        "/206": ok(b"part", b"Content-Range: bytes 0-3/9\r\n", b"206 Partial Content") + poison,
        "/head": ok(b"", b"X: y\r\n") + poison,
        "/minus": b"HTTP/1.1 -1 What\r\n\r\n" + poison,
        "/small": b"HTTP/1.1 099 What\r\n\r\n" + poison,
        "/digits": b"HTTP/1.1 " + b"2" * 100 + b" What\r\n\r\n" + poison,
        "/version": b"HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n" + poison,
        "/page": ok(b"the page"),
    }

    async def test(downloader: Downloader) -> None:
        async with Server(replies) as server:
            for path in replies:
                method = "HEAD" if path == "/head" else "GET"
                try:
                    answer = await downloader.fetch(Request(url=server.url(path, "a.test"), method=method))
                except FetchError:
                    assert path in ("/minus", "/small", "/digits", "/version", "/304")
                else:
                    assert b"poison" not in answer.body
                assert (await downloader.fetch(Request(url=server.url("/page", "a.test")))).body == b"the page"

    run(kind, test)


def test_proxies_are_used_and_a_dead_one_is_passed_over(kind: str) -> None:
    async def test(downloader: Downloader) -> None:
        answers = [await downloader.fetch(Request(url=f"http://{n}.example/")) for n in range(4)]
        assert {answer.body for answer in answers} == {b"by proxy"}
        assert {head.split(" ")[1] for head in live.heads} == {f"http://{n}.example/" for n in range(4)}
        assert "proxy-authorization: basic" in live.heads[0].lower()
        live.replies["http://0.example/"] = ok(b"", status=b"407 No")
        with pytest.raises(ProxyFailed):
            await downloader.fetch(Request(url="http://0.example/"))

    async def main() -> None:
        nonlocal live  # type: ignore[misc]
        async with Server({f"http://{n}.example/": ok(b"by proxy") for n in range(4)}) as live:
            async with Server({}) as dead:
                pass
            proxies = [f"http://127.0.0.1:{dead.port}", f"http://user:secret@127.0.0.1:{live.port}"]
            values = {"allow_private": True, "downloader": kind, "proxy": proxies}
            downloader = open_downloader(build(values), clock=SystemClock())
            await test(downloader)
            await downloader.aclose()

    live = Server({})
    asyncio.run(main())


@pytest.mark.parametrize("kind", ["http2", "threads"])
def test_http2_is_used_where_tls_offers_it(kind: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("two.test").configure_cert(context)
    context.set_alpn_protocols(["h2"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        writer.write(b"\0\0\0\4\0\0\0\0\0")
        while True:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == 1:
                break
        # Settings acknowledged; headers with the indexed field ":status: 200"; data that ends the stream.
        stream = head[5:9]
        writer.write(b"\0\0\0\4\1\0\0\0\0" + b"\0\0\1\1\4" + stream + b"\x88" + b"\0\0\3\0\1" + stream + b"two")
        await reader.read()
        writer.close()

    async def test(downloader: Downloader) -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        response = await downloader.fetch(Request(url=f"https://two.test:{port}/"))
        assert (response.status, response.body, response.http_version) == (200, b"two", "HTTP/2.0")
        server.close()

    run(kind, test, ca_file=str(tmp_path / "ca.pem"))


@pytest.fixture(scope="module")
def tools() -> Path:
    folder = Path(__file__).parents[2] / "../shared/tools"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: its cases are not checked")
    return folder


@pytest.fixture(scope="module")
def raw_servers(tools: Path) -> Iterator[list[int]]:
    """Two servers of recorded and live replies: what one is busy with does not hold up the other."""
    started = [
        subprocess.Popen([sys.executable, tools / "rawserver.py", "0"], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ports = [int(process.stdout.readline().rsplit(":", 1)[1]) for process in started if process.stdout]
    yield ports
    for process in started:
        process.kill()
        process.communicate()


def paths_of(*names: str) -> set[str]:
    return {f"/live/{name}" for name in names}


def test_every_hostile_reply_ends_typed_and_in_time(kind: str, raw_servers: list[int]) -> None:
    """H27."""
    if kind == "browser":
        pytest.skip("the browser's documents come by the asynchronous downloader; to show hundreds would take minutes")
    quick, busy = raw_servers
    heavy = paths_of("endless-body", "endless-chunks", "endless-header", "endless-100", "gzip-bomb")
    waits = paths_of("drip-headers", "drip-body", "silent", "endless-100", "endless-chunks", "gzip-bomb")
    found: dict[str, Response | FetchError] = {}

    async def get(downloader: Downloader, path: str) -> None:
        try:
            port = busy if path in heavy else quick
            found[path] = await downloader.fetch(Request(url=f"http://127.0.0.1:{port}{path}"))
        except FetchError as error:
            # A connection that was kept may end just when it is used again: others try once more, and so does this.
            if isinstance(error, ConnectFailed) and path not in found:
                found[path] = error
                await get(downloader, path)
            else:
                found[path] = error

    async def index(downloader: Downloader) -> list[str]:
        answer = await downloader.fetch(Request(url=f"http://127.0.0.1:{quick}/index.json"))
        return [str(path) for path in json.loads(answer.body)]

    async def burst(downloader: Downloader) -> None:
        paths = [path for path in await index(downloader) if not path.startswith(("/live/", "/bomb/"))]
        for start in range(0, len(paths), 50):
            async with asyncio.timeout(2 + 3):
                await asyncio.gather(*(get(downloader, path) for path in paths[start : start + 50]))
        for path in waits:
            async with asyncio.timeout(2 + 3):
                await get(downloader, path)

    async def live(downloader: Downloader) -> None:
        paths = {path for path in await index(downloader) if path.startswith(("/live/", "/bomb/"))} - waits
        await asyncio.gather(*(get(downloader, path) for path in paths - heavy))
        for path in heavy - waits:
            await get(downloader, path)

    limits: dict[str, Any] = {
        "connect_seconds": 2,
        "max_body_bytes": 1_000_000,
        "max_decoded_bytes": 2_000_000,
        "partial": "refuse",
    }
    run(kind, burst, fetch_seconds=2, **limits)
    # What ends by another limit than time gets the time it takes on a busy machine.
    run(kind, live, fetch_seconds=20, **limits)
    assert len(found) > 550
    interim = found.pop("/live/endless-100")
    assert isinstance(interim, TooLarge | TimedOut), "whichever limit is met first"
    kinds = {
        path.removeprefix("/live/"): answer.status if isinstance(answer, Response) else type(answer)
        for path, answer in found.items()
        if path.startswith("/live/")
    }
    # These take the server its time: which limit they meet first is up to the machine.
    slow = {name: kinds[name] for name in ("gzip-bomb", "endless-chunks")}
    assert kinds == {
        **dict.fromkeys(("drip-headers", "drip-body", "silent"), TimedOut),
        **dict.fromkeys(("endless-body", "endless-header", "many-headers", "huge-length"), TooLarge),
        **dict.fromkeys(("big-chunk-size", "short-body", "half-then-reset"), ProtocolBroken),
        **dict.fromkeys(("http09", "nul-header", "two-lengths"), ProtocolBroken),
        **dict.fromkeys(("redirect-loop", "redirect-chain", "redirect-file"), 302),
        **{"redirect-meta": 404, "redirect-longurl": TooLarge, "reset": ConnectFailed, "te-and-cl": 200},
        **slow,
    }
    # One byte a chunk is more framing than anybody reads to its end.
    assert set(slow.values()) <= {TooLarge, TimedOut, ProtocolBroken}
    bombs = {path: answer for path, answer in found.items() if path.startswith("/bomb/bomb-")}
    assert len(bombs) == 4
    assert all(isinstance(answer, TooLarge) for answer in bombs.values())
    pages = [answer for path, answer in found.items() if path.startswith("/bomb/html-")]
    assert all(isinstance(page, Response) and page.body.endswith(b"</html>\n") for page in pages)


@pytest.fixture(scope="module")
def tls_cases(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("tls")
    for _ in range(5):
        port = random.SystemRandom().randrange(20_000, 30_000)
        process = subprocess.Popen(
            [sys.executable, tools / "tls_cases.py", folder, str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout
        if process.stdout.readline().startswith("ready"):
            break
        process.wait()
    else:
        pytest.fail("no ports for the TLS servers")
    yield folder / "trusted-ca.pem", json.loads((folder / "index.json").read_text())
    process.kill()
    process.communicate()


def test_only_good_certificates_are_accepted(kind: str, tls_cases: tuple[Path, list[dict[str, Any]]]) -> None:
    """H28."""
    authority, cases = tls_cases
    found: dict[str, Response | FetchError] = {}

    async def test(downloader: Downloader) -> None:
        for case in cases:
            try:
                found[case["name"]] = await downloader.fetch(Request(url=case["url"]))
            except FetchError as error:
                found[case["name"]] = error

    run(kind, test, ca_file=str(authority), connect_seconds=1)
    assert len(found) == 12
    assert {name: isinstance(answer, Response) for name, answer in found.items()} == {
        case["name"]: case["strict_accepts"] for case in cases
    }
    bad = ("untrusted-root", "wrong-host", "expired", "not-yet-valid", "cn-only-no-san", "wildcard-mismatch")
    assert {type(found[name]) for name in bad} == {BadCertificate}
    assert type(found["plain-http-on-tls-port"]) is TlsRefused
    hints = {name: error.hint for name, error in found.items() if isinstance(error, TlsRefused)}
    assert [name for name, hint in hints.items() if "try http://" in hint] == ["plain-http-on-tls-port"]
    # localhost has two addresses: after the one that hangs, the other is tried.
    assert isinstance(found["handshake-hangs"], TimedOut | ConnectFailed)


def test_an_authority_of_our_own_is_trusted_only_when_named(
    kind: str, tls_cases: tuple[Path, list[dict[str, Any]]]
) -> None:
    async def test(downloader: Downloader) -> None:
        with pytest.raises(TlsRefused):
            await downloader.fetch(Request(url=tls_cases[1][0]["url"]))

    run(kind, test)
