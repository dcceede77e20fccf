"""Worker processes: built from their parts, joined to a local job or a fleet, or waiting for a job.

`build_worker` puts an engine together; the rest of this module decides for whom it works. There are four ways:

- In the owner's process (`local_run`): frontier and store are objects here.
- Beside the owner (`join`): frontier and store are at the other end of a socket. When the owner is gone, the worker
  stops at once and sends nothing more, because its leases were void in the same moment.
- In a fleet (`join_fleet`): the frontier is shared, and the worker writes segments of its own. Leases outlast the
  worker, so a successor of the same name first gives back what its predecessor held.
- On standby (`Standby`): a fleet's worker in a cluster, which outlives its job and waits for the next one.

**Order at the start.** The frontier is opened and the results folder is checked before anything is fetched: a worker
that could not store its pages must not lease any. Then the predecessor's marker is read and its leases are abandoned,
with blame for the page that killed it (P10). Sinks, engine and spider follow, and the first lease comes last.

**Order at the end** is the reverse: the engine commits all it has and returns its leases, then downloader, marker and
request log are closed, then sinks, then the frontier. The marker goes only after the engine has ended: a crash while
the worker ends must still name its page.

A store that is away at the start ends a worker that a person started, with an error; a supervised one waits for it,
since its supervisor would only start it again. Later the engine waits by itself. A worker that was suspended for
longer than its leases last finds them lost, and leases new ones; to the frontier it is the same worker, whose heartbeat
(`engine/heartbeat.py`) was late."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gossamer import telemetry
from gossamer.clock import Clock, SystemClock
from gossamer.download import open_downloader
from gossamer.download.base import AddressLookup, Downloader, LearnsSites
from gossamer.download.dns import NameResolver, Resolver
from gossamer.engine.budget import Guard
from gossamer.engine.commit import FleetStore, Store
from gossamer.engine.concurrency import AddressLimits, LoadMeter, Machine
from gossamer.engine.guarded_parsing import GuardedParser
from gossamer.engine.heartbeat import HeartbeatSender, heartbeats, is_live
from gossamer.engine.lifecycle import Lifecycle
from gossamer.engine.links import KnownKeys, Linker, RecentKeys
from gossamer.engine.parsing import PageProcessor, SpiderRunner, item_columns, make_spider
from gossamer.engine.regions import RegionContext, RoundTrips
from gossamer.engine.remote import OwnerConnection, RemoteFrontier, RemoteStore, connect
from gossamer.engine.robots import SubresourceRobots
from gossamer.engine.run import Engine
from gossamer.engine.supervision import CrashMarker, take_marked_key
from gossamer.engine.visit import Visit
from gossamer.errors import JobMissing, OwnerGone, Unavailable
from gossamer.extract.spider import Spider
from gossamer.frontier.backends import backend_of, open_fleet
from gossamer.frontier.base import FleetFrontier, Frontier
from gossamer.jobs.results_folder import (
    check_results,
    is_results,
    results_folder,
)
from gossamer.jobs.signals import leaving, watched
from gossamer.middleware import Fetch, Middleware, compose, guarded
from gossamer.middleware.cache import cache
from gossamer.middleware.cookies import CookieJar, cookies
from gossamer.middleware.sessions import sessions
from gossamer.model import Heartbeat, JobState
from gossamer.settings import Settings, build
from gossamer.storage.base import Sink
from gossamer.storage.registry import finish_archives, fleet_sinks, wants_segments
from gossamer.storage.request_log import RequestLog
from gossamer.storage.segments import SegmentSink

if TYPE_CHECKING:
    from gossamer.engine.parser_pool import ParserPool
    from gossamer.telemetry.tracing import Tracing


def jar_of(settings: Settings, clock: Clock) -> CookieJar | None:
    """The cookie jar of a worker; None without cookies, and where each session has its own."""
    if not settings.cookies or settings.sessions:
        return None
    return CookieJar(clock, per_host=settings.cookie_jar == "host")


def middlewares(spider: Spider, settings: Settings, clock: Clock, *, jar: CookieJar | None) -> list[Middleware]:
    """The fetch middleware, outermost first: the spider's own, then the development cache, then sessions or cookies."""
    chain: list[Middleware] = list(spider.fetch_middleware)
    if settings.cache:
        chain.append(cache(Path(settings.cache), clock))
    if settings.sessions:
        chain.append(sessions(settings, clock))
    elif jar is not None:
        chain.append(cookies(jar))
    return chain


async def check_fetching(settings: Settings) -> None:
    """ConfigError if no worker here could fetch with these settings."""
    clock = SystemClock()
    if settings.cache:
        cache(Path(settings.cache), clock)
    await open_downloader(settings, clock=clock).aclose()


