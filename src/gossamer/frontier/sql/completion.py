"""Commits outcomes in SQL: checks tokens, settles requests, admits links, and reads the inbox.

`Completion` is one `complete`, in one transaction (P3):

1. Lock the sites of all outcomes and notes, then read their leases. From here on nobody else can end these leases.
2. Apply notes of leases that are held. They come first: a note may close the site of an outcome.
3. Check each outcome. It counts if its token is held for its site and its key is still in the batch (P4). One that was
   applied before is a repeat, which is no error: the key has left the batch, or the lane was completed with this token.
   Everything else is stale, and is counted. Links of outcomes that do not count are dropped.
4. Queue retries and revisits again, end leases whose batch is empty, close sites.
5. Admit the links. They come last, so that links to a site that this call closes are given up with it.
6. The caller puts parcels into the outbox and flushes. The commit makes all of it durable, or none of it.

A worker that dies before the commit leaves its leases, which expire: its pages are fetched again. If only the answer is
lost, the worker repeats the call, and every outcome is a repeat.

`Admission` adds links that are new. The insert into `seen` decides (P1): two transactions that add the same key wait
for each other, or one of them conflicts and is repeated. Each site of a new link must be there, open, and awake when
the transaction commits, or the link would never be leased. To avoid asking for thousands of sites on each call, a
worker remembers which sites are awake. That stays true because only calls with the `whole` lock put sites to sleep or
close them, while calls that admit share the lock; each such call counts a lull, and a new number of lulls, another
server, or another connection makes the worker forget everything it remembers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from gossamer import urls
from gossamer.frontier import recrawl
from gossamer.frontier.recrawl import summed
from gossamer.frontier.sql.transaction import (
    DONE,
    MICRO,
    RETRY,
    SKIPPED,
    STATUS,
    TIMED,
    TURNS,
    WORDS,
    HeldLane,
    NeedsWholeLock,
    QueueRow,
    Transaction,
    closed_status,
    new_site,
    rows_of,
    state_of,
    timed,
    with_state,
)
from gossamer.model import Outcome, Request, SiteNote
from gossamer.settings import Settings

_decode_robots = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
_encode = msgspec.msgpack.Encoder().encode
_MOST_NAMES = 200_000
_ALMOST_DUE = 60 * MICRO
_WAIT = itemgetter(2)
Link = tuple[Request, str, int]
"""A request, the page that it was found on, and the microseconds until it is due."""


class Admission:
    """Adds requests whose keys are unknown. `region_of` gives the region of a new site. One per worker and shard."""

    def __init__(self, secret: bytes, region_of: Callable[[str], str] | None) -> None:
        self._secret = secret
        self._region_of = region_of
        self._ids: dict[str, int] = {}
        self._awake: set[int] = set()
        """Sites known to exist, open and awake, as long as `_as_of` does not change."""
        self._as_of: tuple[str, int, int] = ("", 0, 0)
        self._age = 0

    def site_id(self, name: str) -> int:
        """The number that stands for a site in the tables."""
        found = self._ids.get(name)
        if found is None:
            if len(self._ids) > _MOST_NAMES:
                self._ids.clear()
            found = self._ids[name] = urls.fingerprint(self._secret, name)
        return found

    def forget_awake(self, sites: Iterable[int]) -> None:
        """Forget that these sites are awake: a lease found nothing there, and they are about to be put to sleep."""
        self._awake.difference_update(sites)

    async def admit(self, call: Transaction, links: Sequence[Link]) -> int:
        """Queue links that are new; how many were. The caller shares the lock, so that no site falls asleep meanwhile.

        Keys are inserted in their order, so that two such calls wait for each other and do not deadlock. Links keep
        the order in which they were found."""
        keys = [link[0].key for link in links]
        first = dict(zip(keys, links, strict=True))
        if len(first) < len(keys):
            first = {}
            for key, link in zip(keys, links, strict=True):
                first.setdefault(key, link)
        if not first:
            return 0
        # Sites fall asleep only in a lull, which is counted. A restored database may disagree with the count, but
        # restoring it ends this connection.
        as_of = (call.db.server, call.db.connections, call.lulls)
        if self._as_of != as_of or len(self._awake) > _MOST_NAMES:
            self._as_of = as_of
            self._awake.clear()
        # In the order in which they were found, in which new sites become ready.
        numbers = {name: self.site_id(name) for name in dict.fromkeys([link[0].site for link in links])}
        requested = sorted(set(numbers.values()) - call.sites.keys() - self._awake)
        known, states = await call.db.put_seen(sorted(first), requested)
        self._awake.update([site for site, closed, sleeps in states if not closed and not sleeps])
        if known:
            repeated = [first.pop(key)[0] for key in known]
            if call.settings.recrawl:
                await self._hasten(call, repeated)
            if not first:
                return 0
            numbers = {name: numbers[name] for name in dict.fromkeys([link[0].site for link in first.values()])}
        call.count("known", len(first))
        call.count("news")
        closed = await self._closed(call, numbers, requested, states)
        age = self._age = max(self._age, call.now)
        self._age += len(first)
        rows = rows_of(first.values(), numbers, age, strategy=call.settings.strategy)
        if closed or any(map(_WAIT, first.values())):
            rows = await self._set_apart(call, rows, first, closed)
        else:
            call.count("queued", len(rows))
        if rows:
            await call.db.insert_rows(rows)
        return len(first)

    async def _set_apart(
        self, call: Transaction, rows: Sequence[tuple[Any, ...]], links: Mapping[int, Link], closed: Mapping[int, str]
    ) -> list[tuple[Any, ...]]:
        """Finish links to closed sites at once, and queue links with a time as delayed; the rows to insert."""
        kept: list[tuple[Any, ...]] = []
        refused, later = [], 0
        for row, (request, _, wait) in zip(rows, links.values(), strict=True):
            if (site := row[0]) in closed:
                status = closed_status(closed[site])
                refused.append((request.key, site, request.depth, request.priority, status, row[5]))
                call.count(WORDS[status])
            elif wait > 0:
                kept.append(QueueRow._make(row)._replace(place=TIMED, standing=call.now + wait, again=RETRY))
                later += 1
            else:
                kept.append(row)
        call.count("delayed", later)
        call.count("queued", len(kept) - later)
        if refused:
            await call.db.refuse(refused, call.now)
        return kept

    async def _hasten(self, call: Transaction, known: Sequence[Request]) -> None:
        """Bring the visits of known pages forward that a sitemap reports as changed."""
        hints: dict[int, dict[int, float]] = {}
        for request in known:
            if (hint := recrawl.hint_of(request)) is not None:
                hints.setdefault(self.site_id(request.site), {})[request.key] = hint
        woken = []
        for site, wanted in sorted(hints.items()):
            # Rows that are almost due are left alone: a lease may take one of them before this transaction commits.
            rows = await call.db.fetch("waiting_rows", site, call.now + _ALMOST_DUE, sorted(wanted))
            for row in map(QueueRow._make, rows):
                state = state_of(row.extra)
                wait = recrawl.hastened(recrawl.read(state), wanted[row.id], call.settings, now=call.now / MICRO)
                due = row.standing if wait is None else call.now + round(wait * MICRO)
                if due < row.standing:
                    extra = with_state(row.extra, {**(state or {}), "hint": wanted[row.id]})
                    # By its full position: if another worker has moved the row, this changes nothing.
                    await call.db.fetch("hasten_row", site, row.standing, row.age, row.id, due, extra)
                    woken.append(site)
        if woken:
            call.count("news")
            await call.db.fetch("wake", sorted(set(woken)))

    async def _closed(
        self, call: Transaction, numbers: Mapping[str, int], requested: Sequence[int], states: Iterable[Sequence[Any]]
    ) -> dict[int, str]:
        """Create missing sites and wake sleeping ones; return the closed sites with their reasons.

        `states` are the rows of the `requested` sites. Other sites are locked by this call, or known to be awake."""
        wanted = set(numbers.values())
        closed = {}
        for site in wanted & call.sites.keys():
            call.touched.add(site)
            if call.sites[site].closed:
                closed[site] = call.sites[site].closed
        missing, sleeping = wanted.intersection(requested), []
        for site, reason, sleeps in states:
            if site not in missing:
                continue
            if reason:
                closed[site] = reason
            elif sleeps:
                sleeping.append(site)
            missing.remove(site)
        if sleeping:
            await call.db.fetch("wake", sorted(sleeping))
        rows = []
        names = [name for name, site in numbers.items() if site in missing] if missing else []
        for place, name in enumerate(names):
            region = self._region_of(name) if self._region_of else ""
            # Sites that were found together become ready in that order.
            ready_at = call.now - TURNS - len(names) + place
            rows.append(new_site(numbers[name], name, call.settings, region=region, ready_at=ready_at, now=call.now))
        if rows:
            call.count("sites", await call.db.insert_sites(sorted(rows)))
        return closed


class Completion:
    """One `complete`: counts what was accepted, stale, and repeated.

    With `whole` the caller has the whole lock, and sites may be closed. Without it, a call that finds that it has to
    close a site (a budget was spent) raises `NeedsWholeLock`, and is repeated with the lock."""

    def __init__(self, call: Transaction, admission: Admission, *, whole: bool) -> None:
        self.call = call
        self._whole = whole
        self._admission = admission
        self.accepted = self.stale = self.repeated = 0
        self._closing: dict[int, str] = {}
        self._touched: dict[int, HeldLane] = {}
        self._later: dict[tuple[int, int], tuple[HeldLane, Outcome]] = {}

    async def settle(
        self, outcomes: Sequence[Outcome], notes: Sequence[SiteNote], pages: Mapping[int, Mapping[int, str]]
    ) -> None:
        """Apply notes, outcomes, and links, in that order (see the module for the reasons). The caller flushes."""
        call, site_id = self.call, self._admission.site_id
        spoken: list[Outcome | SiteNote] = [*outcomes, *notes]
        await call.lock({site_id(given.site) for given in spoken})
        await call.load("leases_by_token", sorted({given.token for given in spoken}))
        await self._note([note for note in notes if self._is_held(note.token, note.site)])
        links: list[Link] = []
        for outcome in outcomes:
            if self._is_open(outcome):
                self._accept(outcome)
                if outcome.links:
                    page = pages.get(outcome.token, {}).get(outcome.key, "")
                    links += [(link, page, 0) for link in outcome.links]
            else:
                self._refuse(outcome)
        await self._put_later()
        for held in self._touched.values():
            if not held.batch:
                self.end(held)
        call.count("stale", self.stale)
        if self.accepted:
            call.count("news")
        if self._closing:
            await self._close()
        if links:
            await self._admission.admit(call, links)

    def _is_held(self, token: int, site: str) -> bool:
        held = self.call.held.get(token)
        return held is not None and held.site == self._admission.site_id(site)

    def _is_open(self, outcome: Outcome) -> bool:
        """Whether the outcome counts: its token is held for its site, and its key has no outcome yet (P4)."""
        if not self._is_held(outcome.token, outcome.site) or (outcome.token, outcome.key) in self._later:
            return False
        return outcome.key in self.call.held[outcome.token].batch

    def _accept(self, outcome: Outcome) -> None:
        """Finish a request, or note that it waits again. On a closed site nothing waits: a retry is given up."""
        call, held = self.call, self.call.held[outcome.token]
        site = call.sites[held.site]
        self.accepted += 1
        self._touched[held.token] = held
        closed = site.closed or self._closing.get(site.id, "")
        if outcome.status in ("done", "failed"):
            call.count("kept")
            site.kept.kept += 1
        comes_again = outcome.again_in is not None or outcome.status == "retry"
        if comes_again and not closed:
            self._later[held.token, outcome.key] = held, outcome
        elif outcome.status == "retry":
            call.finish(held, outcome.key, closed_status(closed))
        else:
            call.finish(held, outcome.key, STATUS[outcome.status], outcome.code)

    def _refuse(self, outcome: Outcome) -> None:
        """Count an outcome as repeated if its lease is held or was the last that its lane completed, else as stale."""
        call = self.call
        site = call.sites.get(self._admission.site_id(outcome.site))
        known = self._is_held(outcome.token, outcome.site)
        if not known and site is not None and 0 <= outcome.lane < len(site.lanes):
            known = site.lanes[outcome.lane].settled == outcome.token
        if known:
            self.repeated += 1
        else:
            self.stale += 1

    async def _put_later(self) -> None:
        """Queue retries and revisits again with a time.

        The old row is deleted and a new one inserted, because the time is a part of the primary key. The visit state
        of a retry stays, unless the outcome brings another one."""
        call = self.call
        if not self._later:
            return
        found = await call.db.bulk("rows_at", [held.at(outcome.key) for held, outcome in self._later.values()])
        rows = {row.id: row for row in map(QueueRow._make, found)}
        for held, outcome in self._later.values():
            row = rows.get(outcome.key)
            if row is None:
                # Deleted by another program: take it out of the batch, so that the lease can end.
                call.finish(held, outcome.key, SKIPPED)
                continue
            due = call.now + round((outcome.again_in or 0.0) * MICRO)
            if outcome.status == "retry":
                extra = row.extra if outcome.state is None else with_state(row.extra, outcome.state)
                new = timed(row, due, again=RETRY, tries=row.tries + 1, extra=extra)
            else:
                call.count(outcome.status)
                call.count("revisits")
                extra = with_state(row.extra, outcome.state)
                new = timed(row, due, again=STATUS.get(outcome.status, DONE), tries=0, extra=extra)
            call.requeue(held, row, new)

    def end(self, held: HeldLane) -> None:
        """End a lease that is completed: the lane rests for one delay, and remembers the token for repeats."""
        call = self.call
        site, lane = call.lane_of(held)
        lane.settled = held.token
        call.end(held, rests_from=call.now)
        if site.is_spent:
            self._closing.setdefault(site.id, "budget")

    async def _close(self) -> None:
        call = self.call
        if not self._whole:
            raise NeedsWholeLock
        for site, reason in sorted(self._closing.items()):
            await call.close(call.sites[site], reason)

    async def _note(self, notes: Sequence[SiteNote]) -> None:
        call = self.call
        kept: dict[int, tuple[dict[str, bytes], dict[str, Any]]] = {}
        wanted = sorted({call.held[note.token].site for note in notes if note.robots or note.memo})
        if wanted:
            kept = {site: ({}, {}) for site in wanted}
            for row in await call.db.fetch("notes", wanted):
                kept[row[0]] = _decode_robots(row[1]), _decode(row[2])
        for note in notes:
            site = call.sites[call.held[note.token].site]
            call.touched.add(site.id)
            if note.hold is not None:
                site.hold_at = max(site.hold_at, call.now + round(note.hold * MICRO))
            if note.delay is not None:
                site.kept.asked = note.delay
            if note.robots:
                kept[site.id][0].update(note.robots)
                site.kept.rules = True
            if note.memo:
                self._count_fresh(kept[site.id][1], note.memo)
                kept[site.id][1].update(note.memo)
            if note.region is not None:
                site.region = note.region[:64]
            if note.close is not None:
                self._closing[site.id] = note.close[:200] or "closed"
        for number, (robots, memo) in kept.items():
            await call.db.fetch("save_note", number, _encode(robots), _encode(memo))
        if notes:
            call.count("news")

    def _count_fresh(self, memo: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        """Add the change of the freshness tallies to the sums of the shard."""
        old, new = summed({name: memo[name] for name in changes if name in memo}), summed(changes)
        pages, fresh = self.call.fresh
        self.call.fresh = pages + new[0] - old[0], fresh + new[1] - old[1]


_MOST = 1000
_HIGHEST = 1_000_000_000


Forward = Callable[[Sequence[Link]], Awaitable[tuple[set[int], set[int]]]]
"""Delivers links of the inbox that belong to other shards.

