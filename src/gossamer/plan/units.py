"""Quantities as people write them on a command line, and as they read them in a plan."""

from __future__ import annotations

import re

from gossamer.errors import ConfigError

_BYTES = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 365.25 * 86_400}
_COUNTS = {"": 1, "k": 1e3, "m": 1e6, "bn": 1e9, "b": 1e9, "tn": 1e12, "t": 1e12}


def count(text: str) -> float:
    """`1e12`, `1,000,000`, `5M`, `2bn`."""
    return _read(text, _COUNTS, "a number", "as in 1e12, 5M or 2bn")


def byte_count(text: str) -> float:
    """`10kB`, `1.5MB`, `40000`."""
    return _read(text, _BYTES, "a size", "as in 10kB, 1.5MB or 40000")


def seconds(text: str) -> float:
    """`7d`, `36h`, `604800`."""
    return _read(text, _SECONDS, "a time", "as in 7d, 36h or 90s")


def _read(text: str, units: dict[str, float], what: str, hint: str) -> float:
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?\d+)?)\s*([a-z]*)", text.strip().replace(",", ""), re.IGNORECASE)
    try:
        value = float(found[1]) * units[found[2].lower()] if found else 0.0
    except (KeyError, ValueError, OverflowError):
        value = 0.0
    if not 0 < value < 1e30:
        raise ConfigError(f"{text!r} is not {what} above 0", hint=hint)
    return value


def large(value: float) -> str:
    """A number: `812`, `40.5 M`, `1.3 bn`, `1 tn`."""
    for size, unit in ((1e12, " tn"), (1e9, " bn"), (1e6, " M")):
        if value >= 0.9995 * size:
            return f"{_three(value / size)}{unit}"
    return f"{value:,.0f}" if value >= 10 else _three(value)


def size(value: float) -> str:
    """Bytes: `35 kB`, `3.2 PB`."""
    for power, unit in enumerate(("B", "kB", "MB", "GB", "TB", "PB")):
        if value < 999.5 * 1000**power:
            return f"{_three(value / 1000**power)} {unit}"
    return f"{_three(value / 1e18)} EB"


def bits(value: float) -> str:
    """A rate: `800 Mbit/s`, `145 Gbit/s`."""
    return f"{size(value / 1).removesuffix('B').rstrip()}bit/s" if value >= 1000 else f"{value:.0f} bit/s"


def dollars(value: float) -> str:
    """Money, which is an estimate: three digits of it."""
    return f"${large(value)}" if value >= 1e6 else f"${value:,.0f}"


def span(value: float) -> str:
    """A time: `90 s`, `36 h`, `7 d`."""
    if value < 7200:
        return f"{_three(value)} s"
    return f"{_three(value / 3600)} h" if value < 2 * 86_400 else f"{_three(value / 86_400)} d"


def _three(value: float) -> str:
    """Three digits, without zeros at the end."""
    text = f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
