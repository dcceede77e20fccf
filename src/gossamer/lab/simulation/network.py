"""The simulated network between a worker and its frontier: calls can be late, duplicated, or lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gossamer.engine.commit import Result, Store
from gossamer.errors import GossamerError, Unavailable
from gossamer.frontier.base import ShardGrant
from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.frontier.outbox import Box, Parcel
from gossamer.lab.simulation.shards import Elsewhere, OpenShard
from gossamer.lab.simulation.world import Witness
from gossamer.lab.virtual_time import Life, give_up
from gossamer.model import Counts, Grant, Lease, Outcome, Receipt, Request, SiteNote

if TYPE_CHECKING:
    from gossamer.lab.simulation.servers import Servers


T = TypeVar("T")
_CALL_PATIENCE_SECONDS = 3.0
_LOOK_SECONDS = 120.0
"""An idle worker polls again after this time, because notifications can be lost."""


class Server:
    """The endpoint of the process that runs the frontier."""

    def __init__(self, frontier: EmbeddedFrontier | OpenShard, store: Store | None, life: Life) -> None:
        self.frontier = frontier
        self.store = store
        self.life = life


class LossyLink:
    """A remote frontier and store, as seen by one worker over the faulty network."""

    def __init__(
        self,
        life: Life,
        server: Callable[[], Server],
        witness: Witness,
        *,
        seed: int,
        loss: float,
        troubled: Callable[[Life], None],
        left: dict[int, int] | None = None,
        name: str = "",
    ) -> None:
        self._life = life
        self._server = server
        self._witness = witness
        self._chance = random.Random(f"link/{seed}/{life.name}{name}")
        self._loss = loss
        self._troubled = troubled
        self._left = {} if left is None else left
        """Token -> number of requests left in its lease, for all links of a worker."""
        life.in_hand = lambda: sum(self._left.values())

    async def add(self, requests: Sequence[Request]) -> int:
        return await self._call(lambda server: server.frontier.add(requests))

    async def lease(self, limit: int, *, batch: int, seconds: float, **how: Any) -> Grant:
        async def lease(server: Server) -> Grant:
            ready, asked_at = await self._witness.ready_sites(server.frontier), asyncio.get_running_loop().time()
            grant = await server.frontier.lease(limit, batch=batch, seconds=seconds, worker=self._life.name, **how)
            # A server that was paused leases again what has expired, which other workers may have by now.
            is_late = asyncio.get_running_loop().time() >= asked_at + seconds
            self._witness.granted(grant, ready, is_late=is_late)
            # Count from now, not from the arrival of the reply: a fault in between makes the worker late.
            on_the_way.update({lease.token: len(lease.requests) for lease in grant.leases})
            if is_awaited:
                self._left.update(on_the_way)
            return grant

        on_the_way: dict[int, int] = {}
        is_awaited = True
        try:
            return await self._call(lease)
        except Unavailable:
            is_awaited = False
            for token in on_the_way:
                self._left.pop(token, None)
            raise

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        ours = await self._call(lambda server: server.frontier.extend(leases, seconds=seconds))
        for token in {lease.token for lease in leases} - {lease.token for lease in ours}:
            self._left.pop(token, None)
        return ours

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        return await self._settle(outcomes, lambda server: server.frontier.complete(outcomes, notes=notes, marks=marks))

    async def abandon(self, worker: str, *, blamed: Sequence[int] = ()) -> int:
        return await self._call(lambda server: server.frontier.abandon(worker, blamed=blamed))

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        def commit(server: Server) -> Awaitable[Receipt]:
            assert server.store is not None
            return server.store.commit(results, notes)

        return await self._settle([result.outcome for result in results], commit)

    async def release(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._left.pop(lease.token, None)
        await self._call(lambda server: server.frontier.release(leases))

    async def idle(self, grant: Grant) -> None:
        try:
            await self._call(lambda server: server.frontier.idle(grant), patience=_LOOK_SECONDS, rings_off=True)
        except Unavailable:
            pass

    async def counts(self) -> Counts:
        return await self._call(lambda server: server.frontier.counts())

    async def aclose(self) -> None:
        pass

    async def ask(self, call: Callable[[OpenShard], Coroutine[Any, Any, T]]) -> T:
        """The shard's reply to the process that moves it."""
        return await self._call(lambda server: call(_shard(server)))

    async def _settle(self, outcomes: Sequence[Outcome], call: Callable[[Server], Awaitable[Receipt]]) -> Receipt:
        async def complete(server: Server) -> Receipt:
            late = self._witness.superseded(outcomes)
            receipt = await call(server)
            self._witness.completed(outcomes, late, receipt)
            return receipt

        receipt = await self._call(complete)
        for outcome in outcomes:
            left = self._left.pop(outcome.token, 0)
            if left > 1:
                self._left[outcome.token] = left - 1
        return receipt

    async def _call(
        self,
        call: Callable[[Server], Coroutine[Any, Any, T]],
        *,
        patience: float = _CALL_PATIENCE_SECONDS,
        rings_off: bool = False,
    ) -> T:
        """The frontier's reply; with `rings_off`, the caller cancels the call when it stops waiting."""
        loop, chance, server = asyncio.get_running_loop(), self._chance, self._server()
        there, back = chance.uniform(0.0005, 0.05), chance.uniform(0.0005, 0.05)
        lost, again = "", 0.0
        if chance.random() < self._loss:
            lost = chance.choice(("call", "answer", "late", "twice"))
            there += chance.uniform(1.0, 20.0) if lost == "late" else 0.0
            again = chance.uniform(0.0, 5.0) if lost == "twice" else 0.0
            self._troubled(self._life)
        reply: asyncio.Future[T] = loop.create_future()
        under_way: asyncio.TimerHandle | asyncio.Task[T]

        def arrive() -> None:
            nonlocal under_way
            if lost != "call" and not self._life.is_cut:
                under_way = server.life.start(call(server))
                under_way.add_done_callback(leave)

        def leave(served: asyncio.Task[T]) -> None:
            if not served.cancelled():
                loop.call_later(back, answer, served)

        def answer(served: asyncio.Task[T]) -> None:
            error = served.exception()
            if lost != "answer" and not self._life.is_cut and not reply.done():
                if error is None:
                    reply.set_result(served.result())
                elif isinstance(error, GossamerError):
                    reply.set_exception(error)
            if lost == "twice":
                loop.call_later(again, lambda: server.life.start(call(server)))

        # Timers instead of a sleeping task: a large simulation makes millions of these calls. The frontier's process
        # executes them, even if the caller dies meanwhile.
        under_way = loop.call_later(there, arrive, context=server.life.context)
        patient = loop.call_later(patience, give_up, reply, Unavailable("the frontier does not answer"))
        try:
            return await reply
        finally:
            patient.cancel()
            if rings_off:
                under_way.cancel()


