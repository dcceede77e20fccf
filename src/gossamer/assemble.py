"""Puts a worker together from its parts: downloader, middlewares, spider, extractor, engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer import telemetry
from gossamer.clock import Clock, SystemClock
from gossamer.download import open_downloader
from gossamer.download.base import Downloader, Locates, Remembers
from gossamer.download.dns import NameResolver, Resolver
from gossamer.engine.budget import Guard
from gossamer.engine.commit import Store
from gossamer.engine.concurrency import AddressLimits, Measures
from gossamer.engine.guarded_parsing import Careful
from gossamer.engine.lifecycle import Lifecycle
from gossamer.engine.links import Handler, KnownKeys, Linker, RecentKeys
from gossamer.engine.parsing import Extractor, make_spider
from gossamer.engine.regions import Places
from gossamer.engine.robots import LoadGate
from gossamer.engine.run import Engine
from gossamer.engine.supervision import CrashMarker
from gossamer.engine.visit import Visit
from gossamer.extract.spider import Spider
from gossamer.frontier.base import Frontier
from gossamer.middleware import Fetch, Middleware, compose, guarded
from gossamer.middleware.cache import cache
from gossamer.middleware.cookies import CookieJar, cookies
from gossamer.middleware.sessions import sessions
from gossamer.settings import Settings
from gossamer.storage.request_log import RequestLog

if TYPE_CHECKING:
    from gossamer.engine.parser_pool import ParserPool
    from gossamer.telemetry.tracing import Tracing


def jar_of(settings: Settings, clock: Clock) -> CookieJar | None:
    """The jar of a worker; None where no cookies are kept, or each session has its own."""
    if not settings.cookies or settings.sessions:
        return None
    return CookieJar(clock, per_host=settings.cookie_jar == "host")


def middlewares(spider: Spider, settings: Settings, clock: Clock, *, jar: CookieJar | None) -> list[Middleware]:
    """The fetch ring, outermost first: the spider's own, then the development cache, then sessions or cookies."""
    ring: list[Middleware] = list(spider.fetch_middleware)
    if settings.cache:
        ring.append(cache(Path(settings.cache), clock))
    if settings.sessions:
        ring.append(sessions(settings, clock))
    elif jar is not None:
        ring.append(cookies(jar))
    return ring


async def check_fetching(settings: Settings) -> None:
    """ConfigError if no worker here could fetch with these settings."""
    clock = SystemClock()
    if settings.cache:
        cache(Path(settings.cache), clock)
    await open_downloader(settings, clock=clock).aclose()


def gate_of_loads(downloader: Downloader, settings: Settings, clock: Clock) -> LoadGate | None:
    """The gate for what pages load, put before the downloader's browser; None without one, or without robots."""
    if not settings.robots or settings.downloader not in ("browser", "auto"):
        return None
    from gossamer.download.browser import BrowserDownloader

    assert isinstance(downloader, BrowserDownloader)
    gate = LoadGate(settings, clock)
    downloader.permit = gate.allows
    return gate


def crowds_of(downloader: Downloader, settings: Settings) -> AddressLimits | None:
    """The places at each address, if their number is limited: names are then looked up before pages are asked for."""
    if settings.per_address is None or not isinstance(downloader, Locates):
        return None
    return AddressLimits(downloader, settings.per_address)


def _parsers(settings: Settings) -> ParserPool:
    """The processes that run the spider; most crawls need not load what starts them."""
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
    places: Places | None = None,
    trail: RequestLog | None = None,
    tracing: Tracing | None = None,
    memory: KnownKeys | None = None,
    machine: Measures | None = None,
    suspects: Collection[int] = (),
) -> AsyncIterator[Engine]:
    """An engine with everything it needs, which is closed again at the end.

    `suspects` are pages that a worker has died of; other processes have no `spider` that only this one has."""
    tracing = tracing or telemetry.begin()
    begin_parsers = None if spider is not None else partial(_parsers, settings)
    spider = spider or make_spider(settings)
    recent = memory or RecentKeys()
    score = spider.score if type(spider).score is not Spider.score else None
    linker = Linker(settings, secret, recent, refused=refused, score=score)
    names: NameResolver | None = None
    if tracing is not None:
        from gossamer.telemetry import parts

        names = parts.TracedNames(Resolver(clock, settings.resolve, nameservers=settings.nameservers), tracing)
        store = parts.TracedStore(store, tracing, clock)
    downloader = open_downloader(settings, clock=clock, resolver=names)
    loads = gate_of_loads(downloader, settings, clock)
    jar = jar_of(settings, clock)
    marker = CrashMarker(None if settings.parse_processes else marker_path)
    extractor: ParserPool | Careful
    if settings.parse_processes:
        extractor, lifecycle = _parsers(settings), Lifecycle(spider)
    else:
        lifecycle = Lifecycle(spider, spider.pipelines)
        guard = Guard()
        here = Extractor(spider, settings, guard=guard)
        extractor = Careful(here, settings, guard=guard, marker=marker, start=begin_parsers, suspects=suspects)
    try:
        inner: Fetch = downloader.fetch
        fetch = compose(middlewares(spider, settings, clock, jar=jar), inner)
        if spider.fetch_middleware:
            fetch = guarded(fetch)
        handler = Handler(extractor, linker)
        visits: Callable[..., Visit] = Visit
        if tracing is not None:
            fetch = parts.traced_fetch(fetch, tracing)
            handler = parts.TracedHandler(extractor, linker, tracing)
            visits = partial(parts.TracedVisit, tracing=tracing)
        yield Engine(
            frontier,
            store,
            fetch=fetch,
            handler=handler,
            lifecycle=lifecycle,
            recent=recent,
            settings=settings,
            clock=clock,
            places=places,
            trail=trail if settings.trail else None,
            jar=jar,
            remembers=downloader if isinstance(downloader, Remembers) else None,
            loads=loads,
            crowds=crowds_of(downloader, settings),
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
