"""Virtual time: an asyncio event loop whose clock jumps to the next timer, and simulated processes in it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")
_STEP_SECONDS = 1e-6
START_EPOCH = 1_767_225_600.0
"""Start of 2026, in epoch seconds."""


class LoopClock:
    """A clock that returns the time of the running loop: virtual inside `run`."""

    def __init__(self, epoch: float = START_EPOCH) -> None:
        self._epoch = epoch

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def epoch(self) -> float:
        return self._epoch + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Jumping(selectors.BaseSelector):
    """A selector that advances the loop's time instead of sleeping, unless real work is in progress."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._real = selectors.DefaultSelector()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._loop.is_closed_in and timeout is not None and not self._loop.busy:
            # A step takes time, as in real time: otherwise a wait below the timer's resolution would never end.
            self._loop.jump(max(_STEP_SECONDS, timeout))
            return []
        if timeout is None or timeout <= 0:
            return self._real.select(timeout)
        if self._loop.busy:
            return self._real.select(None)
        # Code that uses sockets may sleep before a retry: then time passes as in real time.
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
    """An asyncio event loop in virtual time: sleeps, timeouts, and timers.

    Time stands still during work in threads and during socket calls made with `patiently`. The loop waits
    `grace_seconds` of real time for other replies before a jump, and calls `before_jump` with its length."""

    is_closed_in = False
    """Whether there is no input from outside, so that polling for it can be skipped."""

    def __init__(
        self, *, start: float = 0.0, grace_seconds: float = 0.0, before_jump: Callable[[float], None] | None = None
    ) -> None:
        self._now = start
        self.grace_seconds = grace_seconds
        self.busy = 0
        self.calling = 0
        self._before_jump = before_jump
        super().__init__(_Jumping(self))
        # Floats cannot represent months with nanosecond precision: a timer missed by the last digit would never fire.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Advance the time."""
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
    """Await a socket call while virtual time stands still."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        return await call
    loop.calling += 1
    try:
        return await call
    finally:
        loop.calling -= 1


def run(main: Coroutine[Any, Any, T], *, start: float = 0.0, **options: Any) -> T:
    """Run a coroutine in virtual time, starting at `start`."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start=start, **options)) as runner:
        return runner.run(main)


Step = tuple[list[asyncio.Handle], Callable[..., Any], tuple[Any, ...], Context]


class Life:
    """A simulated process: all tasks in its context stop while it is frozen, as after SIGSTOP or SIGKILL.

    Nothing runs then, not even `finally` blocks. `fates` are the faults to inject, by the number of the step."""

    def __init__(self, name: str, loop: SimulatedLoop, fates: dict[int, Callable[[Life], None]] | None = None) -> None:
        self.name = name
        self.ended: asyncio.Future[bool] = loop.create_future()
        """Set to True when it is killed, and to False when its task ends."""
        self.cut_until = 0.0
        """Time until which it is disconnected from the frontier."""
        self.in_hand: Callable[[], int] = lambda: 0
        """Number of requests that it has leased and not completed."""
        self.handling = 0
        """Key of the page that crashes it."""
        self.context = Context()
        self.context.run(LIFE.set, self)
        self._loop = loop
        self._fates = fates or {}
        self._steps = 0
        self._frozen = False
        self._frozen_at = self._began_at = loop.time()
        self._kept: list[Step] = []

    @property
    def lived(self) -> float:
        """Seconds in which it was running."""
        return (self._frozen_at if self._frozen else self._loop.time()) - self._began_at

    @property
    def dead(self) -> bool:
        return self.ended.done() and self.ended.result()

    @property
    def is_cut(self) -> bool:
        return self.cut_until > self._loop.time()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task in this process."""
        return self._loop.create_task(work, context=self.context)

    def step(self, handle: list[asyncio.Handle], call: Callable[..., Any], args: tuple[Any, ...], on: Context) -> None:
        """Run one step, or queue it while frozen."""
        if not self._frozen and not self._loop.over:
            self._steps += 1
            if fate := self._fates.get(self._steps):
                fate(self)
        if self._frozen and not self._loop.over:
            self._kept.append((handle, call, args, on))
        else:
            # The handle and this list reference each other: break the cycle, so that both are freed without the GC.
            handle.clear()
            call(*args)

    def kill(self) -> None:
        """Kill it: none of its tasks runs again."""
        self._freeze()
        if not self.ended.done():
            self.ended.set_result(True)

    def end(self) -> None:
        """Record its normal end."""
        if not self.ended.done():
            self.ended.set_result(False)

    def pause(self, seconds: float) -> None:
        """Freeze it for some seconds."""
        self._freeze()
        self._loop.call_later(seconds, self._resume, context=Context())

    def _freeze(self) -> None:
        if not self._frozen:
            self._frozen, self._frozen_at = True, self._loop.time()

    def _resume(self) -> None:
        if not self.dead:
            self.thaw()

    def thaw(self) -> None:
        """Run the queued steps."""
        if self._frozen:
            self._frozen = False
            self._began_at += self._loop.time() - self._frozen_at
        kept, self._kept = self._kept, []
        for handle, call, args, on in kept:
            if not handle[0].cancelled():
                self._loop.call_soon(call, *args, context=on)


LIFE: ContextVar[Life | None] = ContextVar("life", default=None)


class SimulatedLoop(VirtualLoop):
    """A virtual loop in which every step belongs to a simulated process or to the environment."""

    is_closed_in = True
    over = False
    """Set at the end, when tasks of dead processes run again so that they can be canceled."""

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        context = copy_context() if context is None else context
        life = context.get(LIFE)
        if life is None:
            return super().call_soon(callback, *args, context=context)
        handle: list[asyncio.Handle] = []
        handle.append(super().call_soon(life.step, handle, callback, args, context, context=context))
        return handle[0]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        life = context.get(LIFE)
        if life is None:
            return super().call_at(when, callback, *args, context=context)
        handle: list[asyncio.Handle] = []
        timer = super().call_at(when, life.step, handle, callback, args, context, context=context)
        handle.append(timer)
        return timer


def give_up(reply: asyncio.Future[Any], error: Exception) -> None:
    """Fail a pending future; cheaper than a timeout, of which a large simulation has millions."""
    if not reply.done():
        reply.set_exception(error)


class LifeClock:
    """The clock of one process: wall time is off by `skew_seconds`, and the rate is off by `drift`."""

    def __init__(self, loop: SimulatedLoop, *, epoch: float, skew_seconds: float = 0.0, drift: float = 0.0) -> None:
        self._loop = loop
        self._epoch = epoch + skew_seconds
        self._rate = 1.0 + drift

    def monotonic(self) -> float:
        return 1000.0 + self._loop.time() * self._rate

    def epoch(self) -> float:
        return self._epoch + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)
