"""The frontier's interface: leases are on sites, and a URL does not move until it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gossamer import urls
from gossamer.model import Counts, Grant, JobState, Lease, Outcome, Pulse, Receipt, Request, ShardView, SiteNote
from gossamer.settings import Settings


class Frontier(Protocol):
    """What the engine needs of a frontier. Only durations cross it; time is the store's own.

    P1  A key is queued at most once at a time, and done once unless it is revisited.
    P2  A lane has one holder, and no other lane gets the keys of its batch.
    P3  An outcome and its links land together or not at all; repeating an applied `complete` is not an error.
    P4  A stale token changes nothing and is counted; tokens only grow.
    P5  On a one-lane site the delay holds over all workers, also just after a crash.
    P6  `finished` is never true while a request is queued, delayed, held or leased.
    P7  What has returned survives `kill -9` (except in `memory:`).
    P8  Any number of processes may use it.
    P9  Work that was lost with its worker is handed out again within lease time + delay.
    P10 A request that keeps killing its workers is isolated, then parked.
    """

    async def add(self, requests: Sequence[Request]) -> int:
        """Queue the requests whose keys are not known yet; how many those were."""
        ...

    async def lease(self, limit: int, *, batch: int, seconds: float) -> Grant:
        """Take up to `limit` lanes that have been ready longest, each with up to `batch` requests, for `seconds`."""
        ...

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        """Hold on to leases for `seconds` from now; those that are still ours."""
        ...

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        """Settle requests, with their links, in one atomic step. A lane whose batch is settled is free again, one delay
        later.

        `marks` are the lengths of the output files, which an embedded frontier keeps; a fleet has no files of one
        owner, and takes no notice of them."""
        ...

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give lanes back before their batch is settled; what is undone is queued again at once."""
        ...

    async def idle(self, grant: Grant) -> None:
        """Return when something may have become due: after `grant.wait` at the latest, sooner when there is news."""
        ...

    async def counts(self) -> Counts:
        """One view; writes nothing."""
        ...

    async def aclose(self) -> None:
        """Let go of the store. Leases that are still held end as if their holder had died."""
        ...


class Steering(Protocol):
    """What people and services do to a job."""

    async def steer(self, job: JobState) -> None:
        """Pause ('paused'), resume ('running') or stop ('stopping') the job."""
        ...

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        """All that is known of one URL; None if it was never seen. `key_of` is how the job names requests.

        `url`, `key`, `site` and `state` (queued, leased, delayed, done, failed, skipped, parked, or known, where no
        more is kept of a URL that is done) are always there. Where they are known: `depth`, `priority`, `tries`,
        `referrer`, `code`, `reason`, `finished_at`; `worker` and `lease_ends_in` of a leased one; `due_in`, the
        seconds to the next try or visit; `visit`, what the last one left behind."""
        ...

    async def site(self, name: str) -> Mapping[str, Any] | None:
        """All that is known of one site; None if it was never seen.

        `site`, `queued`, `delay`, `hold`, `closed`, `robots` and `memo`, as leases have them. Where they are known:
        `lanes`, `stored`, `budget`, `workers` that have a lane of it, `ready_in`, the seconds until one can be leased
        if something is due, and `share_left`, what is left to it of its quota."""
        ...

    async def sites(self, limit: int = 100) -> list[Mapping[str, Any]]:
        """The sites with the most queued requests, with their delay, hold and reasons."""
        ...

    async def every_site(self, cursor: str = "", limit: int = 100) -> tuple[list[Mapping[str, Any]], str]:
        """All sites, page by page, in the store's own order: about `limit` of them, and the next cursor, if any.

        A site that is there all the while is given at least once; what waits on it is not always counted."""
        ...


class Fleet(Frontier, Steering, Protocol):
    """A frontier that workers on many machines share; the job's settings and secret live in it."""

    secret: bytes
    settings: Settings
    also: frozenset[str]
    """Regions beside its own that this worker leases from: those whose workers are all gone."""

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Take back at once what a dead worker held; `blamed` are the keys that it was handling. How many leases."""
        ...

    async def beat(self, pulse: Pulse) -> None:
        """Keep what a worker tells about itself; an old pulse of the same name is replaced."""
        ...

    async def refresh(self) -> None:
        """Take up the job's settings as they are now: its limits may have been changed while it runs."""
        ...

    async def workers(self) -> list[Pulse]:
        """The last pulse of every worker that was heard of within the last ten minutes."""
        ...

    async def shards(self) -> list[ShardView]:
        """Every shard, with its server, counts and regions."""
        ...
