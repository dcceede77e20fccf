"""The live view of a crawl on a terminal; without a terminal, a progress line every ten seconds."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Self

from rich.console import Console
from rich.text import Text

from gossamer.cli import console
from gossamer.jobs.fleet_run import FleetRun
from gossamer.jobs.local_run import LocalRun
from gossamer.logs import plain
from gossamer.model import Counts

_NOW_SECONDS = 5.0
_TREND_SECONDS = 60.0
_TREND_LEAST_SECONDS = 10.0
_COST_SHARE = 200
"""Reading the frontier's counts takes at most 1/200 of the time."""
_BUCKETS = 120


class Progress:
    """Samples a run: counts, rates, and the time left. Its cost does not grow with the frontier."""

    def __init__(self, run: LocalRun | FleetRun) -> None:
        self._run = run
        self.stats = run.stats
        self.counts = Counts()
        self.name = run.folder.name if run.folder is not None else "in memory"
        self._ask_at = 0.0
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=64)
        self._left: deque[tuple[float, int]] = deque(maxlen=240)
        self._history = RateHistory()

    async def look(self) -> None:
        """Take a sample."""
        now = self.stats.seconds
        if now >= self._ask_at:
            self.counts = await self._run.counts()
            self._ask_at = now + max(0.2, (self.stats.seconds - now) * _COST_SHARE)
            self._left.append((now, self.waiting))
        self._recent.append((now, self.stats.pages, self.stats.bytes))
        while len(self._recent) > 2 and self._recent[1][0] <= now - _NOW_SECONDS:
            self._recent.popleft()
        while len(self._left) > 2 and self._left[1][0] <= now - _TREND_SECONDS:
            self._left.popleft()
        self._history.add(now, self.stats.pages)

    @property
    def workers(self) -> int:
        """Number of worker processes."""
        return self._run.workers

    @property
    def waiting(self) -> int:
        """Requests that are queued, delayed, or leased."""
        return self.counts.queued + self.counts.delayed + self.counts.leased

    @property
    def rate(self) -> float:
        """Pages per second over the last few seconds."""
        (first_at, first, _), (last_at, last, _) = self._recent[0], self._recent[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0

    @property
    def byte_rate(self) -> float:
        """Bytes per second over the last few seconds."""
        (first_at, _, first), (last_at, _, last) = self._recent[0], self._recent[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0

    @property
    def eta(self) -> float | None:
        """Estimated seconds until the crawl ends by a limit or an empty queue; None if unknown."""
        settings, ends = self._run.settings, []
        if settings.max_seconds is not None:
            ends.append(settings.max_seconds - self.stats.seconds)
        if settings.max_pages is not None and self.stats.mean_rate > 0:
            ends.append((settings.max_pages - self.counts.stored) / (self.rate or self.stats.mean_rate))
        (first_at, first), (last_at, last) = self._left[0], self._left[-1]
        # A continuous crawl does not end with an empty queue.
        if last < first and last_at - first_at >= _TREND_LEAST_SECONDS and not settings.recrawl:
            ends.append(last * (last_at - first_at) / (first - last))
        return max(0.0, min(ends)) if ends else None

    @property
    def share(self) -> float | None:
        """The share of `max_pages` that is stored; None without that limit."""
        limit = self._run.settings.max_pages
        return min(1.0, self.counts.stored / limit) if limit else None

    def sparkline(self, width: int) -> str:
        """The rate since the start as a line of bars."""
        return console.sparkline(self._history.rates(width))


class RateHistory:
    """Pages per second since the start, in a bounded number of buckets whose length doubles as the run goes on."""

    def __init__(self) -> None:
        self._seconds = 1.0
        self._totals = [0]

    def add(self, now: float, pages: int) -> None:
        """Add the current number of pages."""
        while now >= len(self._totals) * self._seconds:
            self._totals.append(pages)
            if len(self._totals) > _BUCKETS:
                self._totals = self._totals[::2]
                self._seconds *= 2

    def rates(self, width: int) -> list[float]:
        """The rates since the start in at most `width` steps of equal length."""
        step = max(1, -(-(len(self._totals) - 1) // width))
        ends = self._totals[::-1][::step][::-1]
        return [(later - earlier) / (step * self._seconds) for earlier, later in pairwise(ends)]


_LINES_KEPT = 500
_PATIENCE_SECONDS = 1.0


class ScreenLine(NamedTuple):
    """A line with its color codes, and its width in columns."""

    text: str
    width: int


class Writer:
    """Writes to a descriptor in a thread, so that a stopped terminal does not block the crawl.

    Keeps a bounded number of lines and only the newest frame. A write error ends the output, not the crawl."""

    def __init__(self, descriptor: int, encoding: str = "utf-8") -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._pending: deque[str] = deque(maxlen=_LINES_KEPT)
        self._wanted: list[ScreenLine] | None = None
        self._shown: list[ScreenLine] = []
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Print a permanent line, above the frame if there is one."""
        with self._changed:
            self._pending.append(line)
            self._changed.notify()

    def draw(self, frame: list[ScreenLine]) -> None:
        """Replace the frame."""
        with self._changed:
            self._wanted = frame
            self._changed.notify()

    def forget(self) -> None:
        """Leave the frame where it is, because another program has written to the terminal; draw the next one below."""
        with self._changed:
            self._shown, self._wanted = [], None

    def close(self) -> bool:
        """Remove the frame, write pending lines, and end; False if the terminal did not accept them in time."""
        with self._changed:
            self._wanted, self._closed = [], True
            self._changed.notify()
        self._thread.join(_PATIENCE_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        last = False
        while not last:
            with self._changed:
                while not (self._pending or self._wanted is not None):
                    self._changed.wait()
                last = self._closed
                frame = self._shown if self._wanted is None else self._wanted
                text = self._compose(list(self._pending), frame)
                self._pending.clear()
                self._wanted, self._shown = None, frame
            try:
                self._write(text)
            except OSError:
                # The reader is gone, or the disk is full: the crawl continues without a live view.
                return

    def _compose(self, pending: list[str], frame: list[ScreenLine]) -> str:
        if not frame and not self._shown:
            return "".join(f"{line}\n" for line in pending)
        # Each line overwrites the old one and then clears the rest, which avoids flicker.
        lines = "".join(f"{line}\x1b[K\n" for line in (*pending, *(line.text for line in frame)))
        return f"{self._way_back()}\r{lines}\x1b[J"

    def _way_back(self) -> str:
        """Escape code to the first line of the old frame; a terminal that became narrower has wrapped its lines."""
        columns, _ = terminal_size(self._descriptor)
        rows = sum(1 + max(line.width - 1, 0) // columns for line in self._shown)
        return f"\x1b[{rows}A" if rows else ""

    def _write(self, text: str) -> None:
        data = memoryview(text.encode(self._encoding, "replace"))
        while data:
            data = data[os.write(self._descriptor, data) :]


class Screen:
    """A frame at the bottom of the terminal on stderr while the block runs; needs a running event loop.

    Output of this process and its children to stderr is captured, escaped, and shown above the frame."""

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
        # After Ctrl-Z and fg the cursor is elsewhere. `loop.add_signal_handler` would replace the wakeup socket through
        # which the watchdog sees signals.
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
        """Current columns and lines of the terminal."""
        return terminal_size(self._terminal)

    def draw(self, frame: list[ScreenLine]) -> None:
        """Show the frame, unless another job of the shell has the terminal."""
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
    """Whether stderr is a terminal that supports drawing, and this process is in the foreground."""
    drawable = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return sys.stderr is not None and drawable and os.isatty(2) and not in_background(2)


def terminal_size(descriptor: int) -> tuple[int, int]:
    """Columns and lines; 80 by 24 if the terminal does not report them."""
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


FRAMES_A_SECOND = 4
_LINE_SECONDS = 10.0
_LABEL = 9

Part = tuple[str, str]
"""Text and its style."""
Cell = Sequence[Part]


async def follow(run: LocalRun | FleetRun) -> None:
    """Show the progress of the crawl until cancelled. Terminal errors do not affect the crawl."""
    if sys.stderr is None:
        return
    if has_screen():
        await _live(run)
    else:
        await _lines(run)


async def _live(run: LocalRun | FleetRun) -> None:
    progress = Progress(run)
    console = Console(force_terminal=True, file=io.StringIO())
    with Screen() as screen:
        while True:
            await progress.look()
            columns, lines = screen.size()
            screen.draw(rendered(frame(progress, columns - 1, lines - 1), console))
            await asyncio.sleep(1 / FRAMES_A_SECOND)


async def _lines(run: LocalRun | FleetRun) -> None:
    progress = Progress(run)
    descriptor = os.dup(2)
    writer = Writer(descriptor, sys.stderr.encoding)
    try:
        while True:
            for _ in range(int(_LINE_SECONDS)):
                await asyncio.sleep(1)
                await progress.look()
            writer.say(progress_line(progress))
    finally:
        if writer.close():
            os.close(descriptor)


def progress_line(progress: Progress) -> str:
    """The progress as key=value pairs."""
    counts, stats = progress.counts, progress.stats
    words = {
        "elapsed": f"{stats.seconds:.0f}s",
        "pages": stats.pages,
        "rate": f"{progress.rate:.1f}/s",
        "mean": f"{stats.mean_rate:.1f}/s",
        "queued": progress.waiting,
        "done": counts.done,
        "failed": counts.failed + counts.parked,
        "skipped": counts.skipped,
        "bytes": stats.bytes,
        "active_sites": counts.active_sites,
        "held_sites": counts.held_sites,
        "workers": progress.workers,
    }
    if progress.eta is not None:
        words["eta"] = f"{progress.eta:.0f}s"
    return "progress " + " ".join(f"{word}={value}" for word, value in words.items())


def frame(progress: Progress, width: int, height: int) -> list[Text]:
    """The live view, at most `width` columns and `height` lines; the latest pages are dropped first."""
    rows = [_heading(progress, width), *_body(progress, width)]
    room = height - len(rows)
    if room > 1:
        rows += _latest(progress, width, min(room - 1, 5))
    for row in rows:
        row.truncate(width, overflow="ellipsis")
    return rows[: max(height, 1)]


def rendered(rows: Sequence[Text], console: Console) -> list[ScreenLine]:
    """Rows with the color codes of this terminal."""
    with console.capture() as captured:
        for row in rows:
            console.print(row, soft_wrap=True)
    texts = captured.get().split("\n")
    return [ScreenLine(text, row.cell_len) for text, row in zip(texts, rows)]


def _heading(progress: Progress, width: int) -> Text:
    left = Text.assemble(("gossamer ", "bold cyan"), (plain(progress.name, 200), "bold"), " ")
    if progress.counts.job != "running":
        left.append(progress.counts.job, "yellow")
    right = Text.assemble((console.span(progress.stats.seconds), "bold"))
    if progress.eta is not None:
        right.append(f"  {console.span(progress.eta)} left", "dim")
    if progress.share is not None:
        right.append(f"  {progress.share:.0%}", "green")
    left.truncate(max(width - right.cell_len - 1, 9), overflow="ellipsis")
    return Text.assemble(left, " " * max(1, width - left.cell_len - right.cell_len), right)


def _body(progress: Progress, width: int) -> list[Text]:
    counts, stats = progress.counts, progress.stats
    failed = counts.failed + counts.parked
    rows = [
        *_row(
            "pages",
            [
                [(f"{stats.pages:,}", "bold green")],
                [(console.rate(progress.rate), "bold"), (" now", "dim")],
                [(console.rate(stats.mean_rate), ""), (" mean", "dim")],
                [(progress.sparkline(max(8, min(30, width - 49))), "cyan")],
            ],
            width,
        ),
        *_row(
            "queue",
            [
                [(f"{progress.waiting:,}", "bold")],
                _count(counts.done, "done"),
                _count(failed, "failed", "red" if failed else ""),
                _count(counts.skipped, "skipped"),
                *([_count(stats.items, "items", "green")] if stats.items else []),
                *([_count(stats.rejected.total(), "rejected", "yellow")] if stats.rejected else []),
            ],
            width,
        ),
        *_row(
            "sites",
            [
                [(f"{counts.sites:,}", "bold")],
                _count(counts.active_sites, "active"),
                _count(counts.held_sites, "held", "yellow" if counts.held_sites else ""),
                _count(progress.workers, "worker" if progress.workers == 1 else "workers"),
            ],
            width,
        ),
        *_row(
            "bytes",
            [[(console.size(stats.bytes), "bold")], [(f"{console.size(progress.byte_rate)}/s", ""), (" now", "dim")]],
            width,
        ),
    ]
    codes = [[(f"{code}", _code_style(code)), (f" {count:,}", "")] for code, count in console.most(stats.codes, 8)]
    rows += _row("answers", codes, width) if codes else []
    errors = stats.by_status["failed"] + stats.by_status["retry"]
    if errors:
        worst = [_count(count, plain(kind, 40), "red") for kind, count in console.most(errors, 8)]
        rows += _row("errors", worst, width)
    held = [
        [(plain(site, 60), "yellow"), (f" {console.span(left)} {plain(why, 40)}".rstrip(), "dim")]
        for site, left, why in stats.holds()[:4]
    ]
    rows += _row("held", held, width) if held else []
    return rows


def _latest(progress: Progress, width: int, most: int) -> list[Text]:
    rows: list[Text] = []
    for page in list(progress.stats.latest)[-most:]:
        code = f"{page.status or 'error':<5}"
        figures_ = f"{console.size(page.bytes):>8} " if width >= 60 else ""
        label = "" if rows else "latest"
        url = plain(page.url, width)
        rows.append(
            Text.assemble((f"{label:<{_LABEL}}", "dim"), (code, _code_style(page.status)), (figures_, "dim"), url)
        )
    return rows


def _row(label: str, cells: Sequence[Cell], width: int) -> list[Text]:
    """A label and its cells on at most two lines; cells that do not fit are omitted."""
    rows = [Text.assemble((f"{label:<{_LABEL}}", "dim"))]
    used = _LABEL
    for place, cell in enumerate(cells):
        text = Text.assemble(*cell)
        if place and used + 2 + text.cell_len > width:
            if len(rows) == 2:
                break
            rows.append(Text(" " * _LABEL))
            used = _LABEL
        elif place:
            rows[-1].append("  ")
            used += 2
        rows[-1].append_text(text)
        used += text.cell_len
    return rows


def _count(count: int, word: str, style: str = "") -> Cell:
    return [(f"{count:,}", style), (f" {word}", "dim")]


def _code_style(code: int) -> str:
    return {2: "green", 3: "blue", 4: "yellow"}.get(code // 100, "red")
