"""Harnesses of Gossamer's own frontiers: examples for authors of other backends."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, cast
from unittest import SkipTest

import msgspec

from gossamer.clock import ManualClock
from gossamer.engine.commit import OwnerStore
from gossamer.engine.coordinator import Coordinator
from gossamer.engine.links import Linker, RecentKeys
from gossamer.engine.remote import Ask, OwnerConnection, RemoteFrontier, connect
from gossamer.engine.stats import Stats
from gossamer.frontier.base import FleetFrontier, Frontier, OwnedBackend, OwnedFrontier
from gossamer.frontier.embedded.frontier import EmbeddedFrontier, open_memory
from gossamer.frontier.embedded.sqlite import open_sqlite
from gossamer.frontier.folder.files import SharedFolder
from gossamer.frontier.folder.frontier import FolderFrontier, open_folder
from gossamer.frontier.placement import parse_part
from gossamer.frontier.redis.connection import addresses
from gossamer.frontier.redis.server import client, job_key
from gossamer.frontier.redis.shards import open_redis
from gossamer.frontier.sharded import Sharded
from gossamer.frontier.sql.database import Database, Dialect
from gossamer.frontier.sql.frontier import SqlFrontier
from gossamer.frontier.sql.record import dialect_of
from gossamer.frontier.sql.shards import open_databases
from gossamer.model import Counts, Grant, JobState
from gossamer.settings import Settings
from gossamer.testing.harness import LEASE, Harness
from gossamer.testing.servers import MEMORY, TABLES

SECRET = b"0123456789abcdef"
_JOB = "job"
_COMMANDS = {"paused": "pause", "running": "resume", "stopping": "stop"}


class MachineClock(ManualClock):
    """A manual clock of a machine that can reboot: `monotonic` then starts again, `epoch` continues."""

    def __init__(self) -> None:
        super().__init__()
        self._started_at = 0.0
        self._set_back = 0.0

    def monotonic(self) -> float:
        return self.now - self._started_at

    def epoch(self) -> float:
        return super().epoch() - self._set_back

    def restart(self) -> None:
        self._started_at = self.now - 16.0

    def set_back(self, seconds: float) -> None:
        self._set_back += seconds


class Shared(Protocol):
    """A frontier shared by several workers in one process."""

    async def lease(self, limit: int, *, batch: int, seconds: float, worker: str = "") -> Grant: ...

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int: ...

    async def steer(self, job: JobState) -> None: ...


class LocalWorker:
    """A worker's view of a frontier in the same process; leases carry its name."""

    def __init__(self, frontier: Shared, name: str) -> None:
        self._frontier = frontier
        self.name = name

    async def lease(self, limit: int, *, batch: int, seconds: float) -> Grant:
        return await self._frontier.lease(limit, batch=batch, seconds=seconds, worker=self.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frontier, name)


class LocalHarness(Harness):
    """A frontier in this process on a manual clock, with any number of workers."""

    clock: MachineClock

    @property
    @abstractmethod
    def shared(self) -> Shared:
        """The frontier shared by all workers."""

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def set_back(self, seconds: float) -> None:
        self.clock.set_back(seconds)

    async def worker(self, name: str) -> Frontier:
        return cast(Frontier, LocalWorker(self.shared, name))

    async def lose(self, worker: Frontier) -> None:
        await self.shared.abandon(cast(LocalWorker, worker).name)

    async def steer(self, job: JobState) -> None:
        await self.shared.steer(job)


class MemoryHarness(LocalHarness):
    """`memory:`, which is not durable."""

    durable = False

    def __init__(self, local: EmbeddedFrontier, clock: MachineClock) -> None:
        self.local = local
        self.clock = clock
        self.frontier = local

    @property
    def shared(self) -> Shared:
        return self.local


