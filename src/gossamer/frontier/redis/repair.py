"""Queues pages again whose records are lost, in Redis.

A key is in the seen set but not in a queue or batch if its page is finished. Repair runs while no worker does: it reads
sets and queues outside of scripts. Every change carries a nonce that the record stores, so that a call repeated by a
broken connection takes effect once: unlike a lease or an outcome, a repeated repair has no token that would stop it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from gossamer.frontier.policy import MOST_LINKS
from gossamer.frontier.redis.connection import RedisConnections
from gossamer.frontier.redis.encoding import PackedLinks, key_arguments
from gossamer.frontier.redis.lookup import entries_in
from gossamer.frontier.redis.queue_blocks import fold_lists
from gossamer.frontier.redis.server import faults, no_pattern, translate
from gossamer.frontier.repair import HasRecord
from gossamer.model import Request

_STEP = 1000
_SLOT = b"\xfe"
_KEY_BYTES = 8


class RedisRepair:
    """The part of a frontier that queues finished pages again. No worker may run meanwhile."""

    secret: bytes
    _links: RedisConnections
    _server: str
    _job: str
    _key: str
    _call: Callable[..., Awaitable[Any]]
    _put: Callable[..., int]
    _sites: Callable[[PackedLinks], dict[str, dict[str, Any]]]

    async def settled(self, requests: Sequence[Request]) -> list[Request]:
        """The requests among these that are finished: their keys are known, and they are neither queued nor leased."""
        found: list[Request] = []
        for some in _parts(requests):
            unknown = set(await self._call("unknown", **key_arguments([request.key for request in some])))
            found += [request for place, request in enumerate(some, 1) if place not in unknown]
        sites = dict.fromkeys(request.site for request in found)
        waiting = {site: await self._waiting_on(site) for site in sites}
        return [request for request in found if request.key not in waiting[request.site]]

    async def requeue(self, requests: Sequence[Request], *, stored: int) -> int:
        """Queue known requests again; the first `stored` of them no longer count as stored. How many were queued."""
        queued, left = 0, stored
        for some in _parts(requests):
            load = PackedLinks(None)
            self._put(some, load)
            new, to_fold = await self._call(
                "requeue", load.entries, stored=min(left, len(some)), links=len(some), nonce=secrets.token_hex(8),
                **load.arguments(), own=self._sites(load),
            )  # fmt: skip
            queued, left = queued + int(new), max(0, left - len(some))
            await fold_lists(self._call, to_fold, self.secret)
        return queued

    async def waiting(self, has_record: HasRecord) -> int:
        """Number of queued or leased requests that have a record; those records do not count as stored pages."""
        return sum([sum(map(has_record, await self._waiting_on(site))) for site in await self._site_names()])

    async def forget_all_but(self, keep: HasRecord) -> int:
        """Remove the keys of finished pages without a record; such a page is new when it is found again. How many."""
        waiting: set[int] = set()
        for site in await self._site_names():
            waiting |= await self._waiting_on(site)
        gone = 0
        redis = await (await self._links.link(self._server)).at(self._key)
        prefix = self._key.removesuffix("job")
        try:
            level, split = await redis.hmget(self._key, "seen_level", "seen_split")
            for bucket in range((1 << int(level or 0)) + int(split or 0)):
                keys = [int(key) for key in await redis.smembers(f"{prefix}seen:{bucket}")]
                lost = [key for key in keys if not keep(key) and key not in waiting]
                if lost:
                    gone += int(await self._call("forget", **key_arguments(lost), nonce=secrets.token_hex(8)))
        except faults.RedisError as error:
            raise translate(error, self._job) from error
        return gone

    async def write_off(self, pages: int) -> None:
        """Lower the count of stored pages."""
        await self._call("write_off", pages=pages, nonce=secrets.token_hex(8))

    async def _site_names(self) -> list[str]:
        redis = await (await self._links.link(self._server)).at(self._key)
        prefix = f"{self._key.removesuffix('job')}site:"
        try:
            found = {bytes(key) async for key in redis.scan_iter(match=f"{no_pattern(prefix)}*", count=_STEP)}
        except faults.RedisError as error:
            raise translate(error, self._job) from error
        return [key.decode("utf-8", "replace")[len(prefix) :] for key in sorted(found)]

    async def _waiting_on(self, site: str) -> set[int]:
        """The keys of all requests of a site that are queued, delayed, or leased."""
        redis = await (await self._links.link(self._server)).at(self._key)
        prefix = self._key.removesuffix("job")
        found: set[int] = set()
        try:
            lanes = int(await redis.hget(f"{prefix}site:{site}", "lanes") or 1)
            for lane in range(max(1, lanes)):
                found |= set(_keys_of(await redis.hkeys(f"{prefix}batch:{site}:{lane}")))
            lists = [f"{prefix}front:{site}", f"{prefix}suspects:{site}"]
            ranks = [rank.decode() for rank in await redis.zrange(f"{prefix}ranks:{site}", 0, -1)]
            for entry in await redis.zrange(f"{prefix}later:{site}", 0, -1):
                if entry.startswith(_SLOT):
                    ranks.append(entry[1:].decode("utf-8", "replace"))
                else:
                    found |= set(_keys_of([entry]))
            for name in [*lists, *(f"{prefix}queue:{site}:{rank}" for rank in ranks)]:
                for first in range(0, await redis.llen(name), _STEP):
                    for element in await redis.lrange(name, first, first + _STEP - 1):
                        found |= set(_keys_of(entries_in(element, site, self.secret)))
        except faults.RedisError as error:
            raise translate(error, self._job) from error
        return found


def _keys_of(entries: Iterable[bytes]) -> Iterator[int]:
    return (int.from_bytes(entry[:_KEY_BYTES], "big") for entry in entries)


def _parts(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    return (requests[first : first + MOST_LINKS] for first in range(0, len(requests), MOST_LINKS))
