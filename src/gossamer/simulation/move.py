"""How a shard moves between simulated servers that may forget: the protocol, for seeds to find holes in it.

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
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from gossamer.errors import Unavailable
from gossamer.frontier.outbox import MOST_STEP_SECONDS
from gossamer.simulation.link import LossyLink
from gossamer.simulation.shards import OpenShard, ShardState

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
