"""A frontier of several shards: each site belongs to one, and each shard keeps the promises for its own sites."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gossamer import urls
from gossamer.errors import Leaving, Unavailable
from gossamer.frontier.base import Shard, ShardGrant
from gossamer.frontier.outbox import SEVERAL_RUNS, Box, Parcel, grouped, pack_links, unpack_links
from gossamer.frontier.placement import shard_of
from gossamer.frontier.recrawl import mean
from gossamer.model import Counts, Grant, Heartbeat, JobState, Lease, Outcome, Receipt, Request, ShardView, SiteNote

log = logging.getLogger("gossamer.frontier")
_LOOK_AGAIN_SECONDS = 2.0
_MOST_RESERVED = 1024
_SWEEP_SECONDS = 1.0
_MOST_PARCELS = 64


async def divide(shards: Sequence[Shard], max_pages: int | None) -> None:
    """Begin, or end, to share out what a job may store among its shards; the first keeps what is left of it."""
    used = sum(await asyncio.gather(*(shard.set_limit(max_pages) for shard in shards)))
    if max_pages is not None:
        await shards[0].set_limit(max_pages, reserved=used)


class _Terms(NamedTuple):
    """What one call of `lease` asks every shard for."""

    batch: int
    seconds: float
    also: frozenset[str]


class Sharded:
    """All shards of a job, of which this worker leases from a `part`.

    Links go to their shards before the outcome does that brought them: a crash in between repeats a page, and loses
    none. Those for other servers stay in an outbox until these cannot forget them any more: see `outbox`. The job is
    finished when two looks at all shards find them idle, with empty outboxes, and nothing has changed in between: a
    page that was on its way from one shard to another has changed the second."""

    quiet_seconds = 1.0
    """A shard that had nothing is not asked again for this long, unless there is news of it."""

    def __init__(self, shards: Sequence[Shard], *, part: Iterable[int], close: Callable[[], Awaitable[None]]) -> None:
        self._shards = shards
        self._part = list(part)
        # Each worker begins elsewhere, so that they do not meet.
        random.shuffle(self._part)
        self._close = close
        self._last: dict[int, tuple[float, Grant]] = {}
        """Shard -> when it may be asked again, and what it said last."""
        self._sources: dict[tuple[str, int], dict[int, str]] = {}
        """Site and token -> key -> URL of what is leased here: links for other shards name it."""
        self._gave_back = False
        self._run_of_ledger = ""
        """The run of the first shard's server in which its account of what all may store was compared last."""
        self._compared_life = 0
        """The life of the stores in which that account was compared last."""
        self._unallowed: tuple[float, int] | None = None
        """Since when, and how much, less may be stored in all shards than the account says."""
        self._runs: dict[int, int] = {}
        """Shard -> the life of its store that answered last, as in `Grant.run`."""
        self._lives = 0
        """How often any of these was another than before."""
        self._outboxes: set[int] = set()
        """Shards whose outbox was not empty when they answered last."""
        self._swept_at = 0.0
        self._leaving: set[int] = set()
        """Shards that may move to another server: links for their neighbors are put into their outboxes, too."""
        self._handed: dict[int, int] = {}
        """Shard -> requests that it has handed out since the job began, when it answered last."""
        self._handed_by_all = 0
        self._suspects: dict[tuple[str, int], float] = {}
        self.secret = shards[0].secret
        self.settings = shards[0].settings

    @property
    def in_order(self) -> Sequence[Shard]:
        """The shards, in the order of their numbers."""
        return self._shards

    def _of(self, site: str) -> int:
        return shard_of(site, len(self._shards))

    async def add(self, requests: Sequence[Request]) -> int:
        groups = grouped(requests, self._of)
        if len({shard.server for shard in self._shards}) == 1:
            return sum(await _all(self._shards[shard].add(some) for shard, some in groups.items()))
        # No page comes again that brings these, so each server's are kept on another one.
        groups_by_home = {(self._elsewhere(shard), shard): some for shard, some in groups.items()}
        added, parcels, _ = await self._deliver(groups_by_home)
        homes = list(parcels)
        for home, receipt in zip(
            homes, await _all(self._shards[home].complete([], parcels=parcels[home]) for home in homes)
        ):
            self._heard(home, receipt)
        return added

    def _elsewhere(self, shard: int) -> int:
        """A shard on another server than this one."""
        server, count = self._shards[shard].server, len(self._shards)
        return next(
            other % count
            for other in range(shard + 1, shard + count + 1)
            if self._shards[other % count].server != server
        )

    async def _deliver(
        self, groups: Mapping[tuple[int, int], Sequence[Request]], *, again: bool = False
    ) -> tuple[int, dict[int, list[Parcel]], dict[int, str]]:
        """Bring links to their shards: by home (the shard that has the page) and target.

        How many were new; for each home the parcels that stay there, since another server has their links; and for
        each home the run of its own server that took some for other shards there, or SEVERAL_RUNS."""
        by_target: dict[int, list[Request]] = {}
        for (_, target), links in groups.items():
            by_target.setdefault(target, []).extend(links)
        answers = await _all(self._shards[target].deliver(links) for target, links in by_target.items())
        runs = {target: run for target, (_, run) in zip(by_target, answers)}
        boxes: dict[int, dict[tuple[str, str], list[Request]]] = {}
        own: dict[int, set[str]] = {}
        for (home, target), links in groups.items():
            server = self._shards[target].server
            # What is delivered again is not made to depend on a run: its page was completed long ago.
            if again or home in self._leaving or server != self._shards[home].server:
                boxes.setdefault(home, {}).setdefault((server, runs[target]), []).extend(links)
            elif home != target:
                own.setdefault(home, set()).add(runs[target])
        parcels = {
            home: [Parcel(server, run, pack_links(links)) for (server, run), links in some.items()]
            for home, some in boxes.items()
        }
        ours = {home: found.pop() if len(found) == 1 else SEVERAL_RUNS for home, found in own.items()}
        return sum(added for added, _ in answers), parcels, ours

    async def _sweep_outboxes(self) -> None:
        """Let go of links that their servers cannot forget any more; deliver again what one may have forgotten."""
        now = asyncio.get_running_loop().time()
        if not self._outboxes or now < self._swept_at + _SWEEP_SECONDS:
            return
        self._swept_at = now
        # Any shard can tell the run of the server that it is on.
        shard_on = {shard.server: shard for shard in self._shards}
        answers = await asyncio.gather(*(shard.run() for shard in shard_on.values()), return_exceptions=True)
        runs: dict[str, str] = {}
        for server, answer in zip(shard_on, answers):
            if isinstance(answer, str):
                runs[server] = answer
            elif not isinstance(answer, Unavailable):
                raise answer
        for number in list(self._outboxes):
            try:
                await self._sweep_outbox(number, runs)
            except Unavailable as error:
                log.debug("the outbox of shard %d is swept later: %s", number, error)

    async def _sweep_outbox(self, number: int, runs: Mapping[str, str]) -> None:
        home = self._shards[number]
        boxes = await home.sweep(runs, seconds=self.settings.forget_seconds)
        if not boxes:
            self._outboxes.discard(number)
        servers = {shard.server for shard in self._shards}
        for box in boxes:
            if box.server not in servers or runs.get(box.server, box.run) != box.run:
                await self._deliver_again(number, box)

    async def _deliver_again(self, number: int, box: Box) -> None:
        """Another run of a server, or another server, gets what an earlier one may have forgotten."""
        home, left = self._shards[number], box
        while left.size and (packed := await home.parcels(left, _MOST_PARCELS)):
            links = [link for one in packed for link in unpack_links(one)]
            groups = {(number, shard): some for shard, some in grouped(links, self._of).items()}
            _, parcels, _ = await self._deliver(groups, again=True)
            await home.replace(left, len(packed), parcels.get(number, ()))
            left = left._replace(first=left.first + len(packed), size=left.size - len(packed))
        log.info("delivered the links again that %s may have forgotten: %d parcels", box.server, box.size)

    def _heard(self, shard: int, answer: Grant | Receipt) -> None:
        """Take note of whether a store may have forgotten something since it was last heard, and of its outbox."""
        self._lives += self._runs.get(shard, answer.run) != answer.run
        self._runs[shard] = answer.run
        if answer.outbox:
            self._outboxes.add(shard)

    async def lease(self, limit: int, *, batch: int, seconds: float, also: frozenset[str] = frozenset()) -> Grant:
        terms = _Terms(batch, seconds, also)
        await self._sweep_outboxes()
        if self.settings.max_pages is not None and self._compared_life != self._lives:
            life = self._lives
            await self._compare_account(self.settings.max_pages)
            self._compared_life = life
        now = asyncio.get_running_loop().time()
        asked = [shard for shard in self._part if shard not in self._last or self._last[shard][0] <= now]
        grants: dict[int, ShardGrant] = {}
        found: list[Lease] = []
        # A few first; if they have too little, all the others.
        width = max(1, len(asked) // 4) if limit > 0 else len(asked)
        error = await self._sweep(asked, limit, grants, found, terms, width=width)
        over = [shard for shard, answer in grants.items() if answer.passed_over]
        if over and len(found) < limit:
            # Nobody else is ready, in no shard: so those are served who have had their share.
            fault = await self._sweep(over, limit, grants, found, terms, over_quota=True)
            error = error or fault
        if not found and self._gave_back:
            # One that was asked before may take it.
            self._gave_back = False
            return await self.lease(limit, batch=batch, seconds=seconds, also=also)
        if not found and limit > 0:
            found = await self._one_suspect(grants, terms)
        leases = tuple(found)
        if error is not None and not leases:
            raise error
        gave = {self._of(lease.site) for lease in leases}
        # Who gave comes last, so that the sites of all shards have their turn.
        self._part.sort(key=lambda shard: (shard in gave, shard in grants))
        for shard, (grant, _, passed_over, _) in grants.items():
            has_more = shard in gave or passed_over
            quiet = 0.0 if has_more else min(self.quiet_seconds, grant.wait or self.quiet_seconds)
            self._last[shard] = now + quiet, grant
        for lease in leases:
            self._sources[lease.site, lease.token] = {request.key: request.url for request in lease.requests}
            if lease.suspect:
                self._suspects[lease.site, lease.token] = now + seconds
        return await self._grant(leases)

    async def _sweep(
        self,
        asked: list[int],
        limit: int,
        grants: dict[int, ShardGrant],
        found: list[Lease],
        terms: _Terms,
        *,
        width: int | None = None,
        over_quota: bool = False,
    ) -> Unavailable | None:
        """Ask shards, the first `width` of them first, until there are enough leases; why one could not answer."""
        error: Unavailable | None = None
        begun = False
        while asked and (len(found) < limit or not begun):
            shares = _shares(limit - len(found), asked[:width])
            asked, width, begun = asked[len(shares) :], None, True
            calls = [self._ask(shard, share, terms, over_quota=over_quota) for shard, share in shares.items()]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            for (shard, share), answer in zip(shares.items(), answers):
                if isinstance(answer, Unavailable):
                    error = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    grants[shard] = answer
                    found += answer.grant.leases
                    if len(answer.grant.leases) >= share > 0:
                        # It may have more.
                        asked.append(shard)
        return error

    async def _one_suspect(self, grants: dict[int, ShardGrant], terms: _Terms) -> list[Lease]:
        """A suspect, if this worker has none: shards do not know of each other's, so they are asked in turn."""
        now = asyncio.get_running_loop().time()
        self._suspects = {lease: ends for lease, ends in self._suspects.items() if ends > now}
        # The shard of the one that we have knows whether we still have it.
        ours = {self._of(site) for site, _ in self._suspects}
        for shard, before in grants.items():
            if not before.lost or (ours and shard not in ours):
                continue
            answer = await self._ask(shard, 1, terms, suspects=True, over_quota=True)
            if answer.grant.leases:
                grants[shard] = answer
                return list(answer.grant.leases)
        return []

    def _forget(self, site: str, token: int) -> None:
        self._sources.pop((site, token), None)
        self._suspects.pop((site, token), None)

    async def _grant(self, leases: tuple[Lease, ...]) -> Grant:
        known = {shard: grant for shard, (_, grant) in self._last.items()}
        state = _state([grant.job for grant in known.values()])
        if state == "finished" and (len(known) < len(self._part) or not await self._is_over()):
            state = "running"
        waits = [grant.wait for grant in known.values() if grant.wait is not None]
        if not waits or len(self._part) < len(self._shards):
            # That other shards are done is no news of these.
            waits.append(_LOOK_AGAIN_SECONDS)
        if self._outboxes:
            waits.append(_SWEEP_SECONDS)
        news = sum(grant.news for grant in known.values())
        outbox = sum(grant.outbox for grant in known.values())
        return Grant(leases=leases, wait=min(waits), job=state, news=news, run=self._lives, outbox=outbox)

    async def _ask(
        self, number: int, limit: int, terms: _Terms, *, suspects: bool = False, over_quota: bool = False
    ) -> ShardGrant:
        shard, total = self._shards[number], self.settings.max_pages
        answer = await self._lease(number, limit, terms, suspects=suspects, over_quota=over_quota)
        grant = answer.grant
        if total is None or grant.leases or answer.passed_over or grant.job not in ("running", "finished"):
            return answer
        ledger, counts = self._shards[0], await shard.counts()
        _, room = await shard.allow(0)
        if not counts.queued and not counts.leased and room > 0:
            # It needs no room: others may.
            returned, _ = await shard.allow(-room)
            await ledger.reserve(returned, limit=total)
            self._gave_back = True
        if counts.queued and room <= 0:
            taken = await self._reserve(min(limit * terms.batch, _MOST_RESERVED), total)
            if taken > 0:
                await shard.allow(taken)
                return await self._lease(number, limit, terms, suspects=suspects, over_quota=over_quota)
        return answer

    async def _reserve(self, pages: int, total: int) -> int:
        """Take pages from what is left of the job's limit; how many."""
        ledger = self._shards[0]
        taken, _ = await ledger.reserve(pages, limit=total)
        while (run := await ledger.run()) != self._run_of_ledger:
            await ledger.reserve(-taken, limit=total)
            await self._compare_account(total)
            self._run_of_ledger = run
            taken, _ = await ledger.reserve(pages, limit=total)
        return taken

    async def _compare_account(self, total: int) -> None:
        """Have the shards store no more than they may, and the ledger count all of it: a server may have forgotten what
        its shard gave back, and the ledger's what it gave away."""
        allowed = await self._allowed(total)
        excess = allowed - total
        for shard in self._shards:
            if excess > 0:
                # Nobody leases what it has too much yet: after a restart its lanes rest.
                taken, _ = await shard.allow(-excess)
                excess += taken
        await self._shards[0].reserve(total, limit=min(total, allowed))

    async def _allowed(self, total: int) -> int:
        """What all shards may store, together."""
        return sum(await _all(shard.set_limit(total) for shard in self._shards))

    async def _return_unallowed(self, total: int) -> bool:
        """Give back what the ledger gave away and no shard has: its server has forgotten it, or a worker was killed on
        the way. Whether there is, or may be, any."""
        now, allowed = asyncio.get_running_loop().time(), await self._allowed(total)
        if allowed >= total:
            self._unallowed = None
            return False
        if self._unallowed is None or self._unallowed[1] != allowed:
            # It may just be on its way.
            self._unallowed = now, allowed
        elif now - self._unallowed[0] > _LOOK_AGAIN_SECONDS:
            ledger = self._shards[0]
            await ledger.reserve(allowed - total, limit=total)
            # Where two workers do so at once.
            await ledger.reserve(total, limit=allowed)
            self._unallowed = None
        return True

    async def _lease(self, number: int, limit: int, terms: _Terms, *, suspects: bool, over_quota: bool) -> ShardGrant:
        answer = await self._shards[number].lease_shard(
            limit,
            batch=terms.batch,
            seconds=terms.seconds,
            also=terms.also,
            suspects=suspects,
            over_quota=over_quota,
            handed_elsewhere=self._handed_by_all - self._handed.get(number, 0),
        )
        self._handed_by_all += answer.handed_out - self._handed.get(number, 0)
        self._handed[number] = answer.handed_out
        self._heard(number, answer.grant)
        return answer

    async def _is_over(self) -> bool:
        """Whether the job is finished, and has stored what it may."""
        total = self.settings.max_pages
        if not await self._is_finished():
            return False
        queued = total is not None and any(counts.queued for counts in await self._look())
        return total is None or not queued or not await self._return_unallowed(total)

    async def _is_finished(self) -> bool:
        first = await self._look()
        if not all(counts.finished for counts in first):
            return False
        if self.settings.max_pages is None and any(counts.queued for counts in first):
            # It may have got a limit that this worker has not heard of.
            await self.refresh()
        if self.settings.max_pages is not None and any(counts.queued for counts in first):
            _, left = await self._shards[0].reserve(0, limit=self.settings.max_pages)
            if left > 0:
                return False
        second = await self._look()
        return all(counts.finished for counts in second) and [c.changes for c in first] == [c.changes for c in second]

    async def _look(self) -> list[Counts]:
        return await _all(shard.counts() for shard in self._shards)

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        groups = self._by_shard(leases)
        found = await _all(self._shards[shard].extend(some, seconds=seconds) for shard, some in groups.items())
        ours = [lease for some in found for lease in some]
        kept = {(lease.site, lease.token) for lease in ours}
        for lease in leases:
            if (lease.site, lease.token) not in kept:
                self._forget(lease.site, lease.token)
        return ours

    def _by_shard(self, leases: Iterable[Lease]) -> dict[int, list[Lease]]:
        groups: dict[int, list[Lease]] = {}
        for lease in leases:
            groups.setdefault(self._of(lease.site), []).append(lease)
        return groups

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        own: dict[int, tuple[list[Outcome], list[SiteNote]]] = {}
        foreign: dict[tuple[int, int], list[Request]] = {}
        for outcome in outcomes:
            shard = self._of(outcome.site)
            groups = grouped(outcome.links, self._of)
            links = tuple(groups.pop(shard, ()))
            if groups:
                page = self._sources.get((outcome.site, outcome.token), {}).get(outcome.key, "")
                for target, some in groups.items():
                    foreign.setdefault((shard, target), []).extend(_found_on(page, some))
                outcome = msgspec.structs.replace(outcome, links=links)
            own.setdefault(shard, ([], []))[0].append(outcome)
        for note in notes:
            own.setdefault(self._of(note.site), ([], []))[1].append(note)
        _, parcels, runs = await self._deliver(foreign)
        try:
            receipts = await _all(
                self._shards[shard].complete(some, notes=about, parcels=parcels.get(shard, ()), run=runs.get(shard, ""))
                for shard, (some, about) in own.items()
            )
        except Leaving:
            # Whoever tries again puts those links into an outbox.
            self._leaving.update(runs)
            raise
        for shard, receipt in zip(own, receipts):
            self._heard(shard, receipt)
        for outcome in outcomes:
            pages = self._sources.get((outcome.site, outcome.token), {})
            pages.pop(outcome.key, None)
            if not pages:
                self._forget(outcome.site, outcome.token)
        return Receipt(
            accepted=sum(receipt.accepted for receipt in receipts),
            stale=sum(receipt.stale for receipt in receipts),
            repeated=sum(receipt.repeated for receipt in receipts),
            run=self._lives,
            outbox=sum(receipt.outbox for receipt in receipts),
        )

    async def release(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._forget(lease.site, lease.token)
        await _all(self._shards[shard].release(some) for shard, some in self._by_shard(leases).items())

    async def idle(self, grant: Grant) -> None:
        waiting = {
            asyncio.create_task(self._shards[shard].idle(msgspec.structs.replace(last, wait=grant.wait))): shard
            for shard, (_, last) in self._last.items()
        }
        if not waiting:
            await asyncio.sleep(min(grant.wait or _LOOK_AGAIN_SECONDS, _LOOK_AGAIN_SECONDS))
            return
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._last[waiting[task]] = 0.0, self._last[waiting[task]][1]
                task.result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)

    async def counts(self) -> Counts:
        first = await self._look()
        finished = all(counts.finished for counts in first) and await self._is_finished()
        states = [counts.job if counts.job != "finished" else "running" for counts in first]
        sums = {
            field: sum(getattr(counts, field) for counts in first)
            for field in Counts.__struct_fields__
            if field not in ("job", "finished", "freshness")
        }
        state = _state(states)
        job: JobState = "finished" if finished and state == "running" else state
        return Counts(**sums, job=job, finished=finished, freshness=mean(first))

    async def steer(self, job: JobState) -> None:
        await _all(shard.steer(job) for shard in self._shards)

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        return sum(await _all(shard.abandon(worker, blamed=blamed) for shard in self._shards))

    async def beat(self, pulse: Heartbeat) -> None:
        await self._shards[0].beat(pulse)

    async def refresh(self) -> None:
        await self._shards[0].refresh()
        self.settings = self._shards[0].settings
        for shard in self._shards[1:]:
            shard.apply(self.settings)

    async def workers(self) -> list[Heartbeat]:
        return await self._shards[0].workers()

    async def shards(self) -> list[ShardView]:
        return [view for views in await _all(shard.shards() for shard in self._shards) for view in views]

    async def sites(self, limit: int = 100) -> list[Mapping[str, Any]]:
        found = [site for some in await _all(shard.sites(limit) for shard in self._shards) for site in some]
        return sorted(found, key=lambda site: -site["queued"])[:limit]

    async def every_site(self, cursor: str = "", limit: int = 100) -> tuple[list[Mapping[str, Any]], str]:
        number, place = int(cursor.partition(":")[0] or 0), cursor.partition(":")[2]
        found, place = await self._shards[number].every_site(place, limit)
        number += not place
        return found, f"{number}:{place}" if number < len(self._shards) else ""

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        site = urls.site(url, by=self.settings.site_by)
        return await self._shards[self._of(site)].lookup(url, key_of)

    async def site(self, name: str) -> Mapping[str, Any] | None:
        return await self._shards[self._of(name)].site(name)

    async def aclose(self) -> None:
        await self._close()


def _found_on(page: str, links: Sequence[Request]) -> list[Request]:
    """The links with the page that they are on."""
    return [link if link.referrer or not page else msgspec.structs.replace(link, referrer=page) for link in links]


def _shares(limit: int, shards: Sequence[int]) -> dict[int, int]:
    """The limit, shared out evenly; shards that would get nothing are left out."""
    if limit <= 0:
        return dict.fromkeys(shards, 0)
    some = shards[:limit]
    return {shard: limit // len(some) + (place < limit % len(some)) for place, shard in enumerate(some)}


async def _all(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """The answers of all calls. Where some fail, the others are waited for: what they did is done."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return found


def _state(states: Sequence[JobState]) -> JobState:
    """The state of the job: shards differ only while somebody is steering them."""
    for state in ("missing", "stopping", "paused", "running"):
        if state in states:
            return state
    return "finished"
