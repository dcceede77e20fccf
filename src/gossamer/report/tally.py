"""What a report counts over all rows, in memory that does not grow with their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from math import floor, log2
from typing import Generic, TypeVar

from gossamer import urls
from gossamer.cut import CutTally
from gossamer.model import PageRow

Key = TypeVar("Key", bound=Hashable)
MOST_KEYS = 100_000
MOST_DEPTH = 30
MOST_TIMES = 20_000
EXAMPLES = 3
_NODE_LENGTH = 60


class Most(Generic[Key]):
    """Counts of the most frequent of many things: where there are too many to keep, the rare half is let go."""

    def __init__(self, limit: int = MOST_KEYS) -> None:
        self.counts: Counter[Key] = Counter()
        self.is_exact = True
        self._limit = limit

    def add(self, key: Key, count: int = 1) -> None:
        self.counts[key] += count
        if len(self.counts) > self._limit:
            self.is_exact = False
            self.counts = Counter(dict(self.counts.most_common(self._limit // 2)))


class ReportSite:
    """What is known of one site."""

    __slots__ = ("bytes", "failed", "pages", "seconds")

    def __init__(self) -> None:
        self.pages = 0
        self.failed = 0
        self.bytes = 0
        self.seconds = 0.0


class ReportCounts:
    """All that a report says, row by row."""

    def __init__(self) -> None:
        self.pages = 0
        self.bytes = 0
        self.failed = 0
        self.cut = CutTally()
        self.first_at = 0.0
        self.last_at = 0.0
        self.times: Counter[int] = Counter()
        """Pages by when they were fetched, in units of `unit_seconds`."""
        self.unit_seconds = 1
        self.statuses: Counter[int] = Counter()
        self.depths: Counter[int] = Counter()
        self.sizes: Counter[int] = Counter()
        """Pages by the power of two of their bytes."""
        self.latencies: Counter[int] = Counter()
        """Pages by the power of two of their milliseconds."""
        self.errors: dict[str, list[str]] = {}
        """Kind of error -> a few URLs."""
        self.error_counts: Counter[str] = Counter()
        self.sites: dict[str, ReportSite] = {}
        self.site_counts: Most[str] = Most()
        self.site_links: Most[tuple[str, str]] = Most()
        self.section_links: Most[tuple[str, str]] = Most()

    def add(self, row: PageRow) -> None:
        """Count one row."""
        self.pages += 1
        self.bytes += row.bytes
        if row.cut:
            self.cut.add(row.cut)
        self.first_at = min(self.first_at or row.fetched_at, row.fetched_at)
        self.last_at = max(self.last_at, row.fetched_at)
        self._clock_in(row.fetched_at)
        self.statuses[row.status] += 1
        self.depths[min(row.depth, MOST_DEPTH)] += 1
        if row.status:
            self.sizes[floor(log2(row.bytes)) if row.bytes > 0 else 0] += 1
            self.latencies[max(0, floor(log2(max(row.elapsed * 1000.0, 1.0))))] += 1
        is_failure = bool(row.error) or row.status >= 400
        if is_failure:
            self._fail(row)
        site = urls.site(row.url)
        self._visit(site, row, is_failure)
        if row.referrer:
            self.site_links.add((urls.site(row.referrer), site))
            self.section_links.add((_tally_section(row.referrer), _tally_section(row.url)))

    def _clock_in(self, at: float) -> None:
        self.times[int(at // self.unit_seconds)] += 1
        if len(self.times) > MOST_TIMES:
            self.unit_seconds *= 10
            times, self.times = self.times, Counter()
            for time, count in times.items():
                self.times[time // 10] += count

    def _fail(self, row: PageRow) -> None:
        self.failed += 1
        kind = row.error.partition(":")[0][:80] or f"HTTP {row.status}"
        if kind not in self.errors and len(self.errors) >= MOST_KEYS // 1000:
            kind = "other"
        self.error_counts[kind] += 1
        examples = self.errors.setdefault(kind, [])
        if len(examples) < EXAMPLES:
            examples.append(row.url[:300])

    def _visit(self, site: str, row: PageRow, is_failure: bool) -> None:
        self.site_counts.add(site)
        if len(self.sites) > 2 * MOST_KEYS:
            self.sites = {name: self.sites[name] for name in self.site_counts.counts if name in self.sites}
        tally = self.sites.setdefault(site, ReportSite())
        tally.pages += 1
        tally.failed += is_failure
        tally.bytes += row.bytes
        tally.seconds += row.elapsed


def _tally_section(url: str) -> str:
    """The first part of the path, by which pages of one site are told apart."""
    parts = url.split("/", 4)
    return f"/{parts[3][:_NODE_LENGTH]}/" if len(parts) == 5 else "/"
