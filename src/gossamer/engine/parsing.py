"""From a page to its record and its links: runs the spider over it, and collects what it yields.

`SpiderRunner` is the same in the worker and in parser processes. A worker calls it through a `PageParser`, which
chooses the process, and `PageProcessor` turns the result into the page's record and requests."""

from __future__ import annotations

import hashlib
import inspect
import logging
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from time import gmtime
from types import GeneratorType
from typing import Any, NamedTuple, Protocol

import msgspec

from gossamer.cut import format_cut, parse_cut
from gossamer.engine.budget import Budget, Guard, PageMeter, hard_seconds, too_many_items
from gossamer.engine.links import Linker
from gossamer.engine.near_duplicates import TextFingerprint, TextFingerprints
from gossamer.engine.robots_txt import product_token
from gossamer.errors import ExtractError, TooCostly
from gossamer.extract.items import Dropped, ItemPipeline, Schemas, checked_request, is_one
from gossamer.extract.links import LOST, LinkCache
from gossamer.extract.page import Page
from gossamer.extract.spider import FieldSpider, Spider, load, load_type, make
from gossamer.extract.text import MIN_MAIN_SHARE
from gossamer.middleware import compose
from gossamer.model import Exchange, PageRow, Record, Rejected, Request, Response
from gossamer.settings import Settings

Parse = Callable[[Page], Awaitable[list[Any]]]
Aside = Callable[[bool], None]
log = logging.getLogger("gossamer.engine")
_MOST_COMPLAINTS = 8
_DAY_SECONDS = 86_400


class Extracted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of extracting a page: everything that is needed of it once the body is gone."""

    title: str = ""
    digest: str = ""
    link_count: int = 0
    urls: tuple[str, ...] = ()
    """Links to follow as they are."""
    requests: tuple[Request, ...] = ()
    """Links that the spider made itself."""
    items: tuple[dict[str, Any], ...] = ()
    types: tuple[str, ...] = ()
    """The type of each item; empty where the spider declares no types."""
    rejected: tuple[Rejected, ...] = ()
    dropped: int = 0
    text: str | None = None
    robots: str = ""
    """The page's robots meta directives, as in `noindex, nofollow`."""
    markdown: str | None = None
    main: str = ""
    """Digest of the main text; only where changes are detected."""
    path_simhash: int | None = None
    """SimHash of the main text; only where the page may be a copy of the last one of its path."""
    query_simhash: int | None = None
    """SimHash of the text outside links; only where the page's query may be one of an endless series of its path."""
    simhash: int | None = None
    """SimHash of the main text of every page, where near-duplicates are detected."""
    has_enough_text: bool = False
    """Whether there is enough text to call the page a copy."""
    cut: dict[str, int | None] = {}
    """What is missing of the page, by the limit that dropped it."""
    error: str = ""
    kind: str = ExtractError.kind
    """The error's kind, as in `PageRow.error`."""
    seconds: float = 0.0
    """CPU seconds that the page took; only from another process."""

    @property
    def compared(self) -> int | None:
        """Return the SimHash for comparing the page with others; None where it is neither a copy nor an original.

        Excluded are pages with little text, pages on which the spider failed, and pages that were cut, because the
        missing part may be what differs."""
        return None if not self.has_enough_text or self.error or self.cut else self.simhash


def make_spider(settings: Settings) -> Spider:
    """Return the spider named by the settings: the user's class, one for --extract fields, or one that follows
    links."""
    if settings.spider:
        return make(settings.spider, settings.spider_args)
    if settings.extract:
        return FieldSpider(settings.extract)
    return Spider()


def item_columns(settings: Settings, spider: Spider | None = None) -> dict[str, dict[str, str]]:
    """Return the item types that a job declares, with their fields and the types of those."""
    declared = (spider or (load(settings.spider) if settings.spider else Spider)).item_types
    return Schemas(declared or [load_type(reference) for reference in settings.item_types]).columns()


