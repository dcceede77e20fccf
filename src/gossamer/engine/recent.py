"""A bounded memory of keys that the frontier has acknowledged, so that most repeated links never travel."""

from __future__ import annotations

from collections.abc import Iterable


class Recent:
    """The last keys, in two generations: when the young one is full, the old one is forgotten.

    A key may enter only after the frontier has it for good: otherwise a crash between would lose the link."""

    def __init__(self, size: int = 200_000) -> None:
        self._half = max(1, size // 2)
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __contains__(self, key: int) -> bool:
        return key in self._young or key in self._old

    def update(self, keys: Iterable[int]) -> None:
        self._young.update(keys)
        if len(self._young) >= self._half:
            self._old, self._young = self._young, set()

    def clear(self) -> None:
        """Forget all: after a reconnect nobody knows what the frontier still has."""
        self._young, self._old = set(), set()
