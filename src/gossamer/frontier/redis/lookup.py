"""Reads sites and URLs of a job in Redis.

These reads run outside of scripts, so that a long answer does not block the server. What they show may therefore be of
slightly different moments, and a request that moves meanwhile may be missed. They write nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from gossamer import urls
from gossamer.frontier.packing import revisit_of, unpack
from gossamer.frontier.redis.queue_blocks import unfold
from gossamer.frontier.redis.server import faults, no_pattern, translate
from gossamer.redact import masked_memo
from gossamer.settings import Settings

_LOOKED_AT = 1000
"""Number of sites examined, in the order in which they are ready: Redis keeps no order by queue length."""
_TOGETHER = 250
_STEP = 1000
_SCANNED = 500
_SLOT = b"\xfe"
"""First byte of an element of `later:SITE` that names a slot of revisits; an entry starts below 0x80."""


async def sites(redis: Any, key: str, limit: int) -> list[Mapping[str, Any]]:
    """The sites with the longest queues, among those that are ready next."""
    prefix = key.removesuffix("job")
    try:
        now = await _now(redis, key)
        names: dict[str, None] = {}
        regions = {b"", *(await redis.smembers(f"{prefix}regions"))}
        for region in sorted(regions):
            for member in await redis.zrange(f"{prefix}ready:{region.decode()}", 0, _LOOKED_AT - 1):
                names[member.decode().partition(" ")[2]] = None
        found: list[Mapping[str, Any]] = [*await _described(redis, prefix, list(names)[:_LOOKED_AT], now)]
    except faults.RedisError as error:
        raise translate(error, "") from error
    return sorted(found, key=lambda site: -site["queued"])[:limit]


async def every_site(redis: Any, key: str, cursor: str, limit: int) -> tuple[list[Mapping[str, Any]], str]:
    """About `limit` of all sites in the order of the server's SCAN, and the next cursor."""
    prefix = f"{key.removesuffix('job')}site:"
    names: dict[str, None] = {}
    place = int(cursor or 0) % (1 << 64)
    try:
        while True:
            place, keys = await redis.scan(place, match=f"{no_pattern(prefix)}*", count=_SCANNED)
            names |= dict.fromkeys(bytes(one).decode("utf-8", "replace")[len(prefix) :] for one in keys)
            if not int(place) or len(names) >= limit:
                break
        now = await _now(redis, key)
        found: list[Mapping[str, Any]] = [*await _described(redis, key.removesuffix("job"), list(names), now)]
    except faults.RedisError as error:
        raise translate(error, "") from error
    return found, str(int(place)) if int(place) else ""


async def _now(redis: Any, key: str) -> float:
    """The time of the store, computed as the scripts do."""
    clock, skew = await redis.hmget(key, "clock", "skew")
    seconds, micro = await redis.time() if clock is None else (float(clock), 0)
    return float(seconds) + float(micro) / 1e6 + float(skew or 0)


async def inspect(redis: Any, key: str, name: str) -> Mapping[str, Any] | None:
    """Everything that is stored about one site; None if it was never seen."""
    prefix = key.removesuffix("job")
    try:
        if not await redis.exists(f"{prefix}site:{name}"):
            return None
        now = await _now(redis, key)
        found = await _site(redis, prefix, name, now)
        raw, robots, memo = [await redis.hgetall(f"{prefix}{kind}:{name}") for kind in ("site", "robots", "memo")]
        most, number = await redis.hmget(key, "share_most", "share_number")
    except faults.RedisError as error:
        raise translate(error, "") from error
    record = {field.decode(): value.decode() for field, value in raw.items()}
    lanes = max(1, int(record.get("lanes", 1)))
    age = int(number or 0) - int(record.get("sh", 0))
    used = int(record.get("sn", 0)) if age <= 1 else 0
    used += int(record.get("sb", 0)) if age == 0 else 0
    ready = (
        float(record.get(f"e{lane}", 0)) + found["delay"] * lanes
        if record.get(f"t{lane}", "0") != "0"
        else max(float(record.get(f"n{lane}", 0)), float(record.get("hold", 0)))
        for lane in range(lanes)
    )
    return found | {
        "lanes": lanes,
        "budget": int(record["budget"]) if "budget" in record else None,
        "ready_in": max(0.0, min(ready) - now),
        "share_left": max(0, int(most or 0) - used) if most else None,
        "robots": {origin.decode(): packed for origin, packed in robots.items()},
        "memo": masked_memo({field.decode(): msgspec.json.decode(value) for field, value in memo.items()}),
    }


async def _site(redis: Any, prefix: str, name: str, now: float) -> dict[str, Any]:
    (found,) = await _described(redis, prefix, [name], now)
    return found


