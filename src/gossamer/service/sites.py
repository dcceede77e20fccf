"""Endpoints of sites: lists, one site, and the map of its pages."""

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
from gossamer.service.monitor import WatchedJob
from gossamer.service.routing import ApiRequest, Endpoint, Refused
from gossamer.service.schemas import (
    AskMap,
    AskSite,
    AskSites,
    MapRegion,
    Rest,
    RobotsView,
    SiteDetail,
    SiteMap,
    SiteRow,
    Sites,
    Square,
    Standing,
)
from gossamer.service.state import ServiceState, cursor_of, position_of
from gossamer.service.statistics import SiteCounters

MOST_SITES, MOST_REGIONS = 200, 40
By = Literal["queued", "stored", "requests"]


def drawn(job: str, rows: Sequence[SiteRow], *, by: By, total: int | None) -> SiteMap:
    """At most 200 sites of each region, and 40 regions; those with most to show come first."""
    regions: defaultdict[str, list[SiteRow]] = defaultdict(list)
    for row in rows:
        regions[row.region].append(row)
    largest = sorted(regions, key=lambda region: (-sum(_size(row, by) for row in regions[region]), region))
    for region in largest[MOST_REGIONS:]:
        # They are too small to be seen beside the others; their sites are counted with those that were not looked at.
        del regions[region]
    shown = sum(map(len, regions.values()))
    return SiteMap(
        job=job,
        by=by,
        total=total,
        regions=[_region(region, regions[region], by) for region in largest[:MOST_REGIONS]],
        unseen=max(0, (total or 0) - shown),
    )


def standing(row: SiteRow) -> Standing:
    """What a site does."""
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
        state=standing(row),
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


class SitesView:
    """Handlers of sites."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """The lines of the table."""
        fixed: dict[str, Any] = {"method": "GET", "tag": "fleet", "part": "tasks"}
        return [
            Endpoint(path="/api/jobs/{job}/sites", handler=self.listed, query=AskSites, answer=Sites,
                     summary="Sites: those with the most queued, and those that were asked lately.", **fixed),
            Endpoint(path="/api/jobs/{job}/map", handler=self.map, query=AskMap, answer=SiteMap,
                     summary="The sites by region, the largest one by one and the rest added up.", **fixed),
            Endpoint(path="/api/jobs/{job}/site", handler=self.one, query=AskSite, answer=SiteDetail,
                     summary="A site: its queue, delay, robots.txt, budget, and what it waits for.", **fixed),
        ]  # fmt: skip

    async def listed(self, asked: ApiRequest[AskSites, None]) -> Sites:
        name, query = asked.path["job"], asked.query
        watched = await self._service.watch.ask(name)
        reached = await self._service.directory.reach(name)
        if query.sort == "site" and query.order == "asc" and not query.find and not query.held:
            return await self._every(watched, reached, query)
        first = position_of(query.cursor, int, 0)
        wanted = first + query.limit + 1 if query.sort == "queued" and query.order == "desc" else 0
        if not 0 <= first < _MOST:
            raise Refused(
                404,
                f"only the first {_MOST:,} sites are sorted so",
                hint="sort=site&order=asc goes through all of them; find=TEXT looks for one",
            )
        known = await reached.sites(_MOST if query.find or query.held else min(_MOST, max(_LOOKED_AT, wanted)))
        rows = self._rows(watched, reached, {str(site["site"]): site for site in known}, query.find.lower())
        if query.find and not rows and (site := await reached.site(query.find.lower())) is not None:
            rows = [_row(query.find.lower(), site, None, 0.0, reached.settings.regions)]
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
            next=cursor_of(first + query.limit) if more else None,
        )

    async def map(self, asked: ApiRequest[AskMap, None]) -> SiteMap:
        name = asked.path["job"]
        watched = await self._service.watch.ask(name)
        reached = await self._service.directory.reach(name)
        known = {str(site["site"]): site for site in await reached.sites(_LOOKED_AT)}
        total = watched.counts.sites if watched.counts is not None else None
        return drawn(name, self._rows(watched, reached, known, ""), by=asked.query.by, total=total)

    async def _every(self, watched: WatchedJob, reached: Job, query: AskSites) -> Sites:
        """A page of all sites, as the frontier keeps them."""
        try:
            known, following = await reached.every_site(position_of(query.cursor, str, ""), query.limit)
        except (ValueError, IndexError, OverflowError):
            raise Refused(404, "that cursor is not one of ours", hint="leave it out to begin anew") from None
        now, tallies, rules = self._service.clock.epoch(), watched.tally.sites, reached.settings.regions
        return Sites(
            job=watched.name,
            total=watched.counts.sites if watched.counts is not None else None,
            looked_at=len(known),
            sites=[_row(str(site["site"]), site, tallies.get(str(site["site"])), now, rules) for site in known],
            next=cursor_of(following) if following else None,
        )

    def _rows(self, watched: WatchedJob, reached: Job, known: Mapping[str, Known], find: str) -> list[SiteRow]:
        now, tallies, rules = self._service.clock.epoch(), watched.tally.sites, reached.settings.regions
        lately = reversed(tallies) if find else islice(reversed(tallies), _LOOKED_AT)
        names = [name for name in dict.fromkeys([*known, *lately]) if find in name]
        return [_row(name, known.get(name), tallies.get(name), now, rules) for name in names]

    async def one(self, asked: ApiRequest[AskSite, None]) -> SiteDetail:
        job = asked.path["job"]
        watched = await self._service.watch.ask(job)
        reached = await self._service.directory.reach(job)
        url = urls.normal(f"http://{asked.query.site}/")
        name = urls.site(url, by=reached.settings.site_by) if url is not None else asked.query.site
        known = await reached.site(name)
        if known is None and asked.query.site != name:
            # A site may be on the usual port of https, which looks unusual in an address with http.
            name, known = asked.query.site, await reached.site(asked.query.site)
        tally = watched.tally.sites.get(name)
        if known is None:
            raise Refused(404, f"{name[:300]} is no site of this job")
        return SiteDetail(
            job=job,
            row=_row(name, known, tally, self._service.clock.epoch(), reached.settings.regions),
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
    # An embedded frontier keeps no regions: there the rules alone say where a site belongs.
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
    """What keeps a site from being asked, in words."""
    found: list[str] = []
    failures = known.get("memo", {}).get("failures", 0)
    if known.get("closed"):
        found.append(f"It was given up: {known['closed']}.")
    robots = [unpack(bytes(packed)) for packed in known.get("robots", {}).values()]
    if any(one.kind == "unreachable" for one in robots):
        found.append("Its robots.txt cannot be had, so nothing may be fetched for now.")
    if (known.get("hold") or 0) > 0:
        after = f" after {failures} fault{'s' * (failures != 1)} in a row" if failures else ""
        found.append(f"It is left alone for {known['hold']:.0f} s more{after}.")
    if known.get("share_left") == 0:
        found.append("It has had its share of the last fetches, and waits while other sites are ready.")
    asked = max((one.rules.crawl_delay or 0.0 for one in robots), default=0.0)
    if asked:
        found.append(f"It asks for a delay of {asked:g} s in its robots.txt.")
    if known.get("workers"):
        found.append(f"It is in the hands of {', '.join(str(one) or 'the crawl itself' for one in known['workers'])}.")
    elif (known.get("ready_in") or 0) > 0 and not found and known.get("queued"):
        found.append(f"It may be asked again in {known['ready_in']:.1f} s.")
    return found
