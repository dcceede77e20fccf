"""The HTTP/1.1 response parser: independent of how bytes arrive, and bounded on any input."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as some

from gossamer.download.http1 import MAX_HEAD_BYTES, ResponseParser, request
from gossamer.errors import FetchError

PIECES = (
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No\r\n"),
    *(b"HTTP/1.1 ", b"Content-Length: 5\r\n", b"Content-Length: 7\n", b"content-length: x\r\n", b"X\xe9: \xe9\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Connection: close\r\n", b"X: y\r\n"),
    *(b" more\r\n", b"no colon\r\n", b"X: \0\r\n", b"\r\n", b"\n", b"\r", b"5\r\nhello\r\n", b"5\nhello\n", b"hello"),
    *(b"0\r\n\r\n", b"0\n\n", b"3;x=y\r\nabc\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"-1\r\n", b"Trailer: x\r\n", b"\0"),
)
CHUNKED = [b"HTTP/1.1 200 OK\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n"]


def read(pieces: list[bytes], *, method: str = "GET", limit: int = 20) -> tuple[object, ...]:
    answer = ResponseParser(method, limit, lambda: 1.0)
    try:
        for number, piece in enumerate(pieces):
            if piece and answer.feed(piece):
                # Data after the response makes it irregular, whenever it arrives.
                rest = b"".join(pieces[number + 1 :])
                return answer.status, answer.headers, answer.body, answer.cut, answer.is_reusable and not rest
        answer.end(None)
    except FetchError as error:
        return (type(error),)
    return answer.status, answer.headers, answer.body, answer.cut, answer.is_reusable


@given(some.lists(some.sampled_from(PIECES), max_size=12), some.lists(some.integers(0, 200), max_size=6))
@example(CHUNKED, [60, 61, 62, 63])
def test_response_does_not_depend_on_how_bytes_arrive(parts: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(parts)
    places = [0, *sorted(cuts), len(whole)]
    pieces = [whole[begin:end] for begin, end in pairwise(places)]
    expected = read([whole])
    assert read(pieces) == expected
    assert read([bytes((byte,)) for byte in whole]) == expected
    if len(expected) > 1:
        assert len(expected[2]) <= 20  # type: ignore[arg-type]


def test_bytewise_arrival_takes_linear_time() -> None:
    """Neither a head nor a body is copied with each byte that comes."""
    head = b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (MAX_HEAD_BYTES // 8) + b"Transfer-Encoding: chunked\r\n\r\n"
    chunks = b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n"
    began = time.process_time()
    answer = ResponseParser("GET", 100_000, lambda: 0.0)
    for byte in head + chunks:
        if answer.feed(bytes((byte,))):
            break
    assert (answer.body, answer.cut, len(answer.headers)) == (b"x" * 50_000, "", MAX_HEAD_BYTES // 8 + 1)
    assert time.process_time() - began < 20


def test_excessive_chunk_framing_is_refused() -> None:
    answer = ResponseParser("GET", 1 << 30, lambda: 0.0)
    answer.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    sent = 0
    while not answer.feed(b"1\r\nx\r\n" * 10_000):
        sent += 10_000
        assert sent < 5_000_000
    assert answer.cut == "transfer_encoding:?"
    assert not answer.is_reusable


def test_request_is_serialized() -> None:
    made = request("POST", "/a?b", "x.test:8000", [("x-own-header", "grün")], b"body")
    expected = "POST /a?b HTTP/1.1\r\nHost: x.test:8000\r\nX-Own-Header: grün\r\nContent-Length: 4\r\n\r\nbody"
    assert made == expected.encode()
    assert request("GET", "/", "x.test", [], b"") == b"GET / HTTP/1.1\r\nHost: x.test\r\n\r\n"
