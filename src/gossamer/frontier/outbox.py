"""Outboxes: copies of links for other servers, kept until the target can no longer forget the links.

A page and its links are committed together. Where a link belongs to a shard on another server, no transaction spans the
two: the link is delivered first, then the page is completed. That survives any killed process, but not a server that
acknowledges a write and then loses its last seconds (an append-only file synced once a second, a replica promoted
before it had caught up): the page stays done on its own server, and the link is gone.

So the step that completes the page also puts a copy of these links, a `Parcel`, into the outbox of the page's shard.
Parcels are in boxes, one for each server and each *run* of it. A run is the life of a server between two moments at
which it may have forgotten something (a start, a promotion). Workers sweep the outboxes every few seconds:

- A box of the present run ages by the time between sweeps, at most `MOST_STEP_SECONDS` each: time in which the server
  was unreachable, paused, or not queried makes nothing durable. Parcels that were in the box when the count began are
  dropped once the server has lived for `forget_seconds` since.
- A box of an earlier run is delivered again, whole. Shards ignore known keys, so that is harmless.

A page's shard may lose data, too: then it loses the page together with its parcel, and the page is fetched again. A job
is finished only when its outboxes are empty."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gossamer.errors import Unavailable
from gossamer.model import Request

MOST_STEP_SECONDS = 2.0
"""Max seconds that one sweep adds to the age of a box."""
SEVERAL_RUNS = "several"
"""Stands for the run if several runs acknowledged parts of the same links; it never equals the present run."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Request]).decode


class Parcel(NamedTuple):
    """Links that one run of a server has acknowledged."""

    server: str
    run: str
    links: bytes
    """Opaque to the store: see `pack_links`."""


class Box(NamedTuple):
    """The parcels of an outbox that one run of a server has acknowledged, oldest first."""

    server: str
    run: str
    first: int
    """Number of parcels that were ever taken out of this box, which is the number of its oldest parcel."""
    size: int


class Aging(NamedTuple):
    """The age of the oldest parcels of a box: the sweep rule, the same in all backends."""

    marked: int = 0
    """Parcels with lower numbers were in the box when the count began; they are dropped when it ends."""
    lived: float = 0.0
    at: float = 0.0
    """The time of the last sweep, by the clock of the shard's store."""

    def swept(self, box: Box, now: float, seconds: float) -> tuple[Aging, int]:
        """Return the next value after a sweep of a box of the present run, and the number of parcels to drop."""
        last = box.first + box.size
        if self.marked <= box.first:
            # No count is running: begin one for everything in the box.
            return Aging(last, 0.0, now), 0
        lived = self.lived + min(max(now - self.at, 0.0), MOST_STEP_SECONDS)
        if lived < seconds:
            return Aging(self.marked, lived, now), 0
        return Aging(last, 0.0, now), self.marked - box.first


def pack_links(links: Sequence[Request]) -> bytes:
    """Pack requests into the bytes of a parcel."""
    return _encode(links)


def unpack_links(links: bytes) -> list[Request]:
    """Unpack the requests of a parcel."""
    return _decode(links)


def grouped(links: Iterable[Request], shard_of: Callable[[str], int]) -> dict[int, list[Request]]:
    """Group requests by the shard of their site."""
    groups: dict[int, list[Request]] = {}
    for link in links:
        groups.setdefault(shard_of(link.site), []).append(link)
    return groups


POLL_SECONDS = 1.0
"""Seconds between two reads of a server's run. Time in which the server is paused or unreachable does not count."""


async def wait_for_stable_run(run: Callable[[], Awaitable[str]], seconds: float) -> str:
    """Wait until a server has lived for `seconds` on one run, and return that run.

    `run` returns the present run of the server; while it raises Unavailable, the wait goes on. A new run restarts the
    count. If the run has changed, what the server had acknowledged before the call may be lost: check that it still
    exists."""
    clock = asyncio.get_running_loop().time
    known, lived, last = "", 0.0, clock()
    while True:
        try:
            present = await run()
        except Unavailable:
            pass
        else:
            now = clock()
            lived = lived + min(now - last, MOST_STEP_SECONDS) if present == known else 0.0
            known, last = present, now
            if lived >= seconds:
                return known
        await asyncio.sleep(max(0.0, min(POLL_SECONDS, seconds - lived)) or 0.01)
