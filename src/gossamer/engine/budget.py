"""Budget of a page: a meter for its cost, and a guard that interrupts a spider which exceeds its limit.

A spider is user code in the event loop of a worker. While it runs, no lease is renewed and no other site is fetched; a
handler that never returns would cost the worker all its leases. So each page has a budget, and a slice of it in the
worker itself (`engine/guarded_parsing.py`).

The guard arms an interval timer (SIGALRM) around each synchronous step of a page's extraction, and nothing else. Its
signal handler raises into the Python code of that step, never into the event loop. That interrupts loops, generators,
`time.sleep`, and regular expressions. It does not interrupt C code that never checks for signals, nor Python code in
another thread than the main one, where signal handlers do not run. For C code there are processes that can be killed:
`engine/parser_pool.py` and `jobs/watchdog.py`.

The interruption is a BaseException, and is raised again at every tick while the step goes on, so neither `except
Exception` nor a looping `finally` can hold it off. `_inside` is the only switch: the handler raises nothing unless it
is set, and it is cleared before the timer is, so a late signal never raises into the loop. Time of other processes is
not charged: parsing is measured in CPU time, and handlers in wall-clock time, since they may wait.

At a stop, all pages in hand together have half a second left, and then end as `Interrupted`: they count as not fetched,
and the next run fetches them again."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

from gossamer.errors import TooCostly
from gossamer.settings import Settings

Value = TypeVar("Value")
_TICK_SECONDS = 0.1
"""Seconds between checks of the meter, and between interruptions of a spider that catches the first one."""
_LAST_SECONDS = 0.5
"""Seconds that the pages in hand have left at a stop."""
_MOMENT_SECONDS = 0.01
"""Seconds for a page that begins after that."""
_MB = 1_000_000


class Interrupted(Exception):
    """The crawl ends and the page's extraction was interrupted: the page counts as not fetched."""


class Slow(Exception):
    """A page took longer than this process can wait for it."""


class _Cut(BaseException):
    """Raised into a spider; not an Exception, so that `except Exception` in a handler does not swallow it."""


class PageMeter(Protocol):
    """The limits of one page, and what it has used of them."""

    first_seconds: float
    """Seconds until the first check."""
    handler_seconds: float
    """Max wall-clock seconds of an asynchronous handler, including everything that it waits for."""

    def handling(self, begins: bool) -> None:
        """Record that the spider's handler begins or ends; everything else is parsing."""
        ...

    def excess(self) -> Exception | None:
        """Return the error if the page has exceeded its limit; else None."""
        ...


class Budget:
    """The whole budget of one page: CPU time for parsing, and wall-clock time for the handler."""

    first_seconds = _TICK_SECONDS

    def __init__(self, settings: Settings, size: int) -> None:
        self._parse_seconds = parse_seconds(settings, size)
        self.handler_seconds = settings.handler_seconds
        self._cpu_began = time.thread_time()
        self._handler_began = 0.0
        self._handler_cpu = 0.0

    def handling(self, begins: bool) -> None:
        """The handler's CPU time is not charged to parsing."""
        if begins:
            self._handler_began, self._handler_cpu = time.monotonic(), time.thread_time() - self._handler_cpu
        else:
            self._handler_began, self._handler_cpu = 0.0, time.thread_time() - self._handler_cpu

    def excess(self) -> Exception | None:
        """Return an error that names the limit and the setting that raises it."""
        if self._handler_began:
            over = time.monotonic() - self._handler_began > self.handler_seconds
            return handler_overdue(self.handler_seconds) if over else None
        spent = time.thread_time() - self._cpu_began - self._handler_cpu
        return parse_overdue(self._parse_seconds) if spent > self._parse_seconds else None


class Slice:
    """The part of its budget that a page may use in the worker itself, where other sites wait meanwhile."""

    def __init__(self, settings: Settings, seconds: float) -> None:
        self.first_seconds = seconds
        self.handler_seconds = settings.handler_seconds
        self._began = time.monotonic()
        self._cpu_began = time.thread_time()

    def handling(self, begins: bool) -> None:
        """Do nothing: a slice covers parsing and handler together."""

    def excess(self) -> Exception | None:
        """Return Slow when the CPU time is used up, or twice that on the clock: a busy machine takes some of it."""
        spent, passed = time.thread_time() - self._cpu_began, time.monotonic() - self._began
        return Slow() if spent >= 0.9 * self.first_seconds or passed >= 2 * self.first_seconds else None


def parse_seconds(settings: Settings, size: int) -> float:
    """Return the CPU seconds that parsing a page of this size may take."""
    return settings.parse_seconds + settings.parse_seconds_per_mb * size / _MB


def hard_seconds(settings: Settings, size: int) -> float:
    """Return the CPU seconds after which a parser process is killed, because it did not keep its own limits."""
    return parse_seconds(settings, size) + settings.handler_seconds + 1.0


def parse_overdue(seconds: float) -> TooCostly:
    return TooCostly(f"parsing took more than {seconds:.3g} s of CPU; --parse-seconds raises the limit")


def handler_overdue(seconds: float) -> TooCostly:
    return TooCostly(f"the handler took more than {seconds:.3g} s; --handler-seconds raises the limit")


