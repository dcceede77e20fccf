"""One Redis server: connecting (also through Sentinel), its version, rights, and errors, and the record of a job.

Three questions are answered before a worker relies on a server:

- Can it lose what it accepted? `check_server` refuses a memory policy that evicts any key: an evicted queue is a loss
  that no run number shows. `frontier/redis/check.py` reports persistence and replicas, which are the operator's choice.
- May this user run every command of the scripts? `check_rights` tries each of them. Redis does not roll back a script
  that fails in the middle, so a right that is missing must show before the first call, not during it (P3).
- Which run of the server is this? `server_run` joins the run id, which changes with every start, and the replication
  id, which changes with every promotion. Whenever the text differs from the stored one, the server may have forgotten
  its last seconds. Without the right to run INFO, restarts go unnoticed.

A job has two kinds of records. The root record is on every server: format, settings, secret, and the placement of the
shards. A shard's record is beside its data. Each is written by one script, because a half-written record would be read
as one of another version. The root's `made` field is set last: until then the shards may not all exist, and a client
that opens the job with settings creates those that are missing; once it is set, a missing shard is an error.

Errors fall into three groups. `Unavailable` passes by itself, and workers retry it: broken connections, a server that
is loading, full, or read-only after a fail-over. `JobMissing` and `SchemaMismatch` say what the record lacks.
Everything else is a `FrontierError` that ends the worker. No message contains the address, which may hold a
password."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from gossamer import settings as configuration
from gossamer.errors import UNREACHED, ConfigError, FrontierError, JobMissing, Leaving, SchemaMismatch, Unavailable
from gossamer.extras import unusable
from gossamer.frontier.packing import as_texts
from gossamer.frontier.policy import SiteQuota
from gossamer.settings import Settings

try:
    from redis import asyncio as client
    from redis import exceptions as faults
    from redis.asyncio import Redis
    from redis.asyncio.connection import parse_url
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
    from redis.backoff import ExponentialBackoff, NoBackoff
    from redis.exceptions import AuthenticationError, ConnectionError, TimeoutError
except ImportError as missing:
    raise unusable("redis", "the frontier in Redis", missing) from missing


__all__ = ["client", "faults"]

log = logging.getLogger("gossamer.frontier")
FORMAT = 2
UNKNOWN_RUN = "unknown"
"""The run of a server whose user lacks the right to run INFO."""
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
"""The type of each key, by the first word after the shard's prefix: names the damaged key after a WRONGTYPE error."""


def job_key(job: str, shard: int = 0) -> str:
    """The key of a shard's record. Its hash tag keeps all keys of the shard in one slot, so one script may use them."""
    return f"gossamer:{{{_quoted(job)}:{shard}}}:job"


def root_key(job: str) -> str:
    """The key of the record of the whole job."""
    return f"gossamer:{{{_quoted(job)}}}:root"


def _quoted(job: str) -> str:
    # A name may not contain a brace, colon, or line end: it would change the hash tag or the prefix of the keys.
    return quote(job, safe="", errors="surrogatepass")


def connect(url: str, **place: Any) -> client.Redis:
    """Make a client of this server, or of another `place` with the same options, without sending anything yet."""
    try:
        if url.startswith(SCHEMES):
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
    # Repeat a call whose connection broke, which scripts are written for, but not after a timeout: the server is slow.
    return {
        "socket_timeout": 10.0,
        "socket_connect_timeout": 5.0,
        "health_check_interval": 15,
        # A job may have more shards than the client's default limit of 100, which raises instead of waiting.
        "max_connections": 4096,
        "retry": Retry(ExponentialBackoff(cap=0.5, base=0.05), 2, supported_errors=(faults.ConnectionError,)),
    }


def _wrong_address() -> ConfigError:
    # Without the parser's message, which may contain a part of the password.
    return ConfigError(
        "the frontier's address is not a valid Redis address",
        hint="write redis://user:password@host:port/number, with %2F for a / in the password",
    )


async def check_server(connection: client.Redis) -> str:
    """Refuse a server that is too old or that evicts keys when its memory is full; return its mode.

    The mode is empty where the user may not run INFO: then nothing can be checked, and a warning says so."""
    try:
        server, memory = await connection.info("server"), await connection.info("memory")
    except faults.NoPermissionError:
        log.warning(
            "this user may not run INFO: cannot check the version and memory policy of Redis, or notice restarts"
        )
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
    """The run of a server, as `run_now` of the scripts has it: changes when it may have forgotten something."""
    try:
        server, replication = await connection.info("server"), await connection.info("replication")
    except faults.NoPermissionError:
        return UNKNOWN_RUN
    return f"{server['run_id']}-{replication['master_replid']}"


class RedisJobRecord(msgspec.Struct, frozen=True):
    """The root record of a job, which every server of the job has."""

    settings: Settings
    secret: bytes
    placement: tuple[str, ...]
    """The server of each shard when this was written. It is a first guess: a shard that moved names its new server."""
    is_made: bool


