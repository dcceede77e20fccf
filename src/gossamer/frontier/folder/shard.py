"""A claimed shard: the embedded frontier in memory over a journal on the shared folder.

The rules of a shard are those of `frontier/embedded`: the same schedule, the same settlement, the same order of write
and apply. This module adds what is different on a folder.

- **A write counts only if the claim still holds after it.** `FolderJournal.write` appends a frame, syncs it, and asks
  the session to confirm. If another worker has claimed the shard, the call raises `ShardLost`, and the frame does not
  matter: the new owner has read the log before, or has read the frame as well and counts it.
- **Reading may block**, since the folder may be a network mount. `load` never reads: it raises `NotAtHand`, the shard
  reads the batch in a thread, and repeats the lease.
- **Links for other shards** are staged with the outcome that brought them and written in the same frame (P3). They stay
  in `outgoing` until they are sent; as long as there are any, the shard is busy (P6).
- **Limits of the whole job** (`max_pages`) are not a shard's concern; `frontier.Quota` deals with them. What else spans
  shards of a process, the order of their lanes, the shares of sites and the tokens, is in `ProcessState`.

When the disk fails in the middle of an append, the end of the log is unknown (`_torn`). The next write cuts the file at
the last end that counted, and begins there. When the log is long, the next write first goes on in a new log behind a
shorter past (`_shorten`)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gossamer.clock import Clock
from gossamer.errors import Unavailable
from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.frontier.embedded.journal import (
    DONE,
    FAILED,
    SKIPPED,
    Change,
    NotAtHand,
    OutcomeRow,
    site_view,
    to_the_end,
    vars_of,
)
from gossamer.frontier.folder.claims import ClaimsView
from gossamer.frontier.folder.files import explained
from gossamer.frontier.folder.log import (
    FILE_BITS,
    SIZE_BYTES,
    Chain,
    ChainFrame,
    Growth,
    Index,
    LoggedRequest,
    ShardPast,
    column,
    decode_kept,
    decode_state,
    encode,
    pack,
    put_log,
    put_past,
    read_chain,
    size_at,
    states_of,
    sweep_logs,
)
from gossamer.frontier.policy import SiteQuota
from gossamer.model import Counts, Grant, Outcome, RegionView, Request
from gossamer.settings import Settings

if TYPE_CHECKING:
    from gossamer.frontier.folder.owner import FolderSession


log = logging.getLogger("gossamer.frontier")
_FILE_MASK = (1 << FILE_BITS) - 1


class _File:
    """An open file, shared by threads: it is closed when the last of them drops it."""

    def __init__(self, path: Path, how: int) -> None:
        self.handle = os.open(path, how)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            with suppress(OSError):
                os.close(self.handle)


class _Next(NamedTuple):
    """A shortened chain that is written, with its index and last visits."""

    chain: Chain
    places: Index
    visits: Mapping[int, int]


class FolderJournal:
    """A journal in the newest log of a shard's chain. After each write it asks the owner whether the write counts.

    `_end` is the end of what counts; bytes beyond it are from a write that failed. Files have numbers, which never
    change, so that places of requests and states stay valid when the log is shortened. `_gone` counts links that have
    been sent, `_gone_written` those of which the log says so."""

    def __init__(self, owner: FolderSession, chain: Chain, past: ShardPast, shard: int) -> None:
        self._owner = owner
        self._share = owner.share
        self._shard = shard
        self._names = [name for name, _ in chain.files]
        self._older = chain.files[:-1]
        self._files: dict[int, _File] = {}
        self._at_hand: dict[int, Request] = {}
        self._index = Index(chain)
        self._sites = {number: name for frame in chain for number, name in frame.sites}
        self._end = chain.files[-1][1]
        self._torn = False
        self._growth = chain.growth()
        self._next: _Next | None = None
        self._nexts = 0
        self._reads: set[asyncio.Task[list[Request]]] = set()
        self._at = past.last_at
        self._gone = self._gone_written = past.sent
        self.outgoing = past.unsent
        """Links for other shards that are in the log and have not been sent yet."""
        self.staged: list[Request] = []
        """Links for other shards that belong to the next change."""
        self.changes = 0
        self.moved: Callable[[Mapping[int, int]], None] = lambda visits: None
        """Called with the new places of the last visits after the log was shortened."""

    async def write(self, change: Change) -> Sequence[int]:
        """Append a change, sync it, and confirm it; only then does anything here change.

        On an error `_end` stays, so the next write replaces what this one may have left. On `ShardLost` the shard is
        gone already. Nothing is acknowledged in either case."""
        if self.is_long:
            await to_the_end(self._shorten())
        out = [encode(request) for request in self.staged]
        # The time in a log never goes back: what was due stays due.
        self._at = max(self._at, self._owner.clock.epoch())
        sent = self._gone if self._gone != self._gone_written else 0
        frame, data, start = pack(change, at=self._at, out=out, sent=sent)
        end = self._end
        await self._owner.run(self._append, data, end)
        await self._owner.confirm(self._shard)
        self._end = end + len(data)
        self._gone_written = sent or self._gone_written
        self.outgoing += out
        self.changes += 1
        self._sites.update(change.sites)
        place = ((len(self._names) - 1) << FILE_BITS) | (end + start)
        self._index.take(frame, place)
        self._growth.take(frame)
        self._growth.size += len(data)
        return states_of(frame, place)

    @property
    def is_long(self) -> bool:
        """Return whether the next change goes to a new log after a shorter past."""
        return self._next is not None or self._growth.is_much(len(self._index.places))

    async def _shorten(self) -> None:
        """Continue in a new log behind a shortened past.

        The past is written first, then the new log, which counts from then on: a reader that finds it needs no older
        file, and a reader that does not finds those as they were. So nothing may be written to the old log once the
        new one may exist. If writing it fails, that is not known, and the next change starts with another one, whose
        name is higher still. A past that cannot be written is no error: the log stays long for now."""
        if self._next is None:
            try:
                self._next = await self._owner.run(self._write_past)
            except Unavailable as error:
                log.warning("could not shorten the log of shard %d, retrying later: %s", self._shard, error)
                self._growth = Growth()
                return
        chain, index, visits = self._next
        await self._owner.run(self._write_log, chain)
        await self._owner.confirm(self._shard)
        reads, older, self._next = set(self._reads), len(self._names), None
        self._names += [name for name, _ in chain.files]
        self._older, self._end, self._torn = chain.files[:-1], chain.files[-1][1], False
        self._index, self._growth = index, Growth()
        self._growth.size = sum(length for _, length in chain.files)
        # Links that were sent and are in the new past, because the old log did not say so yet.
        self._gone, self._gone_written = self._gone - self._gone_written, 0
        self.moved(visits)
        if reads:
            # Reads under way use places in the old files: keep these open until they are done.
            await asyncio.wait(reads)
        for file in [file for file in self._files if file < older]:
            self._files.pop(file, None)
        try:
            await self._owner.run(sweep_logs, self._share, chain, self._shard)
        except Unavailable as error:
            log.debug("could not delete old logs of shard %d; its next owner will: %s", self._shard, error)

    async def forget_visits(self, unvisited: Set[int], *, written_off: int = 0) -> None:
        """Continue in a new log in which these URLs were never visited, so that a start queues them.

        Memory does not follow: the caller has to open the shard anew."""

        def rewrite() -> None:
            name, session, first = self._next_name("past"), self._owner.session, len(self._names)
            made = put_past(
                self._share, self._whole(), name, shard=self._shard, session=session, first=first,
                unvisited=unvisited, written_off=written_off,
            )  # fmt: skip
            self._write_log(made)

        await self._owner.run(rewrite)
        await self._owner.confirm(self._shard)

    def _whole(self) -> Chain:
        """Read the whole chain again, up to the end that counts."""
        chain = Chain()
        for name, length in [*self._older, (self._names[-1], self._end)]:
            chain.take(name, self._share.read(name), length)
            if chain.files[-1][1] != length:
                raise OSError(errno.EIO, f"{name} cannot be read to its end")
        return chain

    def _write_past(self) -> _Next:
        chain = self._whole()
        name, session, first = self._next_name("past"), self._owner.session, len(self._names)
        made = put_past(self._share, chain, name, shard=self._shard, session=session, first=first)
        return _Next(made, Index(made), ShardPast(made).last_visits)

    def _write_log(self, chain: Chain) -> None:
        put_log(self._share, chain, self._next_name("log"), shard=self._shard, session=self._owner.session)

    def _next_name(self, kind: str) -> str:
        """A name that sorts behind all names of this owner, and before those of its successors."""
        self._nexts += 1
        folder, _, first = self._names[-1].rpartition("/")
        return f"{folder}/{kind}-{first.partition('-')[2].partition('.')[0]}.{self._nexts:06}"

    def _append(self, data: bytes, end: int) -> None:
        """Write at the end that counts, and sync; runs in a thread.

        `_torn` is set before the first byte and cleared after the sync: if anything in between fails, the next append
        cuts the file first, so that no half frame stays between two whole ones."""
        name = self._names[-1]
        try:
            self._share.touched("append", name)
            log = self._file(len(self._names) - 1)
            if self._torn:
                os.ftruncate(log.handle, end)
            self._torn = True
            view, at = memoryview(data), end
            while view:
                written = os.pwrite(log.handle, view, at)
                view, at = view[written:], at + written
            self._share.touched("fsync", name)
            os.fsync(log.handle)
            self._torn = False
        except OSError as error:
            # Open it anew next time: a failed handle may stay bad after the mount has recovered.
            self._files.pop(len(self._names) - 1, None)
            raise explained(error, self._share.root / name) from error

    def _file(self, number: int) -> _File:
        found = self._files.get(number)
        if found is None:
            how = os.O_RDWR if number == len(self._names) - 1 else os.O_RDONLY
            found = self._files[number] = _File(self._share.root / self._names[number], how)
        return found

    def sent(self, count: int) -> None:
        """Drop the first outgoing links: they are durable elsewhere. The next change records that."""
        del self.outgoing[:count]
        self._gone += count

    def load(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        if any(number not in self._at_hand for number in numbers):
            raise NotAtHand(numbers, visits)
        found = [self._at_hand[number] for number in numbers]
        self._at_hand.clear()
        return found

    async def fetch(self, numbers: Sequence[int], visits: Mapping[int, int]) -> None:
        """Read requests in a thread and keep them for the next `load`."""
        self._at_hand.update(zip(numbers, await self.read(numbers, visits), strict=True))

    async def read(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        """Read requests from the log in a thread."""
        reading = asyncio.ensure_future(self._owner.read(self._requests, numbers, visits))
        self._reads.add(reading)
        reading.add_done_callback(self._reads.discard)
        return await reading

    def _requests(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        found = []
        for number in numbers:
            one = decode_kept(self._read(self._index.places[number], self._index.sizes[number]))
            parent = self._index.parents[number]
            referrer = one.referrer or (self.url(parent) if parent else "")
            found.append(
                Request(
                    one.url, one.key, self._sites[one.place], one.priority, one.depth, one.hops, 0, referrer,
                    one.label, one.meta, one.method, one.headers, one.body, self._state(visits.get(number, 0)),
                )
            )  # fmt: skip
        return found

    def url(self, number: int) -> str:
        """Return the URL of a number."""
        return decode_kept(self._read(self._index.places[number], self._index.sizes[number])).url

    def _state(self, place: int) -> dict[str, Any] | None:
        if not place:
            return None
        size = size_at(self._read(place, SIZE_BYTES))
        return decode_state(self._read(place + SIZE_BYTES, size))

    def _read(self, place: int, size: int) -> bytes:
        file = place >> FILE_BITS
        for last in (False, True):
            try:
                self._share.touched("load", self._names[file])
                log = self._file(file)
                data = os.pread(log.handle, size, place & _FILE_MASK)
                if len(data) < size:
                    raise OSError(errno.EIO, "the log is shorter than before")
                return data
            except OSError as error:
                self._files.pop(file, None)
                if last or error.errno != errno.ESTALE:
                    raise explained(error, self._share.root / self._names[file]) from error
        raise AssertionError

    def lookup(self, key: int) -> dict[str, Any] | None:
        return url_history(read_chain(self._share, self._shard), key)

    def close(self) -> None:
        self._files.clear()


def url_history(chain: Chain, key: int) -> dict[str, Any] | None:
    """Return the history of one URL in a shard's past; None if it is unknown."""
    sites = {number: name for frame in chain for number, name in frame.sites}
    for piece in chain.pieces:
        keys = column(piece.frame.keys)
        if key not in keys:
            continue
        place = keys.index(key)
        number, parent = column(piece.frame.numbers)[place], column(piece.frame.parents)[place]
        one = _kept_at(piece, place)
        rows = [row for frame in chain for row in frame.outcomes if row[0] == number]
        return {
            "number": number,
            "url": one.url,
            "site": sites[one.place],
            "depth": one.depth,
            "priority": one.priority,
            "referrer": one.referrer or _url_of(chain, parent),
            "attempts": [vars_of(OutcomeRow(*row[:6], None)) for row in rows],
        }
    return None


