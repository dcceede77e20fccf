"""Opens the shards of a job over one or several Redis servers.

Creation is safe when several clients do it at once, or one dies on the way. All ask the first server (in sorted order)
for a record, and its script keeps the secret and placement of the first client. Then every server gets that record,
then every shard is created where it is missing, and last the record says `made`. From then on a shard that is missing
is an error: creating it again would silently restart a part of the job."""

from __future__ import annotations

import asyncio
import secrets

from gossamer.errors import ConfigError, JobMissing
from gossamer.frontier.base import FleetFrontier
from gossamer.frontier.placement import ShardRange, parse_part, placement
from gossamer.frontier.redis.connection import RedisConnections, addresses, find_root
from gossamer.frontier.redis.frontier import RedisFrontier
from gossamer.frontier.redis.routing import call_shard, gone, look
from gossamer.frontier.redis.server import RedisJobRecord, faults, job_key, root_key, translate, write_root, write_shard
from gossamer.frontier.sharded import Sharded, divide
from gossamer.settings import Settings


async def open_redis(
    url: str, job: str, settings: Settings | None = None, *, worker: str = "", region: str = "", shards: str = ""
) -> FleetFrontier:
    """Join a job in Redis; with settings, create it if it does not exist. Commas separate several addresses."""
    part = parse_part(shards) if shards else None
    links = RedisConnections(addresses(url))
    try:
        root = await find_root(links, job) if settings is None else await _make(links, job, settings, part)
        count = len(root.placement)
        if part is not None and part.of != count:
            raise ConfigError(
                f"job {job!r} has {count} shards, not {part.of}",
                hint=f"write --shards 0-{count - 1}/{count}, or a part of that",
            )
        own = [
            RedisFrontier(
                links,
                server,
                job,
                settings or root.settings,
                secret=root.secret,
                worker=worker,
                region=region,
                shard=shard,
                alone=count == 1,
            )
            for shard, server in enumerate(root.placement)
        ]
        if settings is not None:
            delays = {site: of.delay for site, of in settings.sites.items() if of.delay is not None}
            await asyncio.gather(*(shard.give_delays(delays) for shard in own))
            if count > 1:
                await divide(own, settings.max_pages)
        return own[0] if count == 1 else Sharded(own, part=part.shards if part else range(count), close=links.aclose)
    except faults.RedisError as error:
        await links.aclose()
        raise translate(error, job) from error
    except BaseException:
        await links.aclose()
        raise


async def _make(links: RedisConnections, job: str, settings: Settings, part: ShardRange | None) -> RedisJobRecord:
    """Write the record of the job to every server, then create its missing shards."""
    try:
        # Ask every server, not only the first: that one may have lost its data.
        root = await find_root(links, job)
    except JobMissing:
        root = await _begin(links, job, settings, part)
    servers = _servers(links)
    for server in {*servers, *root.placement}:
        link = await links.link(server)
        await write_root(await link.at(root_key(job)), job, settings, root.placement, root.secret)
    await asyncio.gather(*(_make_shard(links, root, job, shard, settings) for shard in range(len(root.placement))))
    if not root.is_made:
        for server in {*servers, *root.placement}:
            link = await links.link(server)
            await (await link.at(root_key(job))).hset(root_key(job), "made", 1)
    return root


def _servers(links: RedisConnections) -> list[str]:
    return [""] if links.is_cluster or len(links.names) == 1 else links.names


async def _begin(links: RedisConnections, job: str, settings: Settings, part: ShardRange | None) -> RedisJobRecord:
    """Create the record of a new job on the first server. Clients that do so at once get the same record."""
    first = await links.link(links.names[0])
    count = part.of if part is not None else len(links.names)
    places = placement(count, _servers(links))
    return await write_root(await first.at(root_key(job)), job, settings, places, secrets.token_bytes(16))


async def _make_shard(links: RedisConnections, root: RedisJobRecord, job: str, shard: int, settings: Settings) -> None:
    server = root.placement[shard]
    if root.is_made or await look(links, server, job, shard) is not None:
        try:
            server, _ = await call_shard(links, server, job, shard, "where", {})
        except JobMissing:
            if root.is_made:
                raise gone(job, shard, server) from None
    redis = await (await links.link(server)).at(job_key(job, shard))
    await write_shard(redis, job, shard, len(root.placement), settings)
