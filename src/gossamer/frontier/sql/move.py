"""Moving shards between databases: one at a time, while the others are crawled; it may be killed and run again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from gossamer.errors import ConfigError, JobMissing
from gossamer.frontier.placement import placement
from gossamer.frontier.sql.call import ARRIVING, GONE, HERE, LEAVING
from gossamer.frontier.sql.database import ROWS, Database, Dialect, digest
from gossamer.frontier.sql.job import make_shard
from gossamer.frontier.sql.places import Databases, Root

_STEP = 1000
_LOOKS = 50
_TABLES = [table for table in ROWS if table != "counters"]


class Move(NamedTuple):
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
    goes_to: str


async def spread_sql(url: str, job: str) -> AsyncIterator[Move]:
    """Bring every shard of a job to its database among these, and say where each is.

    A shard that is on its way refuses all calls, and workers wait for it; then its old place says where it has gone.
    What was interrupted is finished first. The databases are of one kind."""
    databases = Databases(url)
    try:
        root = await databases.find(job)
        if root is None:
            raise JobMissing(
                f"there is no job {job!r} in {', '.join(databases.names)}", hint="give the old addresses too"
            )
        places = placement(len(root.placement), databases.names)
        for shard, wanted in enumerate(places):
            yield await _settle(databases, root, job, shard, wanted)
        for name in dict.fromkeys([*databases.names, *root.placement]):
            await _write(databases, name, job, root)
            await databases.place(name, job, places)
    finally:
        await databases.aclose()


async def _settle(databases: Databases, root: Root, job: str, shard: int, wanted: str) -> Move:
    """Have a shard in the database that it belongs to."""
    rows = 0
    start = ""
    while True:
        places = await _find(databases, root, job, shard)
        place = places[0]
        start = start or place.name
        if place.name == wanted and place.phase == HERE:
            for other in places[1:]:
                await _empty(databases.at(other.name).at(other.row))
            return Move(shard, start, wanted, rows)
        try:
            rows += await _move(databases, root, job, shard, place, place.goes_to or wanted)
        except _Overtaken:
            # Somebody else moves it too.
            continue


async def _write(databases: Databases, name: str, job: str, root: Root) -> None:
    if (await databases.write(name, job, root)).secret != root.secret:
        raise ConfigError(f"{name} has another job of the name {job!r}", hint="use another database")


async def _find(databases: Databases, root: Root, job: str, shard: int) -> list[_Place]:
    """Who knows a shard; first the one that has it. Where two have it, the old place was not told yet."""
    for _ in range(_LOOKS):
        found = []
        for name in dict.fromkeys([*databases.names, *root.placement]):
            try:
                for row in await databases.at(name).run(lambda db: db.fetch("shard_phase", digest(job), shard)):
                    found.append(_Place(name, int(row[0]), int(row[1]), row[2] if row[1] == LEAVING else ""))
            except JobMissing:
                # No tables at all.
                continue
        found.sort(key=lambda place: (LEAVING, HERE, ARRIVING, GONE).index(place.phase))
        if not found or found[0].phase in (LEAVING, HERE):
            break
        # Another moves it: it was not there yet when we looked there, and not here any more when we looked here.
        await asyncio.sleep(0.1)
    if not found or found[0].phase not in (LEAVING, HERE):
        raise JobMissing(
            f"shard {shard} of job {job!r} is in none of these databases", hint="give the addresses of all"
        )
    return found


async def _move(databases: Databases, root: Root, job: str, shard: int, place: _Place, target: str) -> int:
    source = databases.at(place.name).at(place.row)
    await _in_phase(source, (HERE, LEAVING), lambda db: _freeze(db, target))
    await _write(databases, target, job, root)
    there, is_there = await _prepare(databases.at(target), job, shard)
    copied = 0
    if not is_there:
        for table in _TABLES:
            copied += await _copy(source, there, table)
        await _activate(source, there)
    await _in_phase(source, (LEAVING,), lambda db: _leave(db, target))
    await _empty(source)
    return copied


async def _in_phase(database: Database, phases: Sequence[int], work: Callable[[Dialect], Awaitable[Any]]) -> None:
    """Do something to a shard only while it is in one of these phases."""

    async def guarded(db: Dialect) -> None:
        ((phase, _),) = await db.fetch("lock_phase")
        if phase not in phases:
            raise _Overtaken
        await work(db)

    await database.run(guarded, rings=True)


async def _freeze(db: Dialect, target: str) -> None:
    """From here on no transaction that has begun can write to the shard, and none begins."""
    await db.fetch("set_phase", LEAVING, target)
    await db.fetch("freeze")


async def _prepare(database: Database, job: str, shard: int) -> tuple[Database, bool]:
    """A place for the shard that nobody uses yet; or the shard itself, if it is there already."""
    for row, phase, _ in await database.run(lambda db: db.fetch("shard_phase", digest(job), shard)):
        there = database.at(int(row))
        if phase == GONE:
            # It was here before, and all of that has to go: it is as it was then.
            await _empty(there)
            await _in_phase(there, (GONE,), lambda db: db.fetch("set_phase", ARRIVING, ""))
        return there, phase == HERE
    return database.at(await make_shard(database, job, shard, phase=ARRIVING)), False


async def _copy(source: Database, target: Database, table: str) -> int:
    """Bring the rows in the order of their keys; what is there from an earlier try is not brought again."""
    width, _ = ROWS[table]
    done = await target.run(lambda db: db.page(table, (), 1, last=True))
    after: Sequence[Any] = tuple(done[0][:width]) if done else ()
    copied = 0
    while some := await _page(source, table, after):
        await _put(target, table, some)
        after = tuple(some[-1][:width])
        copied += len(some)
    return copied


async def _page(source: Database, table: str, after: Sequence[Any]) -> list[Sequence[Any]]:
    return await source.run(lambda db: db.page(table, after, _STEP))


async def _put(target: Database, table: str, rows: Sequence[Sequence[Any]]) -> None:
    await _in_phase(target, (ARRIVING,), lambda db: db.put(table, rows))


async def _activate(source: Database, target: Database) -> None:
    """All rows are there: the counters, the shard's times and its part of max_pages, and it is open."""
    counters = await _page(source, "counters", ())
    (times,) = await source.run(lambda db: db.fetch("shard_times"))
    (here,) = await source.run(lambda db: db.fetch("brief_moment"))
    state, _, clock, skew = here[:4]

    async def work(db: Dialect) -> None:
        await db.fetch("drop_counters")
        await db.put("counters", counters)
        (there,) = await db.fetch("brief_moment")
        # Time goes on from where it was, whatever the clock of this server says.
        await db.fetch("set_shard_times", *times, int(clock) + int(skew) - int(there[2]))
        await db.fetch("steer", state)

    await _in_phase(target, (ARRIVING,), work)


async def _leave(db: Dialect, target: str) -> None:
    await db.fetch("set_phase", GONE, target)
    # Wakes those who sleep here.
    await db.fetch("tell")


async def _empty(database: Database) -> None:
    """Delete the rows of a shard that is gone, some at a time."""
    for table in _TABLES:
        while await database.run(lambda db, table=table: db.page(table, (), 1)):  # type: ignore[misc]
            await _in_phase(database, (GONE,), lambda db, table=table: db.drop(table, _STEP))  # type: ignore[misc]
