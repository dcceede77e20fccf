"""Reads pickle and marshal data as plain values; nothing is executed.

No library does this: `pickle` runs what a pickle names, and `pickletools` only lists its operations."""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple
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

_MOST_VALUES = 1_000_000
_DEEPEST = 100
_PLAIN = frozenset(
    (
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
    )
)
_CONSTANTS = (("NONE", None), ("NEWTRUE", True), ("NEWFALSE", False), ("EMPTY_TUPLE", ()))
_IDLE = frozenset(("PROTO", "FRAME", "STOP"))
_TEXTS = frozenset(("lxml.etree._ElementUnicodeResult",))
"""Classes that are text and nothing else; every request of a CrawlSpider has one, the text of its link."""


class UnsafePickle(ValueError):
    """A pickle that holds more than plain values, or is none; `url` is that of its request, if it came before."""

    url = ""


class _Mark:
    """Where a container's elements begin on the stack."""


class _Text:
    """Stands for a class that is text."""


class _Class(NamedTuple):
    """Stands for a class whose objects are plain values, and for what makes them."""

    name: str


def read_pickle(data: bytes) -> Any:
    """The plain value in a pickle; NotPlain names what else is in it. Nothing is imported or called."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.step(opcode.name, argument)
        value = machine.stack.pop()
    except UnsafePickle as error:
        error.url = machine.url()
        raise
    except Exception as error:  # bytes from anywhere: pickletools raises whatever it likes
        raise UnsafePickle(f"not a pickle: {error}") from None
    check_size(value)
    return value


def check_size(value: Any) -> None:
    """NotPlain for a value that shares its parts so often, or so deeply, that it has no end when written out."""
    waiting, count = [(value, 0)], 0
    while waiting:
        part, depth = waiting.pop()
        count += 1
        if count > _MOST_VALUES or depth > _DEEPEST:
            raise UnsafePickle("larger or deeper than any request is")
        if isinstance(part, _Class):
            raise UnsafePickle(f"it holds a class, {part.name}")
        if isinstance(part, dict):
            waiting += [(each, depth + 1) for pair in part.items() for each in pair]
        elif isinstance(part, list | tuple | set | frozenset):
            waiting += [(each, depth + 1) for each in part]
        elif part is not None and not isinstance(part, (bool, int, float, str, bytes, *VALUES)):
            raise UnsafePickle("it ends in the middle of something")


class _Machine:
    """The stack and memo of a pickle, for the opcodes that make plain values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _PLAIN:
            stack.append(argument)
        elif name in _IDLE:
            pass
        elif name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            place = len(self._memo) if name == "MEMOIZE" else argument
            self._memo[place] = stack[-1]
            if isinstance(stack[-1], Unmade):
                stack[-1].places.append(place)
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            stack.append(_Mark)
        elif name in ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"):
            stack.append({"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}[name]())
        elif name == "BYTEARRAY8":
            stack.append(bytes(argument))
        elif not self._make(name, argument) and not self._fill(name):
            constant = [value for word, value in _CONSTANTS if word == name]
            if not constant:
                named = ".".join(map(str, stack[-2:])) if name == "STACK_GLOBAL" else str(argument or "")
                raise UnsafePickle(f"it holds more than plain values: {name} {named[:100]}".rstrip())
            stack.append(constant[0])

    def _make(self, name: str, argument: Any) -> bool:
        """The opcodes that name classes of values and make these; False for any other, and for any other class."""
        stack = self.stack
        if name in ("GLOBAL", "STACK_GLOBAL"):
            path = f"{stack[-2]}.{stack[-1]}" if name == "STACK_GLOBAL" else argument.replace(" ", ".")
            path = path.replace("__builtin__.", "builtins.")
            if path not in _TEXTS and not is_known(path):
                return False
            if name == "STACK_GLOBAL":
                del stack[-2:]
            stack.append(_Text if path in _TEXTS else _Class(path))
        elif name == "NEWOBJ" and stack[-2] is _Text:
            (text,) = stack.pop()
            stack[-1] = str(text)
        elif name == "NEWOBJ" and isinstance(stack[-2], _Class) and stack[-1] == ():
            stack[-2:] = [Unmade(stack[-2].name)]
        elif name == "REDUCE" and isinstance(stack[-2], _Class):
            stack[-2:] = [made(stack[-2].name, stack[-1])]
        elif name == "BUILD" and isinstance(stack[-2], Unmade):
            unmade, value = stack[-2], filled(stack[-2], stack[-1])
            stack[-2:] = [value]
            self._memo.update(dict.fromkeys(unmade.places, value))
        else:
            return False
        return True

    def url(self) -> str:
        """What stands behind the word url among the fields that were read so far."""
        for name, value in pairwise(self.stack):
            if name == "url" and isinstance(value, str):
                return value
        return ""

    def _fill(self, name: str) -> bool:
        """The opcodes that put elements into containers; False for any other."""
        stack = self.stack
        if name == "APPEND":
            last = stack.pop()
            stack[-1].append(last)
        elif name == "APPENDS":
            parts = self._parts()
            stack[-1].extend(parts)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            stack[-1][key] = value
        elif name == "SETITEMS":
            parts = self._parts()
            stack[-1].update(zip(parts[::2], parts[1::2], strict=True))
        elif name == "ADDITEMS":
            parts = self._parts()
            stack[-1].update(parts)
        elif name in ("LIST", "TUPLE", "FROZENSET"):
            parts = self._parts()
            stack.append({"LIST": list, "TUPLE": tuple, "FROZENSET": frozenset}[name](parts))
        elif name == "DICT":
            parts = self._parts()
            stack.append(dict(zip(parts[::2], parts[1::2], strict=True)))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self._parts()
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            return False
        return True

    def _parts(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _Mark:
            place -= 1
        parts = self.stack[place + 1 :]
        del self.stack[place:]
        return parts


_MARSHAL_CONSTANTS = ((b"N", None), (b"T", True), (b"F", False), (b".", ...))
_FLAG_REF = 0x80
_END = object()


def read_marshal(data: bytes) -> Any:
    """The plain value in the bytes; NotPlain if there is code in them, or if they are none."""
    try:
        value = _Reader(data).value(0)
    except (struct.error, IndexError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise error if isinstance(error, UnsafePickle) else UnsafePickle(f"not marshal: {error}") from None
    check_size(value)
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._refs: list[Any] = []

    def _take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise UnsafePickle("not marshal: it ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def _whole(self) -> int:
        return int(struct.unpack("<i", self._take(4))[0])

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise UnsafePickle("deeper than any request is")
        code = self._take(1)[0]
        kind, is_kept = bytes((code & ~_FLAG_REF,)), bool(code & _FLAG_REF)
        place = len(self._refs)
        if is_kept:
            self._refs.append(None)
        found = self._read(kind, depth)
        if is_kept:
            self._refs[place] = found
        return found

    def _read(self, kind: bytes, depth: int) -> Any:
        for word, constant in _MARSHAL_CONSTANTS:
            if kind == word:
                return constant
        if kind == b"0":
            return _END
        if kind == b"i":
            return self._whole()
        if kind == b"l":
            return self._long()
        if kind == b"g":
            return struct.unpack("<d", self._take(8))[0]
        if kind == b"r":
            return self._refs[self._whole()]
        if kind == b"s":
            return self._take(self._whole())
        if kind in (b"u", b"t", b"a", b"A"):
            return self._take(self._whole()).decode("utf-8", "surrogatepass")
        if kind in (b"z", b"Z"):
            return self._take(self._take(1)[0]).decode("ascii")
        if kind == b")":
            return tuple(self._many(self._take(1)[0], depth))
        if kind in (b"(", b"[", b"<", b">"):
            make: Any = {b"(": tuple, b"[": list, b"<": set, b">": frozenset}[kind]
            return make(self._many(self._whole(), depth))
        if kind == b"{":
            return self._dict(depth)
        raise UnsafePickle(f"it holds more than plain values (marshal's {kind!r})")

    def _many(self, count: int, depth: int) -> list[Any]:
        if count < 0 or count > len(self._data):
            raise UnsafePickle("not marshal: it ends too early")
        return [self.value(depth + 1) for _ in range(count)]

    def _dict(self, depth: int) -> dict[Any, Any]:
        found = {}
        while (key := self.value(depth + 1)) is not _END:
            found[key] = self.value(depth + 1)
        return found

    def _long(self) -> int:
        size = self._whole()
        digits = struct.unpack(f"<{abs(size)}H", self._take(2 * abs(size)))
        value: int = sum(digit << (15 * place) for place, digit in enumerate(digits))
        return -value if size < 0 else value
