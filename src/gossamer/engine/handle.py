"""From an answer to a result: extraction, in this process or in parser processes, and the choice of links to follow."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from time import gmtime
from typing import NamedTuple, Protocol

import msgspec

from gossamer import urls
from gossamer.engine import hops
from gossamer.engine.extractor import Extracted, row_of
from gossamer.engine.recent import KnownKeys
from gossamer.errors import ExtractError
from gossamer.extract.scope import Scope
from gossamer.frontier.traps import has_far_date, may_have_date
from gossamer.model import SITEMAP, PageRow, Request, Response
from gossamer.settings import Settings

log = logging.getLogger("gossamer.engine")
_MOST_COMPLAINTS = 8
MAX_SCORE = 1000
_DAY_SECONDS = 86_400
Score = Callable[[Request], int]
Aside = Callable[[bool], None]


class Extracts(Protocol):
    """Something that runs the spider over a page."""

    async def extract(
        self, request: Request, response: Response, *, suspect: bool = False, aside: Aside | None = None
    ) -> Extracted:
        """All that the page gives; Interrupted if the crawl ends first.

        A `suspect` may have killed its worker. `aside` learns whether the page waits for another process."""
        ...

    def interrupt(self) -> None:
        """The crawl is to end; called by a signal handler, between any two instructions."""
        ...

    def stop(self) -> None:
        """The crawl is to end, and pages in hand have a moment left."""
        ...

    async def aclose(self) -> None:
        """End what handles pages elsewhere; spiders there are closed first."""
        ...


class Handled(NamedTuple):
    """A page's record, the requests that it leads to, and all else that it gave."""

    row: PageRow
    links: tuple[Request, ...]
    page: Extracted


class Linker:
    """Turns links into requests: in scope, with key, site and depth, and not those that were queued a moment ago."""

    def __init__(
        self,
        settings: Settings,
        secret: bytes,
        recent: KnownKeys,
        *,
        refused: Counter[str] | None = None,
        score: Score | None = None,
    ) -> None:
        self._settings = settings
        self._secret = secret
        self._recent = recent
        self._scope = Scope(settings)
        self._by_domain = settings.site_by == "domain"
        self._score = score
        self.refused: Counter[str] = Counter() if refused is None else refused

    def follow(
        self, page: Request, found: tuple[str, ...], *, year: int = 0, made: Mapping[int, Request] | None = None
    ) -> list[Request]:
        """Requests for plain links of a page; dates are compared with `year`, if it is given. What was `made` of a link
        a moment ago is taken as it is."""
        depth = page.depth + 1
        if self._settings.clean_query:
            found = tuple(map(urls.clean_query, found))
        keys = urls.keys_of(self._secret, found)
        unknown = self._recent.unknown(keys)
        requests: list[Request] = []
        if not unknown:
            return requests
        wanted = [(url, key) for url, key in zip(found, keys) if key in unknown]
        own, home = urls.origin(page.url) + "/", self.site(page.url)
        reasons = self._scope.refusals([url for url, _ in wanted], page.url, depth)
        for (url, key), reason in zip(wanted, reasons):
            if made and key in made:
                requests.append(made[key])
                continue
            if reason is None and year and may_have_date(url):
                reason = self._calendar(url, year)
            if reason is not None:
                self.refused[reason] += 1
                continue
            request = Request(url, key, home if url.startswith(own) else self.site(url), 0, depth)
            requests.append(request if self._score is None else self._scored(request))
        return requests

    def _calendar(self, url: str, year: int) -> str | None:
        far = year and has_far_date(urls.path_query(url), year=year, settings=self._settings)
        return "calendar" if far else None

    def _scored(self, request: Request) -> Request:
        """The request with the priority that the spider's `score` gives it, unless it has one of its own."""
        if self._score is None or request.priority:
            return request
        try:
            priority = int(self._score(request))
        except Exception as error:  # a link's fate is decided here: the spider's own code may raise anything
            if not self.refused["score"]:
                log.warning("the spider's score raised, and such links get no priority: %r", error)
            self.refused["score"] += 1
            return request
        return msgspec.structs.replace(request, priority=max(-MAX_SCORE, min(MAX_SCORE, priority)))

    def adopt(self, page: Request, made: tuple[Request, ...], *, year: int = 0) -> list[Request]:
        """Requests that the spider made, with what only the engine knows filled in."""
        requests = []
        for request in made:
            key = urls.key_of(self._secret, request.url, request.method, request.body)
            if not self._recent.unknown((key,)):
                continue
            refusal = self._scope.refuse(request.url, page.url, page.depth + 1, is_file=request.label == "file")
            reason = refusal or self._calendar(request.url, year)
            if reason is not None:
                self.refused[reason] += 1
                continue
            depth = page.depth + 1
            whole = msgspec.structs.replace(
                request, key=key, site=self.site(request.url), depth=depth, meta=request.given
            )
            requests.append(self._scored(whole))
        return requests

    def listed(self, url: str, *, source: str, referrer: str, lastmod: float | None = None) -> Request | None:
        """The request for a page that the sitemap of `source` lists, one link from it; None if there is none to make.

        In a continuous crawl a time of its last change travels though the page be known: it may be due sooner."""
        if self._settings.clean_query:
            url = urls.clean_query(url)
        key = urls.key_of(self._secret, url)
        if not self._recent.unknown((key,)) and (lastmod is None or not self._settings.recrawl):
            return None
        reason = self._scope.refuse(url, source, 1)
        if reason is not None:
            self.refused[reason] += 1
            return None
        meta = None if lastmod is None else {"lastmod": lastmod}
        return self._scored(Request(url, key, self.site(url), 0, 1, referrer=referrer, meta=meta))

    def sitemap(self, url: str, *, origin: str, level: int, referrer: str) -> Request:
        """The request for a sitemap that the robots.txt of `origin`, or an index that it names, speaks of.

        It has a key of its own: a page may have the same URL, and other hosts may name the same sitemap."""
        key = urls.key_of(self._secret, url, SITEMAP, urls.host_port(f"{origin}/").encode())
        meta = {"for": origin, "level": level}
        return Request(
            url, key, self.site(url), int(not level), int(level > 0), referrer=referrer, label=SITEMAP, meta=meta
        )

    def seed(self, url: str) -> Request:
        """The request for a seed, which is a normal URL."""
        return Request(url, urls.key_of(self._secret, url), self.site(url))

    def hop(self, page: Request, target: str, answer: Response) -> tuple[Request, ...]:
        """The next hop of a redirect, at the same depth. A seed may lead anywhere, other pages stay in scope.

        One that leads back to where its chain has been has a key of its own, or it would count as done."""
        status = answer.status
        is_long = len(target) > self._settings.max_url_length
        reason = self._scope.refuse(target, page.url, page.depth) if page.depth > 0 else "length" if is_long else None
        if reason is not None:
            self.refused[reason] += 1
            return ()
        # As browsers do: what was posted is not posted again, unless the server insists on it.
        is_home = urls.origin(target) == urls.origin(page.url)
        resent = page.method in ("GET", "HEAD") or (status in (307, 308) and (is_home or b"${secret:" not in page.body))
        method, body = (page.method, page.body) if resent else ("GET", b"")
        # Credentials stay with the origin they were meant for, and what describes a body goes with it.
        headers = page.headers if is_home else None
        if headers and not resent:
            headers = {name: value for name, value in headers.items() if name.lower() != "content-type"} or None
        again = hops.apart(page, target)
        key = urls.key_of(self._secret, target, method, body + again)
        return (
            msgspec.structs.replace(
                page,
                url=target,
                key=key,
                method=method,
                body=body,
                site=self.site(target),
                hops=page.hops + 1,
                tries=0,
                referrer="",
                state=None,
                headers=headers,
                meta=hops.longer(page, answer),
            ),
        )

    def site(self, url: str) -> str:
        authority = urls.host_port(url)
        return urls.registered_domain(authority) if self._by_domain else authority