def read_root(record: Mapping[Any, Any], job: str) -> RedisJobRecord:
    """Decode a job's root record; JobMissing if it is empty."""
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
    """Create a job's root record, or update the settings of an existing one; return the record as it is then.

    The secret and the placement of an existing record stay. Two clients that create a job at once therefore get the
    same secret, provided that they ask the same server first."""
    key = root_key(job)
    first = {"secret": secret, "placement": msgspec.json.encode(placement)}
    values = {"settings": msgspec.json.encode(configuration.dump(settings))}
    # One script: a half-written record would be taken for one of another version.
    await redis.eval(_WRITE, 1, key, FORMAT, _encode_flat({**first, **values}), _encode_flat(values))
    return read_root(await redis.hgetall(key), job)


async def write_shard(redis: Any, job: str, shard: int, shards: int, settings: Settings) -> None:
    """Create a shard's record, or update the settings of an existing one; a stopping job runs again."""
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
    """The error for a record in another format."""
    return SchemaMismatch(
        f"job {job!r} was written by another version of Gossamer", hint="use the version that made it"
    )


def translate(error: Exception, job: str) -> FrontierError:
    """The error of ours for a driver's error, without the address, which may contain a password.

    Scripts report conditions of their own by the first word of an error: JOBMISSING, OTHERFORMAT, DAMAGED, PARCELS."""
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
    """Like `translate`; for a WRONGTYPE error, also search for the key whose type is wrong and name it."""
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


SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
_PORT = 26379
_PATIENCE_SECONDS = 1.0
"""Seconds until a silent sentinel is skipped; the others can answer."""
_SENTINEL_OWN = {"sentinel_username": "username", "sentinel_password": "password"}


def connect_sentinel(url: str, **options: Any) -> Redis:
    """Make a client of the primary that the sentinels at this address name, without sending anything yet.

    The address is redis+sentinel://user:password@host:port,host:port/SERVICE/DB. User and password belong to the
    servers; if the sentinels need a password too, give ?sentinel_password=. With rediss+sentinel:// everything uses
    TLS.
    """
    try:
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        service, _, number = parts.path.strip("/").partition("/")
        sentinels = [_sentinel_place(host) for host in hosts.split(",")]
        # The parser of the library knows the options that may follow the question mark.
        found: dict[str, Any] = {**parse_url(f"redis://{user}{at}localhost/{int(number or 0)}?{parts.query}")}
    except ValueError:
        raise _wrong_sentinel_address() from None
    if not service:
        raise _wrong_sentinel_address()
    for name in ("host", "port", "path", "connection_class"):
        found.pop(name, None)
    watchers = {ours: found.pop(theirs) for theirs, ours in _SENTINEL_OWN.items() if theirs in found}
    watchers |= {name: value for name, value in found.items() if name.startswith("ssl_")}
    secure = {"ssl": True} if parts.scheme == "rediss+sentinel" else {}
    manager = _Sentinels(  # type: ignore[no-untyped-call]
        sentinels,
        sentinel_kwargs={
            "socket_timeout": _PATIENCE_SECONDS,
            "socket_connect_timeout": _PATIENCE_SECONDS,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            **watchers,
            **secure,
        },
    )
    client: Redis = manager.master_for(unquote(service), connection_pool_class=_Pool, **{**options, **found, **secure})
    return client


