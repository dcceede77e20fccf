"""Lives: processes of a simulation, which can be stopped at any await, for a while or for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from gossamer.testing.virtual import VirtualLoop

Step = tuple[list[asyncio.Handle], Callable[..., Any], tuple[Any, ...], Context]


class Life:
    """A process: all that is started in its context stands still while it is frozen, as after SIGSTOP or SIGKILL.

    Nothing of it runs then, no `finally` either. `fates` are what befalls it, by the number of its step."""

    def __init__(self, name: str, loop: SimulatedLoop, fates: dict[int, Callable[[Life], None]] | None = None) -> None:
        self.name = name
        self.ended: asyncio.Future[bool] = loop.create_future()
        """True when it was killed, False when its task has come to an end."""
        self.cut_until = 0.0
        """Until then it is cut off from the frontier."""
        self.in_hand: Callable[[], int] = lambda: 0
        """How many requests it has leased and not settled."""
        self.handling = 0
        """The key of the page that kills it."""
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
        """Seconds in which it was neither frozen nor dead."""
        return (self._frozen_at if self._frozen else self._loop.time()) - self._began_at

    @property
    def dead(self) -> bool:
        return self.ended.done() and self.ended.result()

    @property
    def is_cut(self) -> bool:
        return self.cut_until > self._loop.time()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something as this process."""
        return self._loop.create_task(work, context=self.context)

    def step(self, handle: list[asyncio.Handle], call: Callable[..., Any], args: tuple[Any, ...], on: Context) -> None:
        """Make one step, or keep it while frozen."""
        if not self._frozen and not self._loop.over:
            self._steps += 1
            if fate := self._fates.get(self._steps):
                fate(self)
        if self._frozen and not self._loop.over:
            self._kept.append((handle, call, args, on))
        else:
            # The handle holds this list, and the list the handle: apart they go at once, without the garbage collector.
            handle.clear()
            call(*args)

    def kill(self) -> None:
        """Nothing of it happens any more."""
        self._freeze()
        if not self.ended.done():
            self.ended.set_result(True)

    def end(self) -> None:
        """It has come to its end by itself."""
        if not self.ended.done():
            self.ended.set_result(False)

    def pause(self, seconds: float) -> None:
        """Stand still for so long."""
        self._freeze()
        self._loop.call_later(seconds, self._resume, context=Context())

    def _freeze(self) -> None:
        if not self._frozen:
            self._frozen, self._frozen_at = True, self._loop.time()

    def _resume(self) -> None:
        if not self.dead:
            self.thaw()

    def thaw(self) -> None:
        """Make the steps that were kept."""
        if self._frozen:
            self._frozen = False
            self._began_at += self._loop.time() - self._frozen_at
        kept, self._kept = self._kept, []
        for handle, call, args, on in kept:
            if not handle[0].cancelled():
                self._loop.call_soon(call, *args, context=on)


LIFE: ContextVar[Life | None] = ContextVar("life", default=None)


class SimulatedLoop(VirtualLoop):
    """Virtual time, in which every step belongs to a life or to the world outside."""

    is_closed_in = True
    over = False
    """Once it is, the dead may rise, so that their tasks can be cancelled."""

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
    """End a wait with an error, unless it has ended: cheaper than a timeout, of which a large world has millions."""
    if not reply.done():
        reply.set_exception(error)


class LifeClock:
    """The clock of one process: its day is wrong by `skew_seconds`, and its seconds are too long or too short."""

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
