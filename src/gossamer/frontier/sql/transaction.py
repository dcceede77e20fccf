"""One frontier call as one transaction: the rows of sites, lanes, and requests that it reads and writes.

A call reads the rows it needs, works on them in memory (`Transaction`), and writes everything at its end (`flush`). The
database commits all of it or nothing (P3, P7). A deadlock, a conflict, or a lost connection undoes the transaction, and
`Database.run` repeats the call from the start with a new `Transaction`, so nothing may be kept from an attempt that
did not commit.

Where things are. A request has one row, in `queue` from the moment it is known until it is finished, then in `done`. A
lease does not move it: the row of the lease lists the positions of its requests, and the row of the site says which
lane has which token. So an expired lease needs no repair of the queue, and a batch that is given back waits where it
always did. A key is in `seen` once, whose primary key decides between two workers that add it (P1).

Locks. Calls take them in this order as far as they can; a deadlock undoes one of the calls, which is repeated.

1. The lock of the call. `share` is for calls that add requests; `whole` keeps those out. A lease locks its `stripe` of
   the counters, or the whole `shard` if there is a page limit. Other calls need none of these.
2. Rows of sites, in the order of their numbers. The transaction that locks a site owns its lanes and leases (P2). A
   lease never waits for a site: it skips locked ones (`SKIP LOCKED`) and looks again next time, so it may hold its
   stripe.
3. Rows of leases and of the queue, then new keys, in their order.
4. The counters, last and for a moment. There are 32 stripes, and a worker writes to one of them.

A site sleeps (`ready_at` is NULL or late) while nothing is queued on it. Putting it to sleep and adding to it at the
same moment would lose the wake-up, so only calls with the `whole` lock put sites to sleep or close them, and calls that
add share the lock.

Time is the server's, in microseconds, and never steps back within a job (P5). Each transaction that writes stores its
time. Where the clock of the server is behind the latest one, time stands still until it has caught up; if it is behind
by more than a second, `skew` makes up for it from then on.

Tokens grow with the time, and end in the number of the stripe (P4). Two workers of different stripes cannot draw the
same token; two of one stripe lease one after the other, because a lease locks its stripe."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from gossamer.errors import FrontierError, JobMissing
from gossamer.frontier import policy
from gossamer.frontier.packing import expand, shorten_url
from gossamer.frontier.sql.database import Dialect, connection_run
from gossamer.frontier.sql.handover import ANNOUNCED, Moved, ShardLocation
from gossamer.model import Request
from gossamer.settings import Settings

NEVER = 1 << 62
MICRO = 1_000_000


class SqlLane(msgspec.Struct, array_like=True, gc=False):
    """One lane of a site: its token and the end of its lease, and when it may be leased next.

    `settled` is the token of the last lease that was completed, which distinguishes a repeat of its outcomes from
    stale ones."""

    token: int = 0
    until_at: int = 0
    next_at: int = 0
    settled: int = 0
    restart: int = 0
    """The number of the last restart of the store after which the lane was leased or has rested."""


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
    """The half of the quota window in which requests were handed out last; how many there, and in the one before."""
    handed: int = 0
    before: int = 0
    turn: int = 0
    """Requests handed out to all sites when this one had its last turn: orders sites that are ready together."""


_encode_site = msgspec.msgpack.Encoder().encode
_decode_site = msgspec.msgpack.Decoder(_Kept).decode


class SqlSite:
    """A site as its row has it. Times are whole microseconds. Change it only while its row is locked."""

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
        """The delay in microseconds."""
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
        """How many more requests fit into its quota."""
        most = max(1, int(self.settings.site_share * self.settings.share_window))
        return max(0, most - sum(self._handed(half)))

    def count_share(self, half: int, requests: int) -> None:
        """Count requests that were handed out in this half of the window."""
        handed, before = self._handed(half)
        self.kept.half, self.kept.handed, self.kept.before = max(half, self.kept.half), handed + requests, before

    @property
    def is_spent(self) -> bool:
        """Whether its budget is used up for good."""
        return not self.closed and self.room <= 0 and self.kept.leased == 0

    def ready(self, lane: SqlLane) -> int:
        """When a lane could be leased if something were queued.

        A leased lane is ready one delay after its lease ends: the holder may send a request until the end (P5), and
        from then on anybody may take the lane (P9)."""
        if lane.token:
            return lane.until_at + self.rest
        return max(lane.next_at, int(self.hold_at))

    @property
    def wake_at(self) -> int:
        """When the first lane could be leased if something were queued."""
        return min(self.ready(lane) for lane in self.kept.lanes)

    def open_lanes(self, rests_from: int) -> None:
        """Open all lanes that are allowed, once robots.txt is known.

        New lanes start one delay apart, counted from the rest of the first one, so that no two are ready together."""
        if not (self.kept.rules or not self.settings.robots):
            return
        step = self.rest // len(self.kept.lanes)
        for number in range(len(self.kept.lanes), self.kept.allowed):
            self.kept.lanes.append(SqlLane(next_at=rests_from + step * number))

    def free(self, lane: SqlLane, *, rests_from: int) -> None:
        """Take a lane back from its holder; it rests for one delay, counted from `rests_from`."""
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
"""Places in the queue of a site: suspects (leased alone), what has a time, and the rest.

