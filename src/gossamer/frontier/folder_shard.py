"""One shard in the hands of its owner: the embedded frontier over the shard's own log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import msgspec

from gossamer.clock import Clock
from gossamer.frontier.folder_chain import ShardPast
from gossamer.frontier.folder_claims import ClaimsView
from gossamer.frontier.folder_journal import FolderJournal
from gossamer.frontier.journal import SKIPPED, Change, NotAtHand, OutcomeRow, to_the_end
from gossamer.frontier.local import EmbeddedFrontier
from gossamer.frontier.share import SiteQuota
from gossamer.model import Counts, Grant, Outcome, RegionView, Request
from gossamer.settings import Settings

_PATIENCE = 500.0
"""Of its time, a worker spends at most this part on counting: one in so many."""
_SPARE = 64
FETCHED_BEFORE = -1
"""As the tries of a request: it was fetched by another program, and is only to be known."""


class Common:
    """What the shards of one process have in common."""

    def __init__(self, settings: Settings) -> None:
        self.last_token = 0
        """Tokens of all shards grow together."""
        self.order = count()
        self.handed = SiteQuota(settings)
        """A site's share is that of all shards together: in one of them it may be the only site."""


class FolderShard(EmbeddedFrontier):
    """A part of the sites, with their schedule in memory. How many pages the job may store is not its concern."""

    def __init__(
        self,
        journal: FolderJournal,
        past: ShardPast,
        number: int,
        claim: int,
        *,
        settings: Settings,
        clock: Clock,
        common: Common,
    ) -> None:
        super().__init__(journal, past, settings=msgspec.structs.replace(settings, max_pages=None), clock=clock)
        self.journal = journal
        self.number = number
        self.claim = claim
        self.leaving = False
        """To be given to another worker as soon as nothing of it is leased."""
        self._common = common
        self._urls: dict[int, dict[int, str]] = {}
        """Of each lease, by key."""
        self._state.schedule.share, self._state.schedule.order = common.handed, common.order
        self._state.stored += past.stored
        journal.moved = self._moved
        self._counts, self._lanes = Counts(), RegionView()
        self._counted_at, self._counting_seconds = -1e18, 0.0

    async def limit(self, settings: Settings) -> None:
        await super().limit(msgspec.structs.replace(settings, max_pages=None))

    def _moved(self, places: Mapping[int, int]) -> None:
        visits = self._state.visits
        for number in visits:
            visits[number] = places.get(number, 0)

    async def add(self, requests: Sequence[Request]) -> int:
        """Queue requests; those that say that they were fetched before are only remembered."""
        fetched = [request for request in requests if request.tries == FETCHED_BEFORE]
        if not fetched:
            return await super().add(requests)
        await self._remember(fetched)
        return await super().add([request for request in requests if request.tries != FETCHED_BEFORE])

    async def _remember(self, requests: Sequence[Request]) -> None:
        """Skip what is there already: it is not this job that stored it, and its limits do not count it."""
        state, settings = self._state, self._state.settings
        again_in = settings.revisit_seconds if settings.recrawl else None
        async with self._lock:
            change = Change()
            state.plan_urls(change, requests, parent=0)
            at, now = state.clock.epoch(), state.clock.monotonic()
            again_at = None if again_in is None else at + again_in
            for number, _, _, _ in change.urls:
                change.outcomes.append(OutcomeRow(number, SKIPPED, 0, at, again_at, "adopted", None))
            await to_the_end(self._write(change))
            for number, request, _, _ in change.urls:
                site = state.schedule.sites[request.site]
                state.count(SKIPPED)
                if again_in is not None and not site.closed:
                    state.schedule.revisits[number] = SKIPPED
                    state.schedule.push_later(site, number, now + again_in)

    async def lease(
        self,
        limit: int,
        *,
        batch: int,
        seconds: float,
        worker: str = "",
        suspects: bool = True,
        over_quota: bool = True,
    ) -> Grant:
        while not self.leaving:
            try:
                grant = await self._lease_at_hand(
                    limit, batch, seconds, worker, suspects=suspects, over_quota=over_quota
                )
            except NotAtHand as missing:
                await self.journal.fetch(missing.numbers, missing.visits)
                continue
            if len(self._urls) > 2 * self.lanes_held + _SPARE:
                self._urls = {token: urls for token, urls in self._urls.items() if token in self._state.held}
            for lease in grant.leases:
                self._urls[lease.token] = {request.key: request.url for request in lease.requests}
            return grant
        return Grant()

    async def _read(self, numbers: Sequence[int]) -> list[Request]:
        return await self.journal.read(numbers, self._state.visits)

    async def _lease_at_hand(
        self, limit: int, batch: int, seconds: float, worker: str, *, suspects: bool, over_quota: bool
    ) -> Grant:
        self._state.last_token = max(self._state.last_token, self._common.last_token)
        try:
            return await super().lease(
                limit, batch=batch, seconds=seconds, worker=worker, suspects=suspects, over_quota=over_quota
            )
        finally:
            self._common.last_token = max(self._state.last_token, self._common.last_token)

    @property
    def queued(self) -> int:
        """Requests that could be handed out."""
        return self._state.schedule.queued

    @property
    def leased(self) -> int:
        """Requests in somebody's hands."""
        return self._state.schedule.leased

    @property
    def lanes_held(self) -> int:
        """Lanes in somebody's hands."""
        return len(self._state.held)

    @property
    def stored(self) -> int:
        """Pages stored over the job's life."""
        return self._state.stored

    def next_turn(self, *, over_quota: bool) -> tuple[float, int] | None:
        """When the next lane may be leased, and its place in the order of all shards of this worker."""
        return self._state.schedule.next_turn(over_quota=over_quota)

    def next_expiry(self) -> float | None:
        """When the next lease runs out."""
        return self._state.next_expiry()

    def lapse_lost(self, now: float) -> None:
        """Take back what has run out."""
        self._state.lapse_lost(now)

    async def take_back(self) -> None:
        """Take back what has run out, and write down what that says of its requests."""
        self._state.lapse_lost(self._clock.monotonic())
        if self._state.new_lapses:
            await self._keep_lost()

    def keep_leases(self, worker: str, *, until: float) -> None:
        """Extend what a worker holds a little: it was stopped, and comes back while the shard is still ours."""
        for lane in self._state.held.values():
            if lane.worker == worker:
                lane.expires_at = max(lane.expires_at, until)
                lane.excused = True

    def has_suspect(self, worker: str, now: float) -> bool:
        """Whether the worker holds a suspect of this shard."""
        return self._state.has_suspect(worker, now)

    def is_over(self) -> bool:
        """Whether nothing is left to hand out, under way, or to be sent to other shards."""
        return self._state.is_over() and not self.journal.outgoing

    def holds(self, outcome: Outcome) -> bool:
        """Whether an outcome would count now."""
        lane = self._state.held.get(outcome.token)
        return lane is not None and outcome.key in lane.batch

    def page_of(self, outcome: Outcome) -> str:
        """The URL of an outcome that would count."""
        return self._urls[outcome.token][outcome.key]

    def view(self, *, exact: bool = False) -> ClaimsView:
        """What others are told of it. Walking over all sites takes a while: unless it must be exact, what only that can
        tell may be some seconds old."""
        schedule, now = self._state.schedule, self._state.clock.monotonic()
        if exact or now >= self._counted_at + _PATIENCE * self._counting_seconds:
            self._counts, self._lanes = self._state.counts(), schedule.lanes(now)
            self._counted_at = self._state.clock.monotonic()
            self._counting_seconds = self._counted_at - now
        else:
            self._counts = msgspec.structs.replace(
                self._counts,
                queued=schedule.queued,
                delayed=schedule.delayed - len(schedule.revisits),
                leased=schedule.leased,
                stored=self._state.stored,
                known=len(self._state.seen),
            )
        return ClaimsView(
            claim=self.claim,
            changes=self.journal.changes,
            busy=not self.is_over(),
            counts=self._counts,
            lanes=self._lanes,
        )
