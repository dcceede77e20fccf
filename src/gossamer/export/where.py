"""Conditions on pages, as people write them: `status=200 and depth<=2`; nothing of them is ever run as code."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from gossamer.errors import ConfigError
from gossamer.model import PageRow

Test = Callable[[PageRow], bool]
HINT = (
    "a condition is COLUMN=VALUE, or with != < <= > >= ~ (contains) !~; 'and' joins several; text with spaces is quoted"
)
TIMES = frozenset(("fetched_at",))
NUMBERS: Mapping[str, type] = {
    field.name: field.type for field in msgspec.structs.fields(PageRow) if field.type in (int, float)
}
COLUMNS = ("site", *(field.name for field in msgspec.structs.fields(PageRow)))
"""What a condition may name: the fields of a page, and its site."""
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TERM = re.compile(
    r"""\s*(?P<column>\w+)\s*(?P<sign>!=|<=|>=|!~|=|<|>|~)\s*
        (?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^\s'"]+))(?P<end>\s+and\s+|\s*$)""",
    re.VERBOSE | re.IGNORECASE,
)


class Where:
    """Conditions that a page meets, all of them, or does not."""

    def __init__(self, conditions: Sequence[str] = ()) -> None:
        self.conditions = tuple(conditions)
        """As they were written."""
        self._tests = [test for text in conditions for test in _tests(text)]

    def __bool__(self) -> bool:
        return bool(self._tests)

    def __call__(self, page: PageRow) -> bool:
        return all(test(page) for test in self._tests)


def _tests(text: str) -> list[Test]:
    tests: list[Test] = []
    place = 0
    while place < len(text) or not tests:
        found = _TERM.match(text, place)
        if found is None:
            raise ConfigError(f"--where {text!r}: not understood from {text[place:]!r} on", hint=HINT)
        value = next((found[name] for name in ("single", "double", "bare") if found[name] is not None), "")
        tests.append(_test(found["column"].lower(), found["sign"], value))
        place = found.end()
        if found["end"].strip() and place >= len(text):
            raise ConfigError(f"--where {text!r}: something is missing behind 'and'", hint=HINT)
    return tests


def _test(column: str, sign: str, value: str) -> Test:
    if column not in COLUMNS:
        raise ConfigError(f"--where: there is no column {column!r}", hint=f"there are {', '.join(COLUMNS)}")
    if column in TIMES:
        return _of_time(column, sign, value)
    if column in NUMBERS:
        return _of_number(column, sign, value)
    read = _text_of(column)
    if sign in ("~", "!~"):
        wanted, inside = value.casefold(), sign == "~"
        return lambda page: (wanted in read(page).casefold()) == inside
    compare = _ORDER[sign]
    return lambda page: compare(read(page), value)


def _text_of(column: str) -> Callable[[PageRow], str]:
    if column == "site":
        return site_of
    return lambda page: getattr(page, column) or ""


def site_of(page: PageRow) -> str:
    """The authority of the page's URL."""
    return page.url.split("/", 3)[2] if page.url.count("/") >= 2 else ""


def _of_number(column: str, sign: str, value: str) -> Test:
    """One number, or for = and != several with commas."""
    try:
        numbers = [NUMBERS[column](one) for one in value.split(",")]
    except ValueError:
        raise ConfigError(f"--where: {column} is a number, and {value!r} is none", hint=HINT) from None
    if sign in ("=", "!="):
        return lambda page: (getattr(page, column) in numbers) == (sign == "=")
    if len(numbers) > 1 or sign not in _ORDER:
        raise ConfigError(f"--where: {column}{sign}{value} cannot be told of numbers", hint=HINT)
    compare, number = _ORDER[sign], numbers[0]
    return lambda page: compare(getattr(page, column), number)


def _of_time(column: str, sign: str, value: str) -> Test:
    """A moment, or a span as its text is exact: all of 2026-01-31 is equal to it, and > is after its end."""
    start, end = _span(value)
    tests: Mapping[str, Callable[[float], bool]] = {
        "=": lambda at: start <= at < end,
        "!=": lambda at: not start <= at < end,
        "<": lambda at: at < start,
        "<=": lambda at: at < end,
        ">": lambda at: at >= end,
        ">=": lambda at: at >= start,
    }
    if sign not in tests:
        raise ConfigError(f"--where: {column}{sign}{value} cannot be told of times", hint=HINT)
    test = tests[sign]
    return lambda page: test(getattr(page, column))


def _span(value: str) -> tuple[float, float]:
    if re.fullmatch(r"\d+(\.\d+)?", value) and len(value.partition(".")[0]) > 8:
        return float(value), float(value) + 1e-6
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise ConfigError(
            f"--where: {value!r} is no time", hint="as in 2026-01-31, 2026-01-31T14:30 (UTC) or epoch seconds"
        ) from None
    start = found if found.tzinfo else found.replace(tzinfo=UTC)
    clock = re.search(r"[T ](\d\d:?\d\d)(:?\d\d)?", value)
    span = timedelta(days=1) if clock is None else timedelta(seconds=1) if clock[2] else timedelta(minutes=1)
    return start.timestamp(), (start + span).timestamp()
