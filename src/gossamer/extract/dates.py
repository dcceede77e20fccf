"""Parsers for dates in the formats of HTTP, W3C, and feeds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

_LONGEST = 64
_W3C = re.compile(
    r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[Tt ]\s*(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9})\d*)?)?\s*"
    r"([Zz]|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?)?)?"
)


def w3c_time(text: str) -> float | None:
    """Parse a W3C date to epoch seconds; None if invalid. Missing parts count as the first, a missing zone as UTC."""
    if len(text) == 25 and text[10] == "T" and text[4] == "-":
        # Fast path for the common form: a sitemap may hold fifty thousand dates.
        try:
            return _epoch(datetime.fromisoformat(text))
        except ValueError:
            pass
    match = _W3C.fullmatch(text.strip()) if len(text) <= _LONGEST and text.isascii() else None
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        when = datetime(
            int(year),
            int(month or 1),
            int(day or 1),
            int(hour or 0),
            int(minute or 0),
            # A leap second counts as the last second of its minute.
            min(int(second or 0), 59) if second != "60" else 59,
            int((fraction or "0").ljust(6, "0")[:6]),
            tzinfo=_zone(zone),
        )
        return _epoch(when)
    except (ValueError, OverflowError):
        return None


def http_time(text: str) -> float | None:
    """Parse a date of mail, feeds, or HTTP headers to epoch seconds; None if invalid."""
    if not text or len(text) > _LONGEST:
        return None
    from email.utils import parsedate_to_datetime

    try:
        when = parsedate_to_datetime(text.strip())
        return _epoch(when if when.tzinfo else when.replace(tzinfo=UTC))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _zone(text: str | None) -> timezone:
    if not text or text.upper() in ("Z", "UTC", "GMT"):
        return UTC
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:] or 0))
    return timezone(-offset if text[0] == "-" else offset)


def _epoch(when: datetime) -> float | None:
    # Dates outside this range are not real dates of web pages.
    return when.timestamp() if 1970 <= when.year <= 9000 else None
