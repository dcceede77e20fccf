"""The way from a worker to the frontier: calls take time, and get lost before or after they were applied."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from gossamer.engine.store import Result, Store
from gossamer.errors import GossamerError, Unavailable
from gossamer.frontier.local import LocalFrontier
from gossamer.model import Counts, Grant, Lease, Outcome, Receipt, Request, SiteNote
from gossamer.simulation.life import Life

T = TypeVar("T")
_PATIENCE_SECONDS = 3.0
RUNAWAY = 10_000
"""Leases asked for that no run needs: one in which more are is stopped."""
_LOOK_SECONDS = 60.0
"""An idle worker asks again after this time, since news may get lost like anything else."""


class Server:
    """The process that has the frontier, as others reach it."""

    def __init__(self, frontier: LocalFrontier, store: Store | None, life: Life) -> None:
        self.frontier = frontier
        self.store = store
        self.life = life

    def in_hand(self, worker: str) -> int:
        """How many requests the frontier takes to be in the hands of a worker."""
        return sum(len(lane.batch) for lane in self.frontier._state.held.values() if lane.worker == worker)


class Witness:
    """Sees what the frontier says, and holds it against what it said before."""

    def __init__(self, runaway: Callable[[], None]) -> None:
        self._runaway = runaway
        self._grants = 0
        self.deliveries: Counter[int] = Counter()
        """Key -> how often it was handed out."""
        self.faults: list[str] = []
        self.finished_at: float | None = None
        self._newest: dict[tuple[str, int], int] = {}

    def granted(self, grant: Grant, at: float) -> None:
        """Tokens only grow, and what is finished hands nothing out."""
        self._grants += 1
        if self._grants > RUNAWAY:
            self._runaway()
        for lease in grant.leases:
            if lease.token <= self._newest.get((lease.site, lease.lane), 0):
                self.faults.append(f"P4: token {lease.token:x} of {lease.site} did not grow")
            self._newest[lease.site, lease.lane] = lease.token
            self.deliveries.update(request.key for request in lease.requests)
            if self.finished_at is not None:
                self.faults.append(f"P6: {lease.site} was handed out after the job had been finished")
        if grant.job == "finished" and self.finished_at is None:
            self.finished_at = at

    def superseded(self, outcomes: Sequence[Outcome]) -> int:
        """How many of these come with a token whose lane has been handed out anew."""
        return sum(self._newest.get((outcome.site, outcome.lane), 0) > outcome.token for outcome in outcomes)

    def settled(self, outcomes: Sequence[Outcome], late: int, receipt: Receipt) -> None:
        """Of outcomes of which so many were late, these counted."""
        if receipt.accepted > len(outcomes) - late:
            self.faults.append(
                f"P4: {late} outcomes with a stale token, and {receipt.accepted} of {len(outcomes)} count"
            )
        if receipt.accepted and self.finished_at is not None:
            self.faults.append("P6: a page was settled after the job had been finished")


class Link:
    """A frontier and a store as one worker sees them from afar."""

    def __init__(
        self,
        life: Life,
        server: Callable[[], Server],
        witness: Witness,
        *,
        seed: int,
        loss: float,
        troubled: Callable[[Life], None],
    ) -> None:
        self._life = life
        self._server = server
        self._witness = witness
        self._chance = random.Random(f"link/{seed}/{life.name}")
        self._loss = loss
        self._troubled = troubled

    async def add(self, requests: Sequence[Request]) -> int:
        return await self._call(lambda server: server.frontier.add(requests))

    async def lease(self, limit: int, *, batch: int, seconds: float) -> Grant:
        async def lease(server: Server) -> Grant:
            grant = await server.frontier.lease(limit, batch=batch, seconds=seconds, worker=self._life.name)
            self._witness.granted(grant, asyncio.get_running_loop().time())
            return grant

        return await self._call(lease)

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        return await self._call(lambda server: server.frontier.extend(leases, seconds=seconds))

    async def complete(
        self, outcomes: Sequence[Outcome], *, notes: Sequence[SiteNote] = (), marks: Mapping[str, int] | None = None
    ) -> Receipt:
        return await self._settle(outcomes, lambda server: server.frontier.complete(outcomes, notes=notes, marks=marks))

    async def commit(self, results: Sequence[Result], notes: Sequence[SiteNote]) -> Receipt:
        def commit(server: Server) -> Awaitable[Receipt]:
            assert server.store is not None
            return server.store.commit(results, notes)

        return await self._settle([result.outcome for result in results], commit)

    async def release(self, leases: Sequence[Lease]) -> None:
        await self._call(lambda server: server.frontier.release(leases))

    async def idle(self, grant: Grant) -> None:
        try:
            async with asyncio.timeout(min(_LOOK_SECONDS, _LOOK_SECONDS if grant.wait is None else grant.wait)):
                await self._call(lambda server: server.frontier.idle(grant), patience=10 * _LOOK_SECONDS)
        except (TimeoutError, Unavailable):
            pass

    async def counts(self) -> Counts:
        return await self._call(lambda server: server.frontier.counts())

    async def aclose(self) -> None:
        pass

    async def _settle(self, outcomes: Sequence[Outcome], call: Callable[[Server], Awaitable[Receipt]]) -> Receipt:
        async def settle(server: Server) -> Receipt:
            late = self._witness.superseded(outcomes)
            receipt = await call(server)
            self._witness.settled(outcomes, late, receipt)
            return receipt

        return await self._call(settle)

    async def _call(self, call: Callable[[Server], Awaitable[T]], *, patience: float = _PATIENCE_SECONDS) -> T:
        loop, chance, server = asyncio.get_running_loop(), self._chance, self._server()
        there, back = chance.uniform(0.0005, 0.05), chance.uniform(0.0005, 0.05)
        lost = ""
        if chance.random() < self._loss:
            lost = chance.choice(("call", "answer", "late"))
            there += chance.uniform(1.0, 20.0) if lost == "late" else 0.0
            self._troubled(self._life)
        reply: asyncio.Future[T] = loop.create_future()

        async def serve() -> None:
            await asyncio.sleep(there)
            if lost == "call" or self._is_cut():
                return
            result: Any = None
            error: GossamerError | None = None
            try:
                result = await call(server)
            except GossamerError as fault:
                error = fault
            await asyncio.sleep(back)
            if lost == "answer" or self._is_cut() or reply.done():
                return
            if error is not None:
                reply.set_exception(error)
            else:
                reply.set_result(result)

        # The frontier's own process does it, whatever becomes of the caller meanwhile.
        serving = server.life.start(serve())
        try:
            async with asyncio.timeout(patience):
                return await reply
        except TimeoutError:
            raise Unavailable("the frontier does not answer") from None
        finally:
            if patience > _PATIENCE_SECONDS:
                serving.cancel()

    def _is_cut(self) -> bool:
        return self._life.cut_until > asyncio.get_running_loop().time()
