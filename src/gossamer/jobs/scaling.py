"""Computes how many workers a job can use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import msgspec

from gossamer.engine.heartbeat import is_live
from gossamer.frontier.base import FleetFrontier
from gossamer.model import Counts, Heartbeat, ShardView
from gossamer.settings import Settings

WORTH_SECONDS = 60.0
"""Less work than this does not justify another worker, and a shorter wait does not justify stopping the last one."""
_LATENCY_SECONDS = 0.25
_WORKER_PAGES = 200.0
"""Pages per second of a fully loaded worker, if not measured."""
_LANES_PER_FETCH = 16
_RELIABLE, _FULL = 0.1, 0.8
"""Loads below the first give no reliable rate; above the second, a worker delays responses itself."""
_SLACK = 0.05


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that the sites of one region can use; any worker serves the region with an empty name."""

    workers: int = 0
    live: int = 0
    """Live workers of this region."""
    lanes: int = 0
    """Lanes with work now or within a minute, including leased ones."""
    due_in: float | None = None
    """Seconds until something can be fetched, 0 if now; None if the queue is empty."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The recommended number of workers, and the reason."""

    workers: int
    why: str
    live: int = 0
    """Live workers."""
    lanes: int = 0
    """Lanes with work now or within a minute, including leased ones."""
    pages_per_second: float = 0.0
    """Pages per second of these lanes, at the delays of their sites."""
    worker_pages_per_second: float = 0.0
    """Pages per second of one worker."""
    is_measured: bool = False
    """Whether `worker_pages_per_second` was measured in the fleet, and not assumed."""
    due_in: float | None = None
    """Seconds until something can be fetched, 0 if now; None if the queue is empty."""
    regions: dict[str, Need] = {}


class SiteRate(NamedTuple):
    """Speed of workers, and latency of sites."""

    worker_pages: float
    latency: float
    is_measured: bool


def advise(
    counts: Counts,
    shards: Sequence[ShardView],
    heartbeats: Sequence[Heartbeat],
    *,
    settings: Settings,
    sites: Sequence[Mapping[str, Any]] = (),
    least: int = 0,
    most: int | None = None,
) -> Advice:
    """How many workers a job can use, from heartbeats of live workers and the sites with the most queued requests."""
    live = Counter(heartbeat.region for heartbeat in heartbeats)
    lanes, waits = _lanes(counts, shards)
    total = sum(lanes.values())
    pace = measure(heartbeats)
    lane_pages = _lane_pages(total, pace.latency, settings, sites)
    # Work that ends before a new worker has started does not justify one, however many sites it has.
    pages = min(total * lane_pages, (counts.queued + counts.leased) / WORTH_SECONDS)
    each = pages / total if total else 0.0
    full = {region: _full_workers(count, count * each, pace, settings) for region, count in lanes.items()}
    wanted = _whole(full) if counts.job == "running" else dict.fromkeys(full, 0)
    found = sum(wanted.values())
    clamped = max(found, least) if most is None else min(max(found, least), most)
    soonest = min(waits.values(), default=None)
    known = sorted({*lanes, *live, *waits})
    return Advice(
        workers=clamped,
        why=_why(counts, total, lane_pages, pages, pace, found, clamped, soonest),
        live=len(heartbeats),
        lanes=total,
        pages_per_second=round(pages, 3),
        worker_pages_per_second=round(pace.worker_pages, 1),
        is_measured=pace.is_measured,
        due_in=None if soonest is None else round(soonest, 3),
        regions={
            name: Need(workers=wanted.get(name, 0), live=live[name], lanes=lanes.get(name, 0), due_in=waits.get(name))
            for name in known
        },
    )


def measure(heartbeats: Sequence[Heartbeat]) -> SiteRate:
    """Pages per second of one worker, and latency, measured from heartbeats if possible."""
    reliable = [heartbeat for heartbeat in heartbeats if heartbeat.load >= _RELIABLE and heartbeat.rate > 0]
    worker_pages = median(heartbeat.rate / heartbeat.load for heartbeat in reliable) if reliable else _WORKER_PAGES
    # Little's law: concurrent fetches = rate x latency.
    unloaded = [heartbeat for heartbeat in heartbeats if heartbeat.load < _FULL]
    chosen = unloaded or heartbeats
    rate = sum(heartbeat.rate for heartbeat in chosen)
    latency = sum(heartbeat.fetching for heartbeat in chosen) / rate if rate > 0 else _LATENCY_SECONDS
    return SiteRate(worker_pages, max(latency if unloaded else min(latency, _LATENCY_SECONDS), 0.001), bool(reliable))


