"""One frontier call as one transaction: the rows of sites, lanes, and requests that it reads and writes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from gossamer.errors import FrontierError, JobMissing
from gossamer.frontier import policy
from gossamer.frontier.packing import expand, squeeze
from gossamer.frontier.sql.database import Dialect, connection_run
from gossamer.frontier.sql.handover import ANNOUNCED, Moved, ShardLocation
from gossamer.model import Request
from gossamer.settings import Settings

NEVER = 1 << 62
MICRO = 1_000_000


class SqlLane(msgspec.Struct, array_like=True, gc=False):
    """One lane: who holds it until when, when it is allowed next, and the token that it was last settled with."""

    token: int = 0
    until_at: int = 0
    next_at: int = 0
    settled: int = 0
    restart: int = 0
    """The last run of the store in which the lane was leased, or has rested."""


class _Kept(msgspec.Struct, array_like=True, gc=False):
    allowed: int = 1
    leased: int = 0
    kept: int = 0
    budget: int | None = None
    own: float | None = None
    asked: float = 0.0
    rules: bool = False
    lanes: list[SqlLane] = []
    half: int = 0
    """The half of the quota's window in which requests were handed out last; how many, and in the one before it."""
    handed: int = 0
    before: int = 0
    turn: int = 0
    """How many requests had been handed out to all, when some were to this site."""


_encode_site = msgspec.msgpack.Encoder().encode
_decode_site = msgspec.msgpack.Decoder(_Kept).decode


class SqlSite:
    """A site. Times are whole microseconds."""

    __slots__ = ("closed", "hold_at", "id", "kept", "name", "ready_at", "region", "settings")

    def __init__(self, row: Any, settings: Settings) -> None:
        self.id, self.name, self.region, self.ready_at, self.hold_at, self.closed, lanes = row
        self.kept = _decode_site(lanes)
        self.settings = settings

    @property
    def lanes(self) -> list[SqlLane]:
        """The lanes that are open; at least one."""
        return self.kept.lanes

    @property
    def delay(self) -> float:
        """Seconds between two requests of one lane."""
        given = self.settings.sites.get(self.name)
        own = self.kept.own if given is None or given.delay is None else given.delay
        return max(self.settings.delay if own is None else own, self.kept.asked) * len(self.kept.lanes)

    @property
    def rest(self) -> int:
        """The same in microseconds."""
        return round(self.delay * MICRO)

    @property
    def room(self) -> int:
        """How many more requests the budget allows."""
        return NEVER if self.kept.budget is None else self.kept.budget - self.kept.kept - self.kept.leased

    def _handed(self, half: int) -> tuple[int, int]:
        age = half - self.kept.half
        if age <= 0:
            return self.kept.handed, self.kept.before
        return 0, self.kept.handed if age == 1 else 0

    def share_left(self, half: int) -> int:
        """How many more requests are within its share of the fetches."""
        most = max(1, int(self.settings.site_share * self.settings.share_window))
        return max(0, most - sum(self._handed(half)))

    def count_share(self, half: int, requests: int) -> None:
        """So many were handed out in this half of the window."""
        handed, before = self._handed(half)
        self.kept.half, self.kept.handed, self.kept.before = max(half, self.kept.half), handed + requests, before

    @property
    def is_spent(self) -> bool:
        """Whether its budget is used up for good."""
        return not self.closed and self.room <= 0 and self.kept.leased == 0

    def ready(self, lane: SqlLane) -> int:
        """When a lane could be leased if something were queued; one whose holder is silent, when it has rested."""
        if lane.token:
            return lane.until_at + self.rest
        return max(lane.next_at, int(self.hold_at))

    @property
    def wake_at(self) -> int:
        """When the first lane could be leased if something were queued."""
        return min(self.ready(lane) for lane in self.kept.lanes)

    def open_lanes(self, rests_from: int) -> None:
        """Open what is allowed, once its robots.txt is known.

        New lanes start one delay apart, from where the first one's rest is counted from: no two in the same moment."""
        if not (self.kept.rules or not self.settings.robots):
            return
        step = self.rest // len(self.kept.lanes)
        for number in range(len(self.kept.lanes), self.kept.allowed):
            self.kept.lanes.append(SqlLane(next_at=rests_from + step * number))

    def free(self, lane: SqlLane, *, rests_from: int) -> None:
        """Take a lane back from its holder."""
        lane.token = 0
        self.open_lanes(rests_from)
        lane.next_at = max(lane.next_at, rests_from + self.rest)

    def row(self) -> tuple[Any, ...]:
        """id, ready_at, wake_at, hold_at, region, closed, lanes."""
        return (self.id, self.ready_at, self.wake_at, self.hold_at, self.region, self.closed, _encode_site(self.kept))


