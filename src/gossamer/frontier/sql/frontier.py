"""The frontier of one shard in a database, its control, and its share of the page limit.

Each method of the frontier is one transaction: it opens a `Transaction`, works, and flushes. The rules are in the
modules that it calls: `leasing` for lease and sleep, `completion` for complete and add, `transaction` for rows, locks,
and time. This module decides which lock each call takes, repeats calls, and follows a shard that moves.

| call | lock | why |
|---|---|---|
| `add`, `complete` with links | share | no site may fall asleep while requests are added to it |
| `complete` that closes a site, `put_to_sleep` | whole | nobody may add to a site that is closed or put to sleep |
| `lease` | stripe | two workers of a stripe must not draw the same token (P4) |
| `lease` with a page limit, the ledger | shard | two workers must not both lease the last pages |
| `complete` without links, `extend`, `release`, `abandon` | rows only | the rows of the sites are enough |

What `_call` does about errors, around the repeats of `Database.run` for conflicts and lost connections:

- Changed settings: read them, and repeat the call with them.
- The shard has moved, or may have: find it (`_pursue`), and repeat the call there.
- The tables or the row are gone from a database to which the shard came a moment ago: that server has forgotten the
  arrival, and the place that it came from may have kept the shard.

A call that is repeated may have been applied before, since a connection can break between the commit and the answer. A
repeated `add` finds known keys, and a repeated `complete` finds its keys gone from the batch. A repeated `lease` takes
other lanes; the first ones come back when their leases expire. Counters and parcels belong to the same transaction, so
they are never counted for a call that was undone."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from gossamer import settings as configuration
from gossamer import urls
from gossamer.errors import FrontierError, JobMissing, Leaving, Unavailable
from gossamer.frontier.base import ShardGrant
from gossamer.frontier.outbox import Parcel
from gossamer.frontier.policy import MOST_LINKS, outcome_batches
from gossamer.frontier.recrawl import share_of
from gossamer.frontier.sql.completion import Admission, Completion, Forward, Link, drain, site_of
from gossamer.frontier.sql.database import Database, Dialect, digest
from gossamer.frontier.sql.handover import ANNOUNCED, ARRIVING, GONE, LEAVING, Moved, decide, is_abandoned
from gossamer.frontier.sql.leasing import Leasing, put_to_sleep
from gossamer.frontier.sql.outbox import SqlOutbox, put
from gossamer.frontier.sql.repair import SqlRepair
from gossamer.frontier.sql.transaction import (
    MICRO,
    PARKED,
    STRIPES,
    SUSPECT,
    WORDS,
    Changed,
    NeedsWholeLock,
    QueueRow,
    SqlSite,
    Transaction,
    request_of,
)
from gossamer.model import (
    Counts,
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
from gossamer.redact import masked_memo
from gossamer.settings import Settings


class SqlLedger:
    """The part of the page limit that a shard of several may use, and the account of all parts.

    The calls lock the shard, as leases under a page limit do. The row of the first shard has the account:
    `reserved` is the sum of what the shards were given. Callers take pages from the account before they add them to a
    shard, so a crash in between allows too few pages, never too many."""

    _call: Callable[..., Awaitable[Any]]

    async def set_limit(self, pages: int | None, *, reserved: int | None = None) -> int:
        """Set or remove (None) this shard's part of the page limit; how many pages that part is."""

        async def work(call: Transaction) -> int:
            await call.open(totals=True)
            ((allowance, kept),) = await call.db.fetch("ledger")
            if pages is None:
                await call.db.fetch("set_ledger", None, None)
                return 0
            if allowance is None:
                allowance = call.total("kept") + call.total("leased")
            await call.db.fetch("set_ledger", allowance, reserved if kept is None else kept)
            return int(allowance)

        return int(await self._call(work, lock="shard", opens=False))

    async def reserve(self, pages: int, *, limit: int, only_full: bool = False) -> tuple[int, int]:
        """Take pages from the rest of the job's limit, or give them back; how many were moved, and what is left."""

        async def work(call: Transaction) -> tuple[int, int]:
            ((allowance, reserved),) = await call.db.fetch("ledger")
            if reserved is None:
                return 0, 0
            left = limit - reserved
            if only_full and left > 0:
                return 0, left
            # After the limit was lowered, the rest may be negative; shards give pages back by `allow`.
            taken = max(0, min(pages, left)) if pages > 0 else max(pages, -reserved)
            if taken:
                await call.db.fetch("set_ledger", allowance, reserved + taken)
            return taken, left - taken

        found: tuple[int, int] = await self._call(work, lock="shard", repeats=pages >= 0)
        return found

    async def allow(self, pages: int) -> tuple[int, int]:
        """Raise or lower this shard's part; only unused pages can be taken. How many were moved, and what is left."""

        async def work(call: Transaction) -> tuple[int, int]:
            await call.open(totals=True)
            ((allowance, reserved),) = await call.db.fetch("ledger")
            if allowance is None:
                return 0, call.room
            call.most = int(allowance)
            moved = max(pages, -max(0, call.room))
            if moved:
                await call.db.fetch("set_ledger", call.most + moved, reserved)
                call.most += moved
                call.count("news", int(moved > 0))
                await call.flush()
            return moved, call.room

        found: tuple[int, int] = await self._call(work, lock="shard", opens=False, rings=True, repeats=pages <= 0)
        return found


