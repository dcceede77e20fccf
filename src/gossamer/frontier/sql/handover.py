"""Who has a shard that moves between databases: what every worker, and whoever moves it, may decide by itself.

A server may come back without its last seconds. So a shard that moves is kept at its source until its target has lived
long enough, and each side may have forgotten what was agreed with the other. The row of the shard says:

| phase | at the source | what a worker does that meets it |
|---|---|---|
| HERE | has the shard | goes on |
| ANNOUNCED | has it still, and may leave | goes on in the run of the server in which that was noted; else `decide` |
| LEAVING | frozen, its rows are copied | waits; `decide`, once nobody has moved it for a while |
| KEPT | has left, its rows are still there | `decide`: follows, or takes the shard back |
| GONE | has left for good | follows |

At the target a row is ARRIVING until all is copied, then HERE with a `generation` one higher. The rules that keep two
copies from being used:

- The shard is where its generation is highest.
- An announcement is durable before anything else is done. So a source that forgets that it left comes back ANNOUNCED,
  in another run, and nobody goes on there before the target was asked.
- Each announcement has a ticket. Whoever decides for the source first takes the ticket of the copy at the target away,
  so that it is never opened, and then that of the source: a mover that is still alive can do nothing with either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gossamer.errors import JobMissing, Unavailable
from gossamer.frontier.sql.database import UNDER_WAY, Database, Dialect, digest

HERE, LEAVING, ARRIVING, GONE, KEPT = range(5)
ANNOUNCED = -1
"""Phases of a shard."""
_SILENT_MICRO = 20_000_000
"""A shard that leaves, and that nobody has moved for this long, need not be waited for."""


class ShardLocation(NamedTuple):
    """What the row of a shard says beside its phase."""

    generation: int = 0
    target: str = ""
    run: str = ""
    """The run of the source in which the move was announced."""
    ticket: str = ""

    @property
    def text(self) -> str:
        """As the row has it."""
        return "\t".join((str(self.generation), *self[1:])) if any(self) else ""

    @staticmethod
    def read(text: str) -> ShardLocation:
        """The same again; earlier versions wrote the target alone."""
        number, *rest = text.split("\t")
        return ShardLocation(int(number), *rest) if number.isdigit() else ShardLocation(0, text)


class Moved(Exception):
    """The shard is not simply here: its phase, and where it may be."""

    def __init__(self, phase: int, where: ShardLocation) -> None:
        super().__init__(where.target)
        self.phase = phase
        self.where = where

    def waits(self, job: str, server: str) -> Unavailable:
        """What to say to those who have to wait."""
        return Unavailable(f"a shard of job {job!r} is on its way to {self.where.target or server}", hint=UNDER_WAY)


async def locked(db: Dialect) -> tuple[int, ShardLocation] | None:
    """The phase of the shard and where it is, which nobody changes before this transaction ends; None if it is gone."""
    for phase, text in await db.fetch("lock_phase"):
        return int(phase), ShardLocation.read(text)
    return None


async def put_phase(db: Dialect, phase: int, where: ShardLocation) -> None:
    """Write what `locked` reads."""
    await db.fetch("set_phase", phase, where.text)


async def is_abandoned(source: Database) -> bool:
    """Whether nobody has copied rows of a shard that leaves for a while."""

    async def work(db: Dialect) -> Sequence[Any]:
        return await db.fetch("workers")

    return all(int(silent) > _SILENT_MICRO for _, silent in await source.at(-source.shard).run(work))


async def beat(source: Database) -> None:
    """Say that somebody moves this shard."""
    # A worker has no shard with a number below zero.
    await source.at(-source.shard).run(lambda db: db.fetch("beat", 0, b""))


async def decide(source: Database, target: Database, job: str, shard: int, moved: Moved) -> bool:
    """Whether a shard that left, or was about to, is at its target; if not, it is at its source from now on.

    `Unavailable` if the target cannot be asked, or if somebody else decides at the same moment."""
    try:
        there = await target.run(lambda db: _close_door(db, job, shard, moved))
    except JobMissing:
        # No tables at all.
        there = False

    async def work(db: Dialect) -> None:
        if await locked(db) != (moved.phase, moved.where):
            raise moved.waits(job, db.server)
        generation = moved.where.generation
        if there:
            await put_phase(db, KEPT, ShardLocation(generation, moved.where.target))
        else:
            # What has been at the target is behind, should it ever turn up again.
            await put_phase(db, HERE, ShardLocation(generation + 2 if moved.phase == KEPT else generation))
            await db.fetch("unfreeze")
            for (known,) in await db.fetch("last_server"):
                # Leases that the target granted may still be held.
                await db.fetch("restarted", db.server_run, known)

    await source.run(work, rings=True)
    return there


async def _close_door(db: Dialect, job: str, shard: int, moved: Moved) -> bool:
    """Whether the target has the shard, or had it; if not, no copy that is on its way will be opened."""
    for row, _, _ in await db.fetch("shard_phase", digest(job), shard):
        db.shard = int(row)
        found = await locked(db)
        if found is None:
            return False
        phase, where = found
        if phase == ARRIVING:
            await put_phase(db, GONE, ShardLocation())
            return False
        # An interrupted move of an earlier version had neither tickets nor generations.
        is_early = phase == HERE and moved.phase == LEAVING and not moved.where.ticket
        return is_early or where.generation > moved.where.generation
    return False
