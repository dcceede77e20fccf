"""What a run has done so far, for people to look at."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from gossamer.clock import Clock
from gossamer.model import Outcome, Record


class Stats:
    """Counters of one run, fed by what was committed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_at = clock.monotonic()
        self.pages = 0
        self.items = 0
        self.bytes = 0
        self.codes: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.failures = 0
        self.workers_restarted = 0
        self._recent: deque[tuple[float, int]] = deque(maxlen=100)

    def saw(self, accepted: Sequence[Outcome], records: Sequence[Record]) -> None:
        """Count what was just committed."""
        for outcome in accepted:
            if outcome.code:
                self.codes[outcome.code] += 1
            if outcome.reason:
                self.reasons[outcome.reason] += 1
            self.failures += outcome.status == "failed"
        self.pages += len(records)
        for record in records:
            self.items += len(record.items)
            self.bytes += record.page.bytes
        self._recent.append((self._clock.monotonic(), self.pages))

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self.started_at

    @property
    def mean_rate(self) -> float:
        """Pages a second since the start."""
        return self.pages / self.seconds if self.seconds > 0 else 0.0

    def rate(self, window: float = 5.0) -> float:
        """Pages a second over the last few seconds."""
        now = self._clock.monotonic()
        while self._recent and self._recent[0][0] < now - window:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        first_at, first = self._recent[0]
        return (self.pages - first) / max(now - first_at, 0.5)
