"""Access to Scrapy's internals where its documented API is not sufficient."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FeedExporter
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

from gossamer.errors import ConfigError


class Hooks:
    """Scrapy's engine and reactor, as used by the scheduler."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            from twisted.internet import reactor

            self._reactor: Any = reactor

    def soon(self, act: Callable[..., object], *arguments: Any) -> None:
        """Call a function in Scrapy's thread; can be called from any thread."""
        if self._loop is None:
            self._reactor.callFromThread(act, *arguments)
            return
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            # The loop is closed: the process is shutting down.
            pass

    def later(self, seconds: float, act: Callable[..., object]) -> Callable[[], object]:
        """Call a function after some seconds; returns a function that cancels the call."""
        if self._loop is not None:
            return self._loop.call_later(seconds, act).cancel
        call = self._reactor.callLater(seconds, act)
        return lambda: call.cancel() if call.active() else None

    async def sleep(self, seconds: float) -> None:
        """Sleep without blocking Scrapy."""
        ended: Deferred[None] = Deferred()
        self.later(seconds, lambda: ended.callback(None))
        await maybe_deferred_to_future(ended)

    def in_progress(self) -> set[Request]:
        """The requests that Scrapy still processes, callbacks, errbacks, and pipelines included.

        Scrapy sends no signal when a request is finished, so this reads the engine's own list."""
        slot = getattr(self._crawler.engine, "_slot", None)
        return slot.inprogress if slot is not None else set()

    def flush_feeds(self) -> None:
        """Flush local feeds to the operating system, so that their items survive a kill of this process."""
        exporter = self._crawler.get_extension(FeedExporter)
        for slot in exporter.slots if exporter is not None else ():
            flush = getattr(slot.file, "flush", None)
            # A feed that is being closed is flushed anyway.
            if flush is not None and not getattr(slot.file, "closed", False):
                flush()

    def wake(self) -> None:
        """Make the engine request work now instead of at its next heartbeat, up to five seconds later."""
        slot = getattr(self._crawler.engine, "_slot", None)
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()

    def close(self, reason: str) -> None:
        """Close the spider with this reason."""
        engine = self._crawler.engine
        if engine is not None and engine.spider is not None:
            deferred_from_coro(engine.close_spider_async(reason=reason))

    def install(
        self,
        *,
        output: Callable[..., AsyncIterator[Any]],
        start: Callable[..., AsyncIterator[Any]],
        request: Callable[..., Any],
        exception: Callable[..., Any],
    ) -> None:
        """Install the scheduler's middleware methods: next to the engine for spiders, and next to the downloader.

        Settings cannot do this, because Scrapy creates the middlewares before the scheduler."""
        engine: Any = self._crawler.engine
        try:
            spider, downloader = engine.scraper.spidermw.methods, engine.downloader.middleware.methods
            _ = engine.spider, engine._slot
        except AttributeError as error:
            raise ConfigError(
                f"gossamer.scrapy does not support this version of Scrapy: {error}", hint="use Scrapy 2.14 to 2.19"
            ) from None
        spider["process_spider_output"].append(output)
        # Scrapy reads both lists with the same index.
        spider["process_spider_exception"].append(None)
        spider["process_start"].append(start)
        downloader["process_request"].append(request)
        downloader["process_exception"].append(exception)
