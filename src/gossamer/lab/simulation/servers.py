"""Simulated servers: each holds shards, loses their last writes together, and moves or repairs them.

A shard moves in four steps:

1. The source records that the shard is leaving, and its target, and rejects all calls. Then it stays up for
   `forget_seconds` in one run, so that it can lose neither this record nor links that other shards on it received from
   this one. Those links are in no outbox, and the pages that led to them are about to be on another server.
2. The URLs and the outbox of the shard are copied to the target.
3. The target records that it has the shard, with a higher generation, unless it was restarted since the move began or
   is barred. From now on it serves calls.
4. The source records that the shard has moved, unless it was restarted since step 1. It keeps its copy until the target
   has stayed up for `forget_seconds` in one run and still has the shard; then the copy is deleted. If the target
   restarts without the shard, the source has it again.

A source that is restarted while a shard is leaving asks the target before it serves. If the target has the shard, the
shard has moved; if not, the same call bars the target from ever accepting what the source gave away before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

from gossamer.errors import Unavailable
from gossamer.frontier.embedded.journal import DONE, FAILED, Change, OutcomeRow
from gossamer.frontier.outbox import MOST_STEP_SECONDS
from gossamer.lab.simulation.network import LossyLink, Server
from gossamer.lab.simulation.shards import Header, OpenShard, ServerRun, ShardState
from gossamer.lab.simulation.stores import Journals, KeptJournal, StoreFaults
from gossamer.lab.virtual_time import START_EPOCH, Life, LifeClock, SimulatedLoop
from gossamer.model import Record
from gossamer.settings import Settings

T = TypeVar("T")
Bar = Callable[[str, int], Awaitable[bool]]
"""Asks a server whether it has the shard, and bars it if it does not."""
_LOOK_SECONDS = 1.0


class Mover:
    """One attempt to move a shard to a server; it waits for unreachable servers, and can be killed and repeated."""

    def __init__(
        self, links: Mapping[str, LossyLink], target: str, *, epoch: Callable[[], int], bar: Bar, seconds: float
    ) -> None:
        self._links = links
        self._target = target
        self._epoch = epoch
        self._bar = bar
        self._seconds = seconds

    async def run(self) -> bool:
        """Continue where an earlier attempt stopped; returns whether the shard is durably on one server."""
        views = {name: await self._ask(name, OpenShard.look) for name in self._links}
        if not views[self._target].has:
            source = max(views, key=lambda name: (views[name].has, views[name].generation))
            if views[source].has:
                await self._copy(source)
        is_settled = True
        for name in views:
            if name != self._target:
                is_settled = await self._settle(name) and is_settled
        return is_settled

    async def _copy(self, source: str) -> None:
        view = await self._ask(source, lambda shard: shard.leave(self._target))
        there, generation = await self._ask(self._target, OpenShard.look), view.generation
        if not await self._ask(source, lambda shard: shard.refuse(view.run, generation)):
            return
        if (await self._lived(source, lambda view: view.is_leaving(self._target))).run != view.run:
            return
        if (copied := await self._ask(source, OpenShard.copy)) is None:
            return
        changes, outbox = copied
        if await self._ask(self._target, lambda shard: shard.take(changes, there.run, generation)):
            await self._ask(self._target, lambda shard: shard.own(outbox, there.run, generation + 1, self._epoch()))

    async def _settle(self, source: str) -> bool:
        """Finish the move at a server that has the shard or a copy; False if the shard has returned there."""
        here, there = await self._ask(source, OpenShard.look), await self._ask(self._target, OpenShard.look)
        if here.header is None or here.header.server != self._target or here.header.is_empty:
            return True
        generation = here.generation
        if there.has and there.generation > generation:
            await self._ask(source, lambda shard: shard.bury(here.run, generation, self._target))
            if (await self._lived(self._target, lambda view: view.has)).has:
                await self._ask(source, lambda shard: shard.empty(generation))
                return True
        await self._ask(source, lambda shard: shard.reclaim(self._bar, self._epoch()))
        return False

    async def _lived(self, name: str, holds: Callable[[ShardState], bool]) -> ShardState:
        """Wait until a server has been up long enough in one run for its state to be durable, or the state changes."""
        loop = asyncio.get_running_loop()
        run, lived, heard_at = "", 0.0, 0.0
        while True:
            asked_at = loop.time()
            view = await self._ask(name, OpenShard.look)
            if not holds(view):
                return view
            lived = lived + min(asked_at - heard_at, MOST_STEP_SECONDS) if view.run == run else 0.0
            run, heard_at = view.run, loop.time()
            if lived >= self._seconds:
                return view
            await asyncio.sleep(_LOOK_SECONDS)

    async def _ask(self, name: str, call: Callable[[OpenShard], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                return await self._links[name].ask(call)
            except Unavailable:
                await asyncio.sleep(_LOOK_SECONDS)


_AGAIN_SECONDS = 1.0


class SimulatedMachine:
    """A server across restarts, and the contents of its disk."""

    def __init__(self, name: str, servers: Servers, made: Container[int]) -> None:
        self.name = name
        self.servers = servers
        self._lived_before = 0.0
        self.journals = {
            number: KeptJournal(
                servers.faults, forgets=True, now=lambda: self.lived, header=Header() if number in made else None
            )
            for number in servers.numbers
        }
        self.shards: dict[int, OpenShard] = {}
        self.run = ServerRun("", 0)
        self.life: Life
        self.start(rests=False)

    @property
    def lived(self) -> float:
        """Total uptime in seconds: writes become durable only while it is up."""
        return self._lived_before + self.life.lived

    def start(self, *, rests: bool) -> None:
        """Start a new run with the contents of the disk."""
        servers, number = self.servers, next(self.servers.runs)
        if self.run.number:
            self._lived_before = self.lived
        self.life, self.run = servers.new_life(f"{self.name}-{number}"), ServerRun(f"{self.name}:{number}", number)
        for shard in servers.numbers:
            self.open(shard, rests=rests)

    def open(self, number: int, *, rests: bool) -> OpenShard:
        """Load a shard into memory, if this server has it."""
        servers = self.servers
        shard = self.shards[number] = OpenShard(
            self.journals[number],
            epoch=next(servers.epochs),
            run=self.run,
            rests=rests,
            secret=servers.secret,
            settings=servers.settings,
            clock=servers.clock,
            arrived=lambda: servers.arrived(number),
        )
        if shard.refusal:
            bar, epoch = servers.bar(self.life, number), next(servers.epochs)
            self.life.start(self._reclaim(shard, bar, epoch))
        return shard

    async def _reclaim(self, shard: OpenShard, bar: Bar, epoch: int) -> None:
        while shard.refusal:
            with suppress(Unavailable):
                await shard.reclaim(bar, epoch)
            await asyncio.sleep(_AGAIN_SECONDS)

    def fall(self, seconds: float) -> None:
        """Crash, and lose the writes of the last seconds of uptime."""
        self.life.kill()
        for journal in self.journals.values():
            journal.forget(seconds)

    def gave(self, number: int) -> bool:
        """Whether a shard is leaving, or has left recently."""
        header = self.journals[number].header
        return header is not None and bool(header.server) and not header.is_empty

    def server(self, number: int) -> Server:
        """The endpoint for a shard on this server, even if the shard is not here."""
        return Server(self.shards[number], None, self.life)


class Servers:
    """All servers of a job."""

    def __init__(
        self,
        machines: int,
        shards: int,
        *,
        faults: StoreFaults,
        secret: bytes,
        settings: Settings,
        loop: SimulatedLoop,
        new_life: Callable[[str], Life],
        reach: Callable[[Life, str, int], LossyLink],
        arrived: Callable[[int], None],
    ) -> None:
        self.numbers = range(shards)
        self.faults = faults
        self.secret = secret
        self.settings = settings
        self.clock = LifeClock(loop, epoch=START_EPOCH)
        self.new_life = new_life
        self.arrived = arrived
        self.reach = reach
        """Connects a process to a shard on a server."""
        self.runs = count(1)
        self.epochs = count(1)
        """Like the clock of real stores: tokens of a later run are larger, even after data loss."""
        places = [f"m{number % machines}" for number in self.numbers]
        self.places = places
        """The server on which each shard was created."""
        self.machines = {
            name: SimulatedMachine(name, self, [number for number in self.numbers if places[number] == name])
            for name in (f"m{number}" for number in range(machines))
        }

    def bar(self, life: Life, number: int) -> Bar:
        """A function with which this process asks another server whether it has a shard."""

        async def bar(name: str, generation: int) -> bool:
            return await self.reach(life, name, number).ask(lambda shard: shard.bar(generation))

        return bar

    def mover(self, life: Life, number: int, target: str) -> Mover:
        """Create a process that moves a shard to a server."""
        links = {name: self.reach(life, name, number) for name in self.machines}
        seconds = self.settings.forget_seconds
        # Only the source reclaims a shard, and asks on its own.
        return Mover(links, target, epoch=lambda: next(self.epochs), bar=self.bar(life, number), seconds=seconds)

    def owner(self, number: int) -> SimulatedMachine | None:
        """The server that has a shard; if two claim it, the later owner."""
        found = [
            machine
            for machine in self.machines.values()
            if (header := machine.journals[number].header) is not None and header.state == "here"
        ]
        return max(found, key=lambda machine: machine.journals[number].header.generation, default=None)

    def journal(self) -> Journals:
        """The journals of all shards of the job, without shards that no server has."""
        owners = [(self.owner(number), number) for number in self.numbers]
        kept = [owner.journals[number] if owner else KeptJournal(self.faults) for owner, number in owners]
        return Journals(kept, lost_outcomes=self.lost_outcomes)

    @property
    def lost_outcomes(self) -> int:
        """Number of lost outcomes."""
        return sum(journal.lost_outcomes for machine in self.machines.values() for journal in machine.journals.values())


def repair(servers: Servers, records: Sequence[Sequence[Record]]) -> set[int]:
    """Queue exactly those pages again that count as stored but have no record, and return their keys.

    For when nobody crawls. The real command asks the frontier for visits that are due now; here they are written down,
    and the servers are started again."""
    stored = {record.key for some in records for record in some}
    lost: set[int] = set()
    for number in servers.numbers:
        owner = servers.owner(number)
        if owner is None:
            continue
        journal, now = owner.journals[number], servers.clock.epoch()
        last = {row.number: row.status for row in journal.outcomes()}
        requests, rows = journal.requests(), []
        for place, status in sorted(last.items()):
            if status in (DONE, FAILED) and requests[place].key not in stored:
                rows.append(OutcomeRow(place, status, 0, now, now, "repair", None))
                lost.add(requests[place].key)
        if rows:
            journal.note(Change(outcomes=rows), journal.header)
    if lost:
        for machine in servers.machines.values():
            machine.life.kill()
            machine.start(rests=True)
    return lost
