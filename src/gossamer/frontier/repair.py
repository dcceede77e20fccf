"""Queue stored pages again whose records are lost: what each kind of frontier can do, and how it is asked.

A frontier counts a page as stored once its outcome is committed; the record itself is in the workers' segments. Where a
segment is lost, the page has to be fetched again, although its key is known. SQL and folders keep the URL of each page
that is done, so they find those without a record by themselves (`FindsLost`). Redis keeps the key alone, so somebody
has to name the URLs (`TakesUrls`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from gossamer.frontier.base import FleetFrontier
from gossamer.frontier.sharded import Sharded
from gossamer.model import Request

HasRecord = Callable[[int], bool]
"""Whether the page with this key has a record."""


class Requeued(NamedTuple):
    """How many pages without a record were queued again, and how many could not be."""

    queued: int = 0
    closed: int = 0
    """Their site is closed."""
    unnamed: int = 0
    """Their requests are not kept whole: they were no plain GET."""

    def plus(self, other: Requeued) -> Requeued:
        """The sums of both."""
        return Requeued(*(own + more for own, more in zip(self, other, strict=True)))


@runtime_checkable
class FindsLost(Protocol):
    """A shard that keeps the URLs of pages that are done. Nobody works on the job meanwhile."""

    async def requeue_lost(self, has_record: HasRecord) -> Requeued:
        """Queue every page again that counts as stored and has no record. It counts as stored no longer."""
        ...

    async def write_off(self, pages: int) -> None:
        """Count so many pages less as stored."""
        ...


@runtime_checkable
class TakesUrls(Protocol):
    """A shard that keeps the keys of pages that are done, and no URLs. Nobody works on the job meanwhile."""

    async def settled(self, requests: Sequence[Request]) -> list[Request]:
        """Those of these whose keys are known, and that are neither queued nor leased."""
        ...

    async def requeue(self, requests: Sequence[Request], *, stored: int) -> int:
        """Queue these again, though they are known; the first `stored` of them count as stored no longer."""
        ...

    async def waiting(self, has_record: HasRecord) -> int:
        """How many requests with such keys are queued or leased: their records are no pages that count as stored."""
        ...

    async def forget_all_but(self, keep: HasRecord) -> int:
        """Forget the keys of all pages that are settled, except for these: they are new when they are found again."""
        ...

    async def write_off(self, pages: int) -> None:
        """Count so many pages less as stored."""
        ...


def shards_of(fleet: FleetFrontier) -> list[Any]:
    """The shards of a job, in the order of their numbers; a frontier of one shard is that shard."""
    return list(fleet.in_order) if isinstance(fleet, Sharded) else [fleet]
