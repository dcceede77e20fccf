"""Patience: work that may take for ever until somebody says when its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_LEAST_SECONDS = 2.0


def grace(drain_seconds: float) -> float:
    """How long a stop may take: the time of the fetches that are under way, and as much again to store them."""
    return drain_seconds + max(_LEAST_SECONDS, drain_seconds)


class Deadline:
    """Without end at first; `end_in` gives all that is under way, and all that comes, one and the same end."""

    def __init__(self) -> None:
        self._ends_at: float | None = None
        self._under_way: set[asyncio.Timeout] = set()
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether the end has come."""
        if self._ends_at is None:
            return False
        return self._has_ended or asyncio.get_running_loop().time() >= self._ends_at

    def end_in(self, seconds: float) -> None:
        """Let it end in so many seconds, unless it ends before."""
        ends_at = asyncio.get_running_loop().time() + seconds
        if self._ends_at is None or ends_at < self._ends_at:
            self._ends_at = ends_at
            for timeout in self._under_way:
                timeout.reschedule(ends_at)

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Cancel what is inside when the end comes: then TimeoutError, and `is_over`."""
        timeout = asyncio.timeout_at(self._ends_at)
        try:
            async with timeout:
                self._under_way.add(timeout)
                try:
                    yield
                finally:
                    self._under_way.discard(timeout)
        finally:
            # A loop whose clock counts milliseconds may call a little before the end.
            self._has_ended = self._has_ended or timeout.expired()
