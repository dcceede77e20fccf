"""Requests and site states as compact bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gossamer.frontier.recrawl import VisitOutcome
from gossamer.model import Request


class _Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The fields after the key.

    Trailing fields with their default may be missing. Lua scripts use the field numbers."""

    url: str
    depth: int = 0
    referrer: str = ""
    priority: int = 0
    hops: int = 0
    tries: int = 0
    extra: str = ""
    state: msgspec.Raw = msgspec.Raw(b"\xa0")
    again: str = ""


class _Address(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The first field of an entry."""

    url: str


class Extra(msgspec.Struct, omit_defaults=True):
    """The fields of a request that most requests do not use."""

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
_decode_state = msgspec.msgpack.Decoder(dict[int | str, Any]).decode
_NAMES = VisitOutcome.__struct_fields__
_NUMBERS = {name: number for number, name in enumerate(_NAMES)}
_HEX = re.compile("(?:[0-9a-f]{2}){8,}")
_HEAD_BYTES = {0xD9: 2, 0xDA: 3, 0xDB: 5}


def pack(request: Request, referrer: str = "") -> bytes:
    """Pack a request: a key of 8 bytes, then a msgpack array, with addresses shortened by the site's name.

    `referrer` is already squeezed; it is used for a request that has no referrer of its own."""
    site = request.site
    if request.referrer:
        referrer = shorten_url(request.referrer, site)
    fields: tuple[Any, ...] = (shorten_url(request.url, site), request.depth, referrer)
    special = request.label or request.meta or request.method != "GET" or request.headers or request.body
    if special or request.priority or request.hops or request.state is not None:
        extra = Extra(request.label, request.meta, request.method, request.headers, request.body)
        fields += (
            request.priority,
            request.hops,
            0,
            msgspec.json.encode(extra).decode() if special else "",
            as_text(pack_state(request.state)),
        )
    return request.key.to_bytes(8, "big") + _encode(fields)


def unpack(entry: bytes, site: str) -> Request:
    """Unpack a request; ValueError if the entry is invalid."""
    try:
        found = _decode(entry[8:])
        extra = _decode_extra(found.extra) if found.extra else _NONE
        state = _unpack_state(found.state)
    except (msgspec.DecodeError, IndexError) as error:
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


def pack_state(state: dict[str, Any] | None) -> bytes:
    """Pack the state of a visit: `VisitOutcome` field names as numbers, digests as bytes, whole numbers as integers."""
    if state is None:
        return b""
    return _encode({_NUMBERS.get(name, name): _small(value) for name, value in state.items()})


def _small(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, str) and _HEX.fullmatch(value):
        return bytes.fromhex(value)
    return value


def _unpack_state(found: msgspec.Raw) -> dict[str, Any] | None:
    packed = memoryview(found)
    packed = packed[_HEAD_BYTES.get(packed[0], 1) :]
    if not packed:
        return None
    state = _decode_state(packed)
    return {
        _NAMES[name] if isinstance(name, int) else name: value.hex() if isinstance(value, bytes) else value
        for name, value in state.items()
    }


def revisit_of(entry: bytes) -> str:
    """Return the last result (done, failed, or skipped) of a request that waits for a revisit; else an empty text."""
    try:
        return _decode(entry[8:]).again
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def state_of(entry: bytes) -> dict[str, Any] | None:
    """Return the visit state of an entry; None if it has none, ValueError if the entry is invalid."""
    try:
        return _unpack_state(_decode(entry[8:]).state)
    except (msgspec.DecodeError, IndexError) as error:
        raise ValueError(str(error)) from None


def with_state(entry: bytes, state: dict[str, Any]) -> bytes:
    """Return the entry with another visit state."""
    fields = msgspec.structs.replace(_decode(entry[8:]), state=as_text(pack_state(state)))
    return entry[:8] + _encode(fields)


def address(rest: bytes, site: str) -> str:
    """Return the address of an entry without its key; ValueError if it has none."""
    try:
        short = _decode_address(rest).url
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    return f"https://{site}{short}" if short.startswith("/") else expand(short, site)


def shorten_url(url: str, site: str) -> str:
    """Shorten a URL by its site: `/path` is https, `:/path` is http; other URLs get `-` (https) or `=` (any) in
    front."""
    if url.startswith(f"https://{site}/"):
        return url[len(site) + 8 :]
    if url.startswith(f"http://{site}/"):
        return ":" + url[len(site) + 7 :]
    return "-" + url[8:] if url.startswith("https://") else "=" + url


def expand(short: str, site: str) -> str:
    """Expand a shortened URL; ValueError if `shorten_url` cannot have made it."""
    if short.startswith("/"):
        return f"https://{site}{short}"
    if short.startswith(":/"):
        return f"http://{site}{short[1:]}"
    if short.startswith("-"):
        return f"https://{short[1:]}"
    if short.startswith("="):
        return short[1:]
    raise ValueError("not an address")


def as_text(data: bytes) -> msgspec.Raw:
    """Encode bytes as a msgpack string: the Lua library of Redis predates the msgpack type for bytes."""
    return msgspec.Raw(_head(len(data)) + data)


def as_texts(parts: Sequence[bytes]) -> bytes:
    """Encode a list of byte strings as msgpack strings."""
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
