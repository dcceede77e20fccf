"""How fresh copies of changing pages are, and how a budget of visits keeps them freshest: pure mathematics.

A page changes at a rate r (a Poisson process) and is visited every I seconds. Its copy is then fresh for a share of

    F = (1 - e^-rI) / rI

of the time. Given so many visits a second for all pages, the sum of F is largest where one visit more would gain
as much on every page (Cho and Garcia-Molina, 2003). That gain is the *price* p of a visit, and it fixes every interval:

    1 - (1 + rI) e^-rI = p r

Pages with p r >= 1 change too fast to be worth a visit, and wait as long as is allowed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gossamer.model import Counts

DAY_SECONDS = 86_400.0
TALLY = "rates"
"""Keys of a site's memo that hold what is known of its pages, one for each lane: a lane has one writer."""
_BINS = 24
_STEPS = 20


def freshness(rate: float, interval: float) -> float:
    """The share of the time during which a copy is fresh, if its page changes at `rate` and is visited so often."""
    expected = rate * interval
    return -math.expm1(-expected) / expected if expected > 1e-9 else 1.0


def interval_at(price: float, rate: float, *, shortest: float, longest: float) -> float:
    """The best time between two visits of a page that changes at `rate`, where a visit costs `price`."""
    wanted = price * rate
    if wanted >= 1.0:
        return longest
    # The gain is at most half the square of the changes: this is a good guess for few, and a bound for many.
    low = high = math.sqrt(2.0 * wanted)
    while _gain(high) < wanted:
        high = 1.5 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _gain(middle) < wanted else (low, middle)
    return min(max(high / rate, shortest), longest)


def _gain(changes: float) -> float:
    return -math.expm1(-changes) - changes * math.exp(-changes)


def price_of(
    groups: Sequence[tuple[float, float]], visits_per_second: float, *, shortest: float, longest: float
) -> float:
    """The price at which groups of pages (how many, their rate) take so many visits a second altogether."""

    def demand(price: float) -> float:
        return sum(
            count / interval_at(price, rate, shortest=shortest, longest=longest) for count, rate in groups if rate > 0
        )

    low, high = 1e-12, longest * 4.0
    if demand(low) <= visits_per_second:
        return low
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if demand(middle) > visits_per_second else (low, middle)
    return high


def estimated_rate(looks: float, changes: float, watched_seconds: float, *, prior_seconds: float) -> float:
    """Changes a second of a page that was found changed `changes` times in `looks`; never 0.

    Several changes between two looks are seen as one, which the logarithm makes up for. It is as if there had been one
    look more, after `prior_seconds` and with half a change: so little is not taken for much."""
    still = (looks - changes + 0.5) / (looks + 1.0)
    return -math.log(still) * (looks + 1.0) / (watched_seconds + prior_seconds)


def tallied(
    tally: Mapping[str, Any], old: tuple[float, float] | None, new: tuple[float, float] | None
) -> dict[str, Any]:
    """A lane's tally after a page had `old` and has `new`, each (rate, freshness); None is no page.

    `n` pages, the sum `f` of their freshness, and in `b`, by size of the rate, their number and the sum of rates."""
    bins = {name: list(entry) for name, entry in tally.get("b", {}).items()}
    count, fresh = tally.get("n", 0), tally.get("f", 0.0)
    for page, by in ((old, -1), (new, 1)):
        if page is not None:
            rate, share = page
            count, fresh = count + by, fresh + by * share
            entry = bins.setdefault(_bin(rate), [0, 0.0])
            entry[0] += by
            entry[1] += by * rate
    # Pages move between lanes, so a lane's own sums may be negative; only their total means something.
    kept = {name: entry for name, entry in bins.items() if entry[0] or abs(entry[1]) > 1e-12}
    return {"n": count, "f": round(fresh, 6), "b": kept}


def summed(memo: Mapping[str, Any]) -> tuple[int, int]:
    """Pages, and millionths of their freshness, in the tallies of a memo or of a part of it.

    In whole numbers, so that a store that keeps the sums of all sites takes out what it has put in."""
    tallies = [tally for name, tally in memo.items() if name.startswith(TALLY)]
    return sum(tally.get("n", 0) for tally in tallies), sum(round(tally.get("f", 0.0) * 1e6) for tally in tallies)


def share_of(pages: int, millionths: int) -> float | None:
    """The predicted freshness by such sums; None while no page is known."""
    return min(1.0, max(0.0, millionths / 1e6 / pages)) if pages >= 1 else None


def mean(counts: Iterable[Counts]) -> float | None:
    """The predicted freshness of several shards together."""
    known = [(found.freshness, max(found.revisits, 1)) for found in counts if found.freshness is not None]
    return sum(fresh * pages for fresh, pages in known) / sum(pages for _, pages in known) if known else None


def _bin(rate: float) -> str:
    return str(max(-_BINS, min(_BINS, math.floor(math.log2(max(rate, 1e-12) * DAY_SECONDS)))))


class Population:
    """The pages of a crawl by how they change, from the tallies of the sites that were met; its size is bounded."""

    def __init__(self, most: int = 50_000) -> None:
        self._most = most
        self._one_of = 1
        self._tallies: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._count = self._fresh = 0.0
        self._bins: dict[str, list[float]] = {}

    def learn(self, site: str, memo: Mapping[str, Any]) -> None:
        """Take up what a site's memo, or a part of it, says."""
        for name, tally in memo.items():
            if not name.startswith(TALLY) or not self._is_kept(site):
                continue
            self._add(self._tallies.get((site, name), {}), -1)
            self._tallies[site, name] = tally
            self._add(tally, 1)
        if len(self._tallies) > self._most:
            self._thin_out()

    def _is_kept(self, site: str) -> bool:
        # Of very many sites every other one, every fourth, ... stands for all.
        return zlib.crc32(site.encode()) % self._one_of == 0

    def _thin_out(self) -> None:
        self._one_of *= 2
        for site, name in list(self._tallies):
            if not self._is_kept(site):
                self._add(self._tallies.pop((site, name)), -1)

    def _add(self, tally: Mapping[str, Any], by: int) -> None:
        self._count += by * tally.get("n", 0)
        self._fresh += by * tally.get("f", 0.0)
        for name, (count, rates) in tally.get("b", {}).items():
            entry = self._bins.setdefault(name, [0.0, 0.0])
            entry[0] += by * count
            entry[1] += by * rates

    @property
    def pages(self) -> int:
        """About how many pages there are."""
        return round(max(self._count, 0.0)) * self._one_of

    def groups(self) -> list[tuple[float, float]]:
        """The pages as groups: how many, and their mean rate."""
        return [
            (count * self._one_of, rates / count) for count, rates in self._bins.values() if count > 0 and rates > 0
        ]

    def freshness(self) -> float | None:
        """The predicted share of copies that are fresh at any moment; None while no page is known."""
        return min(1.0, max(0.0, self._fresh / self._count)) if self._count >= 1 else None
