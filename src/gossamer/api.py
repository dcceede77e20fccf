"""Gossamer from Python: crawl, and open jobs. Everything works in asyncio programs and in scripts and notebooks.

`crawl` gives pages as they come, to `async for` or to `for`. `open_job` gives a handle of a job that is there, to
`async with` or to `with`; a job may run in this process, in another one, on a fleet, or nowhere at the moment."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from gossamer.clock import SystemClock
from gossamer.engine.parsing import Parse, make_spider
from gossamer.errors import ConfigError, OwnerGone, UnknownSetting
from gossamer.extract.page import Page
from gossamer.extract.spider import Spider
from gossamer.extras import unusable
from gossamer.job_folder import collect_seeds, folder_of, is_begun, read_seeds
from gossamer.jobs.local_run import LocalRun
from gossamer.model import Counts, Record
from gossamer.settings import FIELDS, Settings, build

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from gossamer.jobs.job import Job, State
    from gossamer.storage.reader import StoredJob

Value = TypeVar("Value")
_AHEAD = 64
_BATCH = 1024


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
        run = LocalRun(self._folder, self._settings, self._seeds, spider=self._spider)

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


def crawl(
    *seeds: str | Path | Iterable[str],
    spider: Spider | type[Spider] | None = None,
    job: str | None = None,
    **settings: Any,
) -> Pages:
    """Crawl from these seeds, with settings as keyword arguments, as in `delay=2.0`.

    A seed is a URL (`example.com` means `https://example.com/`), a `pathlib.Path` of a seeds file (one URL per line,
    with `#` comments), or an iterable of URLs, such as a list or a DataFrame column. Without seeds, the crawl starts
    from those of the `spider`.

    With `job`, the crawl is stored in `crawls/NAME`, and the same call resumes it. An unknown keyword raises
    `TypeError`."""
    _check_keywords(settings)
    chosen = spider() if isinstance(spider, type) else spider
    own = dict(chosen.settings) if chosen is not None else {}
    built = build({**own, **settings})
    if built.workers > 1 or built.parse_processes:
        raise ConfigError("a crawl inside Python runs in this process", hint="use `gossamer crawl` for workers")
    chosen = chosen or make_spider(built)
    urls = collect_seeds(seeds or tuple(chosen.start))
    folder = folder_of(job, urls) if job else None
    if not urls and (folder is None or not is_begun(folder)):
        raise ConfigError("no seed to crawl from", hint="pass a URL, as in gossamer.crawl('https://example.com')")
    return Pages(urls, folder, built, chosen)


def _check_keywords(settings: Mapping[str, Any]) -> None:
    own = [name for name, item in inspect.signature(crawl).parameters.items() if item.kind is item.KEYWORD_ONLY]
    for name in settings:
        if name not in FIELDS:
            close = get_close_matches(name, [*own, *FIELDS], n=1)
            hint = f"did you mean {close[0]!r}?" if close else "docs/reference/settings.md lists all settings"
            # A traceback does not show the hint of an error.
            raise UnknownSetting(f"crawl() got an unexpected keyword argument {name!r}: {hint}", hint=hint)


class Results:
    """What a job has stored: pages, or the items of its spider, for `for` and `async for`, as often as you like.

    Each is a mapping, as in a line of `pages.jsonl` or `items.jsonl`. Of a page that was fetched several times only the
    last visit is there, unless all were asked for."""

    def __init__(self, job: StoredJob, *, all_visits: bool, items: bool) -> None:
        self._job = job
        self._all_visits = all_visits
        self._items = items

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._items:
            return self._all_items()
        return (msgspec.to_builtins(record.page) for record in self._records())

    async def __aiter__(self) -> AsyncGenerator[dict[str, Any]]:
        rows = iter(self)
        while some := await asyncio.to_thread(lambda: list(islice(rows, _BATCH))):
            for row in some:
                yield row

    def to_arrow(self) -> pyarrow.Table:
        """A table of PyArrow, all of it in memory.

        Pages have the columns of the sink `parquet`. Items have a column for each name; where values of one name have
        types that do not go together, it holds JSON."""
        try:
            import pyarrow as pa
        except ImportError as error:
            raise unusable("parquet", "a table", error) from error
        from gossamer.storage import parquet_files as files

        if self._items:
            items = list(self)
            names = dict.fromkeys(name for item in items for name in item)
            return pa.table({name: _column([item.get(name) for item in items]) for name in names})
        records, batches = self._records(), []
        while some := list(islice(records, _BATCH)):
            # Files of lines have neither key nor token.
            rows = [files.LogRow(one.key or None, one.token or None, one.page) for one in some]  # type: ignore[arg-type]
            batches.append(files.page_batch(rows))
        return pa.Table.from_batches(batches, files.PAGE_SCHEMA)

    def to_pandas(self) -> pandas.DataFrame:
        """The same as a data frame of pandas."""
        try:
            import pandas  # noqa: F401
        except ImportError as error:
            raise ConfigError("a data frame needs pandas: not installed", hint="pip install pandas") from error
        return self.to_arrow().to_pandas()

    def _records(self) -> Iterator[Record]:
        return self._job.records(all_visits=self._all_visits)

    def _all_items(self) -> Iterator[dict[str, Any]]:
        if self._all_visits:
            for record in self._job.records(all_visits=True, items=True):
                yield from map(msgspec.to_builtins, record.items)
        else:
            yield from map(msgspec.json.decode, self._job.need("items").items())


def _column(values: list[Any]) -> pyarrow.Array:
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else msgspec.json.encode(value).decode() for value in values])


class AsyncJobHandle:
    """A job, for asyncio programs; `async with gossamer.open_job(NAME) as job` gives one."""

    def __init__(self, name: str, frontier: str = "") -> None:
        self.name = name
        self.frontier = frontier
        self._job: Job | None = None
        self._opening = asyncio.Lock()

    async def state(self) -> State:
        """`running`, `paused`, `stopping`, `finished`, or `resting`: nobody works on it, and something is left."""
        from gossamer.jobs.job import read_state

        return await self._ask(read_state)

    async def counts(self) -> Counts:
        """The figures of `gossamer status`: `counts.stored`, `counts.queued`, `counts.failed` and so on."""
        return await self._ask(lambda job: job.counts())

    async def pause(self) -> None:
        """Have a job pause: fetches under way are finished. `JobStopped` if nobody works on a job of this machine."""
        await self._ask(lambda job: job.set_state("paused"))

    async def resume(self) -> None:
        """Let a job that is paused, or a fleet's job that was stopped, go on.

        A job of this machine that nobody runs is started by `gossamer.crawl(job=NAME)` or by the command line."""
        await self._ask(lambda job: job.set_state("running"))

    async def stop(self) -> None:
        """End the run: fetches under way are finished, and the rest stays in the queue."""
        await self._ask(lambda job: job.set_state("stopping"))

    async def add(self, *urls: str) -> int:
        """Queue URLs; how many of them the job did not know."""
        return await self._ask(lambda job: job.add(read_seeds(urls)))

    async def delete(self, *, results: bool = False) -> None:
        """Delete the job, with `results` also what it has stored in its folder; JobRunning if somebody works on it."""
        await self._ask(lambda job: job.remove(results=results))
        await self.aclose()

    async def why(self, url: str, *, page: str = "") -> dict[str, Any]:
        """The history of a URL, as `gossamer why --json` prints it; `page` is one with a link to it."""
        from gossamer.inspect.why import url_history

        target, source = _one_url(url), _one_url(page) if page else ""
        found = await self._ask(lambda job: url_history(job, target, page=source, now=SystemClock().epoch()))
        return dict(msgspec.to_builtins(found))

    async def results(self, *, all_visits: bool = False) -> Results:
        """The pages that the job has stored."""
        return await self._ask(partial(_results, all_visits=all_visits, items=False))

    async def items(self, *, all_visits: bool = False) -> Results:
        """The items that its spider found."""
        return await self._ask(partial(_results, all_visits=all_visits, items=True))

    async def aclose(self) -> None:
        """Let go of the job, which goes on."""
        job, self._job = self._job, None
        if job is not None:
            await job.aclose()

    async def _ask(self, ask: Callable[[Job], Awaitable[Value]]) -> Value:
        try:
            return await ask(await self._opened())
        except OwnerGone:
            # The crawl that was asked has just ended: the job is in its files now.
            await self.aclose()
            return await ask(await self._opened())

    async def _opened(self) -> Job:
        from gossamer.jobs.find import find_job

        async with self._opening:
            if self._job is not None and self._job.is_gone:
                await self.aclose()
            if self._job is None:
                self._job = await find_job(self.name, self.frontier)
            return self._job


def _one_url(text: str) -> str:
    found = read_seeds([text])
    if not found:
        raise ConfigError("an empty URL", hint="a URL looks like https://example.com/page")
    return found[0]


async def _results(job: Job, *, all_visits: bool, items: bool) -> Results:
    return Results(job.stored(), all_visits=all_visits, items=items)


class JobHandle:
    """A job, for scripts and notebooks; `async with` gives an `AsyncJobHandle` with the same methods.

    It is opened with the first question, and closed by `with` or `close`."""

    def __init__(self, name: str, frontier: str = "") -> None:
        self.name = name
        self.frontier = frontier
        self._handle = AsyncJobHandle(name, frontier)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], object] = lambda: None

    def state(self) -> State:
        """`running`, `paused`, `stopping`, `finished`, or `resting`: nobody works on it, and something is left."""
        return self._wait(self._handle.state())

    def counts(self) -> Counts:
        """The figures of `gossamer status`: `counts.stored`, `counts.queued`, `counts.failed` and so on."""
        return self._wait(self._handle.counts())

    def pause(self) -> None:
        """Have a job pause: fetches under way are finished. `JobStopped` if nobody works on a job of this machine."""
        self._wait(self._handle.pause())

    def resume(self) -> None:
        """Let a job that is paused, or a fleet's job that was stopped, go on.

        A job of this machine that nobody runs is started by `gossamer.crawl(job=NAME)` or by the command line."""
        self._wait(self._handle.resume())

    def stop(self) -> None:
        """End the run: fetches under way are finished, and the rest stays in the queue."""
        self._wait(self._handle.stop())

    def add(self, *urls: str) -> int:
        """Queue URLs; how many of them the job did not know."""
        return self._wait(self._handle.add(*urls))

    def delete(self, *, results: bool = False) -> None:
        """Delete the job, with `results` also what it has stored in its folder; JobRunning if somebody works on it."""
        self._wait(self._handle.delete(results=results))

    def why(self, url: str, *, page: str = "") -> dict[str, Any]:
        """The history of a URL, as `gossamer why --json` prints it; `page` is one with a link to it."""
        return self._wait(self._handle.why(url, page=page))

    def results(self, *, all_visits: bool = False) -> Results:
        """The pages that the job has stored."""
        return self._wait(self._handle.results(all_visits=all_visits))

    def items(self, *, all_visits: bool = False) -> Results:
        """The items that its spider found."""
        return self._wait(self._handle.items(all_visits=all_visits))

    def close(self) -> None:
        """Let go of the job, which goes on."""
        if self._loop is not None:
            self._wait(self._handle.aclose())
            self._loop = None
            self._stop()

    def __enter__(self) -> Self:
        self._wait(self._handle._opened())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> AsyncJobHandle:
        await self._handle._opened()
        return self._handle

    async def __aexit__(self, *_: object) -> None:
        await self._handle.aclose()

    def _wait(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Do it in a loop of the handle's own: the caller may be a notebook, whose loop runs already."""
        if self._loop is None:
            started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
            turn = partial(asyncio.run, _turn(started))
            threading.Thread(target=turn, name="gossamer-job", daemon=True).start()
            self._loop, stopping = started.result()
            # Also when the handle is forgotten.
            self._stop = weakref.finalize(self, self._loop.call_soon_threadsafe, stopping.set)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _turn(started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    """Keep a loop running until it is told to stop."""
    stopping = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), stopping))
    await stopping.wait()


def open_job(name: str, frontier: str = "") -> JobHandle:
    """A job by its name or folder, for `with` or `async with`; `frontier` is the address of a fleet's.

    A job that is not there raises `ConfigError` on this machine, and `FrontierError` on a fleet's frontier."""
    return JobHandle(name, frontier)
