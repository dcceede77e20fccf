"""Pictures as SVG inside a page: bars, and a ring of places with the links between them; every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import cos, log10, pi, sin
from typing import NamedTuple

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 30
_MOST_LABELS = 8
_RING = 460


class Bar(NamedTuple):
    """One bar; `tone` is a class of the page's style."""

    label: str
    value: float
    about: str = ""
    tone: str = "a"


def bars(chart: Sequence[Bar], *, name: str) -> str:
    """Upright bars in their order, with a scale."""
    if not chart:
        return '<p class="none">nothing yet</p>'
    top = _round_up(max(bar.value for bar in chart))
    wide = (_WIDTH - _LEFT - _RIGHT) / len(chart)
    high = _HEIGHT - _TOP - _BOTTOM
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">']
    for part in range(5):
        at = _TOP + high * (1 - part / 4)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_short(top * part / 4)}</text>')
    step = max(1, -(-len(chart) // _MOST_LABELS))
    for number, bar in enumerate(chart):
        x, tall = _LEFT + number * wide, high * bar.value / top if top else 0.0
        if bar.value:
            tall = max(tall, 1.0)
        box = f'x="{x + wide * 0.08:.2f}" y="{_TOP + high - tall:.2f}" width="{wide * 0.84:.2f}" height="{tall:.2f}"'
        about = escape(bar.about or f"{bar.label}: {bar.value:,g}")
        parts.append(f'<rect class="{bar.tone}" {box}><title>{about}</title></rect>')
        if number % step == 0:
            middle = x + wide / 2
            parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(bar.label)}</text>')
    return "".join(parts) + "</svg>"


def ring(links: Mapping[tuple[str, str], int], places: Sequence[str], *, name: str) -> str:
    """Places on a circle, and an arc for the links between two of them, the thicker the more there are."""
    if len(places) < 2:
        return '<p class="none">no links between different places</p>'
    centre, radius = _RING / 2, _RING / 2 - 60
    spots = {
        place: (centre + 120 + radius * cos(angle), centre + radius * sin(angle))
        for number, place in enumerate(places)
        for angle in [2 * pi * number / len(places) - pi / 2]
    }
    shown = {
        pair: count for pair, count in links.items() if pair[0] in spots and pair[1] in spots and pair[0] != pair[1]
    }
    top = max(shown.values(), default=1)
    parts = [f'<svg viewBox="0 0 {_RING + 240} {_RING}" role="img" aria-label="{escape(name)}">']
    for (source, target), count in sorted(shown.items(), key=lambda pair: pair[1]):
        (x1, y1), (x2, y2) = spots[source], spots[target]
        bend_x, bend_y = (x1 + x2) / 2 * 0.4 + (centre + 120) * 0.6, (y1 + y2) / 2 * 0.4 + centre * 0.6
        width = 0.6 + 5.0 * count / top
        parts.append(
            f'<path class="link" stroke-width="{width:.1f}" d="M{x1:.1f} {y1:.1f}Q{bend_x:.1f} {bend_y:.1f} {x2:.1f} '
            f'{y2:.1f}"><title>{escape(source)} to {escape(target)}: {count:,}</title></path>'
        )
    for place, (x, y) in spots.items():
        side = "start" if x > centre + 121 else "end" if x < centre + 119 else "middle"
        off = {"start": 9, "end": -9, "middle": 0}[side]
        lift = (-10 if y < centre else 20) if side == "middle" else 4
        label = place if len(place) <= 22 else f"{place[:21]}…"
        parts.append(f'<circle class="a" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(place)}</title></circle>')
        parts.append(f'<text x="{x + off:.1f}" y="{y + lift:.1f}" text-anchor="{side}">{escape(label)}</text>')
    return "".join(parts) + "</svg>"


def _round_up(value: float) -> float:
    """The next number with one digit that matters, so that a scale has even marks."""
    if value <= 0:
        return 1.0
    power = 10.0 ** int(log10(value)) if value >= 1 else 10.0 ** (int(log10(value)) - 1)
    return next(step * power for step in (1, 2, 4, 5, 8, 10, 20) if step * power >= value)


def _short(value: float) -> str:
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"
