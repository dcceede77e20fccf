"""The frontier's interface: leases are on sites, and a URL does not move until it is done.

A frontier knows the URLs of a job, decides which site may be fetched when, and records what became of each URL. The
engine sees `Frontier` only; people and services use `Control`. A job's frontier either has one owner process
(`OwnedFrontier`) or is shared by workers on many machines (`FleetFrontier`), and a `Backend` opens it. `Shard` is what
a frontier of several stores is made of (`sharded`).

A worker that dies, is suspended, or loses its connection never has to report that. Its leases have tokens and ends:
after the end somebody else gets the work, and an outcome with an old token changes nothing. Every call may therefore be
repeated after an error, and `docs/explanation/promises.md` says where each backend keeps each promise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from gossamer import urls
from gossamer.clock import Clock
from gossamer.frontier.outbox import Box, Parcel
from gossamer.model import (
    Counts,
    Finding,
    Grant,
    Heartbeat,
    JobState,
    Lease,
    Outcome,
    Receipt,
    RegionView,
    Request,
    ShardView,
    SiteNote,
)
from gossamer.settings import Settings

if TYPE_CHECKING:
    from gossamer.frontier.embedded.frontier import Settlement


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
        """Queue the requests whose keys are new, and return how many."""
        ...

    async def lease(self, limit: int, *, batch: int, seconds: float) -> Grant:
        """Lease up to `limit` lanes that have been ready longest, each with up to `batch` requests, for `seconds`."""
        ...

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        """Renew leases for `seconds` from now, and return those that are still held."""
        ...

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        """Commit outcomes with their links in one atomic step. A lane whose batch is complete is free again, one delay
        later.

        `marks` are the lengths of the output files, which an embedded frontier stores; a fleet has no files of one
        owner, and ignores them."""
        ...

    async def release(self, leases: Sequence[Lease]) -> None:
        """Return lanes before their batch is complete; the rest of it is queued again at once."""
        ...

    async def idle(self, grant: Grant) -> None:
        """Return when something may have become due: after `grant.wait` at the latest, sooner when there is news."""
        ...

    async def counts(self) -> Counts:
        """The counts of the job; writes nothing."""
        ...

    async def aclose(self) -> None:
        """Close the connection to the store. Leases that are still held end as if their holder had died."""
        ...


class Control(Protocol):
    """How people and services control a job and look into it."""

    async def steer(self, job: JobState) -> None:
        """Pause ('paused'), resume ('running') or stop ('stopping') the job."""
        ...

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        """Everything known of one URL; None if it was never seen. `key_of` computes the job's keys.

        `url`, `key`, `site` and `state` (queued, leased, delayed, done, failed, skipped, parked, or known, where no
        more is stored of a URL that is done) are always there. Where they are known: `depth`, `priority`, `tries`,
        `referrer`, `code`, `reason`, `finished_at`; `worker` and `lease_ends_in` of a leased one; `due_in`, the
        seconds to the next try or visit; `visit`, what the last one left behind."""
        ...

    async def site(self, name: str) -> Mapping[str, Any] | None:
        """Everything known of one site; None if it was never seen.

        `site`, `queued`, `delay`, `hold`, `closed`, `robots` and `memo`, as leases have them. Where they are known:
        `lanes`, `stored`, `budget`, `workers` that have a lane of it, `ready_in`, the seconds until one can be leased
        if something is due, and `share_left`, what is left to it of its quota."""
        ...

    async def sites(self, limit: int = 100) -> list[Mapping[str, Any]]:
        """The sites with the most queued requests, with their delay, hold and reasons."""
        ...

    async def every_site(self, cursor: str = "", limit: int = 100) -> tuple[list[Mapping[str, Any]], str]:
        """All sites, page by page, in the store's own order: about `limit` of them, and the next cursor, if any.

        A site that exists during the whole listing is returned at least once; its queue is not always counted."""
        ...


class JobFrontier(Frontier, Control, Protocol):
    """The frontier of one job: what every backend opens. The job's secret, which keys URLs, lives in it."""

    secret: bytes

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Take back the leases of a dead worker at once, and return how many. `blamed` are the keys that it was
        handling."""
        ...


@runtime_checkable
class OwnedFrontier(JobFrontier, Protocol):
    """A frontier with one owner process on this machine, which also writes the job's output files.

    Workers reach it through their owner. It commits outcomes and the lengths of the output files (`marks`) together, so
    a page is stored exactly once, whatever is killed. `EmbeddedFrontier` over a `Journal` of your own is one."""

    marks: dict[str, int]

    async def lease(self, limit: int, *, batch: int, seconds: float, worker: str = "") -> Grant:
        """As every frontier does, for one of the owner's workers."""
        ...

    @property
    def state(self) -> JobState:
        """Whether the job is running, paused, stopping or finished."""
        ...

    def settling(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = ()
    ) -> AbstractAsyncContextManager[Settlement]:
        """Outcomes whose leases stay theirs until the block ends; they are committed by the settlement's `commit`."""
        ...

    async def blame(self, keys: Sequence[int]) -> None:
        """Count a loss for each of these requests: the owner died while it handled them."""
        ...

    async def limit(self, settings: Settings) -> None:
        """Continue with these settings, which differ from the last ones in limits and delays only."""
        ...

    def lanes(self) -> RegionView:
        """Lanes and sites at this moment, as for a region of a fleet."""
        ...

    def unknown(self, keys: Iterable[int]) -> set[int]:
        """Those of these keys that the frontier has never seen."""
        ...


