"""Cookies by RFC 6265, a bounded jar for each registered domain."""

from __future__ import annotations

import re
from collections import OrderedDict
from email.utils import mktime_tz, parsedate_tz
from math import inf
from operator import attrgetter

import msgspec

from gossamer.clock import Clock
from gossamer.middleware.base import Fetch, Middleware
from gossamer.model import Request, Response
from gossamer.urls import host, host_port, is_address, path_query, registered_domain

MAX_DOMAINS = 10_000
MAX_COOKIES = 50
MAX_BYTES = 4096
MAX_SET_COOKIES = 100
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def cookies(clock: Clock) -> Middleware:
    """Keeps what servers set and sends it back where it belongs; a Cookie header of the request itself stays."""
    jar = CookieJar(clock)

    def wrap(fetch: Fetch) -> Fetch:
        async def fetch_with_cookies(request: Request) -> Response:
            own = request.headers or {}
            sent = request
            if not any(name.lower() == "cookie" for name in own):
                value = jar.header(request.url)
                if value:
                    sent = msgspec.structs.replace(request, headers={**own, "cookie": value})
            response = await fetch(sent)
            if not response.from_cache:
                jar.store(response)
            return response

        return fetch_with_cookies

    return wrap


class Cookie(msgspec.Struct, frozen=True):
    """One cookie and where it may go."""

    name: str
    value: str
    domain: str
    path: str
    host_only: bool
    secure: bool
    expires_at: float
    number: int
    """Its place in the order of creation, which a new value does not change."""

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.name, self.domain, self.path)


class CookieJar:
    """The cookies of one worker, of the domains it saw last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._domains: OrderedDict[str, dict[tuple[str, str, str], Cookie]] = OrderedDict()
        self._made = 0

    def header(self, url: str) -> str:
        """The Cookie header for a normal URL; empty if there are none to send."""
        name = host(host_port(url))
        kept = self._domains.get(registered_domain(name))
        if not kept:
            return ""
        now, path, secure = self._clock.epoch(), path_query(url).partition("?")[0], url.startswith("https:")
        for key in [key for key, cookie in kept.items() if cookie.expires_at <= now]:
            del kept[key]
        found = [
            cookie
            for cookie in kept.values()
            if (name == cookie.domain if cookie.host_only else _domain_matches(name, cookie.domain))
            and _path_matches(path, cookie.path)
            and (secure or not cookie.secure)
        ]
        found.sort(key=lambda cookie: (-len(cookie.path), cookie.number))
        return "; ".join(f"{cookie.name}={cookie.value}" if cookie.name else cookie.value for cookie in found)

    def store(self, response: Response) -> None:
        """Take in the Set-Cookie headers of a response."""
        values = [value for name, value in response.headers if name == "set-cookie"]
        if not values:
            return
        domain = registered_domain(host(host_port(response.url)))
        kept = self._domains.setdefault(domain, {})
        self._domains.move_to_end(domain)
        for value in values[:MAX_SET_COOKIES]:
            cookie = self._parse(value, response.url)
            if cookie is None:
                continue
            old = kept.pop(cookie.key, None)
            if old is not None:
                cookie = msgspec.structs.replace(cookie, number=old.number)
            if cookie.expires_at > self._clock.epoch():
                kept[cookie.key] = cookie
                if len(kept) > MAX_COOKIES:
                    del kept[min(kept.values(), key=attrgetter("number")).key]
        while len(self._domains) > MAX_DOMAINS:
            self._domains.popitem(last=False)

    def _parse(self, text: str, url: str) -> Cookie | None:
        """One Set-Cookie value, in time linear in its length; None where the standard says to ignore it."""
        if len(text) > 2 * MAX_BYTES or _CONTROL.search(text):
            return None
        pair, *rest = text.split(";")
        name, mark, value = pair.partition("=")
        if not mark:
            name, value = "", pair
        name, value = name.strip(" \t"), value.strip(" \t")
        if not (name or value) or len(name) + len(value) > MAX_BYTES:
            return None
        attributes = (part.partition("=") for part in rest)
        said = {key.strip(" \t").lower(): content.strip(" \t") for key, _, content in attributes}
        own = host(host_port(url))
        domain = said.get("domain", "").removeprefix(".").lower()
        if domain and not _may_set(own, domain):
            return None
        path, secure = said.get("path", ""), "secure" in said
        if not path.startswith("/"):
            path = path_query(url).partition("?")[0].rpartition("/")[0] or "/"
        prefix = name.lower()
        if secure and not url.startswith("https:"):
            return None
        if prefix.startswith(("__secure-", "__host-")) and not secure:
            return None
        if prefix.startswith("__host-") and (domain or said.get("path") != "/"):
            return None
        self._made += 1
        return Cookie(
            name=name,
            value=value,
            domain=domain or own,
            path=path,
            host_only=not domain or is_address(own),
            secure=secure,
            expires_at=self._expires_at(said),
            number=self._made,
        )

    def _expires_at(self, said: dict[str, str]) -> float:
        age = said.get("max-age", "")
        if age.lstrip("-").isdecimal() and len(age) < 20:
            return self._clock.epoch() + int(age) if int(age) > 0 else -inf
        date = said.get("expires", "")
        parsed = parsedate_tz(date) if 0 < len(date) < 64 else None
        if parsed is None:
            return inf
        try:
            return float(mktime_tz(parsed))
        except (ValueError, OverflowError):
            return inf


def _may_set(name: str, domain: str) -> bool:
    """Whether a host may set cookies for a domain: its own, up to the registered one but no public suffix."""
    if name == domain:
        return True
    return _domain_matches(name, domain) and _domain_matches(domain, registered_domain(name))


def _domain_matches(name: str, domain: str) -> bool:
    return name == domain or (name.endswith("." + domain) and not is_address(name))


def _path_matches(path: str, prefix: str) -> bool:
    return path.startswith(prefix) and (len(path) == len(prefix) or prefix.endswith("/") or path[len(prefix)] == "/")
