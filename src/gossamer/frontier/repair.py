"""Repair interface: queue stored pages again whose records are lost.

A frontier counts a page as stored once its outcome is committed; the record itself is in the workers' segments. If a
segment is lost, the page has to be fetched again, although its key is known. Databases and folders store the URL of
each finished page, so they find the pages without a record themselves (`FindsLost`). Redis stores the key alone, so the
caller has to supply the URLs (`TakesUrls`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from gossamer.frontier.base import FleetFrontier
from gossamer.frontier.sharded import Sharded
from gossamer.model import Request

HasRecord = Callable[[int], bool]
"""Returns whether the page with this key has a record."""


class Requeued(NamedTuple):
    """How many pages without a record were queued again, and how many could not be."""

    queued: int = 0
    closed: int = 0
    """Pages whose site is closed."""
    unnamed: int = 0
    """Pages whose requests are not stored completely, because they were no plain GET."""

    def plus(self, other: Requeued) -> Requeued:
        """Return the sums of both."""
        return Requeued(*(own + more for own, more in zip(self, other, strict=True)))


@runtime_checkable
class FindsLost(Protocol):
    """A shard that stores the URLs of finished pages. No worker may run meanwhile."""

    async def requeue_lost(self, has_record: HasRecord) -> Requeued:
        """Queue every page that counts as stored and has no record; it no longer counts as stored."""
        ...

    async def write_off(self, pages: int) -> None:
        """Lower the count of stored pages."""
        ...


@runtime_checkable
class TakesUrls(Protocol):
    """A shard that stores the keys of finished pages, and no URLs. No worker may run meanwhile."""

    async def settled(self, requests: Sequence[Request]) -> list[Request]:
        """Return those of these requests whose keys are known, and that are neither queued nor leased."""
        ...

    async def requeue(self, requests: Sequence[Request], *, stored: int) -> int:
        """Queue these known requests again; the first `stored` of them no longer count as stored."""
        ...

    async def waiting(self, has_record: HasRecord) -> int:
        """Return the number of queued or leased requests that have a record.

        Those records do not count as stored pages."""
        ...

    async def forget_all_but(self, keep: HasRecord) -> int:
        """Remove the keys of all finished pages except these: such a page is new when it is found again."""
        ...

    async def write_off(self, pages: int) -> None:
        """Lower the count of stored pages."""
        ...


def shards_of(fleet: FleetFrontier) -> list[Any]:
    """Return the shards of a job by number; a frontier of one shard is that shard."""
    return list(fleet.in_order) if isinstance(fleet, Sharded) else [fleet]
