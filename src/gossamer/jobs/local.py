"""Handles of jobs on this machine: `RunningJob` calls the owner process, `StoppedJob` reads the job's files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gossamer import settings as configuration
from gossamer.clock import Clock, SystemClock
from gossamer.engine import remote
from gossamer.engine.remote import OwnerConnection, connect
from gossamer.errors import JobStopped
from gossamer.job_folder import OWNER, save_settings, stored_address, stored_settings
from gossamer.jobs.at_rest import AtRest, FileAtRest, FrontierAtRest
from gossamer.jobs.job import SITES, JobStatus, Known, State, cut_pages, lookup_any_name, state_word
from gossamer.jobs.scaling import Advice, advise
from gossamer.model import Counts, Heartbeat, JobState, RegionView, ShardView
from gossamer.settings import VERSION
from gossamer.storage.jsonl import count_rejected

if TYPE_CHECKING:
    from gossamer.jobs.removal import Removed
    from gossamer.storage.reader import StoredJob

_LANES_SECONDS = 1.0
_VERBS = {"paused": "pause", "running": "resume", "stopping": "stop"}


class RunningJob:
    """A crawl that another process on this machine runs, reached over its socket."""

    frontier = ""

    def __init__(
        self, connection: OwnerConnection, welcome: remote.Welcome, folder: Path, *, name: str, clock: Clock
    ) -> None:
        self.name = name
        self.folder = folder
        self.settings = configuration.build(welcome.settings)
        self._connection = connection
        self._call = connection.call
        self._processes = ProcessMonitor(clock)
        self._clock = clock
        self._counting = asyncio.Lock()
        self._lanes: tuple[float, RegionView] = (float("-inf"), RegionView())

    @classmethod
    async def open(cls, folder: Path, *, name: str = "", clock: Clock | None = None) -> RunningJob:
        """Connect to the owner of the job in this folder; JobMissing if no process runs it."""
        connection, welcome = await connect(folder)
        return cls(connection, welcome, folder, name=name or folder.name, clock=clock or SystemClock())

    @property
    def is_gone(self) -> bool:
        return self._connection.gone.is_set()

    async def status(self, *, check: bool = False) -> JobStatus:
        counts, sites, workers = await self.counts(), await self.sites(), await self.workers()
        rejected, cut = await asyncio.to_thread(_files, self.folder, check)
        state = self.state(counts, workers)
        return JobStatus(state=state, counts=counts, workers=workers, sites=sites, rejected=rejected, cut=cut)

    async def counts(self) -> Counts:
        return msgspec.convert(await self._call(remote.Ask("counts")), Counts)

    def state(self, counts: Counts, workers: Sequence[Heartbeat]) -> State:
        return state_word(counts.job)

    async def workers(self) -> list[Heartbeat]:
        named: dict[str, int] = await self._call(remote.Ask("workers"))
        return await asyncio.to_thread(self._processes.look, named or {OWNER: self._connection.peer_pid})

    async def shards(self) -> list[ShardView]:
        # The dashboard requests this several times at once, and the crawl iterates over all its sites for it.
        async with self._counting:
            counted_at, lanes = self._lanes
            if self._clock.monotonic() > counted_at + _LANES_SECONDS:
                lanes = msgspec.convert(await self._call(remote.Ask("lanes")), RegionView)
                self._lanes = (self._clock.monotonic(), lanes)
        return [ShardView(shard=0, server="embedded", counts=await self.counts(), regions={"": lanes})]

    async def sites(self, limit: int = SITES) -> list[Known]:
        found: list[Known] = await self._call(remote.Ask("sites", str(limit)))
        return found

    async def every_site(self, cursor: str, limit: int) -> tuple[Sequence[Known], str]:
        found, following = await self._call(remote.Ask("every_site", f"{limit} {cursor}"))
        return found, following

    async def site(self, name: str) -> Known | None:
        found: Known | None = await self._call(remote.Ask("site", name))
        return found

    async def lookup(self, url: str, *, page: str = "") -> Known | None:
        found: Known | None = await self._call(remote.Ask("lookup", url))
        return found

    async def advice(self, least: int, most: int | None) -> Advice:
        counts, shards = await self.counts(), await self.shards()
        workers, sites = await self.workers(), await self.sites()
        return advise(counts, shards, workers, settings=self.settings, sites=sites, least=least, most=most)

    async def warnings(self, counts: Counts) -> list[str]:
        return []

    async def set_state(self, state: JobState) -> None:
        await self._call(remote.Ask(_VERBS[state]))

    async def add(self, urls: Sequence[str]) -> int:
        return int(await self._call(remote.AddUrls(list(urls))))

    async def limit(self, changes: Mapping[str, Any]) -> bool:
        await self._call(remote.Limit(dict(changes)))
        self.settings = configuration.build({**configuration.dump(self.settings), **changes})
        return True

    async def remove(self, *, results: bool = False) -> Removed:
        from gossamer.jobs.removal import delete_job

        return await delete_job(self, results=results)

    def stored(self) -> StoredJob:
        return _stored(self.folder)

    async def aclose(self) -> None:
        await self._connection.aclose()


class StoppedJob:
    """A crawl that no process runs: its frontier and files can be read, and its settings can be changed."""

    frontier = ""

    def __init__(self, folder: Path, *, name: str = "", address: str = "", clock: Clock | None = None) -> None:
        """`address` is the address of an owned frontier of another package, by default the one in the folder."""
        self.name = name or folder.name
        self.folder = folder
        self.settings = configuration.build(stored_settings(folder))
        self.address = address or stored_address(folder)
        clock = clock or SystemClock()
        self._frontier: AtRest = (
            FrontierAtRest(folder, self.address, clock=clock)
            if self.address
            else FileAtRest(folder, self.settings, clock=clock)
        )

    @property
    def is_gone(self) -> bool:
        return (self.folder / "socket").exists() or self._frontier.is_old

    async def status(self, *, check: bool = False) -> JobStatus:
        counts, sites = await self._frontier.overview(SITES, self.settings)
        rejected, cut = await asyncio.to_thread(_files, self.folder, check)
        return JobStatus(state=self.state(counts, ()), counts=counts, sites=sites, rejected=rejected, cut=cut)

    async def counts(self) -> Counts:
        return await self._frontier.counts(self.settings)

    def state(self, counts: Counts, workers: Sequence[Heartbeat]) -> State:
        return "finished" if counts.finished else "resting"

    async def workers(self) -> list[Heartbeat]:
        return []

    async def shards(self) -> list[ShardView]:
        return [ShardView(shard=0, server="embedded", counts=await self.counts())]

    async def sites(self, limit: int = SITES) -> list[Known]:
        return await self._frontier.sites(limit, self.settings)

    async def every_site(self, cursor: str, limit: int) -> tuple[Sequence[Known], str]:
        return await self._frontier.every_site(cursor, limit, self.settings)

    async def site(self, name: str) -> Known | None:
        return await self._frontier.site(name)

    async def lookup(self, url: str, *, page: str = "") -> Known | None:
        return await lookup_any_name(self._frontier.lookup, self.settings, url, page)

    async def advice(self, least: int, most: int | None) -> Advice:
        counts = await self.counts()
        if not counts.finished:
            raise self._stopped()
        return advise(counts, await self.shards(), [], settings=self.settings, least=least, most=most)

    async def warnings(self, counts: Counts) -> list[str]:
        return []

    async def set_state(self, state: JobState) -> None:
        raise self._stopped()

    async def add(self, urls: Sequence[str]) -> int:
        raise self._stopped()

    async def limit(self, changes: Mapping[str, Any]) -> bool:
        if "max_seconds" in changes:
            raise JobStopped(
                "max_seconds applies to a running job, and this one is stopped", hint="resume the job first"
            )
        self.settings = configuration.build({**configuration.dump(self.settings), **changes})
        await asyncio.to_thread(save_settings, self.folder, self.settings)
        return False

    async def remove(self, *, results: bool = False) -> Removed:
        from gossamer.jobs.removal import delete_job

        return await delete_job(self, results=results, address=self.address)

    def stored(self) -> StoredJob:
        return _stored(self.folder)

    async def aclose(self) -> None:
        pass

    def _stopped(self) -> JobStopped:
        start = f"start it with: gossamer crawl --job {self.folder}"
        return JobStopped(f"job {self.name!r} is not running", hint=start)


def _files(folder: Path, check: bool) -> tuple[int, Known | None]:
    """The numbers of rejected items and cut pages, from the job's files."""
    return count_rejected(folder), cut_pages(folder, check=check)


