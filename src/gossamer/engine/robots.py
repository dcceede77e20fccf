"""Robots check: fetches robots.txt once per origin, under the site's delay, and decides which URLs may be fetched."""

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
"""What a worker keeps of compiled rules: a hostile robots.txt may have tens of thousands."""
_MOST_ORIGINS, _MOST_RULES = 1000, 50_000
"""What it keeps for the loads of its browser."""
PacedFetch = Callable[[Request], Awaitable[Response]]


class Rulebook:
    """Rules that were read and compiled before; a robots.txt of half a megabyte takes a tenth of a second each time.

    Those that were used last are kept."""

    def __init__(self) -> None:
        self._room = _MOST_BYTES
        self._kept: OrderedDict[bytes, tuple[Robots, Matcher]] = OrderedDict()

    def read(self, packed: bytes) -> tuple[Robots, Matcher]:
        """The rules that `Robots.pack` gave, and what answers for them."""
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


class Gate:
    """Knows the rules of each origin of a site for as long as a lease lasts."""

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
        """How many rules it holds."""
        return sum(robots.rules.count for robots in self._known.values())

    @property
    def was_answered(self) -> bool:
        """Whether the site has ever said what its rules are: a note that they could not be had is none."""
        return any(robots.fetched_at for robots in self._known.values())

    @property
    def crawl_delay(self) -> float:
        """The longest delay that a robots.txt of the site asks for."""
        return max((robots.rules.crawl_delay or 0.0 for robots in self._known.values()), default=0.0)

    def allows(self, url: str) -> bool:
        """Whether the rules let this URL through; `refresh` its origin first."""
        origin = urls.origin(url)
        matcher = self._matchers.get(origin)
        if matcher is None:
            matcher = self._matchers[origin] = Matcher(self._known[origin].rules)
        return matcher.allowed(urls.path_query(url))

    def is_due(self, url: str) -> bool:
        """Whether the robots.txt that speaks for this URL must be asked for first."""
        return rfc9309.is_due(self._known.get(urls.origin(url)), self._clock.epoch())

    def state(self, url: str) -> Robots:
        """What is known of the origin of this URL."""
        return self._known[urls.origin(url)]

    async def refresh(self, url: str, fetch: PacedFetch) -> Robots:
        """Ask for the robots.txt of this URL's origin; at most five redirects are followed, as RFC 9309 says.

        One that could not be had is not asked for again before its Retry-After is over. Raises what the page itself
        would meet for good: a name that does not exist, a forbidden address, bad TLS."""
        origin = urls.origin(url)
        status, body, wish = await self._ask(f"{origin}/robots.txt", fetch)
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
            asked = policy.retry_after(wish, now=now) or 0.0
            robots = msgspec.structs.replace(robots, good_until=now + max(wait, asked))
        self._known[origin] = robots
        self._matchers.pop(origin, None)
        return robots

    async def _ask(self, url: str, fetch: PacedFetch) -> tuple[int | None, bytes, str]:
        """The status of the answer, its body, and its Retry-After."""
        for hop in range(rfc9309.MAX_REDIRECTS + 1):
            try:
                # The site of each hop, not of the first: a site's own headers stay with it.
                response = await fetch(Request(url, site=urls.host_port(url), label=ROBOTS))
            except (Forbidden, NameUnknown, TlsRefused):
                if hop == 0:
                    raise
                return None, b"", ""
            except ProxyFailed:
                # It says nothing about the site, nor about its rules.
                raise
            except FetchError:
                return None, b"", ""
            if response.status not in REDIRECTS:
                return response.status, response.body, response.header("retry-after")
            location = response.header("location")
            target = urls.join(url, location) if location else None
            if target is None:
                # It leads nowhere: there is none.
                return 404, b"", ""
            url = target
        return 404, b"", ""


class LoadGate:
    """What pages in a browser may load: the rules of each origin, asked for once and shared by the pages of a worker.

    Rules that a lease brought, or that a visit has asked for, are learned and not asked for again."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._gates: OrderedDict[str, Gate] = OrderedDict()
        self._asking: dict[str, asyncio.Lock] = {}

    def learn(self, known: Mapping[str, bytes]) -> None:
        """Take over packed rules, by origin."""
        for origin, packed in known.items():
            self._keep(origin, Gate({origin: packed}, self._settings, self._clock))

    async def allows(self, url: str, fetch: PacedFetch) -> bool:
        """Whether a page may load this; where the rules cannot be had, it may not."""
        origin = urls.origin(url)
        gate = self._gates.get(origin)
        if gate is None or gate.is_due(url):
            async with self._asking.setdefault(origin, asyncio.Lock()):
                gate = self._gates.get(origin) or Gate({}, self._settings, self._clock)
                try:
                    if gate.is_due(url):
                        await gate.refresh(url, fetch)
                except FetchError:
                    return False
                finally:
                    self._asking.pop(origin, None)
                self._keep(origin, gate)
        return gate.allows(url)

    def _keep(self, origin: str, gate: Gate) -> None:
        self._gates[origin] = gate
        self._gates.move_to_end(origin)
        held = sum(kept.weight for kept in self._gates.values())
        while len(self._gates) > 1 and (len(self._gates) > _MOST_ORIGINS or held > _MOST_RULES):
            held -= self._gates.popitem(last=False)[1].weight
