"""Sites of a job: listed in any order, and one of them with all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

from gossamer import urls
from gossamer.engine.robots_txt import unpack
from gossamer.frontier.placement import region_of
from gossamer.jobs.job import Job
from gossamer.service.asked import AskMap, AskSite, AskSites
from gossamer.service.desk import ServiceState, cursor_of, position_of
from gossamer.service.mapped import drawn
from gossamer.service.routing import ApiRequest, Endpoint, Refused
from gossamer.service.tally import SiteCounters
from gossamer.service.views import RobotsView, SiteDetail, SiteMap, SiteRow, Sites
from gossamer.service.watch import WatchedJob

_LOOKED_AT, _MOST = 1000, 10_000
_MOST_MEMO = 50
Known = Mapping[str, Any]
Rules = Mapping[str, Sequence[str]]
NO_RULES: Rules = MappingProxyType({})


class SitesView:
    """Handlers of sites."""

    def __init__(self, desk: ServiceState) -> None:
        self._desk = desk

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
        watched = await self._desk.watch.ask(name)
        reached = await self._desk.directory.reach(name)
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
        watched = await self._desk.watch.ask(name)
        reached = await self._desk.directory.reach(name)
        known = {str(site["site"]): site for site in await reached.sites(_LOOKED_AT)}
        total = watched.counts.sites if watched.counts is not None else None
        return drawn(name, self._rows(watched, reached, known, ""), by=asked.query.by, total=total)

    async def _every(self, watched: WatchedJob, reached: Job, query: AskSites) -> Sites:
        """A page of all sites, as the frontier keeps them."""
        try:
            known, following = await reached.every_site(position_of(query.cursor, str, ""), query.limit)
        except (ValueError, IndexError, OverflowError):
            raise Refused(404, "that cursor is not one of ours", hint="leave it out to begin anew") from None
        now, tallies, rules = self._desk.clock.epoch(), watched.tally.sites, reached.settings.regions
        return Sites(
            job=watched.name,
            total=watched.counts.sites if watched.counts is not None else None,
            looked_at=len(known),
            sites=[_row(str(site["site"]), site, tallies.get(str(site["site"])), now, rules) for site in known],
            next=cursor_of(following) if following else None,
        )

    def _rows(self, watched: WatchedJob, reached: Job, known: Mapping[str, Known], find: str) -> list[SiteRow]:
        now, tallies, rules = self._desk.clock.epoch(), watched.tally.sites, reached.settings.regions
        lately = reversed(tallies) if find else islice(reversed(tallies), _LOOKED_AT)
        names = [name for name in dict.fromkeys([*known, *lately]) if find in name]
        return [_row(name, known.get(name), tallies.get(name), now, rules) for name in names]

    async def one(self, asked: ApiRequest[AskSite, None]) -> SiteDetail:
        job = asked.path["job"]
        watched = await self._desk.watch.ask(job)
        reached = await self._desk.directory.reach(job)
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
            row=_row(name, known, tally, self._desk.clock.epoch(), reached.settings.regions),
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