class SpiderRunner:
    """One spider, and the settings for what to extract from a page."""

    def __init__(self, spider: Spider, settings: Settings, *, guard: Guard | None = None) -> None:
        self._spider = spider
        self._settings = settings
        self._guard = guard or Guard()
        self._link_cache = LinkCache()
        self._robot = product_token(settings.user_agent)
        self._looks = TextFingerprints(settings)
        types = spider.item_types or [load_type(reference) for reference in settings.item_types]
        self._intake = ItemPipeline(types, spider.pipelines)
        self._parse: Parse = compose(spider.parse_middleware, self._run)

    async def extract(
        self,
        request: Request,
        response: Response,
        *,
        known: PageRow | None = None,
        meter: PageMeter | None = None,
        hard: bool = False,
    ) -> Extracted:
        """Extract everything from a page. If the spider raises, the page loses its items, but is still recorded.

        A page that exceeds a limit of its budget gets the error `too-costly`; with another `meter`, the meter's error
        is raised. With `hard`, the kernel kills this process if C code does not return.

        For a page that is `known`, title, digest, SimHash, robots directives, cut, and number of links are taken from
        there, and no link is followed: it is parsed only if the spider reads its content."""
        size = len(response.body)
        own = meter or Budget(self._settings, size)
        kill_after = hard_seconds(self._settings, size) if hard else 0.0
        try:
            return await self._guard.drive(self._extract(request, response, known, own), own, hard=kill_after)
        except TooCostly as excess:
            return too_costly(response, excess)

    async def _extract(
        self, request: Request, response: Response, known: PageRow | None, meter: PageMeter
    ) -> Extracted:
        page = Page(
            response,
            request,
            link_cache=self._link_cache,
            robot=self._robot,
            nofollow=self._settings.nofollow,
            max_links=self._settings.max_links,
        )
        digest = known.digest if known is not None else _digest(response.body)
        links: Sequence[str] = ()
        requests: list[Request] = []
        items: list[dict[str, Any]] = []
        types: list[str] = []
        rejected: list[Rejected] = []
        dropped = 0
        title, text, markdown, robots = "", None, None, ""
        error, kind = "", ExtractError.kind
        look = TextFingerprint()
        try:
            title = known.title if known is not None else page.title if page.is_html else ""
            text = page.text if self._settings.text else None
            markdown = self._markdown(page) if self._settings.markdown else None
            look = self._looks.at(page)
            meter.handling(True)
            try:
                given = await self._parse(page)
            finally:
                meter.handling(False)
            for found in given:
                if isinstance(found, Request):
                    requests.append(checked_request(found))
                elif found is not None:
                    taken = await self._intake.take(found, page.url)
                    if isinstance(taken, Rejected):
                        rejected.append(taken)
                    elif isinstance(taken, Dropped):
                        dropped += 1
                    else:
                        items.append(taken.item)
                        types.append(taken.type)
            links = self._links(page) if known is None and (page.is_html or page.is_xml) else ()
            robots = (known.robots or "") if known is not None else str(page.robots)
        except Exception as failure:  # a page's fate is decided here: whatever it makes the spider or the parser raise
            error = _describe(failure)
            if isinstance(failure, TooCostly):
                kind = failure.kind
            items, requests, rejected, dropped = [], [], [], 0
        return Extracted(
            title=title,
            digest=digest,
            link_count=known.links if known is not None else len(links) or len(requests),
            urls=tuple(links) if self._spider.follows_links and not error else (),
            requests=tuple(requests),
            items=tuple(items),
            types=tuple(types) if any(types) and items else (),
            rejected=tuple(rejected),
            dropped=dropped,
            text=text,
            robots=robots,
            markdown=markdown,
            main=look.digest,
            path_simhash=look.path_simhash,
            query_simhash=look.query_simhash,
            simhash=int(known.simhash, 16) if known is not None and known.simhash else look.simhash,
            has_enough_text=look.has_enough_text,
            cut=page.cut if known is None else _still_cut(page, known),
            error=error,
            kind=kind,
        )

    def _markdown(self, page: Page) -> str:
        if not page.is_html:
            return ""
        if page.main_share < MIN_MAIN_SHARE:
            log.info("%s: the main part is %.0f %% of the visible text", page.url, page.main_share * 100)
        return page.markdown

    def _links(self, page: Page) -> Sequence[str]:
        return page.links(self._settings.links)

    async def _run(self, page: Page) -> list[Any]:
        handler = self._spider.handler(page.label)
        yielded: Any = handler(page)
        if yielded is None:
            return []
        most = self._settings.handler_items
        if isinstance(yielded, AsyncIterable):
            given = []
            async for found in yielded:
                given.append(found)
                if len(given) > most:
                    break
        else:
            if not isinstance(yielded, GeneratorType | list) and inspect.isawaitable(yielded):
                yielded = await yielded
            if not isinstance(yielded, GeneratorType | list) and is_one(yielded):
                return [yielded]
            given = list(islice(yielded, most + 1)) if yielded is not None else []
        if len(given) > most:
            raise too_many_items(most)
        return given


