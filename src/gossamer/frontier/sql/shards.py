"""Opens and creates the shards of a job over one or several databases.

Creation may be done by several clients at once, or be interrupted and repeated: the record of the first database
decides about secret and placement, each step creates only what is missing, and `made` is stored last."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence

from gossamer.errors import ConfigError, FrontierError, JobMissing, Unavailable
from gossamer.frontier.base import FleetFrontier
from gossamer.frontier.placement import ShardRange, parse_part, placement, region_of, shard_of
from gossamer.frontier.sharded import Sharded, divide
from gossamer.frontier.sql.completion import Forward, Link
from gossamer.frontier.sql.database import Database, Dialect, digest
from gossamer.frontier.sql.frontier import ShardContext, SqlFrontier
from gossamer.frontier.sql.record import Databases, SqlJobRecord, ensure_outbox, make_shard, open_shard, seat
from gossamer.settings import Settings


async def open_databases(
    url: str, job: str, settings: Settings | None = None, *, worker: str = "", region: str = "", shards: str = ""
) -> FleetFrontier:
    """Join a job in databases; with settings, create it if it does not exist. Commas separate several addresses."""
    part = parse_part(shards) if shards else None
    databases = Databases(url)
    try:
        own = await _open(databases, job, settings, part, worker=worker, region=region)
        if len(own) == 1:
            return own[0]
        if settings is not None:
            await divide(own, settings.max_pages)
        return Sharded(own, part=part.shards if part else range(len(own)), close=databases.aclose)
    except BaseException:
        await databases.aclose()
        raise


async def compact_databases(url: str, job: str, older_than_seconds: float) -> int:
    """Delete the rows of URLs that were finished that long ago, in all shards; how many."""
    databases = Databases(url)
    try:
        gone = 0
        for shard in await _open(databases, job, None, None, worker="", region=""):
            gone += await shard.compact(older_than_seconds)
        return gone
    finally:
        await databases.aclose()


async def _open(
    databases: Databases, job: str, settings: Settings | None, part: ShardRange | None, *, worker: str, region: str
) -> list[SqlFrontier]:
    """All shards of a job."""
    root = await databases.find(job)
    if settings is not None:
        root = await _make(databases, job, settings, part, root)
    if root is None:
        raise JobMissing(
            f"there is no job {job!r} in {', '.join(databases.names)}",
            hint="start it with: gossamer crawl --frontier ... --job NAME",
        )
    count = len(root.placement)
    if part is not None and part.of != count:
        raise ConfigError(
            f"job {job!r} has {count} shards, not {part.of}",
            hint=f"write --shards 0-{count - 1}/{count}, or a part of that",
        )
    if count > 1:
        await _make_outboxes(databases, root, worker)
    own: list[SqlFrontier] = []
    for shard, name in enumerate(root.placement):
        database = databases.at(name)
        context = ShardContext(
            region_of=lambda site: region_of(own[0].settings.regions, site),
            forward=_forwarder(own, shard) if count > 1 else None,
            reach=databases.at,
            follow=_follower(databases, job, shard),
            close=databases.aclose,
        )
        own.append(
            await open_shard(
                database, job, shard, settings, worker=worker, region=region, alone=count == 1, context=context
            )
        )
    return own


async def _make_outboxes(databases: Databases, root: SqlJobRecord, worker: str) -> None:
    names = list(dict.fromkeys(root.placement))
    for name in names:
        # A client that only reads needs none, and in one database no link is for another server.
        if not await ensure_outbox(databases.at(name)) and worker and len(names) > 1:
            raise FrontierError(
                f"{name} lacks the tables of the outbox, which a job in several databases needs",
                hint="let this user CREATE there for the first worker of this version",
            )


async def _make(
    databases: Databases, job: str, settings: Settings, part: ShardRange | None, found: SqlJobRecord | None
) -> SqlJobRecord:
    """Write the record to every database, then create the shards. All clients ask the same database first."""
    names = databases.names
    root = found and found._replace(settings=settings)
    if root is None:
        count = part.of if part is not None else len(names)
        places = placement(count, names if len(names) > 1 else [""])
        root = await databases.write(names[0], job, SqlJobRecord(settings, secrets.token_bytes(16), places, False))
    for name in dict.fromkeys([*names, *root.placement]):
        if (await databases.write(name, job, root)).secret != root.secret:
            raise ConfigError(f"{name} has another job of the name {job!r}", hint="give this one another name")
    count = len(root.placement)
    if not root.is_made:
        for shard, name in enumerate(root.placement):
            await make_shard(databases.at(name), job, shard)
        for name in dict.fromkeys([*names, *root.placement]):
            # A job in one database is stored without its name: clients may reach it under different names.
            await databases.place(name, job, root.placement if {*names, *root.placement} > {name} else [""] * count)
    return root


def _follower(databases: Databases, job: str, shard: int) -> Callable[[str], Awaitable[Database]]:
    async def work(db: Dialect) -> int:
        for row in await db.fetch("shard_phase", digest(job), shard):
            return int(row[0])
        raise JobMissing(f"shard {shard} of job {job!r} is not in {db.server}", hint="was the database emptied?")

    async def follow(place: str) -> Database:
        database = databases.at(place)
        return await seat(database, await database.run(work))

    return follow


def _forwarder(own: Sequence[SqlFrontier], number: int) -> Forward:
    async def bring(shard: int, links: Sequence[Link]) -> set[int]:
        try:
            await own[shard].admit(links)
        except Unavailable:
            # They stay in the inbox.
            return set()
        return {request.key for request, _, _ in links}

    async def forward(links: Sequence[Link]) -> tuple[set[int], set[int]]:
        groups: dict[int, list[Link]] = {}
        for link in links:
            groups.setdefault(shard_of(link[0].site, len(own)), []).append(link)
        ours = {request.key for request, _, _ in groups.pop(number, [])}
        brought = await asyncio.gather(*(bring(shard, some) for shard, some in groups.items()))
        return ours, set().union(*brought)

    return forward
