"""The frontier on a shared folder, as one worker sees it, and its share of the page limit.

A worker leases only from the shards that it owns, in one order over all of them, and never for longer than it may trust
its claims (`owner.remaining`): when a lease is handed out, nobody else can have the site before it ends (P2, P5).

**A commit** can touch several shards, each with a log of its own, and no write spans two logs. So the order is:

1. Links to other shards of this worker are added first, and are durable.
2. Then each shard gets its outcomes, in one frame with the links to the shards of others (`links` sends these later).

A crash between the two leaves links whose page is fetched again: a repetition, no loss (P3). If one shard fails, the
others are committed, and a repeated call finds their outcomes done. An outcome whose shard belongs to another worker
now counts as stale (P4).

**The end of the job** is decided without a server. A worker that is idle looks twice at all shards (`survey.is_over`).
Before that it makes sure that its own heartbeat says so: others decide by it (P6).

**The page limit** is a ledger, a row of files like claims, each made by one of all who try and never changed. The
newest says how many pages each session may store in its life (`grants`), and how many were stored by sessions that are
in no grant any more (`spent`). A change of the ledger never raises their sum above the limit, and a worker leases only
within its grant, so the job cannot store more. A worker that dies keeps its grant until all its shards have new owners
and say what it has stored (`Quota._without_dead_sessions`): until then, some of the limit cannot be used. A worker
without work returns what it does not need."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from gossamer import urls
from gossamer.clock import Clock, SystemClock
from gossamer.errors import Unavailable
from gossamer.frontier.folder.claims import ReportWriter
from gossamer.frontier.folder.files import ShareClock, SharedFolder, explained
from gossamer.frontier.folder.owner import FolderSession, ShardLost
from gossamer.frontier.folder.record import (
    QUOTA,
    open_job,
    place_of,
    read_adopted,
    read_settings,
    write_adopted,
    write_wanted_state,
)
from gossamer.frontier.folder.repair import FolderRepair
from gossamer.frontier.folder.shard import FETCHED_BEFORE, FolderShard
from gossamer.frontier.folder.survey import FolderView
from gossamer.model import Counts, Grant, Heartbeat, JobState, Lease, Outcome, Receipt, Request, ShardView, SiteNote
from gossamer.settings import Settings

NO_LIMIT = 1 << 62
_MOST = 64
_KEPT = 8
_TURNS = 20


class Ledger(msgspec.Struct, frozen=True):
    """The pages that each session may store. `nonce` makes each file unique, so that a lost answer is recognized."""

    spent: int = 0
    """Pages stored by sessions without a grant."""
    grants: dict[str, int] = {}
    """Session -> pages that it may store in its life, including those that it has stored."""
    nonce: str = ""


class Quota:
    """One worker's part of the page limit."""

    def __init__(self, owner: FolderSession, survey: FolderView) -> None:
        self._owner = owner
        self._survey = survey
        self._granted = 0
        self._refused_at = -1e18

    @property
    def _limit(self) -> int | None:
        return self._owner.settings.max_pages

    def left(self) -> int:
        """Return how many more requests this worker may lease within its grant: a leased request counts as stored."""
        if self._limit is None:
            return NO_LIMIT
        return self._granted - self._owner.stored - sum(shard.leased for shard in self._owner.shards.values())

    async def room(self, wanted: int) -> int:
        """Return how many more requests this worker may lease, after asking for more if needed.

        A refusal is stored for one round."""
        now = self._owner.clock.monotonic()
        if self.left() >= min(wanted, _MOST) or now < self._refused_at + self._owner.every_seconds:
            return self.left()
        if not await self._change(min(wanted, _MOST)):
            self._refused_at = now
        return self.left()

    def forget_refusal(self) -> None:
        """Discard a stored refusal because the limit has changed."""
        self._refused_at = -1e18

    async def give_back(self) -> None:
        """Return unused pages for other workers."""
        if self._limit is not None and self.left() > 0:
            await self._change(0)

    async def close(self) -> None:
        """Close this session's account: what it stored is spent, and the rest of its grant is free."""
        if self._limit is not None and self._granted:
            await self._change(0, leaving=True)

    async def _change(self, room: int, *, leaving: bool = False) -> int:
        """Change this session's grant to have room for `room` more requests, as far as the limit allows; return the
        change.

        Read the newest ledger, compute the next one, and try to create its file. If another worker was faster, begin
        again with its ledger: the sum is checked against the ledger that is really replaced."""
        owner, limit = self._owner, self._limit or 0
        for _ in range(_TURNS):
            number, ledger = await owner.run(self._read)
            if not ledger.nonce:
                ledger = await self._first_ledger()
            in_hand = owner.stored + sum(shard.leased for shard in owner.shards.values())
            more = 0 if leaving else room + in_hand - ledger.grants.get(owner.session, 0)
            if more > 0 and any(session != owner.session for session in ledger.grants):
                ledger = await self._without_dead_sessions(ledger)
            grants = dict(ledger.grants)
            free = limit - ledger.spent - sum(grants.values())
            change = min(more, max(0, free))
            if not change and not leaving and ledger.nonce:
                self._granted = grants.get(owner.session, 0)
                return 0
            granted = grants.pop(owner.session, 0) + change
            if not leaving:
                grants[owner.session] = granted
            spent = ledger.spent + (owner.stored if leaving else 0)
            new = Ledger(spent, grants, f"{owner.session} {number} {owner.clock.monotonic()}")
            if await owner.run(owner.share.claim, f"{QUOTA}/{number + 1:010}", msgspec.json.encode(new)):
                self._granted = granted
                await owner.run(self._sweep, number)
                return change
        return 0

    async def _first_ledger(self) -> Ledger:
        """Return the first ledger of a job. Pages stored before the job had a limit count, by session or as spent."""
        owner = self._owner
        await owner.look(fresh=True)
        beats = owner.peers.beats
        grants = {session: beats[session].stored for session in owner.peers.live if session in beats}
        grants = {session: stored for session, stored in grants.items() if stored} | {owner.session: owner.stored}
        total = self._survey.stored()
        return Ledger(max(0, (self._survey.taken() if total is None else total) - sum(grants.values())), grants)

    def _read(self) -> tuple[int, Ledger]:
        share = self._owner.share
        newest = max((name for name in share.names(QUOTA, fresh=True) if name.isdigit()), default="")
        if not newest:
            return 0, Ledger()
        return int(newest), msgspec.json.decode(share.read(f"{QUOTA}/{newest}"), type=Ledger)

    def _sweep(self, number: int) -> None:
        for old in range(max(1, number - 2 * _KEPT), number - _KEPT):
            self._owner.share.remove(f"{QUOTA}/{old:010}")

    async def _without_dead_sessions(self, ledger: Ledger) -> Ledger:
        """Return the ledger without dead sessions, once all their shards have other owners that report what is stored.

        `spent` becomes what the shards report, less what live sessions have stored. It never falls: recent reports may
        miss pages."""
        owner = self._owner
        await owner.look(fresh=True)
        holding = {standing.claim.session for standing in owner.claims.newest.values()}
        living = owner.peers.live | {owner.session}
        dead = {session for session in ledger.grants if session not in living and session not in holding}
        total = self._survey.stored()
        if not dead or total is None:
            return ledger
        beats = owner.peers.beats
        ours = {session: beats[session].stored for session in ledger.grants if session in beats and session not in dead}
        ours[owner.session] = owner.stored
        grants = {session: granted for session, granted in ledger.grants.items() if session not in dead}
        return Ledger(max(ledger.spent, total - sum(ours.values())), grants, ledger.nonce)


