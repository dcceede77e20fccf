"""A bounded memory of keys that the frontier has acknowledged, so that most repeated links never travel."""

from __future__ import annotations

from collections.abc import Iterable

_FIRST_PART = 64
_HOT = 32_768


class Recent:
    """The last keys, in a table of pairs: each has one pair where it can be, and pushes out the older of the two.

    A key costs 8 bytes there. Most crawls are small: the table begins as a 64th of itself, and anew when that is full.
    A key may enter only after the frontier has it for good: otherwise a crash between would lose the link."""

    def __init__(self, size: int = 2_000_000) -> None:
        self._most_pairs = max(1, size // 2)
        self._hot: set[int] = set()
        """Those that were met of late: most links of most pages are among them."""
        self.clear()

    def unknown(self, keys: Iterable[int]) -> set[int]:
        """Those of these keys that may be new."""
        cold = set(keys).difference(self._hot)
        table, pairs = self._table, self._pairs
        new = {key for key in cold if not key or (table[at := key % pairs * 2] != key and table[at + 1] != key)}
        self._hot.update(cold.difference(new))
        return new

    def update(self, keys: Iterable[int]) -> None:
        keys = tuple(keys)
        if self._entered > self._pairs and self._pairs < self._most_pairs:
            self._make(self._most_pairs)
        table, pairs = self._table, self._pairs
        for key in keys:
            at = key % pairs * 2
            young = table[at]
            if young != key:
                table[at + 1] = young
                table[at] = key
                self._entered += 1
        if len(self._hot) > _HOT:
            self._hot.clear()
        self._hot.update(keys)

    def clear(self) -> None:
        """Forget all: after a reconnect nobody knows what the frontier still has."""
        self._hot.clear()
        self._make(-(-self._most_pairs // _FIRST_PART))

    def _make(self, pairs: int) -> None:
        self._pairs = pairs
        self._table = memoryview(bytearray(self._pairs * 16)).cast("Q")
        self._entered = 0
