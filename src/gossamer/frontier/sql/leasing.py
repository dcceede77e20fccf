"""Leases lanes: finds sites that are due, takes batches, and puts sites to sleep that have nothing.

A lease is one transaction. It never waits for another worker's site, so many workers lease from one shard at the same
time. The steps, and why they come in this order:

1. Lock ready sites, those that have waited longest first, and skip sites that others have locked (P2). A locked site is
   somebody else's for now; waiting for it would serialize all workers.
2. Expire leases that have ended at these sites. There is no sweeper: a leased lane is ready again one delay after the
   end of its lease (P9), so the site of a dead worker comes up like any other. This step must precede the next, so that
   the requests of the dead worker can be leased at once, and suspects are known as such (P10).
3. Read the heads of the queues of these sites, without what others hold, and choose: a suspect alone, or a batch.
4. Write leases, sites, and counters in one statement or packet, and commit.

The transaction may be undone at any point, and then nothing was leased. If the worker dies after the commit, or the
answer is lost, the lease expires.

A site that turned out to be empty is not put to sleep here. Other workers may be adding to it in transactions that this
one cannot see, and a site asleep with requests in its queue would never come up. So the site is written with a
`ready_at` one second ahead, and the worker calls `put_to_sleep` now and then, which keeps all who add out for a moment.

After the store restarts it may lack leases whose holders are still fetching. Until `rest_until`, when the longest
possible lease has ended, each lane rests once (P5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from gossamer.frontier.sql.transaction import (
    MICRO,
    NEVER,
    REVISITS,
    STRIPES,
    WORDS,
    HeldLane,
    QueueRow,
    SqlLane,
    SqlSite,
    Transaction,
    batch_text,
)

_DROWSY_MICRO = MICRO
_SOON_MICRO = 10
_LOCKED_WAIT = 0.02
_READY_AT = itemgetter(3)


class Leasing:
    """One `lease` of one worker.

    `leases` is the result. `empty` are sites to put to sleep; `_refused` have something that this worker may not have
    now (a second suspect, or no room in the budget), and it must not wait for them; `_over` are over their quota."""

    def __init__(
        self,
        call: Transaction,
        *,
        worker: str,
        regions: Sequence[str],
        batch: int,
        seconds: float,
        suspects: bool = True,
    ) -> None:
        self.call = call
        self._suspects = suspects
        self._worker = worker
        self._regions = regions
        self._batch = batch
        self._seconds = seconds
        self._busy = False
        self.leases: list[tuple[SqlSite, HeldLane, list[QueueRow]]] = []
        self.empty: set[int] = set()
        """Sites at which nothing was found; the caller puts them to sleep with `put_to_sleep`."""
        self._refused: set[int] = set()
        self._over: list[SqlSite] = []
        """Sites over their quota: they get what the others leave."""
        self.passed_over = 0
        """How many of these got nothing, which the client of several shards wants to know."""
        self._left = NEVER

    async def take(self, limit: int, *, over_quota: bool = True) -> None:
        """Lease up to `limit` lanes; with `over_quota`, sites over their quota come after all others.

        Each round asks for as many sites as are still wanted, plus those that were looked at before and are still
        ready. It ends when a round brings no new site."""
        call = self.call
        if call.room <= 0:
            await self._expire_all()
        self._left = call.room
        self._busy = not self._suspects
        passed: set[int] = set()
        while len(self.leases) < limit and self._left > 0:
            fresh: list[SqlSite] = []
            over: list[SqlSite] = []
            wanted = limit - len(self.leases)
            for row in await self._ready(wanted + len(passed) + len(self._over)):
                if row[0] not in passed and len(fresh) < wanted:
                    passed.add(row[0])
                    site = call.sites.setdefault(row[0], SqlSite(row, call.settings))
                    (fresh if site.share_left(call.half) else over).append(site)
            if not fresh and not over:
                break
            self._over += over
            await self._expire([*fresh, *over])
            self._busy = self._busy or (call.total("suspects") > 0 and await self._has_suspect())
            await self._serve(fresh, limit)
        if not over_quota:
            self.passed_over = len(self._over)
        elif self._over and len(self.leases) < limit and self._left > 0:
            await self._serve(self._over, limit, whole=True)

    async def _ready(self, most: int) -> list[Sequence[Any]]:
        """Lock and return ready sites, up to `most` of each region, those that have waited longest first.

        The first round is answered by the statement that opened the transaction."""
        call = self.call
        rows: list[Sequence[Any]] = []
        for region in self._regions:
            some = call.ready.pop(region, None)
            rows += await call.db.fetch("take_ready", region, call.now, most) if some is None else some
        return sorted(rows, key=_READY_AT)

    async def _expire_all(self) -> None:
        """Expire ended leases of all sites, because nothing is left of the page limit.

        What is missing to the limit is leased. Without room no site would be looked at, so leases of dead workers
        would never expire, and the job would never end."""
        call = self.call
        over = [held for held in await call.load("leases") if held.until_at <= call.now]
        await call.lock((held.site for held in over), skip=True)
        for held in over:
            if held.site in call.sites and call.sites[held.site].ready(call.lane_of(held)[1]) <= call.now:
                await call.take_back(held, rests_from=call.now)

    async def _has_suspect(self) -> bool:
        # An ended lease counts until its lane is taken back: this worker may still be handling the request.
        return any(held.suspect for held in await self.call.load("leases_of_worker", self._worker))

    async def _expire(self, sites: Sequence[SqlSite]) -> None:
        """Expire ended leases at these sites, and load the others, whose requests must not be leased again (P2).

        A lease keeps its requests in the queue, so knowing every batch of a site is what keeps keys apart."""
        call = self.call
        leased = [site.id for site in sites if any(lane.token for lane in site.lanes)]
        if not leased:
            return
        for held in await call.load("leases_of_sites", leased):
            site, lane = call.lane_of(held)
            if lane.token == held.token and site.ready(lane) <= call.now:
                await call.take_back(held, rests_from=call.now)
        await call.write_rows()

    def _free_lanes(self, site: SqlSite) -> list[SqlLane]:
        """The lanes that can be leased now. After a restart of the store, each lane first rests once."""
        call = self.call
        found = []
        for lane in site.lanes:
            rest = call.rest_until + site.rest
            if not lane.token and rest > call.now and lane.restart != call.restarts:
                # The present run of the store may lack a lease on this lane, whose holder goes on fetching.
                lane.restart, lane.next_at = call.restarts, max(lane.next_at, rest)
                call.touched.add(site.id)
            if not lane.token and site.ready(lane) <= call.now + _SOON_MICRO:
                found.append(lane)
        return found

    def _most(self, site: SqlSite, whole: bool) -> int:
        """The largest batch for a lane: one that takes at most half of the lease time at the delay of the site."""
        most = min(self._batch, site.room)
        if not whole:
            most = min(most, site.share_left(self.call.half))
        delay = site.delay
        return most if delay <= 0 else min(most, max(1, int(self._seconds / 2 / delay)))

    async def _serve(self, sites: Sequence[SqlSite], limit: int, *, whole: bool = False) -> None:
        """Lease lanes of these sites, within their quota or with `whole` batches.

        Reads enough rows of each queue for all free lanes, even if the first ones are in other batches. Sites that
        were read and not leased are written too: their next time may be another one now."""
        call = self.call
        before = len(self.leases)
        wanted: dict[int, tuple[SqlSite, list[SqlLane]]] = {}
        for site in sites:
            call.touched.add(site.id)
            if site.closed:
                continue
            if site.room <= 0:
                (self.empty if site.is_spent else self._refused).add(site.id)
            elif lanes := self._free_lanes(site):
                wanted[site.id] = site, lanes[: limit - len(self.leases)]
        if not wanted:
            return
        hands = in_hand(call.held.values())
        asks = []
        for site, lanes in wanted.values():
            asks.append((site.id, len(hands.get(site.id, ())) + len(lanes) * self._most(site, whole)))
        call.db.ahead(("notes", sorted(wanted)))
        waiting = by_site(await call.db.bulk("heads", asks, call.now), hands)
        suspects: dict[int, list[QueueRow]] = {}
        if call.total("suspects") > 0:
            suspects = by_site(
                await call.db.bulk("suspects", [(site, len(hands.get(site, ())) + 1) for site in wanted]), hands
            )
        for site, lanes in wanted.values():
            for lane in lanes:
                if len(self.leases) >= limit or self._left <= 0:
                    break
                if not whole and not site.share_left(call.half):
                    self._over.append(site)
                    break
                self._grant(site, lane, waiting.get(site.id, []), suspects.get(site.id, []), whole)
        taken = [row[:5] for _, _, rows in self.leases[before:] for row in rows if row.again]
        if taken:
            # The counters no longer have them as delayed or revisits, so the rows must not say so either.
            await call.db.bulk("mark_taken", taken)

    def _grant(
        self, site: SqlSite, lane: SqlLane, waiting: list[QueueRow], suspects: list[QueueRow], whole: bool
    ) -> None:
        """Lease one lane: draw a token, take rows, and move them in the counters from waiting to leased.

        The token is above every token that the shard has stored, above the last one of the lane, and not below the
        present time: a store that has forgotten tokens draws larger ones (P4). At most one suspect goes to a worker,
        alone in its batch, so that the death of the worker names it (P10)."""
        call = self.call
        alone = bool(suspects) and not self._busy
        if alone:
            rows = [suspects.pop(0)]
            self._busy = True
        else:
            most = min(self._most(site, whole), self._left)
            rows, waiting[:] = waiting[:most], waiting[most:]
        if not rows:
            if suspects:
                self._refused.add(site.id)
            elif site.room > 0:
                self.empty.add(site.id)
            return
        token = call.token = max(call.now, max(call.last_token, call.token, lane.settled) // STRIPES + 1)
        token = call.token = token * STRIPES + call.stripe
        held = HeldLane(
            token, site.id, site.lanes.index(lane), call.now + round(self._seconds * MICRO), alone, self._worker,
            {row.id: (row.place, row.standing, row.age) for row in rows},
        )  # fmt: skip
        lane.token, lane.until_at, lane.restart = token, held.until_at, call.restarts
        site.kept.leased += len(rows)
        self._left -= len(rows)
        call.held[token] = held
        self.leases.append((site, held, rows))
        site.count_share(call.half, len(rows))
        call.count("handed", len(rows))
        site.kept.turn = call.total("handed")
        call.count("leased", len(rows))
        call.count("held")
        for row in rows:
            if row.again:
                call.count("delayed", -1)
                if row.again in REVISITS:
                    call.count("revisits", -1)
                    call.count(WORDS[row.again], -1)
            else:
                call.count("queued", -1)

    async def write(self) -> None:
        """Write the leases, and when to look at each site again: at an empty one in a second, if it is not asleep."""
        call = self.call
        for number in self.empty:
            call.asleep[number] = min(call.now + _DROWSY_MICRO, _held_until(call.sites[number]))
        call.given = [
            (held.token, held.site, held.lane, held.until_at, held.suspect, held.worker, batch_text(held))
            for _, held, _ in self.leases
        ]
        await call.flush()

    async def wait(self, limit: int) -> float | None:
        """Seconds until something can be due for this worker; None if only news can change that.

        A site that is ready now and was not refused is locked by another worker: look again in a moment."""
        call = self.call
        if self.leases and len(self.leases) >= limit:
            return 0.0
        first = NEVER
        if self._left > 0:
            for region in self._regions:
                for site, ready_at in await call.db.fetch("next_ready", region, len(self._refused) + 1):
                    if site not in self._refused or ready_at > call.now:
                        first = min(first, ready_at)
        else:
            held = await call.load("leases")
            sites = {
                row[0]: SqlSite(row, call.settings)
                for row in await call.db.fetch("peek_sites", sorted({each.site for each in held}))
            }
            for each in held:
                if each.site in sites:
                    first = min(first, each.until_at + sites[each.site].rest)
        if first == NEVER:
            return None
        return (first - call.now) / MICRO if first > call.now else _LOCKED_WAIT if not self.leases else 0.0


async def put_to_sleep(call: Transaction, numbers: Iterable[int]) -> bool:
    """Put sites to sleep at which nothing is due, and close those whose budget is spent; whether one was closed.

    The caller has the `whole` lock: nobody is adding requests, so an empty queue is really empty. The queues are read
    again, because something may have been added since the lease found them empty. A site with delayed requests sleeps
    until the first is due; one with leased lanes until the first lease could expire; any other until something is
    added, which wakes it. `count_lull` makes all workers forget which sites they believed to be awake."""
    await call.lock(numbers, skip=True)
    held = await call.load("leases_of_sites", sorted(call.sites))
    hands = in_hand(held)
    closed = False
    quiet = []
    for site in call.sites.values():
        if site.is_spent:
            await call.close(site, "budget")
            call.count("news")
            closed = True
        elif not site.closed:
            quiet.append(site)
    if quiet:
        asks = [(site.id, len(hands.get(site.id, ())) + 1) for site in quiet]
        busy = by_site(await call.db.bulk("heads", asks, call.now), hands)
        suspects = by_site(await call.db.bulk("suspects", asks), hands)
        due = {row[0]: row[1] for row in await call.db.fetch("first_due", [site.id for site in quiet], call.now)}
        for site in quiet:
            if not busy.get(site.id) and not suspects.get(site.id):
                first = due.get(site.id)
                times = [_held_until(site)]
                if first is not None and any(not lane.token for lane in site.lanes):
                    free = min(site.ready(lane) for lane in site.lanes if not lane.token)
                    times.append(max(first, free))
                call.asleep[site.id] = None if min(times) == NEVER else min(times)
            call.touched.add(site.id)
        await call.db.fetch("count_lull")
    await call.flush()
    return closed


def _held_until(site: SqlSite) -> int:
    """When the first leased lane of a site could be taken back."""
    return min((site.ready(lane) for lane in site.lanes if lane.token), default=NEVER)


def in_hand(leases: Iterable[HeldLane]) -> dict[int, set[int]]:
    """Site -> keys that are in a batch."""
    found: dict[int, set[int]] = {}
    for held in leases:
        found.setdefault(held.site, set()).update(held.batch)
    return found


def by_site(rows: Sequence[Sequence[Any]], hands: dict[int, set[int]]) -> dict[int, list[QueueRow]]:
    """Rows of the queue by site, in order, without those that are in a batch."""
    found: dict[int, list[QueueRow]] = {}
    for row in map(QueueRow._make, rows):
        if row.id not in hands.get(row.site, ()):
            found.setdefault(row.site, []).append(row)
    for some in found.values():
        some.sort(key=_standing)
    return found


def _standing(row: QueueRow) -> tuple[int, int, int, int]:
    return (row.place, row.standing, row.age, row.id)


__all__ = ["Leasing", "in_hand", "put_to_sleep"]
