"""Robots check: fetches robots.txt once per origin, under the site's delay, and decides which URLs may be fetched.

The rules are part of the site state: one worker fetches them and commits them as a note, and every later lease of the
site carries them, packed. So they are fetched once for the whole fleet, and survive restarts. `SiteRobots` unpacks them
for one lease; a `Rulebook` caches compiled rules for the worker, since a large file takes a tenth of a second to
compile.

A request for robots.txt is a request to the site like any other: it waits for the delay and needs the lease, because
the visit's own `fetch` sends it. The status decides as in RFC 9309 (`robots_txt.settle`): a 4xx allows everything; a
429, a 5xx, or no answer forbids everything until a later try, after a growing pause, unless there are rules of the last
30 days. Errors that are final for the page as well, such as a name that does not exist, are raised instead, so that the
page gets that error and the site is not put on hold. A failing proxy says nothing about the site, and is raised, too.

`SubresourceRobots` does the same for subresources that a browser loads, from any origin and outside of leases."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from gossamer import urls
from gossamer.clock import Clock
from gossamer.engine import robots_txt as rfc9309
from gossamer.engine.robots_txt import Matcher, Robots
from gossamer.errors import FetchError, Forbidden, NameUnknown, ProxyFailed, TlsRefused
from gossamer.frontier import policy
from gossamer.model import REDIRECTS, ROBOTS, Request, Response
from gossamer.settings import Settings

_MOST_FILES, _MOST_BYTES = 512, 12 * 1024 * 1024
"""Max compiled rules that a worker caches: a hostile robots.txt may have tens of thousands."""
_MOST_ORIGINS, _MOST_RULES = 1000, 50_000
"""Max origins and rules that it caches for the subresources of its browser."""
PacedFetch = Callable[[Request], Awaitable[Response]]


class Rulebook:
    """An LRU cache of compiled rules: a robots.txt of half a megabyte takes a tenth of a second to compile."""

    def __init__(self) -> None:
        self._room = _MOST_BYTES
        self._kept: OrderedDict[bytes, tuple[Robots, Matcher]] = OrderedDict()

    def read(self, packed: bytes) -> tuple[Robots, Matcher]:
        """Return the rules that `Robots.pack` packed, and a matcher for them."""
        found = self._kept.get(packed)
        if found is None:
            robots = rfc9309.unpack(packed)
            found = self._kept[packed] = robots, Matcher(robots.rules)
            self._room -= found[1].weight
            while len(self._kept) > 1 and (len(self._kept) > _MOST_FILES or self._room < 0):
                self._room += self._kept.popitem(last=False)[1][1].weight
        else:
            self._kept.move_to_end(packed)
        return found


class SiteRobots:
    """The rules of each origin of a site, for one lease."""

    def __init__(
        self, known: dict[str, bytes], settings: Settings, clock: Clock, *, rulebook: Rulebook | None = None
    ) -> None:
        rulebook = Rulebook() if rulebook is None else rulebook
        self._known: dict[str, Robots] = {}
        self._matchers: dict[str, Matcher] = {}
        for origin, packed in known.items():
            self._known[origin], self._matchers[origin] = rulebook.read(packed)
        self._settings = settings
        self._clock = clock

    @property
    def weight(self) -> int:
        """Return the number of rules."""
        return sum(robots.rules.count for robots in self._known.values())

    @property
    def was_answered(self) -> bool:
        """Return whether the site ever answered with rules; a failed try does not count."""
        return any(robots.fetched_at for robots in self._known.values())

    @property
    def crawl_delay(self) -> float:
        """Return the longest Crawl-delay of the site's origins; 0 if none."""
        return max((robots.rules.crawl_delay or 0.0 for robots in self._known.values()), default=0.0)

    def allows(self, url: str) -> bool:
        """Return whether the rules allow this URL. The rules of its origin must be known: see `is_due`."""
        origin = urls.origin(url)
        matcher = self._matchers.get(origin)
        if matcher is None:
            matcher = self._matchers[origin] = Matcher(self._known[origin].rules)
        return matcher.allowed(urls.path_query(url))

    def is_due(self, url: str) -> bool:
        """Return whether the robots.txt of this URL's origin has to be fetched first."""
        return rfc9309.is_due(self._known.get(urls.origin(url)), self._clock.epoch())

    def state(self, url: str) -> Robots:
        """Return the rules of this URL's origin, and when they were fetched."""
        return self._known[urls.origin(url)]

    async def refresh(self, url: str, fetch: PacedFetch) -> Robots:
        """Fetch the robots.txt of this URL's origin, following at most five redirects (RFC 9309).

        After a failure it is not fetched again until a growing pause and its Retry-After are over. Raises errors that
        are final for the page as well: a name that does not exist, a forbidden address, bad TLS."""
        origin = urls.origin(url)
        status, body, retry_after_header = await self._ask(f"{origin}/robots.txt", fetch)
        now = self._clock.epoch()
        robots = rfc9309.settle(
            self._known.get(origin),
            status,
            body,
            agent=self._settings.user_agent,
            now=now,
            ttl=self._settings.robots_seconds,
        )
        if robots.failures:
            wait = policy.backoff(robots.failures, base=self._settings.backoff_seconds, cap=rfc9309.LAST_RETRY_SECONDS)
            asked = policy.retry_after(retry_after_header, now=now) or 0.0
            robots = msgspec.structs.replace(robots, good_until=now + max(wait, asked))
        self._known[origin] = robots
        self._matchers.pop(origin, None)
        return robots

    async def _ask(self, url: str, fetch: PacedFetch) -> tuple[int | None, bytes, str]:
        """Return the status of the answer, its body, and its Retry-After."""
        for hop in range(rfc9309.MAX_REDIRECTS + 1):
            try:
                # The site of each hop, not of the first: a site's own headers are sent to that site only.
                response = await fetch(Request(url, site=urls.host_port(url), label=ROBOTS))
            except (Forbidden, NameUnknown, TlsRefused):
                if hop == 0:
                    raise
                return None, b"", ""
            except ProxyFailed:
                # Not an answer of the site, so it must not count as a failure of its robots.txt.
                raise
            except FetchError:
                return None, b"", ""
            if response.status not in REDIRECTS:
                return response.status, response.body, response.header("retry-after")
            location = response.header("location")
            target = urls.join(url, location) if location else None
            if target is None:
                # A redirect without a target: there are no rules.
                return 404, b"", ""
            url = target
        return 404, b"", ""


