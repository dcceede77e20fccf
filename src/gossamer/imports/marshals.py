"""Python's marshal format read as data: plain values only, by a reader of our own that no input can crash."""

from __future__ import annotations

import struct
from typing import Any

from gossamer.imports.pickles import UnsafePickle, check_size

_MARSHAL_CONSTANTS = ((b"N", None), (b"T", True), (b"F", False), (b".", ...))
_FLAG_REF = 0x80
_END = object()
_DEEPEST = 100


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
