"""What a crawl that was troubled on purpose must leave behind, judged from the web's log and from what was stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from gossamer.sim.answer import FORBIDDEN, Fate
from gossamer.sim.log import SimRequest, disallowed, fetched

_ON_THE_WIRE_SECONDS = 1.0
"""What was sent before a kill, or in the moment of waking up, has reached a busy server by then."""


class Blow(NamedTuple):
    """Something that was done to the crawl. A worker that is stopped wakes up at `until`."""

    kind: Literal["worker killed", "all killed", "worker stopped"]
    at: float
    until: float = 0.0


class ImpoliteGap(msgspec.Struct, frozen=True):
    """Two requests that were too close to one another."""

    site: str
    at: float
    seconds: float
    """From the headers of the one to the arrival of the other; negative if they overlapped."""


class StoredRow(NamedTuple):
    """A stored page."""

    url: str
    status: int


class ProofVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """All that is wanted is that the first four are empty."""

    lost: tuple[str, ...]
    """Pages of the plan that no sink, or not every sink, has with the answer that they give."""
    stored_twice: dict[str, int]
    impolite: tuple[ImpoliteGap, ...]
    forbidden: dict[str, int]
    """Fetched though robots.txt forbids it."""
    pages: int
    requests: int
    """Without those for robots.txt."""
    fetched_again: int
    again_at_most: int
    """What the blows explain: everything that was in hand."""
    gaps: int
    least_gap: float | None
    late: int
    """Requests that a stopped worker was about to write and wrote as it woke: nothing can call them back."""

    @property
    def is_good(self) -> bool:
        """Whether every promise was kept."""
        broken = self.lost or self.stored_twice or self.impolite or self.forbidden
        return not broken and self.fetched_again <= self.again_at_most


def judge(
    log: Sequence[SimRequest],
    stored: Mapping[str, Iterable[StoredRow]],
    fates: Mapping[str, Fate],
    *,
    blows: Sequence[Blow],
    delay: float,
    in_hand: int,
) -> ProofVerdict:
    """Compare what happened with the plan. `stored` are the rows of each sink, `in_hand` what one blow can cost."""
    wanted = {url for url, fate in fates.items() if fate not in FORBIDDEN and fate != "optional"}
    lost: set[str] = set()
    twice: dict[str, int] = {}
    for rows in stored.values():
        counts, good = Counter[str](), set[str]()
        for url, status in rows:
            counts[url] += 1
            if fates.get(url) not in ("page", "flaky") or status == 200:
                good.add(url)
        lost |= wanted - good
        twice |= {url: count for url, count in counts.items() if count > 1}
    asked = fetched(log)
    once = {url for url in asked if fates.get(url) != "flaky"}
    least, impolite, gaps, late = politeness(log, blows, delay=delay)
    return ProofVerdict(
        lost=tuple(sorted(lost)),
        stored_twice=twice,
        impolite=impolite,
        forbidden=dict(disallowed(log, (url for url, fate in fates.items() if fate in FORBIDDEN))),
        pages=len(wanted),
        requests=asked.total(),
        fetched_again=sum(asked[url] - 1 for url in once),
        again_at_most=len(blows) * in_hand,
        gaps=gaps,
        least_gap=least,
        late=late,
    )


def politeness(
    log: Sequence[SimRequest], blows: Sequence[Blow], *, delay: float
) -> tuple[float | None, tuple[ImpoliteGap, ...], int, int]:
    """The smallest gap, those below the delay, how many gaps there were, and how many requests came late.

    A request whose sender was killed ended then: nobody waits for its answer, and the delay counts from the kill."""
    sites: dict[str, list[SimRequest]] = defaultdict(list)
    last_of_port = {(entry.site, entry.port): entry for entry in log}
    for entry in log:
        sites[entry.site].append(entry)
    kills = [blow.at for blow in blows if blow.kind != "worker stopped"]
    wakes = [blow.until for blow in blows if blow.kind == "worker stopped"]
    least: float | None = None
    wrong: list[ImpoliteGap] = []
    count = 0
    came_late: set[tuple[str, float]] = set()
    for site, entries in sites.items():
        before = entries[0]
        for entry in entries[1:]:
            gap = entry.arrived_at - before.headers_at
            count += 1
            if gap < delay and before is last_of_port[site, before.port]:
                # It may have been on its way when its sender died.
                died = [
                    kill
                    for kill in kills
                    if before.arrived_at <= kill + _ON_THE_WIRE_SECONDS
                    and before.headers_at >= kill
                    and entry.arrived_at >= kill + delay
                ]
                gap = entry.arrived_at - max(died) if died else gap
            woken = [wake for wake in wakes if _just_after(wake, before) or _just_after(wake, entry)]
            if gap < delay and woken and (site, woken[0]) not in came_late:
                came_late.add((site, woken[0]))
            else:
                if gap < delay:
                    wrong.append(ImpoliteGap(site, entry.arrived_at, gap))
                least = gap if least is None else min(least, gap)
            before = max(before, entry, key=lambda one: one.headers_at)
    return least, tuple(wrong), count, len(came_late)


def _just_after(wake: float, entry: SimRequest) -> bool:
    return wake <= entry.arrived_at <= wake + _ON_THE_WIRE_SECONDS
