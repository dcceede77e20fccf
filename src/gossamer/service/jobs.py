"""Endpoints of jobs: state, control, workers, scale, why, and audit."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from gossamer import urls
from gossamer.engine.heartbeat import is_live
from gossamer.errors import JobMissing
from gossamer.inspect.audit import site_audit
from gossamer.inspect.why import url_history
from gossamer.jobs import job as jobs
from gossamer.jobs.fleet import merge_regions
from gossamer.jobs.job import Job as JobHandle
from gossamer.jobs.job import State
from gossamer.model import Heartbeat, JobState, RegionView
from gossamer.service.directory import settings_of
from gossamer.service.monitor import MonitoredJob
from gossamer.service.routing import ApiError, ApiRequest, Endpoint, json
from gossamer.service.schemas import (
    Added,
    AuditQuery,
    Faults,
    History,
    HistoryQuery,
    Job,
    JobDetail,
    Jobs,
    JobSettings,
    JobsQuery,
    Limited,
    Limits,
    MoreUrls,
    NoParameters,
    Politeness,
    Region,
    Regions,
    RunningJobScaleQuery,
    Scale,
    ScaleQuery,
    Shards,
    Submission,
    Visits,
    WhyQuery,
    Worker,
    Workers,
)
from gossamer.service.state import ServiceState, decode_cursor, encode_cursor, parse_url, split_valid_urls
from gossamer.settings import Settings
from gossamer.storage.registry import reads_bodies
from gossamer.storage.request_log import Sent, requests_to


class JobEndpoints:
    """Handlers of the endpoints that list, submit, and control jobs."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """The endpoints of this group."""

        def line(method: Any, path: str, handler: Any, summary: str, **more: Any) -> Endpoint:
            path = f"/api/jobs{path}"
            fixed: dict[str, Any] = {"tag": "tasks", "part": "tasks"}
            return Endpoint(method=method, path=path, handler=handler, summary=summary, **(fixed | more))

        writes: dict[str, Any] = {"role": "write", "refusals": (409,)}
        return [
            line("GET", "", self.listed, "List jobs.", query=JobsQuery, answer=Jobs, refusals=(404, 503), part=""),
            line("POST", "", self.submit, "Submit a job.", body=Submission, answer=JobDetail, status=201,
                 role="write", refusals=(409, 503)),
            line("GET", "/{job}", self.inspect, "Get a job, with its settings and warnings.", answer=JobDetail,
                 part=""),
            line("POST", "/{job}/pause", self.pause, "Pause a job: workers finish the fetches in progress, then wait.",
                 answer=Job, **writes),
            line("POST", "/{job}/resume", self.resume, "Resume a paused job, or start a job that is not running.",
                 answer=Job, **writes),
            line("POST", "/{job}/stop", self.stop, "Stop a job: workers finish the fetches in progress, then exit.",
                 answer=Job, **writes),
            line("POST", "/{job}/urls", self.add, "Add URLs to a running job.", body=MoreUrls, answer=Added,
                 **writes),
            line("PATCH", "/{job}/limits", self.limit, "Change the limits of a job.", body=Limits, answer=Limited,
                 **writes),
            line("GET", "/{job}/history", self.history,
                 "Time series of a job: pages, bytes, responses by status, queue length, and more.", query=HistoryQuery,
                 answer=History, tag="answers"),
            line("GET", "/{job}/recent", self.recent, "List the latest requests of a job.", answer=Visits,
                 tag="answers"),
        ]  # fmt: skip

    async def listed(self, request: ApiRequest[JobsQuery, None]) -> Jobs:
        service, query = self._service, request.query
        after = decode_cursor(query.cursor, str, "")
        names = [name for name in await service.directory.names() if name > after]
        found: list[Job] = []
        for name in names:
            job = await self._summary(name)
            if job is not None and (query.state is None or job.state == query.state):
                found.append(job)
            if len(found) > query.limit:
                break
        more = len(found) > query.limit
        found = found[: query.limit]
        return Jobs(jobs=found, next=encode_cursor(found[-1].name) if more else None)

    async def _summary(self, name: str) -> Job | None:
        """A job as of its last poll; polls it if there was none."""
        service = self._service
        watched = service.monitor.known(name)
        if watched is None or watched.polled_at is None:
            try:
                watched = await service.monitor.get(name)
            except JobMissing:
                return None
        return watched.job(service.directory.place)

    async def inspect(self, request: ApiRequest[NoParameters, None]) -> JobDetail:
        return await self._detail(request.path["job"])

    async def _detail(self, name: str) -> JobDetail:
        service = self._service
        watched = await service.monitor.get(name)
        brief = msgspec.structs.asdict(watched.job(service.directory.place))
        if watched.counts is None:
            return JobDetail(**brief, settings=None, warnings=[], has_bodies=False)
        handle = await service.directory.open(name)
        return JobDetail(
            **brief,
            settings=self._settings_view(handle.settings),
            warnings=await handle.warnings(watched.counts),
            has_bodies=reads_bodies(handle.settings.sink),
        )

    def _settings_view(self, settings: Settings) -> JobSettings:
        names = {place: name for name, place in self._service.spiders.items()}
        kinds = {sink.partition(":")[0] for sink in settings.sink}
        plain = {name: getattr(settings, name) for name in JobSettings.__struct_fields__ if hasattr(settings, name)}
        spider = names.get(settings.spider, "(other)") if settings.spider else ""
        return JobSettings(**(plain | {"spider": spider, "sinks": sorted(kinds)}))

    async def submit(self, request: ApiRequest[NoParameters, Submission]) -> Response:
        service, body = self._service, request.body
        settings = settings_of(body, service.base, service.spiders)
        seeds, _ = split_valid_urls(body.urls)
        if not seeds:
            raise ApiError(409, "none of these URLs can be crawled", hint="write them as https://example.com/")
        await service.directory.submit(body.job, settings, seeds)
        made = await self._detail(body.job)
        return json(made, 201, {"location": f"/api/jobs/{body.job}"})

    async def pause(self, request: ApiRequest[NoParameters, None]) -> Job:
        return await self._set_state(request.path["job"], "paused")

    async def stop(self, request: ApiRequest[NoParameters, None]) -> Job:
        return await self._set_state(request.path["job"], "stopping")

    async def _set_state(self, name: str, state: JobState) -> Job:
        handle, watched = await self._running(name)
        await handle.set_state(state)
        return await self._refreshed(watched)

    async def resume(self, request: ApiRequest[NoParameters, None]) -> Job:
        name = request.path["job"]
        watched = await self._service.monitor.get(name)
        await self._service.directory.resume(name)
        return await self._refreshed(watched)

    async def _refreshed(self, watched: MonitoredJob) -> Job:
        """Poll a job after a change, and return it."""
        await watched.poll(self._service.directory)
        return watched.job(self._service.directory.place)

    async def _running(self, name: str) -> tuple[jobs.Job, MonitoredJob]:
        watched = await self._service.monitor.get(name)
        if watched.state == "starting":
            raise ApiError(409, "the job is starting", hint="retry in a moment")
        return await self._service.directory.open(name), watched

    async def add(self, request: ApiRequest[NoParameters, MoreUrls]) -> Added:
        seeds, refused = split_valid_urls(request.body.urls)
        handle, _ = await self._running(request.path["job"])
        added = await handle.add(seeds) if seeds else 0
        return Added(added=added, known=len(seeds) - added, refused=refused)

    async def limit(self, request: ApiRequest[NoParameters, Limits]) -> Limited:
        name, body, service = request.path["job"], request.body, self._service
        handle = await service.directory.open(name)
        changes: dict[str, Any] = {}
        for field in ("max_pages", "max_seconds", "delay"):
            if (value := getattr(body, field)) is not UNSET:
                changes[field] = value
        delays = {} if body.site_delays is UNSET else body.site_delays
        if min([changes.get("delay", service.base.delay), *delays.values()], default=0.0) < service.base.delay:
            raise ApiError(
                403,
                f"a delay below {service.base.delay:g} s is not allowed",
                hint="the operator sets the minimum with --delay",
            )
        if delays:
            known = msgspec.to_builtins(handle.settings.sites)
            changes["sites"] = {**known, **{site: {**known.get(site, {}), "delay": delays[site]} for site in delays}}
        now = await handle.limit(changes) if changes else True
        settings = handle.settings
        return Limited(
            max_pages=settings.max_pages,
            max_seconds=settings.max_seconds,
            delay=settings.delay,
            in_force="now" if now else "next run",
        )

    async def history(self, request: ApiRequest[HistoryQuery, None]) -> History:
        watched = await self._service.monitor.get(request.path["job"])
        step = request.query.step
        # A large job is polled rarely: values after its last poll are unknown, not zero.
        now = self._service.clock.epoch() if watched.sampled_at is None else watched.sampled_at
        start, series = watched.past.read(step, now, request.query.steps)
        return History(job=watched.name, step=step, start=start, series=series)

    async def recent(self, request: ApiRequest[NoParameters, None]) -> Visits:
        watched = await self._service.monitor.get(request.path["job"])
        return Visits(visits=list(watched.tally.recent))


class FleetEndpoints:
    """Handlers of workers, shards, regions, and the recommended number of workers."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """The endpoints of this group."""

        def line(path: str, handler: Any, summary: str, answer: Any, query: Any = NoParameters) -> Endpoint:
            return Endpoint(
                method="GET", path=path, handler=handler, summary=summary, tag="fleet", query=query, answer=answer,
                refusals=(404, 409, 503), part="tasks",
            )  # fmt: skip

        return [
            line("/api/jobs/{job}/workers", self.workers, "List the workers of a job.", Workers),
            line("/api/jobs/{job}/shards", self.shards, "List the shards of a job's frontier.", Shards),
            line("/api/jobs/{job}/regions", self.regions, "List the regions of a job.", Regions),
            line("/api/jobs/{job}/scale", self.scale, "Recommended number of workers for a job.", Scale, ScaleQuery),
            line("/api/scale", self.scale_one,
                 "Recommended number of workers for the only running job, for autoscalers.", Scale,
                 RunningJobScaleQuery),
        ]  # fmt: skip

    async def workers(self, request: ApiRequest[NoParameters, None]) -> Workers:
        watched = await self._service.monitor.get(request.path["job"])
        found = [_worker(heartbeat, watched) for heartbeat in watched.heartbeats]
        found.sort(key=lambda worker: (worker.live, worker.left, -worker.rate, worker.worker))
        return Workers(job=watched.name, workers=found)

    async def shards(self, request: ApiRequest[NoParameters, None]) -> Shards:
        handle = await self._service.directory.open(request.path["job"])
        return Shards(job=request.path["job"], shards=await handle.shards())

    async def regions(self, request: ApiRequest[NoParameters, None]) -> Regions:
        name = request.path["job"]
        watched = await self._service.monitor.get(name)
        handle = await self._service.directory.open(name)
        views = merge_regions(await handle.shards())
        live = [_worker(heartbeat, watched) for heartbeat in watched.heartbeats if is_live(heartbeat)]
        found = [
            Region(
                region=region,
                workers=sum(worker.region == region for worker in live),
                rate=round(sum(worker.rate for worker in live if worker.region == region), 2),
                **msgspec.structs.asdict(views.get(region, RegionView())),
            )
            for region in sorted({*views, *(worker.region for worker in live)})
        ]
        return Regions(job=name, regions=found)

    async def scale(self, request: ApiRequest[ScaleQuery, None]) -> Scale:
        return await self._advise(request.path["job"], request.query)

    async def scale_one(self, request: ApiRequest[RunningJobScaleQuery, None]) -> Scale:
        name = request.query.job
        if name is None:
            running = [one.name for one in self._service.monitor.jobs if one.state in ("running", "paused", "starting")]
            if len(running) != 1:
                raise ApiError(
                    409, f"{len(running)} jobs are running, so `job` is required", hint="/api/scale?job=NAME"
                )
            name = running[0]
        return await self._advise(name, request.query)

    async def _advise(self, name: str, query: ScaleQuery) -> Scale:
        handle = await self._service.directory.open(name)
        advice = await handle.advice(query.min, query.max)
        return Scale(job=name, **msgspec.structs.asdict(advice))


def _worker(heartbeat: Heartbeat, watched: MonitoredJob) -> Worker:
    """A worker; for an embedded one, pages and rate come from its request log."""
    plain = {name: getattr(heartbeat, name) for name in Worker.__struct_fields__ if name != "live"}
    if not heartbeat.pages:
        plain["pages"] = watched.tally.workers[heartbeat.worker]
    if not heartbeat.rate and is_live(heartbeat):
        plain["rate"] = round(watched.worker_rate(heartbeat.worker), 2)
    if len(watched.heartbeats) == 1 and watched.counts is not None:
        plain["active"] = watched.counts.active_sites
    return Worker(live=is_live(heartbeat), **plain)


_MOST_STEPS = 100_000
_MOST_ATTEMPTS = 200


class HistoryEndpoints:
    """Handlers of errors, politeness, URL history, and audit."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """The endpoints of this group."""
        fixed: dict[str, Any] = {"method": "GET", "tag": "answers", "part": "tasks"}
        return [
            Endpoint(path="/api/jobs/{job}/errors", handler=self.faults, answer=Faults,
                     summary="Errors by kind, with advice and example URLs.", **fixed),
            Endpoint(path="/api/jobs/{job}/politeness", handler=self.politeness, answer=Politeness,
                     summary="Histogram of the intervals between requests to the same site.", **fixed),
            Endpoint(path="/api/jobs/{job}/why", handler=self.why, query=WhyQuery, answer=dict[str, Any],
                     summary="History of a URL: the same JSON as `gossamer why --json`.", **fixed),
            Endpoint(path="/api/jobs/{job}/audit", handler=self.audit, query=AuditQuery, answer=dict[str, Any],
                     summary="Requests to a site: the same JSON as `gossamer audit --json`, newest ones listed.",
                     **fixed),
        ]  # fmt: skip

    async def faults(self, request: ApiRequest[NoParameters, None]) -> Faults:
        watched = await self._service.monitor.get(request.path["job"])
        return watched.tally.faults(watched.name)

    async def politeness(self, request: ApiRequest[NoParameters, None]) -> Politeness:
        watched = await self._service.monitor.get(request.path["job"])
        return watched.tally.politeness(watched.name)

    async def _job(self, name: str) -> tuple[JobHandle, State]:
        watched = await self._service.monitor.get(name)
        state: State = "resting" if watched.state in ("failed", "starting") else watched.state
        return await self._service.directory.open(name), state

    async def why(self, request: ApiRequest[WhyQuery, None]) -> dict[str, Any]:
        job, state = await self._job(request.path["job"])
        url, page = parse_url(request.query.url), parse_url(request.query.page) if request.query.page else ""
        async with self._service.reading.slot():
            found = await url_history(job, url, page=page, state=state, now=self._service.clock.epoch())
        attempts = found["attempts"]
        plain = msgspec.to_builtins({**found, "attempts": attempts[-_MOST_ATTEMPTS:], "all_attempts": len(attempts)})
        return dict(plain)

    async def audit(self, request: ApiRequest[AuditQuery, None]) -> dict[str, Any]:
        (job, _), query = await self._job(request.path["job"]), request.query
        host = urls.host_port(parse_url(query.site))
        name = urls.registered_domain(host) if job.settings.site_by == "domain" else host
        site = await job.site(name)
        if site is None:
            raise ApiError(404, f"this job has no site {name}")

        def read() -> dict[str, Any]:
            steps: deque[Sent] = deque(maxlen=_MOST_STEPS)
            counted = 0
            for one in requests_to(job.stored(), name, job.settings):
                if query.since <= one.step.at < query.until:
                    steps.append(one)
                    counted += 1
            found = site_audit(job, name, site, steps)
            listed = found["requests"][-query.limit :]
            return {**found, "requests": listed, "all_requests": counted, "read": len(steps)}

        return await self._service.reading.read(read)
