"""One run of the simulation: real engines on a real frontier, and what befalls them."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from itertools import islice
from typing import Any, NamedTuple

from gossamer.assemble import worker
from gossamer.engine.handle import Linker
from gossamer.engine.machine import Boundless
from gossamer.engine.recent import Recent
from gossamer.engine.stats import Stats
from gossamer.engine.store import FleetStore, OwnerStore, Store
from gossamer.errors import GossamerError
from gossamer.extract.spider import Spider
from gossamer.frontier.local import LocalFrontier
from gossamer.simulation.check import Evidence, violations
from gossamer.simulation.life import Life, LifeClock, SimulatedLoop
from gossamer.simulation.link import Link, Server
from gossamer.simulation.scenario import Scenario
from gossamer.simulation.stores import Faults, KeptJournal, KeptSink
from gossamer.simulation.web import SimulatedWeb
from gossamer.simulation.witness import Witness
from gossamer.testing.virtual import START_EPOCH

_LONGEST_SECONDS = 86_400.0
"""No crawl of these sizes takes so long, whatever befalls it."""


_SEEDS_AT_ONCE = 10_000

Fate = Callable[[Life], None]


class Report(NamedTuple):
    """What came of one seed."""

    seed: int
    violations: tuple[str, ...]
    digest: str
    """Of all that happened, with its times: equal runs have equal ones."""
    seconds: float
    """Virtual ones."""
    pages: int
    requests: int
    befell: Counter[str]


def simulate(scenario: Scenario) -> Report:
    """Run a scenario and judge it. The same scenario gives the same report, in every process."""
    level, state, collects = logging.root.manager.disable, random.getstate(), gc.get_threshold()
    logging.disable(logging.CRITICAL)
    # A large world is millions of objects that stay, and hardly any cycles: looking for those took a third of its time.
    gc.set_threshold(100_000, 20, 100)
    # The engine's own jitter is drawn from here.
    random.seed(scenario.seed)
    loop = SimulatedLoop()
    # What the dead leave behind is not worth the words.
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(World(scenario, loop).run())
    finally:
        logging.disable(level)
        random.setstate(state)
        gc.set_threshold(*collects)


class World:
    """Everything that a scenario has, while it runs."""

    def __init__(self, scenario: Scenario, loop: SimulatedLoop) -> None:
        self._scenario = scenario
        self._loop = loop
        self._chance = random.Random(f"world/{scenario.seed}")
        self._secret = hashlib.sha256(f"{scenario.seed}".encode()).digest()[:16]
        self._faults = Faults(scenario.seed, scenario.store_faults, self._refused, workers=scenario.workers)
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
        }
        self._up = asyncio.Event()
        self._up.set()
        self._trace = hashlib.sha256()
        self._befell: Counter[str] = Counter()
        self._server: Server

    def _note(self, *what: object) -> None:
        self._trace.update(f"{self._loop.time():.9f} {what}\n".encode())

    def _run_away(self) -> None:
        if not self._over.done():
            self._over.set_result("I3: the same is asked for again and again")

    async def run(self) -> Report:
        """The whole crawl; then everybody is laid to rest."""
        try:
            return await self._run()
        finally:
            self._loop.over = True
            for life in self._lives:
                life.thaw()

    async def _run(self) -> Report:
        scenario = self._scenario
        self._server = self._serve(0)
        await self._add_seeds()
        slots = [asyncio.create_task(self._slot(number)) for number in range(scenario.workers)]
        crawl = asyncio.gather(*slots)
        longest = scenario.seconds or _LONGEST_SECONDS
        await asyncio.wait((crawl, self._over), timeout=longest, return_when=asyncio.FIRST_COMPLETED)
        found: list[str] = []
        if self._over.done():
            found.append(self._over.result())
        elif not crawl.done() and not scenario.seconds:
            found.append(f"P9: the crawl does not end within {_LONGEST_SECONDS / 3600:g} hours")
        elif crawl.done() and (error := crawl.exception()):
            found.append(f"P8: a worker came to a bad end: {error!r}")
        evidence = self._evidence
        evidence.in_flight += sum(life.in_hand() for life in self._working.values())
        evidence.counts = await self._server.frontier.counts()
        evidence.records = [sink.records for sink in self._files]
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

    async def _add_seeds(self) -> None:
        linker, seeds = Linker(self._scenario.settings, self._secret, Recent(2)), self._web.seeds()
        while urls := list(islice(seeds, _SEEDS_AT_ONCE)):
            await self._add([linker.seed(url) for url in urls])

    async def _add(self, requests: list[Any]) -> None:
        while True:
            try:
                await self._server.frontier.add(requests)
                return
            except GossamerError:
                await asyncio.sleep(1.0)

    def _serve(self, number: int) -> Server:
        """The process with the frontier; after a restart with what its journal kept."""
        life = Life(f"owner-{number}", self._loop, self._fall_fates())
        self._lives.append(life)
        clock = LifeClock(self._loop, epoch=START_EPOCH)
        past = self._journal.past(self._secret)
        frontier = LocalFrontier(self._journal, past, settings=self._scenario.settings, clock=clock)
        store = OwnerStore(frontier, self._files, Stats(clock)) if self._scenario.stores == "owner" else None
        return Server(frontier, store, life)

    def _fall_fates(self) -> dict[int, Fate]:
        if not self._left["restart"]:
            return {}
        self._left["restart"] -= 1
        return {self._some_step(): self._fall}

    def _fall(self, _: Life) -> None:
        """Everything is killed at once, and taken up again a little later."""
        self._happens("restart")
        for hurt in self._working.values():
            self._hurts(hurt)
        for life in self._lives:
            life.kill()
        self._up.clear()
        self._rising = self._loop.create_task(self._rise(), context=Context())

    async def _rise(self) -> None:
        # A machine that has lost what it wrote last was without power, and takes longer to come back than a delay.
        await asyncio.sleep(self._chance.choice((5.0, 100.0) if self._scenario.forgets_seconds else (0.0, 0.01, 5.0)))
        self._journal.forget(self._scenario.forgets_seconds)
        self._witness.restarted(forgot=self._scenario.forgets_seconds > 0)
        self._server = self._serve(len(self._lives))
        for sink in self._files:
            await sink.rewind(self._server.frontier.marks)
        if self._scenario.forgets_seconds:
            # Whoever gives the same command again gives the same seeds.
            await self._add_seeds()
        self._up.set()

    async def _slot(self, number: int) -> None:
        """One place for a worker: when it is killed, another takes its place."""
        state = ""
        while state != "finished":
            await self._up.wait()
            server = self._server
            life = Life(f"{number}.{len(self._lives)}", self._loop, self._worker_fates())
            self._lives.append(life)
            self._working[life.name] = life
            self._evidence.unhurt[life.name] = True
            task = life.start(self._work(life))
            task.add_done_callback(lambda _, life=life: life.end(), context=Context())  # type: ignore[misc]
            if not await life.ended:
                state = task.result()
                self._note("end", life.name, state)
            del self._working[life.name]
            if life.dead and server is self._server and self._up.is_set():
                await self._bury(life, server)

    async def _bury(self, life: Life, server: Server) -> None:
        """Whoever saw the worker's connection end tells the frontier, or nobody did; then another one comes."""
        if self._chance.random() < 0.5:
            await asyncio.sleep(0.001)
            life_of_call = server.life.start(
                server.frontier.abandon(life.name, blamed=(life.handling,) if life.handling else ())
            )
            await asyncio.wait((life_of_call, server.life.ended), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(self._chance.choice((0.0, 1.0, 50.0)))

    async def _work(self, life: Life) -> str:
        scenario, seed = self._scenario, self._scenario.seed
        skew = self._chance.uniform(-scenario.skew_seconds, scenario.skew_seconds)
        drift = self._chance.uniform(-scenario.drift, scenario.drift)
        clock = LifeClock(self._loop, epoch=START_EPOCH, skew_seconds=skew, drift=drift)
        link = Link(
            life, lambda: self._server, self._witness, seed=seed, loss=scenario.loss, troubled=self._lost_a_call
        )
        store: Store = link
        if scenario.stores == "fleet":
            self._files.append(sink := KeptSink(self._faults))
            store = FleetStore(link, [sink])
        spider = Spider()
        spider.fetch_middleware = [self._web.middleware(life, clock)]
        async with worker(
            link,
            store,
            settings=scenario.settings,
            secret=self._secret,
            clock=clock,
            spider=spider,
            machine=Boundless(),
        ) as engine:
            return await engine.run()

    def _worker_fates(self) -> dict[int, Fate]:
        fates: dict[int, Fate] = {}
        for name, fate in (("kill", self._kill), ("pause", self._pause), ("cut", self._cut)):
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
        """What the worker has in hand now may be fetched again."""
        self._evidence.unhurt[life.name] = False
        self._evidence.in_flight += life.in_hand()
