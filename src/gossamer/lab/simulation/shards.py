"""A simulated shard: the embedded frontier with an outbox, as one life of a server has it."""

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
    """The parcels of a shard, by server and run; a value, so that a journal can go back to an earlier one."""

    boxes: Mapping[tuple[str, str], _Parcels] = {}
    posted: int = 0

    @property
    def size(self) -> int:
        """Parcels in all boxes."""
        return sum(len(box.links) for box in self.boxes.values())

    def post(self, parcels: Sequence[Parcel], now: float) -> Outbox:
        """With these parcels put into their boxes."""
        boxes = dict(self.boxes)
        for place, (server, run, links) in enumerate(parcels):
            # A new box begins with a number that no box of this shard ever had.
            box = boxes.get((server, run)) or _Parcels(self.posted + place, Aging(at=now), ())
            boxes[server, run] = box._replace(links=(*box.links, links))
        return Outbox(boxes, self.posted + len(parcels))

    def sweep(self, runs: Mapping[str, str], now: float, seconds: float) -> Outbox:
        """With the boxes of present runs aged, and without what has become durable."""
        boxes = {}
        for (server, run), box in self.boxes.items():
            if runs.get(server) == run:
                aging, gone = box.aging.swept(Box(server, run, box.first, len(box.links)), now, seconds)
                box = _Parcels(box.first + gone, aging, box.links[gone:])
            if box.links:
                boxes[server, run] = box
        return self._replace(boxes=boxes)

    def replace(self, box: Box, count: int, parcels: Sequence[Parcel], now: float) -> Outbox:
        """Without the first parcels of a box, and with others; the same if the box begins elsewhere by now."""
        found = self.boxes.get((box.server, box.run))
        if found is None or found.first != box.first:
            return self
        left = found._replace(first=found.first + count, links=found.links[count:])
        boxes = {name: left if name == (box.server, box.run) else other for name, other in self.boxes.items()}
        return Outbox({name: each for name, each in boxes.items() if each.links}, self.posted).post(parcels, now)

    def listed(self) -> list[Box]:
        """All boxes, without what is in them."""
        return [Box(*name, box.first, len(box.links)) for name, box in self.boxes.items()]


class Header(NamedTuple):
    """What a server writes down about a shard, beside its URLs."""

    outbox: Outbox = Outbox()
    state: Literal["here", "moved", "barred"] = "here"
    """Moved: the shard is on `server`, and what is kept of it here is of no use once that one has it for good. Barred:
    nothing is here, and no copy of this generation or an earlier one may come."""
    generation: int = 1
    """Grows each time that the shard gets another owner."""
    server: str = ""
    """Where it is going to while it is here, and where it has gone once it has moved."""
    is_empty: bool = False
    """Whether it has moved for good."""


class Elsewhere(Unavailable):
    """The shard is not on this server (any more)."""

    def __init__(self, server: str) -> None:
        super().__init__("the shard is on another server")
        self.server = server
        """Where it is; empty if that is not known here."""


class ServerRun(NamedTuple):
    """A life of a server, between two moments at which it may forget something."""

    name: str
    number: int


class ShardState(NamedTuple):
    """What a server shows of a shard to those who move it."""

    run: str
    header: Header | None

    @property
    def has(self) -> bool:
        """Whether the shard is here."""
        return self.header is not None and self.header.state == "here"

    @property
    def generation(self) -> int:
        """0 where nothing is known of the shard."""
        return self.header.generation if self.header is not None else 0

    def is_leaving(self, target: str) -> bool:
        """Whether it is here, and on its way there."""
        return self.header is not None and self.has and self.header.server == target