_COMPACT_ROWS = 10_000
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_robots = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_WAITING = {1: "done", 2: "failed", 3: "skipped"}


_LOWEST = -(1 << 63)


class SqlControl(SqlOutbox):
    """The part of a frontier that people and services use: counts, control, and questions about URLs and sites."""

    settings: Settings
    secret: bytes
    region: str
    shard: int
    _database: Database
    _admission: Admission
    _call: Callable[..., Awaitable[Any]]
    _state: Callable[[Transaction], Awaitable[str]]
    _is_over: Callable[[Transaction], Awaitable[bool]]

    async def counts(self) -> Counts:
        async def work(call: Transaction) -> Counts:
            await call.open(totals=True, writes=False)
            totals = call.totals
            state = await self._state(call)
            over = await self._is_over(call)
            places = await call.db.fetch("ready_sites", call.now)
            (held,) = await call.db.fetch("held_sites", call.now)
            mine = {self.region, ""}
            # A site may look ready without having requests, until a lease finds that out; so take the smaller number.
            waiting = totals["queued"] + totals["delayed"]
            (sums,) = await call.db.fetch("freshness") if call.settings.recrawl else ((0, 0),)
            return Counts(
                queued=totals["queued"],
                delayed=totals["delayed"] - totals["revisits"],
                leased=totals["leased"],
                done=totals["done"],
                failed=totals["failed"],
                skipped=totals["skipped"],
                parked=totals["parked"],
                stale=totals["stale"],
                stored=totals["kept"],
                revisits=totals["revisits"],
                freshness=share_of(*map(int, sums)),
                known=totals["known"],
                sites=totals["sites"],
                ready_sites=min(waiting, sum(int(row[1]) for row in places if row[0] in mine)),
                held_sites=int(held[0]),
                active_sites=totals["held"],
                job=state,  # type: ignore[arg-type]
                finished=over,
                changes=totals["news"],
                outbox=await self._waiting(call),
            )

        found: Counts = await self._call(work, opens=False)
        return found

    async def steer(self, job: JobState) -> None:
        async def work(call: Transaction) -> None:
            await call.db.fetch("steer", job)
            call.count("news")
            await call.flush()

        await self._call(work, rings=True)

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        normal = urls.normal(url) or url
        key, site_name = key_of(self.secret, normal), site_of(normal, self.settings)
        number = self._admission.site_id(site_name)

        async def work(call: Transaction) -> Mapping[str, Any] | None:
            sites = [SqlSite(row, call.settings) for row in await call.db.fetch("site", number)]
            about = {"url": normal, "key": key, "site": site_name, "shard": self.shard}
            for held in await call.load("leases_of_sites", [number]):
                if key in held.batch:
                    about |= {
                        "worker": held.worker,
                        "token": held.token,
                        "lease_ends_in": (held.until_at - call.now) / MICRO,
                    }
            if sites:
                about |= _site_view(sites[0], call.now)
            for found in await call.db.fetch("row_of", number, key):
                return about | _queue_view(QueueRow(*found), call.now, site_name, working="token" in about)
            for status, code, depth, priority, tries, finished_at in await call.db.fetch("done_of", key):
                word = WORDS[status]
                return about | {
                    "state": word, "code": code, "depth": depth, "priority": priority, "tries": tries,
                    "finished_at": finished_at / MICRO,
                }  # fmt: skip
            (seen,) = await call.db.fetch("is_seen", key)
            return about | {"state": "known"} if seen[0] else None

        found: Mapping[str, Any] | None = await self._call(work)
        return found

    async def site(self, name: str) -> Mapping[str, Any] | None:
        number = self._admission.site_id(name)

        async def work(call: Transaction) -> Mapping[str, Any] | None:
            await call.open(totals=True, writes=False)
            for row in await call.db.fetch("site", number):
                found = SqlSite(row, call.settings)
                robots: dict[str, bytes] = {}
                memo: dict[str, Any] = {}
                for _, packed_robots, packed_memo in await call.db.fetch("notes", [number]):
                    robots, memo = _decode_robots(packed_robots), _decode(packed_memo)
                held = await call.load("leases_of_sites", [number])
                waiting = await call.db.fetch("waiting_of", number)
                return {
                    "site": name, "queued": int(waiting[0][0]), **_site_view(found, call.now),
                    "workers": [one.worker for one in held], "share_left": found.share_left(call.half),
                    "ready_in": max(0.0, (found.wake_at - call.now) / MICRO), "robots": robots,
                    "memo": masked_memo(memo),
                }  # fmt: skip
            return None

        site: Mapping[str, Any] | None = await self._call(work, opens=False)
        return site

    async def sites(self, limit: int = 100) -> list[Mapping[str, Any]]:
        async def work(call: Transaction) -> list[Mapping[str, Any]]:
            found: list[Mapping[str, Any]] = []
            for name, region, hold_at, ready_at, closed, lanes, waiting in await call.db.fetch("sites", limit):
                site = SqlSite((0, name, region, ready_at, hold_at, closed, lanes), call.settings)
                found.append({"site": name, "queued": int(waiting)} | _site_view(site, call.now))
            return found

        sites: list[Mapping[str, Any]] = await self._call(work)
        return sites

    async def every_site(self, cursor: str = "", limit: int = 100) -> tuple[list[Mapping[str, Any]], str]:
        async def work(call: Transaction) -> tuple[list[Mapping[str, Any]], str]:
            found: list[Mapping[str, Any]] = []
            rows = await call.db.fetch("every_site", max(_LOWEST, min(int(cursor or _LOWEST), ~_LOWEST)), limit)
            for _, name, region, hold_at, ready_at, closed, lanes, waiting in rows:
                site = SqlSite((0, name, region, ready_at, hold_at, closed, lanes), call.settings)
                found.append({"site": name, "queued": int(waiting)} | _site_view(site, call.now))
            return found, str(rows[-1][0]) if len(rows) == limit else ""

        page: tuple[list[Mapping[str, Any]], str] = await self._call(work)
        return page

    async def beat(self, pulse: Heartbeat) -> None:
        packed = msgspec.msgpack.encode(pulse)

        async def work(dialect: Dialect) -> None:
            await dialect.fetch("beat", digest(pulse.worker), packed)
            await dialect.fetch("forget_workers")

        await self._database.run(work, whole=False)

    async def workers(self) -> list[Heartbeat]:
        async def work(dialect: Dialect) -> Sequence[Any]:
            return await dialect.fetch("workers")

        found = []
        for packed, silent in await self._database.run(work, whole=False):
            pulse = msgspec.msgpack.decode(packed, type=Heartbeat)
            found.append(msgspec.structs.replace(pulse, silent=max(0.0, int(silent) / MICRO)))
        return sorted(found, key=lambda pulse: pulse.worker)

    async def shards(self) -> list[ShardView]:
        async def work(call: Transaction) -> dict[str, RegionView]:
            return {
                region: RegionView(ready=int(ready), later=int(later))
                for region, ready, later in await call.db.fetch("ready_sites", call.now)
            }

        regions, counts = await self._call(work), await self.counts()
        if not counts.queued + counts.delayed + counts.revisits:
            regions = {name: msgspec.structs.replace(view, ready=0) for name, view in regions.items()}
        return [ShardView(shard=self.shard, server=self._database.dialect.server, counts=counts, regions=regions)]

    async def compact(self, older_than_seconds: float = 0.0) -> int:
        """Delete the rows of URLs that were finished that long ago; how many. Their keys stay known.

        It deletes some rows in each transaction, so it may be stopped at any time and run again."""
        gone, last = 0, -1

        async def work(call: Transaction) -> list[int]:
            before = call.now - round(older_than_seconds * MICRO) + 1
            return await call.db.compact(before, last, _COMPACT_ROWS)

        while found := await self._call(work):
            gone, last = gone + len(found), max(found)
        return gone


