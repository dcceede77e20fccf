"""How many workers a job can use."""

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
"""Work for less time than this is not worth another worker, nor is a shorter wait worth ending the last one."""
_LATENCY_SECONDS = 0.25
_WORKER_PAGES = 200.0
"""What a worker's processor manages in a second, where it has not been measured."""
_LANES_PER_FETCH = 16
_TELLING, _FULL = 0.1, 0.8
"""A worker that does less than the first tells little; the answers of one that does more than the second wait on it."""
_SLACK = 0.05


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What the sites of one region can feed; the region without a name is every worker's."""

    workers: int = 0
    live: int = 0
    """Workers of this region that are there."""
    lanes: int = 0
    """With work now or within a minute; those that are being fetched too."""
    due_in: float | None = None
    """Seconds until something can be fetched, 0 where that is now; None if nothing waits."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers to run, and why."""

    workers: int
    why: str
    live: int = 0
    """Workers that are there."""
    lanes: int = 0
    """With work now or within a minute; those that are being fetched too."""
    pages_per_second: float = 0.0
    """What these lanes give, at the pace that their sites allow."""
    worker_pages_per_second: float = 0.0
    """What one worker manages."""
    is_measured: bool = False
    """Whether this was seen in the fleet, and not assumed."""
    due_in: float | None = None
    """Seconds until something can be fetched, 0 where that is now; None if nothing waits."""
    regions: dict[str, Need] = {}


class SiteRate(NamedTuple):
    """How fast workers and sites are."""

    worker_pages: float
    latency: float
    is_measured: bool


def advise(
    counts: Counts,
    shards: Sequence[ShardView],
    pulses: Sequence[Heartbeat],
    *,
    settings: Settings,
    sites: Sequence[Mapping[str, Any]] = (),
    least: int = 0,
    most: int | None = None,
) -> Advice:
    """How many workers this job can feed. `pulses` are those of live workers, `sites` those with the most queued."""
    live = Counter(pulse.region for pulse in pulses)
    lanes, waits = _lanes(counts, shards)
    total = sum(lanes.values())
    pace = measure(pulses)
    lane_pages = _lane_pages(total, pace.latency, settings, sites)
    # Work that is over before a worker has started keeps nobody busy, however many sites it is spread over.
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
        live=len(pulses),
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


def measure(pulses: Sequence[Heartbeat]) -> SiteRate:
    """What one worker manages, and how long an answer takes, as far as the workers have shown it."""
    telling = [pulse for pulse in pulses if pulse.load >= _TELLING and pulse.rate > 0]
    worker_pages = median(pulse.rate / pulse.load for pulse in telling) if telling else _WORKER_PAGES
    # By Little's law: as many are under way as come in the time that one takes.
    calm = [pulse for pulse in pulses if pulse.load < _FULL]
    asked = calm or pulses
    rate = sum(pulse.rate for pulse in asked)
    latency = sum(pulse.fetching for pulse in asked) / rate if rate > 0 else _LATENCY_SECONDS
    return SiteRate(worker_pages, max(latency if calm else min(latency, _LATENCY_SECONDS), 0.001), bool(telling))


def _lanes(counts: Counts, shards: Sequence[ShardView]) -> tuple[dict[str, int], dict[str, float]]:
    """The lanes with something to fetch, and the seconds until there is something, by region."""
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
    """Pages a second that a lane gives, in the mean."""
    if not total:
        return 0.0
    known = [float(site["delay"]) for site in sites if site.get("queued")][:total]
    delays = [*known, *([settings.delay] * min(1, total - len(known)))]
    weights = [1] * len(known) + [total - len(known)]
    pages = [1.0 / (delay * settings.per_site + latency) for delay in delays]
    return sum(page * weight for page, weight in zip(pages, weights, strict=False)) / total


def _full_workers(lanes: int, pages: float, pace: SiteRate, settings: Settings) -> float:
    """How many workers, and what part of one, are kept fully busy: by processor, fetches at once, or lanes held."""
    busy = max(
        pages / pace.worker_pages,
        pages * pace.latency / settings.concurrency,
        lanes / (settings.concurrency * _LANES_PER_FETCH),
    )
    return min(busy, float(lanes))


def _whole(full: Mapping[str, float]) -> dict[str, int]:
    """Whole workers for each region; what they have to spare takes the sites of no region."""
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
        said = f"the job is {counts.job}"
    elif not lanes:
        said = "nothing waits" if due_in is None else f"nothing can be fetched for {due_in:,.0f} s"
    else:
        sites = "1 site is" if lanes == 1 else f"{lanes:,} sites are"
        said = f"{sites} ready, or soon will be, at {_pages(lane_pages)}"
        if lanes > 1:
            said += " each"
        if pages < lanes * lane_pages * (1 - _SLACK):
            said += f", but only {counts.queued + counts.leased:,} pages wait"
        said += f"; a worker manages {_pages(pace.worker_pages)}{'' if pace.is_measured else ' (assumed)'}"
        said += ": 1 worker is enough" if found == 1 else f": {found:,} workers have work"
    if clamped != found:
        said += f"; {clamped:,} by the limit that was set"
    return said


def _pages(rate: float) -> str:
    text = f"{rate:,.0f}" if rate >= 9.95 else f"{rate:.2g}"
    return f"{text} page{'' if text == '1' else 's'}/s"


async def scale(fleet: FleetFrontier, *, least: int = 0, most: int | None = None) -> Advice:
    """How many workers the job can feed at this moment."""
    counts, shards, sites = await fleet.counts(), await fleet.shards(), await fleet.sites(100)
    pulses = [pulse for pulse in await fleet.workers() if is_live(pulse)]
    return advise(counts, shards, pulses, settings=fleet.settings, sites=sites, least=least, most=most)