def _stored(folder: Path) -> StoredJob:
    from gossamer.storage.reader import StoredJob

    return StoredJob.with_settings(folder, stored_settings(folder))


class ProcessMonitor:
    """Memory and CPU of processes on this machine. CPU is measured between two samples."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[float, float]] = {}

    def look(self, processes: Mapping[str, int]) -> list[Heartbeat]:
        """Sample the processes, as heartbeats like those of a fleet's workers."""
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in processes.values()}
        return [self._heartbeat(name, pid) for name, pid in processes.items()]

    def _heartbeat(self, name: str, pid: int) -> Heartbeat:
        memory, used, up = _usage(pid)
        now = self._clock.monotonic()
        before, at = self._seen.get(pid, (used, now))
        # Two samples at nearly the same time give no rate: keep the older one.
        if now - at > 0.5 or pid not in self._seen:
            self._seen[pid] = (used, now)
        load = (used - before) / (now - at) if now - at > 0.5 else 0.0
        return Heartbeat(
            worker=name,
            version=VERSION,
            host=os.uname().nodename,
            pid=pid,
            memory_bytes=memory,
            load=round(min(max(load, 0.0), 64.0), 3),
            up_seconds=round(up, 1),
        )


def _usage(pid: int) -> tuple[int, float, float]:
    """Bytes in memory, CPU seconds, seconds since the start; zeros where the system does not report them."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/uptime", "rb") as file:
            uptime = float(file.read().split()[0])
    except (OSError, IndexError, ValueError):
        return 0, 0.0, 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    return memory, (int(fields[11]) + int(fields[12])) / ticks, max(0.0, uptime - int(fields[19]) / ticks)
