"""Memories of keys that the frontier has for good, so that most repeated links never travel."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import itemgetter
from struct import Struct
from typing import Protocol

_FIRST_PART = 4096
_GROWTH = 8
_WAYS = 4
_NO_KEY = 2**64 - 1
_row_at = Struct(f"{_WAYS}Q").unpack_from


class KnownKeys(Protocol):
    """Something that tells which keys may be new to the frontier."""

    def unknown(self, keys: Iterable[int]) -> set[int]: ...

    def update(self, keys: Iterable[int]) -> None: ...

    def clear(self) -> None: ...


class Knows(Protocol):
    """A frontier that has its keys at hand."""

    def unknown(self, keys: Iterable[int]) -> set[int]: ...


class FrontierKeys:
    """The memory of the frontier itself, where it is in the same process: exact, and nothing is kept beside it."""

    def __init__(self, frontier: Knows) -> None:
        self.unknown = frontier.unknown

    def update(self, keys: Iterable[int]) -> None:
        """The frontier has them."""

    def clear(self) -> None:
        """It forgets by itself what it does not have."""


class RecentKeys:
    """The last keys, in a table of rows of four: each has one row where it can be, and pushes out another there.

    A key costs 8 bytes there. Most crawls are small: the table begins as a 4096th of itself, and grows eightfold before
    it is more than a quarter full. A key may enter only after the frontier has it for good: otherwise a crash between
    would lose the link."""

    def __init__(self, size: int = 8_000_000) -> None:
        self._most_places = max(_WAYS, 1 << max(0, size - 1).bit_length())
        self.clear()

    def unknown(self, keys: Iterable[int]) -> set[int]:
        """Those of these keys that may be new."""
        wanted = list(keys)
        table, mask, first_in_row = self._table, self._mask, self._first_in_row
        # All are looked up in one go: the processor waits for memory once then, and not for one after the other. Two
        # places more make the answer a tuple, however many keys there are.
        found = itemgetter(*[key & mask for key in wanted], 0, 0)(table)
        return {
            key
            for key, other in zip(wanted, found)
            if other != key and (not other or key not in _row_at(table, 8 * (key & first_in_row)))
        }

    def update(self, keys: Iterable[int]) -> None:
        entering = list(keys)
        self._grow(len(entering))
        table, mask, first_in_row = self._table, self._mask, self._first_in_row
        for key in entering:
            place = key & mask
            other = table[place]
            if other:
                first = key & first_in_row
                row = table[first : first + _WAYS]
                if key in row:
                    continue
                # The newest has the place where it is looked for first; the other goes where there is room.
                if 0 in row:
                    table[first + row.index(0)] = other
                else:
                    table[place ^ 1], table[place ^ 2], table[place ^ 3] = other, table[place ^ 1], table[place ^ 2]
            table[place] = key
            self._entered += 1

    def clear(self) -> None:
        """Forget all: after a reconnect nobody knows what the frontier still has."""
        self._make(max(_WAYS, self._most_places // _FIRST_PART))

    def _grow(self, more: int) -> None:
        """Make room for so many more."""
        old, places = self._table, len(self._table)
        while 4 * (self._entered + more) > places and places < self._most_places:
            places = min(self._most_places, _GROWTH * places)
        if places > len(old):
            self._make(places)
            self.update(key for key in old if key and key != _NO_KEY)

    def _make(self, places: int) -> None:
        self._mask = places - 1
        self._first_in_row = places - _WAYS
        self._table = array("Q", bytes(8 * places))
        # An empty place looks like the key 0, which belongs here.
        self._table[:_WAYS] = array("Q", [_NO_KEY] * _WAYS)
        self._entered = 0
