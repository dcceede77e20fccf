"""Idle workers in a line: when something comes up, only as many are woken as it takes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from gossamer.model import Grant

_GRACE_SECONDS = 0.05


class WaitQueue:
    """Who waits for work. The first waits until something is due; when it goes for that, the next is the first.

    Whoever was sent may die on the way, or may not have what is due: then the next one follows a moment later."""

    def __init__(self, due_in: Callable[[], float], news: Callable[[], int]) -> None:
        self._due_in = due_in
        self._news = news
        self._turns: OrderedDict[asyncio.Event, bool] = OrderedDict()
        """Who waits -> whether it was sent."""
        self._calls = 0

    def __len__(self) -> int:
        return len(self._turns)

    async def wait(self, grant: Grant) -> None:
        """Return when this worker should ask again."""
        loop, calls, turn = asyncio.get_running_loop(), self._calls, asyncio.Event()
        asks_at, grace = float("inf") if grant.wait is None else loop.time() + grant.wait, 0.0
        self._turns[turn] = False
        try:
            while self._calls == calls and not self._turns[turn]:
                pause, is_first = None, self._is_first(turn)
                if is_first:
                    due_in = self._due_in()
                    if due_in <= 0:
                        # It may not have what is due, if it was told to wait and there was no news: so it was told.
                        due_in = max(grace, asks_at - loop.time()) if self._news() == grant.news else grace
                    pause = None if due_in == float("inf") else due_in
                turn.clear()
                try:
                    async with asyncio.timeout(pause):
                        await turn.wait()
                except TimeoutError:
                    if self._due_in() <= 0 or loop.time() >= asks_at:
                        return
                grace = 0.0 if is_first else _GRACE_SECONDS
        finally:
            was_first = self._is_first(turn)
            del self._turns[turn]
            if was_first:
                self.look()

    def look(self) -> None:
        """The next thing may be due at another time than before."""
        if (first := next(iter(self._turns), None)) is not None:
            first.set()

    def send(self) -> None:
        """Let one more ask."""
        if (turn := next((turn for turn, is_sent in self._turns.items() if not is_sent), None)) is not None:
            self._turns[turn] = True
            turn.set()

    def call(self) -> None:
        """Let everybody ask."""
        self._calls += 1
        for turn in self._turns:
            turn.set()

    def _is_first(self, turn: asyncio.Event) -> bool:
        return next(iter(self._turns)) is turn
