"""A job's record in Redis: how it is made, read and checked, and what the errors of the server mean."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from gossamer import settings as configuration
from gossamer.errors import UNREACHED, ConfigError, FrontierError, JobMissing, Leaving, SchemaMismatch, Unavailable
from gossamer.extras import unusable
from gossamer.frontier.entries import as_texts
from gossamer.frontier.share import SiteQuota
from gossamer.settings import Settings

try:
    from redis import asyncio as client
    from redis import exceptions as faults
    from redis.asyncio.connection import parse_url
    from redis.asyncio.retry import Retry
    from redis.backoff import ExponentialBackoff

    from gossamer.frontier.redis_refusals import check_options, refusal
    from gossamer.frontier.redis_sentinel import SCHEMES as SENTINEL_SCHEMES
    from gossamer.frontier.redis_sentinel import connect_sentinel
except ImportError as missing:
    raise unusable("redis", "the frontier in Redis", missing) from missing

__all__ = ["client", "faults"]

log = logging.getLogger("gossamer.frontier")
FORMAT = 2
UNKNOWN_RUN = "unknown"
"""The run of every server to a user who may not ask."""
_OLDEST = 7
_REFUSED = (faults.AuthenticationError, faults.NoPermissionError)
_PASSING = (
    faults.ConnectionError, faults.TimeoutError, faults.ReadOnlyError, faults.OutOfMemoryError,
    faults.TryAgainError, faults.ClusterError, faults.ClusterDownError, faults.MovedError, faults.SlotNotCoveredError,
)  # fmt: skip
_UNREACHED = (faults.ConnectionError, faults.TimeoutError)
_PASSING_WORDS = ("LOADING", "BUSY", "READONLY", "MISCONF", "OOM", "MASTERDOWN", "NOREPLICAS", "UNKILLABLE", "TRYAGAIN")
KINDS = {
    "job": "hash", "seen": "set", "site": "hash", "robots": "hash", "memo": "hash", "ranks": "zset", "queue": "list",
    "front": "list", "suspects": "list", "later": "zset", "batch": "hash", "held": "hash", "ready": "zset",
    "holds": "zset", "lapses": "hash", "regions": "set", "dues": "zset", "workers": "hash", "beats": "zset",
    "boxes": "hash", "outbox": "list",
}  # fmt: skip
"""The types of the keys, by the first word after the job's prefix."""


def job_key(job: str, shard: int = 0) -> str:
    """The key of a shard's record; its hash tag keeps all keys of the shard in one slot."""
    return f"gossamer:{{{_quoted(job)}:{shard}}}:job"


def root_key(job: str) -> str:
    """The key of the record of the whole job."""
    return f"gossamer:{{{_quoted(job)}}}:root"


def _quoted(job: str) -> str:
    # So that no name can hold a brace, a colon or a line end.
    return quote(job, safe="", errors="surrogatepass")


def connect(url: str, **place: Any) -> client.Redis:
    """A client of this server, or of another `place` with the same options; nothing is sent yet."""
    try:
        if url.startswith(SENTINEL_SCHEMES):
            redis = connect_sentinel(url, **_options())
        elif place:
            known: Any = parse_url(url)
            redis = client.Redis(connection_pool=client.ConnectionPool(**{**_options(), **known, **place}))
        else:
            redis = client.Redis.from_url(url, **_options())
    except ValueError:
        raise _wrong_address() from None
    check_options(redis)
    return redis


def _options() -> dict[str, Any]:
    # What a broken connection cut off is sent again, since all calls may be repeated; a slow answer is not.
    return {
        "socket_timeout": 10.0,
        "socket_connect_timeout": 5.0,
        "health_check_interval": 15,
        # The client's own limit, 100, is less than a job may have shards, and is an error, not a wait.
        "max_connections": 4096,
        "retry": Retry(ExponentialBackoff(cap=0.5, base=0.05), 2, supported_errors=(faults.ConnectionError,)),
    }


def _wrong_address() -> ConfigError:
    # Said without its words: they may hold a piece of the password.
    return ConfigError(
        "the frontier's address is not one that Redis has",
        hint="write redis://user:password@host:port/number, with %2F for a / in the password",
    )


async def check_server(connection: client.Redis) -> str:
    """Refuse a server that is too old, or that throws away what it has no room for; its mode if it is a good one."""
    try:
        server, memory = await connection.info("server"), await connection.info("memory")
    except faults.NoPermissionError:
        log.warning("this user may not ask Redis for INFO: its version, its memory policy and restarts are not seen")
        return ""
    version = str(server.get("redis_version", ""))
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < _OLDEST:
        raise FrontierError(f"Redis {version} is too old", hint=f"use Redis {_OLDEST}.0 or newer, or Valkey")
    policy_name = str(memory.get("maxmemory_policy", ""))
    if int(memory.get("maxmemory", 0)) and policy_name.startswith("allkeys"):
        raise FrontierError(
            f"this Redis deletes any key when its memory is full (maxmemory-policy {policy_name}): pages would be lost",
            hint="CONFIG SET maxmemory-policy noeviction",
        )
    return str(server.get("redis_mode", ""))


async def server_run(connection: client.Redis) -> str:
    """The run of a server, in the words of the script: another one once it may have forgotten something."""
    try:
        server, replication = await connection.info("server"), await connection.info("replication")
    except faults.NoPermissionError:
        return UNKNOWN_RUN
    return f"{server['run_id']}-{replication['master_replid']}"


