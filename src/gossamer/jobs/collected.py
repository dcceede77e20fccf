"""The result of a crawl in Python: its totals, its failures, and its pages and items for tables."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import IO

import msgspec

from gossamer.clock import Clock
from gossamer.engine.stats import Stats
from gossamer.errors import ConfigError, SeedsFailed, advice_for_kind
from gossamer.logs import plain
from gossamer.model import Counts, FailedPage, Outcome, Record, Request, SiteNote

MAX_ERRORS = 10_000
"""Failed pages that are listed one by one; all are counted."""
_MEMORY_BYTES = 16 * 1024 * 1024
_READ_BYTES = 1024 * 1024
_LISTED_SEEDS = 5


class CrawlSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of one run of a crawl."""

    state: str = "not started"
    """`not started`, `running`, `finished` (nothing is left to fetch, or `max_pages` is reached), `stopped` (by
    `max_seconds`, or because you left the loop), or `failed` (by an error)."""
    pages: int = 0
    """Number of visits, including redirects and failed pages: the rows of the table."""
    fetched: int = 0
    """Number of pages that were fetched and parsed."""
    failed: int = 0
    """Number of failed pages."""
    skipped: int = 0
    """Number of URLs that were not requested, such as those that robots.txt disallows."""
    items: int = 0
    """Number of items that the spider found."""
    queued: int = 0
    """Number of URLs that were left in the queue; 0 while the crawl runs."""
    bytes: int = 0
    """Bytes of all bodies after decoding."""
    seconds: float = 0.0
    """Duration of the run in seconds."""
    codes: Mapping[int, int] = {}
    """Number of responses for each HTTP status."""
    reasons: Mapping[str, int] = {}
    """Number of attempts that failed or were skipped, for each kind of failure."""
    job: str = ""
    """Folder of the job; empty for a crawl in memory."""


class Collected(Stats):
    """Statistics that also collect the failures of a run, the outcomes of its seeds, and its pages for tables.

    `saw` is called after each commit, so everything here is committed, and counted once."""

    def __init__(self, clock: Clock, *, recrawl: bool, keep_pages: bool) -> None:
        super().__init__(clock)
        self.kept = KeptPages(recrawl=recrawl) if keep_pages else None
        """The pages and items of a crawl in memory; None where a job stores them."""
        self.fetched = 0
        self.queued = 0
        """Number of URLs in the queue, as last seen."""
        self._failed: list[FailedPage] = []
        self._seeds: dict[int, Request] = {}
        self._seed_failures: dict[str, FailedPage] = {}
        self._hops: dict[str, str] = {}
        """Target of a seed's redirect -> the seed."""
        self._closed: dict[str, str] = {}
        """Site of a seed -> the reason why nothing is fetched from it."""
        self._seconds: float | None = 0.0

    @property
    def seconds(self) -> float:
        return super().seconds if self._seconds is None else self._seconds

    def begin(self) -> None:
        """Start the clock."""
        self.started_at, self._seconds = self._clock.monotonic(), None

    def seeded(self, seeds: Sequence[Request]) -> None:
        self._seeds = {seed.key: seed for seed in seeds}

    def saw(self, accepted: Sequence[Outcome], records: Sequence[Record], notes: Sequence[SiteNote] = ()) -> None:
        """Count and collect committed results."""
        super().saw(accepted, records, notes)
        found = {record.key: record for record in records}
        for note in notes:
            if note.close is not None or (note.hold and note.robots):
                self._closed[note.site] = note.close or "robots-unreachable"
        for outcome in accepted:
            self._collect(outcome, found.get(outcome.key))
        if self.kept is not None:
            self.kept.add(records)

    def _collect(self, outcome: Outcome, record: Record | None) -> None:
        url = record.page.url if record is not None else ""
        seed = self._seeds[outcome.key].url if outcome.key in self._seeds else self._hops.get(url, "")
        target = record.page.location if record is not None else ""
        if outcome.status == "done":
            self.fetched += not target
            if seed and target:
                # Until its target is fetched, a redirect has brought no page.
                self._hops[target] = seed
                reason = f"redirected to {target}, which was not fetched"
                self._seed_failures[seed] = FailedPage(seed, "redirect", reason, outcome.code)
            elif seed:
                self._seed_failures.pop(seed, None)
            return
        failure = FailedPage(url or seed, outcome.reason or "unknown", _reason(outcome, record), outcome.code)
        if seed and failure.url != seed:
            reason = f"redirected to {failure.url}: {failure.reason}"
            self._seed_failures[seed] = FailedPage(seed, failure.kind, reason, failure.status)
        elif seed:
            self._seed_failures[seed] = failure
        if outcome.status == "failed" and len(self._failed) < MAX_ERRORS:
            self._failed.append(failure)

    def end(self, counts: Counts | None) -> None:
        """Stop the clock, and take the last counts of the frontier; None if the run raised an error."""
        self._seconds = super().seconds
        if counts is None:
            return
        self.queued = counts.queued + counts.delayed + counts.leased
        for seed in self._seeds.values():
            if (reason := self._closed.get(seed.site)) and seed.url not in self._seed_failures and not self.fetched:
                self._seed_failures[seed.url] = FailedPage(seed.url, reason, _advice(reason))

    @property
    def errors(self) -> list[FailedPage]:
        """The failed pages, and seeds that were not fetched for another reason."""
        # Copies: the crawl may go on in another thread.
        failed = list(self._failed)
        listed = {url for failure in failed for url in (failure.url, self._hops.get(failure.url, ""))}
        return [*failed, *(one for one in list(self._seed_failures.values()) if one.url not in listed)]

    def summary(self, state: str, folder: Path | None) -> CrawlSummary:
        """The totals so far."""
        return CrawlSummary(
            state=state,
            pages=self.pages,
            fetched=self.fetched,
            failed=self.failures,
            skipped=self.by_status["skipped"].total(),
            items=self.items,
            queued=self.queued if self._seconds is not None else 0,
            bytes=self.bytes,
            seconds=round(self.seconds, 3),
            codes=dict(self.codes),
            reasons=dict(self.reasons),
            job=str(folder) if folder is not None else "",
        )

    def seeds_failed(self, counts: Counts, *, resumed: bool, job: str) -> SeedsFailed | None:
        """The error of a run that fetched no page because of its seeds; None if there is none."""
        if self.fetched or (resumed and counts.done):
            return None
        if failures := list(self._seed_failures.values()):
            return _seeds_failed(failures, len(self._seeds))
        if resumed and counts.failed:
            message = f"no page could be fetched in an earlier run of {job}, and failed pages are not retried"
            return SeedsFailed(message, hint="start a new job with another name")
        return None


