"""The bottom lines of a terminal, drawn over themselves, while everything else that is written goes above them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections import deque
from typing import NamedTuple, Self

from gossamer.logs import plain

_LINES_KEPT = 500
_PATIENCE_SECONDS = 1.0


class ScreenLine(NamedTuple):
    """A line as it is written, colours and all, and the columns that it takes."""

    text: str
    width: int


class Writer:
    """Writes to a descriptor in a thread of its own, so that a terminal that was stopped holds up nobody.

    Of lines a bounded number is kept, of frames only the newest. An error ends the writing, not the crawl."""

    def __init__(self, descriptor: int, encoding: str = "utf-8") -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._said: deque[str] = deque(maxlen=_LINES_KEPT)
        self._wanted: list[ScreenLine] | None = None
        self._shown: list[ScreenLine] = []
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Add a line for good, above the frame if there is one."""
        with self._changed:
            self._said.append(line)
            self._changed.notify()

    def draw(self, frame: list[ScreenLine]) -> None:
        """Replace the frame."""
        with self._changed:
            self._wanted = frame
            self._changed.notify()

    def forget(self) -> None:
        """Leave the frame where it is: somebody else has written since, and the next one starts below."""
        with self._changed:
            self._shown, self._wanted = [], None

    def close(self) -> bool:
        """Remove the frame, write what was said and end; False if the terminal would not take it in time."""
        with self._changed:
            self._wanted, self._closed = [], True
            self._changed.notify()
        self._thread.join(_PATIENCE_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        last = False
        while not last:
            with self._changed:
                while not (self._said or self._wanted is not None):
                    self._changed.wait()
                last = self._closed
                frame = self._shown if self._wanted is None else self._wanted
                text = self._compose(list(self._said), frame)
                self._said.clear()
                self._wanted, self._shown = None, frame
            try:
                self._write(text)
            except OSError:
                # Nobody reads any more, or the disk is full: the crawl does not depend on being watched.
                return

    def _compose(self, said: list[str], frame: list[ScreenLine]) -> str:
        if not frame and not self._shown:
            return "".join(f"{line}\n" for line in said)
        # Each line is written over the old one and then cut, so that nothing is ever blank in between.
        lines = "".join(f"{line}\x1b[K\n" for line in (*said, *(line.text for line in frame)))
        return f"{self._way_back()}\r{lines}\x1b[J"

    def _way_back(self) -> str:
        """To the first line of the old frame; a terminal made narrower has broken its lines in the meantime."""
        columns, _ = terminal_size(self._descriptor)
        rows = sum(1 + max(line.width - 1, 0) // columns for line in self._shown)
        return f"\x1b[{rows}A" if rows else ""

    def _write(self, text: str) -> None:
        data = memoryview(text.encode(self._encoding, "replace"))
        while data:
            data = data[os.write(self._descriptor, data) :]


class Screen:
    """A frame at the bottom of the terminal on stderr for as long as the block lasts; needs a running loop.

    All that this process and its children write to stderr meanwhile is caught, made harmless and shown above."""

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        sys.stderr.flush()
        self._terminal = os.dup(2)
        self._writer = Writer(self._terminal, sys.stderr.encoding)
        self._caught, write_end = os.pipe()
        os.set_blocking(self._caught, False)
        os.dup2(write_end, 2)
        os.close(write_end)
        self._rest = b""
        self._loop.add_reader(self._caught, self._catch)
        # After Ctrl-Z and fg the cursor is somewhere else.
        # Not by way of the loop, which would take the socket that tells the watchdog of signals.
        signal.signal(signal.SIGCONT, lambda *_: self._loop.call_soon_threadsafe(self._writer.forget))
        return self

    def __exit__(self, *_: object) -> None:
        sys.stderr.flush()
        os.dup2(self._terminal, 2)
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        self._loop.remove_reader(self._caught)
        self._catch()
        if self._rest:
            self._say(self._rest)
        os.close(self._caught)
        if self._writer.close():
            os.close(self._terminal)

    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal at this moment."""
        return terminal_size(self._terminal)

    def draw(self, frame: list[ScreenLine]) -> None:
        """Show the frame, unless the terminal belongs to another job now."""
        if in_background(self._terminal):
            self._writer.forget()
        else:
            self._writer.draw(frame)

    def _catch(self) -> None:
        while True:
            try:
                data = os.read(self._caught, 65536)
            except BlockingIOError:
                return
            if not data:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[:65536]
            for line in lines:
                self._say(line)

    def _say(self, line: bytes) -> None:
        self._writer.say(plain(line.decode("utf-8", "replace").rstrip("\r"), 8000))


def has_screen() -> bool:
    """Whether stderr is a terminal that can be drawn on, and ours to draw on."""
    drawable = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return sys.stderr is not None and drawable and os.isatty(2) and not in_background(2)


def terminal_size(descriptor: int) -> tuple[int, int]:
    """Columns and lines; 80 by 24 where the terminal does not know."""
    try:
        columns, lines = os.get_terminal_size(descriptor)
    except OSError:
        return 80, 24
    return columns or 80, lines or 24


def in_background(descriptor: int) -> bool:
    """Whether another job of the shell has the terminal."""
    try:
        return os.tcgetpgrp(descriptor) != os.getpgrp()
    except OSError:
        return False
