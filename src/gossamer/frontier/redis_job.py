"""A job's record in Redis: how it is made, read and checked, and what the errors of the server mean."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from gossamer import settings as configuration
from gossamer.errors import ConfigError, FrontierError, JobMissing, SchemaMismatch, Unavailable
from gossamer.frontier.entries import as_texts
from gossamer.settings import Settings

try:
    from redis import asyncio as client
    from redis import exceptions as faults
    from redis.asyncio.retry import Retry
    from redis.backoff import ExponentialBackoff
except ImportError as missing:
    raise ConfigError("the redis frontier needs the redis package", hint="pip install 'gossamer[redis]'") from missing

__all__ = ["check_server", "client", "connect", "create", "explain", "faults", "job_key", "read", "translate"]

log = logging.getLogger("gossamer.frontier")
FORMAT = 1
_OLDEST = 7
_REFUSED = (faults.AuthenticationError, faults.NoPermissionError)
_PASSING = (
    faults.ConnectionError, faults.TimeoutError, faults.ReadOnlyError, faults.OutOfMemoryError,
    faults.TryAgainError, faults.ClusterDownError,
)  # fmt: skip
_PASSING_WORDS = ("LOADING", "BUSY", "READONLY", "MISCONF", "OOM", "MASTERDOWN", "NOREPLICAS", "UNKILLABLE")
KINDS = {
    "job": "hash", "seen": "set", "site": "hash", "robots": "hash", "memo": "hash", "ranks": "zset", "queue": "list",
    "front": "list", "suspects": "list", "later": "zset", "batch": "hash", "held": "hash", "ready": "zset",
    "holds": "zset", "lapses": "hash",
}  # fmt: skip
"""The types of the keys, by the first word after the job's prefix."""


def job_key(job: str) -> str:
    """The key of a job's record; its hash tag keeps all keys of the job in one slot."""
    # Quoted, so that no name can hold a brace, a colon or a line end.
    return f"gossamer:{{{quote(job, safe='', errors='surrogatepass')}}}:job"


def connect(url: str) -> client.Redis:
    """A client of this server; nothing is sent yet."""
    try:
        # What a broken connection cut off is sent again, since all calls may be repeated; a slow answer is not.
        return client.Redis.from_url(
            url,
            socket_timeout=10.0,
            socket_connect_timeout=5.0,
            health_check_interval=15,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), 2, supported_errors=(faults.ConnectionError,)),
        )
    except ValueError:
        # Said without its words: they may hold a piece of the password.
        raise ConfigError(
            "the frontier's address is not one that Redis has",
            hint="write redis://user:password@host:port/number, with %2F for a / in the password",
        ) from None


async def check_server(connection: client.Redis) -> None:
    """Refuse a server that is too old, or that throws away what it has no room for."""
    try:
        server, memory = await connection.info("server"), await connection.info("memory")
    except faults.NoPermissionError:
        log.warning("this user may not ask Redis for INFO: its version and its memory policy are not checked")
        return
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


def read(record: Mapping[Any, Any], job: str) -> tuple[Settings, bytes]:
    """The settings and the secret of a job's record."""
    if record.get(b"format") != str(FORMAT).encode():
        raise SchemaMismatch(
            f"job {job!r} was written by another version of Gossamer", hint="use the version that made it"
        )
    try:
        return configuration.build(msgspec.json.decode(record[b"settings"])), record[b"secret"]
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise SchemaMismatch(
            f"the record of job {job!r} cannot be read: {error}", hint="was it written by another version of Gossamer?"
        ) from None


async def create(connection: client.Redis, job: str, settings: Settings) -> None:
    key = job_key(job)
    values: dict[Any, Any] = {
        "settings": msgspec.json.encode(configuration.dump(settings)),
        "strategy": settings.strategy,
        "delay": settings.delay,
        "robots": int(settings.robots),
        "max_deliveries": settings.max_deliveries,
        "lanes": settings.per_site,
        "budget": settings.site_budget or "",
    }
    first = {**values, "secret": secrets.token_bytes(16), "state": "running", "seen_level": 4}
    # One step: a job that is half made would be taken for one of another version.
    await connection.eval(_CREATE, 1, key, FORMAT, _encode_flat(first), _encode_flat(values))


_CREATE = """
local first = redis.call('EXISTS', KEYS[1]) == 0
if not first and redis.call('HGET', KEYS[1], 'format') ~= ARGV[1] then return end
if first then redis.call('HSET', KEYS[1], 'format', ARGV[1]) end
redis.call('HSET', KEYS[1], unpack(cmsgpack.unpack(first and ARGV[2] or ARGV[3])))
if redis.call('HGET', KEYS[1], 'state') == 'stopping' then redis.call('HSET', KEYS[1], 'state', 'running') end
"""


def _encode_flat(values: Mapping[str, Any]) -> bytes:
    parts = [part for name, value in values.items() for part in (name, value)]
    return as_texts([part if isinstance(part, bytes) else str(part).encode() for part in parts])


def translate(error: Exception, job: str) -> FrontierError:
    """What a driver's error means; the address, which may hold a password, is never in it."""
    text = str(error).partition(" script: ")[0].splitlines()[0] if str(error) else type(error).__name__
    if "JOBMISSING" in text:
        return JobMissing(
            f"job {job!r} is not in Redis any more", hint="was Redis emptied, or restarted without its data?"
        )
    if "OTHERFORMAT" in text:
        return SchemaMismatch(
            f"job {job!r} was written by another version of Gossamer", hint="use the version that made it"
        )
    if "DAMAGED" in text:
        return FrontierError(
            f"job {job!r} is damaged: {text.partition('DAMAGED ')[2]}", hint="did something else write to this Redis?"
        )
    if isinstance(error, _REFUSED) or text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
        return FrontierError("Redis refused the user or the password", hint="check the frontier's address")
    if isinstance(error, _PASSING) or text.startswith(_PASSING_WORDS):
        return Unavailable(f"Redis: {text}")
    return FrontierError(f"Redis: {text}")


async def explain(error: faults.RedisError, connection: client.Redis, job: str) -> FrontierError:
    """What an error means; where a key is not of the kind that it must be, which one that is."""
    if "WRONGTYPE" in str(error):
        prefix = job_key(job)[: -len("job")]
        try:
            async for found in connection.scan_iter(f"{_no_pattern(prefix)}*", count=1000):
                key = bytes(found).decode("utf-8", "backslashreplace")
                kind = KINDS.get(key[len(prefix) :].partition(":")[0])
                if await connection.type(found) != (kind or "").encode():
                    return FrontierError(
                        f"job {job!r} is damaged: {key} is not a {kind}", hint="did something else write to this Redis?"
                    )
        except faults.RedisError:
            pass
    return translate(error, job)


def _no_pattern(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text)
