"""Requests as a fleet's stores keep them: small, and opaque but for a few fields that scripts may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gossamer.model import Request


class _Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What follows the key; fields at the end that have their default may be missing. Scripts know the numbers."""

    url: str
    depth: int = 0
    referrer: str = ""
    priority: int = 0
    hops: int = 0
    tries: int = 0
    extra: str = ""
    state: str = ""
    again: str = ""


class _Address(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The first field of an entry."""

    url: str


class Extra(msgspec.Struct, omit_defaults=True):
    """The parts of a request that most requests do not have."""

    label: str = ""
    meta: dict[str, Any] | None = None
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes = b""
    referrer: str = ""


_NONE = Extra()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Entry).decode
_decode_address = msgspec.msgpack.Decoder(_Address).decode
_decode_extra = msgspec.json.Decoder(Extra).decode
_decode_state = msgspec.json.Decoder(dict[str, Any]).decode


def pack(request: Request, referrer: str = "") -> bytes:
    """A key of 8 bytes, then an array in msgpack. What the site's name says already is left out of the addresses."""
    site = request.site
    url, referrer = request.url, request.referrer or referrer
    fields: tuple[Any, ...] = (squeeze(url, site), request.depth, squeeze(referrer, site) if referrer else "")
    special = request.label or request.meta or request.method != "GET" or request.headers or request.body
    if special or request.priority or request.hops or request.state is not None:
        extra = Extra(request.label, request.meta, request.method, request.headers, request.body)
        fields += (
            request.priority,
            request.hops,
            0,
            msgspec.json.encode(extra).decode() if special else "",
            "" if request.state is None else msgspec.json.encode(request.state).decode(),
        )
    return request.key.to_bytes(8, "big") + _encode(fields)


def unpack(entry: bytes, site: str) -> Request:
    """The request again; ValueError if it is none."""
    try:
        found = _decode(entry[8:])
        extra = _decode_extra(found.extra) if found.extra else _NONE
        state = _decode_state(found.state) if found.state else None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    return Request(
        expand(found.url, site),
        int.from_bytes(entry[:8], "big"),
        site,
        found.priority,
        found.depth,
        found.hops,
        found.tries,
        expand(found.referrer, site) if found.referrer else "",
        extra.label,
        extra.meta,
        extra.method,
        extra.headers,
        extra.body,
        state,
    )


def address(rest: bytes, site: str) -> str:
    """The address in what follows an entry's key; ValueError if there is none."""
    try:
        return expand(_decode_address(rest).url, site)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def squeeze(url: str, site: str) -> str:
    """A URL without what follows from its site: `/path` is https, `:/path` is http, `=` comes before any other."""
    end = len(site) + 8
    if url.startswith(site, 8) and url.startswith("/", end) and url.startswith("https://"):
        return url[end:]
    if url.startswith(site, 7) and url.startswith("/", end - 1) and url.startswith("http://"):
        return ":" + url[end - 1 :]
    return "=" + url


def expand(short: str, site: str) -> str:
    """The URL again; ValueError if `squeeze` never made this."""
    if short.startswith("/"):
        return f"https://{site}{short}"
    if short.startswith(":/"):
        return f"http://{site}{short[1:]}"
    if short.startswith("="):
        return short[1:]
    raise ValueError("not an address")


def as_text(data: bytes) -> msgspec.Raw:
    """Bytes as a msgpack string: the scripts of Redis know the older msgpack, which has no type for bytes."""
    return msgspec.Raw(_head(len(data)) + data)


def as_texts(parts: Sequence[bytes]) -> bytes:
    """A msgpack list of such strings."""
    found = [b"\xdd" + len(parts).to_bytes(4, "big")]
    for data in parts:
        size = len(data)
        found.append(_HEADS[size] if size < 256 else _head(size))
        found.append(data)
    return b"".join(found)


def _head(size: int) -> bytes:
    if size < 32:
        return bytes((0xA0 | size,))
    if size < 65_536:
        return b"\xda" + size.to_bytes(2, "big")
    return b"\xdb" + size.to_bytes(4, "big")


_HEADS = tuple(_head(size) for size in range(256))