def subresource_robots_of(downloader: Downloader, settings: Settings, clock: Clock) -> SubresourceRobots | None:
    """The robots check for what pages in the browser load, installed in the downloader; None without either."""
    if not settings.robots or settings.downloader not in ("browser", "auto"):
        return None
    from gossamer.download.browser import BrowserDownloader

    assert isinstance(downloader, BrowserDownloader)
    subresource_robots = SubresourceRobots(settings, clock)
    downloader.permit = subresource_robots.allows
    return subresource_robots


def address_limits_of(downloader: Downloader, settings: Settings) -> AddressLimits | None:
    """The limit of fetches per address, if there is one: names are then resolved before pages are requested."""
    if settings.per_address is None or not isinstance(downloader, AddressLookup):
        return None
    return AddressLimits(downloader, settings.per_address)


def _parsers(settings: Settings) -> ParserPool:
    """The parser processes. Imported here: most crawls never need them."""
    from gossamer.engine.parser_pool import ParserPool

    if settings.parse_processes:
        return ParserPool(settings.parse_processes, settings)
    return ParserPool(1, settings, is_aside=True)


@asynccontextmanager
async def build_worker(
    frontier: Frontier,
    store: Store,
    *,
    settings: Settings,
    secret: bytes,
    clock: Clock,
    marker_path: Path | None = None,
    spider: Spider | None = None,
    refused: Counter[str] | None = None,
    places: RegionContext | None = None,
    trail: RequestLog | None = None,
    tracing: Tracing | None = None,
    memory: KnownKeys | None = None,
    machine: LoadMeter | None = None,
    suspects: Collection[int] = (),
) -> AsyncIterator[Engine]:
    """An engine with everything it needs, which is closed at the end.

    `suspects` are pages of which a worker has died: they go to a parser process. A `spider` is an object that only
    this process has, so there are no parser processes then. With `parse_processes`, all pages go to them, and this
    process needs no marker: what dies there is known."""
    tracing = tracing or telemetry.begin()
    begin_parsers = None if spider is not None else partial(_parsers, settings)
    spider = spider or make_spider(settings)
    recent = memory or RecentKeys()
    score = spider.score if type(spider).score is not Spider.score else None
    linker = Linker(settings, secret, recent, refused=refused, score=score)
    names: NameResolver | None = None
    if tracing is not None:
        from gossamer.telemetry import traced

        names = traced.TracedNameResolver(Resolver(clock, settings.resolve, nameservers=settings.nameservers), tracing)
        store = traced.TracedStore(store, tracing, clock)
    downloader = open_downloader(settings, clock=clock, resolver=names)
    loads = subresource_robots_of(downloader, settings, clock)
    jar = jar_of(settings, clock)
    # With parser processes for all pages, no page runs here that could kill this process.
    marker = CrashMarker(None if settings.parse_processes else marker_path)
    extractor: ParserPool | GuardedParser
    if settings.parse_processes:
        extractor, lifecycle = _parsers(settings), Lifecycle(spider)
    else:
        lifecycle = Lifecycle(spider, spider.pipelines)
        guard = Guard()
        here = SpiderRunner(spider, settings, guard=guard)
        extractor = GuardedParser(here, settings, guard=guard, marker=marker, start=begin_parsers, suspects=suspects)
    try:
        inner: Fetch = downloader.fetch
        fetch = compose(middlewares(spider, settings, clock, jar=jar), inner)
        if spider.fetch_middleware:
            fetch = guarded(fetch)
        processor = PageProcessor(extractor, linker)
        visits: Callable[..., Visit] = Visit
        if tracing is not None:
            fetch = traced.traced_fetch(fetch, tracing)
            processor = traced.TracedPageProcessor(extractor, linker, tracing)
            visits = partial(traced.TracedVisit, tracing=tracing)
        yield Engine(
            frontier,
            store,
            fetch=fetch,
            processor=processor,
            lifecycle=lifecycle,
            recent=recent,
            settings=settings,
            clock=clock,
            places=places,
            request_log=trail if settings.trail else None,
            jar=jar,
            site_learner=downloader if isinstance(downloader, LearnsSites) else None,
            subresource_robots=loads,
            address_limits=address_limits_of(downloader, settings),
            visits=visits,
            machine=machine,
        )
    finally:
        await downloader.aclose()
        marker.close()
        if trail is not None:
            await trail.aclose()
        if tracing is not None:
            await tracing.aclose()


