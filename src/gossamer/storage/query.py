"""What is asked of stored pages: terms of a search, where it goes on, and which of many visits count."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec
from siphashc import siphash

from gossamer import urls
from gossamer.errors import ConfigError
from gossamer.model import PageRow, Record
from gossamer.sink.latest import LastWords, visit_of

MOST_VERSIONS = 1000
_ROWS_A_LOOK = 1000
"""Rows between two looks at the clock."""


class TimeCursor(NamedTuple):
    """Where a search goes on: visits older than this; of one time, those with a lesser URL."""

    fetched_at: float
    url: str


class ByteCursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a search of lines goes on: before this byte of this file."""

    file: str
    before: int


Cursor = TimeCursor | ByteCursor
GoOn = Callable[[], bool]
"""Whether there is time left."""


class VisitedPage(Protocol):
    """A visit, as far as terms bear on it."""

    @property
    def url(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def fetched_at(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a page must be like; what is None or empty does not matter."""

    url: str = ""
    site: str | None = None
    site_by: str = field(default="host")
    status: int | None = None
    since: float | None = None
    until: float | None = None
    prefix: str = ""

    @property
    def beginnings(self) -> tuple[str, ...]:
        """Texts with one of which every URL that fits begins; none where that is not known."""
        if self.url or self.prefix:
            return (self.url or self.prefix,)
        if self.site is not None and self.site_by == "host":
            return (f"http://{self.site}/", f"https://{self.site}/")
        return ()

    def fits(self, row: VisitedPage) -> bool:
        """Whether a visit is so."""
        return (
            (self.status is None or row.status == self.status)
            and (self.since is None or row.fetched_at >= self.since)
            and (self.until is None or row.fetched_at < self.until)
            and (not self.url or row.url == self.url)
            and row.url.startswith(self.prefix)
            and (self.site is None or urls.site(row.url, by=self.site_by) == self.site)
        )

    def needles(self) -> tuple[bytes, ...]:
        """Texts of which one is in every line that fits: looking for them is quicker than decoding the line."""
        if self.url:
            return (b'{"url":' + msgspec.json.encode(self.url) + b",",)
        found = tuple(b'{"url":' + msgspec.json.encode(text)[:-1] for text in self.beginnings)
        if not found and self.status is not None:
            found = (b'"status":%d,' % self.status,)
        return found


def newest(
    rows: Iterator[PageRow | None], terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
) -> tuple[list[PageRow], TimeCursor | None]:
    """The newest of these that fit, in bounded memory, and where to go on; None stands for rows that do not fit."""
    before = after if isinstance(after, TimeCursor) else None
    found: dict[TimeCursor, PageRow] = {}
    for number, row in enumerate(rows):
        if number % _ROWS_A_LOOK == 0 and not go_on():
            raise too_many()
        if row is None or not terms.fits(row):
            continue
        at = TimeCursor(row.fetched_at, row.url)
        if before is None or at < before:
            # A commit that was repeated leaves two rows of one visit.
            found[at] = row
            if len(found) > 4 * (limit + 1):
                found = dict(sorted(found.items(), reverse=True)[: limit + 1])
    shown = sorted(found.items(), reverse=True)[: limit + 1]
    return [row for _, row in shown[:limit]], shown[limit - 1][0] if len(shown) > limit else None


def too_many() -> ConfigError:
    """What to say when the time for a search is over."""
    return ConfigError(
        "the pages of this job are too many to be read through in the time that there is",
        hint="crawl with --sink jsonl beside it, which is read from its end; or ask with `gossamer sql`",
    )


def versions_of(rows: Iterator[PageRow]) -> list[PageRow]:
    """The visits of one URL, the newest first, a thousand at most, each once."""
    found: dict[tuple[float, str], PageRow] = {}
    for row in rows:
        # A commit that was repeated leaves two rows of one visit.
        found[row.fetched_at, row.digest] = row
        if len(found) > 2 * MOST_VERSIONS:
            found = dict(sorted(found.items(), key=lambda one: -one[1].fetched_at)[:MOST_VERSIONS])
    return sorted(found.values(), key=lambda row: -row.fetched_at)[:MOST_VERSIONS]


def last_of_urls(read: Callable[[], Iterator[Record]]) -> Iterator[Record]:
    """Of records without key and token the last one of each URL. They are read twice."""
    words, secret = LastWords(), secrets.token_bytes(16)
    for number, record in enumerate(read()):
        words.add(siphash(secret, record.page.url), number)
    # A file that has grown since is read as far as it was then.
    for record, is_last in zip(read(), words.settled(), strict=False):
        if is_last:
            yield record


def last_words(stamps: Iterator[tuple[int, int]], *, all_visits: bool) -> bytearray:
    """Of visits by key and token, a byte for each: 1 for the last of its page, or with `all_visits` for each once."""
    words = LastWords()
    for key, token in stamps:
        # In a fleet a visit may be there twice.
        words.add(visit_of(key, token) if all_visits else key, 0 if all_visits else token)
    return words.settled()
