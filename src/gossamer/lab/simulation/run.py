"""One run of the simulation: real engines on a real frontier, with injected faults."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from itertools import islice
from typing import Any, NamedTuple, cast

from gossamer.engine.commit import FleetStore, OwnerStore, Store
from gossamer.engine.concurrency import UnlimitedMachine
from gossamer.engine.links import Linker, RecentKeys
from gossamer.engine.stats import Stats
from gossamer.errors import GossamerError, Unavailable
from gossamer.extract.spider import Spider
from gossamer.frontier.base import Frontier, Shard
from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.frontier.sharded import Sharded
from gossamer.jobs.worker import build_worker
from gossamer.lab.simulation.invariants import Evidence, violations
from gossamer.lab.simulation.network import LossyLink, Server, ShardLink
from gossamer.lab.simulation.scenario import Scenario
from gossamer.lab.simulation.servers import Servers, SimulatedMachine, repair
from gossamer.lab.simulation.stores import KeptJournal, KeptSink, StoreFaults
from gossamer.lab.simulation.world import SimulatedWeb, Witness
from gossamer.lab.virtual_time import START_EPOCH, Life, LifeClock, SimulatedLoop
from gossamer.model import Counts

_LONGEST_SECONDS = 86_400.0
"""Time limit of a run, far above what a crawl of this size takes under any fault."""


_SEEDS_AT_ONCE = 10_000
_LOOKS = 30
_FAILURES = ("restart", "restart", "takeover", "stall", "everything")

Fate = Callable[[Life], None]


class Report(NamedTuple):
    """The result of one seed."""

    seed: int
    violations: tuple[str, ...]
    digest: str
    """Digest of all events with their times: identical runs have the same one."""
    seconds: float
    """Virtual seconds."""
    pages: int
    requests: int
    befell: Counter[str]


def simulate(scenario: Scenario) -> Report:
    """Run a scenario and check its invariants. The same scenario gives the same report in every process."""
    level, state, collects = logging.root.manager.disable, random.getstate(), gc.get_threshold()
    logging.disable(logging.CRITICAL)
    # A large simulation has millions of long-lived objects and few cycles: the GC took a third of the time.
    gc.set_threshold(100_000, 20, 100)
    # The engine draws its jitter from this generator.
    random.seed(scenario.seed)
    loop = SimulatedLoop()
    # Do not report what dead processes leave behind.
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(Simulation(scenario, loop).run())
    finally:
        logging.disable(level)
        random.setstate(state)
        gc.set_threshold(*collects)


class Simulation:
    """A running scenario: servers, workers, network, web, and faults."""

    def __init__(self, scenario: Scenario, loop: SimulatedLoop) -> None:
        self._scenario = scenario
        self._loop = loop
        self._chance = random.Random(f"world/{scenario.seed}")
        self._secret = hashlib.sha256(f"{scenario.seed}".encode()).digest()[:16]
        self._faults = StoreFaults(scenario.seed, scenario.store_faults, self._refused, workers=scenario.workers)
        self._journal = KeptJournal(self._faults, forgets=scenario.restarts > 0 and scenario.forgets_seconds > 0)
        self._files = [KeptSink(self._faults)] if scenario.stores == "owner" else []
        self._witness = Witness(scenario, self._run_away)
        self._web = SimulatedWeb(scenario, note=self._note, runaway=self._run_away, kill=self._poison)
        self._evidence = Evidence(scenario, self._web, self._witness, self._journal)
        self._over: asyncio.Future[str] = loop.create_future()
        self._lives: list[Life] = []
        self._working: dict[str, Life] = {}
        self._left = {
            "kill": scenario.kills,
            "pause": scenario.pauses,
            "cut": scenario.cuts,
            "restart": scenario.restarts,
            "forget": scenario.forgets,
            "sleep": scenario.sleeps,
            "disk": scenario.disks,
        }
        self._seeded_at = float("inf")
        self._has_forgotten: set[str] = set()
        """Servers that have lost data."""
        self._sinks: dict[str, KeptSink] = {}
        self._on_the_way: set[int] = set()
        """Shards that are being moved."""
        self._reached = 0
        self._has_ended = False
        self._up = asyncio.Event()
        self._up.set()
        self._trace = hashlib.sha256()
        self._befell: Counter[str] = Counter()
        self._server: Server
        self._servers: Servers | None = None
        self._frontier_outside: Frontier | None = None
        self._moving: list[asyncio.Task[None]] = []

    def _note(self, *what: object) -> None:
        self._trace.update(f"{self._loop.time():.9f} {what}\n".encode())

    def _run_away(self) -> None:
        if not self._over.done():
            self._over.set_result("I3: the same page is requested repeatedly")

    async def run(self) -> Report:
        """Run the whole crawl, and then end all processes."""
        try:
            return await self._run()
        finally:
            self._loop.over = True
            for life in self._lives:
                life.thaw()

    async def _run(self) -> Report:
        scenario, evidence = self._scenario, self._evidence
        if scenario.servers:
            self._servers = Servers(
                scenario.servers,
                scenario.shards,
                faults=self._faults,
                secret=self._secret,
                settings=scenario.settings,
                loop=self._loop,
                new_life=self._machine_life,
                reach=self._reach,
                arrived=self._shard_arrived,
            )
            self._moving = [self._loop.create_task(self._move(self._servers)) for _ in range(scenario.moves)]
        else:
            self._server = self._serve(0)
        await self._add_seeds()
        found = await self._crawl()
        evidence.in_flight += sum(life.in_hand() for life in self._working.values())
        evidence.records = [sink.records for sink in self._files]
        if self._servers is None:
            evidence.counts = await self._server.frontier.counts()
        elif not found:
            evidence.counts = await self._counts()
        if self._servers is not None:
            evidence.journal = self._servers.journal()
        found.extend(violations(evidence))
        return Report(
            seed=scenario.seed,
            violations=tuple(found),
            digest=self._trace.hexdigest()[:16],
            seconds=self._loop.time(),
            pages=evidence.counts.done,
            requests=len(self._web.hits),
            befell=self._befell,
        )

    async def _crawl(self) -> list[str]:
        """Start workers until the job is finished; returns the errors."""
        ends = self._loop.time() + (self._scenario.seconds or _LONGEST_SECONDS)
        while True:
            crawl = asyncio.gather(*(self._slot(number) for number in range(self._scenario.workers)))
            left = ends - self._loop.time()
            await asyncio.wait((crawl, self._over), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if self._over.done():
                return [self._over.result()]
            if not crawl.done():
                is_due = self._scenario.seconds > 0
                return [] if is_due else [f"P9: the crawl does not end within {_LONGEST_SECONDS / 3600:g} hours"]
            if error := crawl.exception():
                return [f"P8: a worker came to a bad end: {error!r}"]
            if self._moving:
                await asyncio.wait(self._moving, timeout=_LONGEST_SECONDS)
            if not all(moving.done() for moving in self._moving):
                return ["P9: the move of a shard never ends"]
            if self._servers is None or not await self._is_resumed(self._servers):
                return []

    async def _is_resumed(self, servers: Servers) -> bool:
        """Whether workers must be started again, because a server has lost finished work or results are lost."""
        if self._left["forget"] and self._chance.random() < 0.5:
            # A finished job stays finished, whatever is lost afterwards.
            self._left["forget"] -= 1
            self._fail(self._chance.choice(list(servers.machines.values())).life, "takeover")
        is_finished = (await self._counts()).finished
        if is_finished and self._scenario.disks:
            found = repair(servers, [sink.records for sink in self._files])
            self._evidence.repaired |= found
            is_finished = not found
        self._witness.is_finished = self._witness.is_finished and is_finished
        # Otherwise the job was reported as finished too early.
        self._has_ended = is_finished or self._witness.is_finished
        return not self._has_ended

    async def _add_seeds(self) -> None:
        linker, seeds = Linker(self._scenario.settings, self._secret, RecentKeys(2)), self._web.seeds()
        while urls := list(islice(seeds, _SEEDS_AT_ONCE)):
            await self._add([linker.seed(url) for url in urls])
        self._seeded_at = self._loop.time()

    async def _add(self, requests: list[Any]) -> None:
        while True:
            try:
                frontier = self._server.frontier if self._servers is None else self._outside()
                await frontier.add(requests)
                return
            except GossamerError:
                await asyncio.sleep(1.0)

    def _outside(self) -> Frontier:
        """The frontier for a client other than a worker, over a reliable network."""
        if self._frontier_outside is None:
            self._frontier_outside = self._frontier(Life("outside", self._loop), loss=0.0)
        return self._frontier_outside

    def _frontier(self, life: Life, *, loss: float) -> LossyLink | Frontier:
        """The frontier for a worker, over the faulty network."""
        seed, servers, left = self._scenario.seed, self._servers, dict[int, int]()
        if servers is None:
            return LossyLink(
                life, lambda: self._server, self._witness, seed=seed, loss=loss, troubled=self._lost_a_call
            )
        links = [
            ShardLink(number, servers, life, self._witness, seed=seed, loss=loss, troubled=self._lost_a_call, left=left)
            for number in servers.numbers
        ]
        # They implement the calls that an engine uses.
        shards = cast("list[Shard]", links)
        return shards[0] if len(shards) == 1 else Sharded(shards, part=servers.numbers, close=links[0].aclose)

    async def _counts(self) -> Counts:
        """The state of the frontier once no calls are in transit."""
        tries, counts = 0, Counts()
        while tries < _LOOKS:
            try:
                counts, tries = await self._outside().counts(), tries + 1
            except Unavailable:
                pass
            if counts.finished:
                break
            await asyncio.sleep(1.0)
        return counts

    def _serve(self, number: int) -> Server:
        """Run the process that owns the frontier; after a restart, from its journal."""
        life = Life(f"owner-{number}", self._loop, self._fall_fates())
        self._lives.append(life)
        clock = LifeClock(self._loop, epoch=START_EPOCH)
        past = self._journal.past(self._secret)
        frontier = EmbeddedFrontier(self._journal, past, settings=self._scenario.settings, clock=clock)
        store = OwnerStore(frontier, self._files, Stats(clock)) if self._scenario.stores == "owner" else None
        return Server(frontier, store, life)

    def _fall_fates(self) -> dict[int, Fate]:
        if not self._left["restart"]:
            return {}
        self._left["restart"] -= 1
        return {self._some_step(): self._fall}

    def _fall(self, _: Life) -> None:
        """Kill all processes at once, and restart them a little later."""
        self._happens("restart")
        for hurt in self._working.values():
            self._hurts(hurt)
        for life in self._lives:
            life.kill()
        self._up.clear()
        self._rising = self._loop.create_task(self._rise(), context=Context())

    async def _rise(self) -> None:
        # A machine that lost its last writes had a power cut, and takes longer than a delay to restart.
        await asyncio.sleep(self._chance.choice((5.0, 100.0) if self._scenario.forgets_seconds else (0.0, 0.01, 5.0)))
        self._journal.forget(self._scenario.forgets_seconds)
        self._witness.restarted(forgot=self._scenario.forgets_seconds > 0)
        self._server = self._serve(len(self._lives))
        for sink in self._files:
            await sink.rewind(cast(EmbeddedFrontier, self._server.frontier).marks)
        if self._scenario.forgets_seconds:
            # The same command adds the same seeds again.
            await self._add_seeds()
        self._up.set()

    def _reach(self, life: Life, name: str, number: int) -> LossyLink:
        servers, scenario = self._servers, self._scenario

        def server() -> Server:
            assert servers is not None
            return servers.machines[name].server(number)

        self._reached += 1
        return LossyLink(
            life,
            server,
            self._witness,
            seed=scenario.seed,
            loss=scenario.loss,
            troubled=self._lost_a_call,
            name=f"/{name}/{number}/{self._reached}",
        )

    async def _move(self, servers: Servers) -> None:
        """Move a shard to another server; the mover can be killed, and either server can fail."""
        await asyncio.sleep(self._chance.uniform(0.0, 60.0))
        number, target = self._chance.choice(servers.numbers), self._chance.choice(list(servers.machines))
        if number in self._on_the_way:
            return
        self._on_the_way.add(number)
        self._happens("move")
        is_there = False
        while not is_there:
            fates: dict[int, Fate] = {}
            if self._left["forget"]:
                self._left["forget"] -= 1
                machine = self._chance.choice(list(servers.machines.values()))
                fates[self._chance.randint(1, 200)] = lambda _, machine=machine: self._fail(  # type: ignore[misc]
                    machine.life, self._chance.choice(_FAILURES)
                )
            if self._chance.random() < 0.3:
                fates[self._chance.randint(1, 200)] = Life.kill
            life = Life(f"mover-{number}-{len(self._lives)}", self._loop, fates)
            self._lives.append(life)
            task = life.start(servers.mover(life, number, target).run())
            task.add_done_callback(lambda _, life=life: life.end(), context=Context())  # type: ignore[misc]
            is_there = not await life.ended and task.result()
            await asyncio.sleep(1.0)
        self._on_the_way.discard(number)

    def _shard_arrived(self, number: int) -> None:
        """Void the workers' leases of the shard; either server can fail soon after."""
        for hurt in self._working.values():
            self._hurts(hurt)
        assert self._servers is not None
        if self._left["forget"] and self._chance.random() < 0.5:
            self._left["forget"] -= 1
            machines = list(self._servers.machines.values())
            sources = [machine for machine in machines if machine.gave(number)]
            machine = self._chance.choice([*machines, *sources, *sources])
            soon = self._scenario.settings.forget_seconds * self._chance.uniform(0.0, 1.5)
            how = self._chance.choice(_FAILURES)
            self._loop.call_later(soon, lambda: self._fail(machine.life, how), context=Context())

    def _machine_life(self, name: str) -> Life:
        fates: dict[int, Fate] = {}
        if self._left["forget"] and self._chance.random() < 0.7:
            self._left["forget"] -= 1
            fates[self._some_step()] = lambda life: self._fail(life, self._chance.choice(_FAILURES))
        life = Life(name, self._loop, fates)
        self._lives.append(life)
        return life

    def _fail(self, life: Life, how: str) -> None:
        """Crash a server, at once or after a pause; it restarts, or another one takes over."""
        if how == "stall":
            self._happens(how)
            for hurt in self._working.values():
                # Leases that nobody can renew expire meanwhile.
                self._hurts(hurt)
            seconds = self._chance.uniform(5.0, 60.0)
            life.pause(seconds)
            soon = seconds + self._chance.uniform(0.0, 4.0)
            self._loop.call_later(soon, self._fail, life, "restart", context=Context())
            return
        assert self._servers is not None
        machine = self._servers.machines[life.name.partition("-")[0]]
        if life.dead or machine.life is not life or self._has_ended:
            return
        most = self._scenario.settings.forget_seconds
        seconds = self._chance.choice((0.0, 1.0, most / 2, most, most))
        if self._is_early(self._servers) and self._has_forgotten - {machine.name}:
            seconds = 0.0
        self._happens(how)
        for hurt in self._working.values():
            self._hurts(hurt)
            if how == "everything":
                hurt.kill()
        machine.fall(seconds)
        if seconds:
            self._has_forgotten.add(machine.name)
            self._witness.restarted(forgot=True)
        away = self._chance.uniform(0.0, 0.3) if how == "takeover" else self._chance.choice((0.5, 5.0, 30.0, 100.0))
        self._rising = self._loop.create_task(self._return(machine, away), context=Context())

    def _is_early(self, servers: Servers) -> bool:
        """Whether the seeds are not durable yet. They are on two servers, which must not both lose them."""
        most = self._scenario.settings.forget_seconds
        return any(machine.lived < self._seeded_at + 2 * most for machine in servers.machines.values())

    async def _return(self, machine: SimulatedMachine, seconds: float) -> None:
        await asyncio.sleep(seconds)
        machine.start(rests=True)
        for hurt in self._working.values():
            # Its results waited for longer than its leases.
            self._hurts(hurt)
        if len(machine.servers.machines) == 1:
            # The seeds are lost: the same command adds them again.
            await self._add_seeds()

    async def _slot(self, number: int) -> None:
        """Run one worker, and replace it when it is killed."""
        state = ""
        while state != "finished":
            await self._up.wait()
            server = self._server if self._servers is None else None
            life = Life(f"{number}.{len(self._lives)}", self._loop, self._worker_fates())
            self._lives.append(life)
            self._working[life.name] = life
            self._evidence.unhurt[life.name] = True
            task = life.start(self._work(life))
            task.add_done_callback(lambda _, life=life: life.end(), context=Context())  # type: ignore[misc]
            if not await life.ended:
                state = task.result()
                self._note("end", life.name, state)
                self._witness.is_finished = self._witness.is_finished or state == "finished"
            del self._working[life.name]
            if life.dead and (server is None or (server is self._server and self._up.is_set())):
                await self._bury(life, server)

    async def _bury(self, life: Life, server: Server | None) -> None:
        """Report the worker's closed connection to the frontier, or not; then start another worker."""
        if self._chance.random() < 0.5:
            await asyncio.sleep(0.001)
            blamed = (life.handling,) if life.handling else ()
            if server is not None:
                life_of_call = server.life.start(server.frontier.abandon(life.name, blamed=blamed))
                await asyncio.wait((life_of_call, server.life.ended), return_when=asyncio.FIRST_COMPLETED)
            else:
                with suppress(Unavailable):
                    await cast(Any, self._outside()).abandon(life.name, blamed=blamed)
        await asyncio.sleep(self._chance.choice((0.0, 1.0, 50.0)))

    async def _work(self, life: Life) -> str:
        scenario = self._scenario
        skew = self._chance.uniform(-scenario.skew_seconds, scenario.skew_seconds)
        drift = self._chance.uniform(-scenario.drift, scenario.drift)
        clock = LifeClock(self._loop, epoch=START_EPOCH, skew_seconds=skew, drift=drift)
        frontier = self._frontier(life, loss=scenario.loss)
        store: Store
        if scenario.stores == "owner":
            assert isinstance(frontier, LossyLink)
            store = frontier
        else:
            self._files.append(sink := KeptSink(self._faults))
            self._sinks[life.name] = sink
            store = FleetStore(frontier, [sink])
        spider = Spider()
        spider.fetch_middleware = [self._web.middleware(life, clock)]
        async with build_worker(
            frontier,
            store,
            settings=scenario.settings,
            secret=self._secret,
            clock=clock,
            spider=spider,
            machine=UnlimitedMachine(),
        ) as engine:
            return await engine.run()

    def _worker_fates(self) -> dict[int, Fate]:
        fates: dict[int, Fate] = {}
        for name, fate in (
            ("kill", self._kill),
            ("pause", self._pause),
            ("cut", self._cut),
            ("sleep", self._sleep),
            ("disk", self._lose_a_disk),
        ):
            if self._left[name] and self._chance.random() < 0.7:
                self._left[name] -= 1
                fates[self._some_step()] = fate
        return fates

    def _some_step(self) -> int:
        return int(2 ** self._chance.uniform(0.0, 12.0))

    def _kill(self, life: Life) -> None:
        self._happens("kill", life)
        life.kill()

    def _poison(self, life: Life) -> None:
        self._happens("poison", life)
        life.kill()

    def _pause(self, life: Life) -> None:
        self._happens("pause", life)
        life.pause(self._scenario.settings.lease_seconds * self._chance.uniform(0.2, 3.0))

    def _cut(self, life: Life) -> None:
        self._happens("cut", life)
        life.cut_until = self._loop.time() + self._scenario.settings.lease_seconds * self._chance.uniform(0.2, 3.0)

    def _sleep(self, _: Life) -> None:
        """Pause all workers at once, in some scenarios with the servers."""
        self._happens("sleep")
        seconds = self._scenario.settings.lease_seconds * self._chance.uniform(0.5, 3.0)
        asleep = list(self._working.values())
        for life in asleep:
            self._hurts(life)
        if self._servers is not None and self._chance.random() < 0.3:
            asleep += [machine.life for machine in self._servers.machines.values()]
        for life in asleep:
            life.pause(seconds)

    def _lose_a_disk(self, life: Life) -> None:
        """Lose the worker's results, and in some scenarios its machine."""
        self._happens("disk", life)
        if life.name in self._sinks:
            self._sinks[life.name].records.clear()
        if self._chance.random() < 0.5:
            life.kill()

    def _lost_a_call(self, life: Life) -> None:
        self._happens("lost call", life)

    def _refused(self) -> None:
        self._happens("refused write")
        for hurt in self._working.values():
            self._hurts(hurt)

    def _happens(self, what: str, life: Life | None = None) -> None:
        self._befell[what] += 1
        self._note(what, life.name if life else "")
        if life is not None:
            self._hurts(life)

    def _hurts(self, life: Life) -> None:
        """Count the worker's current requests as possibly repeated."""
        self._evidence.unhurt[life.name] = False
        self._evidence.in_flight += life.in_hand()
