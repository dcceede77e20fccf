"""Opens and closes a spider and its pipelines, in each process that runs them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from gossamer.engine.budget import Guard, Interrupted
from gossamer.engine.supervision import LEAVE
from gossamer.errors import ExtractError, GossamerError
from gossamer.extract.spider import Spider

log = logging.getLogger("gossamer.engine")


class Lifecycle:
    """Calls `open()` of the spider and of each pipeline in order, and `close()` in reverse; a context manager.

    Both may be plain or `async`, and run in the thread and event loop of the handlers. Only opened parts are closed,
    and all of them are, even if a `close()` raises. An error is an ExtractError, or the GossamerError that was raised.
    While another error is handled, an error of `close()` is logged, so that it does not hide the first."""

    def __init__(self, spider: Spider, pipelines: Iterable[Any] = ()) -> None:
        # A class is called to make an item, so there is no object to open.
        self._parts = [spider, *(each for each in pipelines if not isinstance(each, type))]
        self._opened: list[Any] = []
        self._limit: asyncio.Timeout | None = None
        self._is_stopping = False

    def stop(self) -> None:
        """Cancel an `open()` that still waits for something; it then counts as not opened."""
        self._is_stopping = True
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def open(self) -> None:
        """Open all parts. If one fails, those before it are closed again.

        Raises Interrupted after `stop`."""
        limit = self._limit = asyncio.timeout(None)
        try:
            async with limit:
                if self._is_stopping:
                    raise Interrupted
                for part in self._parts:
                    await _call(part, "open")
                    self._opened.append(part)
        except BaseException as error:
            was_stopped = isinstance(error, TimeoutError) and limit.expired()
            await self._close_after(error)
            if was_stopped:
                raise Interrupted from None
            raise
        finally:
            self._limit = None

    async def close(self) -> None:
        """Close the opened parts; then raise the first error."""
        first: BaseException | None = None
        while self._opened:
            try:
                await _call(self._opened.pop(), "close")
            # Including a second Ctrl-C, which cancels: the others are still closed.
            except BaseException as error:
                if first is not None:
                    log.error("%s", error)
                first = first or error
        if first is not None:
            raise first

    async def _close_after(self, error: BaseException | None) -> None:
        try:
            await self.close()
        except GossamerError as failure:
            if error is None:
                raise
            log.error("%s", failure)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: types.TracebackType | None
    ) -> None:
        await self._close_after(error)


async def _call(part: Any, name: str) -> None:
    method = getattr(part, name, None)
    if not callable(method):
        return
    try:
        with _unwatched():
            result = method()
        if inspect.isawaitable(result):
            await _by_steps(result.__await__())
    except GossamerError:
        raise
    except Exception as error:  # it is the user's code, and may raise anything
        what = f"{getattr(part, '__name__', type(part).__name__)}.{name}() raised {type(error).__name__}: {error}"
        raise ExtractError(f"{what}{_place(error)}") from error


def leave_on_signal(guard: Guard, loop: asyncio.AbstractEventLoop) -> None:
    """Make the signal LEAVE interrupt the page in hand, and later ones."""

    def leave(*_: object) -> None:
        guard.stop()
        loop.call_soon_threadsafe(guard.hurry)

    signal.signal(LEAVE, leave)


@types.coroutine
def _by_steps(work: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
    """Run to the end; the watchdog counts only the time between the steps."""
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            with _unwatched():
                waits_for = step(value)
        except StopIteration:
            return
        try:
            step, value = work.send, (yield waits_for)
        except BaseException as error:
            step, value = work.throw, error


@contextmanager
def _unwatched() -> Iterator[None]:
    """Hide signals from the watchdog, which kills a process that ignores them for 1.5 s.

    A page may be killed and fetched again; a `close()` that writes collected data may not. Python's signal handlers run
    as always, and a second signal ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)


def _place(error: BaseException) -> str:
    """Return where in the user's method the error came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno})" if trace is not None else ""
