"""What a page may cost: the meter of one page, and the guard that interrupts a spider which passes its limit.

The guard arms an interval timer (SIGALRM) around each synchronous step of a page's extraction, and only around that:
its signal handler raises into Python code of that step, never into the event loop. Loops, generators, `time.sleep` and
regular expressions are interrupted so. Code in C that does not look at signals is not; nor is Python code in another
thread than the main one, where no signal handler runs. For the first there are processes that can be killed:
`engine/parser_pool.py` and `watchdog.py`."""

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
"""Time to the next look at the meter, and to the next interruption where a spider catches the first."""
_LAST_SECONDS = 0.5
"""What a page that is being handled when the crawl is to end may still take."""
_MOMENT_SECONDS = 0.01
"""The same for one that begins later still."""
_MB = 1_000_000


class Interrupted(Exception):
    """The crawl is to end, and the page's extraction was cut off: it counts as not fetched."""


class Slow(Exception):
    """A page took longer than this process can wait for it."""


class _Cut(BaseException):
    """Raised into a spider; not an Exception, so that `except Exception` in a handler does not swallow it."""


class PageMeter(Protocol):
    """What a page may take."""

    first_seconds: float
    """Time to the first look at it."""
    handler_seconds: float
    """Limit of an asynchronous handler, with all that it waits for."""

    def handling(self, begins: bool) -> None:
        """The spider's handler begins or ends; all else is parsing."""
        ...

    def excess(self) -> Exception | None:
        """The error of a page that has passed its limit."""
        ...


class Budget:
    """The whole budget of one page: CPU time to parse it, and time on the clock for the handler."""

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
        """The limit that was passed, with the setting that raises it."""
        if self._handler_began:
            over = time.monotonic() - self._handler_began > self.handler_seconds
            return handler_overdue(self.handler_seconds) if over else None
        spent = time.thread_time() - self._cpu_began - self._handler_cpu
        return parse_overdue(self._parse_seconds) if spent > self._parse_seconds else None


class Slice:
    """The part of its budget that a page may use in the worker itself, whose other sites wait meanwhile."""

    def __init__(self, settings: Settings, seconds: float) -> None:
        self.first_seconds = seconds
        self.handler_seconds = settings.handler_seconds
        self._began = time.monotonic()
        self._cpu_began = time.thread_time()

    def handling(self, begins: bool) -> None:
        """The slice makes no difference."""

    def excess(self) -> Exception | None:
        """On a busy machine time passes without us: on the clock a page may take twice as long."""
        spent, passed = time.thread_time() - self._cpu_began, time.monotonic() - self._began
        return Slow() if spent >= 0.9 * self.first_seconds or passed >= 2 * self.first_seconds else None


def parse_seconds(settings: Settings, size: int) -> float:
    """CPU seconds that parsing a page of this size may take."""
    return settings.parse_seconds + settings.parse_seconds_per_mb * size / _MB


def hard_seconds(settings: Settings, size: int) -> float:
    """CPU seconds after which a process that parses a page is killed: it has not looked at its own limits."""
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
    """Runs coroutines step by step, and interrupts a step that passes the limit of its meter.

    Where signals cannot be had it runs them as they are: in another thread than the main one, or in a program that
    uses SIGALRM itself. `hard` has the kernel kill this process when a step burns that much CPU without looking up."""

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
        """Whether nothing more is to begin."""
        return self._stop_at is not None

    def stop(self) -> None:
        """The crawl is to end: pages in hand have a moment left. May be called by a signal handler."""
        if self._stop_at is None:
            self._stop_at = time.monotonic()
            if self._inside:
                signal.setitimer(signal.ITIMER_REAL, _LAST_SECONDS, _TICK_SECONDS)

    def hurry(self) -> None:
        """The same for handlers that wait for something."""
        self.stop()
        for limit in self._waiting:
            limit.reschedule(asyncio.get_running_loop().time() + _LAST_SECONDS)

    async def drive(self, work: Coroutine[Any, Any, Value], meter: PageMeter, *, hard: float = 0.0) -> Value:
        """The result of `work`, or the error of the meter."""
        try:
            waits_for = self._step(work.send, None, meter, hard)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        # Most spiders never come here: only one that waits for something needs a limit on that.
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
        """Go on with work that has suspended."""
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
            # What is still fetched while the crawl ends must not take long either, all of it together.
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
                # The interpreter looks for signals at the end of calls: between the last one and this line it does not,
                # and after this line the signal handler raises nothing.
                self._inside = False
                signal.setitimer(signal.ITIMER_REAL, 0.0)
        except _Cut:
            assert self._cut is not None
            raise self._cut from None
        finally:
            if hard:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def _has_timer(self) -> bool:
        """Whether ticks reach us; a handler of somebody else is left alone."""
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
        """Raise into the step that is under way, again and again while it goes on."""
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
        """Leave SIGALRM as it was found."""
        if self._is_ours and signal.getsignal(signal.SIGALRM) is self._handler:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
