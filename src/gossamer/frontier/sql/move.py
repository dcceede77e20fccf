"""Moves shards between databases so that a power cut of either side loses nothing.

Each side may forget its last seconds on the way; `handover` has the rules. A move has four steps: it is announced at
the source, which then has to live for `forget_seconds`; the source is frozen, its rows are copied, and the target opens
them; the target has to live for `forget_seconds`; and only then the source is emptied."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from gossamer.errors import ConfigError, FrontierError, JobMissing, Unavailable
from gossamer.frontier.outbox import outlive
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
    """A shard that is in its database now, and how many rows had to be brought there."""

    shard: int
    source: str
    target: str
    rows: int


class _Overtaken(Exception):
    """The shard is not in the phase that it was in a moment ago."""


class _Place(NamedTuple):
    name: str
    row: int
    phase: int
    where: ShardLocation


async def spread_sql(url: str, job: str, *, forget_seconds: float | None = None) -> AsyncIterator[SqlShardMove]:
    """Bring every shard of a job to its database among these, and say where each is.

    A shard that is on its way refuses all calls, and workers wait for it; then its old place says where it has gone.
    What was interrupted is finished first. It ends when no server can forget any more that they have moved. The
    databases are of one kind."""
    databases = Databases(url)
    try:
        root = await databases.find(job)
        if root is None:
            raise JobMissing(
                f"there is no job {job!r} in {', '.join(databases.names)}", hint="give the old addresses too"
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
    def __init__(self, databases: Databases, root: SqlJobRecord, job: str, forget_seconds: float) -> None:
        self._databases = databases
        self._root = root
        self._job = job
        self._forget_seconds = forget_seconds
        self._durable: set[str] = set()
        """Tickets of announcements that no source can forget any more."""
        self._beat_at = 0.0

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys([*self._databases.names, *self._root.placement]))

    async def announce(self, places: list[str]) -> None:
        """Have every source know that its shards may leave, for good."""
        for name in self._names:
            await self._write(name)
        tickets: dict[str, str] = {}
        for shard, wanted in enumerate(places):
            place = (await self._find(shard))[0]
            if place.name != wanted and place.phase in (HERE, ANNOUNCED):
                try:
                    tickets[await self._announce(place, wanted)] = place.name
                except _Overtaken:
                    # Somebody else moves it too.
                    continue
        await self._outlive(tickets.values())
        self._durable |= tickets.keys()

    async def settle(self, shard: int, wanted: str) -> SqlShardMove:
        """Have a shard in the database that it belongs to."""
        rows, start = 0, ""
        while True:
            places = await self._find(shard)
            place = places[0]
            start = start or place.name
            try:
                for other in places[1:]:
                    if other.phase in (LEAVING, ANNOUNCED):
                        # Its target has it, and it was not told.
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
        """Wait until no target can forget a shard, then delete what the sources have kept."""
        while True:
            kept = [(shard, place) for shard in range(len(places)) for place in await self._kept(shard)]
            await self._outlive(place.where.target for _, place in kept)
            for shard, place in kept:
                try:
                    if await self._is_there(shard, place.where):
                        await self._bury(place)
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
        # From here on nobody looks at a database that has no shard.
        for name in self._names:
            await self._write(name)
            await self._databases.place(name, self._job, places)

    def _at(self, place: _Place) -> Database:
        return self._databases.at(place.name).at(place.row)

    async def _outlive(self, names: Iterable[str]) -> None:
        await asyncio.gather(*(outlive(self._run_of(name), self._forget_seconds) for name in dict.fromkeys(names)))

    def _run_of(self, name: str) -> Callable[[], Awaitable[str]]:
        async def ask(db: Dialect) -> str:
            await db.learn()
            return db.server_run

        return lambda: self._databases.at(name).run(ask, whole=False)

    async def _write(self, name: str) -> None:
        if (await self._databases.write(name, self._job, self._root)).secret != self._root.secret:
            raise ConfigError(f"{name} has another job of the name {self._job!r}", hint="use another database")
        if not await ensure_outbox(self._databases.at(name)):
            raise FrontierError(
                f"{name} lacks the tables of the outbox, which a job in several databases needs",
                hint="let this user CREATE there",
            )

    async def _look(self, shard: int) -> list[_Place]:
        """Who knows a shard; the highest generation first, and of one generation who has it before who has left it."""
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
        """The same; first the one that has it, or that left last and kept its rows."""
        for _ in range(_LOOKS):
            found = [place for place in await self._look(shard) if place.phase not in (ARRIVING, GONE)]
            # A legacy move left the old place LEAVING, in the same generation.
            holders = [place for place in found if place.phase != KEPT]
            if holders and (not found or holders[0].where.generation >= found[0].where.generation):
                return [*holders, *(place for place in found if place.phase == KEPT)]
            if found:
                return found
            # Another moves it: it was not there yet when we looked there, and not here any more when we looked here.
            await asyncio.sleep(0.1)
        raise JobMissing(
            f"shard {shard} of job {self._job!r} is in none of these databases", hint="give the addresses of all"
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
        """Note at the source where the shard is about to go; the ticket of that."""

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
        """Announce, and freeze; how many rows were brought."""
        run = await self._run_of(place.name)()
        if place.phase == ANNOUNCED and place.where.run != run:
            # The source may have forgotten that the shard has left.
            await self._decide(shard, place)
            return 0
        ticket = await self._announce(place, target)
        if ticket not in self._durable:
            await self._outlive([place.name])
            self._durable.add(ticket)
        where = ShardLocation(place.where.generation, target, run, ticket)
        await self._prepare(shard, where)
        source = self._at(place)
        await beat(source)

        async def freeze(db: Dialect, _: int, now: ShardLocation) -> None:
            if now != where or db.server_run != run:
                raise _Overtaken
            await _freeze(db, where)

        await _in_phase(source, (ANNOUNCED,), freeze)
        return await self._bring(shard, place._replace(phase=LEAVING, where=where))

    async def _bring(self, shard: int, place: _Place) -> int:
        """Copy the rows of a frozen shard, open it at its target, and close it here; how many rows."""
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
            # Wakes those who sleep here.
            await db.fetch("tell")

        await _in_phase(source, (LEAVING,), leave)
        return copied

    async def _prepare(self, shard: int, where: ShardLocation) -> Database | None:
        """A place for the shard that nobody uses yet; None if the shard is there already."""
        database, arriving = self._databases.at(where.target), ShardLocation(0, "", "", where.ticket)
        for row, phase, text in await database.run(lambda db: db.fetch("shard_phase", digest(self._job), shard)):
            there, found = database.at(int(row)), ShardLocation.read(text)
            if found.generation > where.generation:
                return None
            if phase not in (ARRIVING, GONE, KEPT):
                raise _Overtaken
            if (phase, found.ticket) != (ARRIVING, where.ticket):
                # It was here before, or on its way, and all of that has to go: it is as it was then.
                await _set(there, (ARRIVING, GONE, KEPT), found, GONE, ShardLocation())
                await self._empty(there)
                await _set(there, (GONE,), ShardLocation(), ARRIVING, arriving)
            return there
        made = database.at(await make_shard(database, self._job, shard, phase=ARRIVING))
        await _set(made, (ARRIVING,), None, ARRIVING, arriving)
        return made

    async def _copy(self, source: Database, target: Database, table: str, ticket: str) -> int:
        """Bring the rows in the order of their keys; what is there from an earlier try is not brought again."""
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

    async def _bury(self, place: _Place) -> None:
        source = self._at(place)
        await _set(source, (KEPT,), place.where, GONE, place.where)
        await self._empty(source)

    async def _empty(self, database: Database) -> None:
        """Delete the rows of a shard that is gone, some at a time."""
        for table in _TABLES:
            while await database.run(lambda db, table=table: db.page(table, (), 1)):  # type: ignore[misc]
                await _in_phase(database, (GONE,), lambda db, _, __, table=table: db.drop(table, _STEP))  # type: ignore[misc]


async def _in_phase(
    database: Database, phases: Sequence[int], work: Callable[[Dialect, int, ShardLocation], Awaitable[_Answer]]
) -> _Answer:
    """Do something to a shard only while it is in one of these phases."""

    async def guarded(db: Dialect) -> _Answer:
        found = await locked(db)
        if found is None or found[0] not in phases:
            raise _Overtaken
        return await work(db, *found)

    return await database.run(guarded, rings=True)


async def _set(
    database: Database, phases: Sequence[int], known: ShardLocation | None, phase: int, where: ShardLocation
) -> None:
    """Change a phase, if the row is as it is known."""

    async def work(db: Dialect, _: int, now: ShardLocation) -> None:
        if known is not None and now != known:
            raise _Overtaken
        await put_phase(db, phase, where)

    await _in_phase(database, phases, work)


async def _freeze(db: Dialect, where: ShardLocation) -> None:
    """From here on no transaction that has begun can write to the shard, and none begins."""
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
    """All rows are there: the counters, the shard's times and its part of max_pages, and it is open."""
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
        # Time goes on from where it was, whatever the clock of this server says.
        skew_there = int(clock) + int(skew) - int(there[2])
        await db.fetch("set_shard_times", *times, skew_there, db.server_run, ShardLocation(left.generation + 1).text)
        await db.fetch("steer", state)

    await _in_phase(target, (ARRIVING,), work)
