"""The fleet: who works on a job, on which sites, and how many could."""

from __future__ import annotations

from typing import Any

import msgspec

from gossamer.engine.heartbeat import is_live
from gossamer.jobs.fleet import merge_regions
from gossamer.model import Heartbeat, RegionView
from gossamer.service.asked import AskScale, AskScaleOf, Nothing
from gossamer.service.desk import ServiceState
from gossamer.service.routing import ApiRequest, Endpoint, Refused
from gossamer.service.views import Region, Regions, Scale, Shards, Worker, Workers
from gossamer.service.watch import WatchedJob


class FleetWork:
    """Handlers of workers, shards, regions and advice."""

    def __init__(self, desk: ServiceState) -> None:
        self._desk = desk

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
        watched = await self._desk.watch.ask(asked.path["job"])
        found = [_worker(pulse, watched) for pulse in watched.pulses]
        found.sort(key=lambda worker: (worker.live, worker.left, -worker.rate, worker.worker))
        return Workers(job=watched.name, workers=found)

    async def shards(self, asked: ApiRequest[Nothing, None]) -> Shards:
        reached = await self._desk.directory.reach(asked.path["job"])
        return Shards(job=asked.path["job"], shards=await reached.shards())

    async def regions(self, asked: ApiRequest[Nothing, None]) -> Regions:
        name = asked.path["job"]
        watched = await self._desk.watch.ask(name)
        reached = await self._desk.directory.reach(name)
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
            running = [one.name for one in self._desk.watch.watched if one.state in ("running", "paused", "starting")]
            if len(running) != 1:
                raise Refused(409, f"{len(running)} jobs run: which one?", hint="/api/scale?job=NAME")
            name = running[0]
        return await self._advise(name, asked.query)

    async def _advise(self, name: str, query: AskScale) -> Scale:
        reached = await self._desk.directory.reach(name)
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