class FleetFrontier(JobFrontier, Protocol):
    """A frontier that workers on many machines share; the job's settings live in it."""

    settings: Settings

    async def lease(self, limit: int, *, batch: int, seconds: float, also: frozenset[str] = frozenset()) -> Grant:
        """As `Frontier.lease`. `also` are regions without a live worker, from which this one leases besides its own; it
        is passed only if there are any."""
        ...

    async def beat(self, pulse: Heartbeat) -> None:
        """Store a worker's heartbeat, replacing the last one of the same name."""
        ...

    async def refresh(self) -> None:
        """Read the job's settings again: its limits may have changed while it runs."""
        ...

    async def workers(self) -> list[Heartbeat]:
        """The last heartbeat of every worker that sent one within the last ten minutes."""
        ...

    async def shards(self) -> list[ShardView]:
        """Every shard, with its server, counts and regions."""
        ...


class Opener(NamedTuple):
    """The worker that opens a frontier. Nothing of it is needed to look at a job, or to add to it."""

    worker: str = ""
    """The worker's name, unique in the job."""
    region: str = ""
    """The region from which it leases."""
    shards: str = ""
    """Its part of the shards, as `0-3/8`; when the job is made, how many there are."""


class Meter(Protocol):
    """Measures one store."""

    async def weight(self) -> float:
        """Bytes that it holds of all jobs."""
        ...

    async def cpu_seconds(self) -> float | None:
        """CPU time that it has used since it started; None if it cannot say."""
        ...

    async def aclose(self) -> None: ...


class Backend(Protocol):
    """One kind of frontier: everything that depends on the kind is a method or attribute here.

    There is one value for each kind; `backends.backend_of` finds it by the scheme of an address. It imports its driver
    when a method is called, not before. A class of another package inherits from `FleetBackend` or `OwnedBackend`,
    which have defaults for what not every store has, and is named in the entry point group `gossamer.frontiers`."""

    name: str
    """Its name in figures and messages: `redis`."""
    forms: tuple[str, ...]
    """Forms of its addresses, for hints: `redis://host:6379/0`."""
    is_shared: bool
    """Whether workers on many machines share a job (`FleetBackend`), or one process owns it (`OwnedBackend`)."""
    keeps_in_memory: bool = False
    """Whether `Backend.meter` measures memory, and not space on a disk."""
    knows_all_keys: bool = True
    """Whether a key can be looked up without its site; a folder's shards know their own sites only."""

    async def list_jobs(self, url: str) -> list[str]:
        """The names of the jobs at this address, in order, a thousand at most."""
        ...

    async def remove(self, url: str, job: str) -> bool:
        """Delete a job that no worker uses any more; whether it was there. Results are not touched.

        It may be interrupted, and called again until it returns."""
        ...

    def check(self, url: str, *, clock: Clock, forget_seconds: float) -> AsyncIterator[Finding]:
        """Whether the store can be reached, is in step with our clock, and keeps what it acknowledges."""
        return _unchecked(self)

    def results_folder(self, url: str, job: str) -> Path | None:
        """Where the job's workers store pages unless a sink says otherwise; None where the store is no folder."""
        return None

    def meter(self, url: str) -> Meter:
        """A meter for the store at this address."""
        return _Unmetered()


