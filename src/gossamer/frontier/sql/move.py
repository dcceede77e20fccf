"""Moves shards between databases so that a power cut of either side loses nothing.

Each side may forget its last seconds on the way; `handover` has the phases, the rules, and what workers do. This module
is the mover. Its steps:

1. Announce the move at the source, with a ticket, and wait until the source has lived for `forget_seconds` on one run.
   From then on the source cannot forget that the shard may have moved.
2. Prepare an empty place at the target, in the phase ARRIVING under the same ticket.
3. Freeze the source: its phase becomes LEAVING, and a field of its counters becomes 2^62. Each call doubles that field
   in its last statement, so the overflow also undoes transactions that began before the freeze.
4. Copy the rows in the order of their keys, then the counters and times, and open the target with a `generation` one
   higher. Counters go last, in the transaction that opens it: a target that is open has everything.
5. Mark the source KEPT. Its rows stay.
6. Wait until the target has lived for `forget_seconds`, then mark the source GONE and delete its rows.

The mover may be killed at any point and started again: it reads the phases and goes on. Each change of a phase checks
the phase and the ticket that it starts from, so of two movers one is overtaken (`_Overtaken`), looks again, and finds
the shard further on. Copying resumes after the last row that the target has. Workers meanwhile wait, or follow the
shard.

Calls of workers are refused from 3 to 5. How long that takes depends on the number of rows."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from gossamer.errors import ConfigError, FrontierError, JobMissing, Unavailable
from gossamer.frontier.outbox import wait_for_stable_run
from gossamer.frontier.placement import placement
from gossamer.frontier.sql.database import ROWS, Database, Dialect, digest
from gossamer.frontier.sql.handover import (
    ANNOUNCED,
    ARRIVING,
    GONE,
    HERE,
    KEPT,
    LEAVING,
    Moved,
    ShardLocation,
    beat,
    decide,
    locked,
    put_phase,
)
from gossamer.frontier.sql.record import Databases, SqlJobRecord, ensure_outbox, make_shard

_STEP = 1000
_LOOKS = 50
_BEAT_SECONDS = 3.0
_PATIENCE_SECONDS = 60.0
_TABLES = [table for table in ROWS if table != "counters"]
_Answer = TypeVar("_Answer")


class SqlShardMove(NamedTuple):
    """A shard that is in its database now, and the number of rows copied for that."""

    shard: int
    source: str
    target: str
    rows: int


class _Overtaken(Exception):
    """The shard is not in the expected phase, or the ticket differs: another mover or worker was faster. Look again."""


class _Place(NamedTuple):
    name: str
    row: int
    phase: int
    where: ShardLocation


async def spread_sql(url: str, job: str, *, forget_seconds: float | None = None) -> AsyncIterator[SqlShardMove]:
    """Move every shard of a job to its database among these, and yield where each is.

    A shard that is on its way refuses all calls, and workers wait; then its old place names the new one. Finishes moves
    that were interrupted earlier. Ends when no server can forget the moves any more. All databases are of one kind."""
    databases = Databases(url)
    try:
        root = await databases.find(job)
        if root is None:
            raise JobMissing(
                f"there is no job {job!r} in {', '.join(databases.names)}", hint="also pass the old addresses"
            )
        mover = _Mover(databases, root, job, root.settings.forget_seconds if forget_seconds is None else forget_seconds)
        places = placement(len(root.placement), databases.names)
        await mover.announce(places)
        for shard, wanted in enumerate(places):
            yield await mover.settle(shard, wanted)
        await mover.finish(places)
    finally:
        await databases.aclose()


class _Mover:
    """One run of `spread_sql`. What it keeps in memory only saves time: every decision is read from the rows."""

    def __init__(self, databases: Databases, root: SqlJobRecord, job: str, forget_seconds: float) -> None:
        self._databases = databases
        self._root = root
        self._job = job
        self._forget_seconds = forget_seconds
        self._durable: set[str] = set()
        """Tickets of announcements that this run has waited for: their sources cannot forget them any more."""
        self._beat_at = 0.0

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys([*self._databases.names, *self._root.placement]))

    async def announce(self, places: list[str]) -> None:
        """Announce all moves, then wait once for all sources, not once for each shard."""
        for name in self._names:
            await self._write(name)
        tickets: dict[str, str] = {}
        for shard, wanted in enumerate(places):
            place = (await self._find(shard))[0]
            if place.name != wanted and place.phase in (HERE, ANNOUNCED):
                try:
                    tickets[await self._announce(place, wanted)] = place.name
                except _Overtaken:
                    # Another mover was faster; `settle` looks at the shard again.
                    continue
        await self._wait_for_stable_run(tickets.values())
        self._durable |= tickets.keys()

    async def settle(self, shard: int, wanted: str) -> SqlShardMove:
        """Move one shard to the database where it belongs, from whatever phase it is in.

        Each round looks at all databases anew and takes the one step that the phases call for: decide an unfinished
        move, finish one that is frozen, or start one. It ends when the shard is HERE at its place."""
        rows, start = 0, ""
        while True:
            places = await self._find(shard)
            place = places[0]
            start = start or place.name
            try:
                for other in places[1:]:
                    if other.phase in (LEAVING, ANNOUNCED):
                        # The target has the shard, and this source does not know it yet.
                        await self._decide(shard, other)
                if place.phase == KEPT:
                    await self._decide(shard, place)
                elif place.name == wanted and place.phase == HERE:
                    return SqlShardMove(shard, start, wanted, rows)
                elif place.phase == LEAVING and not place.where.ticket:
                    await self._decide(shard, place)
                elif place.phase == LEAVING:
                    rows += await self._bring(shard, place)
                else:
                    rows += await self._move(shard, place, wanted)
            except _Overtaken:
                await asyncio.sleep(random.uniform(0.0, 0.05))

    async def finish(self, places: list[str]) -> None:
        """Wait until no target can forget a shard, then delete what the sources have kept.

        A target that forgot during the wait is found out by `_is_there`; `_decide` gives the shard back to its source,
        and it is moved again. The placement is written last, because from then on workers look only there."""
        while True:
            kept = [(shard, place) for shard in range(len(places)) for place in await self._kept(shard)]
            await self._wait_for_stable_run(place.where.target for _, place in kept)
            for shard, place in kept:
                try:
                    if await self._is_there(shard, place.where):
                        await self._delete_source(place)
                    else:
                        await self._decide(shard, place)
                except _Overtaken:
                    continue
            again = [shard for shard in range(len(places)) if (await self._find(shard))[0].name != places[shard]]
            for shard in again:
                await self.settle(shard, places[shard])
            if not again and not [None for shard in range(len(places)) for _ in await self._kept(shard)]:
                break
        for shard in range(len(places)):
            for place in await self._look(shard):
                if place.phase == GONE:
                    await self._empty(self._at(place))
        # From here on, workers no longer look at databases that have no shard.
        for name in self._names:
            await self._write(name)
            await self._databases.place(name, self._job, places)

    def _at(self, place: _Place) -> Database:
        return self._databases.at(place.name).at(place.row)

    async def _wait_for_stable_run(self, names: Iterable[str]) -> None:
        await asyncio.gather(
            *(wait_for_stable_run(self._run_of(name), self._forget_seconds) for name in dict.fromkeys(names))
        )

    def _run_of(self, name: str) -> Callable[[], Awaitable[str]]:
        async def ask(db: Dialect) -> str:
            await db.learn()
            return db.server_run

        return lambda: self._databases.at(name).run(ask, whole=False)

    async def _write(self, name: str) -> None:
        """See that a database has the record of the job and the tables of the outbox."""
        if (await self._databases.write(name, self._job, self._root)).secret != self._root.secret:
            raise ConfigError(f"{name} has another job of the name {self._job!r}", hint="use another database")
        if not await ensure_outbox(self._databases.at(name)):
            raise FrontierError(
                f"{name} lacks the tables of the outbox, which a job in several databases needs",
                hint="let this user CREATE there",
            )

    async def _look(self, shard: int) -> list[_Place]:
        """All rows of a shard, the highest generation first; within one, holders before places that it has left."""
        found = []
        for name in self._names:
            try:
                for row, phase, text in await self._databases.at(name).run(
                    lambda db: db.fetch("shard_phase", digest(self._job), shard)
                ):
                    found.append(_Place(name, int(row), int(phase), ShardLocation.read(text)))
            except JobMissing:
                # No tables at all.
                continue
        order = (HERE, ANNOUNCED, LEAVING, KEPT, GONE, ARRIVING)
        return sorted(found, key=lambda place: (-place.where.generation, order.index(place.phase)))

    async def _find(self, shard: int) -> list[_Place]:
        """The same without places that never had it or have nothing left; first the holder, or who kept its rows last.

        The databases are read one after another, so a shard that moves meanwhile may be seen nowhere: look again."""
        for _ in range(_LOOKS):
            found = [place for place in await self._look(shard) if place.phase not in (ARRIVING, GONE)]
            # A move by an earlier version left the old place LEAVING, in the same generation.
            holders = [place for place in found if place.phase != KEPT]
            if holders and (not found or holders[0].where.generation >= found[0].where.generation):
                return [*holders, *(place for place in found if place.phase == KEPT)]
            if found:
                return found
            # Moved by another mover between two of the reads: not there yet, and then no longer here.
            await asyncio.sleep(0.1)
        raise JobMissing(
            f"shard {shard} of job {self._job!r} is in none of these databases", hint="pass the addresses of all"
        )

    async def _kept(self, shard: int) -> list[_Place]:
        return [place for place in await self._look(shard) if place.phase == KEPT]

    async def _is_there(self, shard: int, where: ShardLocation) -> bool:
        return any(
            place.name == where.target and place.where.generation > where.generation and place.phase != ARRIVING
            for place in await self._look(shard)
        )

    async def _decide(self, shard: int, place: _Place) -> None:
        moved, target = Moved(place.phase, place.where), self._databases.at(place.where.target)
        try:
            await decide(self._at(place), target, self._job, shard, moved)
        except Unavailable as error:
            raise _Overtaken from error

    async def _announce(self, place: _Place, target: str) -> str:
        """Announce at the source where the shard is about to go; return the ticket.

        An announcement of this run of the server to the same target is used again. One of an earlier run must be
        decided first: the shard may have left since."""

        async def work(db: Dialect, phase: int, where: ShardLocation) -> str:
            if phase == ANNOUNCED and (where.target, where.run) == (target, db.server_run):
                return where.ticket
            if phase == ANNOUNCED and where.run != db.server_run:
                raise _Overtaken
            ticket = secrets.token_hex(8)
            await put_phase(db, ANNOUNCED, ShardLocation(where.generation, target, db.server_run, ticket))
            return ticket

        return await _in_phase(self._at(place), (HERE, ANNOUNCED), work)

    async def _move(self, shard: int, place: _Place, target: str) -> int:
        """Announce, wait, prepare the target, freeze the source, and copy; how many rows were copied.

        The freeze checks the announcement and the run once more, in its own transaction: if the server restarted
        since, the announcement may be gone, and a shard frozen without one could end up in two places."""
        run = await self._run_of(place.name)()
        if place.phase == ANNOUNCED and place.where.run != run:
            # The source restarted since the announcement, and may have forgotten that the shard has left.
            await self._decide(shard, place)
            return 0
        ticket = await self._announce(place, target)
        if ticket not in self._durable:
            await self._wait_for_stable_run([place.name])
            self._durable.add(ticket)
        where = ShardLocation(place.where.generation, target, run, ticket)
        await self._prepare(shard, where)
        source = self._at(place)
        await beat(source)

        async def freeze(db: Dialect, _: int, now: ShardLocation) -> None:
            if now != where or db.server_run != run:
                raise _Overtaken
            await freeze_shard(db, where)

        await _in_phase(source, (ANNOUNCED,), freeze)
        return await self._bring(shard, place._replace(phase=LEAVING, where=where))

    async def _bring(self, shard: int, place: _Place) -> int:
        """Copy the rows of a frozen shard, open it at its target, then mark the source KEPT; how many rows were copied.

        If the target is open already, an earlier mover died before the last step, which is all that is left to do."""
        source, where = self._at(place), place.where
        there = await self._prepare(shard, where)
        copied = 0
        if there is not None:
            for table in _TABLES:
                copied += await self._copy(source, there, table, where.ticket)
            await _activate(source, there, where)

        async def leave(db: Dialect, _: int, now: ShardLocation) -> None:
            if now != where:
                raise _Overtaken
            await put_phase(db, KEPT, ShardLocation(where.generation, where.target))
            # Wake the workers that wait for news here, so that they follow the shard.
            await db.fetch("tell")

        await _in_phase(source, (LEAVING,), leave)
        return copied

    async def _prepare(self, shard: int, where: ShardLocation) -> Database | None:
        """Make or find an unused place for the shard at the target, under this ticket; None if the shard is open there.

        Leftovers of an earlier stay or attempt are deleted first, because they are of another moment. The phase is GONE
        while they are deleted, and ARRIVING only when the place is empty, so an interrupted deletion is resumed."""
        database, arriving = self._databases.at(where.target), ShardLocation(0, "", "", where.ticket)
        for row, phase, text in await database.run(lambda db: db.fetch("shard_phase", digest(self._job), shard)):
            there, found = database.at(int(row)), ShardLocation.read(text)
            if found.generation > where.generation:
                return None
            if phase not in (ARRIVING, GONE, KEPT):
                raise _Overtaken
            if (phase, found.ticket) != (ARRIVING, where.ticket):
                await _set(there, (ARRIVING, GONE, KEPT), found, GONE, ShardLocation())
                await self._empty(there)
                await _set(there, (GONE,), ShardLocation(), ARRIVING, arriving)
            return there
        made = database.at(await make_shard(database, self._job, shard, phase=ARRIVING))
        await _set(made, (ARRIVING,), None, ARRIVING, arriving)
        return made

    async def _copy(self, source: Database, target: Database, table: str, ticket: str) -> int:
        """Copy a table in the order of its keys, after the last row that the target has from an earlier try.

        The source is frozen, so its rows do not change meanwhile. A heartbeat every 3 s keeps workers from deciding."""
        width, _ = ROWS[table]
        done = await target.run(lambda db: db.page(table, (), 1, last=True))
        after: Sequence[Any] = tuple(done[0][:width]) if done else ()
        copied = 0
        while True:
            now = asyncio.get_running_loop().time()
            if now > self._beat_at + _BEAT_SECONDS:
                self._beat_at = now
                await beat(source)
            if not (some := await _page(source, table, after)):
                return copied
            await _put(target, table, some, ticket)
            after = tuple(some[-1][:width])
            copied += len(some)

    async def _delete_source(self, place: _Place) -> None:
        # The phase first: from then on nobody takes the shard back here, however many rows are left.
        source = self._at(place)
        await _set(source, (KEPT,), place.where, GONE, place.where)
        await self._empty(source)

    async def _empty(self, database: Database) -> None:
        """Delete the rows of a shard that is GONE, in small transactions; each checks the phase again."""
        for table in _TABLES:
            while await database.run(lambda db, table=table: db.page(table, (), 1)):  # type: ignore[misc]
                await _in_phase(database, (GONE,), lambda db, _, __, table=table: db.drop(table, _STEP))  # type: ignore[misc]


async def _in_phase(
    database: Database, phases: Sequence[int], work: Callable[[Dialect, int, ShardLocation], Awaitable[_Answer]]
) -> _Answer:
    """Run work in a transaction that locks the row of the shard, and only if it is in one of these phases."""

    async def guarded(db: Dialect) -> _Answer:
        found = await locked(db)
        if found is None or found[0] not in phases:
            raise _Overtaken
        return await work(db, *found)

    return await database.run(guarded, rings=True)


async def _set(
    database: Database, phases: Sequence[int], known: ShardLocation | None, phase: int, where: ShardLocation
) -> None:
    """Change the phase, if the place is still the known one."""

    async def work(db: Dialect, _: int, now: ShardLocation) -> None:
        if known is not None and now != known:
            raise _Overtaken
        await put_phase(db, phase, where)

    await _in_phase(database, phases, work)


async def freeze_shard(db: Dialect, where: ShardLocation) -> None:
    """Stop all calls: new ones see the phase, and those under way fail when they write their counters."""
    await put_phase(db, LEAVING, where)
    await db.fetch("freeze")


async def _page(source: Database, table: str, after: Sequence[Any]) -> list[Sequence[Any]]:
    return await source.run(lambda db: db.page(table, after, _STEP))


async def _put(target: Database, table: str, rows: Sequence[Sequence[Any]], ticket: str) -> None:
    async def work(db: Dialect, _: int, where: ShardLocation) -> None:
        if where.ticket != ticket:
            raise _Overtaken
        await db.put(table, rows)

    await _in_phase(target, (ARRIVING,), work)


async def _activate(source: Database, target: Database, left: ShardLocation) -> None:
    """Open the target, once all rows are there.

    One transaction writes the counters, the times, the part of the page limit, the run of the new server, and the phase
    HERE with the next generation. The run is stored so that the move does not count as a restart."""
    counters = await _page(source, "counters", ())
    (times,) = await source.run(lambda db: db.fetch("shard_times"))
    (here,) = await source.run(lambda db: db.fetch("brief_moment"))
    state, _, clock, skew = here[:4]

    async def work(db: Dialect, _: int, where: ShardLocation) -> None:
        if where.ticket != left.ticket:
            raise _Overtaken
        await db.fetch("drop_counters")
        await db.put("counters", counters)
        (there,) = await db.fetch("brief_moment")
        # The time of the shard goes on from where it was, whatever the clock of this server says (P5).
        skew_there = int(clock) + int(skew) - int(there[2])
        await db.fetch("set_shard_times", *times, skew_there, db.server_run, ShardLocation(left.generation + 1).text)
        await db.fetch("steer", state)

    await _in_phase(target, (ARRIVING,), work)