async def join(folder: Path, *, name: str, supervised: int = 0) -> JobState:
    """Work for the job in `folder` until it is over. One of several `supervised` workers leaves Ctrl-C to its
    supervisor."""
    connection, welcome = await connect(folder, worker=name)
    frontier, settings = RemoteFrontier(connection), build(welcome.settings)
    refused: Counter[str] = Counter()
    marker_path = Path(welcome.folder) / "handling" / name
    try:
        async with (
            build_worker(
                frontier,
                RemoteStore(connection, refused),
                settings=settings,
                secret=welcome.secret,
                clock=SystemClock(),
                marker_path=marker_path,
                refused=refused,
                trail=RequestLog(Path(welcome.folder), name, most_bytes=settings.trail_bytes),
                machine=Machine(workers=supervised or 1),
            ) as engine,
            leaving(lambda _: engine.stop(), interrupt=engine.interrupt, settings=settings, ctrl_c=not supervised),
        ):
            return await _until_gone(engine, connection)
    finally:
        await frontier.aclose()


async def _until_gone(engine: Engine, connection: OwnerConnection) -> JobState:
    """Run to the end, or until the owner is gone: then OwnerGone, and the engine is cancelled, not drained."""
    running = asyncio.create_task(engine.run())
    gone = asyncio.create_task(connection.gone.wait())
    try:
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise OwnerGone("the crawl of this worker has ended")
        return running.result()
    finally:
        # Its leases are void: others may have the sites already, so nothing more may be sent.
        gone.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


log = logging.getLogger("gossamer.fleet")


async def join_fleet(
    url: str,
    job: str,
    folder: Path,
    *,
    name: str,
    region: str = "",
    shards: str = "",
    supervised: int = 0,
    own_results: bool = False,
    signals: Callable[[Callable[[], None]], None] | None = None,
) -> JobState:
    """Work for the job at this address until it is over; the pages go to segments in its results folder.

    A worker that cannot see that folder is refused, unless it may have `own_results`, which are gathered by hand. One
    of several `supervised` workers leaves Ctrl-C to its supervisor. `signals` is passed the function that stops the
    worker, to call it at a signal; without it, the worker handles signals itself."""
    frontier = await _joined(url, job, name=name, region=region, shards=shards, patient=bool(supervised))
    results = results_folder(url, job, frontier.settings, folder)
    # The marker is mapped memory: on a shared folder that fails, writing to it would kill the process (SIGBUS).
    is_remote = backend_of(url).results_folder(url, job) is not None
    marker_path = (folder if is_remote else results) / "handling" / name
    try:
        if not own_results:
            await asyncio.to_thread(check_results, results, job, frontier.settings, url)
        # A predecessor of this name may have died with leases, and of a page. Before the first lease of our own.
        key = take_marked_key(marker_path)
        await frontier.abandon(name, blamed=(key,) if key else ())
        is_there = None if own_results else partial(is_results, results, frontier.settings)
        segments = SegmentSink(results, name, is_there=is_there) if wants_segments(frontier.settings.sink) else None
        sinks: list[Sink] = [segments] if segments is not None else []
        sinks += fleet_sinks(frontier.settings, results, name, job=job, types=item_columns(frontier.settings))
        store = FleetStore(frontier, sinks)
        clock = SystemClock()
        refused: Counter[str] = Counter()
        places = places_of(frontier.settings, region, clock)
        try:
            async with build_worker(
                frontier,
                store,
                settings=frontier.settings,
                secret=frontier.secret,
                clock=clock,
                marker_path=marker_path,
                places=places,
                trail=RequestLog(results, name, most_bytes=frontier.settings.trail_bytes),
                refused=refused,
                machine=Machine(workers=supervised or 1),
                suspects=(key,) if key else (),
            ) as engine:
                if signals is None:
                    ways = leaving(
                        lambda _: engine.stop(),
                        interrupt=engine.interrupt,
                        settings=frontier.settings,
                        ctrl_c=not supervised,
                    )
                else:
                    signals(engine.stop)
                    ways = watched(frontier.settings)
                heartbeat = Heartbeat(worker=name, region=region, shards=shards)
                sender = HeartbeatSender(
                    frontier, engine, heartbeat=heartbeat, clock=clock, places=places, refused=refused
                )
                async with ways, heartbeats(sender):
                    state = await engine.run()
        finally:
            await store.aclose()
        if state == "finished":
            await finish_abandoned_archives(frontier, frontier.settings, results)
        return state
    finally:
        await frontier.aclose()


