"""Pickles read as data: plain values are built by an interpreter of our own, and whatever would run code is refused.

No library does this: `pickle` runs what a pickle names, and `pickletools` only lists its operations."""

from __future__ import annotations

import pickletools
from itertools import pairwise
from typing import Any, NamedTuple

from gossamer.imports import classes

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
        elif part is not None and not isinstance(part, (bool, int, float, str, bytes, *classes.VALUES)):
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
            if isinstance(stack[-1], classes.Unmade):
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
            if path not in _TEXTS and not classes.is_known(path):
                return False
            if name == "STACK_GLOBAL":
                del stack[-2:]
            stack.append(_Text if path in _TEXTS else _Class(path))
        elif name == "NEWOBJ" and stack[-2] is _Text:
            (text,) = stack.pop()
            stack[-1] = str(text)
        elif name == "NEWOBJ" and isinstance(stack[-2], _Class) and stack[-1] == ():
            stack[-2:] = [classes.Unmade(stack[-2].name)]
        elif name == "REDUCE" and isinstance(stack[-2], _Class):
            stack[-2:] = [classes.made(stack[-2].name, stack[-1])]
        elif name == "BUILD" and isinstance(stack[-2], classes.Unmade):
            unmade, value = stack[-2], classes.filled(stack[-2], stack[-1])
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
