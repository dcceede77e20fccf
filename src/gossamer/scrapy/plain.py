"""Plain Python values as msgpack and back, the same in value and type; whatever is not plain is refused by its name."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec.msgpack import Ext
from scrapy import Item

_TUPLE, _SET, _FROZENSET, _PAIRS, _WHOLE, _DATETIME, _DATE, _DECIMAL, _ITEM, _TIME, _SPAN, _UUID = range(1, 13)
_TEXTS: dict[int, Any] = {
    _WHOLE: int,
    _DATETIME: datetime.fromisoformat,
    _DATE: date.fromisoformat,
    _DECIMAL: Decimal,
    _TIME: time.fromisoformat,
    _UUID: UUID,
}
"""Kinds that are kept as text, and how it is read."""
_DEEPEST = 100
Kind = TypeVar("Kind")
_encode = msgspec.msgpack.Encoder().encode


class NotSerializable(ValueError):
    """A value that is neither JSON nor one of the few other kinds that come back as they were."""


def pack(fields: dict[str, Any]) -> bytes:
    """Named values as bytes; NotPlain says which part of which field cannot be stored."""
    return _encode({name: _plain(value, name, 0) for name, value in fields.items()})


def unpack(data: bytes) -> Any:
    """The value again. No code is imported or run for it."""
    return msgspec.msgpack.decode(data, ext_hook=_revive)


def loaded_class(path: str, kind: type[Kind]) -> type[Kind]:
    """The class of this name if the project has it loaded and it is of this kind; nothing is imported."""
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(f"{path} is not a {kind.__name__} class that this project has loaded")
    return found


def _plain(value: Any, name: str, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if depth > _DEEPEST:
        raise NotSerializable(f"{name} is nested too deeply")
    kind = type(value)
    if isinstance(value, str) and not isinstance(value, Enum):
        return _text(value, name)
    if isinstance(value, float) and not isinstance(value, Enum):
        return float(value)
    if kind is bytes:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**64 else Ext(_WHOLE, str(value).encode())
    if kind is list:
        return [_plain(part, f"{name}[{place}]", depth + 1) for place, part in enumerate(value)]
    if kind in (dict, OrderedDict, defaultdict):
        return _mapping(value, name, depth)
    if kind in (tuple, set, frozenset):
        code = _TUPLE if kind is tuple else _SET if kind is set else _FROZENSET
        return Ext(code, _encode([_plain(part, f"{name}[{place}]", depth + 1) for place, part in enumerate(value)]))
    if kind in (datetime, date, time):
        code = _DATETIME if kind is datetime else _DATE if kind is date else _TIME
        return Ext(code, value.isoformat().encode())
    if kind is timedelta:
        return Ext(_SPAN, _encode([value.days, value.seconds, value.microseconds]))
    if kind in (Decimal, UUID):
        return Ext(_DECIMAL if kind is Decimal else _UUID, str(value).encode())
    if isinstance(value, Item):
        fields = _mapping(dict(value), name, depth)
        return Ext(_ITEM, _encode([f"{kind.__module__}.{kind.__qualname__}", fields]))
    raise NotSerializable(f"{name} is {_described(value)}, which JSON or msgpack cannot hold")


def _text(value: str, name: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotSerializable(f"{name} has half a character in it, which UTF-8 cannot hold") from None
    return str(value)


def _mapping(value: dict[Any, Any], name: str, depth: int) -> Any:
    if all(type(key) is str for key in value):
        return {_text(key, name): _plain(part, f"{name}[{key!r}]", depth + 1) for key, part in value.items()}
    pairs = [
        [_plain(key, f"a key of {name}", depth + 1), _plain(part, f"{name}[{key!r}]", depth + 1)]
        for key, part in value.items()
    ]
    return Ext(_PAIRS, _encode(pairs))


def _described(value: Any) -> str:
    word = getattr(value, "__qualname__", "")
    if callable(value) and word:
        return f"the function {word}"
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _revive(code: int, data: memoryview) -> Any:
    raw = bytes(data)
    if code in _TEXTS:
        return _TEXTS[code](raw.decode())
    inner = unpack(raw)
    if code == _SPAN:
        return timedelta(*inner)
    if code == _PAIRS:
        return dict(inner)
    if code == _ITEM:
        return loaded_class(inner[0], Item)(inner[1])
    containers: dict[int, Any] = {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset}
    if code not in containers:
        raise ValueError(f"kind {code} is of a later version")
    return containers[code](inner)