def sites_of(chain: Chain, *, settings: Settings, now: float) -> dict[str, dict[str, Any]]:
    """Return the sites in a shard's past by name, with the length of their queues. Leases are not in a log."""
    past = ShardPast(chain)
    found: dict[int, dict[str, Any]] = {}
    for number, name, row in past.sites():
        empty = {"queued": 0, "delayed": 0, "stored": 0}
        found[number] = {**site_view(name, row, settings=settings, now=now), **empty}
    last: dict[int, tuple[int, bool]] = {}
    stored = Counter(past.dropped)
    for _, number, status, again_at, _ in past.outcomes():
        last[number] = status, again_at is not None
        stored[number] += status in (DONE, FAILED)
    for number, _, site_number, *_ in past.urls():
        site, (status, again) = found[site_number], last.get(number, (0, False))
        site["stored"] += stored[number]
        if not site["closed"] and past.lapses.get(number, 0) < settings.max_deliveries:
            site["queued"] += not status
            site["delayed"] += bool(status) and again
    return {site["site"]: site for site in found.values()}


def site_of(chain: Chain, name: str, *, settings: Settings, now: float) -> dict[str, Any] | None:
    """Return a site from a shard's past, without its queue; None if it is unknown."""
    for _, known, row in ShardPast(chain).sites():
        if known == name:
            return site_view(name, row, settings=settings, now=now)
    return None