class Handler:
    """Handles answers that are pages."""

    def __init__(self, extractor: Extracts, linker: Linker) -> None:
        self._extractor = extractor
        self.linker = linker
        self._complaints: set[str] = set()

    def redirect(self, request: Request, target: str, answer: Response) -> tuple[Request, ...]:
        """The request that a redirect leads to, if it may be followed."""
        return self.linker.hop(request, target, answer)

    def interrupt(self) -> None:
        """The crawl is to end; called by a signal handler, between any two instructions."""
        self._extractor.interrupt()

    def stop(self) -> None:
        """The crawl is to end, and pages in hand have a moment left."""
        self._extractor.stop()

    async def aclose(self) -> None:
        """Nothing more is to be handled."""
        await self._extractor.aclose()

    async def handle(
        self,
        request: Request,
        response: Response,
        *,
        made: Mapping[int, Request] | None = None,
        suspect: bool = False,
        aside: Aside | None = None,
    ) -> Handled:
        """Run the spider over a page; `made` are requests for links of the pages before, by their keys."""
        page = await self._extractor.extract(request, response, suspect=suspect, aside=aside)
        if page.error:
            self._complain(request.url, page)
        year = _year_of(int(response.fetched_at // _DAY_SECONDS)) if response.fetched_at else 0
        links = self.linker.follow(request, page.urls, year=year, made=made) if page.urls else []
        if page.requests:
            links += self.linker.adopt(request, page.requests, year=year)
        row = row_of(request, response, page)
        return Handled(row, tuple(links), page)

    def _complain(self, url: str, page: Extracted) -> None:
        """Say each kind of the spider's errors once; the records of the pages have all of them."""
        kind = page.error.partition(":")[0] if page.kind == ExtractError.kind else page.kind
        if kind not in self._complaints and len(self._complaints) < _MOST_COMPLAINTS:
            self._complaints.add(kind)
            what = "the spider failed on" if page.kind == ExtractError.kind else "too costly:"
            log.warning("%s %s: %s", what, url, page.error)


@lru_cache(maxsize=2)
def _year_of(day: int) -> int:
    """The year of a day since 1970: asked for at each page, and known from the one before."""
    return gmtime(day * _DAY_SECONDS).tm_year
