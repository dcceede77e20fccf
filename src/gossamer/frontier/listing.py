"""The names of the jobs on a fleet's frontier."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from gossamer.errors import JobMissing

_MOST = 1000


async def list_jobs(url: str) -> list[str]:
    """The names of the jobs at this address, in order, a thousand at most."""
    if url.startswith("folder:/"):
        return await asyncio.to_thread(_in_folder, url)
    if url.startswith(("postgresql://", "postgres://", "mysql://", "mariadb://")):
        return await _in_database(url)
    return await _in_redis(url)


def _in_folder(url: str) -> list[str]:
    place = Path(url.partition(":")[2].partition("?")[0]) / "frontier"
    try:
        return sorted(unquote(path.parent.name) for path in place.glob("*/job.json"))[:_MOST]
    except OSError:
        return []


async def _in_database(url: str) -> list[str]:
    from gossamer.frontier.sql.database import Database
    from gossamer.frontier.sql.job import dialect_of
    from gossamer.frontier.sql.places import addresses

    found: set[str] = set()
    for address in addresses(url):
        database = Database(dialect_of(address))
        try:
            # A database that has no tables yet has no jobs.
            with suppress(JobMissing):
                found.update(str(name) for (name,) in await database.run(lambda db: db.fetch("list_jobs")))
        finally:
            await database.aclose()
    return sorted(found)[:_MOST]


async def _in_redis(url: str) -> list[str]:
    from gossamer.frontier.redis_job import faults, translate
    from gossamer.frontier.redis_link import Links, addresses

    links, found = Links(addresses(url)), set()
    try:
        for name in links.names:
            link = await links.link(name)
            for node in await link.nodes():
                async for key in node.scan_iter("gossamer:{*}:root", count=1000):
                    found.add(unquote(bytes(key).decode("ascii", "replace").partition("{")[2].partition("}")[0]))
                    if len(found) >= _MOST:
                        break
    except faults.RedisError as error:
        raise translate(error, "") from error
    finally:
        await links.aclose()
    return sorted(found)
