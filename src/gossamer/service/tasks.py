"""The tasks: jobs submitted, listed, looked at and steered."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from gossamer.errors import JobMissing
from gossamer.jobs import job as jobs
from gossamer.model import JobState
from gossamer.service.asked import AskHistory, AskJobs, Nothing
from gossamer.service.desk import ServiceState, cursor_of, position_of, sorted_out
from gossamer.service.launch import settings_of
from gossamer.service.routing import ApiRequest, Endpoint, Refused, json
from gossamer.service.shapes import Added, Job, JobDetail, Jobs, JobSettings, Limited, Limits, MoreUrls, Submission
from gossamer.service.views import History, Visits
from gossamer.service.watch import WatchedJob
from gossamer.settings import Settings
from gossamer.storage.registry import tree_folder


class Tasks:
    """Handlers of everything under /api/jobs that is about a job as a whole."""

    def __init__(self, desk: ServiceState) -> None:
        self._desk = desk

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
        desk, query = self._desk, asked.query
        after = position_of(query.cursor, str, "")
        names = [name for name in await desk.directory.names() if name > after]
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
        desk = self._desk
        watched = desk.watch.known(name)
        if watched is None or watched.looked_at is None:
            try:
                watched = await desk.watch.ask(name)
            except JobMissing:
                return None
        return watched.job(desk.directory.place)

    async def inspect(self, asked: ApiRequest[Nothing, None]) -> JobDetail:
        return await self._detail(asked.path["job"])

    async def _detail(self, name: str) -> JobDetail:
        desk = self._desk
        watched = await desk.watch.ask(name)
        brief = msgspec.structs.asdict(watched.job(desk.directory.place))
        if watched.counts is None:
            return JobDetail(**brief, settings=None, warnings=[], has_bodies=False)
        reached = await desk.directory.reach(name)
        return JobDetail(
            **brief,
            settings=self._shown(reached.settings),
            warnings=await reached.warnings(watched.counts),
            has_bodies=keeps_bodies(reached.settings),
        )

    def _shown(self, settings: Settings) -> JobSettings:
        names = {place: name for name, place in self._desk.spiders.items()}
        kinds = {sink.partition(":")[0] for sink in settings.sink}
        plain = {name: getattr(settings, name) for name in JobSettings.__struct_fields__ if hasattr(settings, name)}
        spider = names.get(settings.spider, "(other)") if settings.spider else ""
        return JobSettings(**(plain | {"spider": spider, "sinks": sorted(kinds)}))

    async def submit(self, asked: ApiRequest[Nothing, Submission]) -> Response:
        desk, body = self._desk, asked.body
        settings = settings_of(body, desk.base, desk.spiders)
        seeds, _ = sorted_out(body.urls)
        if not seeds:
            raise Refused(409, "none of these URLs can be crawled", hint="a URL looks like https://example.com/")
        await desk.directory.submit(body.job, settings, seeds)
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
        watched = await self._desk.watch.ask(name)
        await self._desk.directory.resume(name)
        return await self._again(watched)

    async def _again(self, watched: WatchedJob) -> Job:
        """A job after something was done to it."""
        await watched.look(self._desk.directory)
        return watched.job(self._desk.directory.place)

    async def _running(self, name: str) -> tuple[jobs.Job, WatchedJob]:
        watched = await self._desk.watch.ask(name)
        if watched.state == "starting":
            raise Refused(409, "the job is being started", hint="ask again in a moment")
        return await self._desk.directory.reach(name), watched

    async def add(self, asked: ApiRequest[Nothing, MoreUrls]) -> Added:
        seeds, refused = sorted_out(asked.body.urls)
        reached, _ = await self._running(asked.path["job"])
        added = await reached.add(seeds) if seeds else 0
        return Added(added=added, known=len(seeds) - added, refused=refused)

    async def limit(self, asked: ApiRequest[Nothing, Limits]) -> Limited:
        name, body, desk = asked.path["job"], asked.body, self._desk
        reached = await desk.directory.reach(name)
        changes: dict[str, Any] = {}
        for field in ("max_pages", "max_seconds", "delay"):
            if (value := getattr(body, field)) is not UNSET:
                changes[field] = value
        delays = {} if body.site_delays is UNSET else body.site_delays
        if min([changes.get("delay", desk.base.delay), *delays.values()], default=0.0) < desk.base.delay:
            raise Refused(403, f"a delay below {desk.base.delay:g} s is not allowed here", hint="see --delay")
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
        watched = await self._desk.watch.ask(asked.path["job"])
        step = asked.query.step
        # Looks at a large job are far apart: what came after the last one is not known yet, and not nothing.
        now = self._desk.clock.epoch() if watched.sampled_at is None else watched.sampled_at
        start, series = watched.past.read(step, now, asked.query.steps)
        return History(job=watched.name, step=step, start=start, series=series)

    async def recent(self, asked: ApiRequest[Nothing, None]) -> Visits:
        watched = await self._desk.watch.ask(asked.path["job"])
        return Visits(visits=list(watched.tally.recent))


def keeps_bodies(settings: Settings) -> bool:
    """Whether a sink of the job keeps whole pages."""
    return tree_folder(settings.sink) is not None or any(sink.partition(":")[0] == "warc" for sink in settings.sink)
