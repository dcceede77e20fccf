"""The quota of sites: nobody gets more than a share of the fetches while others are ready.

The rule, for every backend (each shard of a fleet counts for itself, but on a folder a worker for all its shards):

- Requests are counted when they are leased, by site and in total, in two halves of the window: the half that is being
  filled, and the one before it. When `share_window / 2` requests were counted, the older half is forgotten and a new
  one begins. So between a half and a whole window is looked back, and it costs two counters a site.
- A site has `site_share x share_window` requests; what both halves hold of it is used. `lease` goes over the ready
  lanes in their order, takes those of sites that have something left, with no more requests than that, and passes over
  the others. If it found fewer lanes than were asked for, it then takes those that it passed over, in their order and
  with whole batches.
- At most `1 / site_share` sites can have used up their share at a time, so passing over them is cheap; a backend
  with an index keeps them in a second one, from which they return when a half is forgotten.

Nothing is dropped, a crawl of one site never waits, and a crawl of few sites shares what there is.
"""

from __future__ import annotations

from gossamer.settings import Settings


class Share:
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
