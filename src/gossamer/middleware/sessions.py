"""Sessions: cookies, a proxy, and a set of headers that are used together and retired together."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from gossamer.clock import Clock
from gossamer.errors import ProxyFailed
from gossamer.middleware import Fetch, Middleware
from gossamer.middleware.cookies import CookieJar
from gossamer.model import Request, Response
from gossamer.settings import Settings, expand
from gossamer.urls import host_port

MAX_SITES = 10_000
BLOCKED = frozenset((401, 403, 429))
"""Status codes after which a session is retired."""
PROXY_TRIES = 3


class Session:
    """One visitor, from a site's point of view. Its name selects its proxy."""

    __slots__ = ("headers", "jar", "name", "retired", "uses")

    def __init__(self, name: str, headers: dict[str, str], clock: Clock) -> None:
        self.name, self.headers = name, headers
        self.jar = CookieJar(clock)
        self.uses = 0
        self.retired = False


class SessionPool:
    """The sessions of each site, a fixed number used in rotation, for the most recently used sites."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._size, self._uses = max(1, settings.sessions), settings.session_uses
        self._sets = [
            {name.lower(): expand(value, source=f"header_sets.{name}") for name, value in headers.items()}
            for headers in settings.header_sets
        ] or [{}]
        self._sites: OrderedDict[str, list[Session | None]] = OrderedDict()
        self._turn = self._made = 0

    def take(self, site: str) -> Session:
        """Return the next session in rotation, replaced by a new one if it is retired or used up."""
        slots = self._sites.get(site)
        if slots is None:
            slots = self._sites[site] = [None] * self._size
            while len(self._sites) > MAX_SITES:
                self._sites.popitem(last=False)
        self._sites.move_to_end(site)
        self._turn += 1
        number = self._turn % self._size
        session = slots[number]
        if session is None or session.retired or (self._uses is not None and session.uses >= self._uses):
            self._made += 1
            headers = self._sets[self._made % len(self._sets)]
            session = slots[number] = Session(f"{site} {self._made}", headers, self._clock)
        session.uses += 1
        return session


def sessions(settings: Settings, clock: Clock) -> Middleware:
    """Send each request in a session of its site. A session is retired when a site blocks it or its proxy fails."""
    pool = SessionPool(settings, clock)

    def wrap(fetch: Fetch) -> Fetch:
        async def fetch_in_session(request: Request) -> Response:
            for turn in range(PROXY_TRIES):
                session = pool.take(request.site or host_port(request.url))
                try:
                    response = await fetch(_sent(request, session))
                except ProxyFailed:
                    session.retired = True
                    if turn + 1 == PROXY_TRIES:
                        raise
                    continue
                if not response.from_cache and not response.tls_fault:
                    session.jar.store(response)
                if response.status in BLOCKED:
                    session.retired = True
                return response
            raise AssertionError("the last turn returns or raises")

        return fetch_in_session

    return wrap


def _sent(request: Request, session: Session) -> Request:
    own = {name.lower(): value for name, value in (request.headers or {}).items()}
    headers = {**session.headers, **own}
    if "cookie" not in headers and (cookie := session.jar.header(request.url)):
        headers["cookie"] = cookie
    return msgspec.structs.replace(request, headers=headers or None, via=session.name)