def new_site(site: int, name: str, settings: Settings, *, region: str, ready_at: int, now: int) -> tuple[Any, ...]:
    """The first row of a site: id, name, region, ready_at, wake_at, lanes."""
    own = settings.for_site(name)
    given = settings.sites.get(name)
    kept = _Kept(
        allowed=own.lanes or 1,
        budget=own.budget,
        own=None if given is None else given.delay,
        lanes=[SqlLane(next_at=now)],
    )
    found = SqlSite((site, name, region, now, 0, "", _encode_site(kept)), settings)
    found.open_lanes(now)
    return (site, name, region, ready_at, found.wake_at, _encode_site(found.kept))


SUSPECT, TIMED, WAITING = 0, 1, 2
"""Places: what goes alone, what has a time, and the rest."""
DONE, FAILED, SKIPPED, PARKED, RETRY = 1, 2, 3, 4, 5
REVISITS = (DONE, FAILED, SKIPPED)
"""What a request was, while its next visit has not come."""
STATUS = {"done": DONE, "failed": FAILED, "skipped": SKIPPED, "parked": PARKED}
WORDS = {number: word for word, number in STATUS.items()}


class QueueRow(NamedTuple):
    """One row of the queue. `again` says what it is counted as while its time has not come."""

    site: int
    place: int
    standing: int
    age: int
    id: int
    url: str
    depth: int
    priority: int
    tries: int
    lapses: int
    again: int
    extra: bytes | None


class _Extra(msgspec.Struct, array_like=True, frozen=True, gc=False):
    referrer: str = ""
    hops: int = 0
    state: dict[str, Any] | None = None
    label: str = ""
    meta: dict[str, Any] | None = None
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes = b""
    url: str = ""
    """The URL, where the database cannot hold it as text."""


_NONE = _Extra()
_CHANGES = itemgetter(7, 8, 9, 10)
_encode_row = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(_Extra).decode


def rows_of(
    links: Iterable[tuple[Request, str, int]], sites: Mapping[str, int], age: int, *, strategy: str
) -> list[tuple[Any, ...]]:
    """The fields of a `Row` for each of these requests that nobody knew, as they wait, one after another.

    Beside each is the page that it was found on. All in one loop: it runs for every new link."""
    found: list[tuple[Any, ...]] = []
    ranks: dict[tuple[int, int, int], int] = {}
    foreign: dict[str, bytes] = {}
    usual = strategy not in ("dfs", "random")
    for request, referrer, _ in links:
        url, name, priority, depth, hops = request.url, request.site, request.priority, request.depth, request.hops
        age += 1
        end = len(name) + 8
        # The usual case of `squeeze`, which is half as fast.
        short = url[end:] if url[end : end + 1] == "/" and url[:end] == "https://" + name else squeeze(url, name)
        hidden = ""
        if "\0" in short:
            short, hidden = "=" + url.replace("\0", "\ufffd"), url
        place, standing = WAITING, ranks.get((priority, depth, hops))
        if standing is None:
            standing = policy.rank(strategy, priority=priority, depth=depth, hops=hops)
            ranks[priority, depth, hops] = standing
        if standing == policy.HEAD:
            place, standing = TIMED, 0
        special = request.label or request.meta or request.method != "GET" or request.headers or request.body
        if special or hidden or hops or request.state is not None or request.referrer:
            extra = _extra(request, request.referrer or referrer, hidden)
        elif not referrer:
            extra = None
        elif referrer.find(name, 7, end) >= 0:
            extra = _encode_row((squeeze(referrer, name),))
        else:
            extra = foreign.get(referrer)
            if extra is None:
                extra = foreign[referrer] = _encode_row(("=" + referrer,))
        turn = age if usual or place == TIMED else -age if strategy == "dfs" else random.getrandbits(62)
        found.append(
            (sites[name], place, standing, turn, request.key, short, depth, priority, request.tries, 0, 0, extra)
        )
    return found


def is_changed(rows: Iterable[Sequence[Any]]) -> bool:
    """Whether one of these has what a request does not have when it is new: a priority, tries, lapses or a time."""
    return any(map(any, map(_CHANGES, rows)))