log = logging.getLogger("gossamer.frontier")
_SHORT = 8


async def open_folder(
    url: str,
    job: str,
    settings: Settings | None = None,
    *,
    worker: str = "",
    region: str = "",
    clock: Clock | None = None,
    share: SharedFolder | None = None,
    rounds: bool = True,
) -> FolderFrontier:
    """Join a job in this folder; with settings, create it if it does not exist.

    Without a worker's name, only read and add."""
    root, shards = place_of(url, job)
    share = share or SharedFolder(root)
    share_clock = ShareClock(clock or SystemClock())
    try:
        record, found = await asyncio.to_thread(open_job, share, job, settings, shards=shards)
        asked_at = share_clock.monotonic()
        server_time = await asyncio.to_thread(share.time)
    except OSError as error:
        raise explained(error, root) from error
    share_clock.set(server_time, asked_at=asked_at)
    owner = FolderSession(share, found, layout=record.layout, worker=worker, region=region, clock=share_clock)
    frontier = FolderFrontier(owner, record.secret)
    try:
        await owner.join()
    except BaseException:
        owner.abort()
        raise
    if rounds:
        frontier.start()
    return frontier


class FolderFrontier(FolderRepair):
    """The frontier of a job in a shared folder, as one worker or visitor uses it."""

    def __init__(self, owner: FolderSession, secret: bytes) -> None:
        self.secret = secret
        self.settings = owner.settings
        self.worker = owner.worker
        self.owner = owner
        self._clock = owner.clock
        self._survey = FolderView(owner)
        self._quota = Quota(owner, self._survey)
        self._reports = ReportWriter(owner)
        self._news = 0
        self._event = asyncio.Event()
        self._stale = 0
        self._rounds: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        owner.changed = self._notify

    def start(self) -> None:
        """Run a round every second from now on, whether or not anything is called."""
        self.owner.has_rounds_task = True
        self._rounds = asyncio.create_task(self._run_rounds())

    async def _run_rounds(self) -> None:
        """Run rounds until the close.

        An unreachable folder is waited for; any other error ends the task, and `lease` raises it."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.owner.every_seconds):
                    await self._closing.wait()
            if self._closing.is_set():
                return
            try:
                await self.owner.run_round()
            except Unavailable as error:
                log.warning("waiting for the shared folder: %s", error)

    def _shard(self, site: str) -> FolderShard | None:
        return self.owner.shards.get(self.owner.layout.shard_of(site))

    async def add(self, requests: Sequence[Request]) -> int:
        """Queue requests, or send them to the owners of their shards; those that are sent all count as new."""
        added = await self.owner.links.hand_out(list(requests))
        if added:
            self._notify()
        return added

    async def adopt(self, requests: Sequence[Request]) -> None:
        """Mark these requests as fetched: their pages exist, from another program or an earlier crawl."""
        done = [msgspec.structs.replace(request, tries=FETCHED_BEFORE) for request in requests]
        await self.owner.links.hand_out(done)

    async def has_adopted(self, tree: str) -> bool:
        """Return whether the job has imported this tree of pages completely."""
        return tree in await self.owner.run(read_adopted, self.owner.share)

    async def note_adopted(self, tree: str) -> None:
        """Store that this tree is imported completely."""
        await self.owner.run(write_adopted, self.owner.share, tree)

    async def lease(
        self, limit: int, *, batch: int, seconds: float, also: frozenset[str] = frozenset(), worker: str = ""
    ) -> Grant:
        """As every frontier does, from our own shards, and never for longer than our claims can be trusted.

        `also` is ignored: a worker claims only shards of its region and of none. A folder refuses jobs whose sites
        change their region (`region_by` auto)."""
        owner, worker = self.owner, worker or self.worker
        if self._rounds is not None and self._rounds.done():
            # No heartbeat is sent without this task, so raise the error that ended it.
            self._rounds.result()
        await owner.ensure_claims()
        news = self._news
        if owner.job != "running":
            return Grant(job=owner.job, wait=owner.every_seconds, news=news)
        now = self._clock.monotonic()
        leases, due_at = await self._lease(limit, batch, min(seconds, owner.remaining), worker, now)
        # A worker whose leased lanes fill half of its fetch slots has enough, even if this call found no more.
        under_way = sum(shard.lanes_held for shard in owner.shards.values())
        owner.hungry = not leases and 2 * under_way < self.settings.concurrency
        if owner.hungry and not under_way:
            await self._quota.give_back()
        job: JobState = "running"
        idle = not leases and self._is_idle()
        if idle:
            if owner.reported_busy:
                await owner.renew()
            job = "finished" if await self._survey.is_over() else "running"
        wait = owner.every_seconds if due_at is None else max(0.0, due_at - now)
        if idle or self._quota.left() <= 0:
            # It waits for other workers, whose progress sends no notification: check again each round.
            wait = min(wait, owner.every_seconds)
        return Grant(leases=tuple(leases), wait=wait, job=job, news=news)

    async def _lease(
        self, limit: int, batch: int, seconds: float, worker: str, now: float
    ) -> tuple[list[Lease], float | None]:
        """Lease the lanes of all our shards that have been ready longest; also when the next one is ready.

        In two passes, as in one schedule: sites over their quota only if no other lane is ready in any shard."""
        shards = [shard for shard in self.owner.shards.values() if not shard.leaving]
        if self.owner.has_other_workers:
            # A shard can be given away only when nothing of it is leased. With little work left, batches are small, so
            # that workers that run out of work get some of ours soon.
            left = sum(shard.queued for shard in shards)
            batch = min(batch, max(_SHORT, left // (2 * self.settings.concurrency)))
        room = await self._quota.room(limit * batch)
        if room <= 0:
            for shard in shards:
                shard.expire_leases(now)
            room = self._quota.left()
        if room <= 0 or seconds <= 0:
            return [], min((at for shard in shards if (at := shard.next_expiry()) is not None), default=None)
        leases: list[Lease] = []
        for over_quota in (False, True):
            turns = [(shard.next_turn(over_quota=over_quota), shard) for shard in shards]
            due = [(turn, shard.number, shard) for turn, shard in turns if turn is not None]
            heapq.heapify(due)
            later: list[float] = []
            while due and due[0][0][0] <= now and len(leases) < limit and room > 0:
                _, number, shard = heapq.heappop(due)
                busy = any(one.has_suspect(worker, now) for one in shards)
                grant = await shard.lease(
                    1,
                    batch=min(batch, room),
                    seconds=seconds,
                    worker=worker,
                    suspects=not busy,
                    over_quota=over_quota,
                )
                leases += grant.leases
                room -= sum(len(lease.requests) for lease in grant.leases)
                if not grant.leases:
                    # Nothing in it can be leased by this worker now.
                    later += [] if grant.wait is None else [now + grant.wait]
                elif (turn := shard.next_turn(over_quota=over_quota)) is not None:
                    heapq.heappush(due, (turn, number, shard))
        if room <= 0:
            later += [at for shard in shards if (at := shard.next_expiry()) is not None]
        return leases, min([*later, *(turn[0] for turn, _, _ in due)], default=None)

    def _is_idle(self) -> bool:
        """Return whether nothing of our shards is leased, and nothing can be until something changes."""
        shards = self.owner.shards.values()
        if any(shard.leased for shard in shards):
            return False
        return self._quota.left() <= 0 or all(shard.is_over() for shard in shards)

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        owner = self.owner
        await owner.ensure_claims(seconds=seconds)
        ours: list[Lease] = []
        for lease in leases:
            shard = self._shard(lease.site)
            if shard is not None:
                for longer in await shard.extend([lease], seconds=seconds):
                    # No longer than our claims can be trusted.
                    ours.append(msgspec.structs.replace(longer, ttl=min(seconds, owner.remaining)))
        return ours

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        """Commit outcomes, shard by shard: links to our own shards first, those to others with the outcome itself."""
        owner, shard_of = self.owner, self.owner.layout.shard_of
        if owner.is_late:
            await owner.renew()
        settled: dict[int, tuple[list[Outcome], list[SiteNote]]] = defaultdict(lambda: ([], []))
        for outcome in outcomes:
            settled[shard_of(outcome.site)][0].append(outcome)
        for note in notes:
            settled[shard_of(note.site)][1].append(note)
        receipts: list[Receipt] = []
        async with owner.writing:
            abroad = await self._links_first({number: pair[0] for number, pair in settled.items()})
            results = await asyncio.gather(
                *(self._commit_shard(number, *pair, abroad.get(number, [])) for number, pair in settled.items()),
                return_exceptions=True,
            )
        self._notify()
        for result in results:
            if isinstance(result, BaseException):
                raise result
            receipts.append(result)
        return Receipt(
            accepted=sum(receipt.accepted for receipt in receipts),
            stale=sum(receipt.stale for receipt in receipts),
            repeated=sum(receipt.repeated for receipt in receipts),
        )

    async def _links_first(self, settled: Mapping[int, Sequence[Outcome]]) -> dict[int, list[Request]]:
        """Queue links to other shards of this worker, and return those to shards of others, by the shard of their page.

        Only of outcomes that would count now: a stale page must not bring links."""
        owner, shard_of = self.owner, self.owner.layout.shard_of
        here: dict[int, list[Request]] = defaultdict(list)
        abroad: dict[int, list[Request]] = {}
        for number, outcomes in settled.items():
            shard = owner.shards.get(number)
            for outcome in outcomes if shard is not None else ():
                strangers = [link for link in outcome.links if shard_of(link.site) != number]
                if not strangers or shard is None or not shard.holds(outcome):
                    continue
                page = shard.page_of(outcome)
                for link in strangers:
                    named = link if link.referrer else msgspec.structs.replace(link, referrer=page)
                    target = shard_of(link.site)
                    (here[target] if target in owner.shards else abroad.setdefault(number, [])).append(named)
        await asyncio.gather(*(owner.shards[number].add(links) for number, links in here.items()))
        return abroad

    async def _commit_shard(
        self, number: int, outcomes: list[Outcome], notes: list[SiteNote], abroad: list[Request]
    ) -> Receipt:
        """Commit the outcomes of one shard; stale if the shard is lost, before the write or by the time of it."""
        shard, shard_of = self.owner.shards.get(number), self.owner.layout.shard_of
        if shard is None:
            self._stale += len(outcomes)
            return Receipt(stale=len(outcomes))
        own = [
            msgspec.structs.replace(
                outcome, links=tuple(link for link in outcome.links if shard_of(link.site) == number)
            )
            if outcome.links
            else outcome
            for outcome in outcomes
        ]
        shard.journal.staged = abroad
        before = shard.stored
        try:
            receipt = await shard.complete(own, notes=notes)
            self.owner.stored += shard.stored - before
            return receipt
        except ShardLost:
            self._stale += len(outcomes)
            return Receipt(stale=len(outcomes))
        finally:
            shard.journal.staged = []

    async def release(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            shard = self._shard(lease.site)
            if shard is not None:
                await shard.release([lease])
        self._notify()

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Take back what a dead worker held: its leases in our shards, and its shards. How many of both."""
        owner = self.owner
        found = 0
        for shard in list(owner.shards.values()):
            found += await shard.abandon(worker, blamed=blamed)
        found += await owner.inherit(worker, blamed=blamed)
        self._notify()
        return found

    async def idle(self, grant: Grant) -> None:
        if grant.news != self._news:
            return
        try:
            async with asyncio.timeout(grant.wait):
                await self._event.wait()
        except TimeoutError:
            pass

    def _notify(self) -> None:
        self._news += 1
        self._event.set()
        self._event = asyncio.Event()

    async def counts(self) -> Counts:
        return await self._survey.counts(stale=self._stale)

    async def steer(self, job: JobState) -> None:
        """Pause, resume or stop the job on all machines: each reads it in its next round."""
        await self.owner.run(write_wanted_state, self.owner.share, job)
        self.owner.job = job
        self._notify()

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        key, site = key_of(self.secret, url), urls.host_port(url)
        if self.settings.site_by == "domain":
            site = urls.registered_domain(site)
        shard = self._shard(site)
        if shard is not None:
            return await shard.find(key)
        return await self._survey.lookup(key, site)

    async def site(self, name: str) -> Mapping[str, Any] | None:
        shard = self._shard(name)
        return await (self._survey.site(name) if shard is None else shard.site(name))

    async def sites(self, limit: int = 100) -> list[Mapping[str, Any]]:
        return await self._survey.sites(limit)

    async def every_site(self, cursor: str = "", limit: int = 100) -> tuple[list[Mapping[str, Any]], str]:
        return await self._survey.every_site(cursor, limit)

    async def beat(self, heartbeat: Heartbeat) -> None:
        self.owner.heartbeat = heartbeat
        await self._reports.write()

    async def refresh(self) -> None:
        settings = await self.owner.run(read_settings, self.owner.share)
        if settings != self.settings:
            self.settings = self.owner.settings = settings
            for shard in list(self.owner.shards.values()):
                await shard.limit(settings)
            self._quota.forget_refusal()
            self._notify()

    async def workers(self) -> list[Heartbeat]:
        return await self._survey.workers()

    async def shards(self) -> list[ShardView]:
        return await self._survey.shards()

    async def aclose(self) -> None:
        self.owner.leaving = True
        self._closing.set()
        if self._rounds is not None:
            # Not cancelled: its thread would go on, and might make a claim that is never given up.
            await asyncio.gather(self._rounds, return_exceptions=True)
        try:
            if self.owner.is_member:
                await self._quota.close()
        except Unavailable as error:
            log.warning("could not close the account of the page limit: %s", error)
        finally:
            await self.owner.aclose()