class SqliteHarness(MemoryHarness):
    """`sqlite`, in a folder of its own."""

    durable = True

    def __init__(self, path: Path, settings: Settings, clock: MachineClock) -> None:
        super().__init__(open_sqlite(path, settings, clock=clock), clock)
        self.path = path
        self.settings = settings
        self._lives = 0

    async def reopen(self, settings: Settings | None = None) -> None:
        # Closing a SQLite file cleans it up, killing its process does not. Copy the files first, as `kill -9` would
        # leave them, and then close the old frontier.
        await self._reopen(self._copied(), settings)

    async def remember(self) -> None:
        self._remembered = self._copied()

    async def forget(self) -> None:
        await self._reopen(self._remembered)

    def _copied(self) -> Path:
        """A copy of the files in their current state, in a new folder."""
        self._lives += 1
        path = self.path.parent.parent / f"life-{self._lives}" / self.path.name
        path.parent.mkdir()
        for suffix in ("", "-wal"):
            if Path(f"{self.path}{suffix}").exists():
                shutil.copyfile(f"{self.path}{suffix}", f"{path}{suffix}")
        return path

    async def _reopen(self, path: Path, settings: Settings | None = None) -> None:
        self.path = path
        await self.end()
        self.clock.restart()
        self.settings = settings or self.settings
        self.frontier = self.local = open_sqlite(self.path, self.settings, clock=self.clock)
        await self.begin()

    async def begin(self) -> None:
        """Start to accept workers."""

    async def end(self) -> None:
        """Close everything."""
        await self.local.aclose()

    async def marks(self) -> Mapping[str, int]:
        return self.local.marks


class RemoteHarness(SqliteHarness):
    """Workers of a `sqlite` frontier with another owner: every call crosses the coordinator's socket."""

    def __init__(self, path: Path, settings: Settings, clock: MachineClock) -> None:
        super().__init__(path, settings, clock)
        self._connections: dict[int, OwnerConnection] = {}

    async def begin(self) -> None:
        self._store = OwnerStore(self.local, [], Stats(self.clock))
        linker = Linker(self.settings, self.local.secret, RecentKeys())
        folder = self.path.parent
        self._coordinator = Coordinator(self.local, self._store, linker=linker, settings=self.settings, folder=folder)
        await self._coordinator.start()
        self.frontier = await self.worker("first")

    async def end(self) -> None:
        for connection in self._connections.values():
            await connection.aclose()
        self._connections.clear()
        await self._coordinator.aclose()
        await self._store.aclose()
        await super().end()

    async def worker(self, name: str) -> Frontier:
        connection, _ = await connect(self.path.parent, worker=name)
        frontier = RemoteFrontier(connection)
        self._connections[id(frontier)] = connection
        return frontier

    async def lose(self, worker: Frontier) -> None:
        known = len(self._coordinator.workers)
        await self._connections.pop(id(worker)).aclose()
        while len(self._coordinator.workers) == known:
            await asyncio.sleep(0)

    async def steer(self, job: JobState) -> None:
        await next(iter(self._connections.values())).call(Ask(_COMMANDS[job]))

    async def marks(self) -> Mapping[str, int]:
        raise SkipTest("only the owner has marks")


class OwnedHarness(LocalHarness):
    """Any file-based backend whose jobs have one owner; `{folder}` in its address is replaced by their folder.

    A kill copies the files in their current state, as `kill -9` would leave them, and opens the copy."""

    local: OwnedFrontier

    def __init__(self, backend: OwnedBackend, url: str, folder: Path, settings: Settings) -> None:
        self.backend = backend
        self.url = url
        self.settings = settings
        self.clock = MachineClock()
        self._lives = folder
        self._folder = folder / "life-0"
        self._count = 0

    @property
    def shared(self) -> Shared:
        return cast(Shared, self.local)

    async def begin(self) -> None:
        """Open the job in the current folder."""
        url = self.url.format(folder=self._folder)
        self.frontier = self.local = await self.backend.create(url, _JOB, self.settings, clock=self.clock)

    async def reopen(self, settings: Settings | None = None) -> None:
        self.settings = settings or self.settings
        await self._live_on(self._copied())

    async def remember(self) -> None:
        self._remembered = self._copied()

    async def forget(self) -> None:
        await self._live_on(self._remembered)

    async def _live_on(self, folder: Path) -> None:
        # Closing changes only the files of the previous run.
        await self.local.aclose()
        self._folder = folder
        self.clock.restart()
        await self.begin()

    def _copied(self) -> Path:
        self._count += 1
        folder = self._lives / f"life-{self._count}"
        shutil.copytree(self._folder, folder)
        return folder

    async def marks(self) -> Mapping[str, int]:
        return self.local.marks


