"""Answers and requests as bytes on the wire."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

import brotli

from gossamer.compression import zstd
from gossamer.sim.answer import Fault, SimAnswer

_REASONS = {status.value: status.phrase for status in HTTPStatus}
CODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda body: gzip.compress(body, 1, mtime=0),
    "br": lambda body: bytes(brotli.compress(body, quality=1)),
    "zstd": lambda body: zstd.compress(body, 1),
}


class SimReply(NamedTuple):
    """An answer as bytes on the wire."""

    head: bytes
    body: bytes
    status: int
    wait_seconds: float
    fault: Fault


def framed(answer: SimAnswer, coding: str = "") -> SimReply:
    """An answer as HTTP/1.1, in a content coding if one is given."""
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
    """The value of a header, empty if absent, in the head of a request that begins with a line break."""
    start = (lower if lower is not None else head).find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    return head[start : head.find(b"\r\n", start)].strip()
