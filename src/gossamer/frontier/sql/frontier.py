"""The frontier of one shard in a database, its control, and its share of the page limit."""

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
from gossamer.frontier.policy import MOST_LINKS, portions
from gossamer.frontier.recrawl import share_of
from gossamer.frontier.sql.completion import Admission, Forward, Link, Settling, drain, site_of
from gossamer.frontier.sql.database import Database, Dialect, digest
from gossamer.frontier.sql.handover import ANNOUNCED, ARRIVING, GONE, LEAVING, Moved, decide, is_abandoned
from gossamer.frontier.sql.leasing import Leasing, lull
from gossamer.frontier.sql.outbox import SqlOutbox, put
from gossamer.frontier.sql.repair import SqlRepair
from gossamer.frontier.sql.transaction import (
    MICRO,
    PARKED,
    STRIPES,
    SUSPECT,
    WORDS,
    Changed,
    NeedsWhole,
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
    """What a job of several shards needs of each; nobody leases from the shard meanwhile."""

    _call: Callable[..., Awaitable[Any]]

    async def set_limit(self, pages: int | None, *, reserved: int | None = None) -> int:
        """Begin, or end, to have a part of what the job may store; how many pages that part is."""

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

    async def reserve(self, pages: int, *, limit: int) -> tuple[int, int]:
        """Take pages from what is left of the job's limit, or give them back; how many, and what is left then."""

        async def work(call: Transaction) -> tuple[int, int]:
            ((allowance, reserved),) = await call.db.fetch("ledger")
            if reserved is None:
                return 0, 0
            left = limit - reserved
            # Where the limit was lowered, less than nothing may be left: none of that is taken back here.
            taken = max(0, min(pages, left)) if pages > 0 else max(pages, -reserved)
            if taken:
                await call.db.fetch("set_ledger", allowance, reserved + taken)
            return taken, left - taken

        found: tuple[int, int] = await self._call(work, lock="shard")
        return found

    async def allow(self, pages: int) -> tuple[int, int]:
        """Let this shard store more, or less; only what is not used can be taken away. How many, and what is left."""

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

        found: tuple[int, int] = await self._call(work, lock="shard", opens=False, rings=True)
        return found


_COMPACT_ROWS = 10_000
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_robots = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_WAITING = {1: "done", 2: "failed", 3: "skipped"}


_LOWEST = -(1 << 63)


class SqlSteering(SqlOutbox):
    """The part of a frontier that is not on the way of a page."""

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
            # A site without requests is struck off when a worker comes to it: no more are ready than wait.
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
        """Throw away the rows of URLs that were finished that long ago; they stay known. How many.

        It may be stopped at any time and run again: it deletes some rows at a time."""
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


class Settled(NamedTuple):
    """What became of one `complete`, by which life of the store."""

    accepted: int
    stale: int
    repeated: int
    run: int
    parcels: int


@dataclass(frozen=True, slots=True)
class ShardContext:
    """What a shard needs of its job's other shards and databases; where nothing is given, it has none."""

    region_of: Callable[[str], str] | None = None
    """The region of a new site, empty if it has none. Without it no site has one, and every worker may lease it."""
    forward: Forward | None = None
    """Delivers links of the inbox that belong to other shards."""
    reach: Callable[[str], Database] | None = None
    """The connection to another database, by its name."""
    follow: Callable[[str], Awaitable[Database]] | None = None
    """Opens the database that the shard has moved to."""
    close: Callable[[], Awaitable[None]] | None = None
    """Closes all connections, where there are more than that of the shard."""


ALONE = ShardContext()


class SqlFrontier(SqlSteering, SqlLedger, SqlRepair):
    """The frontier of one shard of a job; any number of these, in any number of processes, share it."""

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
        """The database from which the shard came here, while that may be forgotten."""
        self._alone = alone
        self._database = database
        self._job = job
        self._revision = revision
        self._stripe = random.randrange(STRIPES)
        self._context = context
        self._admission = Admission(secret, context.region_of)
        self._pages: dict[int, dict[int, str]] = {}
        """Token -> key -> URL of what is leased here: the links found there name it."""
        self._empty: set[int] = set()
        self._lulled_at = 0.0

    @property
    def conflicts(self) -> int:
        """Transactions that had to be begun anew, because of others or of a lost connection."""
        return self._database.conflicts

    async def add(self, requests: Sequence[Request]) -> int:
        return await self.admit([(request, "", 0) for request in requests])

    async def admit(self, links: Sequence[Link]) -> int:
        """Queue what is not known yet, each with its referrer and its time; how many those were."""
        return (await self._admit(links))[0]

    async def _admit(self, links: Sequence[Link]) -> tuple[int, str]:
        """How many were new, and the first run of the server that has some of them."""
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
        """As `lease`, and what the shard saw: see `Shard.lease_shard`."""
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
            self._admission.doubt(empty)
            now = asyncio.get_running_loop().time()
            idle = not grant.leases and limit > 0
            if self._empty and (idle or len(self._empty) >= _MANY_EMPTY or now - self._lulled_at > _LULL_SECONDS):
                asleep, self._empty, self._lulled_at = self._empty, set(), now
                await self._call(lambda call, some=asleep: lull(call, some), lock="whole", rings=True)  # type: ignore[misc]
                if idle:
                    # What sleeps now says when it wakes, and a site that was closed may have been the last one.
                    continue
            return answer

    async def _take(
        self, call: Transaction, leasing: Leasing, limit: int, seconds: float, *, over_quota: bool
    ) -> Grant:
        """Lease what this worker may have, and write it down."""
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
            await call.must_be_whole()
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
        """Give up what no worker can read."""

        async def work(call: Transaction) -> None:
            await call.lock({self._admission.site_id(lease.site) for lease in leases})
            for held in await call.load("leases_by_token", sorted(lease.token for lease in leases)):
                for key in list(held.batch):
                    call.finish(held, key, PARKED)
                call.end(held, rests_from=call.now)
            await call.flush()

        await self._call(work, rings=True)

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
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
        accepted = stale = repeated = outbox = life = 0
        for some in portions(outcomes):
            found = await self._settle(some, notes, parcels, run)
            accepted, stale = accepted + found.accepted, stale + found.stale
            repeated, outbox = repeated + found.repeated, outbox + found.parcels
            # A later run may lack what the first acknowledged.
            life = life or found.run
            notes, parcels = (), ()
            for outcome in some:
                pages = self._pages.get(outcome.token, {})
                pages.pop(outcome.key, None)
                if not pages:
                    self._pages.pop(outcome.token, None)
        return Receipt(accepted=accepted, stale=stale, repeated=repeated, run=life, outbox=outbox)

    async def _settle(
        self, outcomes: Sequence[Outcome], notes: Sequence[SiteNote], parcels: Sequence[Parcel], run: str
    ) -> Settled:
        closes = any(note.close is not None for note in notes)
        lock = "whole" if closes else "share" if any(outcome.links for outcome in outcomes) else ""

        async def work(call: Transaction) -> Settled:
            if run and run != call.db.server_run:
                raise Unavailable(f"{call.db.server} was started again since it took the links of these pages")
            if run and call.is_leaving:
                raise Leaving(f"shard {self.shard} of job {self._job!r} may move from {call.db.server}")
            settling = Settling(call, self._admission, whole=lock == "whole")
            await settling.settle(outcomes, notes, self._pages)
            await put(call, parcels)
            await call.flush()
            return Settled(settling.accepted, settling.stale, settling.repeated, call.run, call.parcels)

        spoken: list[Outcome | SiteNote] = [*outcomes, *notes]
        ahead = [
            ("lock_sites", sorted({self._admission.site_id(given.site) for given in spoken})),
            ("leases_by_token", sorted({given.token for given in spoken})),
        ]
        try:
            return await self._call(work, lock=lock, rings=True, ahead=ahead)
        except NeedsWhole:
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
        async def work(call: Transaction) -> int:
            await call.lock({row[1] for row in await call.db.fetch("leases_of_worker", worker)})
            gone = 0
            for held in await call.load("leases_of_worker", worker):
                if held.site in call.sites:
                    site, _ = call.lane_of(held)
                    await call.lapse(held, rests_from=call.now + site.rest, blamed=blamed)
                    gone += 1
            await call.flush()
            return gone

        return await self._call(work, rings=True)

    async def idle(self, grant: Grant) -> None:
        wait = _LONGEST_SLEEP_SECONDS if grant.wait is None else min(grant.wait, _LONGEST_SLEEP_SECONDS)
        database = self._database
        try:
            async with asyncio.timeout(wait):
                for number in range(1_000_000):
                    if await database.run(lambda db: db.watch(grant.news), whole=False):
                        return
                    if await database.dialect.heard(number, database.shard):
                        return
        except TimeoutError:
            pass
        except Unavailable:
            # Whoever asks next will hear what is wrong.
            await asyncio.sleep(min(wait, 1.0))

    async def _is_over(self, call: Transaction) -> bool:
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
    ) -> T:
        """Run one call as one transaction; with the job's settings as they are now.

        `ahead`: what it will ask first."""

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
                return await self._database.run(run, lock=lock, stripe=self._stripe, rings=rings)
            except Changed:
                await self._reload()
            except Moved as moved:
                await self._pursue(moved)
                await self._reload()
            except JobMissing:
                if self._left is None:
                    raise
                # This server has forgotten that the shard came; where it was before it may still be.
                self._database, self._left = self._left, None

    async def _pursue(self, moved: Moved) -> None:
        """Find the shard, where its row says that it may be elsewhere."""
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
                f"shard {self.shard} of job {self._job!r} has gone to {place}", hint="give that address"
            )
        if phase == GONE or await decide(here, reach(place), self._job, self.shard, moved):
            try:
                self._database, self._left = await follow(place), here
            except JobMissing:
                # It may have forgotten that between two questions.
                if phase == GONE:
                    raise
                raise moved.waits(self._job, self.server) from None

    async def refresh(self) -> None:
        await self._reload()

    def apply(self, settings: Settings) -> None:
        """Each shard reads its own record."""

    async def _reload(self) -> None:
        async def read(dialect: Dialect) -> Any:
            return await dialect.fetch("settings")

        for row in await self._database.run(read, whole=False):
            self.settings, self._revision = configuration.build(msgspec.json.decode(row[0])), row[1]
