"""What a spider yields, made plain: items that any sink can store, and requests that any frontier can keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from gossamer.errors import ExtractError
from gossamer.extract.links import normal
from gossamer.model import Request

HINT = "yield a dict, a dataclass, an attrs or pydantic model, or a msgspec Struct, with values that JSON can hold"
FOLLOW_HINT = "to follow a link, yield page.follow(link); to keep a text, yield it in a dict"
MOST_PRIORITY = 1_000_000_000
_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode


def plain(item: Any) -> dict[str, Any]:
    """The item as a mapping of JSON values; an ExtractError names the type, or the field, that cannot be stored."""
    fields = _fields(item)
    try:
        found = msgspec.to_builtins(fields, str_keys=True, enc_hook=_nested)
        # A lone surrogate, or a number that no database can hold, only shows in the encoder.
        _encode(found)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ExtractError(f"item {type(item).__name__}: {_culprit(fields)}{error}", hint=HINT) from error
    return dict(found)


def sound(request: Request) -> Request:
    """A spider's request with its URL in normal form; an ExtractError says what of it cannot be queued."""
    url = normal(request.url) if isinstance(request.url, str) else None
    if url is None:
        raise ExtractError(
            f"{request.url!r:.200} is not a URL to follow",
            hint="only http and https are followed; page.follow(...) resolves what is relative",
        )
    try:
        meta = None if request.meta is None else plain(request.meta)
        made = msgspec.structs.replace(request, url=url, meta=meta)
        # Nothing but plain values may go on: one that cannot be stored would stop the crawl, not this page.
        _decode_request(_encode(made))
        if abs(request.priority) > MOST_PRIORITY:
            raise ValueError(f"priority {request.priority:.0e} is over {MOST_PRIORITY}")
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.ValidationError, ExtractError) as error:
        raise ExtractError(
            f"request for {url}: {error}", hint="its values must be of the types that Request names"
        ) from error
    return made


def _fields(item: Any) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    kind = type(item)
    if isinstance(item, msgspec.Struct):
        return {name: getattr(item, name) for name in item.__struct_fields__}
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    if hasattr(kind, "__attrs_attrs__"):
        return {field.name: getattr(item, field.name) for field in kind.__attrs_attrs__}
    if hasattr(kind, "model_dump"):
        return dict(item.model_dump())
    is_link = isinstance(item, str)
    raise ExtractError(f"{kind.__name__} is not an item: {item!r:.80}", hint=FOLLOW_HINT if is_link else HINT)


def _nested(value: Any) -> Any:
    """A value inside an item that msgspec does not know by itself."""
    if hasattr(value, "getall"):
        raise TypeError("a selection is not a value: end it with .get() or .getall()")
    if isinstance(value, Mapping) or hasattr(type(value), "model_dump"):
        return dict(_fields(value))
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _culprit(fields: Mapping[str, Any]) -> str:
    """The name of the first field that cannot be stored."""
    for name, value in fields.items():
        try:
            _encode(msgspec.to_builtins(value, str_keys=True, enc_hook=_nested))
        except (TypeError, ValueError, OverflowError, RecursionError):
            return f"field {name!r}: "
    return ""
