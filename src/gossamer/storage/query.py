"""Queries over stored pages: `--where` conditions, search terms and cursors, and the last visit of each page."""

from __future__ import annotations

import operator
import re
import secrets
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import IO, Any, NamedTuple, Protocol

import msgspec
from siphashc import siphash

from gossamer import urls
from gossamer.errors import ConfigError
from gossamer.model import PageRow, Record

_BUCKETS = 64
_MEMORY_ENTRIES = 16_384
"""Entries of each bucket in memory, three numbers a record; further ones go to temporary files."""


class CurrentRecords:
    """Determines the current record of each key: the one with the highest token.

    Of two with the same token, which a repeated commit leaves, the first wins."""

    def __init__(self) -> None:
        self._held = [array("Q") for _ in range(_BUCKETS)]
        self._files: list[IO[bytes] | None] = [None] * _BUCKETS
        self._count = 0

    def add(self, key: int, token: int) -> None:
        """Add the next record."""
        bucket = key % _BUCKETS
        held = self._held[bucket]
        held.extend((key, token, self._count))
        self._count += 1
        if len(held) >= 3 * _MEMORY_ENTRIES:
            file = self._files[bucket]
            if file is None:
                file = self._files[bucket] = tempfile.TemporaryFile()  # noqa: SIM115
            held.tofile(file)
            del held[:]

    def flags(self) -> bytearray:
        """Return a byte for each added record, 1 if it is current. Call it once."""
        counts = bytearray(self._count)
        for bucket in range(_BUCKETS):
            best: dict[int, tuple[int, int]] = {}
            entries = self._entries(bucket)
            for place in range(0, len(entries), 3):
                key, token, number = entries[place : place + 3]
                known = best.get(key)
                if known is None or token > known[0]:
                    best[key] = (token, number)
            for _, number in best.values():
                counts[number] = 1
        return counts

    def _entries(self, bucket: int) -> array[int]:
        entries, file = array("Q"), self._files[bucket]
        if file is not None:
            with file:
                file.seek(0)
                entries.frombytes(file.read())
        entries.extend(self._held[bucket])
        del self._held[bucket][:]
        return entries


def visit_of(key: int, token: int) -> int:
    """Combine key and token into a number of 64 bits."""
    return (key * 0x9E3779B97F4A7C15 + token) % (1 << 64)


MOST_VERSIONS = 1000
_ROWS_PER_CHECK = 1000
"""Rows between two checks of the clock."""


class TimeCursor(NamedTuple):
    """Where a search continues: visits older than this; at the same time, those with a lesser URL."""

    fetched_at: float
    url: str


class ByteCursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a search of lines continues: before this byte of this file."""

    file: str
    before: int


Cursor = TimeCursor | ByteCursor
GoOn = Callable[[], bool]
"""Whether time is left."""


class VisitedPage(Protocol):
    """The fields of a visit that search terms apply to."""

    @property
    def url(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def fetched_at(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Search:
    """Search terms for pages; None or empty matches all."""

    url: str = ""
    site: str | None = None
    site_by: str = field(default="host")
    status: int | None = None
    since: float | None = None
    until: float | None = None
    prefix: str = ""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """URL prefixes, one of which every match has; empty if unknown."""
        if self.url or self.prefix:
            return (self.url or self.prefix,)
        if self.site is not None and self.site_by == "host":
            return (f"http://{self.site}/", f"https://{self.site}/")
        return ()

    def fits(self, row: VisitedPage) -> bool:
        """Whether a visit matches."""
        return (
            (self.status is None or row.status == self.status)
            and (self.since is None or row.fetched_at >= self.since)
            and (self.until is None or row.fetched_at < self.until)
            and (not self.url or row.url == self.url)
            and row.url.startswith(self.prefix)
            and (self.site is None or urls.site(row.url, by=self.site_by) == self.site)
        )

    def needles(self) -> tuple[bytes, ...]:
        """Texts, one of which is in every matching line: searching for them is faster than decoding the line."""
        if self.url:
            return (b'{"url":' + msgspec.json.encode(self.url) + b",",)
        found = tuple(b'{"url":' + msgspec.json.encode(text)[:-1] for text in self.prefixes)
        if not found and self.status is not None:
            found = (b'"status":%d,' % self.status,)
        return found


def newest(
    rows: Iterator[PageRow | None], terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
) -> tuple[list[PageRow], TimeCursor | None]:
    """Return the newest matching rows, in bounded memory, and a cursor; None stands for rows that do not match."""
    before = after if isinstance(after, TimeCursor) else None
    found: dict[TimeCursor, PageRow] = {}
    for number, row in enumerate(rows):
        if number % _ROWS_PER_CHECK == 0 and not go_on():
            raise search_timeout()
        if row is None or not terms.fits(row):
            continue
        at = TimeCursor(row.fetched_at, row.url)
        if before is None or at < before:
            # A repeated commit leaves two rows of one visit.
            found[at] = row
            if len(found) > 4 * (limit + 1):
                found = dict(sorted(found.items(), reverse=True)[: limit + 1])
    shown = sorted(found.items(), reverse=True)[: limit + 1]
    return [row for _, row in shown[:limit]], shown[limit - 1][0] if len(shown) > limit else None


def search_timeout() -> ConfigError:
    """Return the error for a search that ran out of time."""
    return ConfigError(
        "the search timed out: the job has too many pages to scan",
        hint="add --sink jsonl, which is searched from its end; or query with `gossamer sql`",
    )


def versions_of(rows: Iterator[PageRow]) -> list[PageRow]:
    """Return the distinct visits of one URL, newest first, at most a thousand."""
    found: dict[tuple[float, str], PageRow] = {}
    for row in rows:
        # A repeated commit leaves two rows of one visit.
        found[row.fetched_at, row.digest] = row
        if len(found) > 2 * MOST_VERSIONS:
            found = dict(sorted(found.items(), key=lambda one: -one[1].fetched_at)[:MOST_VERSIONS])
    return sorted(found.values(), key=lambda row: -row.fetched_at)[:MOST_VERSIONS]


def current_by_url(read: Callable[[], Iterator[Record]]) -> Iterator[Record]:
    """Yield the last record of each URL, for records without key and token. Reads them twice."""
    words, secret = CurrentRecords(), secrets.token_bytes(16)
    for number, record in enumerate(read()):
        words.add(siphash(secret, record.page.url), number)
    # If the file has grown since, only the first records are read.
    for record, is_last in zip(read(), words.flags(), strict=False):
        if is_last:
            yield record


def find_current(stamps: Iterator[tuple[int, int]], *, all_visits: bool) -> bytearray:
    """Return a byte for each visit: 1 for the last of its page, or with `all_visits` for each distinct one."""
    words = CurrentRecords()
    for key, token in stamps:
        # A fleet may store a visit twice.
        words.add(visit_of(key, token) if all_visits else key, 0 if all_visits else token)
    return words.flags()


Test = Callable[[PageRow], bool]
HINT = "use COLUMN=VALUE, or != < <= > >= ~ (contains) !~; join conditions with 'and'; quote text with spaces"
TIMES = frozenset(("fetched_at",))
NUMBERS: Mapping[str, type] = {
    field.name: field.type for field in msgspec.structs.fields(PageRow) if field.type in (int, float)
}
COLUMNS = ("site", *(field.name for field in msgspec.structs.fields(PageRow)))
"""The columns for conditions: the fields of a page, and its site."""
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TERM = re.compile(
    r"""\s*(?P<column>\w+)\s*(?P<sign>!=|<=|>=|!~|=|<|>|~)\s*
        (?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^\s'"]+))(?P<end>\s+and\s+|\s*$)""",
    re.VERBOSE | re.IGNORECASE,
)