def too_costly(response: Response, excess: TooCostly) -> Extracted:
    """Return the result for a page that was given up."""
    return Extracted(error=str(excess), kind=excess.kind, digest=_digest(response.body), cut=parse_cut(response.cut))


def died(response: Response) -> Extracted:
    """Return the result for a page on which its process died."""
    error = "the spider's process died on this page"
    return Extracted(error=error, digest=_digest(response.body), cut=parse_cut(response.cut))


def _still_cut(page: Page, known: PageRow) -> dict[str, int | None]:
    """Return what is missing of a stored page: what was cut when it was fetched, and what is cut of its tree now."""
    here = {reason: lost for reason, lost in page.cut.items() if reason not in LOST}
    return {**here, **parse_cut(known.cut or "")}


def _digest(body: bytes) -> str:
    return hashlib.sha1(body, usedforsecurity=False).hexdigest() if body else ""


def row_of(request: Request, response: Response, page: Extracted) -> PageRow:
    """Return the row of a page that the spider was run over."""
    return PageRow(
        url=request.url,
        status=response.status,
        depth=request.depth,
        title=page.title,
        fetched_at=round(response.fetched_at, 3),
        elapsed=round(response.elapsed, 4),
        bytes=len(response.body),
        digest=page.digest,
        links=page.link_count,
        error=f"{page.kind}: {page.error}" if page.error else "",
        referrer=request.referrer,
        tls_fault=response.tls_fault or msgspec.UNSET,
        robots=page.robots or msgspec.UNSET,
        simhash=msgspec.UNSET if page.simhash is None else f"{page.simhash:016x}",
        text=msgspec.UNSET if page.text is None else page.text,
        markdown=msgspec.UNSET if page.markdown is None else page.markdown,
        cut=format_cut(page.cut) or msgspec.UNSET,
    )


def _describe(failure: Exception) -> str:
    """Describe the error and where in the spider it came from, on one line."""
    if isinstance(failure, ExtractError):
        return _storable(f"{failure} ({failure.hint})" if failure.hint else str(failure))
    frames = traceback.extract_tb(failure.__traceback__)
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return _storable(f"{type(failure).__name__}: {failure}{where}")


