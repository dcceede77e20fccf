"""Statistics of a run: counters for the summary, the live view, and metrics."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gossamer.clock import Clock
from gossamer.cut import CutTally
from gossamer.model import Outcome, PageRow, Record, Request, SiteNote

_MOST_HELD = 1000
_MOST_FIELDS = 100


class Hold(NamedTuple):
    """A site on hold."""

    until: float
    """End of the hold, by the clock's monotonic reading."""
    reason: str


class Stats:
    """Counters of one run, updated from committed results."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_at = clock.monotonic()
        self.pages = 0
        self.items = 0
        self.rejected: Counter[str] = Counter()
        """Rejected items, by the invalid field."""
        self.dropped = 0
        """Items for which a pipeline returned None."""
        self.copies = 0
        """Pages of which a near-duplicate was stored instead."""
        self.cut = CutTally()
        """Pages of which something was dropped."""
        self.bytes = 0
        self.codes: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.by_status: dict[str, Counter[str]] = {"failed": Counter(), "retry": Counter(), "skipped": Counter()}
        """Outcomes that were not done, by reason."""
        self.examples: dict[str, str] = {}
        """Reason -> an example URL."""
        self.latest: deque[PageRow] = deque(maxlen=8)
        self.held: dict[str, Hold] = {}
        """Sites on hold; if there are very many, only some."""
        self.failures = 0
        self.sitemaps = 0
        """Sitemap files that were read."""
        self.listed = 0
        """Pages that the sitemaps list, in scope or not."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=100)

    def seeded(self, seeds: Sequence[Request]) -> None:
        """Note the seeds of the run, before any of them is fetched. Plain statistics do not need them."""

    def saw(self, accepted: Sequence[Outcome], records: Sequence[Record], notes: Sequence[SiteNote] = ()) -> None:
        """Count committed results."""
        for note in notes:
            if note.hold:
                self._hold(note)
        for outcome in accepted:
            if outcome.status == "skipped" and outcome.reason in ("sitemap", "no-sitemap"):
                self.sitemaps += outcome.reason == "sitemap"
                self.listed += int((outcome.state or {}).get("listed", 0))
                continue
            if outcome.status != "done":
                self._not_done(outcome, records)
            if outcome.code:
                self.codes[outcome.code] += 1
            if outcome.reason:
                self.reasons[outcome.reason] += 1
            self.failures += outcome.status == "failed"
        self.pages += len(records)
        for record in records:
            self.items += len(record.items)
            self.dropped += record.dropped
            self.copies += record.page.copy_of is not msgspec.UNSET
            if record.page.cut:
                self.cut.add(record.page.cut)
            for one in record.rejected:
                if len(self.rejected) < _MOST_FIELDS or one.field in self.rejected:
                    self.rejected[one.field or one.error[:40]] += 1
                else:
                    self.rejected["others"] += 1
            self.bytes += record.page.bytes
        self.latest.extend(record.page for record in records[-8:])
        self._recent.append((self._clock.monotonic(), self.pages))

    def _not_done(self, outcome: Outcome, records: Sequence[Record]) -> None:
        reason = outcome.reason or "unknown"
        self.by_status[outcome.status][reason] += 1
        held = self.held.get(outcome.site)
        if held is not None and not held.reason:
            self.held[outcome.site] = held._replace(reason=reason)
        if outcome.status == "failed" and reason not in self.examples:
            self.examples[reason] = next((record.page.url for record in records if record.key == outcome.key), "")

    def _hold(self, note: SiteNote) -> None:
        now = self._clock.monotonic()
        if len(self.held) >= _MOST_HELD:
            self.held = {site: held for site, held in self.held.items() if held.until > now}
        if len(self.held) < _MOST_HELD or note.site in self.held:
            self.held[note.site] = Hold(now + (note.hold or 0.0), "robots-unreachable" if note.robots else "")

    def holds(self) -> list[tuple[str, float, str]]:
        """Return the sites on hold, the remaining seconds, and the reasons; longest first."""
        now = self._clock.monotonic()
        left = [(site, held.until - now, held.reason) for site, held in self.held.items() if held.until > now]
        return sorted(left, key=lambda hold: -hold[1])

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self.started_at

    @property
    def mean_rate(self) -> float:
        """Return pages per second since the start."""
        return self.pages / self.seconds if self.seconds > 0 else 0.0

    def rate(self, window: float = 5.0) -> float:
        """Return pages per second over the last seconds."""
        now = self._clock.monotonic()
        while self._recent and self._recent[0][0] < now - window:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        first_at, first = self._recent[0]
        return (self.pages - first) / max(now - first_at, 0.5)
