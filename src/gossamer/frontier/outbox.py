"""Outboxes: links for other shards, kept until the target can no longer forget them.

A page and its links land together. Where a link belongs to a shard on another server, no transaction spans the two: the
link is delivered first, then the page is completed. That survives any killed process, but not a server that
acknowledges a write and then forgets its last seconds (an append-only file synced once a second, a replica promoted
before it had caught up): the page stays done on its own server, and the link is gone.

So the step that completes the page also puts a copy of such links, a `Parcel`, into the outbox of the page's shard.
Parcels lie in boxes, one for each server and each *run* of it: a run is the life of a server between two moments at
which it may have forgotten something (a start, a promotion). Workers sweep the outboxes every few seconds:

- A box whose run is the present one ages by the time that passes between sweeps, at most `MOST_STEP_SECONDS` each:
  time in which the server was away, paused or asked by nobody makes nothing durable. What was in the box when the
  count began is dropped once the server has lived for `forget_seconds` since.
- A box of an earlier run is delivered again, whole. Shards ignore keys that they know, so that is harmless.

A page's shard may forget, too: then it forgets the page together with its parcel, and the page is fetched again. A job
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
"""Stands for the run where several runs acknowledged parts of the same links; it is never the present one."""
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
    """Number of parcels that were ever taken out of this box, which is the number of the oldest one in it."""
    size: int


class Aging(NamedTuple):
    """How long the oldest parcels of a box have lived with their server: the rule of a sweep, the same in all
    backends."""

    marked: int = 0
    """Parcels with lower numbers were in the box when the count began: these are dropped when it ends."""
    lived: float = 0.0
    at: float = 0.0
    """The time of the last sweep, by the clock of the shard's own store."""

    def swept(self, box: Box, now: float, seconds: float) -> tuple[Aging, int]:
        """The next value after a sweep of a box of the present run, and the number of parcels to drop."""
        last = box.first + box.size
        if self.marked <= box.first:
            # No count is running: begin one for all that is in the box.
            return Aging(last, 0.0, now), 0
        lived = self.lived + min(max(now - self.at, 0.0), MOST_STEP_SECONDS)
        if lived < seconds:
            return Aging(self.marked, lived, now), 0
        return Aging(last, 0.0, now), self.marked - box.first


def pack_links(links: Sequence[Request]) -> bytes:
    """Requests as a parcel holds them."""
    return _encode(links)


def unpack_links(links: bytes) -> list[Request]:
    """The requests of a parcel."""
    return _decode(links)


def grouped(links: Iterable[Request], shard_of: Callable[[str], int]) -> dict[int, list[Request]]:
    """Requests by the shard of their site."""
    groups: dict[int, list[Request]] = {}
    for link in links:
        groups.setdefault(shard_of(link.site), []).append(link)
    return groups


POLL_SECONDS = 1.0
"""Seconds between two looks at a server's run. Time in which it is paused or away makes nothing durable."""


async def outlive(run: Callable[[], Awaitable[str]], seconds: float) -> str:
    """Wait until a server has lived for so long on one run, and return that run.

    `run` asks for the present run of the server; it may raise Unavailable, which is waited through. A change of the run
    starts the count anew. What the server had acknowledged when this was called is not durable if its run has changed
    meanwhile: check that it is still there."""
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
