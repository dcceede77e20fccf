"""Progress of a crawl in Python: a line on the terminal, or a bar in a notebook."""

from __future__ import annotations

import os
import sys
import time
from html import escape
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from gossamer.logs import plain

UPDATE_SECONDS = 0.25


class ProgressFigures(NamedTuple):
    """The figures of a crawl at one moment."""

    pages: int = 0
    limit: int | None = None
    """The setting `max_pages`."""
    rate: float = 0.0
    """Pages per second over the last few seconds."""
    queued: int = 0
    failed: int = 0
    seconds: float = 0.0
    waiting: str = ""
    """Why nothing is fetched; empty if something is."""

    @property
    def text(self) -> str:
        """The figures as one line."""
        pages = f"{self.pages:,}" if self.limit is None else f"{self.pages:,}/{self.limit:,}"
        parts = [f"{pages} page{'' if pages == '1' else 's'}", f"{self.rate:.1f}/s", f"{self.queued:,} queued"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        minutes, seconds = divmod(int(self.seconds), 60)
        parts.append(f"{minutes}:{seconds:02d}")
        if self.waiting:
            parts.append(plain(self.waiting, 120))
        return " · ".join(parts)


class Display(Protocol):
    """A place that shows figures."""

    def show(self, figures: ProgressFigures) -> None: ...

    def close(self) -> None: ...


class ProgressBar:
    """Shows figures on a display, at most four times per second. Errors of the display do not affect the crawl."""

    def __init__(self, display: Display | None) -> None:
        self._display = display
        self._last = ProgressFigures()
        self._next_at = 0.0

    def __bool__(self) -> bool:
        return self._display is not None

    def update(self, figures: ProgressFigures) -> None:
        """Show these figures, unless others were shown a moment ago."""
        self._last = figures
        if (now := time.monotonic()) >= self._next_at:
            self._next_at = now + UPDATE_SECONDS
            self._show()

    def close(self) -> None:
        """Show the last figures, and leave them there."""
        self._show()
        if self._display is not None:
            self._display.close()
            self._display = None

    def _show(self) -> None:
        if self._display is not None:
            try:
                self._display.show(self._last)
            except (OSError, ValueError):
                self._display = None


def progress_bar(wanted: bool | None) -> ProgressBar:
    """The bar for this process. None shows one only in a notebook, or where stderr is a terminal."""
    if wanted is False or sys.stderr is None:
        return ProgressBar(None)
    if in_notebook():
        return ProgressBar(NotebookDisplay())
    drawable = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return ProgressBar(TerminalDisplay() if wanted or (drawable and sys.stderr.isatty()) else None)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell_of = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = type(shell_of()) if shell_of is not None else None
    return shell is not None and (shell.__name__ == "ZMQInteractiveShell" or "google.colab" in shell.__module__)


class TerminalDisplay:
    """A bar at the bottom of the terminal; the program's own output appears above it.

    Where stderr is not a terminal, only the last figures are printed."""

    def __init__(self) -> None:
        # Imported here: most crawls show no bar.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        # Output that is redirected into a file must not be captured for the terminal.
        captures = sys.stdout is not None and sys.stdout.isatty() and sys.stderr.isatty()
        self._progress = Progress(
            BarColumn(bar_width=20),
            TextColumn("{task.description}", markup=False),
            console=Console(file=sys.stderr),
            auto_refresh=False,
            redirect_stdout=captures,
            redirect_stderr=captures,
        )
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def show(self, figures: ProgressFigures) -> None:
        self._progress.update(
            self._task, description=figures.text, total=figures.limit, completed=figures.pages, refresh=True
        )

    def close(self) -> None:
        self._progress.stop()


class NotebookDisplay:
    """A bar in the output of a notebook's cell."""

    def __init__(self) -> None:
        self._ipython = import_module("IPython.display")
        self._handle: Any = None

    def show(self, figures: ProgressFigures) -> None:
        bar = f"<progress value={figures.pages} max={figures.limit}></progress> " if figures.limit else ""
        html = self._ipython.HTML(f"{bar}<code>{escape(figures.text)}</code>")
        if self._handle is None:
            self._handle = self._ipython.display(html, display_id=True)
        else:
            self._handle.update(html)

    def close(self) -> None:
        pass