def _sentinel_place(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    return unquote(parts.hostname), parts.port or _PORT


def _wrong_sentinel_address() -> ConfigError:
    # Without the address, which may contain a password.
    return ConfigError(
        "the frontier's address is not a valid Sentinel address",
        hint="write redis+sentinel://user:password@host:26379,host:26379,host:26379/SERVICE/number",
    )


class _Sentinels(Sentinel):
    """Sentinels whose errors can be shown: those of the library print all arguments, passwords included."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        # Ask all of them and follow the highest config-epoch. A sentinel that has not noticed a fail-over still names
        # the old primary, whose writes are lost when it becomes a replica.
        answers = await asyncio.gather(*map(self._primaries, self.sentinels))
        answered = [primaries for primaries in answers if primaries is not None]
        known = [primaries[service_name] for primaries in answered if service_name in primaries]
        good = [state for state in known if self.check_master_state(state, service_name)]
        if good:
            last = max(good, key=lambda state: int(state["config-epoch"]))
            return last["ip"], last["port"]
        raise MasterNotFoundError(
            f"{len(answered)} of {len(answers)} sentinels answer, and none has a primary for {service_name!r} now"
        )

    async def _primaries(self, sentinel: Redis) -> dict[str, Any] | None:
        try:
            found: Any = await sentinel.sentinel_masters()
        except AuthenticationError:
            raise
        except (ConnectionError, TimeoutError):
            return None
        return dict(found)


class _Pool(SentinelConnectionPool):
    """The connections to the primary; closing them also closes those to the sentinels."""

    async def aclose(self) -> None:
        await super().aclose()
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.aclose()


KEYS, CHANNELS = "~gossamer:*", "&gossamer:{*}:news"
_PROBES = (
    "DEL key", "EXISTS key", "HDEL key f", "HEXISTS key f", "HGET key f", "HGETALL key", "HINCRBY key f 1",
    "HKEYS key", "HLEN key", "HMGET key f", "HSET key f 1", "HVALS key", "LINDEX key 0", "LLEN key", "LPOP key",
    "LPUSH key 1", "LRANGE key 0 1", "LREM key 1 m", "LSET key 0 1", "LTRIM key 0 1", "RPOP key", "RPUSH key 1",
    "SADD key 1", "SISMEMBER key 1", "SMEMBERS key", "SREM key 1", "TIME", "ZADD key 1 m", "ZCARD key",
    "ZCOUNT key 0 1", "ZRANGE key 0 1", "ZRANGEBYSCORE key 0 1", "ZREM key m", "ZREMRANGEBYSCORE key 0 1",
    "PUBLISH channel 0",
)  # fmt: skip
"""Every command of the scripts, with harmless arguments."""
COMMANDS = (
    *(probe.split()[0].lower() for probe in _PROBES),
    "eval", "evalsha", "ping", "psubscribe", "punsubscribe", "scan", "type",
)  # fmt: skip
"""The commands that a user needs. INFO is used where it is allowed; without it, restarts go unnoticed."""
_PLACE = "gossamer:{rights}:"
PROBED = f"{_PLACE}probe"
_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_IN_SCRIPT = "The user executing the script can't run this command"
_COMMAND = re.compile(r"no permissions to run the '([^']+)' command")
_PROBE = """
local said = {}
for _, probe in ipairs(cjson.decode(ARGV[1])) do
    for index, word in ipairs(probe) do
        if word == 'key' then probe[index] = KEYS[1] elseif word == 'channel' then probe[index] = KEYS[2] end
    end
    local answer = redis.pcall(unpack(probe))
    said[#said + 1] = probe[1]
    said[#said + 1] = type(answer) == 'table' and answer.err or ''
end
redis.pcall('DEL', KEYS[1])
return said
"""


def check_options(redis: Any) -> None:
    """Refuse options of an address that cannot work, before anything is sent."""
    pool = redis.connection_pool
    for name in _FILES:
        path = pool.connection_kwargs.get(name)
        if path and not Path(path).exists():
            raise ConfigError(f"{name}: {path} does not exist", hint="it is named in the frontier's address")
    try:
        pool.make_connection()
    except (TypeError, ValueError, faults.RedisError):
        # Without the library's message, which may contain a part of the address.
        raise ConfigError(
            "the frontier's address has an option that the redis package does not support",
            hint="options after the ? are those of redis.Redis(), as in ?ssl_ca_certs=/etc/ssl/our-ca.pem",
        ) from None


def refusal(text: str) -> FrontierError | None:
    """The error of ours for a refused certificate, TLS handshake, command, key, or channel; None for other messages."""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        reason = text.partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or "not trusted"
        return Unavailable(
            f"the certificate of Redis is not trusted: {reason}",
            hint="pass its CA certificate: rediss://...?ssl_ca_certs=/path/ca.pem, or SSL_CERT_FILE",
        )
    if "[SSL" in text:
        return Unavailable(
            "the TLS handshake with Redis failed: " + text[text.index("[SSL") :].partition(" (_ssl")[0],
            hint="if it requires a client certificate, add ?ssl_certfile=...&ssl_keyfile=... to the address",
        )
    found = _COMMAND.search(text)
    if found is not None:
        return _may_not(f"run {found[1].upper()}", f"+{found[1]}")
    if _IN_SCRIPT in text:
        # Redis 7.0 does not name the command.
        return _may_not("run a command that is needed", "+...")
    if "access one of the keys" in text or "access a key" in text or "access at least one of the keys" in text:
        return _may_not("use the keys gossamer:*", KEYS)
    if "the channel" in text or "access a channel" in text:
        return _may_not(f"use the channels {CHANNELS[1:]}", CHANNELS)
    return None


async def check_rights(redis: Any) -> None:
    """Refuse a user who lacks a right that the scripts need.

    A script without it would stop in the middle, and Redis does not undo what the script has written. The probe runs
    every command inside a script on a key of its own, because rights may differ inside and outside of scripts."""
    probes = msgspec.json.encode([probe.split() for probe in _PROBES])
    answers = await redis.eval(_PROBE, 2, PROBED, f"{_PLACE}news", probes)
    said = [answer.decode() for answer in answers]
    missing = [name for name, words in zip(said[::2], said[1::2], strict=True) if _is_refused(words)]
    if missing:
        raise _may_not("run " + ", ".join(missing), " ".join(f"+{name.lower()}" for name in missing))
    for words in said[1::2]:
        other = refusal(words)
        if other is not None:
            raise other


def _is_refused(words: str) -> bool:
    return _IN_SCRIPT in words or _COMMAND.search(words) is not None


def _may_not(what: str, rule: str) -> FrontierError:
    return FrontierError(
        f"the user of the frontier's address may not {what} in this Redis",
        hint=f"ACL SETUSER name {rule} (all rights that are needed: docs/howto/fleet-on-redis.md)",
    )
