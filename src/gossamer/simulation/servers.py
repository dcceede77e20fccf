"""Simulated servers: each has shards, and forgets together what they wrote last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from contextlib import suppress
from itertools import count

from gossamer.errors import Unavailable
from gossamer.settings import Settings
from gossamer.simulation.life import Life, LifeClock, SimulatedLoop
from gossamer.simulation.link import LossyLink, Server
from gossamer.simulation.move import Bar, Mover
from gossamer.simulation.shards import Header, OpenShard, ServerRun
from gossamer.simulation.stores import Journals, KeptJournal, StoreFaults
from gossamer.testing.virtual import START_EPOCH

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
