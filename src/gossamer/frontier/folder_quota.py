"""How many pages a job may store, shared out among workers that see one another only through files.

The ledger is a row of files, each made by one of all who try: what is granted to each worker, and what was stored by
those who are gone. All of it together is never more than the limit, so neither is what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gossamer.frontier.folder_job import QUOTA
from gossamer.frontier.folder_survey import FolderView

if TYPE_CHECKING:
    from gossamer.frontier.folder_owner import FolderSession

NO_LIMIT = 1 << 62
_MOST = 64
_KEPT = 8
_TURNS = 20


class Ledger(msgspec.Struct, frozen=True):
    """Who may store how many pages."""

    spent: int = 0
    """Stored by those who are in no grant any more."""
    grants: dict[str, int] = {}
    """Session -> pages that it may store in its life."""
    nonce: str = ""


class Quota:
    """One worker's part of the pages that may still be stored."""

    def __init__(self, owner: FolderSession, survey: FolderView) -> None:
        self._owner = owner
        self._survey = survey
        self._granted = 0
        self._refused_at = -1e18

    @property
    def _limit(self) -> int | None:
        return self._owner.settings.max_pages

    def left(self) -> int:
        """How many more requests may be let out by this worker, by what it was granted."""
        if self._limit is None:
            return NO_LIMIT
        return self._granted - self._owner.stored - sum(shard.leased for shard in self._owner.shards.values())

    async def room(self, wanted: int) -> int:
        """The same, after asking for more if that is needed and can be had."""
        now = self._owner.clock.monotonic()
        if self.left() >= min(wanted, _MOST) or now < self._refused_at + self._owner.every_seconds:
            return self.left()
        if not await self._change(min(wanted, _MOST)):
            self._refused_at = now
        return self.left()

    def ask_again(self) -> None:
        """The limit may be another: what was refused a moment ago may be granted now."""
        self._refused_at = -1e18

    async def give_back(self) -> None:
        """Let others have what we do not use."""
        if self._limit is not None and self.left() > 0:
            await self._change(0)

    async def close(self) -> None:
        """Settle our account."""
        if self._limit is not None and self._granted:
            await self._change(0, leaving=True)

    async def _change(self, room: int, *, leaving: bool = False) -> int:
        """Change our grant so that it has room for as many more requests, if it can be had; by how much."""
        owner, limit = self._owner, self._limit or 0
        for _ in range(_TURNS):
            number, ledger = await owner.run(self._read)
            if not ledger.nonce:
                ledger = await self._founded()
            in_hand = owner.stored + sum(shard.leased for shard in owner.shards.values())
            more = 0 if leaving else room + in_hand - ledger.grants.get(owner.session, 0)
            if more > 0 and any(session != owner.session for session in ledger.grants):
                ledger = await self._settled(ledger)
            grants = dict(ledger.grants)
            free = limit - ledger.spent - sum(grants.values())
            change = min(more, max(0, free))
            if not change and not leaving and ledger.nonce:
                self._granted = grants.get(owner.session, 0)
                return 0
            granted = grants.pop(owner.session, 0) + change
            if not leaving:
                grants[owner.session] = granted
            spent = ledger.spent + (owner.stored if leaving else 0)
            new = Ledger(spent, grants, f"{owner.session} {number} {owner.clock.monotonic()}")
            if await owner.run(owner.share.claim, f"{QUOTA}/{number + 1:010}", msgspec.json.encode(new)):
                self._granted = granted
                await owner.run(self._sweep, number)
                return change
        return 0

    async def _founded(self) -> Ledger:
        """The first ledger of a job: what was stored before it had a limit counts too."""
        owner = self._owner
        await owner.look(fresh=True)
        beats = owner.peers.beats
        grants = {session: beats[session].stored for session in owner.peers.live if session in beats}
        grants = {session: stored for session, stored in grants.items() if stored} | {owner.session: owner.stored}
        total = self._survey.stored()
        return Ledger(max(0, (self._survey.taken() if total is None else total) - sum(grants.values())), grants)

    def _read(self) -> tuple[int, Ledger]:
        share = self._owner.share
        newest = max((name for name in share.names(QUOTA, fresh=True) if name.isdigit()), default="")
        if not newest:
            return 0, Ledger()
        return int(newest), msgspec.json.decode(share.read(f"{QUOTA}/{newest}"), type=Ledger)

    def _sweep(self, number: int) -> None:
        for old in range(max(1, number - 2 * _KEPT), number - _KEPT):
            self._owner.share.remove(f"{QUOTA}/{old:010}")

    async def _settled(self, ledger: Ledger) -> Ledger:
        """The same without those who have died, once all their shards are in other hands and say what was stored."""
        owner = self._owner
        await owner.look(fresh=True)
        holding = {standing.claim.session for standing in owner.claims.newest.values()}
        living = owner.peers.live | {owner.session}
        dead = {session for session in ledger.grants if session not in living and session not in holding}
        total = self._survey.stored()
        if not dead or total is None:
            return ledger
        beats = owner.peers.beats
        ours = {session: beats[session].stored for session in ledger.grants if session in beats and session not in dead}
        ours[owner.session] = owner.stored
        grants = {session: granted for session, granted in ledger.grants.items() if session not in dead}
        return Ledger(max(ledger.spent, total - sum(ours.values())), grants, ledger.nonce)
