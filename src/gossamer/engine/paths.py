"""What a visit knows of its site's paths and queries: which are asleep or have had their pages, which have no end."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gossamer import urls
from gossamer.clock import Clock
from gossamer.frontier import combinations, traps
from gossamer.frontier.recrawl import was_seen
from gossamer.model import Lease, Request
from gossamer.settings import Settings

ASLEEP, SPENT = "asleep", "prefix-budget"
_KEPT = (traps.PATHS, combinations.QUERIES)


class Paths:
    """The paths of one leased site. The memo is the visit's own, which others do not write to."""

    def __init__(self, lease: Lease, memo: dict[str, Any], settings: Settings, clock: Clock) -> None:
        self._key = f"{traps.PATHS}.{lease.lane}"
        self._queries = f"{combinations.QUERIES}.{lease.lane}"
        self._site = lease.site
        self._memo = memo
        self._settings = settings
        self._clock = clock

    def refuse(self, request: Request) -> str:
        """Why a request of this site is not fetched now; empty if it may be. Seeds always may."""
        if not request.depth or not any(name.startswith(_KEPT) for name in self._memo):
            return ""
        target, now = urls.path_query(request.url), self._clock.epoch()
        prefix = traps.prefix_of(target)
        if traps.sleeping(self._memo, prefix, now=now) or combinations.combination_evidence(
            self._memo, target, now=now
        ):
            return ASLEEP
        budget = self._settings.prefix_budget
        if budget is None or was_seen(request.state):
            return ""
        return SPENT if traps.pages_of(self._memo, prefix) >= budget else ""

    def open(self, links: tuple[Request, ...], refused: Counter[str]) -> tuple[Request, ...]:
        """The links without those of this site that would not be fetched now, which are counted by their reason."""
        found = []
        for link in links:
            if link.site == self._site and (reason := self.refuse(link)):
                refused[reason] += 1
            else:
                found.append(link)
        return tuple(found)

    def saw(
        self, request: Request, likeness: int | None, links: tuple[Request, ...], *, beside: int | None = None
    ) -> dict[str, Any]:
        """A page came, with these links that are perhaps new; what of the memo changes by it.

        `likeness` and `beside` are SimHashes of its text, and of its text beside the links, if they may be the last."""
        if was_seen(request.state):
            return {}
        target = urls.path_query(request.url)
        prefix = traps.prefix_of(target)
        leads_on = likeness is not None and any(
            link.site == self._site and traps.prefix_of(urls.path_query(link.url)) == prefix for link in links
        )
        paths = traps.after_page(
            self._memo.get(self._key, {}),
            request.url,
            prefix,
            likeness=likeness,
            leads_on=leads_on,
            now=self._clock.epoch(),
            settings=self._settings,
        )
        changed = {} if paths is None else {self._key: paths}
        queries = self._combined(request.url, target, beside, links)
        return changed if queries is None else {**changed, self._queries: queries}

    def _combined(
        self, url: str, target: str, beside: int | None, links: tuple[Request, ...]
    ) -> dict[str, combinations.Place] | None:
        places, place = self._memo.get(self._queries, {}), combinations.place_of(target)
        if not place or not self._settings.alike_pages or (beside is None and place not in places):
            return None
        alike = [
            link.site == self._site and combinations.place_of(urls.path_query(link.url)) == place for link in links
        ]
        return combinations.after_combination(
            places,
            url,
            target,
            likeness=beside,
            leads_on=any(alike),
            leads_away=not all(alike),
            now=self._clock.epoch(),
            settings=self._settings,
        )
