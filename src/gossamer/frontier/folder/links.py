"""Links between shards on a shared folder: inbox files that the owner of a shard reads.

A page may link to a site whose shard another worker has. No write spans two logs, so a link is passed on in steps, and
each step is durable before the one before it is undone:

1. The frame with the page's outcome also has its links for other shards (`LogFrame.out`): they are committed together
   (P3).
2. `deliver` writes them into letters, files in `inbox/` whose names begin with the number of the shard.
3. The next frame of the source shard records that they were sent (`LogFrame.sent`).
4. The owner of the target shard reads its letters and adds the links to its log (`collect`).
5. It sends a heartbeat that shows the shard as busy, and only then deletes the letters.

A crash between two steps repeats one: links are sent or added twice, and shards ignore known keys (P1). At every moment
the work is visible in at least one place: in the source's busy view, as a letter, or in the target's busy view. So the
job does not count as finished in between (P6). A letter for a shard that changes its owner waits, or is read by both
owners, which is harmless. A letter that cannot be decoded is moved to `refused/`, so that it blocks nothing."""

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
"""Max requests that are read from a shard's letters at a time; the last letter may exceed it."""


class LinkRouter:
    """Moves links out of the shards of one worker, and into them."""

    def __init__(self, owner: FolderSession) -> None:
        self._owner = owner

    async def collect(self) -> list[str]:
        """Add what others sent to our shards, and return the letters that may be deleted: their links are durable."""
        owner = self._owner
        waiting = await owner.run(owner.inbox.waiting)
        letters: dict[int, list[Request]] = {}
        names: dict[int, list[str]] = {}
        for number in waiting.keys() & owner.shards.keys():
            letters[number], names[number] = await owner.run(owner.inbox.read, waiting[number], _MOST)
        async with owner.writing:
            # One change per shard, all at once: a sync takes as long for one letter as for many.
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
        """Send the links that our shards have for others. Those to shards that are ours by now are added directly."""
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
        """Add requests to our shards, and send the others; return how many are new (sent requests count as new)."""
        owner, added = self._owner, 0
        elsewhere = owner.layout.by_shard(requests)
        async with owner.writing:
            for number in list(elsewhere):
                if number in owner.shards:
                    added += await owner.shards[number].add(elsewhere.pop(number))
        if added and not owner.reported_busy:
            # Others believe that our shards are idle: correct that before this returns, or the job seems finished.
            await owner.renew()
        if elsewhere:
            await owner.run(lambda: owner.inbox.send(elsewhere, epoch=owner.clock.epoch()))
        return added + sum(map(len, elsewhere.values()))


log = logging.getLogger("gossamer.frontier")
_MOST_LINKS = 5000
_LOOKED_AT = 16
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Request]).decode


class Inbox:
    """The inbox: letters with requests, each for one shard."""

    def __init__(self, share: SharedFolder) -> None:
        self._share = share
        self._number = 0

    def send(self, letters: dict[int, list[Request]], *, epoch: float) -> None:
        """Write letters; they are durable when this returns."""
        for shard, requests in letters.items():
            for start in range(0, len(requests), _MOST_LINKS):
                self._number += 1
                # Names sort by time: what is sent first is queued first.
                name = f"{shard:04}-{int(epoch * 1e6):017}-{self._number:06}-{secrets.token_hex(4)}"
                self._share.put(f"{INBOX}/{name}", _encode(requests[start : start + _MOST_LINKS]))

    def waiting(self, *, fresh: bool = False) -> dict[int, list[str]]:
        """Return the letters in the inbox, by shard."""
        found: dict[int, list[str]] = defaultdict(list)
        for name in self._share.names(INBOX, fresh=fresh):
            shard = name.partition("-")[0]
            found[int(shard) if shard.isdigit() else -1].append(name)
        return found

    def read(self, names: Iterable[str], most: int) -> tuple[list[Request], list[str]]:
        """Return the requests of letters up to about `most`, and the names of these letters."""
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
            log.error("moved the unreadable file %s to %s: %s", name, self._share.root / REFUSED, error)
            (self._share.root / INBOX / name).replace(self._share.root / REFUSED / name)
            return ()

    def sites(self, shards: Iterable[int]) -> dict[int, int]:
        """Return the number of sites in the letters to each of these shards, from a sample."""
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
        """Delete letters whose requests are in a log."""
        for name in names:
            self._share.remove(f"{INBOX}/{name}")