def _seeds_failed(failures: Sequence[FailedPage], count: int) -> SeedsFailed:
    lines = [f"{plain(one.url)}: {one.kind}: {plain(one.reason, 300)}" for one in failures[:_LISTED_SEEDS]]
    if len(failures) > _LISTED_SEEDS:
        lines.append(f"... and {len(failures) - _LISTED_SEEDS:,} more")
    if count == 1:
        message = f"the seed could not be fetched: {lines[0]}"
    else:
        tried = f"{count:,} seeds" if len(failures) == count else f"{len(failures):,} seeds that were tried"
        message = "\n  ".join([f"none of the {tried} could be fetched:", *lines])
    advice = next((text for one in failures if (text := advice_for_kind(one.kind))), "")
    keep = "raise_on_failure=False returns the empty result instead"
    return SeedsFailed(message, hint=f"{advice}; {keep}" if advice else keep, errors=failures)


def _reason(outcome: Outcome, record: Record | None) -> str:
    kind = outcome.reason
    if record is not None and record.page.error:
        return record.page.error.removeprefix(f"{kind}: ")
    if outcome.code and kind in ("", f"http-{outcome.code}"):
        known = {status.value: status.phrase for status in HTTPStatus}
        return f"HTTP {outcome.code} {known.get(outcome.code, '')}".rstrip()
    return _advice(kind)


def _advice(kind: str) -> str:
    return advice_for_kind(kind).partition(":")[0].removesuffix(", so no page may be") or kind


class KeptPages:
    """Pages and items of a crawl in memory, as lines in a temporary file; the first 16 MB stay in memory.

    Bodies are not kept, so that memory stays flat. If the file cannot be written, the crawl goes on, and reading
    raises. One thread may add while others read."""

    def __init__(self, *, recrawl: bool) -> None:
        self._recrawl = recrawl
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115
        self._lock = Lock()
        self._fault: Exception | None = None
        weakref.finalize(self, self._file.close)

    def add(self, records: Sequence[Record]) -> None:
        """Add committed records."""
        if self._fault is not None or not records:
            return
        try:
            lines = [
                msgspec.json.encode(Record(key=one.key, token=one.token, page=one.page, items=one.items))
                for one in records
            ]
            with self._lock:
                self._file.seek(0, 2)
                self._file.write(b"".join(line + b"\n" for line in lines))
        except (OSError, TypeError, ValueError, OverflowError) as error:
            self._fault = error

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        """Yield the last record of every page, or with `all_visits` each, in the order of the visits."""
        if all_visits or not self._recrawl:
            yield from self._lines()
            return
        last = {record.key: number for number, record in enumerate(self._lines())}
        for number, record in enumerate(self._lines()):
            if last.get(record.key, number) == number:
                yield record

    def items(self) -> Iterator[bytes]:
        """Yield the items of all pages as JSON."""
        for record in self.records():
            yield from map(msgspec.json.encode, record.items)

    def _lines(self) -> Iterator[Record]:
        if self._fault is not None:
            raise ConfigError(
                f"the pages of this crawl were not kept: {self._fault}",
                hint="store them in a job, as in crawl(..., job='shop')",
            ) from self._fault
        place = 0
        while True:
            with self._lock:
                self._file.seek(place)
                lines = self._file.readlines(_READ_BYTES)
                place = self._file.tell()
            if not lines:
                return
            for line in lines:
                yield msgspec.json.decode(line, type=Record)
