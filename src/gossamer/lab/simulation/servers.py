"""Simulated servers: each holds shards, forgets their last writes together, and moves or repairs them.

1. The source writes down that it is leaving, and where to, and refuses all calls. Then it lives for `forget_seconds` on
   one run: so it cannot forget that it leaves, nor links that other shards on it got from this one. Those are in no
   outbox, and the pages that led to them are about to be on another server.
2. Its URLs and its outbox are copied to the target.
3. The target writes down that the shard is here, of a higher generation: unless it has been started again since the
   move began, or has been barred. From now on it serves.
4. The source writes down that the shard has moved, unless it has been started again since it refuses. It keeps its
   copy until the target has lived for `forget_seconds` on one run and still has the shard; then that is emptied.
   Where the target comes back without it, the source has it again.

A source that was leaving and is started again asks the target before it serves. If that has the shard, it has moved;
if not, the target is barred in the same step from ever taking what the source gave away before."""

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
"""Asks a server whether it has the shard, and bars it if not."""
_LOOK_SECONDS = 1.0


class Mover:
    """One try to bring a shard to a server; whoever does not answer is waited for. It may be killed and made anew."""

    def __init__(
        self, links: Mapping[str, LossyLink], target: str, *, epoch: Callable[[], int], bar: Bar, seconds: float
    ) -> None:
        self._links = links
        self._target = target
        self._epoch = epoch
        self._bar = bar
        self._seconds = seconds

    async def run(self) -> bool:
        """Go on from wherever an earlier one was; whether the shard is on one server for good, this one or another."""
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
        """End what was begun at a server that has the shard, or a copy; False if the shard is there again."""
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
        """Wait until a server has lived long enough on one run to have for good what it shows, or shows it no more."""
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
    """A server over all its lives, and what its disk keeps of them."""

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
        """Seconds in which it was up: only in these something becomes durable."""
        return self._lived_before + self.life.lived

    def start(self, *, rests: bool) -> None:
        """Begin a new run with what the disk has kept."""
        servers, number = self.servers, next(self.servers.runs)
        if self.run.number:
            self._lived_before = self.lived
        self.life, self.run = servers.new_life(f"{self.name}-{number}"), ServerRun(f"{self.name}:{number}", number)
        for shard in servers.numbers:
            self.open(shard, rests=rests)

    def open(self, number: int, *, rests: bool) -> OpenShard:
        """Read a shard into memory, if it is here."""
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
        """Die, and lose what was written in the last so many seconds of its life."""
        self.life.kill()
        for journal in self.journals.values():
            journal.forget(seconds)

    def gave(self, number: int) -> bool:
        """Whether it gives a shard away, or did so a short while ago."""
        header = self.journals[number].header
        return header is not None and bool(header.server) and not header.is_empty

    def server(self, number: int) -> Server:
        """A shard here, as others reach it: also if it is not here."""
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
        """How one process reaches a shard on a server."""
        self.runs = count(1)
        self.epochs = count(1)
        """As the clock of real stores: tokens of a later life are larger, whatever was forgotten."""
        places = [f"m{number % machines}" for number in self.numbers]
        self.places = places
        """Where each shard was made."""
        self.machines = {
            name: SimulatedMachine(name, self, [number for number in self.numbers if places[number] == name])
            for name in (f"m{number}" for number in range(machines))
        }

    def bar(self, life: Life, number: int) -> Bar:
        """How this process asks another server whether it has a shard."""

        async def bar(name: str, generation: int) -> bool:
            return await self.reach(life, name, number).ask(lambda shard: shard.bar(generation))

        return bar

    def mover(self, life: Life, number: int, target: str) -> Mover:
        """Somebody who brings a shard to a server."""
        links = {name: self.reach(life, name, number) for name in self.machines}
        seconds = self.settings.forget_seconds
        # Whoever reclaims is the source, and asks by itself.
        return Mover(links, target, epoch=lambda: next(self.epochs), bar=self.bar(life, number), seconds=seconds)

    def owner(self, number: int) -> SimulatedMachine | None:
        """The server that has a shard; of two that do, the later owner."""
        found = [
            machine
            for machine in self.machines.values()
            if (header := machine.journals[number].header) is not None and header.state == "here"
        ]
        return max(found, key=lambda machine: machine.journals[number].header.generation, default=None)

    def journal(self) -> Journals:
        """What is written down of the whole job; of a shard that nobody has, nothing is."""
        owners = [(self.owner(number), number) for number in self.numbers]
        kept = [owner.journals[number] if owner else KeptJournal(self.faults) for owner, number in owners]
        return Journals(kept, lost_outcomes=self.lost_outcomes)

    @property
    def lost_outcomes(self) -> int:
        """What came of URLs, and was forgotten."""
        return sum(journal.lost_outcomes for machine in self.machines.values() for journal in machine.journals.values())


def repair(servers: Servers, records: Sequence[Sequence[Record]]) -> set[int]:
    """Queue exactly the pages again that count as stored and have no record; their keys.

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
