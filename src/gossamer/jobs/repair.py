"""Repairs a fleet's job: requeues stored pages whose records are lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gossamer import settings as configuration
from gossamer import urls
from gossamer.engine.heartbeat import is_live
from gossamer.errors import ConfigError
from gossamer.frontier.backends import create_fleet, open_fleet
from gossamer.frontier.base import FleetFrontier
from gossamer.frontier.placement import shard_of
from gossamer.frontier.repair import FindsLost, Requeued, TakesUrls, shards_of
from gossamer.jobs.results_folder import (
    MARKER,
    Comparison,
    Marker,
    RecordedKeys,
    compare,
    counts_visits,
    is_results,
    mark,
    read_marker,
    replace_marker,
    results_folder,
)
from gossamer.model import Record, Request
from gossamer.settings import Settings
from gossamer.storage import request_log
from gossamer.storage.registry import wants_segments
from gossamer.storage.segments import all_records

_MOST = 10_000


class Repaired(NamedTuple):
    """The result of a repair."""

    folder: Path
    before: Comparison
    requeued: Requeued = Requeued()
    walked: int = 0
    """Recorded pages that are fetched again, because they may link to lost ones."""
    lost: int = 0
    """Pages that still count as stored, but have no record and no known URL."""
    written_off: int = 0
    """Pages that no longer count as stored and are not fetched again."""


async def repair(
    url: str, job: str, folder: Path, *, seeds: Sequence[str] = (), adopt: bool = False, walk: bool = False
) -> Repaired:
    """Requeue stored pages that have no record in the job's results folder. The job must have no live workers.

    `adopt` accepts the folder although its marker is missing. Redis stores no URLs of finished pages: they are taken
    from the request log, from the referrers and redirects of the records, and from `seeds`; with `walk`, the recorded
    pages are fetched again for their links."""
    await _mark(url, job, folder, adopt=adopt)
    name = f"repair-{os.uname().nodename}-{os.getpid()}"
    fleet = await open_fleet(url, job, worker=name)
    try:
        settings, place = fleet.settings, results_folder(url, job, fleet.settings, folder)
        before = await compare(fleet, place, but=name)
        if before.is_live:
            workers = await fleet.workers()
            live = [worker.worker for worker in workers if is_live(worker) and worker.worker != name]
            raise ConfigError(
                f"job {job!r} has running workers: {', '.join(sorted(live)[:5])}",
                hint=f"stop them, wait until they have exited, and repair the job then: gossamer stop {job}",
            )
        recorded = await asyncio.to_thread(RecordedKeys, place)
        shards = shards_of(fleet)
        if all(isinstance(shard, FindsLost) for shard in shards):
            found = await _requeue_found(fleet, shards, recorded, place, before)
        else:
            by_visit = counts_visits(settings, await fleet.counts())
            found = await _requeue_named(
                shards, settings, fleet.secret, recorded, place, before, seeds, walk=walk, is_by_visit=by_visit
            )
        if (found.requeued.queued or found.walked) and (await fleet.counts()).job == "stopping":
            await fleet.steer("running")
        return found
    finally:
        await fleet.aclose()


async def _mark(url: str, job: str, folder: Path, *, adopt: bool) -> None:
    """Check that this machine has the job's results folder; with `adopt`, write its marker."""
    fleet = await open_fleet(url, job)
    try:
        settings, place = fleet.settings, results_folder(url, job, fleet.settings, folder)
    finally:
        await fleet.aclose()
    if not wants_segments(settings.sink):
        raise ConfigError(
            f"job {job!r} has no segments to repair: it stores its pages on servers",
            hint=f"its sinks are {', '.join(settings.sink)}",
        )
    if settings.results_id and is_results(place, settings):
        return
    if not adopt and not settings.results_id:
        raise ConfigError(
            f"job {job!r} has no results_id, so {place} cannot be verified as its results folder",
            hint="an older version created the job; if the folder has the segments of all its workers: --adopt-folder",
        )
    if not adopt:
        marker = read_marker(place)
        what = f"has no {MARKER}" if marker is None else f"is that of job {marker.job!r}"
        raise ConfigError(
            f"{place} is not the results folder of job {job!r} on this machine: it {what}",
            hint="mount the right folder: with another one, every page would be fetched again;"
            " if the folder is lost, or this is a copy of it: --adopt-folder",
        )
    if settings.results_id:
        await asyncio.to_thread(replace_marker, place, Marker(job, settings.results_id))
        return
    found = await asyncio.to_thread(mark, place, job)
    changed = configuration.build({**configuration.dump(settings), "results_id": found})
    await (await create_fleet(url, job, changed)).aclose()


