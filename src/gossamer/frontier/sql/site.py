"""A site as its row holds it, with its lanes and its clocks: what a transaction changes while it has the row locked."""

from __future__ import annotations

from typing import Any

import msgspec

from gossamer.settings import Settings

NEVER = 1 << 62
MICRO = 1_000_000


class SqlLane(msgspec.Struct, array_like=True, gc=False):
    """One lane: who holds it until when, when it is allowed next, and the token that it was last settled with."""

    token: int = 0
    until_at: int = 0
    next_at: int = 0
    settled: int = 0
    restart: int = 0
    """The last run of the store in which the lane was leased, or has rested."""


class _Kept(msgspec.Struct, array_like=True, gc=False):
    allowed: int = 1
    leased: int = 0
    kept: int = 0
    budget: int | None = None
    own: float | None = None
    asked: float = 0.0
    rules: bool = False
    lanes: list[SqlLane] = []
    half: int = 0
    """The half of the quota's window in which requests were handed out last; how many, and in the one before it."""
    handed: int = 0
    before: int = 0
    turn: int = 0
    """How many requests had been handed out to all, when some were to this site."""


_encode_site = msgspec.msgpack.Encoder().encode
_decode_site = msgspec.msgpack.Decoder(_Kept).decode


class SqlSite:
    """A site. Times are whole microseconds."""

    __slots__ = ("closed", "hold_at", "id", "kept", "name", "ready_at", "region", "settings")

    def __init__(self, row: Any, settings: Settings) -> None:
        self.id, self.name, self.region, self.ready_at, self.hold_at, self.closed, lanes = row
        self.kept = _decode_site(lanes)
        self.settings = settings

    @property
    def lanes(self) -> list[SqlLane]:
        """The lanes that are open; at least one."""
        return self.kept.lanes

    @property
    def delay(self) -> float:
        """Seconds between two requests of one lane."""
        given = self.settings.sites.get(self.name)
        own = self.kept.own if given is None or given.delay is None else given.delay
        return max(self.settings.delay if own is None else own, self.kept.asked) * len(self.kept.lanes)

    @property
    def rest(self) -> int:
        """The same in microseconds."""
        return round(self.delay * MICRO)

    @property
    def room(self) -> int:
        """How many more requests the budget allows."""
        return NEVER if self.kept.budget is None else self.kept.budget - self.kept.kept - self.kept.leased

    def _handed(self, half: int) -> tuple[int, int]:
        age = half - self.kept.half
        if age <= 0:
            return self.kept.handed, self.kept.before
        return 0, self.kept.handed if age == 1 else 0

    def share_left(self, half: int) -> int:
        """How many more requests are within its share of the fetches."""
        most = max(1, int(self.settings.site_share * self.settings.share_window))
        return max(0, most - sum(self._handed(half)))

    def count_share(self, half: int, requests: int) -> None:
        """So many were handed out in this half of the window."""
        handed, before = self._handed(half)
        self.kept.half, self.kept.handed, self.kept.before = max(half, self.kept.half), handed + requests, before

    @property
    def is_spent(self) -> bool:
        """Whether its budget is used up for good."""
        return not self.closed and self.room <= 0 and self.kept.leased == 0

    def ready(self, lane: SqlLane) -> int:
        """When a lane could be leased if something were queued; one whose holder is silent, when it has rested."""
        if lane.token:
            return lane.until_at + self.rest
        return max(lane.next_at, int(self.hold_at))

    @property
    def wake_at(self) -> int:
        """When the first lane could be leased if something were queued."""
        return min(self.ready(lane) for lane in self.kept.lanes)

    def open_lanes(self, rests_from: int) -> None:
        """Open what is allowed, once its robots.txt is known.

        New lanes start one delay apart, from where the first one's rest is counted from: no two in the same moment."""
        if not (self.kept.rules or not self.settings.robots):
            return
        step = self.rest // len(self.kept.lanes)
        for number in range(len(self.kept.lanes), self.kept.allowed):
            self.kept.lanes.append(SqlLane(next_at=rests_from + step * number))

    def free(self, lane: SqlLane, *, rests_from: int) -> None:
        """Take a lane back from its holder."""
        lane.token = 0
        self.open_lanes(rests_from)
        lane.next_at = max(lane.next_at, rests_from + self.rest)

    def row(self) -> tuple[Any, ...]:
        """id, ready_at, wake_at, hold_at, region, closed, lanes."""
        return (self.id, self.ready_at, self.wake_at, self.hold_at, self.region, self.closed, _encode_site(self.kept))


def new_site(site: int, name: str, settings: Settings, *, region: str, ready_at: int, now: int) -> tuple[Any, ...]:
    """The first row of a site: id, name, region, ready_at, wake_at, lanes."""
    own = settings.for_site(name)
    given = settings.sites.get(name)
    kept = _Kept(
        allowed=own.lanes or 1,
        budget=own.budget,
        own=None if given is None else given.delay,
        lanes=[SqlLane(next_at=now)],
    )
    found = SqlSite((site, name, region, now, 0, "", _encode_site(kept)), settings)
    found.open_lanes(now)
    return (site, name, region, ready_at, found.wake_at, _encode_site(found.kept))
