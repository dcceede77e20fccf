"""Links between shards on a shared folder: inbox files that the owner of a shard reads."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from gossamer.frontier.folder.files import SharedFolder
from gossamer.frontier.folder.log import decode_request
from gossamer.frontier.folder.record import INBOX, REFUSED
from gossamer.model import Request

if TYPE_CHECKING:
    from gossamer.frontier.folder.owner import FolderSession


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


log = logging.getLogger("gossamer.frontier")
_MOST_LINKS = 5000
_LOOKED_AT = 16
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Request]).decode


class Post:
    """Sends requests to the owners of other shards, and fetches those that were sent to ours."""

    def __init__(self, share: SharedFolder) -> None:
        self._share = share
        self._number = 0

    def send(self, letters: dict[int, list[Request]], *, epoch: float) -> None:
        """Put requests where the owners of their shards will find them; it is durable when this returns."""
        for shard, requests in letters.items():
            for start in range(0, len(requests), _MOST_LINKS):
                self._number += 1
                # Read in this order: first sent, first queued.
                name = f"{shard:04}-{int(epoch * 1e6):017}-{self._number:06}-{secrets.token_hex(4)}"
                self._share.put(f"{INBOX}/{name}", _encode(requests[start : start + _MOST_LINKS]))

    def waiting(self, *, fresh: bool = False) -> dict[int, list[str]]:
        """The letters that nobody has taken yet, by shard."""
        found: dict[int, list[str]] = defaultdict(list)
        for name in self._share.names(INBOX, fresh=fresh):
            shard = name.partition("-")[0]
            found[int(shard) if shard.isdigit() else -1].append(name)
        return found

    def read(self, names: Iterable[str], most: int) -> tuple[list[Request], list[str]]:
        """The requests of letters, until there are so many, and which letters. One that cannot be read is put aside."""
        requests: list[Request] = []
        taken: list[str] = []
        for name in names:
            if len(requests) >= most:
                break
            requests += self._read(name)
            taken.append(name)
        return requests, taken

    def _read(self, name: str) -> Sequence[Request]:
        try:
            return _decode(self._share.read(f"{INBOX}/{name}"))
        except FileNotFoundError:
            return ()
        except msgspec.MsgspecError as error:
            log.error("%s cannot be read and was put into %s: %s", name, self._share.root / REFUSED, error)
            (self._share.root / INBOX / name).replace(self._share.root / REFUSED / name)
            return ()

    def sites(self, shards: Iterable[int]) -> dict[int, int]:
        """How many sites the letters to these shards are about, as far as a few of them tell."""
        waiting = self.waiting()
        found = {}
        for shard in shards:
            sites: set[str] = set()
            for name in waiting.get(shard, [])[:_LOOKED_AT]:
                with suppress(FileNotFoundError, msgspec.MsgspecError):
                    sites |= {request.site for request in _decode(self._share.read(f"{INBOX}/{name}"))}
            found[shard] = len(sites)
        return found

    def done(self, names: Iterable[str]) -> None:
        """Throw away letters whose requests are written down."""
        for name in names:
            self._share.remove(f"{INBOX}/{name}")
