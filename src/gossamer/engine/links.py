"""From the links of a page to new requests: scope, fingerprints, and the keys that the frontier already has."""

from __future__ import annotations

import logging
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from time import gmtime
from typing import NamedTuple, Protocol

import msgspec

from gossamer import urls
from gossamer.engine import judge
from gossamer.engine.parsing import Extracted, row_of
from gossamer.engine.traps import has_far_date, may_have_date
from gossamer.errors import ConfigError, ExtractError
from gossamer.model import SITEMAP, PageRow, Request, Response
from gossamer.settings import Settings

_FIRST_PART = 4096
_GROWTH = 8
_WAYS = 4
_NO_KEY = 2**64 - 1
_row_at = Struct(f"{_WAYS}Q").unpack_from


class KnownKeys(Protocol):
    """Something that tells which keys may be new to the frontier."""

    def unknown(self, keys: Iterable[int]) -> set[int]: ...

    def update(self, keys: Iterable[int]) -> None: ...

    def clear(self) -> None: ...


class Knows(Protocol):
    """A frontier that has its keys at hand."""

    def unknown(self, keys: Iterable[int]) -> set[int]: ...


class FrontierKeys:
    """The memory of the frontier itself, where it is in the same process: exact, and nothing is kept beside it."""

    def __init__(self, frontier: Knows) -> None:
        self.unknown = frontier.unknown

    def update(self, keys: Iterable[int]) -> None:
        """The frontier has them."""

    def clear(self) -> None:
        """It forgets by itself what it does not have."""


