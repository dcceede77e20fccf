"""Queues pages again whose records are lost, on a shared folder.

For a results folder that was lost or restored while the frontier still counts its pages as stored. The repair needs all
shards at once, so it waits until no other worker can be alive, and refuses to work beside one. Each shard is rewritten
as a log in which the lost pages have no outcomes; the shard is then closed and opened anew, which queues them. A kill
in between leaves each shard either as it was or repaired, and the repair can be repeated."""

from __future__ import annotations

from gossamer.errors import Held, Unavailable
from gossamer.frontier.embedded.journal import DONE, FAILED
from gossamer.frontier.folder.log import Chain, ShardPast, read_chain
from gossamer.frontier.folder.owner import FolderSession, is_running
from gossamer.frontier.repair import HasRecord, Requeued


class FolderRepair:
    """The part of the folder frontier that queues finished pages again. It needs all shards."""

    owner: FolderSession

    async def requeue_lost(self, has_record: HasRecord) -> Requeued:
        """Queue each page again that counts as stored and has no record, with its complete request."""
        total = Requeued()
        for number in await self._take_all():
            chain = await self.owner.run(read_chain, self.owner.share, number)
            lost, closed = await self.owner.run(_lost, chain, has_record)
            if lost:
                await self._rewrite(number, lost)
            total = total.plus(Requeued(len(lost) - closed, closed))
        return total

    async def write_off(self, pages: int) -> None:
        """Lower the count of stored pages."""
        number, *_ = await self._take_all()
        await self._rewrite(number, frozenset(), written_off=pages)

    async def _take_all(self) -> list[int]:
        """Own every shard that was ever claimed, and return their numbers."""
        owner = self.owner
        await self._wait_for_workers()
        async with owner.round_lock:
            await owner.look(fresh=True)
            used = {number: found.number for number, found in owner.claims.newest.items() if found.number}
            await owner.take({number: claim for number, claim in used.items() if number not in owner.shards})
            if missing := used.keys() - owner.shards.keys():
                raise Unavailable(f"{len(missing)} shards of the job could not be taken", hint="try again")
        return sorted(used)

    async def _wait_for_workers(self) -> None:
        """Wait until no other worker can have a shard; Held if one is alive.

        A killed worker leaves a heartbeat, which counts as that of a live worker until its lease has ended and it was
        watched for a while. Until then, `_balance` would give shards to it."""
        owner, heard = self.owner, dict[str, int]()
        while True:
            async with owner.round_lock:
                await owner.look(fresh=True)
            others = [beat for name, beat in owner.peers.beats.items() if name in owner.peers.live - {owner.session}]
            for beat in others:
                if beat.worker and (
                    is_running(beat.life) or heard.setdefault(beat.session, beat.number) != beat.number
                ):
                    raise Held(
                        "other workers are running for this job", hint="stop them: gossamer stop JOB --frontier ..."
                    )
            if not owner.has_other_workers:
                return
            await owner.clock.sleep(owner.every_seconds)

    async def _rewrite(self, number: int, unvisited: frozenset[int], *, written_off: int = 0) -> None:
        owner = self.owner
        async with owner.round_lock:
            async with owner.writing:
                shard = owner.shards.get(number)
                if shard is None:
                    raise Held(f"shard {number} belongs to another worker now", hint="stop all workers, and try again")
                shard.leaving = True
                await shard.journal.forget_visits(unvisited, written_off=written_off)
                owner.shards.pop(number)
                shard.journal.close()
            await owner.take({number: shard.claim})


def _lost(chain: Chain, has_record: HasRecord) -> tuple[frozenset[int], int]:
    """Return the numbers of the stored URLs of a shard without a record, and how many of them are of closed sites."""
    past = ShardPast(chain)
    stored = {number for _, number, status, _, _ in past.outcomes() if status in (DONE, FAILED)} | past.dropped.keys()
    is_closed = {number: row is not None and bool(row.closed) for number, _, row in past.sites()}
    lost, closed = set(), 0
    for number, key, site, *_ in past.urls():
        if number in stored and not has_record(key):
            lost.add(number)
            closed += is_closed[site]
    return frozenset(lost), closed
