"""Cookies by RFC 6265bis: the Set-Cookie parser and the cookie jar.

`http.cookies` takes 11 us for a header and drops all of it at the first invalid character; this parser takes 7 us."""

from __future__ import annotations

import re
from collections import OrderedDict
from datetime import UTC, datetime
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from gossamer.clock import Clock
from gossamer.middleware import Fetch, Middleware
from gossamer.model import Request, Response
from gossamer.urls import host, host_port, is_address, path_query, registered_domain

MAX_BYTES = 4096
"""Limit of name and value together."""
MAX_ATTRIBUTE_BYTES = 1024
MAX_AGE_SECONDS = 400 * 86_400
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_BLANKS = " \t"
_SECONDS = re.compile(r"-?[0-9]+")
_DATE_PART = re.compile(r"[^\x09\x20-\x2f\x3b-\x40\x5b-\x60\x7b-\x7e]+")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:[^0-9]|\Z)")
_DAY = re.compile(r"([0-9]{1,2})(?:[^0-9]|\Z)")
_YEAR = re.compile(r"([0-9]{2,4})(?:[^0-9]|\Z)")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class SetCookie(NamedTuple):
    """The cookie of one Set-Cookie header as written; the jar decides whether the host may set it."""

    name: str
    value: str
    domain: str
    """Without a leading dot, in lower case; empty if missing."""
    path: str
    """Empty unless the header has one that starts with a slash."""
    secure: bool
    expires_at: float
    """Epoch seconds; -inf for an expired cookie, inf for a session cookie."""


def parse(text: str, *, now: float) -> SetCookie | None:
    """Parse a Set-Cookie value; None where the standard ignores it. Of equal attributes, the last valid one wins."""
    if len(text) > 8 * MAX_BYTES or _CONTROL.search(text):
        return None
    pair, *rest = text.split(";")
    name, mark, value = pair.partition("=")
    if not mark:
        name, value = "", pair
    name, value = name.strip(_BLANKS), value.strip(_BLANKS)
    if not (name or value) or _octets(name) + _octets(value) > MAX_BYTES:
        return None
    domain, path, secure = "", "", False
    age_ends_at: float | None = None
    date_ends_at: float | None = None
    for attribute in rest:
        key, _, text_value = attribute.partition("=")
        key, text_value = key.strip(_BLANKS).lower(), text_value.strip(_BLANKS)
        if _octets(text_value) > MAX_ATTRIBUTE_BYTES:
            continue
        if key == "domain":
            domain = text_value.removeprefix(".").lower()
        elif key == "path":
            path = text_value if text_value.startswith("/") else ""
        elif key == "secure":
            secure = True
        elif key == "max-age" and _SECONDS.fullmatch(text_value):
            seconds = min(int(text_value[:18]), MAX_AGE_SECONDS)
            age_ends_at = now + seconds if seconds > 0 else -inf
        elif key == "expires" and (at := cookie_date(text_value)) is not None:
            date_ends_at = min(at, now + MAX_AGE_SECONDS)
    ends_at = age_ends_at if age_ends_at is not None else date_ends_at
    return SetCookie(name, value, domain, path, secure, inf if ends_at is None else ends_at)


def _octets(text: str) -> int:
    """Return the length in bytes in a header."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def cookie_date(text: str) -> float | None:
    """Parse a date by the standard's lenient algorithm, which ignores time zones, to epoch seconds; None if invalid."""
    time: re.Match[str] | None = None
    day = year = month = 0
    for part in _DATE_PART.findall(text):
        if time is None and (time := _TIME.match(part)) is not None:
            continue
        if not day and (found := _DAY.match(part)) is not None:
            # A day of 0 was found but is invalid.
            day = int(found[1]) or 99
        elif not month and part[:3].lower() in _MONTHS:
            month = _MONTHS.index(part[:3].lower()) + 1
        elif not year and (found := _YEAR.match(part)) is not None:
            year = int(found[1])
            year += 1900 if 70 <= year <= 99 else 2000 if year <= 69 else 0
    if time is None or not (day and month) or year < 1601:
        return None
    try:
        return datetime(year, month, day, int(time[1]), int(time[2]), int(time[3]), tzinfo=UTC).timestamp()
    except ValueError:
        return None


MAX_DOMAINS = 10_000
MAX_COOKIES = 50
MAX_SET_COOKIES = 100
MAX_DUMP_BYTES = 16_384


def cookies(jar: CookieJar) -> Middleware:
    """Store the cookies that servers set, and send them where they belong; a request's own Cookie header stays."""

    def wrap(fetch: Fetch) -> Fetch:
        async def fetch_with_cookies(request: Request) -> Response:
            own = request.headers or {}
            sent = request
            if not any(name.lower() == "cookie" for name in own):
                value = jar.header(request.url)
                if value:
                    sent = msgspec.structs.replace(request, headers={**own, "cookie": value})
            response = await fetch(sent)
            if not response.from_cache and not response.tls_fault:
                jar.store(response)
            return response

        return fetch_with_cookies

    return wrap


