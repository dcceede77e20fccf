"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

_BARS = "▁▂▃▄▅▆▇█"

Kind = TypeVar("Kind", bound=object)


def span(seconds: float) -> str:
    """A time: `0.4 s`, `45 s`, `3:07`, `2:03:07`, `5 d 02:03`."""
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
    """Seconds without more digits than people read: 0.133, 1.25, 30."""
    return f"{round(seconds, 3 if seconds < 1 else 2):g}"


def size(count: float) -> str:
    """A number of bytes: `712 B`, `35.2 kB`, `1.4 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} PB"


def rate(count: float) -> str:
    """Pages a second, or a minute where that says more."""
    if count >= 99.95:
        return f"{count:,.0f}/s"
    return f"{count:.1f}/s" if count >= 0.95 or count == 0 else f"{count * 60:.1f}/min"


def many(count: int, word: str) -> str:
    """`1 page`, `2,000 pages`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def most(counts: Mapping[Kind, int], limit: int) -> list[tuple[Kind, int]]:
    """The largest counts first; among equals the order of their names."""
    return sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0])))[:limit]


def sparkline(values: Sequence[float]) -> str:
    """Bars between nothing and the largest value."""
    top = max(values, default=0.0)
    if top <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(7, int(value / top * 7.999))] for value in values)
