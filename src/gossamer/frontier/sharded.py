"""A frontier of several shards: each site belongs to one shard, which keeps the promises for its own sites.

Shards may be on one server or on several. A shard is a complete frontier, and each of its calls is atomic; no call is
atomic over two shards. This module does everything that spans shards, as a sequence of calls of which any prefix is
harmless.

**A commit** (`complete`) first delivers links to their shards, then completes each page on its own shard. A worker that
dies in between leaves links whose page is fetched again: a repetition, no loss (P3). Two failures could still lose a
link:

- The server of a link's shard acknowledges it, and then loses its last seconds. If it is not the server of the page, a
  copy of the link, a parcel, goes into the page's outbox with the completion: see `outbox`. Workers sweep the outboxes
  about once a second, when they call `lease`.
- If it is the same server, a restart loses page and link together, unless it happens between the two calls. So the
  completion names the `run` that took the links; a server in another run refuses it, and the commit is repeated.

Seeds have no page that would deliver them again. With several servers, each server's seeds are kept as parcels on
another one.

**The end of the job** cannot be read in one call either. `finished` needs two reads of all shards that find them idle
with empty outboxes, and no change in between: a page on its way from one shard to another changes the second read (P6).

**The page limit** is an account in the first shard, the ledger, from which shards get parts: `reserve` takes pages out
of it, and `allow` lets a shard store them. A shard without pages left asks for more; an idle one returns its part. The
order of the two calls ensures that a worker that dies in between leaves pages reserved that no shard has, never the
other way round. They are found at the end and given back (`_return_unallowed`). A lost answer is treated like such a
death where a repeat would give pages twice: `allow` of more pages and `reserve` of fewer then raise `Unavailable` and
are not repeated. After a restart of a server, the account is compared with the shards, since each side may have lost
its half (`_compare_account`).

**Suspects and quotas** concern workers and the whole job, of which a shard sees only its part: the caller passes the
state of the other shards (`lease_shard`). A worker asks for a suspect in one shard at a time (P10).

If one server is unreachable, its shards raise `Unavailable`: leases come from the others, commits that involve it are
repeated as a whole, and the parts that were applied count as repeated."""

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
    """Set or remove (None) the job's page limit on its shards; the first shard has the account."""
    used = sum(await asyncio.gather(*(shard.set_limit(max_pages) for shard in shards)))
    if max_pages is not None:
        await shards[0].set_limit(max_pages, reserved=used)


class _LeaseArguments(NamedTuple):
    """The arguments of one `lease` call that are the same for every shard."""

    batch: int
    seconds: float
    also: frozenset[str]