@asynccontextmanager
async def owned(backend: OwnedBackend, settings: Settings, *, url: str) -> AsyncIterator[OwnedHarness]:
    """A backend with one owner on a manual clock, at an address such as `lmdb:{folder}`."""
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder:
        harness = OwnedHarness(backend, url, Path(folder), settings)
        await harness.begin()
        try:
            yield harness
        finally:
            await harness.local.aclose()


@asynccontextmanager
async def memory(settings: Settings) -> AsyncIterator[Harness]:
    """`memory:` on a manual clock."""
    clock = MachineClock()
    harness = MemoryHarness(open_memory(settings, clock=clock, secret=SECRET), clock)
    try:
        yield harness
    finally:
        await harness.local.aclose()


@asynccontextmanager
async def sqlite(settings: Settings) -> AsyncIterator[SqliteHarness]:
    """`sqlite` on a manual clock."""
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder:
        harness = SqliteHarness(Path(folder) / "life-0" / "frontier.db", settings, MachineClock())
        try:
            yield harness
        finally:
            await harness.end()


@asynccontextmanager
async def remote(settings: Settings) -> AsyncIterator[RemoteHarness]:
    """`sqlite` behind its coordinator, on a manual clock."""
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder:
        harness = RemoteHarness(Path(folder) / "life-0" / "frontier.db", settings, MachineClock())
        await harness.begin()
        try:
            yield harness
        finally:
            await harness.end()


class SweptShards(Sharded):
    """Shards on servers that lose nothing: their outboxes are empty at every check."""

    quiet_seconds = 0.0

    @classmethod
    def over(cls, frontier: Sharded) -> SweptShards:
        """The same shards."""
        return cls(frontier._shards, part=frontier._part, close=frontier._close)

    async def lease(self, limit: int, *, batch: int, seconds: float, also: frozenset[str] = frozenset()) -> Grant:
        await self._sweep_all()
        return await super().lease(limit, batch=batch, seconds=seconds, also=also)

    async def counts(self) -> Counts:
        await self._sweep_all()
        return await super().counts()

    async def _sweep_all(self) -> None:
        runs = {shard.server: await shard.run() for shard in self._shards}
        for shard in self._shards:
            # The first sweep starts the timer, the second finds it expired.
            await shard.sweep(runs, seconds=0.0)
            await shard.sweep(runs, seconds=0.0)


