"""Politeness of a worker: the delay of each lane, and the circuit breaker for a worker without network."""

from __future__ import annotations

from collections import OrderedDict

from gossamer.clock import Clock
from gossamer.errors import (
    BadEncoding,
    ConnectFailed,
    FetchError,
    NameUnresolved,
    ProtocolBroken,
    TimedOut,
    TlsRefused,
    TooLarge,
)
from gossamer.frontier import policy
from gossamer.model import Lease, Response
from gossamer.settings import Settings


class LaneDelay:
    """The delay of a lane, from the headers of the last answer, or from its failure.

    With n lanes, each waits n delays."""

    def __init__(self, lease: Lease, settings: Settings, clock: Clock) -> None:
        self.rest_seconds = lease.delay
        self._lanes = lease.lanes
        self._least = settings.for_site(lease.site).delay or 0.0
        self._is_adaptive = settings.adaptive_delay
        self._clock = clock
        self._next_at = 0.0
        self._answered_at: float | None = None

    def wait(self) -> float:
        """Return the seconds until the next request may be sent; it may be sent if the value is not positive."""
        return self._next_at - self._clock.monotonic()

    def rested(self, now: float) -> float | None:
        """Return the seconds since the last answer; None if nothing was sent before."""
        return None if self._answered_at is None else now - self._answered_at

    def answered(self, at: float) -> None:
        """Record that the headers of an answer, or a failure, arrived at this time."""
        self._answered_at, self._next_at = at, at + self.rest_seconds

    def follow(self, earlier: LaneDelay) -> None:
        """Count the delay from the last answer of an earlier visit of the same lane."""
        if earlier._answered_at is not None:
            rest = max(self.rest_seconds, earlier.rest_seconds)
            self._answered_at = earlier._answered_at
            self._next_at = max(self._next_at, earlier._answered_at + rest)

    def apply_crawl_delay(self, crawl_delay: float) -> float | None:
        """Apply the Crawl-delay of the site's robots.txt; return the delay to store in the frontier if it changed, else
        None.

        A delay that is shorter than before, or gone, takes effect with the next lease."""
        if crawl_delay * self._lanes > self.rest_seconds:
            # It applies from the robots.txt request itself on.
            self._slow_down(crawl_delay)
            return crawl_delay
        least = max(self._least, crawl_delay)
        # An adaptive delay falls without this. Some stores round delays.
        is_shorter = not self._is_adaptive and least * self._lanes < 0.999 * self.rest_seconds
        return crawl_delay if is_shorter else None

    def adapt(self, response: Response, *, crawl_delay: float) -> float | None:
        """Adapt the delay to the site's latency and refusals; return the new delay if it changed, else None."""
        before = self.rest_seconds / self._lanes
        delay = policy.adaptive_delay(
            before, latency=response.latency, status=response.status, floor=max(self._least, crawl_delay)
        )
        if abs(delay - before) * self._lanes <= 0.1 * max(self.rest_seconds, 0.05):
            return None
        self._slow_down(delay)
        return delay

    def _slow_down(self, delay: float) -> None:
        """Apply a longer delay from the last answer on; time already waited counts."""
        self._next_at += max(0.0, delay * self._lanes - self.rest_seconds)
        self.rest_seconds = delay * self._lanes


_TRIP_SITES = 8
"""Number of known sites that must become unreachable in a row, with no other answer, to open the circuit."""
_REMEMBERED = 20_000
_WINDOW_SECONDS = 120.0
PROBE_SECONDS = 5.0
LONGEST_SECONDS = 86_400.0
"""Seconds after which unreachable sites are charged all the same, so that crawls end."""


class Breaker:
    """A circuit breaker that opens when many known sites in a row cannot be reached.

    Until a site answers, one request at a time probes the network, the others wait, and no site is charged."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reached: OrderedDict[str, None] = OrderedDict()
        """The last sites that have answered."""
        self._dark: dict[str, float] = {}
        self._next_probe_at = 0.0
        self._opened_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Return whether the circuit is open: the network counts as unreachable."""
        return self._opened_at is not None and self._clock.monotonic() < self._opened_at + LONGEST_SECONDS

    def answered(self, site: str) -> None:
        """Record that a site was reached, and so was the network."""
        self._reached[site] = None
        if len(self._reached) > _REMEMBERED:
            self._reached.popitem(last=False)
        self._opened_at = None
        if self._dark:
            self._dark.clear()

    def is_network_error(self, site: str, error: FetchError, *, was_there: bool) -> bool:
        """Return whether an error is the network's: the request is then retried once `wait` is over."""
        if isinstance(error, BadEncoding | ProtocolBroken | TlsRefused | TooLarge):
            # A server answered, even if with an error.
            self.answered(site)
        if not isinstance(error, ConnectFailed | NameUnresolved | TimedOut):
            return False
        now = self._clock.monotonic()
        if self._opened_at is None and (was_there or site in self._reached):
            # Sites that became unreachable long ago, one by one, do not count.
            self._dark = {name: at for name, at in self._dark.items() if at > now - _WINDOW_SECONDS} | {site: now}
            if len(self._dark) >= _TRIP_SITES:
                self._opened_at, self._next_probe_at = now, now + PROBE_SECONDS
        return self.is_open

    def wait(self) -> float:
        """Return the seconds before the caller may try; 0 if it may probe the network now."""
        now = self._clock.monotonic()
        if not self.is_open:
            return 0.0
        if now < self._next_probe_at:
            return self._next_probe_at - now
        self._next_probe_at = now + PROBE_SECONDS
        return 0.0
