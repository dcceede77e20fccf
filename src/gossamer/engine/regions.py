"""Regions: measures the distance to a site, and moves distant sites to a nearer region."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from stat import S_ISSOCK
from struct import unpack_from
from typing import Any

from gossamer.clock import Clock
from gossamer.errors import ConnectFailed, FetchError, TimedOut
from gossamer.frontier.placement import RegionMeasure, place
from gossamer.model import Lease, SiteNote

_OWN_FILES = "/proc/self/fd"
_TCP_INFO_BYTES, _MIN_RTT = 256, 148
"""Size of the kernel's `tcp_info`, and the offset of the shortest round trip (microseconds); older kernels lack it."""
_UNKNOWN = 0xFFFFFFFF
_SHARE = 0.005
_AT_ONCE_SECONDS = 0.05
"""Max seconds in a row that measuring may take after a pause; on average it takes the share `_SHARE` of the time."""


class RoundTrips:
    """The round trips of this process's connections, by address, read from the kernel without sending anything.

    The client does not report when a connection was established. But the kernel times the handshake and everything
    after it, and keeps the shortest round trip: that is the time of a connect, however long the server takes to
    respond."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._looked_until = -inf

    def seconds(self, address: str, *, otherwise: float) -> float | None:
        """Return the seconds of a connect to the address; `otherwise` if there is no connection to measure.

        None if it is too soon to measure again, and the address was not among the last measurements."""
        if not address:
            return otherwise
        began = self._clock.monotonic()
        if began < self._looked_until:
            return self._seconds.get(address)
        self._seconds = _round_trips()
        ended = self._clock.monotonic()
        self._looked_until = max(self._looked_until, ended - _AT_ONCE_SECONDS / _SHARE) + (ended - began) / _SHARE
        return self._seconds.get(address, otherwise)


def _round_trips() -> dict[str, float]:
    """Return the shortest round trip to each connected address; empty where the system does not report any."""
    found: dict[str, float] = {}
    try:
        files = [int(name) for name in os.listdir(_OWN_FILES)]
    except OSError:
        return found
    for file in files:
        try:
            if not S_ISSOCK(os.fstat(file).st_mode):
                continue
            # The descriptor may be closed at any moment, and its number reused for another file: work on a copy.
            with socket.socket(fileno=os.dup(file)) as connection:
                address = connection.getpeername()[0]
                tcp_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                (micros,) = unpack_from("=I", tcp_info, _MIN_RTT) if len(tcp_info) >= _MIN_RTT + 4 else (_UNKNOWN,)
        except (OSError, AttributeError, IndexError, TypeError):
            continue
        if micros != _UNKNOWN and isinstance(address, str):
            found[address] = min(found.get(address, micros / 1e6), micros / 1e6)
    return found


_ANSWERS = 3
"""Pages after which the distance of a site is decided, if only answers measure it: the first one includes
connecting."""
_CHANGE = 0.25
_CONNECT, _HOME, _MOVES = "connect", "home", "moves"
"""Keys of a site's memo: seconds by region, the region that it settled in, and its number of moves."""


@dataclass(slots=True)
class RegionContext:
    """A worker's region, and what its heartbeat has learned about the others."""

    here: str
    """Empty if the worker has no region: it then moves no sites, but leases from regions without workers too."""
    unreachable_seconds: float
    """Seconds that an unreachable site counts for."""
    live: frozenset[str] = frozenset()
    """Regions that have live workers now."""
    connects: RoundTrips | None = None
    """Measures the time to connect; without it, the time to the headers of an answer counts."""
    also: frozenset[str] = frozenset()
    """Other regions in which sites wait and no worker is live: the engine leases from them too."""


class RegionChooser:
    """Observes the answers of one lease, and decides once which region the site belongs to."""

    def __init__(self, lease: Lease, places: RegionContext) -> None:
        self._lease = lease
        self._places = places
        self._fastest = inf
        self._address = ""
        self._pages = 0
        # Several lanes of a site are leased at the same time. Only one of them decides, so no two decisions conflict.
        self._over = lease.lane != 0
        self.leaves = False
        """Whether the rest of the batch is for another region."""

    def saw(self, latency: float, address: str) -> None:
        """Record an answer (including robots.txt): seconds to its headers, and its address."""
        self._fastest, self._address = min(self._fastest, latency), address

    def after_page(self) -> SiteNote | None:
        """Return a note for the frontier after a page, before its outcome is handed in; None if nothing changes.

        After the last outcome of its batch it would be too late, since the lease ends with it."""
        self._pages += 1
        if self._over or self._fastest == inf or self._pages < min(_ANSWERS, len(self._lease.requests)):
            return None
        seconds = self._measured()
        return None if seconds is None else self._decide(seconds)

    def after_fault(self, error: FetchError | None = None) -> SiteNote | None:
        """Return a note after a failed page or robots.txt: a site never reached from here may be reachable from
        elsewhere."""
        standing = _standing(self._lease.memo)
        unreachable = isinstance(error, ConnectFailed | TimedOut | None) and self._fastest == inf
        if self._over or not unreachable or self._places.here in standing.seconds:
            return None
        return self._decide(self._places.unreachable_seconds)

    def _measured(self) -> float | None:
        """Return the distance of the site in seconds; None if the next page has to decide."""
        if self._places.connects is None:
            return self._fastest
        return self._places.connects.seconds(self._address, otherwise=self._fastest)

    def _decide(self, seconds: float) -> SiteNote | None:
        self._over = True
        lease, here = self._lease, self._places.here
        before = _standing(lease.memo)
        region, after = place(lease.site, before, here=here, seconds=seconds, live=self._places.live)
        self.leaves = region != here
        known = before.seconds.get(here)
        same = known is not None and abs(seconds - known) <= _CHANGE * max(known, 0.01)
        if same and not self.leaves and after.home == before.home:
            return None
        memo = {
            _CONNECT: {name: round(value, 4) for name, value in after.seconds.items()},
            _HOME: after.home,
            _MOVES: after.moves,
        }
        return SiteNote(site=lease.site, lane=lease.lane, token=lease.token, memo=memo, region=region)


def _standing(memo: Mapping[str, Any]) -> RegionMeasure:
    return RegionMeasure(memo.get(_CONNECT) or {}, memo.get(_HOME) or "", memo.get(_MOVES) or 0)
