"""Taking a job away from a fleet's frontier, with all that it left there."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

from gossamer.errors import JobMissing

_STEP = 1000


async def remove_job(url: str, job: str) -> bool:
    """Delete a job that nobody works on any more; whether it was there. The results of its workers are not touched.

    What is deleted cannot be had again: ask first, or remove only what you made."""
    if url.startswith("folder:/"):
        return await asyncio.to_thread(_from_folder, url, job)
    if url.startswith(("postgresql://", "postgres://", "mysql://", "mariadb://")):
        return await _from_databases(url, job)
    return await _from_redis(url, job)


def _from_folder(url: str, job: str) -> bool:
    from gossamer.frontier.folder_job import place_of

    root, _ = place_of(url, job)
    was_there = root.is_dir()
    shutil.rmtree(root, ignore_errors=True)
    return was_there


async def _from_databases(url: str, job: str) -> bool:
    from gossamer.frontier.sql.database import CARGO, OUTBOX, digest
    from gossamer.frontier.sql.places import Databases

    databases, was_there = Databases(url), False
    try:
        root = await databases.find(job)
        for name in dict.fromkeys([*databases.names, *(root.placement if root is not None else ())]):
            database = databases.at(name)
            try:
                shards = await database.run(lambda db: db.fetch("shards_of", digest(job)))
            except JobMissing:
                # No tables at all.
                continue
            for (shard,) in shards:
                own = database.at(int(shard))
                has_outbox = await own.run(_has_outbox)
                for table in (*CARGO, *(OUTBOX if has_outbox else ())):
                    while await own.run(lambda db, table=table: db.page(table, (), 1)):  # type: ignore[misc]
                        await own.run(lambda db, table=table: db.drop(table, _STEP))  # type: ignore[misc]
                await own.run(lambda db: db.fetch("remove_workers"))
                await own.run(lambda db: db.fetch("remove_shard"))
            await database.run(lambda db: db.fetch("remove_job", digest(job)))
            was_there = was_there or bool(shards)
    finally:
        await databases.aclose()
    return was_there


async def _has_outbox(dialect: Any) -> bool:
    return bool(dialect.has_outbox)


async def _from_redis(url: str, job: str) -> bool:
    from gossamer.frontier.redis_job import faults, job_key, no_pattern, root_key, translate
    from gossamer.frontier.redis_link import Links, addresses, find_root

    links = Links(addresses(url))
    try:
        root = await find_root(links, job)
        for server in dict.fromkeys([*([""] if links.is_cluster else links.names), *root.placement]):
            link = await links.link(server)
            for shard in range(len(root.placement)):
                key = job_key(job, shard)
                redis = await link.at(key)
                # Walked over in steps: the server goes on serving others, however much it holds.
                async for found in redis.scan_iter(f"{no_pattern(key.removesuffix('job'))}*", count=_STEP):
                    await redis.unlink(found)
            await (await link.at(root_key(job))).unlink(root_key(job))
    except JobMissing:
        return False
    except faults.RedisError as error:
        raise translate(error, job) from error
    finally:
        await links.aclose()
    return True
