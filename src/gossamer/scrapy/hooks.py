"""The few places where Scrapy is reached into, for what its documented interface does not tell."""

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
    """Scrapy's engine and reactor, as the scheduler needs them."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            from twisted.internet import reactor

            self._reactor: Any = reactor

    def soon(self, act: Callable[..., object], *arguments: Any) -> None:
        """Run this in Scrapy's thread; may be called from any."""
        if self._loop is None:
            self._reactor.callFromThread(act, *arguments)
            return
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            # The loop is closed: this process is at its end.
            pass

    def later(self, seconds: float, act: Callable[..., object]) -> Callable[[], object]:
        """Run this in so many seconds; what is returned takes that back."""
        if self._loop is not None:
            return self._loop.call_later(seconds, act).cancel
        call = self._reactor.callLater(seconds, act)
        return lambda: call.cancel() if call.active() else None

    async def sleep(self, seconds: float) -> None:
        """Let Scrapy go on for so long."""
        ended: Deferred[None] = Deferred()
        self.later(seconds, lambda: ended.callback(None))
        await maybe_deferred_to_future(ended)

    def in_progress(self) -> set[Request]:
        """The requests that were handed out and are not handled to the end: callback, errback and pipelines included.

        No signal tells when that is over; the engine's own list does."""
        slot = getattr(self._crawler.engine, "_slot", None)
        return slot.inprogress if slot is not None else set()

    def flush_feeds(self) -> None:
        """Hand the items of local feeds to the system: what is left in our own buffers dies with this process."""
        exporter = self._crawler.get_extension(FeedExporter)
        for slot in exporter.slots if exporter is not None else ():
            flush = getattr(slot.file, "flush", None)
            # One that is being closed is stored by that.
            if flush is not None and not getattr(slot.file, "closed", False):
                flush()

    def wake(self) -> None:
        """Have the engine ask for requests now, and not at its next beat in five seconds."""
        slot = getattr(self._crawler.engine, "_slot", None)
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()

    def close(self, reason: str) -> None:
        """End the crawl as a finished one, with this reason."""
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
        """Put ourselves next to the engine on the spider's side, and next to the downloader on the other.

        Settings cannot do that: the middlewares are made before the scheduler."""
        engine: Any = self._crawler.engine
        try:
            spider, downloader = engine.scraper.spidermw.methods, engine.downloader.middleware.methods
            _ = engine.spider, engine._slot
        except AttributeError as error:
            raise ConfigError(
                f"gossamer.scrapy does not know this version of Scrapy: {error}", hint="use Scrapy 2.14 to 2.19"
            ) from None
        spider["process_spider_output"].append(output)
        # The two lists are read with one index.
        spider["process_spider_exception"].append(None)
        spider["process_start"].append(start)
        downloader["process_request"].append(request)
        downloader["process_exception"].append(exception)
