"""Scheduling rules, the same for all backends: rank, back-off, adaptive delay, site quota, and batch sizes.

The rule, for every backend:

- Requests are counted when they are leased, by site and in total, in two halves of the window: the half that is being
  filled, and the one before it. When `share_window / 2` requests were counted, the older half is forgotten and a new
  one begins. So between a half and a whole window is looked back, and it costs two counters a site.
- A site has `site_share x share_window` requests; what both halves hold of it is used. `lease` goes over the ready
  lanes in their order, takes those of sites that have something left, with no more requests than that, and passes over
  the others. If it found fewer lanes than were asked for, it then takes those that it passed over, in their order and
  with whole batches.
- At most `1 / site_share` sites can have used up their share at a time, so passing over them is cheap; a backend
  with an index keeps them in a second one, from which they return when a half is forgotten.

A site is in one shard, but its share is that of all fetches, and the others that are ready may be in any shard:

- In Redis and in databases, what all shards have handed out is the time of the window, and half a window of it numbers
  the halves; what a site was handed is counted in its shard, once. A worker tells each shard what the others had handed
  out when it last asked them. It asks its shards for what is within its share first, and only if they have too little
  for the rest. One that has not heard of all shards yet takes the half for an older one than it is, and a site that
  has had its share waits a little longer for the others.
- On a folder nobody but its owner can lease from a shard, so each worker has a window of its own for all its shards.
  If no worker gives a site more than its share, it has no more of the whole.
- A worker that is pinned to a part of the shards knows no others: the share is that of the part.

Nothing is dropped, a crawl of one site never waits, and a crawl of few sites shares what there is."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from gossamer.model import Outcome
from gossamer.settings import Settings

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


MOST_LINKS = 10_000


def outcome_batches(outcomes: Sequence[Outcome]) -> Iterator[Sequence[Outcome]]:
    """The outcomes in parts with not many more links than that; at least one part."""
    first = links = 0
    for index, outcome in enumerate(outcomes):
        links += len(outcome.links)
        if links > MOST_LINKS:
            yield outcomes[first : index + 1]
            first, links = index + 1, 0
    if first < len(outcomes) or not outcomes:
        yield outcomes[first:]


class SiteQuota:
    """Who was handed how much of the last requests."""

    def __init__(self, settings: Settings) -> None:
        self.half = max(1, settings.share_window // 2)
        self.most = max(1, int(settings.site_share * settings.share_window))
        self._now: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._counted = 0
        self.turns = 0
        """How often a half of the window was forgotten."""

    def left(self, site: str) -> int:
        """How many more requests of a site are within its share."""
        return max(0, self.most - self._now.get(site, 0) - self._before.get(site, 0))

    def count(self, site: str, requests: int) -> bool:
        """So many were handed out; whether a half of the window was forgotten with that."""
        self._now[site] = self._now.get(site, 0) + requests
        self._counted += requests
        if self._counted < self.half:
            return False
        self._before, self._now, self._counted = self._now, {}, 0
        self.turns += 1
        return True
