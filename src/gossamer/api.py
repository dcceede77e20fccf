"""The Python API: crawl, and open existing jobs. Everything works in scripts, notebooks, and asyncio programs.

`crawl` returns pages as they are fetched, for `for` or `async for`. `open_job` returns a handle of an existing job, for
`with` or `async with`; the job may run in this process, in another process, on a fleet, or not at all."""

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
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

import msgspec

from gossamer.clock import SystemClock
from gossamer.engine.parsing import Parse, make_spider
from gossamer.errors import ConfigError, GossamerError, OwnerGone, UnknownSetting
from gossamer.extract.page import Page
from gossamer.extract.spider import Spider
from gossamer.extras import unusable
from gossamer.job_folder import collect_seeds, folder_of, is_begun, read_seeds
from gossamer.jobs.collected import Collected, CrawlSummary
from gossamer.jobs.local_run import LocalRun, RunSummary
from gossamer.logs import plain
from gossamer.model import Counts, FailedPage, Record
from gossamer.progress_bar import UPDATE_SECONDS, ProgressFigures, progress_bar
from gossamer.settings import FIELDS, Settings, build

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from gossamer.jobs.job import Job, State

Value = TypeVar("Value")
_AHEAD = 64
_SHOWN_ERRORS = 10
_BATCH = 1024


