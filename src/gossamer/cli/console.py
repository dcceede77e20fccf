"""Console output: data to stdout, messages to stderr, formatted numbers, tables, and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

import click


def say(line: str) -> None:
    """Print a message to stderr; write errors are ignored."""
    if sys.stderr is None:
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError, UnicodeError):
        pass


def put(data: bytes) -> None:
    """Write data to stdout; a closed pipe is ignored, other errors are raised."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        _silence_stdout()


def hold_standard_streams() -> None:
    """Open /dev/null for closed standard streams: the next opened file would get their number, and their output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)
            if found != number:
                os.dup2(found, number)
                os.close(found)
    if sys.stdin is None:
        # Python sets it to None if it was closed, but callers expect a file.
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115


def flush_output() -> OSError | None:
    """Flush stdout. Returns the error if that fails, and silences stdout so that nothing fails at exit."""
    if sys.stdout is None:
        return None
    try:
        sys.stdout.flush()
    except OSError as error:
        _silence_stdout()
        return error
    return None


def _silence_stdout() -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, sys.stdout.fileno())
    os.close(silent)


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    ERROR = 1
    USAGE = 2
    SOME_FAILED = 3
    INTERRUPTED = 130


_BARS = "▁▂▃▄▅▆▇█"

Kind = TypeVar("Kind", bound=object)


def span(seconds: float) -> str:
    """Format a duration: `0.4 s`, `45 s`, `3:07`, `2:03:07`, `5 d 02:03`."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days:,} d {hour:02d}:{minute:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


def brief(seconds: float) -> str:
    """Format seconds with few digits: 0.133, 1.25, 30."""
    return f"{round(seconds, 3 if seconds < 1 else 2):g}"


def size(count: float) -> str:
    """Format a number of bytes: `712 B`, `35.2 kB`, `1.4 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} PB"


def rate(count: float) -> str:
    """Format a rate in pages per second, or per minute if it is low."""
    if count >= 99.95:
        return f"{count:,.0f}/s"
    return f"{count:.1f}/s" if count >= 0.95 or count == 0 else f"{count * 60:.1f}/min"


def many(count: int, word: str) -> str:
    """Format a count with its noun: `1 page`, `2,000 pages`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def most(counts: Mapping[Kind, int], limit: int) -> list[tuple[Kind, int]]:
    """The largest counts first; ties in the order of their names."""
    return sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0])))[:limit]


def sparkline(values: Sequence[float]) -> str:
    """Values as a line of bars, scaled to the largest."""
    top = max(values, default=0.0)
    if top <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(7, int(value / top * 7.999))] for value in values)


_MOST_ROWS = 10
Row = Sequence[str]


def table(title: str, heads: Row, rows: Sequence[Row], limit: int = _MOST_ROWS) -> list[str]:
    """A table with headings and right-aligned numbers; at most `limit` rows."""
    if not rows:
        return []
    shown = [(title, *heads), *rows[:limit]]
    widths = [max(len(click.unstyle(row[column])) for row in shown) for column in range(len(shown[0]))]
    rights = [all(_is_figure(row[column]) for row in shown[1:]) for column in range(len(widths))]
    text = [""]
    for number, row in enumerate(shown):
        cells = [
            (" " * (width - len(click.unstyle(cell))) + cell)
            if right
            else cell + " " * (width - len(click.unstyle(cell)))
            for cell, width, right in zip(row, widths, rights, strict=True)
        ]
        line = ("  " + "  ".join(cells)).rstrip()
        text.append(click.style(line, dim=True) if number == 0 else line)
    if len(rows) > limit:
        text.append(f"  ... and {len(rows) - limit:,} more")
    return text


def _is_figure(cell: str) -> bool:
    text = click.unstyle(cell)
    return text[:1].isdigit() or text in ("", "-")
