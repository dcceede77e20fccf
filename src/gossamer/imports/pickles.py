"""Reads pickle and marshal data as plain values, without executing anything.

No library does this: `pickle` calls whatever a pickle names, and `pickletools` only lists its opcodes."""

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
"""Types that `construct` can return, besides containers."""
_MOST_DIGITS = 10_000


class UnfinishedObject:
    """An object whose state comes later in the pickle: the name of its class, and its places in the memo."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.places: list[int] = []


def is_known_class(name: str) -> bool:
    """Whether objects of this class (full name) can be read."""
    return name in _MAKERS or name == _UUID


def construct(name: str, arguments: Any) -> Any:
    """Construct a value of a known class; TypeError or ValueError for arguments that its pickles never have."""
    if not isinstance(arguments, tuple) or name not in _MAKERS:
        raise TypeError(f"{name} with unexpected contents")
    return _MAKERS[name](*arguments)


def finish(unfinished: UnfinishedObject, state: Any) -> Any:
    """The value of an object, given its state."""
    if unfinished.name != _UUID or not isinstance(state, dict) or not isinstance(state.get("int"), int):
        raise TypeError(f"{unfinished.name} with unexpected contents")
    return UUID(int=state["int"])


def in_json(value: Any, name: str, changes: set[str]) -> Any:
    """Convert a value for JSON; `changes` gets a line for each type that JSON does not have.

    ValueError names a part that cannot be converted."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"{name} is too large for 64 bits")
        return value
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"{name} is {value}, which JSON does not support")
        return value
    if isinstance(value, dict):
        if any(not isinstance(key, str) for key in value):
            if not all(isinstance(key, str | int) for key in value):
                raise ValueError(f"{name} has keys that JSON does not support")
            changes.add(f"{name}: numeric keys became text")
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
            raise ValueError(f"{name} is binary data, which JSON does not support") from None
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _packed(kind: Callable[..., Any], size: int, *, with_zone: bool) -> Callable[..., Any]:
    def make(packed: object, zone: object = None) -> Any:
        if not isinstance(packed, bytes) or len(packed) != size or not isinstance(zone, timezone | None):
            raise TypeError(f"{kind} with unexpected contents")
        return kind(packed, zone) if with_zone and zone is not None else kind(packed)

    return make


def _span(days: object = 0, seconds: object = 0, micros: object = 0) -> timedelta:
    if not (isinstance(days, int) and isinstance(seconds, int) and isinstance(micros, int)):
        raise TypeError("a timedelta with unexpected contents")
    return timedelta(days, seconds, micros)


def _zone(offset: object, name: object = None) -> timezone:
    if not isinstance(offset, timedelta) or not isinstance(name, str | None):
        raise TypeError("a time zone with unexpected contents")
    return timezone(offset) if name is None else timezone(offset, name)


def _decimal(text: object) -> Decimal:
    if not isinstance(text, str) or len(text) > _MOST_DIGITS:
        raise TypeError("a Decimal with unexpected contents")
    return Decimal(text)


def _container(kind: Callable[..., Any]) -> Callable[..., Any]:
    def make(parts: object = ()) -> Any:
        if not isinstance(parts, list | tuple):
            raise TypeError("a container with unexpected contents")
        return kind(parts)

    return make


def _bytes(data: object = b"", coding: object = None) -> bytes:
    if isinstance(data, bytes) and coding is None:
        return data
    if not isinstance(data, str) or coding not in ("latin1", "latin-1"):
        raise TypeError("bytes with unexpected contents")
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
"""Subclasses of str without further state; requests of a CrawlSpider contain one, the text of their link."""


class UnsafePickle(ValueError):
    """Data that is not a pickle, or contains more than plain values; `url` of its request, if already read."""

    url = ""


class _Mark:
    """Marks the start of a container's elements on the stack."""


class _Text:
    """Placeholder for a subclass of str."""


class _Class(NamedTuple):
    """Placeholder for a class whose objects are plain values."""

    name: str


def read_pickle(data: bytes) -> Any:
    """Read a pickle as a plain value; UnsafePickle names anything else in it. Imports and calls nothing."""
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
    """Raise UnsafePickle for a value that shared references make too large or too deep to write out."""
    waiting, count = [(value, 0)], 0
    while waiting:
        part, depth = waiting.pop()
        count += 1
        if count > _MOST_VALUES or depth > _DEEPEST:
            raise UnsafePickle("the value is too large or too deeply nested")
        if isinstance(part, _Class):
            raise UnsafePickle(f"it contains the class {part.name}")
        if isinstance(part, dict):
            waiting += [(each, depth + 1) for pair in part.items() for each in pair]
        elif isinstance(part, list | tuple | set | frozenset):
            waiting += [(each, depth + 1) for each in part]
        elif part is not None and not isinstance(part, (bool, int, float, str, bytes, *VALUES)):
            raise UnsafePickle("it is truncated")


class _Machine:
    """A pickle virtual machine, reduced to the opcodes that make plain values."""

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
            if isinstance(stack[-1], UnfinishedObject):
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
                raise UnsafePickle(f"it contains more than plain values: {name} {named[:100]}".rstrip())
            stack.append(constant[0])

    def _make(self, name: str, argument: Any) -> bool:
        """Opcodes that construct values of known classes; False for any other opcode or class."""
        stack = self.stack
        if name in ("GLOBAL", "STACK_GLOBAL"):
            path = f"{stack[-2]}.{stack[-1]}" if name == "STACK_GLOBAL" else argument.replace(" ", ".")
            path = path.replace("__builtin__.", "builtins.")
            if path not in _TEXTS and not is_known_class(path):
                return False
            if name == "STACK_GLOBAL":
                del stack[-2:]
            stack.append(_Text if path in _TEXTS else _Class(path))
        elif name == "NEWOBJ" and stack[-2] is _Text:
            (text,) = stack.pop()
            stack[-1] = str(text)
        elif name == "NEWOBJ" and isinstance(stack[-2], _Class) and stack[-1] == ():
            stack[-2:] = [UnfinishedObject(stack[-2].name)]
        elif name == "REDUCE" and isinstance(stack[-2], _Class):
            stack[-2:] = [construct(stack[-2].name, stack[-1])]
        elif name == "BUILD" and isinstance(stack[-2], UnfinishedObject):
            unfinished, value = stack[-2], finish(stack[-2], stack[-1])
            stack[-2:] = [value]
            self._memo.update(dict.fromkeys(unfinished.places, value))
        else:
            return False
        return True

    def url(self) -> str:
        """The value of the field `url`, if it has been read."""
        for name, value in pairwise(self.stack):
            if name == "url" and isinstance(value, str):
                return value
        return ""

    def _fill(self, name: str) -> bool:
        """Opcodes that add elements to containers; False for any other."""
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
    """Read marshal data as a plain value; UnsafePickle if it contains code or is not marshal data."""
    try:
        value = _Reader(data).value(0)
    except (struct.error, IndexError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise error if isinstance(error, UnsafePickle) else UnsafePickle(f"not marshal data: {error}") from None
    check_size(value)
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._refs: list[Any] = []

    def _take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise UnsafePickle("not marshal data: it is truncated")
        self._at += count
        return self._data[self._at - count : self._at]

    def _whole(self) -> int:
        return int(struct.unpack("<i", self._take(4))[0])

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise UnsafePickle("the value is too deeply nested")
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
        raise UnsafePickle(f"it contains more than plain values (marshal type {kind!r})")

    def _many(self, count: int, depth: int) -> list[Any]:
        if count < 0 or count > len(self._data):
            raise UnsafePickle("not marshal data: it is truncated")
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
