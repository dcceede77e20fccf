"""The breaker of a worker: when nothing can be reached any more, that is no fault of the sites."""

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

_SITES = 8
"""So many sites in a row that were there before and cannot be reached, and none that can, are more than chance."""
_REMEMBERED = 20_000
_WINDOW_SECONDS = 120.0
PROBE_SECONDS = 5.0
LONGEST_SECONDS = 86_400.0
"""After this time the sites are to blame all the same, so that crawls end."""


class Breaker:
    """Trips when many sites in a row that have answered before cannot be reached.

    Until one answers, one request at a time tries the network, the others wait, and nobody is charged."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._met: OrderedDict[str, None] = OrderedDict()
        """The last sites that have answered."""
        self._dark: dict[str, float] = {}
        self._next_probe_at = 0.0
        self._opened_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the network is taken to be gone."""
        return self._opened_at is not None and self._clock.monotonic() < self._opened_at + LONGEST_SECONDS

    def answered(self, site: str) -> None:
        """A site was reached: so is the network."""
        self._met[site] = None
        if len(self._met) > _REMEMBERED:
            self._met.popitem(last=False)
        self._opened_at = None
        if self._dark:
            self._dark.clear()

    def takes(self, site: str, error: FetchError, *, was_there: bool) -> bool:
        """Whether a fault is the network's: the request is then to be tried again, once `wait` is over."""
        if isinstance(error, BadEncoding | ProtocolBroken | TlsRefused | TooLarge):
            # Somebody answered, however badly.
            self.answered(site)
        if not isinstance(error, ConnectFailed | NameUnresolved | TimedOut):
            return False
        now = self._clock.monotonic()
        if self._opened_at is None and (was_there or site in self._met):
            # Sites that went dark long ago, one by one, say nothing about now.
            self._dark = {name: at for name, at in self._dark.items() if at > now - _WINDOW_SECONDS} | {site: now}
            if len(self._dark) >= _SITES:
                self._opened_at, self._next_probe_at = now, now + PROBE_SECONDS
        return self.is_open

    def wait(self) -> float:
        """Seconds before the caller may try, 0 if it may now: it is then the one that does."""
        now = self._clock.monotonic()
        if not self.is_open:
            return 0.0
        if now < self._next_probe_at:
            return self._next_probe_at - now
        self._next_probe_at = now + PROBE_SECONDS
        return 0.0