class Pages:
    """The pages of a crawl, and its result.

    Loop over it once, with `for` or `async for`, to get each page as it is fetched. Leaving the loop stops the crawl.
    In async code, `contextlib.aclosing(aiter(pages))` makes sure that it has stopped and stored everything by then.

    For tables only, omit the loop: `to_pandas` and `to_arrow` run the crawl to its end first. A crawl that cannot fetch
    any of its seeds raises `SeedsFailed`."""

    def __init__(
        self,
        seeds: Sequence[str],
        folder: Path | None,
        settings: Settings,
        spider: Spider,
        *,
        progress: bool | None = None,
        raise_on_failure: bool = True,
    ) -> None:
        self._seeds = seeds
        self._folder = folder
        self._settings = settings
        self._spider = spider
        self._progress = progress
        self._raises = raise_on_failure
        self._state = "not started"
        self._collected = Collected(SystemClock(), recrawl=bool(settings.recrawl), keep_pages=folder is None)

    @property
    def summary(self) -> CrawlSummary:
        """The totals of this run so far; final once the crawl has ended."""
        return self._collected.summary(self._state, self._folder)

    @property
    def errors(self) -> list[FailedPage]:
        """The failed pages of this run, with kind and reason, and seeds that were not fetched for another reason.

        At most 10,000 failed pages are listed; `summary.failed` counts all."""
        return self._collected.errors

    def run(self) -> Self:
        """Run the crawl to its end, without a loop, and return this object. In asyncio code, this blocks the loop."""
        for _ in self:
            pass
        return self

    def results(self, *, all_visits: bool = False) -> Results:
        """The pages, as `JobHandle.results` returns them; runs the crawl to its end if it has not started.

        Redirects and failed pages are included. Of a crawl with `job`, these are the pages of all its runs."""
        return self._results(items=False, all_visits=all_visits)

    def items(self, *, all_visits: bool = False) -> Results:
        """The items that the spider found; runs the crawl to its end if it has not started."""
        return self._results(items=True, all_visits=all_visits)

    def to_arrow(self, what: Literal["pages", "items"] = "pages", *, all_visits: bool = False) -> pyarrow.Table:
        """The pages or items as a PyArrow table; runs the crawl to its end if it has not started."""
        # First: a missing package must not be reported only after a long crawl.
        _need_pyarrow()
        return self._results(items=_is_items(what), all_visits=all_visits).to_arrow()

    def to_pandas(self, what: Literal["pages", "items"] = "pages", *, all_visits: bool = False) -> pandas.DataFrame:
        """The pages or items as a pandas DataFrame; runs the crawl to its end if it has not started."""
        _need_pandas()
        return self._results(items=_is_items(what), all_visits=all_visits).to_pandas()

    async def __aiter__(self) -> AsyncGenerator[Page]:
        bar = progress_bar(self._progress)
        try:
            async with aclosing(self._crawl(bar.update if bar else None)) as pages:
                async for page in pages:
                    yield page
        finally:
            bar.close()

    def __iter__(self) -> Iterator[Page]:
        ready: queue.Queue[Page | BaseException | None] = queue.Queue(_AHEAD)
        leaving = threading.Event()
        bar = progress_bar(self._progress)
        figures = [ProgressFigures()]

        def show(newest: ProgressFigures) -> None:
            # The bar is drawn by the thread that iterates: a notebook shows it in the right cell.
            figures[0] = newest

        async def feed() -> None:
            async with aclosing(self._crawl(show if bar else None)) as pages:
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
            while True:
                try:
                    found = ready.get(timeout=UPDATE_SECONDS if bar else None)
                except queue.Empty:
                    bar.update(figures[0])
                    continue
                bar.update(figures[0])
                if found is None:
                    break
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            leaving.set()
            while thread.is_alive():
                with suppress(queue.Empty):
                    ready.get_nowait()
                thread.join(0.02)
            bar.update(figures[0])
            bar.close()

    async def _crawl(self, show: Callable[[ProgressFigures], None] | None) -> AsyncGenerator[Page]:
        if self._state != "not started":
            raise GossamerError("this crawl has run already", hint="call gossamer.crawl() again, or use .results()")
        ready: asyncio.Queue[Page | None] = asyncio.Queue(_AHEAD)

        def deliver(parse: Parse) -> Parse:
            async def parse_and_deliver(page: Page) -> list[Any]:
                found = await parse(page)
                page.items = [item for item in found if not _is_request(item)]
                await ready.put(page)
                return found

            return parse_and_deliver

        self._spider.parse_middleware = [deliver, *self._spider.parse_middleware]
        run = LocalRun(self._folder, self._settings, self._seeds, spider=self._spider, stats=self._collected)
        self._state = "running"
        self._collected.begin()

        async def work() -> RunSummary:
            try:
                return await run.run()
            finally:
                await ready.put(None)

        working = asyncio.create_task(work())
        sampling = asyncio.create_task(self._sample(run, show)) if show is not None else None
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
            if sampling is not None:
                sampling.cancel()
            # The caller may use the spider for another crawl.
            self._spider.parse_middleware = [one for one in self._spider.parse_middleware if one is not deliver]
            await asyncio.gather(working, *([sampling] if sampling else []), return_exceptions=True)
            failed = working.cancelled() or working.exception() is not None
            counts = None if failed else working.result().counts
            self._state = "failed" if counts is None else "finished" if counts.finished else "stopped"
            self._collected.end(counts)
            if show is not None:
                show(self._figures())
        job = str(self._folder)
        error = self._collected.seeds_failed(working.result().counts, resumed=run.known_before > 0, job=job)
        if error is not None and self._raises:
            raise error

    async def _sample(self, run: LocalRun, show: Callable[[ProgressFigures], None]) -> None:
        """Show the figures until cancelled. Reading the frontier's counts takes at most 1/200 of the time."""
        loop, ask_at = asyncio.get_running_loop(), 0.0
        while True:
            if (began := loop.time()) >= ask_at:
                counts = await run.counts()
                self._collected.queued = counts.queued + counts.delayed + counts.leased
                ask_at = loop.time() + 200 * (loop.time() - began)
            show(self._figures())
            await asyncio.sleep(UPDATE_SECONDS)

    def _figures(self) -> ProgressFigures:
        found = self._collected
        rate = found.rate()
        holds = found.holds() if self._state == "running" and not rate else []
        waiting = f"waiting {holds[0][1]:.0f} s for {holds[0][0]} ({holds[0][2] or 'on hold'})" if holds else ""
        limit = self._settings.max_pages
        return ProgressFigures(found.pages, limit, rate, found.queued, found.failures, found.seconds, waiting)

    def _results(self, *, items: bool, all_visits: bool) -> Results:
        if self._state == "not started":
            self.run()
        if self._folder is None:
            assert self._collected.kept is not None
            return Results(self._collected.kept, all_visits=all_visits, items=items)
        from gossamer.storage.reader import StoredJob

        return Results(StoredJob.of(self._folder), all_visits=all_visits, items=items)

    def __repr__(self) -> str:
        found = self.summary
        failed = f", {found.failed:,} failed" if found.failed else ""
        pages = f"{found.pages:,} page{'' if found.pages == 1 else 's'}"
        return f"<gossamer.Pages of {self._name()}: {found.state}, {pages}{failed}>"

    def _repr_html_(self) -> str:
        """The summary and the first failures, for notebooks."""
        found = self.summary
        rows = [
            ("state", found.state),
            (
                "pages",
                f"{found.pages:,} ({found.fetched:,} fetched, {found.failed:,} failed, {found.skipped:,} skipped)",
            ),
            ("items", f"{found.items:,}"),
            ("queued", f"{found.queued:,}"),
            ("responses", ", ".join(f"{code}: {count:,}" for code, count in sorted(found.codes.items())) or "none"),
            ("seconds", f"{found.seconds:.1f}"),
            *([("job", found.job)] if found.job else []),
        ]
        errors = self.errors
        failures = [(plain(one.url), one.kind, plain(one.reason, 300)) for one in errors[:_SHOWN_ERRORS]]
        more = len(errors) - len(failures)
        rest = f"<p>and {more:,} more in <code>.errors</code></p>" if more else ""
        listed = _html_table([("URL", "kind", "reason"), *failures]) + rest if failures else ""
        return f"<b>Crawl of {escape(self._name())}</b>{_html_table(rows)}{listed}"

    def _name(self) -> str:
        if not self._seeds:
            return f"job {self._folder}"
        more = f" and {len(self._seeds) - 1:,} more" if len(self._seeds) > 1 else ""
        return plain(self._seeds[0], 200) + more


