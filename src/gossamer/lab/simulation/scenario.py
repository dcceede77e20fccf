"""Scenarios: the sites, the workers, and the faults that a seed determines."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, overload

import msgspec

from gossamer.settings import Settings

Temper = Literal["fine", "slow", "flaky", "broken", "dead", "gone"]
TEMPERS: tuple[Temper, ...] = ("fine", "fine", "fine", "fine", "slow", "flaky", "broken", "dead", "gone")
Fault = Literal["forget", "sleep", "disk", "move"]
FAULTS: tuple[Fault, ...] = ("forget", "sleep", "disk", "move")
"""Faults that affect a whole fleet."""
_MANY_WORKERS = 50
ROBOTS_SECONDS = 40.0
"""Lifetime of a robots.txt in scenarios in which one changes."""


@dataclass(frozen=True)
class SiteSpec:
    """One host: a tree of pages, with links to other hosts and to disallowed pages."""

    host: str
    pages: int
    temper: Temper
    trip_seconds: float
    """Round-trip time from a worker."""
    answer_seconds: float
    faults: int
    """Number of first responses that fail, if it is flaky."""
    crawl_delay: float
    robots: Literal["none", "rules", "late"]
    """No robots.txt, one that disallows /private, or one that first returns 503."""
    closes_at: float
    """Time from which robots.txt also disallows the leaves of the tree; 0: never."""
    moves: bool
    """Whether links to some pages lead to redirects."""
    links: tuple[str, ...]

    @property
    def answers(self) -> bool:
        """Whether its pages can be fetched."""
        return self.temper not in ("broken", "dead", "gone")


class ScenarioSites(Sequence[SiteSpec]):
    """The sites of a seed, created on access: a million of them take no memory."""

    def __init__(self, seed: int, count: int, *, pages: int = 0, closing: bool = False, crossed: bool = False) -> None:
        self._seed, self._count, self._pages, self._closing = seed, count, pages, closing
        self._crossed = crossed
        self._made = lru_cache(maxsize=4096)(self._make)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> SiteSpec: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[SiteSpec]: ...
    def __getitem__(self, number: int | slice) -> SiteSpec | Sequence[SiteSpec]:
        if isinstance(number, slice):
            return [self._made(each) for each in range(self._count)[number]]
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self._made(number)

    def of(self, host: str) -> SiteSpec:
        """The site with this host name."""
        return self[int(host.partition(".")[0][1:])]

    def parent(self, host: str, page: int) -> str:
        """The site of the only page that links to this one: page `(page - 1) // 2` there.

        In crossed scenarios it is mostly another site, so that a lost link is a lost page."""
        number = int(host.partition(".")[0][1:])
        other = self[(number + page) % self._count] if self._crossed else self[number]
        return other.host if other.answers and (page - 1) // 2 < other.pages else host

    def children(self, spec: SiteSpec, page: int) -> list[tuple[SiteSpec, int]]:
        """The pages that only this page links to."""
        wanted = (2 * page + 1, 2 * page + 2)
        sites = self[:] if self._crossed else [spec]
        return [
            (site, child)
            for child in wanted
            for site in sites
            if child < site.pages and self.parent(site.host, child) == spec.host
        ]

    def _make(self, number: int) -> SiteSpec:
        chance = random.Random(f"site/{self._seed}/{number}")
        temper = chance.choice(TEMPERS)
        # A site that closes its pages later must be large and slow enough to have some left then.
        closes = self._closing and not number
        return SiteSpec(
            host=f"s{number}.test",
            pages=self._pages or (40 if closes else chance.choice((1, 2, 4, 9))),
            temper=temper,
            trip_seconds=chance.uniform(0.001, 0.3),
            answer_seconds=chance.choice((5.0, 30.0)) if temper == "slow" else chance.uniform(0.001, 0.5),
            faults=chance.randint(1, 4),
            crawl_delay=4.0 if closes else chance.choice((0.0, 0.0, 0.0, 4.0)),
            robots=chance.choice(("none", "rules", "rules", "late")),
            closes_at=chance.uniform(1.0, 30.0) if closes else 0.0,
            moves=chance.random() < 0.3,
            links=tuple(f"s{chance.randrange(self._count)}.test" for _ in range(2)),
        )


@dataclass(frozen=True)
class Scenario:
    """All choices made before a run; choices during the run derive from the same seed."""

    seed: int
    stores: Literal["owner", "fleet", "shards"]
    """Where results go: to the files of the frontier's owner, or to each worker's own files with a shared frontier,
    which is one process that never fails, or shards on servers that can fail."""
    sites: ScenarioSites
    workers: int
    kills: int
    pauses: int
    cuts: int
    """Number of network partitions between a worker and the frontier."""
    restarts: int
    """Number of kills of all processes with a restart; only if one process owns the frontier."""
    forgets_seconds: float
    """Seconds of last writes that the store loses at a restart."""
    loss: float
    """Share of calls to the frontier that are lost, late, duplicated, or lose their reply."""
    store_faults: float
    """Share of writes that a store temporarily rejects."""
    skew_seconds: float
    drift: float
    poison: str
    """A page that crashes its worker; empty if there is none."""
    seconds: float
    """Time after which a continuous crawl is checked; 0: the crawl finishes."""
    settings: Settings
    servers: int = 0
    shards: int = 0
    forgets: int = 0
    """Number of crashes or fail-overs of a server that lose its last writes."""
    sleeps: int = 0
    """Number of pauses of all workers at once, for longer than their leases."""
    disks: int = 0
    """Number of losses of a worker's results."""
    moves: int = 0
    """Number of moves of a shard to another server."""