class FleetBackend(Backend, Protocol):
    """A backend whose jobs are shared by workers on many machines."""

    is_shared: bool = True

    async def open(self, url: str, job: str, by: Opener) -> FleetFrontier:
        """Join a job; JobMissing if it is not there."""
        ...

    async def create(self, url: str, job: str, settings: Settings, by: Opener) -> FleetFrontier:
        """Join a job, made with these settings if it is not there; these are its settings from now on.

        Any number of machines may create one job at once, and get the same one."""
        ...


class OwnedBackend(Backend, Protocol):
    """A backend whose jobs have one owner process on this machine at a time; its workers ask the owner."""

    is_shared: bool = False

    def settings(self, url: str, job: str) -> Settings | None:
        """The settings that a job was last created with, without owning it; None if it is not there."""
        ...

    async def open(self, url: str, job: str, *, clock: Clock) -> OwnedFrontier:
        """Own a job with the settings that it was created with; JobMissing if it is not there, Held if it is owned."""
        ...

    async def create(self, url: str, job: str, settings: Settings, *, clock: Clock) -> OwnedFrontier:
        """Own a job, made if it is not there; these are its settings from now on. Held if another process owns it."""
        ...


class ShardMove(NamedTuple):
    """A shard that is on its server now, and what had to be brought there."""

    shard: int
    source: str
    target: str
    size: str
    """For people: `1,200 keys`."""


@runtime_checkable
class MovesShards(Protocol):
    """A backend whose jobs can be spread over other servers while they run."""

    def move_shards(self, url: str, job: str) -> AsyncIterator[ShardMove]:
        """Move every shard to its server among those of this address, and yield where each is.

        It ends when no server can forget any more that they have moved. It may be interrupted and called again."""
        ...


@runtime_checkable
class Compacts(Protocol):
    """A backend that keeps rows of finished URLs, which can be deleted."""

    async def compact(self, url: str, job: str, *, older_than_seconds: float) -> int:
        """Delete the rows of URLs that were finished that long ago; how many. Their keys stay known."""
        ...


async def _unchecked(backend: Backend) -> AsyncIterator[Finding]:
    yield Finding("frontier", "good", f"{backend.name} has no checks")


class _Unmetered:
    async def weight(self) -> float:
        return 0.0

    async def cpu_seconds(self) -> float | None:
        return None

    async def aclose(self) -> None:
        pass


SKEW_SECONDS = 1.0
"""Leases go by the store's clock alone; more than this only makes times in records hard to compare."""


async def skew(clock: Clock, ask: Callable[[], Awaitable[float]]) -> Finding:
    """How far the store's clock, which `ask` reads, is from this machine's."""
    before = clock.epoch()
    there = await ask()
    after = clock.epoch()
    # The answer is from some moment in between: only a difference beyond that is certain.
    skew = 0.0 if before <= there <= after else there - (before if there < before else after)
    if abs(skew) <= SKEW_SECONDS:
        return Finding(
            "clock", "good", f"in step with the store's ({skew:+.3f} s, asked within {after - before:.3f} s)"
        )
    where = "ahead of" if skew < 0 else "behind"
    says = f"this machine's clock is {abs(skew):,.1f} s {where} the store's"
    return Finding("clock", "weak", says, "run an NTP client on both (chrony, systemd-timesyncd)")


class ShardGrant(NamedTuple):
    """The answer to `lease_shard`: the grant, and what the shard saw."""

    grant: Grant
    lost: int = 0
    """Requests of the shard that were lost with a worker: where there are none, it has no suspects."""
    passed_over: int = 0
    """Lanes or sites that were ready and not leased, because they are over their quota."""
    handed_out: int = 0
    """Requests that the shard has handed out since the job began."""


