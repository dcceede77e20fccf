"""Which of many records are the last word on their page, found in bounded memory."""

from __future__ import annotations

import tempfile
from array import array
from typing import IO

_BUCKETS = 64
_HELD_ENTRIES = 16_384
"""Of each bucket in memory, three numbers a record; what is more goes to files that nobody else sees."""


class LastWords:
    """Told key and token of every record in turn, it says which of them count: of each key the highest token.

    Of two with the same token, which a repeated commit leaves behind, the first counts."""

    def __init__(self) -> None:
        self._held = [array("Q") for _ in range(_BUCKETS)]
        self._files: list[IO[bytes] | None] = [None] * _BUCKETS
        self._count = 0

    def add(self, key: int, token: int) -> None:
        """The next record."""
        bucket = key % _BUCKETS
        held = self._held[bucket]
        held.extend((key, token, self._count))
        self._count += 1
        if len(held) >= 3 * _HELD_ENTRIES:
            file = self._files[bucket]
            if file is None:
                file = self._files[bucket] = tempfile.TemporaryFile()  # noqa: SIM115
            held.tofile(file)
            del held[:]

    def settled(self) -> bytearray:
        """A byte for each record that was added, 1 if it counts. May be asked once."""
        counts = bytearray(self._count)
        for bucket in range(_BUCKETS):
            best: dict[int, tuple[int, int]] = {}
            entries = self._entries(bucket)
            for place in range(0, len(entries), 3):
                key, token, number = entries[place : place + 3]
                known = best.get(key)
                if known is None or token > known[0]:
                    best[key] = (token, number)
            for _, number in best.values():
                counts[number] = 1
        return counts

    def _entries(self, bucket: int) -> array[int]:
        entries, file = array("Q"), self._files[bucket]
        if file is not None:
            with file:
                file.seek(0)
                entries.frombytes(file.read())
        entries.extend(self._held[bucket])
        del self._held[bucket][:]
        return entries


def visit_of(key: int, token: int) -> int:
    """Key and token as one number of 64 bits."""
    return (key * 0x9E3779B97F4A7C15 + token) % (1 << 64)