def _lanes(counts: Counts, shards: Sequence[ShardView]) -> tuple[dict[str, int], dict[str, float]]:
    """The lanes with work, and the seconds until there is work, by region."""
    lanes: dict[str, int] = {}
    waits: dict[str, float] = {}
    for shard in shards:
        for region, view in shard.regions.items():
            if view.ready + view.soon:
                lanes[region] = lanes.get(region, 0) + view.ready + view.soon
            if view.due_in is not None:
                waits[region] = min(view.due_in, waits.get(region, view.due_in))
    if not lanes and counts.leased:
        lanes[""] = max(1, counts.active_sites)
    return lanes, {**waits, **dict.fromkeys(lanes, 0.0)}


def _lane_pages(total: int, latency: float, settings: Settings, sites: Sequence[Mapping[str, Any]]) -> float:
    """Mean pages per second of a lane."""
    if not total:
        return 0.0
    known = [float(site["delay"]) for site in sites if site.get("queued")][:total]
    delays = [*known, *([settings.delay] * min(1, total - len(known)))]
    weights = [1] * len(known) + [total - len(known)]
    pages = [1.0 / (delay * settings.per_site + latency) for delay in delays]
    return sum(page * weight for page, weight in zip(pages, weights, strict=False)) / total


def _full_workers(lanes: int, pages: float, pace: SiteRate, settings: Settings) -> float:
    """The number of workers, with fraction, that are kept busy by CPU, concurrent fetches, or leased lanes."""
    busy = max(
        pages / pace.worker_pages,
        pages * pace.latency / settings.concurrency,
        lanes / (settings.concurrency * _LANES_PER_FETCH),
    )
    return min(busy, float(lanes))


def _whole(full: Mapping[str, float]) -> dict[str, int]:
    """Round up to whole workers per region; their spare capacity serves sites without a region."""
    found = {region: max(1, ceil(part - _SLACK)) for region, part in full.items() if region}
    spare = sum(count - full[region] for region, count in found.items())
    if "" in full:
        rest = full[""] - spare
        found[""] = max(0 if found else 1, ceil(rest - _SLACK))
    return found


def _why(
    counts: Counts,
    lanes: int,
    lane_pages: float,
    pages: float,
    pace: SiteRate,
    found: int,
    clamped: int,
    due_in: float | None,
) -> str:
    if counts.job != "running":
        text = f"the job is {counts.job}"
    elif not lanes:
        text = "the queue is empty" if due_in is None else f"nothing can be fetched for {due_in:,.0f} s"
    else:
        sites = "1 site is" if lanes == 1 else f"{lanes:,} sites are"
        text = f"{sites} ready, or soon will be, at {_pages(lane_pages)}"
        if lanes > 1:
            text += " each"
        if pages < lanes * lane_pages * (1 - _SLACK):
            text += f", but only {counts.queued + counts.leased:,} pages are queued"
        text += f"; a worker fetches {_pages(pace.worker_pages)}{'' if pace.is_measured else ' (assumed)'}"
        text += ": 1 worker is enough" if found == 1 else f": {found:,} workers have work"
    if clamped != found:
        text += f"; limited to {clamped:,}"
    return text


def _pages(rate: float) -> str:
    text = f"{rate:,.0f}" if rate >= 9.95 else f"{rate:.2g}"
    return f"{text} page{'' if text == '1' else 's'}/s"


async def scale(fleet: FleetFrontier, *, least: int = 0, most: int | None = None) -> Advice:
    """How many workers the job can use at this moment."""
    counts, shards, sites = await fleet.counts(), await fleet.shards(), await fleet.sites(100)
    heartbeats = [heartbeat for heartbeat in await fleet.workers() if is_live(heartbeat)]
    return advise(counts, shards, heartbeats, settings=fleet.settings, sites=sites, least=least, most=most)