class Shard(FleetFrontier, Protocol):
    """One shard of a fleet's frontier, with its part of what the whole job may store, and its outbox."""

    @property
    def server(self) -> str:
        """The name of the server that has the shard, as far as is known: its shards forget together."""
        ...

    async def run(self) -> str:
        """The run of that server: another text after every moment at which it may have forgotten something.

        The same text for all its shards, and for all workers. It has no white space."""
        ...

    async def deliver(self, requests: Sequence[Request]) -> tuple[int, str]:
        """As `add`, with the run of the server that acknowledged it."""
        ...

    async def complete(
        self,
        outcomes: Sequence[Outcome],
        *,
        notes: Sequence[SiteNote] = (),
        marks: Mapping[str, int] | None = None,
        parcels: Sequence[Parcel] = (),
        run: str = "",
    ) -> Receipt:
        """As every frontier does; the parcels are put into the outbox in the same atomic step, in any case.

        Where a `run` is given, another one refuses all of it with Unavailable: links of these outcomes were delivered
        to another shard of the same server in that run, and may have been forgotten since. A shard that may move to
        another server refuses it with Leaving: it takes such links as parcels only, or its pages might go and the links
        be forgotten."""
        ...

    async def sweep(self, runs: Mapping[str, str], *, seconds: float) -> list[Box]:
        """Let the boxes of these servers' present runs age by the rule of `outbox.Aging`; all boxes that are left."""
        ...

    async def parcels(self, box: Box, limit: int) -> list[bytes]:
        """The links of up to `limit` parcels of a box, oldest first."""
        ...

    async def replace(self, box: Box, count: int, parcels: Sequence[Parcel]) -> None:
        """Take the first parcels out of a box and put others into theirs, in one atomic step.

        Nothing happens if the box does not begin at `box.first` any more: another worker has done it."""
        ...

    async def lease_shard(
        self,
        limit: int,
        *,
        batch: int,
        seconds: float,
        also: frozenset[str] = frozenset(),
        suspects: bool = True,
        over_quota: bool = True,
        handed_elsewhere: int = 0,
    ) -> ShardGrant:
        """As `lease`, for a caller that looks after several shards.

        Without `suspects`, no request is leased that was lost twice with its worker: a worker gets one at a time, and a
        shard knows of its own only. Without `over_quota`, no site is leased that has used up its quota, although nobody
        else here is ready: sites of other shards may be. `handed_elsewhere` is what the other shards have handed out,
        as far as the caller knows: a site's quota is a share of what all of them hand out."""
        ...

    async def set_limit(self, pages: int | None, *, reserved: int | None = None) -> int:
        """Begin to have a part of what the whole job may store, or end it (None); how many pages that part is.

        The first shard also keeps the account of all parts, which begins with `reserved` pages given away."""
        ...

    async def reserve(self, pages: int, *, limit: int) -> tuple[int, int]:
        """Take pages from what is left of the job's limit, or give them back; how many, and what is left then.

        Pages are given back at most once: when the answer is lost this raises `Unavailable` and is not repeated. The
        caller does not repeat it either. Pages that were not given back are found at the end of the job; pages that
        were given back twice would be stored beyond the limit."""
        ...

    async def allow(self, pages: int) -> tuple[int, int]:
        """Let this shard store more, or less; only what is not used can be taken away. How many, and what is left.

        A shard gets more at most once, as with `reserve`."""
        ...

    def apply(self, settings: Settings) -> None:
        """Continue with these settings, which differ from the last ones in limits and delays only."""
        ...


@runtime_checkable
class Adopting(Protocol):
    """A frontier that can mark pages as fetched."""

    async def adopt(self, requests: Sequence[Request]) -> None:
        """Mark these as fetched; requests that are known stay as they are."""
        ...

    async def has_adopted(self, tree: str) -> bool:
        """Whether all of this tree was imported."""
        ...

    async def note_adopted(self, tree: str) -> None:
        """Note that all of this tree was imported."""
        ...