class ShardLink(LossyLink):
    """One shard as seen by a worker of a fleet: the part of the protocol `Shard` that an engine uses."""

    def __init__(self, number: int, servers: Servers, life: Life, witness: Witness, **how: Any) -> None:
        super().__init__(life, self._reach, witness, name=f"/{number}", **how)
        self._number = number
        self._servers = servers
        self.server = servers.places[number]
        self.secret = servers.secret
        self.settings = servers.settings

    def _reach(self) -> Server:
        return self._servers.machines[self.server].server(self._number)

    async def lease_shard(
        self,
        limit: int,
        *,
        batch: int,
        seconds: float,
        also: frozenset[str] = frozenset(),
        suspects: bool = True,
        over_quota: bool = True,
        handed_elsewhere: int = 0,
    ) -> ShardGrant:
        """Like `Shard.lease_shard`, with one region and no quota."""
        grant = await self.lease(limit, batch=batch, seconds=seconds, suspects=suspects, over_quota=over_quota)
        return ShardGrant(grant, lost=self._servers.machines[self.server].journals[self._number].has_losses)

    async def run(self) -> str:
        async def run(server: Server) -> str:
            return _shard(server).run.name

        return await self._call(run)

    async def deliver(self, requests: Sequence[Request]) -> tuple[int, str]:
        return await self._call(lambda server: _shard(server).deliver(requests))

    async def complete(
        self,
        outcomes: Sequence[Outcome],
        *,
        notes: Sequence[SiteNote] = (),
        marks: Mapping[str, int] | None = None,
        parcels: Sequence[Parcel] = (),
        run: str = "",
    ) -> Receipt:
        return await self._settle(
            outcomes, lambda server: _shard(server).complete(outcomes, notes=notes, parcels=parcels, run=run)
        )

    async def sweep(self, runs: Mapping[str, str], *, seconds: float) -> list[Box]:
        return await self._call(lambda server: _shard(server).sweep(runs, seconds=seconds))

    async def parcels(self, box: Box, limit: int) -> list[bytes]:
        return await self._call(lambda server: _shard(server).parcels(box, limit))

    async def replace(self, box: Box, count: int, parcels: Sequence[Parcel]) -> None:
        await self._call(lambda server: _shard(server).replace(box, count, parcels))

    async def refresh(self) -> None:
        pass

    async def _call(self, call: Callable[[Server], Coroutine[Any, Any, T]], **how: Any) -> T:
        """Like any call; if the shard has moved, the next call goes to its new server."""
        target = self.server
        try:
            return await super()._call(call, **how)
        except Elsewhere as error:
            if self.server == target:
                names = list(self._servers.machines)
                self.server = error.server or names[(names.index(target) + 1) % len(names)]
            raise


def _shard(server: Server) -> OpenShard:
    assert isinstance(server.frontier, OpenShard)
    return server.frontier