def _extra(request: Request, referrer: str, url: str) -> bytes | None:
    """What most requests have little of; None for nothing."""
    origin = squeeze(referrer, request.site) if referrer else ""
    short = (origin, request.hops, request.state)
    if request.label or request.meta or request.method != "GET" or request.headers or request.body or url:
        return _encode_row((*short, request.label, request.meta, request.method, request.headers, request.body, url))
    if request.hops or request.state is not None:
        return _encode_row(short)
    return _encode_row((origin,)) if referrer else None


def request_of(row: Sequence[Any], site: str) -> Request:
    """The request again; ValueError if it is none."""
    _, _, _, _, key, url, depth, priority, tries, _, _, packed = row
    try:
        extra = _decode_row(packed) if packed is not None else _NONE
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    return Request(
        extra.url or expand(url, site), key, site, priority, depth, extra.hops, tries,
        expand(extra.referrer, site) if extra.referrer else "", extra.label, extra.meta, extra.method, extra.headers,
        extra.body, extra.state,
    )  # fmt: skip


def state_of(packed: bytes | None) -> dict[str, Any] | None:
    """What the last visit left, of the extra part."""
    return _decode_row(packed).state if packed is not None else None


def with_state(packed: bytes | None, state: dict[str, Any] | None) -> bytes | None:
    """The extra part with what a visit left."""
    extra = _decode_row(packed) if packed is not None else _NONE
    if extra.state == state:
        return packed
    return _encode_row(msgspec.structs.replace(extra, state=state))


COUNTERS = (
    "queued", "delayed", "leased", "held", "done", "failed", "skipped", "parked", "stale", "kept", "revisits",
    "suspects", "known", "sites", "news", "handed",
)  # fmt: skip
STRIPES = 32
TURNS = 1024
"""Microseconds within which the order of sites that are ready is that of their last leases."""
_STEP_BACK_MICRO = MICRO
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[tuple[int, int, int, int]]).decode


class NeedsWhole(Exception):
    """The call has to keep others out, and did not know that when it began: to be done anew with the whole lock."""


class Changed(Exception):
    """The job has other settings by now: to be read before the call is tried again."""


class HeldLane(NamedTuple):
    """A row of the leases; `batch` holds key -> place, standing, age of what is not settled."""

    token: int
    site: int
    lane: int
    until_at: int
    suspect: bool
    worker: str
    batch: dict[int, tuple[int, int, int]]

    def at(self, key: int) -> tuple[int, int, int, int, int]:
        """Where the queue has one request of the batch."""
        return (self.site, *self.batch[key], key)


