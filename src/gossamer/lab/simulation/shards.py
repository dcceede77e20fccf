"""A simulated shard: the embedded frontier with an outbox, during one run of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import msgspec

from gossamer.clock import Clock
from gossamer.errors import Unavailable
from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.frontier.embedded.journal import Change
from gossamer.frontier.outbox import Aging, Box, Parcel
from gossamer.lab.simulation.stores import KeptJournal
from gossamer.model import Counts, Grant, JobState, Lease, Outcome, Receipt, Request, SiteNote
from gossamer.settings import Settings


class _Parcels(NamedTuple):
    first: int
    aging: Aging
    links: tuple[bytes, ...]


class Outbox(NamedTuple):
    """The parcels of a shard, by server and run; immutable, so that a journal can restore an earlier one."""

    boxes: Mapping[tuple[str, str], _Parcels] = {}
    posted: int = 0

    @property
    def size(self) -> int:
        """Number of parcels in all boxes."""
        return sum(len(box.links) for box in self.boxes.values())

    def post(self, parcels: Sequence[Parcel], now: float) -> Outbox:
        """Return the outbox with these parcels added."""
        boxes = dict(self.boxes)
        for place, (server, run, links) in enumerate(parcels):
            # A new box starts with a number that no earlier box of this shard had.
            box = boxes.get((server, run)) or _Parcels(self.posted + place, Aging(at=now), ())
            boxes[server, run] = box._replace(links=(*box.links, links))
        return Outbox(boxes, self.posted + len(parcels))

    def sweep(self, runs: Mapping[str, str], now: float, seconds: float) -> Outbox:
        """Return the outbox with the boxes of current runs aged, and without durable parcels."""
        boxes = {}
        for (server, run), box in self.boxes.items():
            if runs.get(server) == run:
                aging, gone = box.aging.swept(Box(server, run, box.first, len(box.links)), now, seconds)
                box = _Parcels(box.first + gone, aging, box.links[gone:])
            if box.links:
                boxes[server, run] = box
        return self._replace(boxes=boxes)

    def replace(self, box: Box, count: int, parcels: Sequence[Parcel], now: float) -> Outbox:
        """Return the outbox with the first parcels of a box replaced; unchanged if the box now starts elsewhere."""
        found = self.boxes.get((box.server, box.run))
        if found is None or found.first != box.first:
            return self
        left = found._replace(first=found.first + count, links=found.links[count:])
        boxes = {name: left if name == (box.server, box.run) else other for name, other in self.boxes.items()}
        return Outbox({name: each for name, each in boxes.items() if each.links}, self.posted).post(parcels, now)

    def listed(self) -> list[Box]:
        """All boxes, without their contents."""
        return [Box(*name, box.first, len(box.links)) for name, box in self.boxes.items()]


class Header(NamedTuple):
    """A server's record about a shard, besides its URLs."""

    outbox: Outbox = Outbox()
    state: Literal["here", "moved", "barred"] = "here"
    """Moved: the shard is on `server`, and the copy here is useless once it is durable there. Barred: nothing is here,
    and no copy of this or an earlier generation is accepted."""
    generation: int = 1
    """Grows with every change of the shard's owner."""
    server: str = ""
    """The target while the shard is leaving, and the new server after the move."""
    is_empty: bool = False
    """Whether the move is durable."""


class Elsewhere(Unavailable):
    """The shard is not on this server."""

    def __init__(self, server: str) -> None:
        super().__init__("the shard is on another server")
        self.server = server
        """The server that has it; empty if unknown here."""


class ServerRun(NamedTuple):
    """A run of a server: the time between two moments at which it can lose data."""

    name: str
    number: int


class ShardState(NamedTuple):
    """The state of a shard on a server, for the process that moves it."""

    run: str
    header: Header | None

    @property
    def has(self) -> bool:
        """Whether the shard is here."""
        return self.header is not None and self.header.state == "here"

    @property
    def generation(self) -> int:
        """The generation; 0 if the server does not know the shard."""
        return self.header.generation if self.header is not None else 0

    def is_leaving(self, target: str) -> bool:
        """Whether the shard is here and leaving for this target."""
        return self.header is not None and self.has and self.header.server == target