def _site_view(site: SqlSite, now: int) -> dict[str, Any]:
    leased = sum(1 for lane in site.lanes if lane.token)
    return {
        "region": site.region,
        "delay": site.delay,
        "lanes": len(site.lanes),
        "leased_lanes": leased,
        "leased": site.kept.leased,
        "stored": site.kept.kept,
        "budget": site.kept.budget,
        "hold": max(0.0, (site.hold_at - now) / MICRO),
        "ready_in": None if site.ready_at is None else max(0.0, (site.ready_at - now) / MICRO),
        "closed": site.closed,
    }


def _queue_view(row: QueueRow, now: int, site: str, *, working: bool) -> dict[str, Any]:
    request = request_of(row, site)
    due = row.standing - now if row.place == 1 else 0
    state = "leased" if working else "suspect" if row.place == SUSPECT else "delayed" if due > 0 else "queued"
    about = {
        "state": _WAITING.get(row.again, state), "depth": row.depth, "priority": row.priority, "tries": row.tries,
        "lapses": row.lapses, "referrer": request.referrer, "due_in": max(0.0, due / MICRO),
    }  # fmt: skip
    return about | {"state": "leased"} if working else about | ({"visit": request.state} if request.state else {})


_LONGEST_SLEEP_SECONDS = 15.0
_LULL_SECONDS = 1.0
_MANY_EMPTY = 512
log = logging.getLogger("gossamer.frontier")
T = TypeVar("T")


