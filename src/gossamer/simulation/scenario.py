"""What a seed stands for: the sites, the workers, and what befalls them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from gossamer.settings import Settings

Temper = Literal["fine", "slow", "flaky", "dead", "gone"]
TEMPERS: tuple[Temper, ...] = ("fine", "fine", "fine", "slow", "flaky", "dead", "gone")


@dataclass(frozen=True)
class SiteSpec:
    """One host: its pages are a tree, with links to other hosts and to what robots.txt forbids."""

    host: str
    pages: int
    temper: Temper
    trip_seconds: float
    """From a worker to it, and back."""
    answer_seconds: float
    faults: int
    """So many of its first answers are faults, if it is flaky."""
    crawl_delay: float
    robots: Literal["none", "rules", "late"]
    """No robots.txt, one that forbids /private, or one that is first answered with 503."""
    links: tuple[str, ...]


@dataclass(frozen=True)
class Scenario:
    """All that is chosen before a run; whatever else is drawn in it follows from the same seed."""

    seed: int
    stores: Literal["owner", "fleet"]
    """Results go to the files of the frontier's owner, or to each worker's own and then to the shared frontier."""
    sites: tuple[SiteSpec, ...]
    workers: int
    kills: int
    pauses: int
    cuts: int
    """Times that a worker cannot reach the frontier, nor the frontier it."""
    restarts: int
    """Times that everything is killed at once and taken up again; only where one process owns the frontier."""
    loss: float
    """The share of calls to the frontier of which the call, the answer or the patience is lost."""
    store_faults: float
    """The share of writes that a store refuses for now."""
    skew_seconds: float
    drift: float
    poison: str
    """A page that kills whoever handles it; empty if there is none."""
    settings: Settings


def draw(seed: int, *, workers: int = 0, sites: int = 0, pages: int = 0) -> Scenario:
    """The scenario of a seed; what is given is taken as it is, the rest is drawn."""
    chance = random.Random(f"scenario/{seed}")
    count = sites or chance.randint(2, 8)
    hosts = [f"s{number}.test" for number in range(count)]
    specs = tuple(_site(host, hosts, chance, pages) for host in hosts)
    stores: Literal["owner", "fleet"] = chance.choice(("owner", "fleet"))
    troubled = chance.random() < 0.85
    poisoned = [spec for spec in specs if spec.temper == "fine" and spec.pages > 2]
    is_poisoned = troubled and poisoned and chance.random() < 0.1
    poison = f"http://{chance.choice(poisoned).host}/p2" if is_poisoned else ""
    number = workers or chance.randint(1, 5)
    return Scenario(
        seed=seed,
        stores=stores,
        sites=specs,
        workers=number,
        kills=chance.randint(0, 2 * number) if troubled else 0,
        pauses=chance.randint(0, number) if troubled else 0,
        cuts=chance.randint(0, number) if troubled else 0,
        restarts=chance.choice((0, 0, 1, 2)) if troubled and stores == "owner" else 0,
        loss=chance.choice((0.0, 0.02, 0.1, 0.3)) if troubled else 0.0,
        store_faults=chance.choice((0.0, 0.0, 0.05, 0.2)),
        skew_seconds=chance.choice((0.0, 5.0, 3600.0, 10 * 86_400.0)),
        drift=chance.choice((0.0, 1e-5, 1e-4)),
        poison=poison,
        settings=Settings(
            delay=chance.choice((0.2, 0.5, 1.0, 3.0)),
            lease_seconds=chance.choice((10.0, 20.0, 60.0)),
            connect_seconds=chance.choice((2.0, 5.0)),
            batch=chance.choice((1, 4, 32)),
            concurrency=chance.choice((1, 3, 7)),
            commit_seconds=chance.choice((0.0, 0.1, 2.0)),
            backoff_seconds=2.0,
            backoff_max_seconds=300.0,
            site_failures=8,
            tries=6,
            strategy=chance.choice(("bfs", "dfs")),
        ),
    )


def _site(host: str, hosts: list[str], chance: random.Random, pages: int) -> SiteSpec:
    temper = chance.choice(TEMPERS)
    return SiteSpec(
        host=host,
        pages=pages or chance.choice((1, 3, 8, 20)),
        temper=temper,
        trip_seconds=chance.uniform(0.001, 0.3),
        answer_seconds=chance.choice((5.0, 30.0)) if temper == "slow" else chance.uniform(0.001, 0.5),
        faults=chance.randint(1, 4),
        crawl_delay=chance.choice((0.0, 0.0, 0.0, 4.0)),
        robots=chance.choice(("none", "rules", "rules", "late")),
        links=tuple(chance.choices(hosts, k=2)),
    )