class Cookie(msgspec.Struct, frozen=True):
    """One cookie and its scope."""

    name: str
    value: str
    domain: str
    path: str
    host_only: bool
    secure: bool
    expires_at: float
    number: int
    """Rank by time of creation, which a new value does not change."""
    changed_at: float = 0.0
    """When it got this value or expired; of two versions of a cookie, the newer one wins."""

    def goes_to(self, name: str) -> bool:
        """Whether a host may receive it."""
        return name == self.domain if self.host_only else _domain_matches(name, self.domain)

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.name, self.domain, self.path)


class _DomainCookies:
    """The cookies of one domain, including expired ones, which other workers may still have."""

    __slots__ = ("cookies", "revision")

    def __init__(self) -> None:
        self.cookies: dict[tuple[str, str, str], Cookie] = {}
        self.revision = 0


class CookieJar:
    """The cookies of one worker, for the most recently used domains; with `per_host`, hosts share none."""

    def __init__(self, clock: Clock, *, per_host: bool = False) -> None:
        self._clock = clock
        self._per_host = per_host
        self._domains: OrderedDict[str, _DomainCookies] = OrderedDict()
        self._made = 0

    def header(self, url: str) -> str:
        """Return the Cookie header for a normalized URL; empty if there is nothing to send."""
        name = host(host_port(url))
        kept = self._domains.get(self._domain_of(name))
        if not kept or not kept.cookies:
            return ""
        now, path, secure = self._clock.epoch(), path_query(url).partition("?")[0], url.startswith("https:")
        for key in [key for key, cookie in kept.cookies.items() if -inf < cookie.expires_at <= now]:
            del kept.cookies[key]
        found = [
            cookie
            for cookie in kept.cookies.values()
            if cookie.expires_at > now
            and cookie.goes_to(name)
            and _path_matches(path, cookie.path)
            and (secure or not cookie.secure)
        ]
        found.sort(key=lambda cookie: (-len(cookie.path), cookie.number))
        return "; ".join(f"{cookie.name}={cookie.value}" if cookie.name else cookie.value for cookie in found)

    def store(self, response: Response) -> None:
        """Store the cookies of a response's Set-Cookie headers."""
        values = [value for name, value in response.headers if name == "set-cookie"]
        if not values:
            return
        kept = self._domain_cookies(host(host_port(response.url)))
        is_safe = response.url.startswith("https:")
        for value in values[:MAX_SET_COOKIES]:
            cookie = self._parse(value, response.url)
            if cookie is None or (not is_safe and _hides_secure(cookie, kept)):
                continue
            old = kept.cookies.get(cookie.key)
            if old is not None:
                cookie = msgspec.structs.replace(cookie, number=old.number)
            is_over = cookie.expires_at <= self._clock.epoch()
            if is_over and old is None:
                continue
            if is_over:
                cookie = msgspec.structs.replace(cookie, value="", expires_at=-inf)
            if old is not None and self._is_same(old, cookie):
                kept.cookies[cookie.key] = msgspec.structs.replace(cookie, changed_at=old.changed_at)
                continue
            kept.cookies[cookie.key] = msgspec.structs.replace(cookie, changed_at=self._next_time(kept))
            kept.revision += 1
            if len(kept.cookies) > MAX_COOKIES:
                # Evict expired cookies first, then those set over plain HTTP.
                last = min(kept.cookies.values(), key=lambda one: (one.expires_at > -inf, one.secure, one.number))
                del kept.cookies[last.key]

    def _next_time(self, kept: _DomainCookies) -> float:
        """Return the current time, but after every stored change: clocks differ, and the newest change must win."""
        known = max((cookie.changed_at for cookie in kept.cookies.values()), default=0.0)
        return round(max(self._clock.epoch(), known + 0.001), 3)

    def revision(self, site: str) -> int:
        """Return a number that grows with every change to the cookies of a site."""
        kept = self._domains.get(self._domain_of(host(site)))
        return kept.revision if kept is not None else 0

    def dump(self, site: str) -> list[Any]:
        """Return the cookies of a site, including expired ones, newest first, up to a limit."""
        name = host(site)
        kept = self._domain_cookies(name)
        found: list[Any] = []
        size = 0
        for cookie in sorted(kept.cookies.values(), key=attrgetter("number"), reverse=True):
            size += len(cookie.name) + len(cookie.value) + len(cookie.domain) + len(cookie.path) + 45
            if cookie.goes_to(name) or cookie.domain.endswith("." + name):
                if size > MAX_DUMP_BYTES:
                    break
                until = {inf: None, -inf: 0}.get(cookie.expires_at, cookie.expires_at)
                flags = cookie.host_only + 2 * cookie.secure
                whole = None if until is None else round(until)
                found.append([cookie.name, cookie.value, cookie.domain, cookie.path, flags, whole, cookie.changed_at])
        return [max((row[6] for row in found), default=0.0), found]

    def shared(self, site: str, other: str) -> list[Any] | None:
        """Return like `dump` the cookies for another site on this domain; None without cookies or a common domain."""
        if self._per_host or other == site or self._domain_of(host(site)) != self._domain_of(host(other)):
            return None
        plain = self.dump(other)
        return plain if plain[1] else None

    def load(self, site: str, plain: Any) -> bool:
        """Merge the result of `dump`, of this worker or another, cookie by cookie: of two versions the newer one wins.

        Returns True if nothing here is newer than `plain`, so that there is no change to share."""
        name = host(site)
        kept = self._domain_cookies(name)
        try:
            at, rows = float(plain[0]), plain[1]
            found = [_cookie(row, at) for row in reversed(rows)]
        except (TypeError, ValueError, LookupError):
            return False
        for cookie in found:
            old = kept.cookies.get(cookie.key)
            if old is None or old.changed_at < cookie.changed_at:
                self._made += 1
                kept.cookies[cookie.key] = msgspec.structs.replace(cookie, number=old.number if old else self._made)
                kept.revision += 1
        given = {cookie.key: cookie.changed_at for cookie in found}
        own = (cookie for cookie in kept.cookies.values() if cookie.goes_to(name))
        return all(given.get(cookie.key) == cookie.changed_at for cookie in own)

    def _domain_of(self, name: str) -> str:
        return name if self._per_host else registered_domain(name)

    def _domain_cookies(self, name: str) -> _DomainCookies:
        home = self._domain_of(name)
        kept = self._domains.get(home)
        if kept is None:
            kept = self._domains[home] = _DomainCookies()
        self._domains.move_to_end(home)
        while len(self._domains) > MAX_DOMAINS:
            self._domains.popitem(last=False)
        return kept

    def _is_same(self, old: Cookie, new: Cookie) -> bool:
        """Whether at most the expiry has changed, and not by much: sites set the same cookie with every response."""
        if old.value != new.value or old.secure != new.secure or old.host_only != new.host_only:
            return False
        if old.expires_at == new.expires_at or inf in (old.expires_at, new.expires_at):
            return old.expires_at == new.expires_at
        left = old.expires_at - self._clock.epoch()
        return 0 <= new.expires_at - old.expires_at < max(60.0, left / 10)

    def _parse(self, text: str, url: str) -> Cookie | None:
        """Parse a Set-Cookie value; None where the standard says to ignore it."""
        parsed = parse(text, now=self._clock.epoch())
        if parsed is None:
            return None
        own, is_safe = host(host_port(url)), url.startswith("https:")
        if (parsed.domain and not _may_set(own, parsed.domain)) or (parsed.secure and not is_safe):
            return None
        # A nameless cookie is sent as its value alone, and could imitate another.
        prefix = parsed.name.lower() or parsed.value.lower()
        if prefix.startswith(("__secure-", "__host-")) and not (parsed.secure and parsed.name):
            return None
        if prefix.startswith("__host-") and (parsed.domain or parsed.path != "/"):
            return None
        path = parsed.path or path_query(url).partition("?")[0].rpartition("/")[0] or "/"
        self._made += 1
        return Cookie(
            name=parsed.name,
            value=parsed.value,
            domain=own if self._per_host else parsed.domain or own,
            path=path,
            host_only=not parsed.domain or self._per_host or is_address(own),
            secure=parsed.secure,
            expires_at=parsed.expires_at,
            number=self._made,
        )