class Where:
    """Conditions that a page must all meet."""

    def __init__(self, conditions: Sequence[str] = ()) -> None:
        self.conditions = tuple(conditions)
        """As written by the user."""
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
            raise ConfigError(f"--where {text!r}: syntax error at {text[place:]!r}", hint=HINT)
        value = next((found[name] for name in ("single", "double", "bare") if found[name] is not None), "")
        tests.append(_test(found["column"].lower(), found["sign"], value))
        place = found.end()
        if found["end"].strip() and place >= len(text):
            raise ConfigError(f"--where {text!r}: condition missing after 'and'", hint=HINT)
    return tests


def _test(column: str, sign: str, value: str) -> Test:
    if column not in COLUMNS:
        raise ConfigError(f"--where: unknown column {column!r}", hint=f"use one of {', '.join(COLUMNS)}")
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
    """Return the authority of the page's URL."""
    return page.url.split("/", 3)[2] if page.url.count("/") >= 2 else ""


def _of_number(column: str, sign: str, value: str) -> Test:
    """Compare with a number, or for = and != with several, separated by commas."""
    try:
        numbers = [NUMBERS[column](one) for one in value.split(",")]
    except ValueError:
        raise ConfigError(f"--where: {column} is a number, but {value!r} is not", hint=HINT) from None
    if sign in ("=", "!="):
        return lambda page: (getattr(page, column) in numbers) == (sign == "=")
    if len(numbers) > 1 or sign not in _ORDER:
        raise ConfigError(f"--where: {column}{sign}{value}: {sign} does not apply to numbers", hint=HINT)
    compare, number = _ORDER[sign], numbers[0]
    return lambda page: compare(getattr(page, column), number)


def _of_time(column: str, sign: str, value: str) -> Test:
    """Compare with a time span as precise as its text: = 2026-01-31 is any time of that day, > is after its end."""
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
        raise ConfigError(f"--where: {column}{sign}{value}: {sign} does not apply to times", hint=HINT)
    test = tests[sign]
    return lambda page: test(getattr(page, column))


def _span(value: str) -> tuple[float, float]:
    if re.fullmatch(r"\d+(\.\d+)?", value) and len(value.partition(".")[0]) > 8:
        return float(value), float(value) + 1e-6
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise ConfigError(
            f"--where: {value!r} is not a time", hint="use 2026-01-31, 2026-01-31T14:30 (UTC) or epoch seconds"
        ) from None
    start = found if found.tzinfo else found.replace(tzinfo=UTC)
    clock = re.search(r"[T ](\d\d:?\d\d)(:?\d\d)?", value)
    span = timedelta(days=1) if clock is None else timedelta(seconds=1) if clock[2] else timedelta(minutes=1)
    return start.timestamp(), (start + span).timestamp()
