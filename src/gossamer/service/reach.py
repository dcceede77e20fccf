"""Jobs within reach: one that a process of this machine runs, one that rests, one on a fleet's frontier."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gossamer import job as jobs
from gossamer import settings as configuration
from gossamer.cli.fleet_status import warnings
from gossamer.clock import Clock
from gossamer.engine import wire
from gossamer.engine.handle import Linker
from gossamer.engine.pulse import is_live
from gossamer.engine.recent import Recent
from gossamer.engine.remote import Connection, connect
from gossamer.fleet import results_folder, scale
from gossamer.frontier.advice import Advice, advise
from gossamer.frontier.backends import create_fleet, open_fleet
from gossamer.frontier.base import Fleet
from gossamer.frontier.sqlite_look import SqliteLook
from gossamer.frontier.sqlite_survey import survey
from gossamer.inquiry import look_up
from gossamer.model import Counts, JobState, Pulse, RegionView, ShardView
from gossamer.service.processes import Processes
from gossamer.service.routing import Refused
from gossamer.service.shapes import State
from gossamer.settings import Settings

Known = Mapping[str, Any]
_LANES_SECONDS = 1.0
_VERBS = {"paused": "pause", "running": "resume", "stopping": "stop"}


class Reached(Protocol):
    """A job that can be asked and, if somebody works on it, steered."""

    settings: Settings
    folder: Path
    """Where what it stored is, and its trail."""

    @property
    def is_gone(self) -> bool: ...

    async def counts(self) -> Counts: ...

    def state(self, counts: Counts, pulses: Sequence[Pulse]) -> State: ...

    async def workers(self) -> list[Pulse]: ...

    async def sites(self, limit: int) -> list[Known]: ...

    async def every_site(self, cursor: str, limit: int) -> tuple[Sequence[Known], str]:
        """A page of all sites, and where the next begins."""
        ...

    async def site(self, name: str) -> Known | None: ...

    async def lookup(self, url: str) -> Known | None: ...

    async def shards(self) -> list[ShardView]: ...

    async def advice(self, least: int, most: int | None) -> Advice: ...

    async def warnings(self, counts: Counts) -> list[str]: ...

    async def steer(self, state: JobState) -> None: ...

    async def add(self, urls: Sequence[str]) -> int: ...

    async def limit(self, changes: Mapping[str, Any]) -> bool:
        """Change settings of the job; whether they are in force at once, and not from the next run on."""
        ...

    async def aclose(self) -> None: ...


class Running:
    """A crawl that another process of this machine runs, asked over its socket."""

    def __init__(self, connection: Connection, welcome: wire.Welcome, folder: Path, *, clock: Clock) -> None:
        self._connection = connection
        self._call = connection.call
        self._processes = Processes(clock)
        self._clock = clock
        self._counting = asyncio.Lock()
        self._lanes: tuple[float, RegionView] = (float("-inf"), RegionView())
        self.settings = configuration.build(welcome.settings)
        self.folder = folder

    @classmethod
    async def open(cls, folder: Path, *, clock: Clock) -> Running:
        """Reach the owner; JobMissing if there is none."""
        connection, welcome = await connect(folder)
        return cls(connection, welcome, folder, clock=clock)

    @property
    def is_gone(self) -> bool:
        return self._connection.gone.is_set()

    async def counts(self) -> Counts:
        return msgspec.convert(await self._call(wire.Ask("counts")), Counts)

    def state(self, counts: Counts, pulses: Sequence[Pulse]) -> State:
        return _worded(counts.job)

    async def workers(self) -> list[Pulse]:
        named: dict[str, int] = await self._call(wire.Ask("workers"))
        owner = self._connection.peer_pid
        found = dict(named) if named else {jobs.OWNER: owner}
        return await asyncio.to_thread(self._processes.pulses, found)

    async def sites(self, limit: int) -> list[Known]:
        found: list[Known] = await self._call(wire.Ask("sites", str(limit)))
        return found

    async def every_site(self, cursor: str, limit: int) -> tuple[Sequence[Known], str]:
        found, following = await self._call(wire.Ask("every_site", f"{limit} {cursor}"))
        return found, following

    async def site(self, name: str) -> Known | None:
        found: Known | None = await self._call(wire.Ask("site", name))
        return found

    async def lookup(self, url: str) -> Known | None:
        found: Known | None = await self._call(wire.Ask("lookup", url))
        return found

    async def shards(self) -> list[ShardView]:
        # Several parts of a page ask at once, and the crawl walks over all its sites for it.
        async with self._counting:
            counted_at, lanes = self._lanes
            if self._clock.monotonic() > counted_at + _LANES_SECONDS:
                lanes = msgspec.convert(await self._call(wire.Ask("lanes")), RegionView)
                self._lanes = (self._clock.monotonic(), lanes)
        return [ShardView(shard=0, server="embedded", counts=await self.counts(), regions={"": lanes})]

    async def advice(self, least: int, most: int | None) -> Advice:
        counts, shards = await self.counts(), await self.shards()
        pulses, sites = await self.workers(), await self.sites(100)
        return advise(counts, shards, pulses, settings=self.settings, sites=sites, least=least, most=most)

    async def warnings(self, counts: Counts) -> list[str]:
        return []

    async def steer(self, state: JobState) -> None:
        await self._call(wire.Ask(_VERBS[state]))

    async def add(self, urls: Sequence[str]) -> int:
        return int(await self._call(wire.AddUrls(list(urls))))

    async def limit(self, changes: Mapping[str, Any]) -> bool:
        await self._call(wire.Limit(dict(changes)))
        self.settings = configuration.build({**configuration.dump(self.settings), **changes})
        return True

    async def aclose(self) -> None:
        await self._connection.aclose()


class Resting:
    """A crawl that nobody runs: its files are only read."""

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self.settings = configuration.build(jobs.stored_settings(folder))
        self._look = SqliteLook(folder / jobs.FRONTIER, self.settings, clock=clock)
        self.folder = folder
        self._survey = survey(folder / jobs.FRONTIER)

    @property
    def is_gone(self) -> bool:
        return (self.folder / "socket").exists() or self._survey.is_old

    async def counts(self) -> Counts:
        return await asyncio.to_thread(self._survey.counts, self.settings)

    def state(self, counts: Counts, pulses: Sequence[Pulse]) -> State:
        return "finished" if counts.finished else "resting"

    async def workers(self) -> list[Pulse]:
        return []

    async def sites(self, limit: int) -> list[Known]:
        return await asyncio.to_thread(self._survey.sites, limit, self.settings)

    async def every_site(self, cursor: str, limit: int) -> tuple[Sequence[Known], str]:
        return await asyncio.to_thread(self._survey.every_site, cursor, limit, self.settings)

    async def site(self, name: str) -> Known | None:
        return await self._look.site(name)

    async def lookup(self, url: str) -> Known | None:
        return await look_up(self._look.lookup, self.settings, url)

    async def shards(self) -> list[ShardView]:
        return [ShardView(shard=0, server="embedded", counts=await self.counts())]

    async def advice(self, least: int, most: int | None) -> Advice:
        counts = await self.counts()
        if not counts.finished:
            raise _at_rest("it has no workers to count")
        return advise(counts, await self.shards(), [], settings=self.settings, least=least, most=most)

    async def warnings(self, counts: Counts) -> list[str]:
        return []

    async def steer(self, state: JobState) -> None:
        raise _at_rest("there is nothing to steer")

    async def add(self, urls: Sequence[str]) -> int:
        raise _at_rest("it takes no URLs")

    async def limit(self, changes: Mapping[str, Any]) -> bool:
        if "max_seconds" in changes:
            raise Refused(409, "max_seconds is for one run, and there is none now", hint="resume the job first")
        self.settings = configuration.build({**configuration.dump(self.settings), **changes})
        await asyncio.to_thread(jobs.save_settings, self.folder, self.settings)
        return False

    async def aclose(self) -> None:
        pass


class OnFleet:
    """A job on a fleet's frontier."""

    def __init__(self, fleet: Fleet, url: str, job: str, folder: Path) -> None:
        self._fleet = fleet
        self._url = url
        self._job = job
        self.settings = fleet.settings
        self.folder = results_folder(url, job, fleet.settings, folder)
        self._closed = False

    @classmethod
    async def open(cls, url: str, job: str, folder: Path) -> OnFleet:
        """Join a job to look at it; JobMissing if there is none."""
        return cls(await open_fleet(url, job), url, job, folder)

    @property
    def is_gone(self) -> bool:
        return self._closed

    async def counts(self) -> Counts:
        return await self._fleet.counts()

    def state(self, counts: Counts, pulses: Sequence[Pulse]) -> State:
        if counts.job == "running" and not any(map(is_live, pulses)):
            return "resting"
        return _worded(counts.job)

    async def workers(self) -> list[Pulse]:
        return await self._fleet.workers()

    async def sites(self, limit: int) -> list[Known]:
        return list(await self._fleet.sites(limit))

    async def every_site(self, cursor: str, limit: int) -> tuple[Sequence[Known], str]:
        return await self._fleet.every_site(cursor, limit)

    async def site(self, name: str) -> Known | None:
        return await self._fleet.site(name)

    async def lookup(self, url: str) -> Known | None:
        return await look_up(self._fleet.lookup, self.settings, url)

    async def shards(self) -> list[ShardView]:
        return await self._fleet.shards()

    async def advice(self, least: int, most: int | None) -> Advice:
        return await scale(self._fleet, least=least, most=most)

    async def warnings(self, counts: Counts) -> list[str]:
        live = [pulse for pulse in await self._fleet.workers() if is_live(pulse)]
        is_auto = self.settings.region_by == "auto"
        return warnings(counts, live, await self._fleet.shards(), is_auto=is_auto)

    async def steer(self, state: JobState) -> None:
        await self._fleet.steer(state)

    async def add(self, urls: Sequence[str]) -> int:
        linker = Linker(self.settings, self._fleet.secret, Recent())
        return await self._fleet.add([linker.seed(url) for url in urls])

    async def limit(self, changes: Mapping[str, Any]) -> bool:
        """Give the job's record other settings; workers hear of them with their next heartbeat."""
        counts = await self._fleet.counts()
        if counts.job not in ("running", "paused"):
            raise Refused(409, f"the job is {counts.job}", hint="limits can be changed while it runs or is paused")
        live = any(map(is_live, await self._fleet.workers()))
        # Others may have changed them since this job was reached.
        await self._fleet.refresh()
        settings = configuration.build({**configuration.dump(self._fleet.settings), **changes})
        await (await create_fleet(self._url, self._job, settings)).aclose()
        await self._fleet.refresh()
        self.settings = settings
        return live

    async def aclose(self) -> None:
        self._closed = True
        await self._fleet.aclose()


def _worded(state: JobState) -> State:
    return "resting" if state == "missing" else state


def _at_rest(words: str) -> Refused:
    return Refused(409, f"nobody works on this job now: {words}", hint="resume it first")