async def _described(redis: Any, prefix: str, names: Sequence[str], now: float) -> list[dict[str, Any]]:
    """Describe sites for people, with two round trips for each `_TOGETHER` sites."""
    found: list[dict[str, Any]] = []
    for start in range(0, len(names), _TOGETHER):
        some = names[start : start + _TOGETHER]
        records, lengths = redis.pipeline(transaction=False), redis.pipeline(transaction=False)
        records.hget(f"{prefix}job", "delay")
        for name in some:
            records.hgetall(f"{prefix}site:{name}")
            records.zrange(f"{prefix}ranks:{name}", 0, -1)
        default, *rows = await records.execute()
        for name, ranks in zip(some, rows[1::2], strict=True):
            lengths.llen(f"{prefix}front:{name}")
            lengths.llen(f"{prefix}suspects:{name}")
            for rank in ranks:
                lengths.llen(f"{prefix}queue:{name}:{rank.decode()}")
        counted = iter(await lengths.execute())
        for name, raw, ranks in zip(some, rows[::2], rows[1::2], strict=True):
            waiting = sum(islice(counted, 2 + len(ranks)))
            record = {field.decode(): value.decode() for field, value in raw.items()}
            found.append(_view(name, record, waiting, float(default or 0), now))
    return found


def _view(name: str, record: Mapping[str, str], waiting: int, default: float, now: float) -> dict[str, Any]:
    return {
        "site": name,
        "queued": waiting + int(record.get("folded", 0)),
        "leased": int(record.get("leased", 0)),
        "stored": int(record.get("stored", 0)),
        "delay": max(float(record.get("own", default)), float(record.get("asked", 0))),
        "hold": max(float(record.get("hold", 0)) - now, 0.0),
        "closed": record.get("closed", ""),
        "region": record.get("region", ""),
        "workers": [record[f"w{lane}"] for lane in range(64) if record.get(f"t{lane}", "0") != "0"],
    }


async def lookup(
    redis: Any, key: str, url: str, number: int, secret: bytes, settings: Settings
) -> Mapping[str, Any] | None:
    """Where the URL with this key waits, or that it is known; None if it was never seen.

    Searches the batches, queues, and blocks of the site, which takes time in proportion to its queue."""
    prefix = key.removesuffix("job")
    site = urls.site(url, by=settings.site_by)
    try:
        level, split = await redis.hmget(key, "seen_level", "seen_split")
        size, digits = 1 << int(level or 0), number % 1_000_000_000
        bucket = digits % size
        if bucket < int(split or 0):
            bucket = digits % (2 * size)
        if not await redis.sismember(f"{prefix}seen:{bucket}", number):
            return None
        about = await redis.hgetall(f"{prefix}site:{site}")
        record = {field.decode(): value.decode() for field, value in about.items()}
        found: dict[str, Any] = {"url": url, "key": number, "site": site, "region": record.get("region", "")}
        found |= await _url_state(redis, prefix, site, number.to_bytes(8, "big"), record, secret)
        now = await _now(redis, key)
    except faults.RedisError as error:
        raise translate(error, "") from error
    if "due" in found:
        found["due_in"] = max(0.0, found["due"] - now)
    if "lease_ends" in found:
        found["lease_ends_in"] = max(0.0, found.pop("lease_ends") - now)
    return found


async def _url_state(
    redis: Any, prefix: str, site: str, key: bytes, record: Mapping[str, str], secret: bytes
) -> dict[str, Any]:
    for lane in range(max(1, int(record.get("lanes", 1)))):
        entry = await redis.hget(f"{prefix}batch:{site}:{lane}", key)
        if entry is not None:
            ends = float(record.get(f"e{lane}", 0))
            worker = record.get(f"w{lane}", "")
            return {**_request(entry[4:], site), "state": "leased", "worker": worker, "lease_ends": ends}
    queued: dict[str, Any] = {"state": "queued"}
    lists = {f"{prefix}front:{site}": queued, f"{prefix}suspects:{site}": queued}
    async for entry, due in redis.zscan_iter(f"{prefix}later:{site}"):
        if entry.startswith(key):
            return {**_request(entry, site), "state": revisit_of(entry) or "delayed", "due": due}
        if entry.startswith(_SLOT):
            # The last bit of a slot's rank says what its requests came to.
            rank = entry[1:].decode("utf-8", "replace")
            lists[f"{prefix}queue:{site}:{rank}"] = {"state": "failed" if rank[-1:] in "13579" else "done", "due": due}
    for rank in await redis.zrange(f"{prefix}ranks:{site}", 0, -1):
        lists[f"{prefix}queue:{site}:{rank.decode()}"] = queued
    for name, state in lists.items():
        for first in range(0, await redis.llen(name), _STEP):
            for element in await redis.lrange(name, first, first + _STEP - 1):
                for entry in entries_in(element, site, secret):
                    if entry.startswith(key):
                        return {**_request(entry, site), **state}
    # Of a finished URL only the key is stored.
    return {"state": "known"}


def entries_in(element: bytes, site: str, secret: bytes) -> list[bytes]:
    """The entries in an element of a queue, an entry or a block; none if the block is unreadable."""
    try:
        return unfold(element, site, secret)
    except ValueError:
        # `unfold_blocks` logs and parks it when its turn comes.
        return []


def _request(entry: bytes, site: str) -> dict[str, Any]:
    request = unpack(entry, site)
    found = {
        "depth": request.depth, "priority": request.priority, "tries": request.tries, "referrer": request.referrer,
        "request": msgspec.to_builtins(request),
    }  # fmt: skip
    return found if request.state is None else {**found, "visit": request.state}
