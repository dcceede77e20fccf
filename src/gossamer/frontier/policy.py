"""Scheduling rules, the same for all backends: rank, back-off, adaptive delay, site quota, and batch sizes.

The quota of a site (`site_share`, `share_window`), for every backend:

- Requests are counted when they are leased, by site and in total, in two halves of the window: the current half and the
  one before it. After `share_window / 2` requests the older half is dropped and a new one begins. So the count covers
  between half a window and a whole one, and costs two counters a site.
- A site may use `site_share x share_window` requests; the requests in both halves count as used. `lease` walks over the
  ready lanes in order, leases those of sites with quota left (with no more requests than that), and passes over the
  others. If it found fewer lanes than requested, it then leases the lanes it passed over, in order and with whole
  batches.
- At most `1 / site_share` sites can have used up their quota at a time, so passing over them is cheap. A backend with
  an index keeps these sites in a second index, from which they return when a half is dropped.

A site is in one shard, but its quota is a share of all fetches, and other ready sites may be in any shard:

- In Redis and in databases, the number of requests leased from all shards is the time of the window, and numbers its
  halves; the requests of a site are counted once, in its shard. A worker passes to each shard what the other shards had
  leased out when it last asked them. It first leases what is within the quotas, and only if that is too little, the
  rest. A worker that has not yet asked all shards takes the current half for an older one, and a site over its quota
  waits a little longer.
- On a folder only its owner can lease from a shard, so each worker has one window for all its shards. If no worker
  gives a site more than its share, the site has no more than its share of the total.
- A worker that is pinned to a part of the shards knows no others: the quota is a share of that part.

No request is dropped, a crawl of one site never waits, and a crawl of few sites divides all fetches among them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from gossamer.model import Outcome
from gossamer.settings import Settings

HOLD_MAX_SECONDS = 7 * 86_400.0
RETRY_STATUSES = frozenset((408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524))
HOLD_STATUSES = frozenset((429, 502, 503, 504, 520, 521, 522, 523, 524))
"""Statuses that concern the whole site: it is overloaded, or its proxy cannot reach it."""
HEAD = -(1 << 62)
_ADAPTIVE_MAX_SECONDS = 60.0


def rank(strategy: str, *, priority: int, depth: int, hops: int) -> int:
    """Return the rank of a request within its site: lower ranks go first. The target of a redirect goes to the head."""
    if hops:
        return HEAD
    level = {"bfs": depth, "dfs": -depth}.get(strategy, 0)
    return -priority * 1_000_000 + level


def backoff(failures: int, *, base: float, cap: float, jitter: float = 0.1) -> float:
    """Return the seconds to wait after the n-th failure in a row: doubling, capped, with a little jitter."""
    wait = min(cap, base * 2.0 ** min(failures - 1, 40))
    return wait * random.uniform(1.0, 1.0 + jitter)


def incidents(before: int, *, quiet_from: float, now: float, forgive_seconds: float) -> int:
    """Return the number of failures in a row, including this one; the count restarts if the site was quiet for long.

    `quiet_from` is when the last hold ended. A successful answer in between does not reset the count; time does."""
    return 1 if now >= quiet_from + forgive_seconds else before + 1


def retry_after(value: str, *, now: float) -> float | None:
    """Return the seconds that a Retry-After header asks for, at most seven days; None if the header is unusable."""
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
    """Return the adaptive delay: half-way from the previous one to the latency, doubled when the site is overloaded.

    It is never below `floor`, and exceeds a minute only if `floor` does."""
    cap = max(_ADAPTIVE_MAX_SECONDS, floor)
    if status in HOLD_STATUSES:
        return min(max(previous, floor, 0.5) * 2.0, cap)
    target = max(latency, (previous + latency) / 2.0)
    settled = min(max(target, floor), cap)
    return previous if status != 200 and settled < previous else settled


_FEW = 4


def batch_size(batch: int, *, delay: float, seconds: float, waiting: int, lanes: int) -> int:
    """Return how many requests of a lane can be fetched in half a lease; more would only keep them from other workers.

    A lane also takes no more than its part of the waiting requests, so that all lanes fetch the last requests of a
    site; but at least a few, since a lane rests until its batch is committed."""
    if lanes > 1:
        batch = min(batch, max(_FEW, -(-waiting // lanes)))
    if delay <= 0:
        return batch
    return max(1, min(batch, int(seconds / 2.0 / delay)))


MOST_LINKS = 10_000


def outcome_batches(outcomes: Sequence[Outcome]) -> Iterator[Sequence[Outcome]]:
    """Split outcomes into batches of about `MOST_LINKS` links; yield at least one batch."""
    first = links = 0
    for index, outcome in enumerate(outcomes):
        links += len(outcome.links)
        if links > MOST_LINKS:
            yield outcomes[first : index + 1]
            first, links = index + 1, 0
    if first < len(outcomes) or not outcomes:
        yield outcomes[first:]


class SiteQuota:
    """Counts how many of the last requests each site got."""

    def __init__(self, settings: Settings) -> None:
        self.half = max(1, settings.share_window // 2)
        self.most = max(1, int(settings.site_share * settings.share_window))
        self._now: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._counted = 0
        self.turns = 0
        """Number of times that a half of the window was dropped."""

    def left(self, site: str) -> int:
        """Return how many more requests of a site are within its quota."""
        return max(0, self.most - self._now.get(site, 0) - self._before.get(site, 0))

    def count(self, site: str, requests: int) -> bool:
        """Count leased requests; return whether a half of the window was dropped."""
        self._now[site] = self._now.get(site, 0) + requests
        self._counted += requests
        if self._counted < self.half:
            return False
        self._before, self._now, self._counted = self._now, {}, 0
        self.turns += 1
        return True