class OpenShard:
    """A shard in memory during one run of its server."""

    def __init__(
        self,
        journal: KeptJournal,
        *,
        epoch: int,
        run: ServerRun,
        rests: bool,
        secret: bytes,
        settings: Settings,
        clock: Clock,
        arrived: Callable[[], None],
    ) -> None:
        self.journal = journal
        self.run = run
        self.refusal = ""
        """Why calls are rejected; empty if they are accepted."""
        self._arrived = arrived
        """Called when the shard arrives from another server."""
        self._secret = secret
        self._settings = settings
        self._clock = clock
        self._local: EmbeddedFrontier | None = None
        self._rests_until = 0.0
        if self.look_now().has:
            self._open(epoch, rests=rests)
            if journal.header.server:
                self.refusal = "it was leaving: another server may have it"

    def _open(self, epoch: int, *, rests: bool) -> None:
        journal, settings = self.journal, self._settings
        journal.is_sealed, self.refusal = False, ""
        past = journal.past(self._secret, epoch)
        self._local = EmbeddedFrontier(journal, past, settings=settings, clock=self._clock)
        if rests:
            # As in real stores: wait for lost leases to expire, and for one delay.
            delay = max(journal.longest_delay, settings.delay or 0.0)
            self._rests_until = self._clock.monotonic() + settings.lease_seconds + delay

    def local(self) -> EmbeddedFrontier:
        """The frontier; raises if the shard is not here or rejects calls."""
        if self.refusal:
            raise Unavailable(self.refusal)
        header = self.journal.header
        if self._local is None or header is None or header.state != "here":
            raise Elsewhere(header.server if header is not None else "")
        return self._local

    async def add(self, requests: Sequence[Request]) -> int:
        return await self.local().add(requests)

    async def deliver(self, requests: Sequence[Request]) -> tuple[int, str]:
        """Like `add`, and returns the run that acknowledged it."""
        return await self.local().add(requests), self.run.name

    async def lease(self, limit: int, **how: Any) -> Grant:
        local, rest = self.local(), self._rests_until - self._clock.monotonic()
        outbox = self.journal.header.outbox.size
        if rest > 0:
            return Grant(wait=rest, run=self.run.number, outbox=outbox)
        grant = await local.lease(limit, **how)
        job: JobState = "running" if grant.job == "finished" and outbox else grant.job
        return msgspec.structs.replace(grant, job=job, run=self.run.number, outbox=outbox)

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        return await self.local().extend(leases, seconds=seconds)

    async def complete(
        self,
        outcomes: Sequence[Outcome],
        *,
        notes: Sequence[SiteNote] = (),
        marks: Mapping[str, int] | None = None,
        parcels: Sequence[Parcel] = (),
        run: str = "",
    ) -> Receipt:
        if run not in ("", self.run.name):
            raise Unavailable("links of these outcomes may have been lost")
        now = self._clock.monotonic()
        receipt = await self._change(_outbox(lambda outbox: outbox.post(parcels, now)), outcomes, notes)
        return msgspec.structs.replace(receipt, run=self.run.number, outbox=self.journal.header.outbox.size)

    async def sweep(self, runs: Mapping[str, str], *, seconds: float) -> list[Box]:
        """Age the boxes, like `Shard.sweep`."""
        now = self._clock.monotonic()
        await self._change(_outbox(lambda outbox: outbox.sweep(runs, now, seconds)))
        outbox: Outbox = self.journal.header.outbox
        return outbox.listed()

    async def parcels(self, box: Box, limit: int) -> list[bytes]:
        """The links of a box, like `Shard.parcels`."""
        self.local()
        found = self.journal.header.outbox.boxes.get((box.server, box.run))
        return list(found.links[:limit]) if found is not None and found.first == box.first else []

    async def replace(self, box: Box, count: int, parcels: Sequence[Parcel]) -> None:
        """Replace parcels, like `Shard.replace`."""
        now = self._clock.monotonic()
        await self._change(_outbox(lambda outbox: outbox.replace(box, count, parcels, now)))

    async def _change(
        self,
        change: Callable[[Header], Header],
        outcomes: Sequence[Outcome] = (),
        notes: Sequence[SiteNote] = (),
    ) -> Receipt:
        """Write outcomes, links, and the header in one step, so that they are also lost together."""
        async with self.local().settling(outcomes, notes=notes) as settlement:
            self.journal.draft = change(self.journal.header)
            try:
                return await settlement.commit()
            finally:
                self.journal.draft = None

    async def release(self, leases: Sequence[Lease]) -> None:
        await self.local().release(leases)

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Reclaim the leases of a dead worker."""
        return await self.local().abandon(worker, blamed=blamed)

    async def idle(self, grant: Grant) -> None:
        rest = self._rests_until - self._clock.monotonic()
        if rest > 0:
            await self._clock.sleep(rest)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(grant.wait):
                    await self.local().idle(grant)

    async def counts(self) -> Counts:
        counts, outbox = await self.local().counts(), self.journal.header.outbox.size
        job: JobState = "running" if counts.job == "finished" and outbox else counts.job
        finished = counts.finished and not outbox
        return msgspec.structs.replace(counts, job=job, finished=finished, outbox=outbox, changes=self.journal.changes)

    async def sites(self) -> list[Mapping[str, Any]]:
        return await self.local().sites()

    async def site(self, name: str) -> Mapping[str, Any] | None:
        return await self.local().site(name)

    # Calls of the process that moves a shard: see `servers.py`.

    def look_now(self) -> ShardState:
        """The state of the shard on this server."""
        return ShardState(self.run.name, self.journal.header)

    async def look(self) -> ShardState:
        """Like `look_now`, as a remote call."""
        return self.look_now()

    async def leave(self, target: str) -> ShardState:
        """Record the target of the shard, if it is here."""
        if self.look_now().has and not self.refusal and not self.journal.header.server:
            await self._change(lambda header: header._replace(server=target))
        return self.look_now()

    async def refuse(self, run: str, generation: int) -> bool:
        """Reject all calls from now on, if this is still the same run; returns whether it is."""
        if not self._is(run, generation) or not self.journal.header.server:
            return False
        if not self.refusal:
            async with self.local().settling([]):
                self.refusal, self.journal.is_sealed = "it is on its way to another server", True
        return True

    def _is(self, run: str, generation: int) -> bool:
        view = self.look_now()
        return view.run == run and view.has and view.generation == generation

    async def copy(self) -> tuple[list[Change | None], Outbox] | None:
        """A complete copy for another server; None if calls are accepted, because the copy would become outdated."""
        return (self.journal.copy(), self.journal.header.outbox) if self.refusal and self.look_now().has else None

    async def take(self, copied: Sequence[Change | None], run: str, generation: int) -> bool:
        """Store a copy that is not active yet; returns whether this run did so."""
        view = self.look_now()
        if view.run != run or view.has or view.generation > generation:
            return False
        self.journal.take(copied)
        return True

    async def own(self, outbox: Outbox, run: str, generation: int, epoch: int) -> None:
        """Become the owner of the shard, if the stored copy is still the one of this run."""
        view = self.look_now()
        if view.run == run and view.generation < generation:
            self.journal.note(Change(), Header(outbox, "here", generation))
            self._open(epoch, rests=True)
            self._arrived()

    async def bar(self, generation: int) -> bool:
        """Never accept a copy of this generation; returns False if the shard is already here."""
        view = self.look_now()
        if not view.has and view.generation < generation:
            self.journal.note(Change(), Header(state="barred", generation=generation))
        return view.has and view.generation >= generation

    async def bury(self, run: str, generation: int, target: str) -> None:
        """Record that the shard has moved, if it has rejected all calls since; keeps its data."""
        if self._is(run, generation) and self.refusal:
            self._bury(target)

    def _bury(self, target: str) -> None:
        self.journal.note(Change(), self.journal.header._replace(state="moved", server=target))
        self._local, self.refusal = None, ""

    async def empty(self, generation: int) -> None:
        """Delete the kept data: it is durable on the target."""
        view = self.look_now()
        if not view.has and view.generation == generation and not self.journal.header.is_empty:
            self.journal.wipe()
            self.journal.note(Change(), self.journal.header._replace(outbox=Outbox(), is_empty=True))

    async def reclaim(self, bar: Callable[[str, int], Awaitable[bool]], epoch: int) -> None:
        """Ask the target whether it has the shard; take the shard back if it does not and never will."""
        view = self.look_now()
        if view.header is None or view.header.is_empty or not view.header.server or not (self.refusal or not view.has):
            return
        is_there = await bar(view.header.server, view.generation + 1)
        if self.look_now().header != view.header:
            return
        if is_there:
            if view.has:
                self._bury(view.header.server)
            return
        self.journal.note(Change(), view.header._replace(state="here", generation=view.generation + 2, server=""))
        self._open(epoch, rests=True)
        self._arrived()


def _outbox(change: Callable[[Outbox], Outbox]) -> Callable[[Header], Header]:
    return lambda header: header._replace(outbox=change(header.outbox))
