"""The Redis backend: opens, lists, checks, moves, and removes jobs in Redis or Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import unquote

from gossamer.clock import Clock
from gossamer.errors import ConfigError, JobMissing
from gossamer.frontier.base import FleetBackend, FleetFrontier, Meter, Opener, ShardMove
from gossamer.model import Finding
from gossamer.settings import Settings

_MOST_JOBS, _STEP = 1000, 1000


class RedisBackend(FleetBackend):
    """Jobs in Redis or Valkey, where each call of the frontier is one Lua script."""

    name = "redis"
    forms = ("redis://host:6379/0", "rediss://...", "redis+sentinel://host:26379/SERVICE/0", "unix:///path")
    keeps_in_memory = True

    async def open(self, url: str, job: str, by: Opener) -> FleetFrontier:
        from gossamer.frontier.redis.shards import open_redis

        return await open_redis(url, job, worker=by.worker, region=by.region, shards=by.shards)

    async def create(self, url: str, job: str, settings: Settings, by: Opener) -> FleetFrontier:
        from gossamer.frontier.redis.shards import open_redis

        return await open_redis(url, job, settings, worker=by.worker, region=by.region, shards=by.shards)

    async def list_jobs(self, url: str) -> list[str]:
        from gossamer.frontier.redis.connection import RedisConnections, addresses
        from gossamer.frontier.redis.server import faults, translate

        links, found = RedisConnections(addresses(url)), set()
        try:
            for name in links.names:
                link = await links.link(name)
                for node in await link.nodes():
                    async for key in node.scan_iter("gossamer:{*}:root", count=_STEP):
                        found.add(unquote(bytes(key).decode("ascii", "replace").partition("{")[2].partition("}")[0]))
                        if len(found) >= _MOST_JOBS:
                            break
        except faults.RedisError as error:
            raise translate(error, "") from error
        finally:
            await links.aclose()
        return sorted(found)

    async def remove(self, url: str, job: str) -> bool:
        from gossamer.frontier.redis.connection import RedisConnections, addresses, find_root
        from gossamer.frontier.redis.server import faults, job_key, no_pattern, root_key, translate

        links = RedisConnections(addresses(url))
        try:
            root = await find_root(links, job)
            for server in dict.fromkeys([*([""] if links.is_cluster else links.names), *root.placement]):
                link = await links.link(server)
                for shard in range(len(root.placement)):
                    key = job_key(job, shard)
                    redis = await link.at(key)
                    # SCAN and UNLINK in steps: the server keeps serving others, however large the job is.
                    async for found in redis.scan_iter(f"{no_pattern(key.removesuffix('job'))}*", count=_STEP):
                        await redis.unlink(found)
                # The root record goes last: an interrupted removal still finds the job and can be repeated.
                await (await link.at(root_key(job))).unlink(root_key(job))
        except JobMissing:
            return False
        except faults.RedisError as error:
            raise translate(error, job) from error
        finally:
            await links.aclose()
        return True

    async def check(self, url: str, *, clock: Clock, forget_seconds: float) -> AsyncIterator[Finding]:
        from gossamer.frontier.redis.check import condition

        async for found in condition(url, clock=clock, forget_seconds=forget_seconds):
            yield found

    def meter(self, url: str) -> Meter:
        return _RedisMeter(url)

    async def move_shards(self, url: str, job: str) -> AsyncIterator[ShardMove]:
        """Move every shard to its server among these, and yield where each is."""
        from gossamer.frontier.redis.connection import addresses
        from gossamer.frontier.redis.move import spread
        from gossamer.frontier.redis.server import SCHEMES

        if any(one.startswith(SCHEMES) for one in addresses(url)):
            raise ConfigError(
                "shards behind Sentinel stay where they are", hint="--frontier redis://a:6379/0,redis://b:6379/0"
            )
        async for move in spread(url, job):
            yield ShardMove(move.shard, move.source, move.target, f"{move.keys:,} keys")


class _RedisMeter:
    def __init__(self, url: str) -> None:
        from gossamer.frontier.redis.server import connect

        self._redis = connect(url)

    async def weight(self) -> float:
        while (memory := await self._redis.info("memory")).get("lazyfree_pending_objects"):
            # Deleted keys are freed in the background; measured meanwhile, the job would seem to shrink.
            await asyncio.sleep(0.02)
        return float(memory["used_memory"])

    async def cpu_seconds(self) -> float | None:
        used = await self._redis.info("cpu")
        return float(used["used_cpu_sys"]) + float(used["used_cpu_user"])

    async def aclose(self) -> None:
        await self._redis.aclose()


REDIS = RedisBackend()
