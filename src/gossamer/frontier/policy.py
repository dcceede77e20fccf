"""The rules of politeness, back-off and order, as pure functions that every backend shares."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

WEEK = 7 * 86_400.0
HOLD_MAX_SECONDS = 7 * 86_400.0
RETRY_STATUSES = frozenset((408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524))
HOLD_STATUSES = frozenset((429, 503))
HEAD = -(1 << 62)


def rank(strategy: str, *, priority: int, depth: int, hops: int) -> int:
    """Where a request stands within its site: smaller is sooner. A redirect's target goes to the head of the queue."""
    if hops:
        return HEAD
    level = {"bfs": depth, "dfs": -depth}.get(strategy, 0)
    return -priority * 1_000_000 + level


def backoff(failures: int, *, base: float, cap: float, jitter: float = 0.1) -> float:
    """Seconds to wait after the n-th fault in a row: doubling, capped, with a little jitter."""
    wait = min(cap, base * 2.0 ** min(failures - 1, 40))
    return wait * random.uniform(1.0, 1.0 + jitter)


def retry_after(value: str, *, now: float) -> float | None:
    """Seconds that a Retry-After header asks for, at most seven days; None if it says nothing usable."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), HOLD_MAX_SECONDS)
    try:
        when = parsedate_to_datetime(text)
        wait = (when if when.tzinfo else when.replace(tzinfo=UTC)) - datetime.fromtimestamp(now, UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(wait.total_seconds(), 0.0), HOLD_MAX_SECONDS)


def adaptive_delay(previous: float, *, latency: float, status: int, floor: float, cap: float = 60.0) -> float:
    """The delay of a site that sets its own pace: half-way to its latency, doubled when it says 429 or 503."""
    if status in HOLD_STATUSES:
        return min(max(previous, floor, 0.5) * 2.0, cap)
    target = max(latency, (previous + latency) / 2.0)
    settled = min(max(target, floor), cap)
    return previous if status != 200 and settled < previous else settled


def batch_size(batch: int, *, delay: float, seconds: float) -> int:
    """How many requests of a lane can be fetched in half a lease: more would only wait there for others to take."""
    if delay <= 0:
        return batch
    return max(1, min(batch, int(seconds / 2.0 / delay)))


def revisit(failures: int, *, ok_seconds: float = WEEK) -> float:
    """Seconds to the next visit of a continuous crawl: 1 week after a success; 2, 4, 8 after failures in a row."""
    return ok_seconds * 2.0 ** min(failures, 3)