class RedisJobRecord(msgspec.Struct, frozen=True):
    """What a job is, as every server of it knows."""

    settings: Settings
    secret: bytes
    placement: tuple[str, ...]
    """The name of each shard's server, when this was written: a shard that has moved says so itself."""
    is_made: bool


def read_root(record: Mapping[Any, Any], job: str) -> RedisJobRecord:
    """A job's record; JobMissing if there is none."""
    if not record:
        raise JobMissing(
            f"there is no job {job!r} in this Redis", hint="start it with: gossamer crawl --frontier ... --job NAME"
        )
    if record.get(b"format") != str(FORMAT).encode():
        raise other_version(job)
    try:
        settings = configuration.build(msgspec.json.decode(record[b"settings"]))
        placement = msgspec.json.decode(record[b"placement"], type=tuple[str, ...])
        return RedisJobRecord(settings, record[b"secret"], placement, b"made" in record)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise SchemaMismatch(
            f"the record of job {job!r} cannot be read: {error}", hint="was it written by another version of Gossamer?"
        ) from None


async def write_root(
    redis: Any, job: str, settings: Settings, placement: Sequence[str], secret: bytes
) -> RedisJobRecord:
    """Make a job's record, or give an old one new settings; the record as it is then."""
    key = root_key(job)
    first = {"secret": secret, "placement": msgspec.json.encode(placement)}
    values = {"settings": msgspec.json.encode(configuration.dump(settings))}
    # One step: a record that is half made would be taken for one of another version.
    await redis.eval(_WRITE, 1, key, FORMAT, _encode_flat({**first, **values}), _encode_flat(values))
    return read_root(await redis.hgetall(key), job)


async def write_shard(redis: Any, job: str, shard: int, shards: int, settings: Settings) -> None:
    """Make a shard's record, or give an old one new settings."""
    share = SiteQuota(settings)
    values: dict[str, Any] = {
        "strategy": settings.strategy,
        "delay": settings.delay,
        "robots": int(settings.robots),
        "max_deliveries": settings.max_deliveries,
        "lanes": settings.per_site,
        "budget": settings.site_budget or "",
        "recrawl": int(bool(settings.recrawl)),
        "share_most": share.most,
        "share_half": share.half,
    }
    if shards == 1:
        values["max_pages"] = settings.max_pages or ""
    first = {**values, "state": "running", "seen_level": 4, "shard": shard, "shards": shards}
    await redis.eval(_WRITE, 1, job_key(job, shard), FORMAT, _encode_flat(first), _encode_flat(values))


_WRITE = """
local key = KEYS[1]
local first = redis.call('EXISTS', key) == 0
if not first and redis.call('HGET', key, 'format') ~= ARGV[1] then return end
if first then redis.call('HSET', key, 'format', ARGV[1]) end
redis.call('HSET', key, unpack(cmsgpack.unpack(first and ARGV[2] or ARGV[3])))
if redis.call('HGET', key, 'state') == 'stopping' then redis.call('HSET', key, 'state', 'running') end
"""


def _encode_flat(values: Mapping[str, Any]) -> bytes:
    parts = [part for name, value in values.items() for part in (name, value)]
    return as_texts([part if isinstance(part, bytes) else str(part).encode() for part in parts])


def other_version(job: str) -> SchemaMismatch:
    """The error of a record in another format."""
    return SchemaMismatch(
        f"job {job!r} was written by another version of Gossamer", hint="use the version that made it"
    )


def translate(error: Exception, job: str) -> FrontierError:
    """What a driver's error means; the address, which may hold a password, is never in it."""
    text = str(error).partition(" script: ")[0].splitlines()[0] if str(error) else type(error).__name__
    if "JOBMISSING" in text:
        return JobMissing(
            f"job {job!r} is not in Redis any more", hint="was Redis emptied, or restarted without its data?"
        )
    if "OTHERFORMAT" in text:
        return other_version(job)
    if "DAMAGED" in text:
        return FrontierError(
            f"job {job!r} is damaged: {text.partition('DAMAGED ')[2]}", hint="did something else write to this Redis?"
        )
    if text.startswith("PARCELS"):
        return Leaving(f"Redis: {text.partition(' ')[2]}")
    refused = refusal(text)
    if refused is not None:
        return refused
    if isinstance(error, _REFUSED) or text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
        return FrontierError("Redis refused the user or the password", hint="check the frontier's address")
    if text.startswith(_PASSING_WORDS):
        return Unavailable(f"Redis: {text}")
    if isinstance(error, _PASSING):
        return Unavailable(f"Redis: {text}", hint=UNREACHED if isinstance(error, _UNREACHED) else "")
    return FrontierError(f"Redis: {text}")


async def explain(error: faults.RedisError, connection: Any, job: str, key: str) -> FrontierError:
    """What an error means; where a key is not of the kind that it must be, which one that is."""
    if "WRONGTYPE" in str(error) and connection is not None:
        prefix = key[: -len("job")]
        try:
            async for found in connection.scan_iter(f"{no_pattern(prefix)}*", count=1000):
                key = bytes(found).decode("utf-8", "backslashreplace")
                kind = KINDS.get(key[len(prefix) :].partition(":")[0])
                if await connection.type(found) != (kind or "").encode():
                    return FrontierError(
                        f"job {job!r} is damaged: {key} is not a {kind}", hint="did something else write to this Redis?"
                    )
        except faults.RedisError:
            pass
    return translate(error, job)


def no_pattern(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text)
