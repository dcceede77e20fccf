"""How a crawl goes over time: its rates now, their history, and how long it will take yet."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from gossamer.cli import figures
from gossamer.jobs.fleet_run import FleetRun
from gossamer.jobs.local_run import LocalRun
from gossamer.model import Counts

_NOW_SECONDS = 5.0
_TREND_SECONDS = 60.0
_TREND_LEAST_SECONDS = 10.0
_COST_SHARE = 200
"""The frontier is asked for its counts so seldom that this takes one part in so many of the time."""
_BUCKETS = 120


class Progress:
    """Looks at a run now and then; cheap, however large the frontier is."""

    def __init__(self, run: LocalRun | FleetRun) -> None:
        self._run = run
        self.stats = run.stats
        self.counts = Counts()
        self.name = run.folder.name if run.folder is not None else "in memory"
        self._ask_at = 0.0
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=64)
        self._left: deque[tuple[float, int]] = deque(maxlen=240)
        self._history = RateHistory()

    async def look(self) -> None:
        """Take a reading."""
        now = self.stats.seconds
        if now >= self._ask_at:
            self.counts = await self._run.counts()
            self._ask_at = now + max(0.2, (self.stats.seconds - now) * _COST_SHARE)
            self._left.append((now, self.waiting))
        self._recent.append((now, self.stats.pages, self.stats.bytes))
        while len(self._recent) > 2 and self._recent[1][0] <= now - _NOW_SECONDS:
            self._recent.popleft()
        while len(self._left) > 2 and self._left[1][0] <= now - _TREND_SECONDS:
            self._left.popleft()
        self._history.add(now, self.stats.pages)

    @property
    def workers(self) -> int:
        """Processes that fetch."""
        return self._run.workers

    @property
    def waiting(self) -> int:
        """Requests that are known and not settled."""
        return self.counts.queued + self.counts.delayed + self.counts.leased

    @property
    def rate(self) -> float:
        """Pages a second over the last few seconds."""
        (first_at, first, _), (last_at, last, _) = self._recent[0], self._recent[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0

    @property
    def byte_rate(self) -> float:
        """Bytes a second over the last few seconds."""
        (first_at, _, first), (last_at, _, last) = self._recent[0], self._recent[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0

    @property
    def eta(self) -> float | None:
        """Seconds until the crawl ends, where that can be told; the nearest of its ends counts."""
        settings, ends = self._run.settings, []
        if settings.max_seconds is not None:
            ends.append(settings.max_seconds - self.stats.seconds)
        if settings.max_pages is not None and self.stats.mean_rate > 0:
            ends.append((settings.max_pages - self.counts.stored) / (self.rate or self.stats.mean_rate))
        (first_at, first), (last_at, last) = self._left[0], self._left[-1]
        # A continuous crawl goes on when its queue is empty.
        if last < first and last_at - first_at >= _TREND_LEAST_SECONDS and not settings.recrawl:
            ends.append(last * (last_at - first_at) / (first - last))
        return max(0.0, min(ends)) if ends else None

    @property
    def share(self) -> float | None:
        """How much of what was asked for is done."""
        limit = self._run.settings.max_pages
        return min(1.0, self.counts.stored / limit) if limit else None

    def sparkline(self, width: int) -> str:
        """The rate since the start."""
        return figures.sparkline(self._history.rates(width))


class RateHistory:
    """Pages a second since the start, in a bounded number of buckets that get longer as the run does."""

    def __init__(self) -> None:
        self._seconds = 1.0
        self._totals = [0]

    def add(self, now: float, pages: int) -> None:
        """Note how many pages there are by now."""
        while now >= len(self._totals) * self._seconds:
            self._totals.append(pages)
            if len(self._totals) > _BUCKETS:
                self._totals = self._totals[::2]
                self._seconds *= 2

    def rates(self, width: int) -> list[float]:
        """The newest readings of at most `width` steps, each over as many buckets as it takes to show them all."""
        step = max(1, -(-(len(self._totals) - 1) // width))
        ends = self._totals[::-1][::step][::-1]
        return [(later - earlier) / (step * self._seconds) for earlier, later in pairwise(ends)]
