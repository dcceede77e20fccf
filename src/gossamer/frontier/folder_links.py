"""How links come to the shards that they are for: read from the inbox, queued here, or sent on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gossamer.frontier.folder_log import decode_request
from gossamer.model import Request

if TYPE_CHECKING:
    from gossamer.frontier.folder_owner import FolderSession

_MOST = 20_000
"""Requests of one shard that are read from letters at a time, and a letter more."""


class LinkRouter:
    """The links of one worker's shards, and to them."""

    def __init__(self, owner: FolderSession) -> None:
        self._owner = owner

    async def collect(self) -> list[str]:
        """Queue what others sent to our shards; the letters that can go."""
        owner = self._owner
        waiting = await owner.run(owner.post.waiting)
        letters: dict[int, list[Request]] = {}
        names: dict[int, list[str]] = {}
        for number in waiting.keys() & owner.shards.keys():
            letters[number], names[number] = await owner.run(owner.post.read, waiting[number], _MOST)
        async with owner.writing:
            # One change for each shard, all of them at once: a sync takes as long for one letter as for many.
            held = {number: shard for number in letters if (shard := owner.shards.get(number)) is not None}
            adding = [shard.add(letters[number]) for number, shard in held.items()]
            added = await asyncio.gather(*adding, return_exceptions=True)
        if added:
            owner.changed()
        for result in added:
            if isinstance(result, BaseException):
                raise result
        return [name for number in held for name in names[number]]

    async def deliver(self) -> None:
        """Send on the links that our shards have for others. Those that are ours by now go there directly."""
        owner = self._owner
        sources = [(shard, len(shard.journal.outgoing)) for shard in owner.shards.values() if shard.journal.outgoing]
        links = [decode_request(one) for shard, count in sources for one in shard.journal.outgoing[:count]]
        if not links:
            return
        await self.hand_out(links)
        for shard, count in sources:
            shard.journal.sent(count)
        owner.changed()

    async def hand_out(self, requests: list[Request]) -> int:
        """Queue requests in our shards, and send the others; how many were new, as far as one can know."""
        owner, added = self._owner, 0
        elsewhere = owner.layout.by_shard(requests)
        async with owner.writing:
            for number in list(elsewhere):
                if number in owner.shards:
                    added += await owner.shards[number].add(elsewhere.pop(number))
        if added and not owner.told_busy:
            # Nobody may say that the job is finished once this has returned.
            await owner.renew()
        if elsewhere:
            await owner.run(lambda: owner.post.send(elsewhere, epoch=owner.clock.epoch()))
        return added + sum(map(len, elsewhere.values()))