async def _requeue_found(
    fleet: FleetFrontier, shards: Sequence[FindsLost], recorded: RecordedKeys, place: Path, before: Comparison
) -> Repaired:
    """Have each shard requeue its pages that have no record, and write off those that cannot be fetched again."""
    total = Requeued()
    for shard in shards:
        total = total.plus(await shard.requeue_lost(recorded.__contains__))
    left = (await compare(fleet, place)).missing
    if left:
        await shards[0].write_off(left)
    return Repaired(place, before, total, written_off=left)


async def _requeue_named(
    shards: Sequence[TakesUrls],
    settings: Settings,
    secret: bytes,
    recorded: RecordedKeys,
    place: Path,
    before: Comparison,
    seeds: Sequence[str],
    *,
    walk: bool,
    is_by_visit: bool,
) -> Repaired:
    """Requeue the pages whose URLs are known from other sources, and with `walk` pages that may link to the others."""
    left, queued, walked = before.missing, 0, 0
    if not is_by_visit:
        # A killed worker leaves records of pages that are still queued: these do not count as stored.
        waiting = sum([await shard.waiting(recorded.__contains__) for shard in shards])
        left = max(0, before.stored - (len(recorded) - waiting))
    if not left:
        return Repaired(place, before)
    named = await asyncio.to_thread(_named, place, settings, secret, recorded, tuple(seeds))
    for number, requests in _by_shard(named, len(shards)).items():
        settled = await shards[number].settled(requests)
        # Some may have been skipped or parked: reduce the number of stored pages at most by the number of missing ones.
        stored = min(left, len(settled))
        queued += await shards[number].requeue(settled, stored=stored)
        left -= stored
    if walk and left:
        for shard in shards:
            await shard.forget_all_but(recorded.__contains__)
        for some in _in_parts(_with_links(place, settings, secret)):
            for number, requests in _by_shard(some, len(shards)).items():
                settled = await shards[number].settled(requests)
                walked += await shards[number].requeue(settled, stored=len(settled))
        await shards[0].write_off(left)
        return Repaired(place, before, Requeued(queued), walked=walked, written_off=left)
    return Repaired(place, before, Requeued(queued), lost=left)


def _named(
    place: Path, settings: Settings, secret: bytes, recorded: RecordedKeys, seeds: Sequence[str]
) -> list[Request]:
    """Requests for all URLs in the results folder that have no record."""
    found: dict[int, Request] = {}

    def take(url: str, depth: int) -> None:
        key = urls.fingerprint(secret, url)
        known = found.get(key)
        if key not in recorded and (known is None or depth < known.depth):
            found[key] = Request(url, key, urls.site(url, by=settings.site_by), 0, max(0, depth))

    deepest = settings.max_depth or 0
    for _, step in request_log.logged_requests(place, "http://", "https://"):
        if not step.skipped:
            # Its depth is unknown: assume the maximum, so that its links do not exceed max_depth.
            take(step.url, deepest)
    for record in all_records(place):
        page = record.page
        if page.referrer and (referrer := urls.normal(page.referrer)) is not None:
            take(referrer, page.depth - 1)
        if page.location and (target := urls.normal(page.location)) is not None:
            take(target, page.depth)
    for url in seeds:
        take(url, 0)
    return list(found.values())


def _with_links(place: Path, settings: Settings, secret: bytes) -> Iterator[Request]:
    """The recorded pages that have links or redirects."""
    seen: set[int] = set()
    for record in all_records(place):
        if record.key in seen or not _leads_on(record):
            continue
        seen.add(record.key)
        url = record.page.url
        if urls.fingerprint(secret, url) == record.key:
            yield Request(
                url,
                record.key,
                urls.site(url, by=settings.site_by),
                0,
                record.page.depth,
                referrer=record.page.referrer,
            )


def _leads_on(record: Record) -> bool:
    return bool(record.page.links or record.page.location)


def _by_shard(requests: Iterable[Request], shards: int) -> dict[int, list[Request]]:
    found: dict[int, list[Request]] = {}
    for request in requests:
        found.setdefault(shard_of(request.site, shards), []).append(request)
    return found


def _in_parts(requests: Iterable[Request]) -> Iterator[list[Request]]:
    part: list[Request] = []
    for request in requests:
        part.append(request)
        if len(part) >= _MOST:
            yield part
            part = []
    if part:
        yield part
