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
from gossamer.service.monitor import WatchedJob
from gossamer.service.routing import ApiRequest, Endpoint, Refused, json
from gossamer.service.schemas import (
    Added,
    AskAudit,
    AskHistory,
    AskJobs,
    AskScale,
    AskScaleOf,
    AskWhy,
    Faults,
    History,
    Job,
    JobDetail,
    Jobs,
    JobSettings,
    Limited,
    Limits,
    MoreUrls,
    Nothing,
    Politeness,
    Region,
    Regions,
    Scale,
    Shards,
    Submission,
    Visits,
    Worker,
    Workers,
)
from gossamer.service.state import ServiceState, cursor_of, one_url, position_of, sorted_out
from gossamer.settings import Settings
from gossamer.storage.registry import tree_folder
from gossamer.storage.request_log import Sent, walked


class Tasks:
    """Handlers of everything under /api/jobs that is about a job as a whole."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """The lines of the table."""

        def line(method: Any, path: str, handler: Any, summary: str, **more: Any) -> Endpoint:
            path = f"/api/jobs{path}"
            fixed: dict[str, Any] = {"tag": "tasks", "part": "tasks"}
            return Endpoint(method=method, path=path, handler=handler, summary=summary, **(fixed | more))

        writes: dict[str, Any] = {"role": "write", "refusals": (409,)}
        return [
            line("GET", "", self.listed, "The jobs.", query=AskJobs, answer=Jobs, refusals=(404, 503), part=""),
            line("POST", "", self.submit, "Submit a job.", body=Submission, answer=JobDetail, status=201,
                 role="write", refusals=(409, 503)),
            line("GET", "/{job}", self.inspect, "A job.", answer=JobDetail, part=""),
            line("POST", "/{job}/pause", self.pause, "Have a job pause.", answer=Job, **writes),
            line("POST", "/{job}/resume", self.resume, "Let a job go on; one that nobody runs is started.",
                 answer=Job, **writes),
            line("POST", "/{job}/stop", self.stop, "Stop a job: fetches under way are finished.", answer=Job, **writes),
            line("POST", "/{job}/urls", self.add, "Add URLs to a job that runs.", body=MoreUrls, answer=Added,
                 **writes),
            line("PATCH", "/{job}/limits", self.limit, "Change limits of a job.", body=Limits, answer=Limited,
                 **writes),
            line("GET", "/{job}/history", self.history, "The past of a job, in numbers.", query=AskHistory,
                 answer=History, tag="answers"),
            line("GET", "/{job}/recent", self.recent, "The latest requests.", answer=Visits, tag="answers"),
        ]  # fmt: skip

    async def listed(self, asked: ApiRequest[AskJobs, None]) -> Jobs:
        service, query = self._service, asked.query
        after = position_of(query.cursor, str, "")
        names = [name for name in await service.directory.names() if name > after]
        found: list[Job] = []
        for name in names:
            job = await self._brief(name)
            if job is not None and (query.state is None or job.state == query.state):
                found.append(job)
            if len(found) > query.limit:
                break
        more = len(found) > query.limit
        found = found[: query.limit]
        return Jobs(jobs=found, next=cursor_of(found[-1].name) if more else None)

    async def _brief(self, name: str) -> Job | None:
        """A job as it was seen last; one that was never seen is looked at."""
        service = self._service
        watched = service.watch.known(name)
        if watched is None or watched.looked_at is None:
            try:
                watched = await service.watch.ask(name)
            except JobMissing:
                return None
        return watched.job(service.directory.place)

    async def inspect(self, asked: ApiRequest[Nothing, None]) -> JobDetail:
        return await self._detail(asked.path["job"])

    async def _detail(self, name: str) -> JobDetail:
        service = self._service
        watched = await service.watch.ask(name)
        brief = msgspec.structs.asdict(watched.job(service.directory.place))
        if watched.counts is None:
            return JobDetail(**brief, settings=None, warnings=[], has_bodies=False)
        reached = await service.directory.reach(name)
        return JobDetail(
            **brief,
            settings=self._shown(reached.settings),
            warnings=await reached.warnings(watched.counts),
            has_bodies=keeps_bodies(reached.settings),
        )

    def _shown(self, settings: Settings) -> JobSettings:
        names = {place: name for name, place in self._service.spiders.items()}
        kinds = {sink.partition(":")[0] for sink in settings.sink}
        plain = {name: getattr(settings, name) for name in JobSettings.__struct_fields__ if hasattr(settings, name)}
        spider = names.get(settings.spider, "(other)") if settings.spider else ""
        return JobSettings(**(plain | {"spider": spider, "sinks": sorted(kinds)}))

    async def submit(self, asked: ApiRequest[Nothing, Submission]) -> Response:
        service, body = self._service, asked.body
        settings = settings_of(body, service.base, service.spiders)
        seeds, _ = sorted_out(body.urls)
        if not seeds:
            raise Refused(409, "none of these URLs can be crawled", hint="a URL looks like https://example.com/")
        await service.directory.submit(body.job, settings, seeds)
        made = await self._detail(body.job)
        return json(made, 201, {"location": f"/api/jobs/{body.job}"})

    async def pause(self, asked: ApiRequest[Nothing, None]) -> Job:
        return await self._steer(asked.path["job"], "paused")

    async def stop(self, asked: ApiRequest[Nothing, None]) -> Job:
        return await self._steer(asked.path["job"], "stopping")

    async def _steer(self, name: str, state: JobState) -> Job:
        reached, watched = await self._running(name)
        await reached.set_state(state)
        return await self._again(watched)

    async def resume(self, asked: ApiRequest[Nothing, None]) -> Job:
        name = asked.path["job"]
        watched = await self._service.watch.ask(name)
        await self._service.directory.resume(name)
        return await self._again(watched)

    async def _again(self, watched: WatchedJob) -> Job:
        """A job after something was done to it."""
        await watched.look(self._service.directory)
        return watched.job(self._service.directory.place)

    async def _running(self, name: str) -> tuple[jobs.Job, WatchedJob]:
        watched = await self._service.watch.ask(name)
        if watched.state == "starting":
            raise Refused(409, "the job is being started", hint="ask again in a moment")
        return await self._service.directory.reach(name), watched

    async def add(self, asked: ApiRequest[Nothing, MoreUrls]) -> Added:
        seeds, refused = sorted_out(asked.body.urls)
        reached, _ = await self._running(asked.path["job"])
        added = await reached.add(seeds) if seeds else 0
        return Added(added=added, known=len(seeds) - added, refused=refused)

    async def limit(self, asked: ApiRequest[Nothing, Limits]) -> Limited:
        name, body, service = asked.path["job"], asked.body, self._service
        reached = await service.directory.reach(name)
        changes: dict[str, Any] = {}
        for field in ("max_pages", "max_seconds", "delay"):
            if (value := getattr(body, field)) is not UNSET:
                changes[field] = value
        delays = {} if body.site_delays is UNSET else body.site_delays
        if min([changes.get("delay", service.base.delay), *delays.values()], default=0.0) < service.base.delay:
            raise Refused(403, f"a delay below {service.base.delay:g} s is not allowed here", hint="see --delay")
        if delays:
            known = msgspec.to_builtins(reached.settings.sites)
            changes["sites"] = {**known, **{site: {**known.get(site, {}), "delay": delays[site]} for site in delays}}
        now = await reached.limit(changes) if changes else True
        settings = reached.settings
        return Limited(
            max_pages=settings.max_pages,
            max_seconds=settings.max_seconds,
            delay=settings.delay,
            in_force="now" if now else "next run",
        )

    async def history(self, asked: ApiRequest[AskHistory, None]) -> History:
        watched = await self._service.watch.ask(asked.path["job"])
        step = asked.query.step
        # Looks at a large job are far apart: what came after the last one is not known yet, and not nothing.
        now = self._service.clock.epoch() if watched.sampled_at is None else watched.sampled_at
        start, series = watched.past.read(step, now, asked.query.steps)
        return History(job=watched.name, step=step, start=start, series=series)

    async def recent(self, asked: ApiRequest[Nothing, None]) -> Visits:
        watched = await self._service.watch.ask(asked.path["job"])
        return Visits(visits=list(watched.tally.recent))


def keeps_bodies(settings: Settings) -> bool:
    """Whether a sink of the job keeps whole pages."""
    return tree_folder(settings.sink) is not None or any(sink.partition(":")[0] == "warc" for sink in settings.sink)


class FleetWork:
    """Handlers of workers, shards, regions and advice."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """The lines of the table."""

        def line(path: str, handler: Any, summary: str, answer: Any, query: Any = Nothing) -> Endpoint:
            return Endpoint(
                method="GET", path=path, handler=handler, summary=summary, tag="fleet", query=query, answer=answer,
                refusals=(404, 409, 503), part="tasks",
            )  # fmt: skip

        return [
            line("/api/jobs/{job}/workers", self.workers, "The workers of a job.", Workers),
            line("/api/jobs/{job}/shards", self.shards, "The shards of a job's frontier.", Shards),
            line("/api/jobs/{job}/regions", self.regions, "The regions of a job.", Regions),
            line("/api/jobs/{job}/scale", self.scale, "How many workers a job can feed.", Scale, AskScale),
            line("/api/scale", self.scale_one, "The same for the only job that runs, for autoscalers.", Scale,
                 AskScaleOf),
        ]  # fmt: skip

    async def workers(self, asked: ApiRequest[Nothing, None]) -> Workers:
        watched = await self._service.watch.ask(asked.path["job"])
        found = [_worker(pulse, watched) for pulse in watched.pulses]
        found.sort(key=lambda worker: (worker.live, worker.left, -worker.rate, worker.worker))
        return Workers(job=watched.name, workers=found)

    async def shards(self, asked: ApiRequest[Nothing, None]) -> Shards:
        reached = await self._service.directory.reach(asked.path["job"])
        return Shards(job=asked.path["job"], shards=await reached.shards())

    async def regions(self, asked: ApiRequest[Nothing, None]) -> Regions:
        name = asked.path["job"]
        watched = await self._service.watch.ask(name)
        reached = await self._service.directory.reach(name)
        views = merge_regions(await reached.shards())
        live = [_worker(pulse, watched) for pulse in watched.pulses if is_live(pulse)]
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

    async def scale(self, asked: ApiRequest[AskScale, None]) -> Scale:
        return await self._advise(asked.path["job"], asked.query)

    async def scale_one(self, asked: ApiRequest[AskScaleOf, None]) -> Scale:
        name = asked.query.job
        if name is None:
            running = [
                one.name for one in self._service.watch.watched if one.state in ("running", "paused", "starting")
            ]
            if len(running) != 1:
                raise Refused(409, f"{len(running)} jobs run: which one?", hint="/api/scale?job=NAME")
            name = running[0]
        return await self._advise(name, asked.query)

    async def _advise(self, name: str, query: AskScale) -> Scale:
        reached = await self._service.directory.reach(name)
        advice = await reached.advice(query.min, query.max)
        return Scale(job=name, **msgspec.structs.asdict(advice))


def _worker(pulse: Heartbeat, watched: WatchedJob) -> Worker:
    """A worker; what an embedded one does not tell of itself is taken from its trail."""
    plain = {name: getattr(pulse, name) for name in Worker.__struct_fields__ if name != "live"}
    if not pulse.pages:
        plain["pages"] = watched.tally.workers[pulse.worker]
    if not pulse.rate and is_live(pulse):
        plain["rate"] = round(watched.worker_rate(pulse.worker), 2)
    if len(watched.pulses) == 1 and watched.counts is not None:
        plain["active"] = watched.counts.active_sites
    return Worker(live=is_live(pulse), **plain)


_MOST_STEPS = 100_000
_MOST_ATTEMPTS = 200


class Answers:
    """Handlers of questions about the past."""

    def __init__(self, service: ServiceState) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """The lines of the table."""
        fixed: dict[str, Any] = {"method": "GET", "tag": "answers", "part": "tasks"}
        return [
            Endpoint(path="/api/jobs/{job}/errors", handler=self.faults, answer=Faults,
                     summary="What went wrong, with examples.", **fixed),
            Endpoint(path="/api/jobs/{job}/politeness", handler=self.politeness, answer=Politeness,
                     summary="The rests between requests to a site, as a histogram.", **fixed),
            Endpoint(path="/api/jobs/{job}/why", handler=self.why, query=AskWhy, answer=dict[str, Any],
                     summary="The whole story of a URL, as `gossamer why --json` tells it.", **fixed),
            Endpoint(path="/api/jobs/{job}/audit", handler=self.audit, query=AskAudit, answer=dict[str, Any],
                     summary="Every request to a site, as `gossamer audit --json` tells it; the newest are listed.",
                     **fixed),
        ]  # fmt: skip

    async def faults(self, asked: ApiRequest[Nothing, None]) -> Faults:
        watched = await self._service.watch.ask(asked.path["job"])
        return watched.tally.faults(watched.name)

    async def politeness(self, asked: ApiRequest[Nothing, None]) -> Politeness:
        watched = await self._service.watch.ask(asked.path["job"])
        return watched.tally.politeness(watched.name)

    async def _job(self, name: str) -> tuple[JobHandle, State]:
        watched = await self._service.watch.ask(name)
        state: State = "resting" if watched.state in ("failed", "starting") else watched.state
        return await self._service.directory.reach(name), state

    async def why(self, asked: ApiRequest[AskWhy, None]) -> dict[str, Any]:
        job, state = await self._job(asked.path["job"])
        url, page = one_url(asked.query.url), one_url(asked.query.page) if asked.query.page else ""
        async with self._service.reading.turn():
            found = await url_history(job, url, page=page, state=state, now=self._service.clock.epoch())
        attempts = found["attempts"]
        plain = msgspec.to_builtins({**found, "attempts": attempts[-_MOST_ATTEMPTS:], "all_attempts": len(attempts)})
        return dict(plain)

    async def audit(self, asked: ApiRequest[AskAudit, None]) -> dict[str, Any]:
        (job, _), query = await self._job(asked.path["job"]), asked.query
        host = urls.host_port(one_url(query.site))
        name = urls.registered_domain(host) if job.settings.site_by == "domain" else host
        site = await job.site(name)
        if site is None:
            raise Refused(404, f"{name} is no site of this job")

        def read() -> dict[str, Any]:
            steps: deque[Sent] = deque(maxlen=_MOST_STEPS)
            counted = 0
            for one in walked(job.stored(), name, job.settings):
                if query.since <= one.step.at < query.until:
                    steps.append(one)
                    counted += 1
            found = site_audit(job, name, site, steps)
            listed = found["requests"][-query.limit :]
            return {**found, "requests": listed, "all_requests": counted, "read": len(steps)}

        return await self._service.reading.read(read)