class RedisHarness(Harness):
    """`redis://`, with a manual clock."""

    rests_after_crash = False
    # `forget` promotes the server.
    rest_beyond_lease = Settings().forget_seconds

    def __init__(self, url: str, settings: Settings, shards: str, fold: int | None) -> None:
        self.url = url
        self.settings = settings
        self._shards = shards
        self._fold = fold
        self.one_store = shards == "1"
        self._frontiers: dict[int, FleetFrontier] = {}
        self._names: dict[int, str] = {}
        self._hired = 0

    async def begin(self) -> None:
        """Empty the server and create the job."""
        self._servers = [client.Redis.from_url(url) for url in addresses(self.url)]
        for server in self._servers:
            await server.flushall()
        self.frontier = await self.worker("first")
        await self.advance(1_700_000_000)
        if self._fold is not None:
            for server, key in await self._records():
                await server.hset(key, "fold", self._fold)

    async def end(self) -> None:
        """Close everything."""
        for frontier in self._frontiers.values():
            await frontier.aclose()
        for server in self._servers:
            await server.aclose()

    async def advance(self, seconds: float) -> None:
        for server, key in await self._records():
            await server.hincrbyfloat(key, "clock", seconds)

    async def _records(self) -> list[tuple[Any, str]]:
        keys = [job_key(_JOB, shard) for shard in range(parse_part(self._shards).of)]
        return [(server, key) for server in self._servers for key in keys if await server.exists(key)]

    async def remember(self) -> None:
        self._kept = []
        for server in self._servers:
            keys = await server.keys("*")
            self._kept.append({key: cast(bytes, await server.dump(key)) for key in keys})

    async def forget(self) -> None:
        clocks = [float(await server.hget(key, "clock")) for server, key in await self._records()]
        for server, kept in zip(self._servers, self._kept):
            await server.flushall()
            for key, data in kept.items():
                await server.restore(key, 0, data)
            # As after a fail-over: the promoted replica starts a new replication id.
            await server.replicaof("127.0.0.1", "1")
            await server.replicaof("NO", "ONE")
        for (server, key), clock in zip(await self._records(), clocks):
            await server.hset(key, "clock", clock)

    async def set_back(self, seconds: float) -> None:
        await self.advance(-seconds)

    async def worker(self, name: str) -> Frontier:
        frontier = await open_redis(self.url, _JOB, self.settings, worker=name, shards=self._shards)
        if isinstance(frontier, Sharded):
            frontier = SweptShards.over(frontier)
        self._frontiers[id(frontier)] = frontier
        self._names[id(frontier)] = name
        return frontier

    async def lose(self, worker: Frontier) -> None:
        # As a replacement for a dead worker does.
        await self._frontiers[id(self.frontier)].abandon(self._names[id(worker)])

    async def steer(self, job: JobState) -> None:
        await self._frontiers[id(self.frontier)].steer(job)

    async def reopen(self, settings: Settings | None = None) -> None:
        """Kill all workers; the server keeps running."""
        self.settings = settings or self.settings
        self._hired += 1
        gone = list(self._frontiers.values())
        self._frontiers.clear()
        self.frontier = await self.worker(f"again-{self._hired}")
        for frontier in gone:
            await self._frontiers[id(self.frontier)].abandon(self._names[id(frontier)])
            await frontier.aclose()


@asynccontextmanager
async def redis(settings: Settings, url: str, *, shards: str = "1", fold: int | None = None) -> AsyncIterator[Harness]:
    """`redis://` on one or several test servers, which are emptied.

    `fold` sets the queue length from which requests are packed into blocks."""
    harness = RedisHarness(url, settings, shards, fold)
    await harness.begin()
    try:
        yield harness
    finally:
        await harness.end()


JOB = "job"


class TimedShare(SharedFolder):
    """A shared folder on a file server with a manual clock."""

    def __init__(self, root: Path, clock: MachineClock) -> None:
        super().__init__(root)
        self._clock = clock

    def clock_of(self, handle: int) -> float:
        return self._clock.epoch()


class FolderHarness(LocalHarness):
    """`folder:` with one owner of all shards, and several workers on the same machine."""

    def __init__(self, folder: Path, settings: Settings, *, shards: int = 7) -> None:
        self.url = f"folder:{folder}?shards={shards}"
        self.root = folder / "frontier" / JOB
        self.settings = settings
        self.clock = MachineClock()
        self._lives = 0

    async def begin(self) -> None:
        """Open the frontier."""
        self.frontier = self.folder = await self.open(f"life-{self._lives}")

    async def open(self, worker: str, region: str = "") -> FolderFrontier:
        """Open a worker on another machine."""
        return await open_folder(
            self.url,
            JOB,
            self.settings,
            worker=worker,
            region=region,
            clock=self.clock,
            share=TimedShare(self.root, self.clock),
            rounds=False,
        )

    async def end(self) -> None:
        """Close everything."""
        await self.folder.aclose()

    @property
    def shared(self) -> Shared:
        return self.folder

    async def reopen(self, settings: Settings | None = None) -> None:
        old, self._lives = self.folder, self._lives + 1
        old.owner.abort()
        self.settings = settings or self.settings
        self.clock.restart()
        await self.begin()
        # As a replacement for a killed worker does.
        await self.folder.abandon(old.worker)


@asynccontextmanager
async def folder(settings: Settings, *, shards: int = 7) -> AsyncIterator[FolderHarness]:
    """`folder:` on a manual clock."""
    with tempfile.TemporaryDirectory(prefix="gossamer-", dir=MEMORY) as name:
        harness = FolderHarness(Path(name), settings, shards=shards)
        await harness.begin()
        try:
            yield harness
        finally:
            await harness.end()


