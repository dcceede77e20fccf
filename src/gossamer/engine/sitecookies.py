"""The cookies of a leased site: they come with it, are kept with it, and go along to other hosts of its domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gossamer.engine.hops import COOKIES
from gossamer.middleware.cookies import CookieJar
from gossamer.model import Lease, Request

MEMO = "cookies"
"""Their place in a site's memo; those of further lanes are beside it, `cookies.1` and so on."""


class SiteCookies:
    """Between a worker's jar and what the frontier knows of a site, for as long as one lease lasts.

    A log-in on one host is often for another one of the domain, which any worker may have: so the first link from here
    to there, and every redirect, takes along what that host may get. Each lane has a place of its own in the memo:
    where two shared one, what a worker learned would be lost to one that had not heard of it."""

    def __init__(self, jar: CookieJar, lease: Lease) -> None:
        self._jar, self._site = jar, lease.site
        self._place = f"{MEMO}.{lease.lane}" if lease.lane else MEMO
        for name, others in lease.memo.items():
            if name.startswith(MEMO) and name != self._place:
                jar.load(lease.site, others)
        is_told = jar.load(lease.site, lease.memo.get(self._place))
        self._told = jar.revision(lease.site) if is_told else 0
        self._lent: dict[str, int] = {}

    def news(self) -> dict[str, Any]:
        """The site's cookies if they have changed: what a log-in brought is stored no later than its outcome."""
        if self._told == (revision := self._jar.revision(self._site)):
            return {}
        self._told = revision
        return {self._place: self._jar.dump(self._site)}

    def take(self, request: Request) -> None:
        """Take up what a request brought along."""
        if request.meta and COOKIES in request.meta:
            self._jar.load(self._site, request.meta[COOKIES])

    def lend(self, links: Sequence[Request], *, always: bool = False) -> tuple[Request, ...]:
        """The links, those that go first to other hosts with cookies; what was given along before is not `always`."""
        first: dict[str, int] = {}
        for place, link in enumerate(links):
            if link.site != self._site:
                known = first.setdefault(link.site, place)
                if link.priority > links[known].priority:
                    first[link.site] = place
        found = list(links)
        for site, place in first.items():
            revision = self._jar.revision(site)
            if (always or self._lent.get(site) != revision) and (plain := self._jar.shared(self._site, site)):
                self._lent[site] = revision
                meta = {**(found[place].meta or {}), COOKIES: plain}
                found[place] = msgspec.structs.replace(found[place], meta=meta)
        return tuple(found)
