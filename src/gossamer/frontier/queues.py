"""The queues of a site: its requests in memory, in the order in which they are to be fetched."""

from __future__ import annotations

import random
from array import array
from bisect import insort
from collections.abc import Iterable, Iterator

from gossamer.frontier import policy


class Level:
    """Requests of one rank: 8 bytes each."""

    __slots__ = ("head", "ids")

    def __init__(self) -> None:
        self.ids = array("q")
        self.head = 0

    def __len__(self) -> int:
        return len(self.ids) - self.head

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids[self.head :])

    def pop(self, strategy: str) -> int:
        if strategy == "dfs":
            return self.ids.pop()
        if strategy == "random":
            pick = random.randrange(self.head, len(self.ids))
            self.ids[pick], self.ids[self.head] = self.ids[self.head], self.ids[pick]
        found = self.ids[self.head]
        self.head += 1
        if self.head > 256 and self.head * 2 > len(self.ids):
            del self.ids[: self.head]
            self.head = 0
        return found


class Queue:
    """A site's requests in the order in which they are to be fetched."""

    __slots__ = ("front", "levels", "ranks", "size")

    def __init__(self) -> None:
        self.front: list[int] = []
        self.levels: dict[int, Level] = {}
        self.ranks: list[int] = []
        self.size = 0

    def push(self, number: int, rank: int) -> None:
        self.size += 1
        if rank == policy.HEAD:
            self.front.append(number)
            return
        level = self.levels.get(rank)
        if level is None:
            level = self.levels[rank] = Level()
            insort(self.ranks, rank)
        level.ids.append(number)

    def put_back(self, numbers: Iterable[int]) -> None:
        """Return requests to the head, in their old order."""
        returned = list(numbers)
        self.front.extend(reversed(returned))
        self.size += len(returned)

    def pop(self, strategy: str) -> int:
        self.size -= 1
        if self.front:
            return self.front.pop()
        rank = self.ranks[0]
        level = self.levels[rank]
        found = level.pop(strategy)
        if not level:
            del self.levels[rank], self.ranks[0]
        return found

    def discard(self, number: int) -> bool:
        """Take one request out, wherever it stands: slow, for the rare case. Whether it was there."""
        if number in self.front:
            self.front.remove(number)
            self.size -= 1
            return True
        for rank, level in self.levels.items():
            if number in level:
                del level.ids[level.ids.index(number, level.head)]
                self.size -= 1
                if not level:
                    del self.levels[rank]
                    self.ranks.remove(rank)
                return True
        return False

    def clear(self) -> int:
        dropped = self.size
        self.front.clear()
        self.levels.clear()
        self.ranks.clear()
        self.size = 0
        return dropped
