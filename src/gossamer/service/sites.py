"""Endpoints of sites: the list, one site, and the map of sites by region."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal

from gossamer import urls
from gossamer.engine.robots_txt import unpack
from gossamer.frontier.placement import region_of
from gossamer.jobs.job import Job
from gossamer.service.monitor import MonitoredJob
from gossamer.service.routing import ApiError, ApiRequest, Endpoint
from gossamer.service.schemas import (
    MapQuery,
    MapRegion,
    Rest,
    RobotsView,
    SiteDetail,
    SiteMap,
    SiteQuery,
    SiteRow,
    Sites,
    SitesQuery,
    SiteState,
    Square,
)
from gossamer.service.state import ServiceState, decode_cursor, encode_cursor
from gossamer.service.statistics import SiteCounters

MOST_SITES, MOST_REGIONS = 200, 40
By = Literal["queued", "stored", "requests"]


def site_map(job: str, rows: Sequence[SiteRow], *, by: By, total: int | None) -> SiteMap:
    """Build the map: at most 200 sites per region and 40 regions, largest first."""
    regions: defaultdict[str, list[SiteRow]] = defaultdict(list)
    for row in rows:
        regions[row.region].append(row)
    largest = sorted(regions, key=lambda region: (-sum(_size(row, by) for row in regions[region]), region))
    for region in largest[MOST_REGIONS:]:
        # Too small to be visible; their sites are counted as `unseen`.
        del regions[region]
    shown = sum(map(len, regions.values()))
    return SiteMap(
        job=job,
        by=by,
        total=total,
        regions=[_region(region, regions[region], by) for region in largest[:MOST_REGIONS]],
        unseen=max(0, (total or 0) - shown),
    )


def site_state(row: SiteRow) -> SiteState:
    """The state of a site."""
    if row.closed:
        return "closed"
    if row.hold > 0:
        return "held"
    if row.requests and row.errors * 2 > row.requests:
        return "failing"
    return "fetching" if row.leased else "waits" if row.queued else "idle"


def _region(region: str, rows: list[SiteRow], by: By) -> MapRegion:
    rows.sort(key=lambda row: (-_size(row, by), row.site))
    rest = rows[MOST_SITES:]
    return MapRegion(
        region=region,
        sites=[_square(row) for row in rows[:MOST_SITES]],
        rest=Rest(
            sites=len(rest),
            queued=sum(_size(row, "queued") for row in rest),
            stored=sum(_size(row, "stored") for row in rest),
            requests=sum(_size(row, "requests") for row in rest),
        ),
    )


def _size(row: SiteRow, by: By) -> int:
    return getattr(row, by) or 0


def _square(row: SiteRow) -> Square:
    return Square(
        site=row.site,
        state=site_state(row),
        queued=row.queued or 0,
        stored=row.stored or 0,
        requests=row.requests,
        errors=row.errors,
        hold=row.hold,
        closed=row.closed,
    )


_LOOKED_AT, _MOST = 1000, 10_000
_MOST_MEMO = 50
Known = Mapping[str, Any]
Rules = Mapping[str, Sequence[str]]
NO_RULES: Rules = MappingProxyType({})


class SiteEndpoints:
    """Handlers of the endpoints about sites."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """The endpoints of this group."""
        fixed: dict[str, Any] = {"method": "GET", "tag": "fleet", "part": "tasks"}
        return [
            Endpoint(path="/api/jobs/{job}/sites", handler=self.listed, query=SitesQuery, answer=Sites,
                     summary="List sites: those with the longest queues and those with recent requests.", **fixed),
            Endpoint(path="/api/jobs/{job}/map", handler=self.map, query=MapQuery, answer=SiteMap,
                     summary="Sites by region: the largest individually, and totals of the rest.", **fixed),
            Endpoint(path="/api/jobs/{job}/site", handler=self.one, query=SiteQuery, answer=SiteDetail,
                     summary="Get a site: queue, delay, robots.txt, budget, and why it waits.", **fixed),
        ]  # fmt: skip

    async def listed(self, request: ApiRequest[SitesQuery, None]) -> Sites:
        name, query = request.path["job"], request.query
        watched = await self._service.monitor.get(name)
        handle = await self._service.directory.open(name)
        if query.sort == "site" and query.order == "asc" and not query.find and not query.held:
            return await self._all_sites(watched, handle, query)
        first = decode_cursor(query.cursor, int, 0)
        wanted = first + query.limit + 1 if query.sort == "queued" and query.order == "desc" else 0
        if not 0 <= first < _MOST:
            raise ApiError(
                404,
                f"only the first {_MOST:,} sites can be listed in this order",
                hint="use sort=site&order=asc to list all sites, or find=TEXT to search by name",
            )
        known = await handle.sites(_MOST if query.find or query.held else min(_MOST, max(_LOOKED_AT, wanted)))
        rows = self._rows(watched, handle, {str(site["site"]): site for site in known}, query.find.lower())
        if query.find and not rows and (site := await handle.site(query.find.lower())) is not None:
            rows = [_row(query.find.lower(), site, None, 0.0, handle.settings.regions)]
        if query.held:
            rows = [row for row in rows if row.hold > 0 or row.closed]
        rows.sort(key=lambda row: (_key(row, query.sort), row.site), reverse=query.order == "desc")
        shown = rows[first : first + query.limit]
        more = len(rows) > first + query.limit
        return Sites(
            job=name,
            total=watched.counts.sites if watched.counts is not None else None,
            looked_at=len(rows),
            sites=shown,
            next=encode_cursor(first + query.limit) if more else None,
        )

    async def map(self, request: ApiRequest[MapQuery, None]) -> SiteMap:
        name = request.path["job"]
        watched = await self._service.monitor.get(name)
        handle = await self._service.directory.open(name)
        known = {str(site["site"]): site for site in await handle.sites(_LOOKED_AT)}
        total = watched.counts.sites if watched.counts is not None else None
        return site_map(name, self._rows(watched, handle, known, ""), by=request.query.by, total=total)

    async def _all_sites(self, watched: MonitoredJob, handle: Job, query: SitesQuery) -> Sites:
        """One page of all sites, sorted by name."""
        try:
            known, following = await handle.every_site(decode_cursor(query.cursor, str, ""), query.limit)
        except (ValueError, IndexError, OverflowError):
            raise ApiError(404, "invalid cursor", hint="omit it to start from the first page") from None
        now, tallies, rules = self._service.clock.epoch(), watched.tally.sites, handle.settings.regions
        return Sites(
            job=watched.name,
            total=watched.counts.sites if watched.counts is not None else None,
            looked_at=len(known),
            sites=[_row(str(site["site"]), site, tallies.get(str(site["site"])), now, rules) for site in known],
            next=encode_cursor(following) if following else None,
        )

    def _rows(self, watched: MonitoredJob, handle: Job, known: Mapping[str, Known], find: str) -> list[SiteRow]:
        now, tallies, rules = self._service.clock.epoch(), watched.tally.sites, handle.settings.regions
        lately = reversed(tallies) if find else islice(reversed(tallies), _LOOKED_AT)
        names = [name for name in dict.fromkeys([*known, *lately]) if find in name]
        return [_row(name, known.get(name), tallies.get(name), now, rules) for name in names]

    async def one(self, request: ApiRequest[SiteQuery, None]) -> SiteDetail:
        job = request.path["job"]
        watched = await self._service.monitor.get(job)
        handle = await self._service.directory.open(job)
        url = urls.normal(f"http://{request.query.site}/")
        name = urls.site(url, by=handle.settings.site_by) if url is not None else request.query.site
        known = await handle.site(name)
        if known is None and request.query.site != name:
            # The site may be on port 443, which is not the default port of the http URL above.
            name, known = request.query.site, await handle.site(request.query.site)
        tally = watched.tally.sites.get(name)
        if known is None:
            raise ApiError(404, f"this job has no site {name[:300]}")
        return SiteDetail(
            job=job,
            row=_row(name, known, tally, self._service.clock.epoch(), handle.settings.regions),
            lanes=known.get("lanes"),
            budget=known.get("budget"),
            ready_in=known.get("ready_in"),
            share_left=known.get("share_left"),
            workers=[str(worker) or "the crawl's own worker" for worker in known.get("workers", ())],
            robots=[_robots(origin, packed) for origin, packed in list(known.get("robots", {}).items())[:20]],
            memo=dict(list(known.get("memo", {}).items())[:_MOST_MEMO]),
            reasons=_reasons(known),
            recent=list(tally.recent) if tally is not None else [],
        )


def _row(name: str, known: Known | None, tally: SiteCounters | None, now: float, rules: Rules = NO_RULES) -> SiteRow:
    about, seen = known or {}, tally or SiteCounters()
    # An embedded frontier stores no regions: the rules determine them.
    region = about["region"] if "region" in about else region_of(rules, name)
    return SiteRow(
        site=name,
        queued=about.get("queued"),
        leased=about.get("leased"),
        stored=about.get("stored"),
        delay=about.get("delay"),
        hold=round(about.get("hold") or 0.0, 3),
        closed=about.get("closed") or "",
        region=region or "",
        requests=seen.requests,
        errors=seen.errors,
        requests_per_second=round(seen.rate(now), 3) if tally is not None else 0.0,
        latency=round(seen.latency_sum / seen.answers, 4) if seen.answers else None,
        bytes=seen.bytes,
        last_at=seen.last_at or None,
    )


def _key(row: SiteRow, sort: str) -> Any:
    if sort == "site":
        return row.site
    value = getattr(row, {"rate": "requests_per_second"}.get(sort, sort))
    return -1 if value is None else value


def _robots(origin: str, packed: bytes) -> RobotsView:
    found = unpack(bytes(packed))
    return RobotsView(
        origin=origin,
        kind=found.kind,
        fetched_at=found.fetched_at or None,
        crawl_delay=found.rules.crawl_delay,
        rules=found.rules.count,
    )


def _reasons(known: Known) -> list[str]:
    """Sentences that explain why no request is sent to a site."""
    found: list[str] = []
    failures = known.get("memo", {}).get("failures", 0)
    if known.get("closed"):
        found.append(f"The site is closed: {known['closed']}.")
    robots = [unpack(bytes(packed)) for packed in known.get("robots", {}).values()]
    if any(one.kind == "unreachable" for one in robots):
        found.append("Its robots.txt is unreachable, so the crawler fetches nothing for now.")
    if (known.get("hold") or 0) > 0:
        after = f" after {failures} consecutive error{'s' * (failures != 1)}" if failures else ""
        found.append(f"It is on hold for another {known['hold']:.0f} s{after}.")
    if known.get("share_left") == 0:
        found.append("It has reached its quota of recent fetches and waits while other sites are ready.")
    crawl_delay = max((one.rules.crawl_delay or 0.0 for one in robots), default=0.0)
    if crawl_delay:
        found.append(f"Its robots.txt sets a Crawl-delay of {crawl_delay:g} s.")
    if known.get("workers"):
        found.append(f"It is leased by {', '.join(str(one) or 'the crawl itself' for one in known['workers'])}.")
    elif (known.get("ready_in") or 0) > 0 and not found and known.get("queued"):
        found.append(f"The next request is possible in {known['ready_in']:.1f} s.")
    return found
