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
"""The kernel's `tcp_info`, and where in it the shortest round trip stands, in microseconds; older ones end before."""
_UNKNOWN = 0xFFFFFFFF
_SHARE = 0.005
_AT_ONCE_SECONDS = 0.05
"""Looking takes this part of the time at most, and this much in a row when it was not needed for a while."""


class Connects:
    """The round trips of this process's connections, by address; nothing is opened or sent to learn them.

    The client does not tell when a connection stood, but the kernel times its handshake, and everything after it, and
    keeps the shortest: that is what a connect to this address takes, however long the server thinks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._looked_until = -inf

    def seconds(self, address: str, *, otherwise: float) -> float | None:
        """What a connect to the address takes; `otherwise` if no connection to it is open, or none can be measured.

        None while it is too soon to look again, and the address was not there at the last look."""
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
    """The shortest round trip to each address that this process is connected to; empty where the system tells none."""
    found: dict[str, float] = {}
    try:
        files = [int(name) for name in os.listdir(_OWN_FILES)]
    except OSError:
        return found
    for file in files:
        try:
            if not S_ISSOCK(os.fstat(file).st_mode):
                continue
            # Its owner may close it at any moment, and the number may be another file's then: a copy stays what it is.
            with socket.socket(fileno=os.dup(file)) as connection:
                address = connection.getpeername()[0]
                told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                (micros,) = unpack_from("=I", told, _MIN_RTT) if len(told) >= _MIN_RTT + 4 else (_UNKNOWN,)
        except (OSError, AttributeError, IndexError, TypeError):
            continue
        if micros != _UNKNOWN and isinstance(address, str):
            found[address] = min(found.get(address, micros / 1e6), micros / 1e6)
    return found


_ANSWERS = 3
"""Pages after which it is told how far away a site is: should only its answers tell, the first pays for connecting."""
_CHANGE = 0.25
_CONNECT, _HOME, _MOVES = "connect", "home", "moves"
"""What is kept in a site's memo: seconds by region, the region that it settled in, and its moves."""


@dataclass(slots=True)
class Places:
    """A worker's region, and what its heartbeat has found out about the others."""

    here: str
    """Empty where the worker has no region: it moves no sites then, but leases from regions without workers too."""
    unreachable_seconds: float
    """What a site that cannot be reached is taken to need."""
    live: frozenset[str] = frozenset()
    """Regions that have live workers at this moment."""
    connects: Connects | None = None
    """What tells the time that connecting takes; without it, the time to the headers of an answer counts."""
    also: frozenset[str] = frozenset()
    """Other regions in which sites wait and no worker is live: the engine leases from them too."""


class Placing:
    """Watches the answers of one lease, and says once where the site should be."""

    def __init__(self, lease: Lease, places: Places) -> None:
        self._lease = lease
        self._places = places
        self._fastest = inf
        self._address = ""
        self._pages = 0
        # Lanes of one site are leased side by side; where only one of them decides, no two decisions can cross.
        self._over = lease.lane != 0
        self.leaves = False
        """Whether the rest of the batch is for another region."""

    def saw(self, latency: float, address: str) -> None:
        """Take note of an answer, of robots.txt too: after how long its headers came, and from where."""
        self._fastest, self._address = min(self._fastest, latency), address

    def after_page(self) -> SiteNote | None:
        """A page has come, and its outcome is still to be told: what the frontier should know of the site, if anything.

        Later it would be too late: with the last outcome of its batch the lease ends."""
        self._pages += 1
        if self._over or self._fastest == inf or self._pages < min(_ANSWERS, len(self._lease.requests)):
            return None
        seconds = self._measured()
        return None if seconds is None else self._decide(seconds)

    def after_fault(self, error: FetchError | None = None) -> SiteNote | None:
        """No page has come, or no robots.txt: a site that was never reached from here may be within reach of others."""
        standing = _standing(self._lease.memo)
        unreachable = isinstance(error, ConnectFailed | TimedOut | None) and self._fastest == inf
        if self._over or not unreachable or self._places.here in standing.seconds:
            return None
        return self._decide(self._places.unreachable_seconds)

    def _measured(self) -> float | None:
        """How far away the site is; None if the next page has to tell."""
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
