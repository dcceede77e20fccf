"""The shape of the web in a few constants: hosts, their sizes, and how much of them a polite crawler gets in a time."""

from __future__ import annotations

from typing import NamedTuple

PAGES_PER_HOST = 52.7
"""Common Crawl CC-MAIN-2026-30: 2.136 bn pages on 40.5 M hosts."""
KNOWN_HOSTS = 1.3e9
"""Nodes of the host graph of 2017 (Funel 2018): the most that anybody has published."""
EXPONENT = 0.75
"""Size of a host over its rank, as r^-0.75: then the top 500 of 33.3 M domains hold 5.3 % of the pages; in
CC-MAIN-2026-30 they hold 5.1 %, under a budget that cuts the largest, so that the real web is steeper."""
GOOD_ANSWERS = 0.82
"""Of requests, 200 in CC-MAIN-2026-30; redirects, 404 and failures are the rest."""
FETCHED_SHARE, WAITING_SHARE = 0.57, 0.14
"""Of the URLs that Common Crawl knows, those that it has fetched, and those that it has not yet."""
LINKS, LINKS_ELSEWHERE = 49, 6
"""Links of a page, and those to other sites: medians of the Web Almanac 2025."""


class Hosts(NamedTuple):
    """So many hosts that have so many pages together, by a power law with a first rank."""

    pages: float
    number: float
    exponent: float = EXPONENT

    @property
    def largest(self) -> float:
        """Pages of the largest."""
        return self.pages / (1 + self._integral(self.number))

    def share_of_top(self, ranks: float) -> float:
        """The share of all pages that the largest hosts have."""
        return (1 + self._integral(ranks)) / (1 + self._integral(self.number))

    def above(self, pages: float) -> float:
        """How many hosts have more pages than this."""
        if self.largest <= pages:
            return 0.0
        return min(self.number, float((self.largest / pages) ** (1 / self.exponent)))

    def within(self, pages_each: float) -> float:
        """Pages that can be had if no host gives more than this: the sum of the lesser of both, over all hosts."""
        ranks = self.above(pages_each)
        if ranks < 1:
            return self.pages
        return self.pages - (self.largest * (1 + self._integral(ranks)) - pages_each * ranks)

    def _integral(self, ranks: float) -> float:
        """Of r^-exponent from 1 to `ranks`."""
        power = 1 - self.exponent
        return float((ranks**power - 1) / power)


def usual_hosts(pages: float) -> float:
    """How many hosts so many pages are on, as far as is known."""
    return max(1.0, min(pages / PAGES_PER_HOST, KNOWN_HOSTS))
