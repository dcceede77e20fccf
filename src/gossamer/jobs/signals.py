"""Signals of a crawl: the first drains, the second leaves at once, and exits run `atexit` handlers."""

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
"""What closing may take after the second signal."""


def end_now(code: int) -> NoReturn:
    """End the process without waiting for its threads; functions that wait for its exit are called."""
    with suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


class _Signals:
    """The first signal drains, the second cancels `task`; whatever then stands in the way, the process ends soon."""

    def __init__(self, stop: Callable[[int], None], interrupt: Callable[[], None], *, only_first: bool) -> None:
        self._only_first = only_first
        self._stop = stop
        self._interrupt = interrupt
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._presses = 0
        self.has_left = False
        self.is_over = False
        """Whether the block has ended: what the task does then is done in a moment."""

    def handle(self, number: int, _frame: object) -> None:
        """Runs between any two instructions: what is more than a note is left to the loop."""
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
    """Have the first SIGINT or SIGTERM call `stop`, and the second cancel this task, which is then interrupted.

    `interrupt` is called within the signal handler: a spider that is at work may hold off the loop. With the
    `settings` of a job, a process beside this one sees to it that signals are looked at.

    Without `ctrl_c`, this is a worker of a supervisor, which gets Ctrl-C and a second signal itself: where a process
    manager sends SIGTERM to all processes, a worker gets one more from its supervisor."""
    signals = _Signals(stop, interrupt, only_first=not ctrl_c)
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, signals.handle)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signals.handle if ctrl_c else signal.SIG_IGN)
    try:
        async with watched(settings) if settings is not None else nullcontext():
            yield
    except BaseException:
        # What could not be stored or closed in the middle of its work says so: that is what was asked for.
        if signals.has_left:
            raise KeyboardInterrupt from None
        raise
    finally:
        signals.is_over = True
        for number, handler in before.items():
            signal.signal(number, handler)


@asynccontextmanager
async def watched(settings: Settings) -> AsyncIterator[None]:
    """Empty the socket that the interpreter writes signals into, under the eyes of the watchdog."""
    loop = asyncio.get_running_loop()
    ours, written = socket.socketpair()
    ours.setblocking(False)
    written.setblocking(False)
    dog = _start_watchdog(ours, settings)

    said = dog.stdin
    assert said is not None

    def empty() -> None:
        with suppress(BlockingIOError):
            ours.recv(4096)
        with suppress(OSError):
            os.write(said.fileno(), b".")

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
        # It ends by itself when the pipe does.
        said.close()
        dog.wait()


def _start_watchdog(peeked: socket.socket, settings: Settings) -> subprocess.Popen[bytes]:
    seconds = settings.parse_seconds + settings.handler_seconds
    with suppress(OSError, ValueError, AttributeError, RuntimeError):
        # stderr may be no file.
        faulthandler.register(signal.SIGVTALRM, chain=True)
    command = [sys.executable, "-I", "-S", str(Path(watchdog.__file__))]
    arguments = [str(os.getpid()), str(peeked.fileno()), str(seconds)]
    own: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "pass_fds": (peeked.fileno(),)}
    return subprocess.Popen([*command, *arguments], **own)