class OpenShard:
    """A shard as one life of its server has it, if it does: what is in memory dies with that life."""

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
        """Why no calls are taken for now."""
        self._arrived = arrived
        """Called when the shard is here that was elsewhere."""
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
            # As real stores do: leases that it has forgotten end first, and one delay passes.
            delay = max(journal.longest_delay, settings.delay or 0.0)
            self._rests_until = self._clock.monotonic() + settings.lease_seconds + delay

    def local(self) -> EmbeddedFrontier:
        """The frontier, if the shard is here and takes calls."""
        if self.refusal:
            raise Unavailable(self.refusal)
        header = self.journal.header
        if self._local is None or header is None or header.state != "here":
            raise Elsewhere(header.server if header is not None else "")
        return self._local

    async def add(self, requests: Sequence[Request]) -> int:
        return await self.local().add(requests)

    async def deliver(self, requests: Sequence[Request]) -> tuple[int, str]:
        """As `add`, with the run that acknowledged it."""
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
            raise Unavailable("links of these outcomes may have been forgotten since")
        now = self._clock.monotonic()
        receipt = await self._change(_outbox(lambda outbox: outbox.post(parcels, now)), outcomes, notes)
        return msgspec.structs.replace(receipt, run=self.run.number, outbox=self.journal.header.outbox.size)

    async def sweep(self, runs: Mapping[str, str], *, seconds: float) -> list[Box]:
        """Let boxes age, as `Shard.sweep` does."""
        now = self._clock.monotonic()
        await self._change(_outbox(lambda outbox: outbox.sweep(runs, now, seconds)))
        outbox: Outbox = self.journal.header.outbox
        return outbox.listed()

    async def parcels(self, box: Box, limit: int) -> list[bytes]:
        """The links of a box, as `Shard.parcels` does."""
        self.local()
        found = self.journal.header.outbox.boxes.get((box.server, box.run))
        return list(found.links[:limit]) if found is not None and found.first == box.first else []

    async def replace(self, box: Box, count: int, parcels: Sequence[Parcel]) -> None:
        """Exchange parcels, as `Shard.replace` does."""
        now = self._clock.monotonic()
        await self._change(_outbox(lambda outbox: outbox.replace(box, count, parcels, now)))

    async def _change(
        self,
        change: Callable[[Header], Header],
        outcomes: Sequence[Outcome] = (),
        notes: Sequence[SiteNote] = (),
    ) -> Receipt:
        """Write outcomes, links and the header down in one step, so that they are forgotten together too."""
        async with self.local().settling(outcomes, notes=notes) as settlement:
            self.journal.draft = change(self.journal.header)
            try:
                return await settlement.commit()
            finally:
                self.journal.draft = None

    async def release(self, leases: Sequence[Lease]) -> None:
        await self.local().release(leases)

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        """Take back what a dead worker held."""
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

    # What those call who move shards: see `move`.

    def look_now(self) -> ShardState:
        """What is known of the shard here."""
        return ShardState(self.run.name, self.journal.header)

    async def look(self) -> ShardState:
        """As `look_now`, from afar."""
        return self.look_now()

    async def leave(self, target: str) -> ShardState:
        """Write down where the shard is going to, if it is here."""
        if self.look_now().has and not self.refusal and not self.journal.header.server:
            await self._change(lambda header: header._replace(server=target))
        return self.look_now()

    async def refuse(self, run: str, generation: int) -> bool:
        """Take no calls any more, if this is still the run; whether that is so."""
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
        """All that another server needs; None if calls are taken, so that it would not stay all."""
        return (self.journal.copy(), self.journal.header.outbox) if self.refusal and self.look_now().has else None

    async def take(self, copied: Sequence[Change | None], run: str, generation: int) -> bool:
        """Write down a copy, which does not count yet; whether that was done, by this run and none before it."""
        view = self.look_now()
        if view.run != run or view.has or view.generation > generation:
            return False
        self.journal.take(copied)
        return True

    async def own(self, outbox: Outbox, run: str, generation: int, epoch: int) -> None:
        """Have the shard from now on, if its copy is still the one that this run wrote down."""
        view = self.look_now()
        if view.run == run and view.generation < generation:
            self.journal.note(Change(), Header(outbox, "here", generation))
            self._open(epoch, rests=True)
            self._arrived()

    async def bar(self, generation: int) -> bool:
        """Never take a copy of this generation; or say that the shard is here, and it is too late for that."""
        view = self.look_now()
        if not view.has and view.generation < generation:
            self.journal.note(Change(), Header(state="barred", generation=generation))
        return view.has and view.generation >= generation

    async def bury(self, run: str, generation: int, target: str) -> None:
        """Write down that the shard has moved, if it has been refusing all calls since; what it had is kept."""
        if self._is(run, generation) and self.refusal:
            self._bury(target)

    def _bury(self, target: str) -> None:
        self.journal.note(Change(), self.journal.header._replace(state="moved", server=target))
        self._local, self.refusal = None, ""

    async def empty(self, generation: int) -> None:
        """Give up what was kept: the target has it for good."""
        view = self.look_now()
        if not view.has and view.generation == generation and not self.journal.header.is_empty:
            self.journal.wipe()
            self.journal.note(Change(), self.journal.header._replace(outbox=Outbox(), is_empty=True))

    async def reclaim(self, bar: Callable[[str, int], Awaitable[bool]], epoch: int) -> None:
        """Ask where the shard is going to, or has gone; have it again if it is not there, and never will be."""
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