The head of the queue is TIMED with time 0, so that it comes before everything that has a time."""
DONE, FAILED, SKIPPED, PARKED, RETRY = 1, 2, 3, 4, 5
REVISITS = (DONE, FAILED, SKIPPED)
"""Values of `again` for a revisit: what the last visit was, until the next one starts."""
STATUS = {"done": DONE, "failed": FAILED, "skipped": SKIPPED, "parked": PARKED}
WORDS = {number: word for word, number in STATUS.items()}


class QueueRow(NamedTuple):
    """One row of the queue. `again` is nonzero while its time has not come: it says which counters have it."""

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
    """The URL, if the database cannot store it as text (it contains a NUL)."""


_NONE = _Extra()
_CHANGES = itemgetter(7, 8, 9, 10)
_encode_row = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(_Extra).decode


def rows_of(
    links: Iterable[tuple[Request, str, int]], sites: Mapping[str, int], age: int, *, strategy: str
) -> list[tuple[Any, ...]]:
    """The fields of a `QueueRow` for each of these new requests.

    Each link is a request with the page that it was found on. One loop without calls where possible: it runs for every
    new link, and is a large part of what a worker costs."""
    found: list[tuple[Any, ...]] = []
    ranks: dict[tuple[int, int, int], int] = {}
    foreign: dict[str, bytes] = {}
    usual = strategy not in ("dfs", "random")
    for request, referrer, _ in links:
        url, name, priority, depth, hops = request.url, request.site, request.priority, request.depth, request.hops
        age += 1
        end = len(name) + 8
        # The usual case of `shorten_url`, inlined at twice its speed.
        short = url[end:] if url[end : end + 1] == "/" and url[:end] == "https://" + name else shorten_url(url, name)
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
            extra = _encode_row((shorten_url(referrer, name),))
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
    """Whether any row has a priority, tries, lapses, or a status: new rows are inserted without these columns."""
    return any(map(any, map(_CHANGES, rows)))


def _extra(request: Request, referrer: str, url: str) -> bytes | None:
    """The rare fields of a request, packed without trailing defaults; None if it has none."""
    origin = shorten_url(referrer, request.site) if referrer else ""
    short = (origin, request.hops, request.state)
    if request.label or request.meta or request.method != "GET" or request.headers or request.body or url:
        return _encode_row((*short, request.label, request.meta, request.method, request.headers, request.body, url))
    if request.hops or request.state is not None:
        return _encode_row(short)
    return _encode_row((origin,)) if referrer else None


def request_of(row: Sequence[Any], site: str) -> Request:
    """The request of a row; ValueError if the row cannot be read."""
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
    """The visit state in the extra part."""
    return _decode_row(packed).state if packed is not None else None


def with_state(packed: bytes | None, state: dict[str, Any] | None) -> bytes | None:
    """The extra part with this visit state."""
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
"""Range in microseconds in which sites that are ready together are ordered by their last turn."""
_STEP_BACK_MICRO = MICRO
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[tuple[int, int, int, int]]).decode


class NeedsWholeLock(Exception):
    """The call turns out to need the `whole` lock: undo it and repeat it with that lock.

    It cannot take the lock in the middle: two calls that share it would wait for each other."""


class Changed(Exception):
    """The settings of the job have changed: read them, then repeat the call."""


class HeldLane(NamedTuple):
    """A row of the leases. `batch` maps the keys without an outcome to place, standing, and age: their position."""

    token: int
    site: int
    lane: int
    until_at: int
    suspect: bool
    worker: str
    batch: dict[int, tuple[int, int, int]]

    def at(self, key: int) -> tuple[int, int, int, int, int]:
        """The position of one request of the batch in the queue: the primary key of its row without the shard."""
        return (self.site, *self.batch[key], key)


class Transaction:
    """What one call has read, and what it will write.

    Methods change the objects here and record what to write; `flush` sends it. The counters are kept as differences
    (`tally`), because other workers change the same counters at the same time."""

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
        """The page limit of this shard; None without one."""
        self.now = 0
        self.state = "running"
        self.totals: dict[str, int] = {}
        self.last_token = 0
        self.token = 0
        self.restarts = 0
        self.rest_until = 0
        self.longest = 0
        self.handed_elsewhere = 0
        """Number of requests that the other shards have handed out, as far as the caller knows."""
        self.has_inbox = False
        self.is_leaving = False
        """Whether a move of the shard to another server is announced."""
        self.lulls = 0
        """How often sites were put to sleep or closed; when it changes, `Admission` forgets which are awake."""
        self.tally = dict.fromkeys(COUNTERS, 0)
        self.fresh = (0, 0)
        """Changes of the number of revisited pages, and of their freshness in millionths."""
        self.ready: dict[str, list[Sequence[Any]]] = {}
        """Region -> locked rows of sites that were ready when the call began; `Leasing` takes them first."""
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
        """Number of parcels put into the outbox."""

    async def open(
        self, *, totals: bool = False, writes: bool = True, regions: Sequence[str] = (), most: int = 0
    ) -> None:
        """Read the clock, the state of the job, and the place of the shard; with `totals`, also the counts.

        With `regions`, lock up to `most` ready sites of each in the same round trip.

        Raises `Moved` if the shard is not simply here: while a move is announced, calls go on only in the run of the
        server in which it was announced. Raises `Changed` if the settings are newer than those of the caller."""
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
        # The clock of the server stepped back, or a replica with another clock took over: go on from the latest time.
        if latest - (clock + skew) > _STEP_BACK_MICRO:
            skew = latest - clock
            if writes:
                await self.db.fetch("set_skew", skew)
        self.now = max(clock + skew, latest)

    @property
    def run(self) -> int:
        """The life of the store that answers this call: changes with the run of the server and with the connection."""
        return connection_run(self.db)

    @property
    def room(self) -> int:
        """How many more requests the page limit allows to hand out."""
        return NEVER if self.most is None else self.most - self.total("kept") - self.total("leased")

    def total(self, name: str) -> int:
        return self.totals[name] + self.tally[name]

    def count(self, name: str, by: int = 1) -> None:
        self.tally[name] += by

    @property
    def half(self) -> int:
        """The number of the present half of the quota window (see `SiteQuota`).

        It follows from the sum of all stripes, so that workers share no row. Requests that others hand out at the
        same moment are not counted yet."""
        return (self.total("handed") + self.handed_elsewhere) // max(1, self.settings.share_window // 2)

    async def lock(self, ids: Iterable[int], *, skip: bool = False) -> None:
        """Lock and read sites in the order of their numbers; with `skip`, only those that nobody else has locked."""
        wanted = sorted(set(ids) - self.sites.keys())
        if wanted:
            for row in await self.db.fetch("try_sites" if skip else "lock_sites", wanted):
                self.sites[row[0]] = SqlSite(row, self.settings)

    async def load(self, name: str, *given: Any) -> list[HeldLane]:
        """Leases found by a statement, without those that this call has ended.

        A lease that was loaded before keeps its object: its batch may have changed in this call."""
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
        """The site and lane of a lease; the site must be locked."""
        site = self.sites.get(held.site)
        if site is None or held.lane >= len(site.lanes):
            raise FrontierError(
                f"job {self._job!r} is damaged: a leased site is gone", hint="did something else write to its tables?"
            )
        return site, site.lanes[held.lane]

    def finish(self, held: HeldLane, key: int, status: int, code: int = 0) -> None:
        """Finish a request: out of the lease, from the queue to `done`."""
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
        """Take a request out of a lease, and queue it again with a time."""
        self.dropped.append(held.at(old.id))
        self._take_out(held, old.id)
        self.again.append(new)
        self.count("delayed")

    def end(self, held: HeldLane, *, rests_from: int) -> None:
        """End a lease. The rest of its batch waits where its rows always were, so only counters change.

        On a closed site nothing may wait: the rest is finished as what the site was closed for (P6)."""
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

    async def take_back(self, held: HeldLane, *, rests_from: int, blamed: Sequence[int] | None = None) -> None:
        """End the lease of a dead holder, and count the loss against all its requests or the `blamed` ones (P10).

        At two losses a request becomes a suspect, which is leased alone; at `max_deliveries` it is parked. The lane
        rests until `rests_from`: an expired lease has had its delay, an abandoned one has not."""
        site, _ = self.lane_of(held)
        keys = [key for key in held.batch if blamed is None or key in set(blamed)]
        if keys:
            for found in await self.db.bulk("rows_at", [held.at(key) for key in keys]):
                row = QueueRow(*found)
                lapses = row.lapses + 1
                if lapses >= self.settings.max_deliveries:
                    self.finish(held, row.id, PARKED)
                    continue
                # A suspect goes behind the other suspects, so that each has its turn.
                place, standing = (SUSPECT, self.now) if lapses >= 2 else (row.place, row.standing)
                await self.db.bulk("drop_rows", [row[:5]])
                await self.db.insert_rows([row._replace(place=place, standing=standing, lapses=lapses)])
                if place != row.place:
                    self.count("suspects")
                held.batch[row.id] = (place, standing, row.age)
        self.end(held, rests_from=rests_from - site.rest)

    async def close(self, site: SqlSite, reason: str) -> None:
        """Give up everything that waits at a site. The caller has the `whole` lock, so nobody adds to it meanwhile.

        Leased requests stay until their lease ends. Pending rows are written first, so that they are closed too."""
        keep = [key for held in await self.load("leases_of_sites", [site.id]) for key in held.batch]
        status = closed_status(reason)
        await self.write_rows()
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

    async def check_not_damaged(self) -> None:
        """Raise if requests are counted as queued and no site is awake to lease them: somebody has deleted rows."""
        if self.total("held") == 0 and self.total("queued") > 0:
            (row,) = await self.db.fetch("any_ready")
            if not row[0]:
                raise FrontierError(
                    f"job {self._job!r} is damaged: {self.total('queued')} queued requests have no site",
                    hint="did something else write to its tables?",
                )

    async def write_rows(self) -> None:
        """Write the pending changes of the queue: rows that are dropped, queued again with a time, or finished."""
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
        """Write everything that has changed.

        Last come the counters, whose rows are locked until the commit: other workers of the stripe wait for them. The
        same statement doubles `frozen`, which fails while the shard is being moved and undoes the whole call: so a
        transaction that began before the shard was frozen cannot commit after that."""
        await self.write_rows()
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
        """When the next lease should look at a site; it may find nothing there, and then the site is put to sleep.

        Sites that are ready together are ordered by their last turn, in the range of about a millisecond."""
        if site.closed and site.kept.leased == 0:
            return None
        at = site.wake_at
        return at if at > self.now else min(at, self.now - TURNS + site.kept.turn % TURNS)


def closed_status(reason: str) -> int:
    """The status of requests that wait on a site when it is closed for this reason."""
    return SKIPPED if reason == "budget" else FAILED


def batch_text(held: HeldLane) -> str:
    """The batch as JSON text, which the view `gossamer_tasks` reads with the functions of the database."""
    return _encode([(key, *where) for key, where in held.batch.items()]).decode()


def timed(row: QueueRow, due: int, *, again: int, **values: Any) -> QueueRow:
    """The row with a time before which it is not leased."""
    return row._replace(place=TIMED, standing=due, again=again, lapses=0, **values)