def _html_table(rows: Sequence[tuple[str, ...]]) -> str:
    cells = ("".join(f"<td>{escape(plain(text))}</td>" for text in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _is_items(what: str) -> bool:
    if what not in ("pages", "items"):
        raise ConfigError(f"a table of {what!r:.40} does not exist", hint='use what="pages" or what="items"')
    return what == "items"


def _is_request(found: Any) -> bool:
    from gossamer.model import Request

    return found is None or isinstance(found, Request)


def crawl(
    *seeds: str | Path | Iterable[str],
    spider: Spider | type[Spider] | None = None,
    job: str | None = None,
    progress: bool | None = None,
    raise_on_failure: bool = True,
    **settings: Any,
) -> Pages:
    """Crawl from these seeds, with settings as keyword arguments, as in `delay=2.0`.

    A seed is a URL (`example.com` means `https://example.com/`), a `pathlib.Path` of a seeds file (one URL per line,
    with `#` comments), or an iterable of URLs, such as a list or a DataFrame column. Without seeds, the crawl starts
    from those of the `spider`.

    With `job`, the crawl is stored in `crawls/NAME`, and the same call resumes it.

    `progress` shows a progress bar; by default, only in a notebook or where stderr is a terminal.

    If no seed can be fetched, the crawl raises `SeedsFailed` at its end; with `raise_on_failure=False` it returns no
    pages, and `errors` has the reasons. An unknown keyword raises `TypeError`."""
    _check_keywords(settings)
    arguments = settings.get("spider_args") or {}
    if arguments and isinstance(spider, Spider):
        raise ConfigError("spider_args needs a spider class, not an object", hint="pass the class: spider=MySpider")
    chosen = spider(**arguments) if isinstance(spider, type) else spider
    own = dict(chosen.settings) if chosen is not None else {}
    built = build({**own, **settings})
    if built.workers > 1 or built.parse_processes:
        raise ConfigError("a crawl inside Python runs in this process", hint="use `gossamer crawl` for workers")
    chosen = chosen or make_spider(built)
    urls = collect_seeds(seeds or tuple(chosen.start))
    folder = folder_of(job, urls) if job else None
    if not urls and (folder is None or not is_begun(folder)):
        raise ConfigError("no seed to crawl from", hint="pass a URL, as in gossamer.crawl('https://example.com')")
    return Pages(urls, folder, built, chosen, progress=progress, raise_on_failure=raise_on_failure)


def _check_keywords(settings: Mapping[str, Any]) -> None:
    own = [name for name, item in inspect.signature(crawl).parameters.items() if item.kind is item.KEYWORD_ONLY]
    for name in settings:
        if name not in FIELDS:
            close = get_close_matches(name, [*own, *FIELDS], n=1)
            hint = f"did you mean {close[0]!r}?" if close else "docs/reference/settings.md lists all settings"
            # A traceback does not show the hint of an error.
            raise UnknownSetting(f"crawl() got an unexpected keyword argument {name!r}: {hint}", hint=hint)


class Source(Protocol):
    """Where results are read: a stored job, or a crawl in memory."""

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]: ...

    def items(self) -> Iterator[bytes]: ...


class Results:
    """Stored pages or items of a job, for `for` and `async for`; can be iterated repeatedly.

    Each is a mapping, as in a line of `pages.jsonl` or `items.jsonl`. Of a page that was fetched several times, only
    the last visit is included, unless `all_visits` is set."""

    def __init__(self, source: Source, *, all_visits: bool, items: bool) -> None:
        self._source = source
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
        """The results as a PyArrow table in memory.

        Pages have the columns of the `parquet` sink. Items have one column per field name. If the values of a field
        have types that cannot share a column, the column contains JSON."""
        _need_pyarrow()
        import pyarrow as pa

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
        """The results as a pandas DataFrame, with the columns of `to_arrow`."""
        _need_pandas()
        return self.to_arrow().to_pandas()

    def _records(self) -> Iterator[Record]:
        return self._source.records(all_visits=self._all_visits)

    def _all_items(self) -> Iterator[dict[str, Any]]:
        if self._all_visits:
            for record in self._source.records(all_visits=True, items=True):
                yield from map(msgspec.to_builtins, record.items)
        else:
            yield from map(msgspec.json.decode, self._source.items())


def _need_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise unusable("parquet", "a table", error) from error


def _need_pandas() -> None:
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise ConfigError("a DataFrame needs pandas: not installed", hint="pip install pandas") from error
    _need_pyarrow()


def _column(values: list[Any]) -> pyarrow.Array:
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else msgspec.json.encode(value).decode() for value in values])