async def finish_abandoned_archives(frontier: FleetFrontier, settings: Settings, folder: Path) -> None:
    """Finish WARC files that killed workers left open, also those of machines that never return.

    Each worker that ends with the job tries; files of workers that are still alive are left alone."""
    try:
        live = [one.worker for one in await frontier.workers() if is_live(one)]
    except Unavailable as error:
        log.warning("cannot finish the WARC files that killed workers left open: %s", error)
        return
    await asyncio.to_thread(finish_archives, settings, folder, live=live)


async def _joined(url: str, job: str, *, name: str, region: str, shards: str, patient: bool) -> FleetFrontier:
    """Join a job; a `patient` worker waits for a store that is away."""
    while True:
        try:
            return await open_fleet(url, job, worker=name, region=region, shards=shards)
        except Unavailable as error:
            if not patient:
                raise
            log.warning("waiting for the frontier: %s", error)
            await asyncio.sleep(1.0)


def places_of(settings: Settings, region: str, clock: Clock) -> RegionContext | None:
    """The regions, as a worker of one of them sees them, where sites find theirs by themselves; else None."""
    if settings.region_by != "auto":
        return None
    return RegionContext(region, settings.fetch_seconds, connects=RoundTrips(clock))


standby_log = logging.getLogger("gossamer.standby")
TOUCH_SECONDS = 2.0
_LOOK_SECONDS = 2.0

Health = Literal["starting", "ready", "away", "leaving"]


class HealthFile:
    """A file for health probes: its modification time shows that the event loop runs, its content the worker's state.

    `ready`: the frontier responds, and the worker works or waits for its job. `away`: the frontier does not respond.
    `leaving`: the worker received a signal and finishes its current fetches. The file is replaced atomically. Without a
    path there is no file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._word: Health = "starting"

    def say(self, word: Health) -> None:
        """Write a new state; `leaving` is final."""
        if self._word != "leaving":
            self._word = word
        self._write()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Touch the file while the block runs; the last state remains in it."""
        self._write()
        task = asyncio.create_task(self._touch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _touch(self) -> None:
        while True:
            await asyncio.sleep(TOUCH_SECONDS)
            # A full disk does not end the worker: the file gets old, and the probe decides.
            with suppress(OSError):
                self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        part = self._path.with_name(self._path.name + ".part")
        part.write_text(self._word + "\n", "ascii")
        os.replace(part, self._path)


class Standby:
    """A worker of a fleet that outlives its job: in a cluster, a worker that exits would only be restarted.

    It checks the job every two seconds, without joining, and joins when the job is running or paused. Stopping the job
    ends the work, not the process; a signal ends both, after a drain."""

    def __init__(
        self,
        url: str,
        job: str,
        folder: Path,
        *,
        name: str,
        region: str = "",
        shards: str = "",
        own_results: bool = False,
        health: HealthFile,
    ) -> None:
        self._url = url
        self._own_results = own_results
        self._job = job
        self._folder = folder
        self._name = name
        self._region = region
        self._shards = shards
        self._health = health
        self._leaving = asyncio.Event()
        self._stop: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Work whenever the job is running or paused, until a signal ends this worker."""
        logged = ""
        async with leaving(lambda _: self._leave()), self._health.kept():
            while not self._leaving.is_set():
                wait = await self._why_wait()
                if not wait:
                    await self._work()
                elif wait != logged:
                    standby_log.info("waiting: %s", wait)
                logged = wait
                if not self._leaving.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._leaving.wait(), _LOOK_SECONDS)

    async def _work(self) -> None:
        """Join, and work until the job is over or stopped, or a signal comes."""
        try:
            await join_fleet(
                self._url,
                self._job,
                self._folder,
                name=self._name,
                region=self._region,
                shards=self._shards,
                own_results=self._own_results,
                signals=self._follow,
            )
        except Unavailable as error:
            # It could not join. Once it has joined, the engine waits by itself.
            self._health.say("away")
            standby_log.warning("waiting for the frontier: %s", error)
        finally:
            self._stop = lambda: None

    async def _why_wait(self) -> str:
        """The reason to wait; empty if the job is running or paused."""
        try:
            fleet = await open_fleet(self._url, self._job)
            try:
                state = (await fleet.counts()).job
            finally:
                await fleet.aclose()
        except Unavailable as error:
            self._health.say("away")
            return str(error)
        except JobMissing:
            state = "missing"
        self._health.say("ready")
        return "" if state in ("running", "paused") else f"{self._job} is {state}"

    def _follow(self, stop: Callable[[], None]) -> None:
        """Note how to stop the worker that has just joined. The signal may have come while it joined."""
        self._stop = stop
        if self._leaving.is_set():
            stop()

    def _leave(self) -> None:
        self._leaving.set()
        with suppress(OSError):
            self._health.say("leaving")
        self._stop()