def hung(settings: Settings, size: int) -> TooCostly:
    seconds = hard_seconds(settings, size)
    return TooCostly(
        f"it took more than {seconds:.3g} s, and its process had to be killed; "
        "--parse-seconds and --handler-seconds raise the limit"
    )


def too_many_items(most: int) -> TooCostly:
    return TooCostly(f"the handler yielded more than {most:,} items; --handler-items raises the limit")


class Guard:
    """Runs coroutines step by step, and interrupts a step that exceeds the limit of its meter.

    Without signals (in another thread than the main one, or in a program that uses SIGALRM itself) it runs them without
    limits. With `hard`, the kernel kills this process (SIGVTALRM) when one step uses that much CPU time."""

    def __init__(self) -> None:
        self._handler = self._tick
        self._inside = False
        self._meter: PageMeter | None = None
        self._cut: Exception | None = None
        self._stop_at: float | None = None
        self._waiting: set[asyncio.Timeout] = set()
        self._began = 0.0
        self._before: Any = None
        self._is_ours = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")

    @property
    def is_stopping(self) -> bool:
        """Return whether the crawl is stopping, so that no page should begin."""
        return self._stop_at is not None

    def stop(self) -> None:
        """Give the pages in hand a moment, then interrupt them. A signal handler may call this."""
        if self._stop_at is None:
            self._stop_at = time.monotonic()
            if self._inside:
                signal.setitimer(signal.ITIMER_REAL, _LAST_SECONDS, _TICK_SECONDS)

    def hurry(self) -> None:
        """Give handlers that wait for something a moment, then interrupt them; called in the event loop."""
        self.stop()
        for limit in self._waiting:
            limit.reschedule(asyncio.get_running_loop().time() + _LAST_SECONDS)

    async def drive(self, work: Coroutine[Any, Any, Value], meter: PageMeter, *, hard: float = 0.0) -> Value:
        """Return the result of `work`, or raise the error of the meter."""
        try:
            waits_for = self._step(work.send, None, meter, hard)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        # Only handlers that wait for something get here, and need a wall-clock limit.
        seconds = meter.handler_seconds if self._stop_at is None else _MOMENT_SECONDS
        try:
            async with asyncio.timeout(seconds) as limit:
                self._waiting.add(limit)
                return await self._rest(work, waits_for, meter, hard)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Interrupted if self._stop_at is not None else handler_overdue(seconds) from None
        finally:
            self._waiting.discard(limit)

    @types.coroutine
    def _rest(
        self, work: Coroutine[Any, Any, Value], waits_for: Any, meter: PageMeter, hard: float
    ) -> Generator[Any, Any, Value]:
        """Run the remaining steps of suspended work."""
        while True:
            step: Callable[[Any], Any] = work.send
            try:
                value = yield waits_for
            except BaseException as error:
                step, value = work.throw, error
            try:
                waits_for = self._step(step, value, meter, hard)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def _step(self, step: Callable[[Any], Any], value: Any, meter: PageMeter, hard: float) -> Any:
        if self._inside or not self._has_timer():
            return step(value)
        first = meter.first_seconds
        if self._stop_at is not None:
            # Pages that are handled after a stop share the remaining time.
            first = min(first, max(_MOMENT_SECONDS, self._stop_at + _LAST_SECONDS - time.monotonic()))
        self._meter, self._cut, self._began = meter, None, time.monotonic()
        if hard:
            signal.setitimer(signal.ITIMER_VIRTUAL, hard)
        try:
            try:
                self._inside = True
                signal.setitimer(signal.ITIMER_REAL, first, _TICK_SECONDS)
                return step(value)
            finally:
                # The interpreter checks for signals at the end of calls: not between the last call and this line, and
                # after this line the signal handler raises nothing.
                self._inside = False
                signal.setitimer(signal.ITIMER_REAL, 0.0)
        except _Cut:
            assert self._cut is not None
            raise self._cut from None
        finally:
            if hard:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def _has_timer(self) -> bool:
        """Return whether SIGALRM is ours or unused; a handler of the program is left alone."""
        if not self._is_ours:
            return False
        found = signal.getsignal(signal.SIGALRM)
        if found is self._handler:
            return True
        owner = getattr(found, "__self__", None)
        if found not in (signal.SIG_DFL, signal.SIG_IGN, None) and not isinstance(owner, Guard):
            return False
        if threading.current_thread() is not threading.main_thread():
            return False
        signal.signal(signal.SIGALRM, self._handler)
        return True

    def _tick(self, _number: int, _frame: object) -> None:
        """Raise into the current step if its meter is exceeded, and again at each tick while it goes on."""
        if not self._inside or self._meter is None:
            return
        if self._cut is None:
            stop_at = (
                None if self._stop_at is None else max(self._stop_at + _LAST_SECONDS, self._began + _MOMENT_SECONDS)
            )
            has_to_stop = stop_at is not None and time.monotonic() >= stop_at
            self._cut = Interrupted() if has_to_stop else self._meter.excess()
        if self._cut is not None:
            raise _Cut

    def close(self) -> None:
        """Release SIGALRM."""
        if self._is_ours and signal.getsignal(signal.SIGALRM) is self._handler:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