def draw(seed: int, *, fault: str = "", workers: int = 0, sites: int = 0, pages: int = 0) -> Scenario:
    """Draw the scenario of a seed, optionally with a fault of the whole fleet; given values override drawn ones."""
    if fault:
        return _draw_fleet(seed, fault, workers=workers, sites=sites, pages=pages)
    chance = random.Random(f"scenario/{seed}")
    number = workers or chance.randint(1, 4)
    is_large = number > _MANY_WORKERS
    closing = chance.random() < 0.1
    specs = ScenarioSites(seed, sites or chance.randint(2, 6), pages=pages, closing=closing)
    stores: Literal["owner", "fleet"] = chance.choice(("owner", "fleet"))
    troubled = chance.random() < 0.85
    poisoned = [spec for spec in specs[:20] if spec.temper == "fine" and spec.pages > 2]
    is_poisoned = troubled and poisoned and chance.random() < 0.1
    poison = f"http://{chance.choice(poisoned).host}/p2" if is_poisoned else ""
    limits = _limits(chance)
    if closing:
        limits["robots_seconds"] = ROBOTS_SECONDS
    return Scenario(
        seed=seed,
        stores=stores,
        sites=specs,
        workers=number,
        kills=chance.randint(0, 2 * number) if troubled else 0,
        pauses=chance.randint(0, number) if troubled else 0,
        cuts=chance.randint(0, number) if troubled else 0,
        restarts=chance.choice((0, 0, 1, 2)) if troubled and stores == "owner" else 0,
        forgets_seconds=chance.choice((0.0, 1.0)),
        loss=chance.choice((0.0, 0.02) if is_large else (0.0, 0.02, 0.1, 0.3)) if troubled else 0.0,
        store_faults=chance.choice((0.0, 0.0, 0.001) if is_large else (0.0, 0.0, 0.05, 0.2)),
        skew_seconds=chance.choice((0.0, 5.0, 3600.0, 10 * 86_400.0, 90 * 86_400.0)),
        drift=chance.choice((0.0, 1e-5, 1e-4)),
        poison=poison,
        seconds=700.0 if "recrawl" in limits else 0.0,
        settings=Settings(
            delay=chance.choice((0.2, 0.5, 1.0, 3.0)),
            lease_seconds=chance.choice((10.0, 20.0, 60.0)),
            connect_seconds=chance.choice((2.0, 5.0)),
            batch=chance.choice((1, 4, 32)),
            concurrency=chance.choice((1, 3, 7)),
            commit_seconds=chance.choice((0.0, 0.1, 2.0)),
            backoff_seconds=2.0,
            backoff_max_seconds=60.0,
            site_failures=8,
            tries=6,
            strategy=chance.choice(("bfs", "dfs")),
            trail=False,
            alike_pages=0,
            **limits,
        ),
    )


def _draw_fleet(seed: int, fault: str, *, workers: int, sites: int, pages: int) -> Scenario:
    """Draw a scenario of a fleet with its frontier on servers: few faults besides the given one."""
    chance = random.Random(f"scenario/{fault}/{seed}")
    number = workers or chance.randint(1, 4)
    base = draw(seed, workers=number, sites=sites or chance.randint(2, 6), pages=pages)
    servers = chance.choice((2, 2, 3)) if fault == "move" else chance.choice((1, 2, 2, 3))
    limits: dict[str, Any] = {
        name: getattr(Settings(), name)
        for name in ("max_pages", "site_budget", "site_share", "share_window", "recrawl", "robots_seconds")
    }
    return replace(
        base,
        stores="shards",
        sites=ScenarioSites(seed, len(base.sites), pages=pages, crossed=True),
        servers=servers,
        shards=servers * chance.choice((1, 2)),
        forgets=chance.choice((0, 1, 3)) if fault == "move" else chance.choice((1, 2, 4)) if fault == "forget" else 0,
        sleeps=chance.choice((1, 2, 5)) if fault == "sleep" else 0,
        disks=chance.choice((1, 2)) if fault == "disk" else 0,
        moves=chance.choice((1, 2, 4)) if fault == "move" else 0,
        kills=chance.choice((0, 0, number)),
        pauses=chance.choice((0, 0, number)),
        cuts=chance.choice((0, 0, number)),
        restarts=0,
        loss=chance.choice((0.0, 0.0, 0.02, 0.1)),
        store_faults=chance.choice((0.0, 0.0, 0.05)),
        poison="",
        seconds=0.0,
        settings=msgspec.structs.replace(
            base.settings,
            **limits,
            scope="any",
            forget_seconds=chance.choice((5.0, 10.0)),
        ),
    )


def _limits(chance: random.Random) -> dict[str, Any]:
    """Settings that limit a crawl, or make it continuous."""
    kind = chance.choice(("", "", "", "", "pages", "budget", "share", "share", "recrawl"))
    if kind == "pages":
        return {"max_pages": chance.choice((1, 3, 10))}
    if kind == "budget":
        return {"site_budget": chance.choice((1, 3, 6))}
    if kind == "share":
        return {"site_share": chance.choice((0.2, 0.4)), "share_window": chance.choice((10, 20))}
    if kind == "recrawl":
        return {"recrawl": "table", "revisit_seconds": 200.0, "revisit_failures": (300.0,)}
    return {}