class Sharded:
    """All shards of a job; this worker leases from the shards of its `part`.

    What it stores between calls only saves calls: another worker, or this one after a restart, reaches the same result
    from the stores alone."""

    quiet_seconds = 1.0
    """A shard that had nothing to lease is not asked again for this long, unless it has news."""

    def __init__(self, shards: Sequence[Shard], *, part: Iterable[int], close: Callable[[], Awaitable[None]]) -> None:
        self._shards = shards
        self._part = list(part)
        # Shuffled, so that the workers do not all ask the same shard first.
        random.shuffle(self._part)
        self._close = close
        self._last: dict[int, tuple[float, Grant]] = {}
        """Shard -> when it may be asked again, and its last grant."""
        self._sources: dict[tuple[str, int], dict[int, str]] = {}
        """Site and token -> key -> URL of what is leased here: links for other shards name it."""
        self._gave_back = False
        self._run_of_ledger = ""
        """The run of the first shard's server in which the account was compared last."""
        self._compared_life = 0
        """The value of `_lives` when the account was compared last."""
        self._unallowed: tuple[float, int] | None = None
        """Since when the shards together may store less than the account has given away, and how much they may
        store."""
        self._runs: dict[int, int] = {}
        """Shard -> the run of its store that answered last, as in `Grant.run`."""
        self._lives = 0
        """How often any of these has changed: this frontier's own `Grant.run`."""
        self._outboxes: set[int] = set()
        """Shards whose outbox was not empty when they answered last."""
        self._swept_at = 0.0
        self._leaving: set[int] = set()
        """Shards that may move to another server: their links for shards beside them need parcels, too."""
        self._handed: dict[int, int] = {}
        """Shard -> requests that it has handed out since the job began, as of its last answer."""
        self._handed_by_all = 0
        self._suspects: dict[tuple[str, int], float] = {}
        self.secret = shards[0].secret
        self.settings = shards[0].settings

    @property
    def in_order(self) -> Sequence[Shard]:
        """Return the shards by number."""
        return self._shards

    def _shard_of(self, site: str) -> int:
        return shard_of(site, len(self._shards))

    async def add(self, requests: Sequence[Request]) -> int:
        groups = grouped(requests, self._shard_of)
        if len({shard.server for shard in self._shards}) == 1:
            return sum(await _all(self._shards[shard].add(some) for shard, some in groups.items()))
        # No page would deliver seeds again, so each server's seeds are kept as parcels on another one.
        groups_by_home = {(self._elsewhere(shard), shard): some for shard, some in groups.items()}
        added, parcels, _ = await self._deliver(groups_by_home)
        homes = list(parcels)
        for home, receipt in zip(
            homes, await _all(self._shards[home].complete([], parcels=parcels[home]) for home in homes)
        ):
            self._note_run(home, receipt)
        return added

    def _elsewhere(self, shard: int) -> int:
        """Return the next shard that is on another server than this one."""
        server, count = self._shards[shard].server, len(self._shards)
        return next(
            other % count
            for other in range(shard + 1, shard + count + 1)
            if self._shards[other % count].server != server
        )

    async def _deliver(
        self, groups: Mapping[tuple[int, int], Sequence[Request]], *, again: bool = False
    ) -> tuple[int, dict[int, list[Parcel]], dict[int, str]]:
        """Deliver links to their shards; `groups` has them by home (the shard of their page) and target.

        Returns how many were new; for each home, the parcels for its outbox, for links on other servers; and for each
        home, the run in which its own server took links for other shards, or SEVERAL_RUNS if the server restarted
        between two deliveries, which the completion refuses."""
        by_target: dict[int, list[Request]] = {}
        for (_, target), links in groups.items():
            by_target.setdefault(target, []).extend(links)
        answers = await _all(self._shards[target].deliver(links) for target, links in by_target.items())
        runs = {target: run for target, (_, run) in zip(by_target, answers)}
        boxes: dict[int, dict[tuple[str, str], list[Request]]] = {}
        own: dict[int, set[str]] = {}
        for (home, target), links in groups.items():
            server = self._shards[target].server
            # The page of links that are delivered again was completed long ago. There is no run to check, so always
            # file a parcel.
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
        """Drop parcels whose links are durable by now, and deliver those again that a server may have forgotten.

        At most about once a second, and only while there are parcels. A server that does not answer is retried later;
        its boxes do not age meanwhile."""
        now = asyncio.get_running_loop().time()
        if not self._outboxes or now < self._swept_at + _SWEEP_SECONDS:
            return
        self._swept_at = now
        # All shards of a server have the same run: ask one of them.
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
                log.debug("could not sweep the outbox of shard %d, retrying later: %s", number, error)

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
        """Deliver the links of a box again: its server is in another run, or its shards have moved.

        Each step delivers some parcels and then replaces them by new ones, so a worker that dies in between delivers
        twice."""
        home, left = self._shards[number], box
        while left.size and (packed := await home.parcels(left, _MOST_PARCELS)):
            links = [link for one in packed for link in unpack_links(one)]
            groups = {(number, shard): some for shard, some in grouped(links, self._shard_of).items()}
            _, parcels, _ = await self._deliver(groups, again=True)
            await home.replace(left, len(packed), parcels.get(number, ()))
            left = left._replace(first=left.first + len(packed), size=left.size - len(packed))
        log.info("delivered links again that %s may have lost: %d parcels", box.server, box.size)

    def _note_run(self, shard: int, answer: Grant | Receipt) -> None:
        """Record the run of a shard's store, and whether its outbox has parcels."""
        self._lives += self._runs.get(shard, answer.run) != answer.run
        self._runs[shard] = answer.run
        if answer.outbox:
            self._outboxes.add(shard)

    async def lease(self, limit: int, *, batch: int, seconds: float, also: frozenset[str] = frozenset()) -> Grant:
        """Lease from the shards of our part: from a few first, then from all others if these have too little.

        After a restart of a server, the account is compared before anything is leased. If a shard does not answer and
        others do, their leases are returned; the error is raised only if there are none."""
        terms = _LeaseArguments(batch, seconds, also)
        await self._sweep_outboxes()
        if self.settings.max_pages is not None and self._compared_life != self._lives:
            life = self._lives
            await self._compare_account(self.settings.max_pages)
            self._compared_life = life
        now = asyncio.get_running_loop().time()
        due_shards = [shard for shard in self._part if shard not in self._last or self._last[shard][0] <= now]
        grants: dict[int, ShardGrant] = {}
        found: list[Lease] = []
        # A few first; if they have too little, all the others.
        width = max(1, len(due_shards) // 4) if limit > 0 else len(due_shards)
        error = await self._sweep(due_shards, limit, grants, found, terms, width=width)
        over = [shard for shard, answer in grants.items() if answer.passed_over]
        if over and len(found) < limit:
            # No other site is ready in any shard: lease sites over their quota.
            fault = await self._sweep(over, limit, grants, found, terms, over_quota=True)
            error = error or fault
        if not found and self._gave_back:
            # A shard returned pages of the limit, which shards asked before it may use.
            self._gave_back = False
            return await self.lease(limit, batch=batch, seconds=seconds, also=also)
        if not found and limit > 0:
            found = await self._one_suspect(grants, terms)
        leases = tuple(found)
        if error is not None and not leases:
            raise error
        gave = {self._shard_of(lease.site) for lease in leases}
        # Shards that gave leases are asked last next time.
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
        due_shards: list[int],
        limit: int,
        grants: dict[int, ShardGrant],
        found: list[Lease],
        terms: _LeaseArguments,
        *,
        width: int | None = None,
        over_quota: bool = False,
    ) -> Unavailable | None:
        """Ask shards, the first `width` of them first, until there are enough leases; return the error of one that
        failed."""
        error: Unavailable | None = None
        begun = False
        while due_shards and (len(found) < limit or not begun):
            shares = _shares(limit - len(found), due_shards[:width])
            due_shards, width, begun = due_shards[len(shares) :], None, True
            calls = [self._lease_from(shard, share, terms, over_quota=over_quota) for shard, share in shares.items()]
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
                        # The shard may have more.
                        due_shards.append(shard)
        return error

    async def _one_suspect(self, grants: dict[int, ShardGrant], terms: _LeaseArguments) -> list[Lease]:
        """Lease one suspect if this worker holds none.

        Shards do not see each other's suspects, so ask one at a time."""
        now = asyncio.get_running_loop().time()
        self._suspects = {lease: ends for lease, ends in self._suspects.items() if ends > now}
        # If we hold one, only its own shard can tell whether we still do.
        ours = {self._shard_of(site) for site, _ in self._suspects}
        for shard, before in grants.items():
            if not before.lost or (ours and shard not in ours):
                continue
            answer = await self._lease_from(shard, 1, terms, suspects=True, over_quota=True)
            if answer.grant.leases:
                grants[shard] = answer
                return list(answer.grant.leases)
        return []

    def _forget(self, site: str, token: int) -> None:
        self._sources.pop((site, token), None)
        self._suspects.pop((site, token), None)

    async def _grant(self, leases: tuple[Lease, ...]) -> Grant:
        """Combine the leases of all shards into one grant. Only `_is_over` may set `finished`."""
        known = {shard: grant for shard, (_, grant) in self._last.items()}
        state = _state([grant.job for grant in known.values()])
        if state == "finished" and (len(known) < len(self._part) or not await self._is_over()):
            state = "running"
        waits = [grant.wait for grant in known.values() if grant.wait is not None]
        if not waits or len(self._part) < len(self._shards):
            # The end of the job depends on shards that send us no news.
            waits.append(_LOOK_AGAIN_SECONDS)
        if self._outboxes:
            waits.append(_SWEEP_SECONDS)
        news = sum(grant.news for grant in known.values())
        outbox = sum(grant.outbox for grant in known.values())
        return Grant(leases=leases, wait=min(waits), job=state, news=news, run=self._lives, outbox=outbox)

    async def _lease_from(
        self, number: int, limit: int, terms: _LeaseArguments, *, suspects: bool = False, over_quota: bool = False
    ) -> ShardGrant:
        """Lease from one shard. Take pages for it if the page limit blocks it; return its part if it needs none."""
        shard, total = self._shards[number], self.settings.max_pages
        answer = await self._lease(number, limit, terms, suspects=suspects, over_quota=over_quota)
        grant = answer.grant
        if total is None or grant.leases or answer.passed_over or grant.job not in ("running", "finished"):
            return answer
        ledger, counts = self._shards[0], await shard.counts()
        _, room = await shard.allow(0)
        if not counts.queued and not counts.leased and room > 0:
            # The shard has nothing to fetch. First take from the shard, then return: never the same page twice.
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
        """Take pages out of the account; return how many.

        If the ledger's server has restarted, it may have forgotten pages that it gave away. So the pages are put back,
        the account is compared, and the pages are taken again, until one run of the server has seen all of it."""
        ledger = self._shards[0]
        taken, _ = await ledger.reserve(pages, limit=total)
        while (run := await ledger.run()) != self._run_of_ledger:
            await ledger.reserve(-taken, limit=total)
            await self._compare_account(total)
            self._run_of_ledger = run
            taken, _ = await ledger.reserve(pages, limit=total)
        return taken

    async def _compare_account(self, total: int) -> None:
        """Make the shards' parts and the account agree after a restart.

        A shard's server may have forgotten that the shard returned pages: the parts together may be too large, and are
        cut. The ledger's server may have forgotten that it gave pages away: it has to count at least what the shards
        have."""
        allowed = await self._allowed(total)
        excess = allowed - total
        for shard in self._shards:
            if excess > 0:
                # In time: after a restart the shard's lanes rest, so nothing of the excess is leased yet.
                taken, _ = await shard.allow(-excess)
                excess += taken
        await self._shards[0].reserve(total, limit=min(total, allowed))

    async def _allowed(self, total: int) -> int:
        """Return the number of pages that all shards together may store."""
        return sum(await _all(shard.set_limit(total) for shard in self._shards))

    async def _return_unallowed(self, total: int) -> bool:
        """Return pages to the account that are reserved and that no shard has; return whether there are, or may be,
        any.

        A server has forgotten them, or a worker died between `reserve` and `allow`. They may also be in transit at this
        moment, so the difference has to stay the same for a while first."""
        now, allowed = asyncio.get_running_loop().time(), await self._allowed(total)
        if allowed >= total:
            self._unallowed = None
            return False
        if self._unallowed is None or self._unallowed[1] != allowed:
            # The pages may be in transit: another worker is between `reserve` and `allow`.
            self._unallowed = now, allowed
        elif now - self._unallowed[0] > _LOOK_AGAIN_SECONDS:
            # Another worker may have returned them a moment ago: then the account is not full any more.
            await self._shards[0].reserve(allowed - total, limit=total, only_full=True)
            self._unallowed = None
        return True

    async def _lease(
        self, number: int, limit: int, terms: _LeaseArguments, *, suspects: bool, over_quota: bool
    ) -> ShardGrant:
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
        self._note_run(number, answer.grant)
        return answer

    async def _is_over(self) -> bool:
        """Return whether the job is finished, and no page of its limit is unused while requests are queued."""
        total = self.settings.max_pages
        if not await self._is_finished():
            return False
        queued = total is not None and any(counts.queued for counts in await self._all_counts())
        return total is None or not queued or not await self._return_unallowed(total)

    async def _is_finished(self) -> bool:
        """Read all shards twice: idle in both, with the same number of changes."""
        first = await self._all_counts()
        if not all(counts.finished for counts in first):
            return False
        if self.settings.max_pages is None and any(counts.queued for counts in first):
            # Idle with queued requests: the job may have a page limit that this worker has not read yet.
            await self.refresh()
        if self.settings.max_pages is not None and any(counts.queued for counts in first):
            _, left = await self._shards[0].reserve(0, limit=self.settings.max_pages)
            if left > 0:
                return False
        second = await self._all_counts()
        return all(counts.finished for counts in second) and [c.changes for c in first] == [c.changes for c in second]

    async def _all_counts(self) -> list[Counts]:
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
            groups.setdefault(self._shard_of(lease.site), []).append(lease)
        return groups

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        """Deliver links to other shards, then complete each page on its own shard (see the module).

        If some shards fail, the others are complete. The caller repeats the whole call: the links are known by then,
        and committed outcomes count as repeated."""
        own: dict[int, tuple[list[Outcome], list[SiteNote]]] = {}
        foreign: dict[tuple[int, int], list[Request]] = {}
        for outcome in outcomes:
            shard = self._shard_of(outcome.site)
            groups = grouped(outcome.links, self._shard_of)
            links = tuple(groups.pop(shard, ()))
            if groups:
                page = self._sources.get((outcome.site, outcome.token), {}).get(outcome.key, "")
                for target, some in groups.items():
                    foreign.setdefault((shard, target), []).extend(_found_on(page, some))
                outcome = msgspec.structs.replace(outcome, links=links)
            own.setdefault(shard, ([], []))[0].append(outcome)
        for note in notes:
            own.setdefault(self._shard_of(note.site), ([], []))[1].append(note)
        _, parcels, runs = await self._deliver(foreign)
        try:
            receipts = await _all(
                self._shards[shard].complete(some, notes=about, parcels=parcels.get(shard, ()), run=runs.get(shard, ""))
                for shard, (some, about) in own.items()
            )
        except Leaving:
            # The repeated call puts these links into outboxes.
            self._leaving.update(runs)
            raise
        for shard, receipt in zip(own, receipts):
            self._note_run(shard, receipt)
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
        """Wait for news of any shard that was asked; that shard is then asked again at once."""
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
        first = await self._all_counts()
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

    async def beat(self, heartbeat: Heartbeat) -> None:
        await self._shards[0].beat(heartbeat)

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
        return await self._shards[self._shard_of(site)].lookup(url, key_of)

    async def site(self, name: str) -> Mapping[str, Any] | None:
        return await self._shards[self._shard_of(name)].site(name)

    async def aclose(self) -> None:
        await self._close()


def _found_on(page: str, links: Sequence[Request]) -> list[Request]:
    """Return the links, each with the URL of its page: another shard cannot look it up."""
    return [link if link.referrer or not page else msgspec.structs.replace(link, referrer=page) for link in links]


def _shares(limit: int, shards: Sequence[int]) -> dict[int, int]:
    """Divide the limit evenly among shards; those that would get nothing are omitted."""
    if limit <= 0:
        return dict.fromkeys(shards, 0)
    some = shards[:limit]
    return {shard: limit // len(some) + (place < limit % len(some)) for place, shard in enumerate(some)}


async def _all(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """Return the results of all calls. If one fails, the others are awaited first, because they take effect."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return found


def _state(states: Sequence[JobState]) -> JobState:
    """Return the state of the job. Shards differ only while the state is being changed."""
    for state in ("missing", "stopping", "paused", "running"):
        if state in states:
            return state
    return "finished"