class AsyncJobHandle:
    """Handle of a job for asyncio programs; `async with gossamer.open_job(NAME) as job` returns it."""

    def __init__(self, name: str, frontier: str = "") -> None:
        self.name = name
        self.frontier = frontier
        self._job: Job | None = None
        self._opening = asyncio.Lock()

    async def state(self) -> State:
        """The job's state: `running`, `paused`, `stopping`, `finished`, or `resting` (no process works on it, and its
        queue is not empty)."""
        from gossamer.jobs.job import read_state

        return await self._ask(read_state)

    async def counts(self) -> Counts:
        """The counts of `gossamer status`: `counts.stored`, `counts.queued`, `counts.failed`, and others."""
        return await self._ask(lambda job: job.counts())

    async def pause(self) -> None:
        """Pause the job once its current fetches are finished. Raises `JobStopped` if no process works on a local
        job."""
        await self._ask(lambda job: job.set_state("paused"))

    async def resume(self) -> None:
        """Resume a paused job, or a stopped job of a fleet.

        To start a local job that no process works on, call `gossamer.crawl(job=NAME)` or use the command line."""
        await self._ask(lambda job: job.set_state("running"))

    async def stop(self) -> None:
        """Stop the job once its current fetches are finished; its other URLs stay in the queue."""
        await self._ask(lambda job: job.set_state("stopping"))

    async def add(self, *urls: str) -> int:
        """Queue URLs; return how many of them are new to the job."""
        return await self._ask(lambda job: job.add(read_seeds(urls)))

    async def delete(self, *, results: bool = False) -> None:
        """Delete the job, and with `results` the results in its folder. Raises `JobRunning` while a process works on
        it."""
        await self._ask(lambda job: job.remove(results=results))
        await self.aclose()

    async def why(self, url: str, *, page: str = "") -> dict[str, Any]:
        """The history of a URL, as `gossamer why --json` prints it; `page` is a page that links to it."""
        from gossamer.inspect.why import url_history

        target, source = _one_url(url), _one_url(page) if page else ""
        found = await self._ask(lambda job: url_history(job, target, page=source, now=SystemClock().epoch()))
        return dict(msgspec.to_builtins(found))

    async def results(self, *, all_visits: bool = False) -> Results:
        """The stored pages."""
        return await self._ask(partial(_results, all_visits=all_visits, items=False))

    async def items(self, *, all_visits: bool = False) -> Results:
        """The items that the spider found."""
        return await self._ask(partial(_results, all_visits=all_visits, items=True))

    async def to_arrow(self, what: Literal["pages", "items"] = "pages", *, all_visits: bool = False) -> pyarrow.Table:
        """The stored pages, or the items, as a PyArrow table."""
        found = await self._ask(partial(_results, all_visits=all_visits, items=_is_items(what)))
        return await asyncio.to_thread(found.to_arrow)

    async def to_pandas(
        self, what: Literal["pages", "items"] = "pages", *, all_visits: bool = False
    ) -> pandas.DataFrame:
        """The stored pages, or the items, as a pandas DataFrame."""
        found = await self._ask(partial(_results, all_visits=all_visits, items=_is_items(what)))
        return await asyncio.to_thread(found.to_pandas)

    async def aclose(self) -> None:
        """Close the handle; the job continues."""
        job, self._job = self._job, None
        if job is not None:
            await job.aclose()

    async def _ask(self, ask: Callable[[Job], Awaitable[Value]]) -> Value:
        try:
            return await ask(await self._opened())
        except OwnerGone:
            # The process that owned the job has just ended: read the job from its files.
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
    """Handle of a job for scripts and notebooks; `async with` returns an `AsyncJobHandle` with the same methods.

    The first call opens the job; `with` or `close` closes it."""

    def __init__(self, name: str, frontier: str = "") -> None:
        self.name = name
        self.frontier = frontier
        self._handle = AsyncJobHandle(name, frontier)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], object] = lambda: None

    def state(self) -> State:
        """The job's state: `running`, `paused`, `stopping`, `finished`, or `resting` (no process works on it, and its
        queue is not empty)."""
        return self._wait(self._handle.state())

    def counts(self) -> Counts:
        """The counts of `gossamer status`: `counts.stored`, `counts.queued`, `counts.failed`, and others."""
        return self._wait(self._handle.counts())

    def pause(self) -> None:
        """Pause the job once its current fetches are finished. Raises `JobStopped` if no process works on a local
        job."""
        self._wait(self._handle.pause())

    def resume(self) -> None:
        """Resume a paused job, or a stopped job of a fleet.

        To start a local job that no process works on, call `gossamer.crawl(job=NAME)` or use the command line."""
        self._wait(self._handle.resume())

    def stop(self) -> None:
        """Stop the job once its current fetches are finished; its other URLs stay in the queue."""
        self._wait(self._handle.stop())

    def add(self, *urls: str) -> int:
        """Queue URLs; return how many of them are new to the job."""
        return self._wait(self._handle.add(*urls))

    def delete(self, *, results: bool = False) -> None:
        """Delete the job, and with `results` the results in its folder. Raises `JobRunning` while a process works on
        it."""
        self._wait(self._handle.delete(results=results))

    def why(self, url: str, *, page: str = "") -> dict[str, Any]:
        """The history of a URL, as `gossamer why --json` prints it; `page` is a page that links to it."""
        return self._wait(self._handle.why(url, page=page))

    def results(self, *, all_visits: bool = False) -> Results:
        """The stored pages."""
        return self._wait(self._handle.results(all_visits=all_visits))

    def items(self, *, all_visits: bool = False) -> Results:
        """The items that the spider found."""
        return self._wait(self._handle.items(all_visits=all_visits))

    def to_arrow(self, what: Literal["pages", "items"] = "pages", *, all_visits: bool = False) -> pyarrow.Table:
        """The stored pages, or the items, as a PyArrow table."""
        return self._wait(self._handle.to_arrow(what, all_visits=all_visits))

    def to_pandas(self, what: Literal["pages", "items"] = "pages", *, all_visits: bool = False) -> pandas.DataFrame:
        """The stored pages, or the items, as a pandas DataFrame."""
        return self._wait(self._handle.to_pandas(what, all_visits=all_visits))

    def close(self) -> None:
        """Close the handle; the job continues."""
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
        """Run it in the handle's own event loop: in a notebook, the caller's loop is running already."""
        if self._loop is None:
            started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
            turn = partial(asyncio.run, _turn(started))
            threading.Thread(target=turn, name="gossamer-job", daemon=True).start()
            self._loop, stopping = started.result()
            # Ends the loop also if the handle is garbage collected without `close`.
            self._stop = weakref.finalize(self, self._loop.call_soon_threadsafe, stopping.set)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _turn(started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    """Keep a loop running until the event is set."""
    stopping = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), stopping))
    await stopping.wait()


def open_job(name: str, frontier: str = "") -> JobHandle:
    """Open a job by its name or folder, for `with` or `async with`; `frontier` is the address of a fleet's frontier.

    A job that does not exist raises `ConfigError` on this machine, and `FrontierError` on a fleet's frontier."""
    return JobHandle(name, frontier)
