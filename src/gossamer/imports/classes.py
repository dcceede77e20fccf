"""The few classes of Python's own whose objects are plain values: how pickles say them, and how JSON does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

VALUES = (date, datetime, time, timedelta, timezone, Decimal, UUID)
"""What `made` may give, beside containers."""
_MOST_DIGITS = 10_000


class Unmade:
    """An object whose contents come later in the pickle: the name of its class, and where the memo has it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.places: list[int] = []


def is_known(name: str) -> bool:
    """Whether objects of the class with this full name can be read."""
    return name in _MAKERS or name == _UUID


def made(name: str, arguments: Any) -> Any:
    """The value that a class makes of its arguments; TypeError or ValueError if no pickle of that class has such."""
    if not isinstance(arguments, tuple) or name not in _MAKERS:
        raise TypeError(f"{name} with other contents than it writes")
    return _MAKERS[name](*arguments)


def filled(unmade: Unmade, state: Any) -> Any:
    """The value of an object whose contents have come."""
    if unmade.name != _UUID or not isinstance(state, dict) or not isinstance(state.get("int"), int):
        raise TypeError(f"{unmade.name} with other contents than it writes")
    return UUID(int=state["int"])


def in_json(value: Any, name: str, changes: set[str]) -> Any:
    """The value as JSON can hold it; `changes` gets a line for what is another kind of thing there.

    ValueError names the part that JSON cannot hold at all."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"{name} has more digits than JSON readers take")
        return value
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"{name} is {value}, which JSON cannot hold")
        return value
    if isinstance(value, dict):
        if any(not isinstance(key, str) for key in value):
            if not all(isinstance(key, str | int) for key in value):
                raise ValueError(f"{name} has keys that JSON cannot hold")
            changes.add(f"{name}: numbers as keys became text")
        return {str(key): in_json(part, f"{name}[{key!r}]", changes) for key, part in value.items()}
    if isinstance(value, list):
        return [in_json(part, f"{name}[]", changes) for part in value]
    changes.add(f"{name}: a {type(value).__name__} became {_IN_JSON.get(type(value), 'text')}")
    if isinstance(value, tuple):
        return [in_json(part, f"{name}[]", changes) for part in value]
    if isinstance(value, set | frozenset):
        return sorted((in_json(part, f"{name}[]", changes) for part in value), key=repr)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{name} is bytes that are no text, which JSON cannot hold") from None
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _packed(kind: Callable[..., Any], size: int, *, with_zone: bool) -> Callable[..., Any]:
    def make(packed: object, zone: object = None) -> Any:
        if not isinstance(packed, bytes) or len(packed) != size or not isinstance(zone, timezone | None):
            raise TypeError(f"{kind} with other contents than it writes")
        return kind(packed, zone) if with_zone and zone is not None else kind(packed)

    return make


def _span(days: object = 0, seconds: object = 0, micros: object = 0) -> timedelta:
    if not (isinstance(days, int) and isinstance(seconds, int) and isinstance(micros, int)):
        raise TypeError("a timedelta of other things than numbers")
    return timedelta(days, seconds, micros)


def _zone(offset: object, name: object = None) -> timezone:
    if not isinstance(offset, timedelta) or not isinstance(name, str | None):
        raise TypeError("a time zone with other contents than it writes")
    return timezone(offset) if name is None else timezone(offset, name)


def _decimal(text: object) -> Decimal:
    if not isinstance(text, str) or len(text) > _MOST_DIGITS:
        raise TypeError("a Decimal of something else than its digits")
    return Decimal(text)


def _container(kind: Callable[..., Any]) -> Callable[..., Any]:
    def make(parts: object = ()) -> Any:
        if not isinstance(parts, list | tuple):
            raise TypeError("a container of something else than its elements")
        return kind(parts)

    return make


def _bytes(data: object = b"", coding: object = None) -> bytes:
    if isinstance(data, bytes) and coding is None:
        return data
    if not isinstance(data, str) or coding not in ("latin1", "latin-1"):
        raise TypeError("bytes of something else")
    return data.encode("latin-1")


_UUID = "uuid.UUID"
_IN_JSON = {tuple: "a list", set: "a list", frozenset: "a list", timedelta: "seconds"}
_MAKERS: dict[str, Callable[..., Any]] = {
    "datetime.datetime": _packed(datetime, 10, with_zone=True),
    "datetime.date": _packed(date, 4, with_zone=False),
    "datetime.time": _packed(time, 6, with_zone=True),
    "datetime.timedelta": _span,
    "datetime.timezone": _zone,
    "decimal.Decimal": _decimal,
    "builtins.set": _container(set),
    "builtins.frozenset": _container(frozenset),
    "builtins.bytes": _bytes,
    "builtins.bytearray": _bytes,
    "_codecs.encode": _bytes,
    "collections.OrderedDict": _container(dict),
}