class RecentKeys:
    """The last keys, in a table of rows of four: each has one row where it can be, and pushes out another there.

    A key costs 8 bytes there. Most crawls are small: the table begins as a 4096th of itself, and grows eightfold before
    it is more than a quarter full. A key may enter only after the frontier has it for good: otherwise a crash between
    would lose the link."""

    def __init__(self, size: int = 8_000_000) -> None:
        self._most_places = max(_WAYS, 1 << max(0, size - 1).bit_length())
        self.clear()

    def unknown(self, keys: Iterable[int]) -> set[int]:
        """Those of these keys that may be new."""
        wanted = list(keys)
        table, mask, first_in_row = self._table, self._mask, self._first_in_row
        # All are looked up in one go: the processor waits for memory once then, and not for one after the other. Two
        # places more make the answer a tuple, however many keys there are.
        found = itemgetter(*[key & mask for key in wanted], 0, 0)(table)
        return {
            key
            for key, other in zip(wanted, found)
            if other != key and (not other or key not in _row_at(table, 8 * (key & first_in_row)))
        }

    def update(self, keys: Iterable[int]) -> None:
        entering = list(keys)
        self._grow(len(entering))
        table, mask, first_in_row = self._table, self._mask, self._first_in_row
        for key in entering:
            place = key & mask
            other = table[place]
            if other:
                first = key & first_in_row
                row = table[first : first + _WAYS]
                if key in row:
                    continue
                # The newest has the place where it is looked for first; the other goes where there is room.
                if 0 in row:
                    table[first + row.index(0)] = other
                else:
                    table[place ^ 1], table[place ^ 2], table[place ^ 3] = other, table[place ^ 1], table[place ^ 2]
            table[place] = key
            self._entered += 1

    def clear(self) -> None:
        """Forget all: after a reconnect nobody knows what the frontier still has."""
        self._make(max(_WAYS, self._most_places // _FIRST_PART))

    def _grow(self, more: int) -> None:
        """Make room for so many more."""
        old, places = self._table, len(self._table)
        while 4 * (self._entered + more) > places and places < self._most_places:
            places = min(self._most_places, _GROWTH * places)
        if places > len(old):
            self._make(places)
            self.update(key for key in old if key and key != _NO_KEY)

    def _make(self, places: int) -> None:
        self._mask = places - 1
        self._first_in_row = places - _WAYS
        self._table = array("Q", bytes(8 * places))
        # An empty place looks like the key 0, which belongs here.
        self._table[:_WAYS] = array("Q", [_NO_KEY] * _WAYS)
        self._entered = 0


_SKIPPED = """
    7z aac aiff apk avi avif bin bmp bz2 cab css cur deb dll dmg dwg dxf eot eps exe flac flv gif gz heic ico ics img
    ipa iso jar jp2 jpe jpeg jpg js jxl less lz4 lzma m3u8 m4a m4v mid mjs mkv mov mp2 mp3 mp4 mpeg mpg msi oga ogg ogv
    opus otf pkg png ps psd rar rm rpm sass scss svg svgz swf tar tbz tgz tif tiff torrent ttf txz vcf wasm wav weba
    webm webmanifest webp whl wma wmv woff woff2 xapk xz zip zst
"""
SKIPPED_EXTENSIONS = frozenset(_SKIPPED.split())
"""What these names promise is neither a page nor a document; `allow` overrides them."""


class Scope:
    """The rules of one job; a wrong regular expression is a ConfigError that names it."""

    def __init__(self, settings: Settings) -> None:
        self._allow = _compiled(settings.allow, "allow")
        self._deny = _compiled(settings.deny, "deny")
        self._kind = settings.scope
        self._max_depth = settings.max_depth
        self._max_length = settings.max_url_length
        self._max_segments = settings.max_segments
        self._max_repeats = settings.max_repeats

    def refuse(self, url: str, page_url: str, depth: int, *, is_file: bool = False) -> str | None:
        """Why a normal URL, found on a page, is not followed at this depth; None if it is.

        A file that the spider asks for as such may have any extension."""
        if self._max_depth is not None and depth > self._max_depth:
            return "depth"
        if len(url) > self._max_length:
            return "length"
        if self._kind != "any" and not self._near(url, page_url):
            return "scope"
        if self._deny and any(pattern.search(url) for pattern in self._deny):
            return "deny"
        if self._allow and not any(pattern.search(url) for pattern in self._allow):
            return "allow"
        path = url.partition("?")[0]
        if not self._allow and not is_file and _extension(path) in SKIPPED_EXTENSIONS:
            return "extension"
        segments = path.count("/") - 2
        if segments > self._max_segments:
            return "segments"
        # Most paths are too short to repeat anything.
        if segments > self._max_repeats and _repeats(path.split("/", 3)[3]) > self._max_repeats:
            return "repeats"
        return None

    def refusals(self, found: Sequence[str], page_url: str, depth: int) -> list[str | None]:
        """What `refuse` says of each of these links of a page: most are short, near and without an extension."""
        if self._deny or self._allow or (self._max_depth is not None and depth > self._max_depth):
            return [self.refuse(url, page_url, depth) for url in found]
        home = page_url[: page_url.find("/", 8) + 1]
        is_near, longest = self._kind == "any", self._max_length
        # Slashes of a URL whose path may have too many segments, or too many that repeat.
        most = 2 + min(self._max_segments, self._max_repeats)
        reasons: list[str | None] = []
        for url in found:
            reason = None
            path = url.partition("?")[0] if "?" in url else url
            if len(url) > longest or path.count("/") > most:
                reason = self.refuse(url, page_url, depth)
            elif not (is_near or url.startswith(home) or self._near(url, page_url)):
                reason = "scope"
            elif path.rfind(".", -13) >= 0 and _extension(path) in SKIPPED_EXTENSIONS:
                reason = "extension"
            reasons.append(reason)
        return reasons

    def _near(self, url: str, page_url: str) -> bool:
        end = page_url.find("/", 8) + 1
        if url.startswith(page_url[:end]):
            return True
        authority, own = urls.host_port(url), urls.host_port(page_url)
        if self._kind == "domain":
            return urls.registered_domain(authority) == urls.registered_domain(own)
        return authority.removeprefix("www.") == own.removeprefix("www.")


def _extension(path: str) -> str:
    """What follows the last dot of the last segment, in lower case."""
    dot = path.rfind(".")
    if dot < 8 or len(path) - dot > 12:
        return ""
    last = path[dot + 1 :]
    return "" if "/" in last or path.find("/", 8) > dot or path.find("/", 8) < 0 else last.lower()


def _repeats(path: str) -> int:
    """How often the most frequent segment stands in a path; a loop of relative links repeats all of its segments."""
    return max(Counter(segment for segment in path.split("/") if segment).values(), default=0)


def _compiled(patterns: tuple[str, ...], setting: str) -> tuple[re.Pattern[str], ...]:
    # Not joined into one: flags and numbered groups of a pattern are its own.
    found = []
    for pattern in patterns:
        try:
            found.append(re.compile(pattern))
        except re.error as error:
            raise ConfigError(
                f"{setting}: {pattern!r} is not a regular expression: {error}",
                hint="a dot, a question mark and brackets have a meaning there; put a backslash before them",
            ) from None
    return tuple(found)


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
        again = judge.apart(page, target)
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
                meta=judge.longer(page, answer),
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