def _kept_at(piece: ChainFrame, place: int) -> LoggedRequest:
    sizes = column(piece.frame.sizes, "I")
    start = sum(sizes[:place])
    return decode_kept(piece.blobs[start : start + sizes[place]])


def _url_of(chain: Chain, number: int) -> str:
    for piece in chain.pieces:
        numbers = column(piece.frame.numbers)
        if number and number in numbers:
            return _kept_at(piece, numbers.index(number)).url
    return ""


_PATIENCE = 500.0
"""Inverse of the largest share of its time that a worker spends on counting."""
_SPARE = 64
FETCHED_BEFORE = -1
"""`tries` of a request that another program has fetched: only its key is added."""


class ProcessState:
    """State that the shards of one process share, so that their lanes compete as if in one schedule."""

    def __init__(self, settings: Settings) -> None:
        self.last_token = 0
        """The highest token of all shards: no two leases of a process have the same."""
        self.order = count()
        self.handed = SiteQuota(settings)
        """The quota of a site counts over all shards: in its own shard it may be the only site."""


class FolderShard(EmbeddedFrontier):
    """The embedded frontier over one shard's sites, without the job's page limit.

    `claim` is the number under which this process owns it; a renewal after a long silence replaces it."""

    def __init__(
        self,
        journal: FolderJournal,
        past: ShardPast,
        number: int,
        claim: int,
        *,
        settings: Settings,
        clock: Clock,
        common: ProcessState,
    ) -> None:
        super().__init__(journal, past, settings=msgspec.structs.replace(settings, max_pages=None), clock=clock)
        self.journal = journal
        self.number = number
        self.claim = claim
        self.leaving = False
        """Whether it is to be given away: it leases out nothing more, and is given away when nothing of it is
        leased."""
        self._common = common
        self._urls: dict[int, dict[int, str]] = {}
        """Token -> key -> URL of leased pages: links that are sent elsewhere name their page."""
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
        """Queue requests; only add the keys of those that were fetched before."""
        fetched = [request for request in requests if request.tries == FETCHED_BEFORE]
        if not fetched:
            return await super().add(requests)
        await self._remember(fetched)
        return await super().add([request for request in requests if request.tries != FETCHED_BEFORE])

    async def _remember(self, requests: Sequence[Request]) -> None:
        """Add keys as skipped: this job did not store these pages, so its limits do not count them."""
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
        """As the embedded frontier, reading batches in a thread: repeated until what it would lease is at hand."""
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
        """Queued requests."""
        return self._state.schedule.queued

    @property
    def leased(self) -> int:
        """Leased requests."""
        return self._state.schedule.leased

    @property
    def lanes_held(self) -> int:
        """Leased lanes."""
        return len(self._state.held)

    @property
    def stored(self) -> int:
        """Return the pages stored over the job's life."""
        return self._state.stored

    def next_turn(self, *, over_quota: bool) -> tuple[float, int] | None:
        """Return when the next lane is ready, and its place in the order of all shards of this worker."""
        return self._state.schedule.next_turn(over_quota=over_quota)

    def next_expiry(self) -> float | None:
        """When the next lease is taken back."""
        return self._state.next_expiry()

    def expire_leases(self, now: float) -> None:
        """Take back expired leases."""
        self._state.expire_leases(now)

    async def take_back(self) -> None:
        """Take back expired leases, and write their losses down."""
        self._state.expire_leases(self._clock.monotonic())
        if self._state.new_lapses:
            await self._write_losses()

    def keep_leases(self, worker: str, *, until: float) -> None:
        """Extend a worker's leases a little after a suspension in which no other worker took the shard.

        Their time is over, but the pages it has fetched can still be completed. If the leases expire all the same,
        their requests are not blamed: the worker is known to be alive."""
        for lane in self._state.held.values():
            if lane.worker == worker:
                lane.expires_at = max(lane.expires_at, until)
                lane.excused = True

    def has_suspect(self, worker: str, now: float) -> bool:
        """Whether the worker holds a suspect of this shard."""
        return self._state.has_suspect(worker, now)

    def is_over(self) -> bool:
        """Return whether nothing is queued or leased, and no link waits to be sent to another shard (P6)."""
        return self._state.is_over() and not self.journal.outgoing

    def holds(self, outcome: Outcome) -> bool:
        """Return whether an outcome would count now: its token is valid and its request in the batch."""
        lane = self._state.held.get(outcome.token)
        return lane is not None and outcome.key in lane.batch

    def page_of(self, outcome: Outcome) -> str:
        """The URL of an outcome for which `holds` is true."""
        return self._urls[outcome.token][outcome.key]

    def view(self, *, exact: bool = False) -> ClaimsView:
        """Return the shard's state for others.

        Figures that need a walk over all sites may be some seconds old, unless `exact`; `busy`, on which the end of the
        job depends, never is."""
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
