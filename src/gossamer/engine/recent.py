"""Memories of keys that the frontier has for good, so that most repeated links never travel."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress, repeat
from operator import contains, itemgetter
from struct import Struct
from typing import Protocol

_FIRST_PART = 4096
_GROWTH = 8
_WAYS = 4
_row = Struct(f"{_WAYS}Q")


class Memory(Protocol):
    """Something that tells which keys may be new to the frontier."""

    def unknown(self, keys: Iterable[int]) -> set[int]: ...

    def update(self, keys: Iterable[int]) -> None: ...

    def clear(self) -> None: ...


class Knows(Protocol):
    """A frontier that has its keys at hand."""

    def unknown(self, keys: Iterable[int]) -> set[int]: ...


class AtHand:
    """The memory of the frontier itself, where it is in the same process: exact, and nothing is kept beside it."""

    def __init__(self, frontier: Knows) -> None:
        self.unknown = frontier.unknown

    def update(self, keys: Iterable[int]) -> None:
        """The frontier has them."""

    def clear(self) -> None:
        """It forgets by itself what it does not have."""


class Recent:
    """The last keys, in a table of rows of four: each has one row where it can be, and pushes out the oldest there.

    A key costs 8 bytes there. Most crawls are small: the table begins as a 4096th of itself, and grows eightfold when
    it is a quarter full. A key may enter only after the frontier has it for good: otherwise a crash between would lose
    the link."""

    def __init__(self, size: int = 4_000_000) -> None:
        self._most_rows = 1 << max(0, -(-size // _WAYS) - 1).bit_length()
        self.clear()

    def unknown(self, keys: Iterable[int]) -> set[int]:
        """Those of these keys that may be new."""
        wanted = list(keys)
        if not wanted:
            return set()
        table = self._table
        places = list(map(self._mask.__and__, wanted))
        # All rows are touched in one go: the processor waits for memory once then, and not for one after the other.
        itemgetter(*places)(table)
        rows = map(_row.unpack_from, repeat(table), places)
        unknown = set(wanted).difference(compress(wanted, map(contains, rows, wanted)))
        # An empty place in a row looks like this key.
        return unknown | {0} if 0 in wanted else unknown

    def update(self, keys: Iterable[int]) -> None:
        table, mask = self._table, self._mask
        for key in keys:
            row = _row.unpack_from(table, key & mask)
            if key not in row:
                _row.pack_into(table, key & mask, key, *row[:-1])
                self._entered += 1
        if 4 * self._entered > _WAYS * self._rows and self._rows < self._most_rows:
            self._make(min(self._most_rows, _GROWTH * self._rows))
            # The oldest of a row are its last.
            self.update(key for key in reversed(memoryview(table).cast("Q")) if key)

    def clear(self) -> None:
        """Forget all: after a reconnect nobody knows what the frontier still has."""
        self._make(max(1, self._most_rows // _FIRST_PART))

    def _make(self, rows: int) -> None:
        self._rows = rows
        self._mask = (rows - 1) * _row.size
        self._table = bytearray(rows * _row.size)
        self._entered = 0
