"""The frontier interface: workers lease sites, and a URL keeps its place until it is finished.

A frontier stores the URLs of a job, decides which site may be fetched when, and records the outcome of each URL. The
engine uses `Frontier` only; commands and services use `Control`. A job's frontier either has one owner process
(`OwnedFrontier`) or is shared by workers on many machines (`FleetFrontier`). A `Backend` opens it. A frontier over
several stores consists of `Shard` objects (see `sharded`).

A worker that dies, is suspended, or loses its connection does not have to report that. Its leases have tokens and
expire: another worker then gets the work, and an outcome with an old token changes nothing. Callers may therefore
repeat any call after an error. `docs/explanation/promises.md` lists where each backend keeps each promise."""

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
    """What the engine needs of a frontier. Callers pass durations only; the store's clock decides about time.

    P1  A key is queued at most once at a time, and done once unless it is revisited.
    P2  A lane has one holder, and no other lane gets the keys of its batch.
    P3  An outcome and its links are committed together or not at all; repeating an applied `complete` is not an error.
    P4  A stale token changes nothing and is counted; tokens only grow.
    P5  On a one-lane site the delay holds over all workers, also just after a crash.
    P6  `finished` is never true while a request is queued, delayed, held or leased.
    P7  What a call has returned survives `kill -9` (except in `memory:`).
    P8  Any number of processes may use it.
    P9  Work that was lost with its worker is leased again within lease time + delay.
    P10 A request that repeatedly kills its workers is isolated, then parked.
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
        """Wait until something may be due: at most `grant.wait` seconds, less if the store has news."""
        ...

    async def counts(self) -> Counts:
        """Return the counts of the job; writes nothing."""
        ...

    async def aclose(self) -> None:
        """Close the connection to the store. Leases that are still held expire like those of a dead worker."""
        ...


class Control(Protocol):
    """Controls a job, and looks up its sites and URLs."""

    async def steer(self, job: JobState) -> None:
        """Pause ('paused'), resume ('running') or stop ('stopping') the job."""
        ...

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        """Return everything that is stored about one URL; None if it was never seen. `key_of` computes the job's keys.

        `url`, `key`, `site`, and `state` are always present. `state` is queued, leased, delayed, done, failed, skipped,
        parked, or known (the URL is finished, and the store has no more than its key). Other fields are present where
        they are known: `depth`, `priority`, `tries`, `referrer`, `code`, `reason`, and `finished_at`; `worker` and
        `lease_ends_in` of a leased URL; `due_in`, the seconds to the next try or visit; and `visit`, the state stored
        by the last visit."""
        ...

    async def site(self, name: str) -> Mapping[str, Any] | None:
        """Return everything that is stored about one site; None if it was never seen.

        `site`, `queued`, `delay`, `hold`, `closed`, `robots`, and `memo` are as in leases. Other fields are present
        where they are known: `lanes`, `stored`, `budget`, `workers` (those that hold a lane of the site), `ready_in`
        (the seconds until a lane can be leased if something is due), and `share_left` (the rest of the site's quota).
        """
        ...

    async def sites(self, limit: int = 100) -> list[Mapping[str, Any]]:
        """Return the sites with the most queued requests, with their delay, hold, and reasons."""
        ...

    async def every_site(self, cursor: str = "", limit: int = 100) -> tuple[list[Mapping[str, Any]], str]:
        """Return about `limit` sites in the store's own order, and the cursor for the next page, if any.

        A site that exists during the whole listing is returned at least once; its queue is not always counted."""
        ...


class JobFrontier(Frontier, Control, Protocol):
    """The frontier of one job, as every backend opens it. It stores the job's secret, from which keys are computed."""

    secret: bytes

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Take back the leases of a dead worker at once, and return how many. `blamed` are the keys it was handling."""
        ...


@runtime_checkable
class OwnedFrontier(JobFrontier, Protocol):
    """A frontier with one owner process on this machine, which also writes the job's output files.

    Workers reach it through their owner. It commits outcomes together with the lengths of the output files (`marks`),
    so each page is stored exactly once, even if processes are killed. `EmbeddedFrontier` over a `Journal` of your own
    is one."""

    marks: dict[str, int]

    async def lease(self, limit: int, *, batch: int, seconds: float, worker: str = "") -> Grant:
        """Lease lanes as every frontier does, for one of the owner's workers."""
        ...

    @property
    def state(self) -> JobState:
        """Return whether the job is running, paused, stopping, or finished."""
        ...

    def settling(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = ()
    ) -> AbstractAsyncContextManager[Settlement]:
        """Check outcomes and pin their leases until the block ends; the settlement's `commit` commits them."""
        ...

    async def blame(self, keys: Sequence[int]) -> None:
        """Count a loss for each of these requests: the owner died while it handled them."""
        ...

    async def limit(self, settings: Settings) -> None:
        """Apply these settings, which differ from the current ones in limits and delays only."""
        ...

    def lanes(self) -> RegionView:
        """Count lanes and sites at this moment, as for a region of a fleet."""
        ...

    def unknown(self, keys: Iterable[int]) -> set[int]:
        """Return those of these keys that the frontier has never seen."""
        ...


class FleetFrontier(JobFrontier, Protocol):
    """A frontier that workers on many machines share. It stores the job's settings."""

    settings: Settings

    async def lease(self, limit: int, *, batch: int, seconds: float, also: frozenset[str] = frozenset()) -> Grant:
        """Lease lanes as `Frontier.lease` does.

        `also` names regions without a live worker, from which this worker leases in addition to its own region. The
        engine passes it only if there are any."""
        ...

    async def beat(self, heartbeat: Heartbeat) -> None:
        """Store a worker's heartbeat, replacing the last one of the same name."""
        ...

    async def refresh(self) -> None:
        """Read the job's settings again: its limits may have changed while the job runs."""
        ...

    async def workers(self) -> list[Heartbeat]:
        """Return the last heartbeat of every worker that sent one within the last ten minutes."""
        ...

    async def shards(self) -> list[ShardView]:
        """Return every shard with its server, counts, and regions."""
        ...


class Opener(NamedTuple):
    """The worker that opens a frontier. To look at a job, or to add URLs to it, no field is needed."""

    worker: str = ""
    """The worker's name, unique in the job."""
    region: str = ""
    """The region whose sites it leases."""
    shards: str = ""
    """Its part of the shards, as in `0-3/8`; when the job is created, the number of shards."""


class Meter(Protocol):
    """Measures the size and CPU time of one store."""

    async def weight(self) -> float:
        """Return the bytes that the store holds for all jobs."""
        ...

    async def cpu_seconds(self) -> float | None:
        """Return the CPU time that the store has used since it started; None if it does not report it."""
        ...

    async def aclose(self) -> None: ...


class Backend(Protocol):
    """One kind of frontier: methods and attributes cover everything that depends on the kind.

    There is one object for each kind, and `backends.backend_of` finds it by the scheme of an address. A backend imports
    its driver when a method is called, not before. A class in another package inherits from `FleetBackend` or
    `OwnedBackend`, which have defaults for what not every store offers, and is registered in the entry point group
    `gossamer.frontiers`."""

    name: str
    """The name of the backend in benchmarks and messages, as in `redis`."""
    forms: tuple[str, ...]
    """Forms of its addresses, for hints, as in `redis://host:6379/0`."""
    is_shared: bool
    """Whether workers on many machines share a job (`FleetBackend`), or one process owns it (`OwnedBackend`)."""
    keeps_in_memory: bool = False
    """Whether `Backend.meter` measures memory instead of disk space."""
    knows_all_keys: bool = True
    """Whether a key can be looked up without its site. A folder's shards store the keys of their own sites only."""

    async def list_jobs(self, url: str) -> list[str]:
        """Return the names of at most a thousand jobs at this address, sorted."""
        ...

    async def remove(self, url: str, job: str) -> bool:
        """Delete a job that no worker uses any more; return whether it existed. Results are not deleted.

        The call may be interrupted and repeated until it returns."""
        ...

    def check(self, url: str, *, clock: Clock, forget_seconds: float) -> AsyncIterator[Finding]:
        """Check that the store is reachable, that its clock agrees with ours, and that it keeps what it
        acknowledges."""
        return _unchecked(self)

    def results_folder(self, url: str, job: str) -> Path | None:
        """Return the folder where workers store pages unless a sink is set; None where the store is no folder."""
        return None

    def meter(self, url: str) -> Meter:
        """Return a meter for the store at this address."""
        return _Unmetered()


class FleetBackend(Backend, Protocol):
    """A backend whose jobs are shared by workers on many machines."""

    is_shared: bool = True

    async def open(self, url: str, job: str, by: Opener) -> FleetFrontier:
        """Join a job; JobMissing if it does not exist."""
        ...

    async def create(self, url: str, job: str, settings: Settings, by: Opener) -> FleetFrontier:
        """Join a job, created with these settings if it does not exist; an existing job gets these settings.

        Any number of machines may create one job at once, and all get the same one."""
        ...


class OwnedBackend(Backend, Protocol):
    """A backend whose jobs have one owner process on this machine at a time; its workers call the owner."""

    is_shared: bool = False

    def settings(self, url: str, job: str) -> Settings | None:
        """Return the settings of a job without owning it; None if it does not exist."""
        ...

    async def open(self, url: str, job: str, *, clock: Clock) -> OwnedFrontier:
        """Own an existing job with its stored settings; JobMissing if it does not exist, Held if another process owns
        it."""
        ...

    async def create(self, url: str, job: str, settings: Settings, *, clock: Clock) -> OwnedFrontier:
        """Own a job, created if it does not exist, and apply these settings; Held if another process owns it."""
        ...


class ShardMove(NamedTuple):
    """A shard that is on its server now, and what was copied there."""

    shard: int
    source: str
    target: str
    size: str
    """A text for people, as in `1,200 keys`."""


@runtime_checkable
class MovesShards(Protocol):
    """A backend whose jobs can be moved to other servers while they run."""

    def move_shards(self, url: str, job: str) -> AsyncIterator[ShardMove]:
        """Move every shard to its server among those of this address, and yield the place of each.

        It ends when no server can forget any more that the shards have moved. It may be interrupted and repeated."""
        ...


@runtime_checkable
class Compacts(Protocol):
    """A backend that keeps rows of finished URLs, which can be deleted."""

    async def compact(self, url: str, job: str, *, older_than_seconds: float) -> int:
        """Delete the rows of URLs that were finished that long ago; return how many. Their keys stay known."""
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
"""Leases use the store's clock alone. A larger difference only makes times in records hard to compare."""


async def skew(clock: Clock, ask: Callable[[], Awaitable[float]]) -> Finding:
    """Report the difference between the store's clock, which `ask` reads, and the clock of this machine."""
    before = clock.epoch()
    there = await ask()
    after = clock.epoch()
    # The store read its clock at some moment between the two readings: only a difference beyond that interval is
    # certain.
    skew = 0.0 if before <= there <= after else there - (before if there < before else after)
    if abs(skew) <= SKEW_SECONDS:
        return Finding(
            "clock", "good", f"in step with the store's ({skew:+.3f} s, asked within {after - before:.3f} s)"
        )
    where = "ahead of" if skew < 0 else "behind"
    says = f"this machine's clock is {abs(skew):,.1f} s {where} the store's"
    return Finding("clock", "weak", says, "run an NTP client on both (chrony, systemd-timesyncd)")


class ShardGrant(NamedTuple):
    """The result of `lease_shard`: the grant, and what the shard observed."""

    grant: Grant
    lost: int = 0
    """Requests of the shard that were lost with a worker. A shard without any has no suspects."""
    passed_over: int = 0
    """Lanes or sites that were ready and not leased, because they are over their quota."""
    handed_out: int = 0
    """Requests that the shard has leased out since the job began."""


class Shard(FleetFrontier, Protocol):
    """One shard of a fleet's frontier, with its part of the job's page limit, and its outbox."""

    @property
    def server(self) -> str:
        """The name of the server that has the shard, as far as it is known: shards of one server lose data together."""
        ...

    async def run(self) -> str:
        """Return the run of that server: the text changes whenever the server may have forgotten something.

        All shards of a server and all workers see the same text. It contains no white space."""
        ...

    async def deliver(self, requests: Sequence[Request]) -> tuple[int, str]:
        """Queue requests as `add` does; also return the run of the server that acknowledged them."""
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
        """Commit outcomes as every frontier does; put the parcels into the outbox in the same atomic step, in any case.

        If `run` is given and the server is in another run, the call fails with Unavailable and changes nothing: links
        of these outcomes were delivered to another shard of the server in that run, and may have been forgotten since.
        A shard that may move to another server raises Leaving instead: it accepts the links only as parcels, or the
        server could keep the page and forget its links."""
        ...

    async def sweep(self, runs: Mapping[str, str], *, seconds: float) -> list[Box]:
        """Age the boxes of these servers' present runs by the rule of `outbox.Aging`; return all boxes that are
        left."""
        ...

    async def parcels(self, box: Box, limit: int) -> list[bytes]:
        """Return the links of up to `limit` parcels of a box, oldest first."""
        ...

    async def replace(self, box: Box, count: int, parcels: Sequence[Parcel]) -> None:
        """Remove the first parcels of a box and file new ones, in one atomic step.

        Nothing changes if the box no longer begins at `box.first`: another worker has removed parcels of it."""
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
        """Lease lanes as `lease` does, for a caller that leases from several shards.

        Without `suspects`, requests that were lost twice with their worker are not leased: a worker gets one of them at
        a time, and a shard sees only its own. Without `over_quota`, sites that have used up their quota are not leased
        even if nothing else is ready here: sites of other shards may be. `handed_elsewhere` is the number of requests
        that the other shards have leased out, as far as the caller knows: a site's quota is a share of the total."""
        ...

    async def set_limit(self, pages: int | None, *, reserved: int | None = None) -> int:
        """Set this shard's part of the job's page limit, or remove it (None); return the number of pages of that part.

        The first shard also stores the account of all parts, which begins with `reserved` pages given away."""
        ...

    async def reserve(self, pages: int, *, limit: int, only_full: bool = False) -> tuple[int, int]:
        """Take pages from the rest of the job's limit, or give them back; return how many, and the new rest.

        With `only_full` none are moved unless the whole limit is reserved.

        Pages are given back at most once: if the answer is lost, the call raises `Unavailable` and is not repeated, by
        the caller either. Pages that were not given back are found at the end of the job; pages given back twice would
        exceed the limit."""
        ...

    async def allow(self, pages: int) -> tuple[int, int]:
        """Raise or lower this shard's part; only unused pages can be taken. Return how many were moved, and the rest.

        A shard gets pages at most once, as with `reserve`."""
        ...

    def apply(self, settings: Settings) -> None:
        """Apply these settings, which differ from the current ones in limits and delays only."""
        ...


@runtime_checkable
class Adopting(Protocol):
    """A frontier that can mark pages as fetched by an earlier crawl."""

    async def adopt(self, requests: Sequence[Request]) -> None:
        """Mark these requests as fetched; known requests stay as they are."""
        ...

    async def has_adopted(self, tree: str) -> bool:
        """Return whether this tree was imported completely."""
        ...

    async def note_adopted(self, tree: str) -> None:
        """Store that this tree was imported completely."""
        ...
