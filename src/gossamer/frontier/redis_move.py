"""Moving shards between Redis servers: one at a time, while the others are crawled; it may be killed and run again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec

from gossamer.errors import ConfigError, JobMissing
from gossamer.frontier.placement import placement
from gossamer.frontier.redis_job import Root, faults, job_key, no_pattern, root_key, translate, write_root
from gossamer.frontier.redis_link import Link, Links, addresses, find_root

_STEP = 500


class Move(NamedTuple):
    """A shard that is on its server now, and how many keys had to be brought there."""

    shard: int
    source: str
    target: str
    keys: int


async def spread(url: str, job: str) -> AsyncIterator[Move]:
    """Bring every shard of a job to its server among these, and say where each is.

    A shard that is on its way refuses all calls, and workers wait for it; then its old place says where it has gone.
    What was interrupted is finished first."""
    links = Links(addresses(url))
    try:
        root = await find_root(links, job)
        if links.is_cluster:
            raise ConfigError("a Redis Cluster moves its slots by itself", hint="use redis-cli --cluster rebalance")
        places = placement(len(root.placement), links.names)
        for shard, wanted in enumerate(places):
            yield await _settle(links, root, job, shard, wanted)
        await _announce(links, job, root, places)
    except faults.RedisError as error:
        raise translate(error, job) from error
    finally:
        await links.aclose()


async def _settle(links: Links, root: Root, job: str, shard: int, wanted: str) -> Move:
    """Have a shard on the server that it belongs to."""
    keys = 0
    start = ""
    while True:
        place, moving = await _find(links, root, job, shard)
        start = start or place
        if place == wanted and not moving:
            return Move(shard, start, wanted, keys)
        target = moving or wanted
        there = await links.link(target)
        await write_root(there.redis, job, root.settings, root.placement, root.secret)
        keys += await _move(await links.link(place), there, target, job, shard)


async def _find(links: Links, root: Root, job: str, shard: int) -> tuple[str, str]:
    """The server that has a shard, and the one that it is on its way to, if it is."""
    found = []
    for server in dict.fromkeys([*links.names, *filter(None, root.placement)]):
        link = await links.link(server)
        format_, moving, moved = await link.redis.hmget(job_key(job, shard), "format", "moving", "moved")
        if format_ is not None and moved is None:
            found.append((server, (moving or b"").decode()))
    # Where both have it, the old place was not told yet.
    for server, moving in sorted(found, key=lambda place: not place[1]):
        return server, moving
    raise JobMissing(f"shard {shard} of job {job!r} is on none of these servers", hint="give the addresses of all")


async def _move(source: Link, target: Link, name: str, job: str, shard: int) -> int:
    key = job_key(job, shard)
    prefix = key.removesuffix("job")
    copied = 0
    # The record goes last: as long as it is not there, nobody uses what is.
    format_, moved = await target.redis.hmget(key, "format", "moved")
    if format_ is None or moved is not None:
        await source.redis.hset(key, "moving", name)
        async for some in _batches(target, prefix, key):
            await target.redis.unlink(*some)
        async for some in _batches(source, prefix, key):
            await _copy(source.redis, target.redis, some)
            copied += len(some)
        record = await source.redis.hgetall(key)
        # It has not been restarted: it knows all its leases.
        kept = {field: value for field, value in record.items() if field not in (b"moving", b"run")}
        pipeline = target.redis.pipeline(transaction=True)
        pipeline.delete(key)
        pipeline.hset(key, mapping=kept)
        await pipeline.execute()
    record = await source.redis.hgetall(key)
    pipeline = source.redis.pipeline(transaction=True)
    pipeline.delete(key)
    pipeline.hset(key, mapping={"format": record[b"format"], "moved": name})
    # Wakes those who sleep here.
    pipeline.publish(f"{prefix}news", int(record.get(b"news", 0)) + 1)
    await pipeline.execute()
    async for some in _batches(source, prefix, key):
        await source.redis.unlink(*some)
    return copied


async def _copy(source: Any, target: Any, keys: list[bytes]) -> None:
    reading = source.pipeline(transaction=False)
    for key in keys:
        reading.dump(key)
    writing = target.pipeline(transaction=False)
    for key, data in zip(keys, await reading.execute()):
        writing.restore(key, 0, data, replace=True)
    await writing.execute()


async def _batches(link: Link, prefix: str, record: str) -> AsyncIterator[list[bytes]]:
    """All keys of a shard but its record."""
    some: list[bytes] = []
    async for key in link.redis.scan_iter(f"{no_pattern(prefix)}*", count=_STEP):
        if key != record.encode():
            some.append(key)
        if len(some) >= _STEP:
            yield some
            some = []
    if some:
        yield some


async def _announce(links: Links, job: str, root: Root, placement: list[str]) -> None:
    """Tell all servers where the shards are: those that join later need not ask around."""
    values = {"placement": msgspec.json.encode(placement), "made": 1}
    for server in dict.fromkeys([*links.names, *filter(None, root.placement)]):
        link = await links.link(server)
        await write_root(link.redis, job, root.settings, placement, root.secret)
        await link.redis.hset(root_key(job), mapping=values)
