"""Virtual time: an event loop whose clock jumps to the next timer when everybody waits, so that weeks take seconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
START_EPOCH = 1_767_225_600.0
"""The first second of 2026."""


class LoopClock:
    """A clock that reads the time of the running loop: virtual inside `run`."""

    def __init__(self, epoch: float = START_EPOCH) -> None:
        self._epoch = epoch

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def epoch(self) -> float:
        return self._epoch + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Jumping(selectors.BaseSelector):
    """A selector that does not sleep: it moves the loop's time on instead, unless something real is under way."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._real = selectors.DefaultSelector()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._loop.is_closed_in and timeout is not None and not self._loop.busy:
            self._loop.jump(max(0.0, timeout))
            return []
        if timeout is None or timeout <= 0:
            return self._real.select(timeout)
        if self._loop.busy:
            return self._real.select(None)
        # What is done over sockets may sleep before it tries again: then time passes as it does outside.
        ready = self._real.select(timeout if self._loop.calling else self._loop.grace_seconds)
        if not ready:
            self._loop.jump(timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def close(self) -> None:
        self._real.close()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.get_key(fileobj)

    def get_map(self) -> Any:
        return self._real.get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """All of asyncio in virtual time: sleeps, timeouts, timers.

    Work in threads is waited for, and so are calls over sockets that are made with `patiently`. Other answers are
    waited for `grace_seconds` of real time before a jump, and `before_jump` is told its length."""

    is_closed_in = False
    """Whether nothing comes from outside, so that looking for it is a waste of time."""

    def __init__(
        self, *, start: float = 0.0, grace_seconds: float = 0.0, before_jump: Callable[[float], None] | None = None
    ) -> None:
        self._now = start
        self.grace_seconds = grace_seconds
        self.busy = 0
        self.calling = 0
        self._before_jump = before_jump
        super().__init__(_Jumping(self))
        # Months are too large for nanoseconds: a timer that is missed by the last digit would never fire.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Move the time on."""
        if self._before_jump is not None:
            self._before_jump(seconds)
        self._now += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        self.busy += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self.busy -= 1


async def patiently(call: Awaitable[T]) -> T:
    """The answer to a call over sockets: meanwhile virtual time stands still."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        return await call
    loop.calling += 1
    try:
        return await call
    finally:
        loop.calling -= 1


def run(main: Coroutine[Any, Any, T], *, start: float = 0.0, **options: Any) -> T:
    """Run a coroutine in virtual time, which begins at `start`."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start=start, **options)) as runner:
        return runner.run(main)
