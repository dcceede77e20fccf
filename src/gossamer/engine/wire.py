"""The coordinator's wire: length-prefixed msgpack frames over a local socket, and the calls that cross it."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import msgspec

from gossamer.model import Grant, Outcome, Receipt, Record, Request, SiteNote

PROTOCOL = 2
MAX_FRAME_BYTES = 256 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class Hello(msgspec.Struct, tag="hello", frozen=True):
    worker: str
    pid: int
    protocol: int = PROTOCOL


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """What a worker must know of the job."""

    settings: dict[str, Any]
    secret: bytes
    folder: str


class Add(msgspec.Struct, tag="add", frozen=True):
    requests: list[Request]


class AddUrls(msgspec.Struct, tag="add-urls", frozen=True):
    urls: list[str]


class Take(msgspec.Struct, tag="take", frozen=True):
    limit: int
    batch: int
    seconds: float


class Extend(msgspec.Struct, tag="extend", frozen=True):
    tokens: list[int]
    seconds: float


class Commit(msgspec.Struct, tag="commit", frozen=True):
    outcomes: list[Outcome]
    records: list[Record | None]
    notes: list[SiteNote]
    refused: dict[str, int] = {}
    """Links that were not followed since the last commit, by reason."""


class Release(msgspec.Struct, tag="release", frozen=True):
    tokens: list[int]


class Idle(msgspec.Struct, tag="idle", frozen=True):
    wait: float | None
    news: int


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """A question or a wish from a person: counts, sites, site, lookup, lanes, workers, pause, resume, stop."""

    what: str
    text: str = ""


class Limit(msgspec.Struct, tag="limit", frozen=True):
    """Settings of the running job that are to be as these are, from now on."""

    settings: dict[str, Any]


Call = Hello | Add | AddUrls | Take | Extend | Commit | Release | Idle | Ask | Limit


class Frame(msgspec.Struct, array_like=True, frozen=True):
    number: int
    call: Call


class WireReply(msgspec.Struct, array_like=True, frozen=True):
    number: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    """The name of an error class, a newline, and its message; empty if all went well."""


ANSWERS: dict[type[Any], Any] = {
    Hello: Welcome,
    Add: int,
    AddUrls: int,
    Take: Grant,
    Extend: list[int],
    Commit: Receipt,
    Release: None,
    Idle: None,
    Ask: Any,
    Limit: None,
}
encode = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder(Frame).decode
decode_answer = msgspec.msgpack.Decoder(WireReply).decode


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame; None when the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(4))
        return await reader.readexactly(length) if length <= MAX_FRAME_BYTES else None
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def frame(data: bytes) -> bytes:
    """Data with its length in front."""
    return _LENGTH.pack(len(data)) + data
