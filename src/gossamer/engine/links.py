"""From the links of a page to new requests: scope, fingerprints, and the keys that the frontier already has.

A page has a hundred links, of which a few are new. Cheap tests come before expensive ones: compute the keys, drop those
that the frontier certainly has (`KnownKeys`), compare the rest with the rules of the job (`Scope`), and make requests
of what is left, with site and depth (`Linker`).

Dropping a known key saves traffic, and is the one place where a link could be lost on the way to the frontier. So a key
may enter `RecentKeys` only after a commit with the link was acknowledged (P3), and the table is emptied when the store
may have lost data. A key that is reported as new by mistake costs a few bytes; the frontier checks every key (P1).

Refused links are counted by reason, for the summary of the run, and are not stored."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from struct import Struct
from typing import Protocol

import msgspec

from gossamer import urls
from gossamer.engine import verdict
from gossamer.engine.scope import Scope
from gossamer.engine.traps import has_far_date, may_have_date
from gossamer.model import SITEMAP, Request, Response
from gossamer.settings import Settings

_FIRST_PART = 4096
_GROWTH = 8
_WAYS = 4
_NO_KEY = 2**64 - 1
_row_at = Struct(f"{_WAYS}Q").unpack_from


class KnownKeys(Protocol):
    """Reports which keys may be new to the frontier: possibly too many, never too few."""

    def unknown(self, keys: Iterable[int]) -> set[int]: ...

    def update(self, keys: Iterable[int]) -> None: ...

    def clear(self) -> None: ...


class HasKeys(Protocol):
    """A frontier with its keys in memory."""

    def unknown(self, keys: Iterable[int]) -> set[int]: ...


class FrontierKeys:
    """The keys of a frontier in the same process: exact, and without memory of its own."""

    def __init__(self, frontier: HasKeys) -> None:
        self.unknown = frontier.unknown

    def update(self, keys: Iterable[int]) -> None:
        """Do nothing: the frontier has them."""

    def clear(self) -> None:
        """Do nothing: the frontier itself drops keys that it does not have."""


class RecentKeys:
    """The most recent keys, in a table with rows of four: a new key may replace an older key of its row.

    A key costs 8 bytes. The table begins at a 4096th of its full size, since most crawls are small, and grows eightfold
    before it is more than a quarter full. A key may enter only after the frontier has acknowledged it: otherwise a
    crash in between would lose the link."""

    def __init__(self, size: int = 8_000_000) -> None:
        self._most_places = max(_WAYS, 1 << max(0, size - 1).bit_length())
        self.clear()

    def unknown(self, keys: Iterable[int]) -> set[int]:
        """Return those of these keys that may be new."""
        wanted = list(keys)
        table, mask, first_in_row = self._table, self._mask, self._first_in_row
        # One call looks up all keys, so that the CPU fetches their memory in parallel. The two extra places make the
        # answer a tuple for any number of keys.
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
                # The newest key goes to the position that is checked first; the key there moves to a free position, or
                # all shift by one.
                if 0 in row:
                    table[first + row.index(0)] = other
                else:
                    table[place ^ 1], table[place ^ 2], table[place ^ 3] = other, table[place ^ 1], table[place ^ 2]
            table[place] = key
            self._entered += 1

    def clear(self) -> None:
        """Remove all keys: the frontier may not have them any more."""
        self._make(max(_WAYS, self._most_places // _FIRST_PART))

    def _grow(self, more: int) -> None:
        """Make room for this many more keys."""
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
        # Empty places are 0. The key 0 belongs in this row, so its empty places need another value.
        self._table[:_WAYS] = array("Q", [_NO_KEY] * _WAYS)
        self._entered = 0


log = logging.getLogger("gossamer.engine")
MAX_SCORE = 1000
Score = Callable[[Request], int]


class Linker:
    """Turns links into requests with key, site, and depth; drops links that are out of scope or known."""

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
        """Return the requests for the links of a page. With a `year`, links to dates far from it are refused.

        `made` maps keys to requests of this lease for earlier links, which are reused."""
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
        """Return the request with the priority from the spider's `score`, unless it already has one."""
        if self._score is None or request.priority:
            return request
        try:
            priority = int(self._score(request))
        except Exception as error:  # a link's fate is decided here: the spider's own code may raise anything
            if not self.refused["score"]:
                log.warning("the spider's score() raised, so these links get no priority: %r", error)
            self.refused["score"] += 1
            return request
        return msgspec.structs.replace(request, priority=max(-MAX_SCORE, min(MAX_SCORE, priority)))

    def adopt(self, page: Request, made: tuple[Request, ...], *, year: int = 0) -> list[Request]:
        """Return the requests that the spider made, with key, site, and depth filled in."""
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
        """Return the request for a page in the sitemap of `source`; None if it is known or refused.

        In a continuous crawl, a known page is sent with the time of its last change: its visit may be brought forward.
        """
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
        """Return the request for a sitemap that the robots.txt of `origin`, or an index named there, lists.

        Its key differs from that of a page with the same URL, and from that of the same sitemap for another host."""
        key = urls.key_of(self._secret, url, SITEMAP, urls.host_port(f"{origin}/").encode())
        meta = {"for": origin, "level": level}
        return Request(
            url, key, self.site(url), int(not level), int(level > 0), referrer=referrer, label=SITEMAP, meta=meta
        )

    def seed(self, url: str) -> Request:
        """Return the request for a seed, which is a normalized URL."""
        return Request(url, urls.key_of(self._secret, url), self.site(url))

    def hop(self, page: Request, target: str, answer: Response) -> tuple[Request, ...]:
        """Return the request for the next hop of a redirect, at the same depth; empty if it is refused.

        A seed may redirect anywhere, other pages only within the scope. A redirect back to a URL of its own chain gets
        its own key: under the usual one it would be known, and never fetched."""
        status = answer.status
        is_long = len(target) > self._settings.max_url_length
        reason = self._scope.refuse(target, page.url, page.depth) if page.depth > 0 else "length" if is_long else None
        if reason is not None:
            self.refused[reason] += 1
            return ()
        # As in browsers: a body is sent again only for 307 and 308, and a secret in it only to its own origin.
        is_home = urls.origin(target) == urls.origin(page.url)
        resent = page.method in ("GET", "HEAD") or (status in (307, 308) and (is_home or b"${secret:" not in page.body))
        method, body = (page.method, page.body) if resent else ("GET", b"")
        # Headers may contain credentials, so they are sent to their origin only; the content type goes with the body.
        headers = page.headers if is_home else None
        if headers and not resent:
            headers = {name: value for name, value in headers.items() if name.lower() != "content-type"} or None
        again = verdict.hop_key(page, target)
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
                meta=verdict.next_hop_meta(page, answer),
            ),
        )

    def site(self, url: str) -> str:
        authority = urls.host_port(url)
        return urls.registered_domain(authority) if self._by_domain else authority
