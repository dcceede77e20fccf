"""The state of a folder job, read from its files without claiming anything.

Each shard is known from the best source that there is: from memory if this worker owns it, from its owner's last
heartbeat if that is alive, from its last claim if it was given up, and else from its log. Figures of other workers are
therefore up to a heartbeat old, and those of dead ones are what is durable.

Whether the job is over must not be guessed from such figures (P6). `is_over` takes two looks. In both, every shard has
a view that belongs to its newest claim and shows nothing under way, and no letter waits; and between the two, no shard
has changed its claim or its number of changes. A link that travels during the first look shows
up in the second: as a letter, as a busy shard, or as a change. The second look does not trust cached listings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gossamer.errors import Unavailable
from gossamer.frontier.embedded import journal
from gossamer.frontier.embedded.state import State, restore
from gossamer.frontier.folder.claims import MOST_SITES, ClaimsView, brief, longest, read_reports
from gossamer.frontier.folder.log import Chain, ShardPast, read_chain
from gossamer.frontier.folder.shard import site_of, sites_of, url_history
from gossamer.frontier.recrawl import mean
from gossamer.model import Counts, Heartbeat, JobState, ShardView

if TYPE_CHECKING:
    from gossamer.frontier.folder.owner import FolderSession


_SUMMED = (
    "queued", "delayed", "leased", "done", "failed", "skipped", "parked", "stale", "stored", "revisits", "known",
    "sites", "ready_sites", "held_sites", "active_sites",
)  # fmt: skip
_RECENT_SECONDS = 600.0


class FolderView:
    """The job as a whole: counts, sites, workers, and shards."""

    def __init__(self, owner: FolderSession) -> None:
        self._owner = owner
        self._rested: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        """Shards without a live owner -> their claim, and their largest sites."""
        self._read: dict[int, ClaimsView] = {}
        """Shards whose owner is dead or left no view -> the view from their log."""

    def _views(self, *, exact: bool = False) -> dict[int, ClaimsView | None]:
        """Return the view of each shard; None if its owner is dead, or has not reported it yet."""
        owner = self._owner
        found: dict[int, ClaimsView | None] = {}
        for number, standing in owner.claims.newest.items():
            session = standing.claim.session
            if number in owner.shards:
                found[number] = owner.shards[number].view(exact=exact)
            elif not standing.number:
                found[number] = ClaimsView(claim=0, busy=False)
            elif not session:
                found[number] = standing.claim.view
            else:
                beat = owner.peers.beats.get(session)
                view = beat.shards.get(number) if beat is not None else None
                found[number] = view if session in owner.peers.live else None
        return found

    async def _completed(self, views: dict[int, ClaimsView | None]) -> dict[int, ClaimsView | None]:
        """Return the views, completed from the logs of shards whose owner cannot report.

        Reading a log takes a while. As long as workers are alive, which will take those shards, a log is read only if
        its last owner reported nothing, or to find out whether the job is finished; for that, the first shard with work
        is enough."""
        owner, found = self._owner, dict(views)
        is_manned = any(owner.peers.beats[session].worker for session in owner.peers.live)
        unknown = [number for number, view in views.items() if view is None]
        # Shards that had the most work come first: one with work answers the question.
        unknown.sort(key=lambda number: -self._last_view(number).counts.queued)
        open_ended = any(view is not None and view.busy for view in views.values())
        for number in unknown:
            standing = owner.claims.newest[number]
            beat = owner.peers.beats.get(standing.claim.session)
            if is_manned and open_ended and beat is not None and number in beat.shards:
                continue
            view = self._read.get(number)
            if view is None or view.claim != standing.number:
                try:
                    view = await owner.read(self._view_of_log, number, standing.number)
                except Unavailable:
                    # A worker has just taken it.
                    open_ended = True
                    continue
                self._read[number] = view
            found[number] = view
            open_ended = open_ended or view.busy
        return found

    def _view_of_log(self, number: int, claim: int) -> ClaimsView:
        owner = self._owner
        past = ShardPast(read_chain(owner.share, number))
        state = State(msgspec.structs.replace(owner.settings, max_pages=None), owner.clock)
        restore(state, past)
        state.stored += past.stored
        busy = not state.is_over() or bool(past.unsent)
        return ClaimsView(
            claim=claim, busy=busy, counts=state.counts(), lanes=state.schedule.lanes(owner.clock.monotonic())
        )

    def _last_view(self, number: int) -> ClaimsView:
        """Return the last view that a shard's owner reported, dead or alive."""
        standing = self._owner.claims.newest[number]
        beat = self._owner.peers.beats.get(standing.claim.session)
        view = beat.shards.get(number) if beat is not None else None
        return view or ClaimsView(claim=standing.number)

    def stored(self) -> int | None:
        """Return the stored pages of the whole job; None if that is not known of a shard."""
        views = self._views().values()
        return None if None in views else sum(view.counts.stored for view in views if view is not None)

    def taken(self) -> int:
        """Return the stored and leased pages of the whole job, by the last reports."""
        total = 0
        for number, view in self._views().items():
            counts = (view or self._last_view(number)).counts
            total += counts.stored + counts.leased
        return total

    def _is_quiet(self, views: dict[int, ClaimsView | None]) -> dict[int, tuple[int, int]] | None:
        """Return the claim and number of changes of each shard if nothing is in progress in any; else None.

        A view of an older claim does not count: a new owner may have found work in the log. If the page limit is
        reached, only leases keep a shard busy: its queue is never fetched."""
        limit = self._owner.settings.max_pages
        full = limit is not None and self.taken() >= limit
        quiet: dict[int, tuple[int, int]] = {}
        for number, view in views.items():
            if view is None or view.claim != self._owner.claims.newest[number].number:
                return None
            if view.counts.leased if full else view.busy:
                return None
            quiet[number] = (view.claim, view.changes)
        return quiet

    async def is_over(self) -> bool:
        """Return whether the job is finished, by two reads of all shards between which nothing changed (P6)."""
        owner = self._owner
        before = self._is_quiet(self._views())
        if before is None or bool(await owner.run(owner.inbox.waiting)):
            return False
        await owner.look(fresh=True)
        after = self._is_quiet(self._views())
        return after == before and not await owner.run(lambda: owner.inbox.waiting(fresh=True))

    async def counts(self, *, stale: int) -> Counts:
        """Return the counts of the whole job."""
        owner = self._owner
        if len(owner.shards) < owner.layout.count:
            await owner.look()
        views = await self._completed(self._views(exact=True))
        letters = await owner.run(owner.inbox.waiting)
        every = [(view or self._last_view(number)).counts for number, view in views.items()]
        totals = {name: sum(getattr(counts, name) for counts in every) for name in _SUMMED}
        totals["stale"] += stale
        quiet = self._is_quiet(views)
        over = quiet is not None and not letters
        job: JobState = "finished" if over and owner.job == "running" else owner.job
        changes = totals["known"] + totals["stored"] + totals["skipped"] + len(letters)
        return Counts(**totals, job=job, finished=over, changes=changes, freshness=mean(every))

    async def lookup(self, key: int, site: str) -> dict[str, Any] | None:
        """Return what the log has of a URL in another worker's shard. Only that worker knows whether it is leased."""
        settings, now = self._owner.settings, self._owner.clock.epoch()
        chain, worker = await self._chain_of(site)
        found = url_history(chain, key)
        if found is None:
            return None
        about = site_of(chain, site, settings=settings, now=now) or {}
        is_parked = ShardPast(chain).lapses.get(found["number"], 0) >= settings.max_deliveries
        where = journal.standing(found["attempts"], closed=about.get("closed", ""), is_parked=is_parked, now=now)
        return {"key": key, **found, **where, "shard_worker": worker}

    async def site(self, name: str) -> dict[str, Any] | None:
        """Return what the log has of a site in another worker's shard."""
        owner = self._owner
        chain, worker = await self._chain_of(name)
        if site_of(chain, name, settings=owner.settings, now=0.0) is None:
            return None
        now = owner.clock.epoch()
        found = (await owner.read(lambda: sites_of(chain, settings=owner.settings, now=now))).get(name)
        return None if found is None else {**found, "shard_worker": worker}

    async def every_site(self, cursor: str, limit: int) -> tuple[list[Mapping[str, Any]], str]:
        """Return sites by shard and name, and the next cursor; those of other workers' shards from their logs."""
        number, after = int(cursor.partition(":")[0] or 0), cursor.partition(":")[2]
        rows: list[Mapping[str, Any]] = []
        while number < self._owner.layout.count and len(rows) < limit:
            own = self._owner.shards.get(number)
            if own is not None:
                some, after = await own.every_site(after, limit - len(rows))
            else:
                some, after = await self._owner.read(self._sites_in, number, after, limit - len(rows))
            rows += some
            number += not after
        return rows, f"{number}:{after}" if number < self._owner.layout.count else ""

    def _sites_in(self, number: int, after: str, limit: int) -> tuple[list[Mapping[str, Any]], str]:
        known = self._written(number)
        names = sorted(name for name in known if name > after)
        return [known[name] for name in names[:limit]], names[limit - 1] if len(names) > limit else ""

    def _written(self, number: int) -> dict[str, dict[str, Any]]:
        owner = self._owner
        chain = read_chain(owner.share, number)
        return sites_of(chain, settings=owner.settings, now=owner.clock.epoch())

    async def sites(self, limit: int) -> list[Mapping[str, Any]]:
        """Return the sites with the most queued requests.

        Ours come from memory, those of live workers from their reports, and those of shards without an owner from the
        logs."""
        owner = self._owner
        await owner.look()
        found = {site["site"]: site for shard in owner.shards.values() for site in await shard.sites(limit)}
        reports = await owner.read(read_reports, owner.share, owner.peers.live - {owner.session})
        for session, said in reports.items():
            for site in said.sites:
                if owner.claims.newest[owner.layout.shard_of(site["site"])].claim.session == session:
                    found.setdefault(site["site"], site)
        resting = {n: one.number for n, one in owner.claims.newest.items() if one.number and n not in owner.shards}
        resting = {
            n: claim for n, claim in resting.items() if owner.claims.newest[n].claim.session not in owner.peers.live
        }
        self._rested = {n: kept for n, kept in self._rested.items() if resting.get(n) == kept[0]}
        for number, claim in resting.items():
            if number not in self._rested:
                # The log of a shard without an owner cannot change under this claim.
                try:
                    written = await owner.read(self._written, number)
                except Unavailable:
                    # A worker has just taken it, and reports it soon.
                    continue
                briefly = [brief(site) | {"leased": 0} for site in longest(written.values(), MOST_SITES)]
                self._rested[number] = (claim, briefly)
            found.update({site["site"]: site for site in self._rested[number][1]})
        return longest(found.values(), limit)

    async def _chain_of(self, site: str) -> tuple[Chain, str]:
        """Return the past of a site's shard, and the worker that owns it now."""
        owner, number = self._owner, self._owner.layout.shard_of(site)
        for last in (False, False, True):
            await owner.look(fresh=True)
            session = owner.claims.newest[number].claim.session
            try:
                chain = await owner.read(read_chain, owner.share, number)
                return chain, session.rpartition("~")[0] if session in owner.peers.live else ""
            except Unavailable:
                # Its owner may have shortened the past while we read.
                if last:
                    raise
        raise AssertionError

    async def workers(self) -> list[Heartbeat]:
        """Return the last heartbeat of each worker."""
        owner = self._owner
        await owner.look()
        found = []
        for beat in owner.peers.beats.values():
            silent = max(0.0, owner.clock.epoch() - beat.at)
            if silent <= _RECENT_SECONDS and beat.worker:
                heartbeat = beat.heartbeat or Heartbeat(worker=beat.worker, region=beat.region)
                found.append(msgspec.structs.replace(heartbeat, silent=silent))
        return found

    async def shards(self) -> list[ShardView]:
        """Return each shard with its owner."""
        owner = self._owner
        await owner.look()
        views = self._views()
        unowned = [n for n in views if owner.claims.newest[n].claim.session not in owner.peers.live]
        unread = await owner.run(owner.inbox.sites, unowned)
        found = []
        for number, view in views.items():
            session = owner.claims.newest[number].claim.session
            said = view or self._last_view(number)
            lanes = msgspec.structs.replace(said.lanes, ready=said.lanes.ready + unread.get(number, 0))
            server, regions = session.rpartition("~")[0], {owner.layout.region(number): lanes}
            found.append(ShardView(shard=number, server=server, counts=said.counts, regions=regions))
        return found
