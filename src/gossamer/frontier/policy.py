"""The rules of politeness, back-off and order, as pure functions that every backend shares."""

from __future__ import annotations

import random
from datetime import UTC, datetime

HOLD_MAX_SECONDS = 7 * 86_400.0
RETRY_STATUSES = frozenset((408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524))
HOLD_STATUSES = frozenset((429, 502, 503, 504, 520, 521, 522, 523, 524))
"""Answers that speak of the whole site: it is overloaded, or what stands before it cannot reach it."""
HEAD = -(1 << 62)
_ADAPTIVE_MAX_SECONDS = 60.0


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


def incidents(before: int, *, quiet_from: float, now: float, forgive_seconds: float) -> int:
    """The number of a site's new fault: one more than before, or the first if the site has been quiet for long.

    `quiet_from` is when the last hold ended; an answer in between does not forgive, time does."""
    return 1 if now >= quiet_from + forgive_seconds else before + 1


def retry_after(value: str, *, now: float) -> float | None:
    """Seconds that a Retry-After header asks for, at most seven days; None if it says nothing usable."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), HOLD_MAX_SECONDS)
    from email.utils import parsedate_to_datetime

    try:
        when = parsedate_to_datetime(text)
        wait = (when if when.tzinfo else when.replace(tzinfo=UTC)) - datetime.fromtimestamp(now, UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(wait.total_seconds(), 0.0), HOLD_MAX_SECONDS)


def adaptive_delay(previous: float, *, latency: float, status: int, floor: float) -> float:
    """The delay of a site that sets its own pace: half-way to its latency, doubled when it is overloaded.

    It is never below `floor`, and beyond a minute only where that is."""
    cap = max(_ADAPTIVE_MAX_SECONDS, floor)
    if status in HOLD_STATUSES:
        return min(max(previous, floor, 0.5) * 2.0, cap)
    target = max(latency, (previous + latency) / 2.0)
    settled = min(max(target, floor), cap)
    return previous if status != 200 and settled < previous else settled


_FEW = 4


def batch_size(batch: int, *, delay: float, seconds: float, waiting: int, lanes: int) -> int:
    """How many requests of a lane can be fetched in half a lease: more would only wait there for others to take.

    Nor does a lane take more than its part of what waits, so that the last requests of a site are fetched in all of its
    lanes; but a few at least, since a lane rests until its batch is committed."""
    if lanes > 1:
        batch = min(batch, max(_FEW, -(-waiting // lanes)))
    if delay <= 0:
        return batch
    return max(1, min(batch, int(seconds / 2.0 / delay)))
