"""Crawling from Python: pages as they come, with `async for` or, in scripts and notebooks, with `for`."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from gossamer.engine.extractor import Parse, make_spider
from gossamer.errors import ConfigError
from gossamer.extract.page import Page
from gossamer.extract.spider import Spider
from gossamer.job import Crawl, folder_of, read_seeds
from gossamer.settings import Settings, build

_AHEAD = 64


class Pages:
    """The pages of a crawl. Iterate once; leaving the loop stops the crawl.

    In async code, `contextlib.aclosing(aiter(pages))` makes sure that it has stopped and stored everything by then."""

    def __init__(self, seeds: Sequence[str], folder: Path | None, settings: Settings, spider: Spider) -> None:
        self._seeds = seeds
        self._folder = folder
        self._settings = settings
        self._spider = spider

    async def __aiter__(self) -> AsyncGenerator[Page]:
        ready: asyncio.Queue[Page | None] = asyncio.Queue(_AHEAD)

        def deliver(parse: Parse) -> Parse:
            async def parse_and_deliver(page: Page) -> list[Any]:
                found = await parse(page)
                page.items = [item for item in found if not _is_request(item)]
                await ready.put(page)
                return found

            return parse_and_deliver

        self._spider.parse_middleware = [deliver, *self._spider.parse_middleware]
        run = Crawl(self._folder, self._settings, self._seeds, spider=self._spider)

        async def work() -> None:
            try:
                await run.run()
            finally:
                await ready.put(None)

        working = asyncio.create_task(work())
        try:
            while (page := await ready.get()) is not None:
                yield page
            await working
        finally:
            run.stop("left")
            while not working.done():
                with suppress(asyncio.QueueEmpty):
                    ready.get_nowait()
                await asyncio.sleep(0.01)
            await asyncio.gather(working, return_exceptions=True)

    def __iter__(self) -> Iterator[Page]:
        ready: queue.Queue[Page | BaseException | None] = queue.Queue(_AHEAD)
        leaving = threading.Event()

        async def feed() -> None:
            async with aclosing(aiter(self)) as pages:
                async for page in pages:
                    while not leaving.is_set():
                        try:
                            ready.put_nowait(page)
                            break
                        except queue.Full:
                            await asyncio.sleep(0.01)
                    if leaving.is_set():
                        break

        def work() -> None:
            try:
                asyncio.run(feed())
            except BaseException as error:  # carried over to the thread that iterates
                ready.put(error)
            else:
                ready.put(None)

        thread = threading.Thread(target=work, name="gossamer-crawl", daemon=True)
        thread.start()
        try:
            while (found := ready.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            leaving.set()
            while thread.is_alive():
                with suppress(queue.Empty):
                    ready.get_nowait()
                thread.join(0.02)


def _is_request(found: Any) -> bool:
    from gossamer.model import Request

    return found is None or isinstance(found, Request)


def crawl(*seeds: str, spider: Spider | type[Spider] | None = None, job: str | None = None, **settings: Any) -> Pages:
    """Crawl from these URLs; `settings` are those of the command line. With `job` the crawl is kept and resumable."""
    chosen = spider() if isinstance(spider, type) else spider
    own = dict(chosen.settings) if chosen is not None else {}
    built = build({**own, **settings})
    if built.workers > 1 or built.parse_processes:
        raise ConfigError("a crawl inside Python runs in this process", hint="use `gossamer crawl` for workers")
    chosen = chosen or make_spider(built)
    urls = read_seeds(seeds or tuple(chosen.start))
    return Pages(urls, folder_of(job, urls) if job else None, built, chosen)