class CompletionResult(NamedTuple):
    """The result of one transaction of `complete`, with the life of the store that answered."""

    accepted: int
    stale: int
    repeated: int
    run: int
    parcels: int


@dataclass(frozen=True, slots=True)
class ShardContext:
    """What a shard needs of the other shards and databases of its job; the defaults are those of a shard alone."""

    region_of: Callable[[str], str] | None = None
    """Returns the region of a new site, empty for none. Without it any worker may lease any site."""
    forward: Forward | None = None
    """Delivers links of the inbox that belong to other shards."""
    reach: Callable[[str], Database] | None = None
    """The connection to another database, by its name."""
    follow: Callable[[str], Awaitable[Database]] | None = None
    """Opens the database that the shard has moved to."""
    close: Callable[[], Awaitable[None]] | None = None
    """Closes all connections, where there are more than that of the shard."""


ALONE = ShardContext()


class SqlFrontier(SqlControl, SqlLedger, SqlRepair):
    """The frontier of one shard of a job. Any number of instances, in any number of processes, share it (P8).

    What an instance remembers only saves time, and may be lost: URLs of leased pages, sites known to be awake, and
    sites that it found empty and has not put to sleep yet."""

    def __init__(
        self,
        database: Database,
        job: str,
        settings: Settings,
        *,
        secret: bytes,
        revision: int,
        worker: str = "",
        region: str = "",
        shard: int = 0,
        alone: bool = True,
        context: ShardContext = ALONE,
    ) -> None:
        self.settings = settings
        self.secret = secret
        self.worker = worker
        self.region = region
        self.shard = shard
        self._left: Database | None = None
        """The database from which the shard came, should the present one turn out to have forgotten the arrival."""
        self._alone = alone
        self._database = database
        self._job = job
        self._revision = revision
        self._stripe = random.randrange(STRIPES)
        self._context = context
        self._admission = Admission(secret, context.region_of)
        self._pages: dict[int, dict[int, str]] = {}
        """Token -> key -> URL of each leased page: links found on the page store it as their referrer."""
        self._empty: set[int] = set()
        self._lulled_at = 0.0

    @property
    def conflicts(self) -> int:
        """Transactions that were repeated because of a conflict or a lost connection."""
        return self._database.conflicts

    async def add(self, requests: Sequence[Request]) -> int:
        return await self.admit([(request, "", 0) for request in requests])

    async def admit(self, links: Sequence[Link]) -> int:
        """Queue links whose keys are unknown, each with its referrer and its time; how many were new."""
        return (await self._admit(links))[0]

    async def _admit(self, links: Sequence[Link]) -> tuple[int, str]:
        """How many links were new, and the run of the server that acknowledged the first part.

        If the server restarts between two parts, the later run may lack the first part; the earlier run is reported,
        so that the outbox delivers all of them again."""
        added, run = 0, ""
        for first in range(0, len(links), MOST_LINKS):
            some = links[first : first + MOST_LINKS]

            async def work(call: Transaction, some: Any = some) -> tuple[int, str]:
                found = await self._admission.admit(call, some)
                await call.flush()
                return found, call.db.server_run

            found, now = await self._call(work, lock="share", rings=True)
            added, run = added + found, run or now
        return added, run

    async def lease(self, limit: int, *, batch: int, seconds: float, also: frozenset[str] = frozenset()) -> Grant:
        return (await self.lease_shard(limit, batch=batch, seconds=seconds, also=also)).grant

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
        """Lease from this shard, and report what the shard saw: see `Shard.lease_shard`.

        After the lease come two kinds of housekeeping, each in a transaction of its own: entries of the inbox are
        queued, and sites that were found empty are put to sleep. The latter is done once a second, for many sites at
        once, because it keeps all workers out that add requests; and always before this worker goes idle, since the
        grant must not say that a site is ready which has nothing. In both cases the lease is repeated if it was empty:
        there may be something now, or the job may be finished."""
        regions = list({self.region, ""} | also)

        async def work(call: Transaction) -> tuple[ShardGrant, set[int], bool]:
            await call.open(totals=True, regions=regions, most=limit)
            call.handed_elsewhere = handed_elsewhere
            leasing = Leasing(
                call, worker=self.worker, regions=regions, batch=batch, seconds=seconds, suspects=suspects
            )
            grant = await self._take(call, leasing, limit, seconds, over_quota=over_quota)
            answer = ShardGrant(grant, call.total("suspects"), leasing.passed_over, call.total("handed"))
            return answer, leasing.empty, call.has_inbox

        while True:
            answer, empty, has_inbox = await self._lease(work)
            grant = answer.grant
            if has_inbox and await self._drain() and not grant.leases:
                continue
            self._empty |= empty
            self._admission.forget_awake(empty)
            now = asyncio.get_running_loop().time()
            idle = not grant.leases and limit > 0
            if self._empty and (idle or len(self._empty) >= _MANY_EMPTY or now - self._lulled_at > _LULL_SECONDS):
                asleep, self._empty, self._lulled_at = self._empty, set(), now
                await self._call(lambda call, some=asleep: put_to_sleep(call, some), lock="whole", rings=True)  # type: ignore[misc]
                if idle:
                    # Sleeping sites say when they wake, and closing one may have finished the job: look again.
                    continue
            return answer

    async def _take(
        self, call: Transaction, leasing: Leasing, limit: int, seconds: float, *, over_quota: bool
    ) -> Grant:
        """Lease for this worker, and write the leases.

        The longest lease time is stored in the transaction of the first lease that uses it, so a restarted store knows
        for how long its lanes have to rest. The state is read again at the end: expiring a lease may have parked the
        last request of the job."""
        news = call.totals["news"]
        state = await self._state(call)
        if state != "running":
            outbox = await self._waiting(call)
            return Grant(job=state, news=news, run=call.run, outbox=outbox)  # type: ignore[arg-type]
        if seconds * 1e6 > call.longest:
            await call.db.fetch("set_longest", round(seconds * 1e6))
        await leasing.take(limit, over_quota=over_quota)
        await leasing.write()
        wait = await leasing.wait(limit)
        if wait is None and not leasing.leases and not leasing.empty:
            await call.check_not_damaged()
        leases = await self._leases(call, leasing, seconds)
        state, outbox = await self._state(call), await self._waiting(call)
        return Grant(leases=leases, wait=wait, job=state, news=news, run=call.run, outbox=outbox)  # type: ignore[arg-type]

    async def _lease(
        self, work: Callable[[Transaction], Awaitable[tuple[ShardGrant, set[int], bool]]]
    ) -> tuple[ShardGrant, set[int], bool]:
        lock = "stripe" if self.settings.max_pages is None else "shard"
        answer, empty, has_inbox = await self._call(work, opens=False, lock=lock)
        leases = answer.grant.leases
        for lease in leases:
            self._pages[lease.token] = {request.key: request.url for request in lease.requests}
        if unreadable := [lease for lease in leases if not lease.requests]:
            await self._park(unreadable)
            readable = tuple(lease for lease in leases if lease.requests)
            answer = answer._replace(grant=msgspec.structs.replace(answer.grant, leases=readable))
        return answer, empty, has_inbox

    async def _drain(self) -> int:
        """Queue entries of the inbox; how many."""
        return await drain(self._call, self._admission, secret=self.secret, forward=self._context.forward)

    async def _leases(self, call: Transaction, leasing: Leasing, seconds: float) -> tuple[Lease, ...]:
        kept: dict[int, tuple[dict[str, bytes], dict[str, Any]]] = {}
        if leasing.leases:
            for row in await call.db.fetch("notes", sorted({site.id for site, _, _ in leasing.leases})):
                kept[row[0]] = _decode_robots(row[1]), _decode(row[2])
        leases = []
        for site, held, rows in leasing.leases:
            robots, memo = kept.get(site.id, ({}, {}))
            leases.append(
                Lease(
                    site=site.name,
                    lane=held.lane,
                    token=held.token,
                    requests=tuple(self._read(rows, site.name)),
                    ttl=seconds,
                    delay=site.delay,
                    lanes=len(site.lanes),
                    robots=robots,
                    memo=memo,
                    suspect=held.suspect,
                )
            )
        return tuple(leases)

    def _read(self, rows: Sequence[QueueRow], site: str) -> Iterator[Request]:
        for row in rows:
            try:
                yield request_of(row, site)
            except ValueError as error:
                log.error(
                    "a request of %s cannot be read and is parked when its lease ends: %s: %.200r", site, error, row
                )

    async def _park(self, leases: Sequence[Lease]) -> None:
        """Park the requests of leases of which none can be read; they would come back with each expired lease."""

        async def work(call: Transaction) -> None:
            await call.lock({self._admission.site_id(lease.site) for lease in leases})
            for held in await call.load("leases_by_token", sorted(lease.token for lease in leases)):
                for key in list(held.batch):
                    call.finish(held, key, PARKED)
                call.end(held, rests_from=call.now)
            await call.flush()

        await self._call(work, rings=True)

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        """Extend leases that have not ended; those that are still ours.

        An ended lease is not revived, even if nobody has taken its lane yet: its holder stops at the end of the lease
        by its own clock, and must not start again."""
        if not leases:
            return []

        async def work(call: Transaction) -> set[int]:
            await call.lock({self._admission.site_id(lease.site) for lease in leases})
            ours = set()
            for held in await call.load("leases_by_token", sorted(lease.token for lease in leases)):
                _, lane = call.lane_of(held)
                if lane.token == held.token and held.until_at > call.now:
                    lane.until_at = call.now + round(seconds * 1e6)
                    call.held[held.token] = held._replace(until_at=lane.until_at)
                    call.changed.add(held.token)
                    call.touched.add(held.site)
                    ours.add(held.token)
            await call.flush()
            return ours

        ours = await self._call(work)
        for lease in leases:
            if lease.token not in ours:
                self._pages.pop(lease.token, None)
        return [msgspec.structs.replace(lease, ttl=seconds) for lease in leases if lease.token in ours]

    async def complete(
        self,
        outcomes: Sequence[Outcome],
        *,
        notes: Sequence[SiteNote] = (),
        marks: Mapping[str, int] | None = None,
        parcels: Sequence[Parcel] = (),
        run: str = "",
    ) -> Receipt:
        """Commit outcomes and their links, with notes and parcels. `run` guards links that other shards hold.

        Many outcomes are split into several transactions, between outcomes: an outcome and its links are always in one
        (P3). Notes and parcels go with the first. Parcels of a later part are then in the outbox before their page is
        done, which delivers links once more at worst."""
        accepted = stale = repeated = outbox = life = 0
        for some in outcome_batches(outcomes):
            found = await self._commit_batch(some, notes, parcels, run)
            accepted, stale = accepted + found.accepted, stale + found.stale
            repeated, outbox = repeated + found.repeated, outbox + found.parcels
            # The first run counts: a later one may lack what the first has acknowledged.
            life = life or found.run
            notes, parcels = (), ()
            for outcome in some:
                pages = self._pages.get(outcome.token, {})
                pages.pop(outcome.key, None)
                if not pages:
                    self._pages.pop(outcome.token, None)
        return Receipt(accepted=accepted, stale=stale, repeated=repeated, run=life, outbox=outbox)

    async def _commit_batch(
        self, outcomes: Sequence[Outcome], notes: Sequence[SiteNote], parcels: Sequence[Parcel], run: str
    ) -> CompletionResult:
        """Commit one part of the outcomes in one transaction.

        Refuses before anything is written if this server restarted since it took links of these pages for its other
        shards, since it may have forgotten those; and if the shard may move away, because the page could then be on
        another server than its links, which are in no outbox.

        A budget that turns out to be spent needs the whole lock: the transaction is undone and repeated with it."""
        closes = any(note.close is not None for note in notes)
        lock = "whole" if closes else "share" if any(outcome.links for outcome in outcomes) else ""

        async def work(call: Transaction) -> CompletionResult:
            if run and run != call.db.server_run:
                raise Unavailable(f"{call.db.server} was restarted since it accepted the links of these pages")
            if run and call.is_leaving:
                raise Leaving(f"shard {self.shard} of job {self._job!r} may move from {call.db.server}")
            settling = Completion(call, self._admission, whole=lock == "whole")
            await settling.settle(outcomes, notes, self._pages)
            await put(call, parcels)
            await call.flush()
            return CompletionResult(settling.accepted, settling.stale, settling.repeated, call.run, call.parcels)

        spoken: list[Outcome | SiteNote] = [*outcomes, *notes]
        ahead = [
            ("lock_sites", sorted({self._admission.site_id(given.site) for given in spoken})),
            ("leases_by_token", sorted({given.token for given in spoken})),
        ]
        try:
            return await self._call(work, lock=lock, rings=True, ahead=ahead)
        except NeedsWholeLock:
            lock = "whole"
            return await self._call(work, lock=lock, rings=True, ahead=ahead)

    async def release(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._pages.pop(lease.token, None)
        if not leases:
            return

        async def work(call: Transaction) -> None:
            await call.lock({self._admission.site_id(lease.site) for lease in leases})
            for held in await call.load("leases_by_token", sorted(lease.token for lease in leases)):
                call.end(held, rests_from=call.now)
            await call.flush()

        await self._call(work, rings=True)

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Take back at once what a dead worker held; only the `blamed` keys count as lost with it (P10).

        The lanes rest for one delay from now, because the worker may have sent a request a moment ago (P5)."""

        async def work(call: Transaction) -> int:
            await call.lock({row[1] for row in await call.db.fetch("leases_of_worker", worker)})
            gone = 0
            for held in await call.load("leases_of_worker", worker):
                if held.site in call.sites:
                    site, _ = call.lane_of(held)
                    await call.take_back(held, rests_from=call.now + site.rest, blamed=blamed)
                    gone += 1
            await call.flush()
            return gone

        return await self._call(work, rings=True)

    async def idle(self, grant: Grant) -> None:
        """Wait for news of the shard, at most until the grant says that something is due, and at most 15 s.

        PostgreSQL sends a notification; MariaDB and MySQL are polled with growing pauses."""
        wait = _LONGEST_SLEEP_SECONDS if grant.wait is None else min(grant.wait, _LONGEST_SLEEP_SECONDS)
        database = self._database
        try:
            async with asyncio.timeout(wait):
                for number in range(1_000_000):
                    if await database.run(lambda db: db.watch(grant.news), whole=False):
                        return
                    if await database.dialect.wait_for_news(number, database.shard):
                        return
        except TimeoutError:
            pass
        except Unavailable:
            # The next lease reports the error if it lasts; here only avoid a busy loop.
            await asyncio.sleep(min(wait, 1.0))

    async def _is_over(self, call: Transaction) -> bool:
        """Whether nothing is left to do (P6).

        Leased requests may bring links, parcels may have to be delivered again, and entries of the inbox wait to be
        queued; future revisits count only in a continuous crawl."""
        if call.total("leased") > 0:
            return False
        if call.most is not None and call.total("kept") >= call.most:
            return True
        if await self._waiting(call):
            return False
        if call.has_inbox or call.total("queued") + call.total("delayed") > call.total("revisits"):
            return False
        if call.total("revisits") > 0:
            if call.settings.recrawl:
                return False
            (row,) = await call.db.fetch("any_due", call.now)
            return not row[0]
        return True

    async def _state(self, call: Transaction) -> str:
        return "finished" if call.state == "running" and await self._is_over(call) else call.state

    async def aclose(self) -> None:
        await (self._context.close or self._database.aclose)()

    async def _call(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        lock: str = "",
        opens: bool = True,
        rings: bool = False,
        ahead: Sequence[tuple[Any, ...]] = (),
        repeats: bool = True,
    ) -> T:
        """Run one call as one transaction, with the present settings, wherever the shard is now.

        `work` may run several times. `ahead` names the statements that it will run first, so that they travel with the
        opening of the transaction."""

        async def run(dialect: Dialect) -> T:
            call = Transaction(
                dialect, self.settings, job=self._job, revision=self._revision, stripe=self._stripe, alone=self._alone
            )
            if opens:
                dialect.ahead(*ahead)
                await call.open()
            return await work(call)

        while True:
            try:
                return await self._database.run(run, lock=lock, stripe=self._stripe, rings=rings, repeats=repeats)
            except Changed:
                await self._reload()
            except Moved as moved:
                await self._pursue(moved)
                await self._reload()
            except JobMissing:
                if self._left is None:
                    raise
                # This server has forgotten that the shard came; its earlier place may still have it.
                self._database, self._left = self._left, None

    async def _pursue(self, moved: Moved) -> None:
        """Find a shard whose row says that it may be elsewhere; afterwards `_database` is where to repeat the call.

        A copy that is still ARRIVING here, after the shard was found here before, means that this server has forgotten
        the end of the move: go back to the source. A shard that LEAVES is waited for, as long as its mover shows
        heartbeats. In all other phases the target is asked (`decide`)."""
        here, phase, place = self._database, moved.phase, moved.where.target
        if phase == ARRIVING and self._left is not None:
            self._database, self._left = self._left, None
            return
        if phase == ARRIVING or (phase == LEAVING and not await is_abandoned(here)):
            raise moved.waits(self._job, self.server)
        follow, reach = self._context.follow, self._context.reach
        if follow is None or reach is None:
            if phase in (LEAVING, ANNOUNCED):
                raise moved.waits(self._job, self.server)
            raise FrontierError(
                f"shard {self.shard} of job {self._job!r} has moved to {place}", hint="use that address"
            )
        if phase == GONE or await decide(here, reach(place), self._job, self.shard, moved):
            try:
                self._database, self._left = await follow(place), here
            except JobMissing:
                # The target forgot the shard between `decide` and this read.
                if phase == GONE:
                    raise
                raise moved.waits(self._job, self.server) from None

    async def refresh(self) -> None:
        await self._reload()

    def apply(self, settings: Settings) -> None:
        """Nothing to do: each shard reads the settings from its own record."""

    async def _reload(self) -> None:
        async def read(dialect: Dialect) -> Any:
            return await dialect.fetch("settings")

        for row in await self._database.run(read, whole=False):
            self.settings, self._revision = configuration.build(msgspec.json.decode(row[0])), row[1]