class SubresourceRobots:
    """The rules for what pages in a browser may load, fetched once for each origin and shared by the pages of a worker.

    Rules from a lease or a visit are reused, not fetched again."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._origins: OrderedDict[str, SiteRobots] = OrderedDict()
        self._asking: dict[str, asyncio.Lock] = {}

    def learn(self, known: Mapping[str, bytes]) -> None:
        """Add packed rules, by origin."""
        for origin, packed in known.items():
            self._keep(origin, SiteRobots({origin: packed}, self._settings, self._clock))

    async def allows(self, url: str, fetch: PacedFetch) -> bool:
        """Return whether a page may load this URL; False if the rules cannot be fetched.

        If several pages need the rules of an origin, only one fetches them."""
        origin = urls.origin(url)
        site_robots = self._origins.get(origin)
        if site_robots is None or site_robots.is_due(url):
            async with self._asking.setdefault(origin, asyncio.Lock()):
                site_robots = self._origins.get(origin) or SiteRobots({}, self._settings, self._clock)
                try:
                    if site_robots.is_due(url):
                        await site_robots.refresh(url, fetch)
                except FetchError:
                    return False
                finally:
                    self._asking.pop(origin, None)
                self._keep(origin, site_robots)
        return site_robots.allows(url)

    def _keep(self, origin: str, site_robots: SiteRobots) -> None:
        self._origins[origin] = site_robots
        self._origins.move_to_end(origin)
        held = sum(kept.weight for kept in self._origins.values())
        while len(self._origins) > 1 and (len(self._origins) > _MOST_ORIGINS or held > _MOST_RULES):
            held -= self._origins.popitem(last=False)[1].weight
