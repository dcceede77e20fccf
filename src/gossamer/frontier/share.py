"""The quota of sites: nobody gets more than a share of the fetches while others are ready.

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

Nothing is dropped, a crawl of one site never waits, and a crawl of few sites shares what there is.
"""

from __future__ import annotations

from gossamer.settings import Settings


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
