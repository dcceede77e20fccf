"""What happened, and why: faults with examples, rests between requests, the story of a URL, the audit of a site."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from gossamer import urls
from gossamer.inspect.audit import site_audit
from gossamer.inspect.why import tell
from gossamer.jobs.job import Job as JobHandle
from gossamer.jobs.job import State
from gossamer.service.asked import AskAudit, AskWhy, Nothing
from gossamer.service.desk import ServiceState, one_url
from gossamer.service.routing import ApiRequest, Endpoint, Refused
from gossamer.service.views import Faults, Politeness
from gossamer.storage.request_log import Sent, walked

_MOST_STEPS = 100_000
_MOST_ATTEMPTS = 200


class Answers:
    """Handlers of questions about the past."""

    def __init__(self, desk: ServiceState) -> None:
        self._desk = desk

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
        watched = await self._desk.watch.ask(asked.path["job"])
        return watched.tally.faults(watched.name)

    async def politeness(self, asked: ApiRequest[Nothing, None]) -> Politeness:
        watched = await self._desk.watch.ask(asked.path["job"])
        return watched.tally.politeness(watched.name)

    async def _job(self, name: str) -> tuple[JobHandle, State]:
        watched = await self._desk.watch.ask(name)
        state: State = "resting" if watched.state in ("failed", "starting") else watched.state
        return await self._desk.directory.reach(name), state

    async def why(self, asked: ApiRequest[AskWhy, None]) -> dict[str, Any]:
        job, state = await self._job(asked.path["job"])
        url, page = one_url(asked.query.url), one_url(asked.query.page) if asked.query.page else ""
        async with self._desk.reading.turn():
            found = await tell(job, url, page=page, state=state, now=self._desk.clock.epoch())
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

        return await self._desk.reading.read(read)
