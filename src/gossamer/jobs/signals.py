"""Signals of a crawl: the first drains, the second leaves at once, and exits run `atexit` handlers.

The first SIGINT or SIGTERM asks the crawl to drain: fetches under way are finished and stored. The second cancels it:
what was not stored is fetched again by the next run. Whatever blocks the way then, the process ends 1.2 seconds later.

The event loop can run neither of these while a spider occupies it. So the signal handler itself, which runs between two
instructions of the spider, first interrupts the page in hand; everything else is left to the loop, because a handler
may be called at any point, also in the middle of a lock. If the spider is in C code, even the handler is not called:
the watchdog, a process beside this one, notices that signals are not read and ends the process.

For that, the interpreter writes each signal's number into a socket (`set_wakeup_fd`). The loop empties it and writes a
byte to the watchdog's pipe; the watchdog peeks into the same socket from its side. The pipe also ties their lives: when
this process ends, however it ends, the pipe closes and the watchdog leaves.

A worker of a supervisor ignores Ctrl-C, which the terminal sends to all processes: the supervisor gets it, too, and
sends SIGTERM. It takes only the first SIGTERM, since it may get one from a process manager and one from its
supervisor."""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

from gossamer.jobs import watchdog
from gossamer.settings import Settings

INTERRUPTED = 130
_LAST_SECONDS = 1.2
"""Seconds that closing may take after the second signal."""


def end_now(code: int) -> NoReturn:
    """End the process without waiting for threads, which may hang; `atexit` functions run, and output is flushed."""
    with suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


class _Signals:
    """The first signal drains, the second cancels the task; if anything blocks that, a timer thread ends the
    process."""

    def __init__(self, stop: Callable[[int], None], interrupt: Callable[[], None], *, only_first: bool) -> None:
        self._only_first = only_first
        self._stop = stop
        self._interrupt = interrupt
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._presses = 0
        self.has_left = False
        self.is_over = False
        """Whether the block has ended: the task is not cancelled any more."""

    def handle(self, number: int, _frame: object) -> None:
        """Interrupt the page in hand, and leave the rest to the loop: this runs between any two instructions."""
        self._presses += 1
        self._interrupt()
        if self._presses > 1 and self._only_first:
            return
        if self._presses > 1:
            last = threading.Timer(_LAST_SECONDS, end_now, (INTERRUPTED,))
            last.daemon = True
            last.start()
            self._loop.call_soon_threadsafe(self._leave)
        else:
            self._loop.call_soon_threadsafe(self._stop, number)

    def _leave(self) -> None:
        self.has_left = True
        if self._task is not None and not self.is_over:
            self._task.cancel()


@asynccontextmanager
async def leaving(
    stop: Callable[[int], None],
    *,
    interrupt: Callable[[], None] = lambda: None,
    settings: Settings | None = None,
    ctrl_c: bool = True,
) -> AsyncIterator[None]:
    """Have the first SIGINT or SIGTERM call `stop`, and the second cancel this task: the block raises
    KeyboardInterrupt.

    `interrupt` is called within the signal handler, since a spider may block the loop. With the `settings` of a job, a
    watchdog runs beside this process. Without `ctrl_c`, this is a worker of a supervisor: SIGINT is ignored, and only
    the first SIGTERM counts. The handlers from before are restored at the end."""
    signals = _Signals(stop, interrupt, only_first=not ctrl_c)
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, signals.handle)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signals.handle if ctrl_c else signal.SIG_IGN)
    try:
        async with watched(settings) if settings is not None else nullcontext():
            yield
    except BaseException:
        # After a second signal, whatever failed in the middle of its work failed because of that.
        if signals.has_left:
            raise KeyboardInterrupt from None
        raise
    finally:
        signals.is_over = True
        for number, handler in before.items():
            signal.signal(number, handler)


@asynccontextmanager
async def watched(settings: Settings) -> AsyncIterator[None]:
    """Empty the socket of signals whenever the loop turns, and have a watchdog look whether that happens."""
    loop = asyncio.get_running_loop()
    ours, written = socket.socketpair()
    ours.setblocking(False)
    written.setblocking(False)
    process = _start_watchdog(ours, settings)

    pipe = process.stdin
    assert pipe is not None

    def empty() -> None:
        with suppress(BlockingIOError):
            ours.recv(4096)
        with suppress(OSError):
            os.write(pipe.fileno(), b".")

    before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    loop.add_reader(ours, empty)
    try:
        yield
    finally:
        loop.remove_reader(ours)
        signal.set_wakeup_fd(before)
        ours.close()
        written.close()
        faulthandler.unregister(signal.SIGVTALRM)
        # The watchdog ends when its pipe closes.
        pipe.close()
        process.wait()


def _start_watchdog(peeked: socket.socket, settings: Settings) -> subprocess.Popen[bytes]:
    seconds = settings.parse_seconds + settings.handler_seconds
    with suppress(OSError, ValueError, AttributeError, RuntimeError):
        # stderr may be no file.
        faulthandler.register(signal.SIGVTALRM, chain=True)
    command = [sys.executable, "-I", "-S", str(Path(watchdog.__file__))]
    arguments = [str(os.getpid()), str(peeked.fileno()), str(seconds)]
    own: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "pass_fds": (peeked.fileno(),)}
    return subprocess.Popen([*command, *arguments], **own)
