"""Who has a shard that moves between databases: the decisions that any worker or mover may take by itself.

A server may come back without its last seconds, and no transaction spans two servers. So a shard that moves is kept at
its source until its target has lived long enough, and each side may have forgotten what was agreed with the other. The
phase in the row of the shard says who has it:

| phase | at the source | what a worker does that finds it |
|---|---|---|
| HERE | has the shard | goes on |
| ANNOUNCED | still has it, and may leave | goes on in the run of the server in which it was announced; else `decide` |
| LEAVING | frozen, its rows are copied | waits; `decide` once no mover has shown a heartbeat for 20 s |
| KEPT | has left, its rows are still there | `decide`: follows, or takes the shard back |
| GONE | has left for good | follows |

At the target a row is ARRIVING until all is copied, then HERE with a `generation` one higher. The rules that keep two
copies from being used:

- The shard is where its generation is highest.
- An announcement is durable before anything else is done. So a source that forgets that it left comes back ANNOUNCED,
  in another run, and nobody goes on there before the target was asked.
- Each announcement has a ticket. The first worker that decides for the source takes the ticket of the copy at the
  target away, so that it is never opened, and then that of the source: a mover that is still alive can do nothing
  with either.

What a crash does:

| who | when | what follows |
|---|---|---|
| mover dies | before LEAVING | the source goes on; the next mover uses the announcement or replaces it |
| mover dies | while it copies | the next mover goes on; or, after 20 s, a worker gives the shard to the source |
| mover dies | after the target opened | the target's generation is higher: `decide` follows it |
| source forgets | that it left | it comes back ANNOUNCED in another run, and the first worker asks the target |
| target forgets | that the shard came | no open row of that generation is there: `decide` takes the shard back |
| a decider dies | between the two servers | the target is closed, the source unchanged: the next one decides anew |

Where the source takes the shard back, lanes rest for the longest lease, because leases that the target granted may
still be held (P5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gossamer.errors import JobMissing, Unavailable
from gossamer.frontier.sql.database import UNDER_WAY, Database, Dialect, digest

HERE, LEAVING, ARRIVING, GONE, KEPT = range(5)
ANNOUNCED = -1
"""Phases of a shard."""
_SILENT_MICRO = 20_000_000
"""Microseconds without a heartbeat of the mover after which a shard that leaves is taken to be abandoned."""


class ShardLocation(NamedTuple):
    """The `place` in the row of a shard, beside its phase."""

    generation: int = 0
    target: str = ""
    run: str = ""
    """The run of the source in which the move was announced."""
    ticket: str = ""

    @property
    def text(self) -> str:
        """The form in which the row stores it."""
        return "\t".join((str(self.generation), *self[1:])) if any(self) else ""

    @staticmethod
    def read(text: str) -> ShardLocation:
        """Parse what `text` returns; earlier versions stored the target alone."""
        number, *rest = text.split("\t")
        return ShardLocation(int(number), *rest) if number.isdigit() else ShardLocation(0, text)


class Moved(Exception):
    """The shard cannot be used here without a decision: its phase, and where it may be."""

    def __init__(self, phase: int, where: ShardLocation) -> None:
        super().__init__(where.target)
        self.phase = phase
        self.where = where

    def waits(self, job: str, server: str) -> Unavailable:
        """The error for callers that have to wait."""
        return Unavailable(f"a shard of job {job!r} is being moved to {self.where.target or server}", hint=UNDER_WAY)


async def locked(db: Dialect) -> tuple[int, ShardLocation] | None:
    """Lock and read the phase and place of the shard, until this transaction ends; None if the row is gone."""
    for phase, text in await db.fetch("lock_phase"):
        return int(phase), ShardLocation.read(text)
    return None


async def put_phase(db: Dialect, phase: int, where: ShardLocation) -> None:
    """Write the phase and place of the shard, whose row is locked."""
    await db.fetch("set_phase", phase, where.text)


async def is_abandoned(source: Database) -> bool:
    """Whether the mover of a shard that leaves has shown no heartbeat for a while."""

    async def work(db: Dialect) -> Sequence[Any]:
        return await db.fetch("workers")

    return all(int(silent) > _SILENT_MICRO for _, silent in await source.at(-source.shard).run(work))


async def beat(source: Database) -> None:
    """Store a heartbeat of the mover of this shard."""
    # Under the negative number of the shard, which no worker has: heartbeats of workers stay apart.
    await source.at(-source.shard).run(lambda db: db.fetch("beat", 0, b""))


async def decide(source: Database, target: Database, job: str, shard: int, moved: Moved) -> bool:
    """Decide whether a shard that left, or was about to, is at its target; if not, the source has it from now on.

    First the target, in a transaction that also closes a copy that is not open yet; then the source. In the other
    order a mover could open the copy after the source went on, and two would have the shard. The source is changed
    only if its row is still as the caller has seen it. Raises `Unavailable` if the target does not answer or somebody
    else has decided meanwhile: then the caller looks again."""
    try:
        there = await target.run(lambda db: _close_target(db, job, shard, moved))
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
            # Above any generation that the target had, should its rows ever reappear.
            await put_phase(db, HERE, ShardLocation(generation + 2 if moved.phase == KEPT else generation))
            await db.fetch("unfreeze")
            for (known,) in await db.fetch("last_server"):
                # Leases that the target granted may still be held: all lanes rest.
                await db.fetch("restarted", db.server_run, known)

    await source.run(work, rings=True)
    return there


async def _close_target(db: Dialect, job: str, shard: int, moved: Moved) -> bool:
    """Whether the target has the shard, or had it and passed it on; if not, a copy on its way can never be opened."""
    for row, _, _ in await db.fetch("shard_phase", digest(job), shard):
        db.shard = int(row)
        found = await locked(db)
        if found is None:
            return False
        phase, where = found
        if phase == ARRIVING:
            await put_phase(db, GONE, ShardLocation())
            return False
        # A move that an earlier version left unfinished has neither a ticket nor a generation.
        is_early = phase == HERE and moved.phase == LEAVING and not moved.where.ticket
        return is_early or where.generation > moved.where.generation
    return False
