"""Requests as a fleet's stores keep them: small, and opaque but for a few fields that scripts may change."""

from __future__ import annotations

from typing import Any

import msgspec

from gossamer.model import Request


class Extra(msgspec.Struct, omit_defaults=True):
    """The parts of a request that most requests do not have."""

    label: str = ""
    meta: dict[str, Any] | None = None
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes = b""
    referrer: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode
_decode_extra = msgspec.json.Decoder(Extra).decode
_decode_state = msgspec.json.Decoder().decode


def pack(request: Request, referrer: str = "") -> bytes:
    """A key of 8 bytes, then url, priority, depth, hops, tries, referrer, extra, state, and two for the store."""
    extra = b""
    if request.label or request.meta or request.method != "GET" or request.headers or request.body:
        extra = msgspec.json.encode(Extra(request.label, request.meta, request.method, request.headers, request.body))
    state = b"" if request.state is None else msgspec.json.encode(request.state)
    url, referrer = request.url, request.referrer or referrer
    numbers = (request.priority, request.depth, request.hops, 0)
    fields = (url, *numbers, referrer, as_text(extra), as_text(state), "", 0)
    return request.key.to_bytes(8, "big") + _encode(fields)


def unpack(entry: bytes, site: str) -> Request:
    """The request again."""
    url, priority, depth, hops, tries, referrer, extra, state, *_ = _decode(entry[8:])
    more = _decode_extra(extra) if extra else Extra()
    return Request(
        url,
        int.from_bytes(entry[:8], "big"),
        site,
        int(priority),
        int(depth),
        int(hops),
        int(tries),
        referrer,
        more.label,
        more.meta,
        more.method,
        more.headers,
        more.body,
        _decode_state(state) if state else None,
    )


def as_text(data: bytes) -> msgspec.Raw:
    """Bytes as a msgpack string: the scripts of Redis know the older msgpack, which has no type for bytes."""
    size = len(data)
    if size < 32:
        return msgspec.Raw(bytes((0xA0 | size,)) + data)
    if size < 65_536:
        return msgspec.Raw(b"\xda" + size.to_bytes(2, "big") + data)
    return msgspec.Raw(b"\xdb" + size.to_bytes(4, "big") + data)
