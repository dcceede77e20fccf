"""SVG charts of the benchmarks: horizontal bars, and lines over a logarithmic axis."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

COLORS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#64748b", "#0891b2", "#65a30d")
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#57606a}.title{font-weight:600;font-size:15px}"
    ".grid{stroke:#8b949e;stroke-opacity:.3}.own{fill:#2563eb}.other{fill:#94a3b8}"
)
_WIDTH, _LABEL, _ROW = 760, 280, 26


class Bar(NamedTuple):
    """One bar; `is_ours` highlights it, and `note` follows its value."""

    label: str
    value: float
    is_ours: bool = False
    note: str = ""


class Line(NamedTuple):
    """One line, given by its points."""

    label: str
    points: Sequence[tuple[float, float]]


def bars(chart: Sequence[Bar], *, title: str, unit: str) -> str:
    """Draw horizontal bars, in the given order, on one scale."""
    top = max((bar.value for bar in chart), default=1.0) or 1.0
    wide = _WIDTH - _LABEL - 150
    parts = [_open(_WIDTH, 44 + _ROW * len(chart), title)]
    for number, bar in enumerate(chart):
        y = 36 + _ROW * number
        long = max(1.0, wide * bar.value / top)
        kind = "own" if bar.is_ours else "other"
        parts.append(f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(bar.label)}</text>')
        parts.append(f'<rect class="{kind}" x="{_LABEL}" y="{y + 2}" width="{long:.1f}" height="{_ROW - 8}"/>')
        value = f"{bar.value:,.3g} {unit}" if bar.value < 1000 else f"{bar.value:,.0f} {unit}"
        text = escape(f"{value}{' ' + bar.note if bar.note else ''}")
        parts.append(f'<text x="{_LABEL + long + 6:.1f}" y="{y + 15}">{text}</text>')
    return "".join(parts) + "</svg>\n"


def lines(chart: Sequence[Line], *, title: str, across: str) -> str:
    """Draw lines over a logarithmic x axis, with y from zero."""
    left, right, top, bottom, width, height = 60, 200, 40, 44, _WIDTH, 340
    points = [point for line in chart for point in line.points]
    low, high = floor(min(log10(x) for x, _ in points)), ceil(max(log10(x) for x, _ in points))
    most = _even(max(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        share = (log10(x) - low) / max(1, high - low)
        return left + share * (width - left - right), height - bottom - y / most * (height - top - bottom)

    parts = [_open(width, height, title)]
    for part in range(5):
        at = place(10.0**low, most * part / 4)[1]
        parts.append(f'<path class="grid" d="M{left} {at:.1f}H{width - right}"/>')
        parts.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{most * part / 4:,g}</text>')
    for power in range(low, high + 1):
        at = place(10.0**power, 0)[0]
        parts.append(f'<text x="{at:.1f}" y="{height - bottom + 20}" text-anchor="middle">{10**power:,}</text>')
    parts.append(f'<text x="{width - right}" y="{height - 6}" text-anchor="end">{escape(across)}</text>')
    for number, line in enumerate(chart):
        color = COLORS[number % len(COLORS)]
        spots = [place(x, y) for x, y in line.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
        parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in spots]
        y = top + 18 * number
        parts.append(f'<rect x="{width - right + 16}" y="{y - 9}" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{width - right + 34}" y="{y + 2}">{escape(line.label)}</text>')
    return "".join(parts) + "</svg>\n"


def _open(width: int, height: int, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}"><style>{STYLE}</style>'
        f'<text class="title" x="8" y="20">{escape(title)}</text>'
    )


def _even(value: float) -> float:
    """The next round number whose quarter is round too."""
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value)