def _cookie(row: Any, changed_at: float) -> Cookie:
    """Decode a row of `dump`; rows of earlier versions share one time."""
    name, value, domain, path, flags, until, *at = row
    expires_at = inf if until is None else float(until) or -inf
    return Cookie(
        *(str(name), str(value), str(domain), str(path), bool(flags & 1), bool(flags & 2)),
        expires_at=expires_at,
        number=0,
        changed_at=float(at[0]) if at else changed_at,
    )


def _hides_secure(cookie: Cookie, kept: _DomainCookies) -> bool:
    """Whether a cookie set over plain HTTP would overwrite one with the Secure attribute."""
    return any(
        old.secure
        and old.expires_at > -inf
        and old.name == cookie.name
        and (_domain_matches(cookie.domain, old.domain) or _domain_matches(old.domain, cookie.domain))
        and _path_matches(cookie.path, old.path)
        for old in kept.cookies.values()
    )


def _may_set(name: str, domain: str) -> bool:
    """Whether a host may set cookies for a domain: its own, up to the registered one, but no public suffix."""
    if name == domain:
        return True
    return _domain_matches(name, domain) and _domain_matches(domain, registered_domain(name))


def _domain_matches(name: str, domain: str) -> bool:
    return name == domain or (name.endswith("." + domain) and not is_address(name))


def _path_matches(path: str, prefix: str) -> bool:
    return path.startswith(prefix) and (len(path) == len(prefix) or prefix.endswith("/") or path[len(prefix)] == "/")
