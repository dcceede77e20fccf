"""The frontier of one shard of a job in a database: every call is one transaction, and the server's clock rules."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from gossamer import settings as configuration
from gossamer.errors import FrontierError, JobMissing, Leaving, Unavailable
from gossamer.frontier.outbox import Parcel
from gossamer.frontier.portions import MOST_LINKS, portions
from gossamer.frontier.sharded import ShardGrant
from gossamer.frontier.sql.call import STRIPES, Changed, NeedsWhole, Transaction
from gossamer.frontier.sql.database import Database, Dialect
from gossamer.frontier.sql.handover import ANNOUNCED, ARRIVING, GONE, LEAVING, Moved, decide, is_abandoned
from gossamer.frontier.sql.inbox import Forward, drain
from gossamer.frontier.sql.leasing import Leasing, lull
from gossamer.frontier.sql.ledger import SqlLedger
from gossamer.frontier.sql.outbox import put
from gossamer.frontier.sql.repair import SqlRepair
from gossamer.frontier.sql.rows import PARKED, QueueRow, request_of
from gossamer.frontier.sql.settling import Admission, Link, Settling
from gossamer.frontier.sql.steering import SqlSteering
from gossamer.model import Grant, Lease, Outcome, Receipt, Request, SiteNote
from gossamer.settings import Settings

_LONGEST_SLEEP_SECONDS = 15.0
_LULL_SECONDS = 1.0
_MANY_EMPTY = 512
log = logging.getLogger("gossamer.frontier")
_decode_robots = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
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