def _storable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded in a file."""
    return text.encode("utf-8", "replace").decode()


def record_of(
    request: Request, row: PageRow, *, token: int, page: Extracted | None, response: Response | None
) -> Record:
    """Return the record of a visit; `response` is passed where a sink stores whole pages."""
    record = Record(key=request.key, token=token, page=row)
    if row.copy_of is not msgspec.UNSET:
        # Its row records that it exists; everything else is that of the page that was stored.
        return record
    if page is not None:
        record = msgspec.structs.replace(
            record, items=page.items, types=page.types, rejected=page.rejected, dropped=page.dropped
        )
    if response is None:
        return record
    return msgspec.structs.replace(
        record,
        body=response.body,
        found=page.urls if page is not None else None,
        exchange=_exchange(request, response),
        label=request.label,
        meta=request.given,
    )


def _exchange(request: Request, response: Response) -> Exchange:
    return Exchange(
        method=request.method,
        sent=response.sent,
        posted=request.body,
        version=response.http_version,
        address=response.address,
        headers=response.headers,
        head=response.head,
        wire_bytes=response.wire_bytes,
    )


def answer_row(
    request: Request, response: Response, *, location: str = "", error: str = "", digest: str = ""
) -> PageRow:
    """Return the row of an answer that no spider sees."""
    return PageRow(
        url=request.url,
        status=response.status,
        depth=request.depth,
        fetched_at=round(response.fetched_at, 3),
        elapsed=round(response.elapsed, 4),
        bytes=len(response.body),
        digest=digest,
        error=error,
        referrer=request.referrer,
        location=location,
        tls_fault=response.tls_fault or msgspec.UNSET,
        cut=format_cut(parse_cut(response.cut)) or msgspec.UNSET,
    )


class PageParser(Protocol):
    """Runs the spider over a page: in this process, in parser processes, or in either."""

    async def extract(
        self, request: Request, response: Response, *, suspect: bool = False, aside: Aside | None = None
    ) -> Extracted:
        """Extract everything from a page; Interrupted if the crawl ends first.

        A `suspect` may have killed a worker. `aside` is called with True while the page waits for another process."""
        ...

    def interrupt(self) -> None:
        """Interrupt because the crawl ends. A signal handler calls this, between any two instructions."""
        ...

    def stop(self) -> None:
        """Give pages in hand a moment because the crawl ends."""
        ...

    async def aclose(self) -> None:
        """End the processes that handle pages, after their spiders are closed."""
        ...


class ProcessedPage(NamedTuple):
    """A page's record, its requests, and everything else that the spider gave."""

    row: PageRow
    links: tuple[Request, ...]
    page: Extracted


class PageProcessor:
    """Makes a record and requests of an answer that is a page: runs the spider, and follows the links."""

    def __init__(self, extractor: PageParser, linker: Linker) -> None:
        self._extractor = extractor
        self.linker = linker
        self._complaints: set[str] = set()

    def redirect(self, request: Request, target: str, answer: Response) -> tuple[Request, ...]:
        """Return the request for the target of a redirect, if it may be followed."""
        return self.linker.hop(request, target, answer)

    def interrupt(self) -> None:
        """Interrupt because the crawl ends. A signal handler calls this, between any two instructions."""
        self._extractor.interrupt()

    def stop(self) -> None:
        """Give pages in hand a moment because the crawl ends."""
        self._extractor.stop()

    async def aclose(self) -> None:
        """Close the extractor."""
        await self._extractor.aclose()

    async def process(
        self,
        request: Request,
        response: Response,
        *,
        made: Mapping[int, Request] | None = None,
        suspect: bool = False,
        aside: Aside | None = None,
    ) -> ProcessedPage:
        """Run the spider over a page; `made` maps keys to requests for links of earlier pages."""
        page = await self._extractor.extract(request, response, suspect=suspect, aside=aside)
        if page.error:
            self._log_error_once(request.url, page)
        year = _year_of(int(response.fetched_at // _DAY_SECONDS)) if response.fetched_at else 0
        links = self.linker.follow(request, page.urls, year=year, made=made) if page.urls else []
        if page.requests:
            links += self.linker.adopt(request, page.requests, year=year)
        row = row_of(request, response, page)
        return ProcessedPage(row, tuple(links), page)

    def _log_error_once(self, url: str, page: Extracted) -> None:
        """Log each kind of spider error once; the records have all of them."""
        kind = page.error.partition(":")[0] if page.kind == ExtractError.kind else page.kind
        if kind not in self._complaints and len(self._complaints) < _MOST_COMPLAINTS:
            self._complaints.add(kind)
            what = "the spider failed on" if page.kind == ExtractError.kind else "too costly:"
            log.warning("%s %s: %s", what, url, page.error)


@lru_cache(maxsize=2)
def _year_of(day: int) -> int:
    """Return the year of a day since 1970, cached: nearly all pages of a run are of the same day."""
    return gmtime(day * _DAY_SECONDS).tm_year
