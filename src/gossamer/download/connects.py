"""How long connecting to an address takes, by what the system has measured of the connections that are open."""

from __future__ import annotations

import os
import socket
from math import inf
from stat import S_ISSOCK
from struct import unpack_from

from gossamer.clock import Clock

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