class Transaction:
    """What a call knows and what it will write."""

    def __init__(
        self, dialect: Dialect, settings: Settings, *, job: str, revision: int, stripe: int, alone: bool
    ) -> None:
        self.db = dialect
        self.settings = settings
        self._job = job
        self._revision = revision
        self.stripe = stripe
        self._alone = alone
        self.most: int | None = None
        """How many pages may be stored here."""
        self.now = 0
        self.state = "running"
        self.totals: dict[str, int] = {}
        self.last_token = 0
        self.token = 0
        self.restarts = 0
        self.rest_until = 0
        self.longest = 0
        self.handed_elsewhere = 0
        """Requests that the other shards have handed out."""
        self.has_inbox = False
        self.is_leaving = False
        """Whether the shard may move to another server."""
        self.lulls = 0
        """How often sites were put to sleep or closed."""
        self.tally = dict.fromkeys(COUNTERS, 0)
        self.fresh = (0, 0)
        """By how much the pages that come again, and millionths of their freshness, have grown."""
        self.ready: dict[str, list[Sequence[Any]]] = {}
        """Region -> rows of sites that were ready when the call began, to be taken once."""
        self.sites: dict[int, SqlSite] = {}
        self.touched: set[int] = set()
        self.held: dict[int, HeldLane] = {}
        self.changed: set[int] = set()
        self.ended: set[int] = set()
        self.finished: list[tuple[int, ...]] = []
        self.again: list[QueueRow] = []
        self.dropped: list[tuple[int, ...]] = []
        self.asleep: dict[int, int | None] = {}
        self.given: list[tuple[Any, ...]] = []
        self.parcels = 0
        """How many were put into the outbox."""

    async def open(
        self, *, totals: bool = False, writes: bool = True, regions: Sequence[str] = (), most: int = 0
    ) -> None:
        """Read the clock and the job; with `totals`, the counts too.

        With `regions`, lock up to `most` sites of each that are ready."""
        asks = [("take_due", region, most) for region in regions]
        if asks:
            self.db.ahead(*asks)
        found = await self.db.fetch("moment" if totals else "brief_moment")
        if not found:
            raise JobMissing(
                f"job {self._job!r} is not in this database any more", hint="was the database emptied or restored?"
            )
        self.ready = {ask[1]: await self.db.fetch(*ask) for ask in asks}
        row = found[0]
        state, revision, clock, skew, self.restarts, self.rest_until, self.longest, allowance, phase, place, *rest = row
        if phase:
            where = ShardLocation.read(place)
            if phase != ANNOUNCED or where.run != self.db.server_run:
                raise Moved(int(phase), where)
            self.is_leaving = True
        if revision != self._revision:
            raise Changed
        if totals:
            self.totals = dict(zip(COUNTERS, map(int, rest), strict=False))
            token, latest, inbox = rest[len(COUNTERS) :]
            self.last_token, latest, self.has_inbox = int(token), int(latest), bool(inbox)
        else:
            latest, self.lulls = int(rest[0] or 0), int(rest[1])
        self.state = state
        self.most = self.settings.max_pages if self._alone else allowance
        # Within a job time never steps back: where the server's does, it goes on from where it was.
        if latest - (clock + skew) > _STEP_BACK_MICRO:
            skew = latest - clock
            if writes:
                await self.db.fetch("set_skew", skew)
        self.now = max(clock + skew, latest)

    @property
    def run(self) -> int:
        """The life of the store that this call is answered by."""
        return connection_run(self.db)

    @property
    def room(self) -> int:
        """How many more requests may be handed out."""
        return NEVER if self.most is None else self.most - self.total("kept") - self.total("leased")

    def total(self, name: str) -> int:
        return self.totals[name] + self.tally[name]

    def count(self, name: str, by: int = 1) -> None:
        self.tally[name] += by

    @property
    def half(self) -> int:
        """The number of the half of the quota's window that is being filled (see `share`).

        All that was ever handed out is summed over the stripes, so no row is everybody's; what others hand out in
        this moment is not in it yet."""
        return (self.total("handed") + self.handed_elsewhere) // max(1, self.settings.share_window // 2)

    async def lock(self, ids: Iterable[int], *, skip: bool = False) -> None:
        """Lock sites, in their order; with `skip`, those that nobody else has locked."""
        wanted = sorted(set(ids) - self.sites.keys())
        if wanted:
            for row in await self.db.fetch("try_sites" if skip else "lock_sites", wanted):
                self.sites[row[0]] = SqlSite(row, self.settings)

    async def load(self, name: str, *given: Any) -> list[HeldLane]:
        """Leases, as a statement finds them; those that this call has ended are over."""
        found = []
        for row in await self.db.fetch(name, *given):
            token = row[0]
            if token not in self.held and token not in self.ended:
                batch = {key: (place, standing, age) for key, place, standing, age in _decode(row[6])}
                self.held[token] = HeldLane(token, row[1], row[2], row[3], bool(row[4]), row[5], batch)
            if token in self.held:
                found.append(self.held[token])
        return found

    def lane_of(self, held: HeldLane) -> tuple[SqlSite, SqlLane]:
        """The lane of a lease whose site is locked."""
        site = self.sites.get(held.site)
        if site is None or held.lane >= len(site.lanes):
            raise FrontierError(
                f"job {self._job!r} is damaged: a leased site is gone", hint="did something else write to its tables?"
            )
        return site, site.lanes[held.lane]

    def finish(self, held: HeldLane, key: int, status: int, code: int = 0) -> None:
        """Take a request out of a lease and out of the queue, for good."""
        self.finished.append((*held.at(key), status, min(max(code, 0), 32_767)))
        self._take_out(held, key)
        self.count(WORDS[status])

    def _take_out(self, held: HeldLane, key: int) -> None:
        place = held.batch.pop(key)[0]
        self.sites[held.site].kept.leased -= 1
        self.count("leased", -1)
        if place == SUSPECT:
            self.count("suspects", -1)
        self.changed.add(held.token)
        self.touched.add(held.site)

    def requeue(self, held: HeldLane, old: QueueRow, new: QueueRow) -> None:
        """Take a request out of a lease, and have it wait for its time."""
        self.dropped.append(held.at(old.id))
        self._take_out(held, old.id)
        self.again.append(new)
        self.count("delayed")

    def end(self, held: HeldLane, *, rests_from: int) -> None:
        """Take a lane back; what is left of its batch waits where it always was."""
        site, lane = self.lane_of(held)
        if held.batch and site.closed:
            status = closed_status(site.closed)
            for key in list(held.batch):
                self.finish(held, key, status)
        left = len(held.batch)
        site.kept.leased -= left
        self.count("leased", -left)
        self.count("queued", left)
        site.free(lane, rests_from=rests_from)
        self.held.pop(held.token, None)
        self.ended.add(held.token)
        self.changed.discard(held.token)
        self.touched.add(site.id)
        self.count("held", -1)
        self.count("news")

    async def lapse(self, held: HeldLane, *, rests_from: int, blamed: Sequence[int] | None = None) -> None:
        """A holder died: count that against the requests that it had, isolate them, park them."""
        site, _ = self.lane_of(held)
        keys = [key for key in held.batch if blamed is None or key in set(blamed)]
        if keys:
            for found in await self.db.bulk("rows_at", [held.at(key) for key in keys]):
                row = QueueRow(*found)
                lapses = row.lapses + 1
                if lapses >= self.settings.max_deliveries:
                    self.finish(held, row.id, PARKED)
                    continue
                # A suspect goes to the end of them, so that each has its turn.
                place, standing = (SUSPECT, self.now) if lapses >= 2 else (row.place, row.standing)
                await self.db.bulk("drop_rows", [row[:5]])
                await self.db.insert_rows([row._replace(place=place, standing=standing, lapses=lapses)])
                if place != row.place:
                    self.count("suspects")
                held.batch[row.id] = (place, standing, row.age)
        self.end(held, rests_from=rests_from - site.rest)

    async def close(self, site: SqlSite, reason: str) -> None:
        """Give up what waits at a site. The caller has the whole lock, so nobody is adding to it."""
        keep = [key for held in await self.load("leases_of_sites", [site.id]) for key in held.batch]
        status = closed_status(reason)
        await self.settle_rows()
        for place, again, number in await self.db.close_site(site.id, keep, status, self.now):
            number = int(number)
            if again in REVISITS:
                self.count("revisits", -number)
                self.count("delayed", -number)
            else:
                self.count("delayed" if again == RETRY else "queued", -number)
                self.count(WORDS[status], number)
            if place == SUSPECT:
                self.count("suspects", -number)
        site.closed = reason
        self.touched.add(site.id)
        await self.db.fetch("count_lull")

    async def must_be_whole(self) -> None:
        """Refuse a job in which requests wait, and no site is there that has them: somebody has deleted rows."""
        if self.total("held") == 0 and self.total("queued") > 0:
            (row,) = await self.db.fetch("any_ready")
            if not row[0]:
                raise FrontierError(
                    f"job {self._job!r} is damaged: {self.total('queued')} requests wait, and no site has them",
                    hint="did something else write to its tables?",
                )

    async def settle_rows(self) -> None:
        """Write what became of requests."""
        if self.dropped:
            await self.db.bulk("drop_rows", self.dropped)
            self.dropped = []
        if self.again:
            await self.db.insert_rows(self.again)
            self.again = []
        if self.finished:
            await self.db.finish(self.finished, self.now)
            self.finished = []

    async def flush(self) -> None:
        """Write everything that has changed; the counters last, so that they are locked for a moment only."""
        await self.settle_rows()
        sites = []
        for number in sorted(self.touched):
            site = self.sites[number]
            site.ready_at = self.asleep[number] if number in self.asleep else self._awake(site)
            sites.append(site.row())
        changed = [
            (held.token, held.until_at, batch_text(held)) for held in map(self.held.get, sorted(self.changed)) if held
        ]
        if sites or changed or self.ended or self.given or self.parcels or any(self.tally.values()):
            if any(self.fresh):
                await self.db.fetch("count_fresh", self.stripe, *self.fresh)
            counters = (self.stripe, *self.tally.values(), self.token, self.now)
            await self.db.write(counters, ended=sorted(self.ended), given=self.given, changed=changed, sites=sites)

    def _awake(self, site: SqlSite) -> int | None:
        """When the next lease looks at a site; if nothing is queued there, that one finds out."""
        if site.closed and site.kept.leased == 0:
            return None
        at = site.wake_at
        # Of those that are ready in the same moment, who was served last comes last.
        return at if at > self.now else min(at, self.now - TURNS + site.kept.turn % TURNS)


def closed_status(reason: str) -> int:
    """What becomes of the requests of a closed site."""
    return SKIPPED if reason == "budget" else FAILED


def batch_text(held: HeldLane) -> str:
    """The batch as its row has it; anybody's JSON functions can read it."""
    return _encode([(key, *where) for key, where in held.batch.items()]).decode()


def timed(row: QueueRow, due: int, *, again: int, **values: Any) -> QueueRow:
    """The row with a time before which it is not handed out."""
    return row._replace(place=TIMED, standing=due, again=again, lapses=0, **values)