class SqlHarness(Harness):
    """An SQL database, with a manual clock."""

    rests_after_crash = False

    def __init__(self, url: str, settings: Settings, shards: str) -> None:
        self.url = url
        # The duration of the suites' leases: after a fail-over, sites rest for this time.
        self.settings = msgspec.structs.replace(settings, lease_seconds=LEASE)
        self._shards = shards
        self.one_store = shards == "1"
        self._frontiers: dict[int, tuple[FleetFrontier, str]] = {}
        self._hired = 0
        self._database = Database(dialect_of(url))

    async def ask(self, text: str) -> None:
        """Run one statement outside the frontier."""
        await self._database.run(lambda db: db.ask(text), whole=False)

    async def begin(self) -> None:
        """Empty the tables and create the job."""
        await self._database.run(lambda db: db.make_tables())
        for table in reversed(TABLES):
            await self.ask(f"DELETE FROM gossamer_{table}")  # noqa: S608
        self.frontier = await self.worker("first")
        await self.ask("UPDATE gossamer_jobs SET clock = 1700000000000000")

    async def end(self) -> None:
        """Close everything."""
        for frontier, _ in self._frontiers.values():
            await frontier.aclose()
        await self._database.aclose()

    async def advance(self, seconds: float) -> None:
        await self.ask(f"UPDATE gossamer_jobs SET clock = clock + {round(seconds * 1e6)}")  # noqa: S608

    async def remember(self) -> None:
        for table in TABLES:
            await self.ask(f"DROP TABLE IF EXISTS kept_{table}")
            await self.ask(f"CREATE TABLE kept_{table} AS SELECT * FROM gossamer_{table}")  # noqa: S608
        # The next connection finds the server in a new run.
        await self.ask("UPDATE kept_shards SET server = 'forgotten'")

    async def forget(self) -> None:
        async def work(db: Dialect) -> None:
            ((clock,),) = await db.ask("SELECT MAX(clock) FROM gossamer_jobs")
            for table in reversed(TABLES):
                await db.ask(f"DELETE FROM gossamer_{table}")  # noqa: S608
            for table in TABLES:
                await db.ask(f"INSERT INTO gossamer_{table} SELECT * FROM kept_{table}")  # noqa: S608
            await db.ask(f"UPDATE gossamer_jobs SET clock = {int(clock)}")  # noqa: S608

        await self._database.run(work)
        for frontier, _ in self._frontiers.values():
            for shard in frontier.in_order if isinstance(frontier, Sharded) else [frontier]:
                cast(SqlFrontier, shard)._database.dialect.abort()

    async def set_back(self, seconds: float) -> None:
        await self.advance(-seconds)

    async def worker(self, name: str) -> Frontier:
        frontier = await open_databases(self.url, _JOB, self.settings, worker=name, shards=self._shards)
        if isinstance(frontier, Sharded):
            frontier.quiet_seconds = 0.0
        self._frontiers[id(frontier)] = frontier, name
        return frontier

    async def lose(self, worker: Frontier) -> None:
        # As a replacement for a dead worker does.
        await cast(FleetFrontier, self.frontier).abandon(self._frontiers[id(worker)][1])

    async def steer(self, job: JobState) -> None:
        await cast(FleetFrontier, self.frontier).steer(job)

    async def reopen(self, settings: Settings | None = None) -> None:
        """Kill all workers; the server keeps running."""
        self.settings = msgspec.structs.replace(settings or self.settings, lease_seconds=LEASE)
        self._hired += 1
        gone = list(self._frontiers.values())
        self._frontiers.clear()
        self.frontier = await self.worker(f"again-{self._hired}")
        for frontier, name in gone:
            await cast(FleetFrontier, self.frontier).abandon(name)
            await frontier.aclose()


@asynccontextmanager
async def sql(settings: Settings, url: str, *, shards: str = "1") -> AsyncIterator[Harness]:
    """A test database, whose tables are emptied."""
    harness = SqlHarness(url, settings, shards)
    await harness.begin()
    try:
        yield harness
    finally:
        await harness.end()