Returns the keys that are ours, and the keys that other shards have now; links in neither set stay in the inbox."""


def site_of(url: str, settings: Settings) -> str:
    """The site of a normal URL."""
    authority = urls.host_port(url)
    return urls.registered_domain(authority) if settings.site_by == "domain" else authority


def read(text: str, priority: int, *, secret: bytes, settings: Settings) -> Request:
    """The request of an inbox entry; ValueError if its URL is not acceptable."""
    url = urls.normal(text.strip())
    if url is None:
        raise ValueError("not an http or https URL, or one with a password in it")
    if len(url) > settings.max_url_length:
        raise ValueError(f"longer than {settings.max_url_length} characters")
    if settings.clean_query:
        url = urls.clean_query(url)
    key = urls.key_of(secret, url)
    return Request(url, key, site_of(url, settings), max(-_HIGHEST, min(_HIGHEST, priority)))


async def drain(
    run: Callable[..., Awaitable[Any]], admission: Admission, *, secret: bytes, forward: Forward | None
) -> int:
    """Queue the next entries of the inbox, and delete them in the same transaction; how many were good.

    Entries for other shards are delivered before they are deleted here. A crash in between delivers them twice, and
    the second time their keys are known. Entries that cannot be read stay with their error. Several workers may drain
    one inbox: locked entries are skipped."""

    async def look(call: Transaction) -> dict[int, Link]:
        found: dict[int, Link] = {}
        for entry, text, priority, wait in await call.db.take_inbox(_MOST):
            try:
                request = read(text, priority, secret=secret, settings=call.settings)
            except ValueError as error:
                await call.db.refuse_inbox(entry, str(error)[:200])
            else:
                found[entry] = request, "", max(0, int(wait or 0))
        return found

    ours: set[int] | None = None
    theirs: set[int] = set()
    if forward is not None:
        # Outside of a transaction of this shard: the other shards may be on other servers.
        ours, theirs = await forward(list((await run(look)).values()))

    async def work(call: Transaction) -> int:
        found = await look(call)
        if ours is not None:
            found = {entry: link for entry, link in found.items() if link[0].key in ours | theirs}
        await admission.admit(call, [link for link in found.values() if link[0].key not in theirs])
        if found:
            await call.db.empty_inbox(list(found))
        await call.flush()
        return len(found)

    return int(await run(work, lock="share", rings=True))
