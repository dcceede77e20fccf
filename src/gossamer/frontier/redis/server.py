"""One Redis server: connecting (also through Sentinel), its version, rights, and errors, and the record of a job."""

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


SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
_PORT = 26379
_PATIENCE_SECONDS = 1.0
"""A sentinel that does not answer within this time is passed over: there are others."""
_SENTINEL_OWN = {"sentinel_username": "username", "sentinel_password": "password"}


def connect_sentinel(url: str, **options: Any) -> Redis:
    """A client of the primary that the sentinels at this address name; nothing is sent yet.

    The address is redis+sentinel://user:password@host:port,host:port/SERVICE/DB. User and password are those of the
    servers; where the sentinels ask for one too, it is in ?sentinel_password=. With rediss+sentinel:// all talk is TLS.
    """
    try:
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        service, _, number = parts.path.strip("/").partition("/")
        sentinels = [_sentinel_place(host) for host in hosts.split(",")]
        # Their own parser knows what may stand behind the question mark.
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
    # Said without the address: it may hold a password.
    return ConfigError(
        "the frontier's address is not one that sentinels have",
        hint="write redis+sentinel://user:password@host:26379,host:26379,host:26379/SERVICE/number",
    )


class _Sentinels(Sentinel):
    """Sentinels whose errors can be shown: those of the library name the clients with all their arguments."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        # All are asked: one that has not heard of a fail-over yet would lead us back to the old primary.
        asked = await asyncio.gather(*map(self._primaries, self.sentinels))
        heard = [primaries for primaries in asked if primaries is not None]
        known = [primaries[service_name] for primaries in heard if service_name in primaries]
        good = [state for state in known if self.check_master_state(state, service_name)]
        if good:
            last = max(good, key=lambda state: int(state["config-epoch"]))
            return last["ip"], last["port"]
        raise MasterNotFoundError(
            f"{len(heard)} of {len(asked)} sentinels answer, and none has a primary for {service_name!r} now"
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
    """The connections to the primary; with them go those to the sentinels."""

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
"""Every command of the script, with arguments that do no harm."""
COMMANDS = (
    *(probe.split()[0].lower() for probe in _PROBES),
    "eval", "evalsha", "ping", "psubscribe", "punsubscribe", "scan", "type",
)  # fmt: skip
"""What a user must be allowed to run; `info` is asked for too, and done without where it is refused."""
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
    """Refuse options of an address that cannot work; nothing is sent."""
    pool = redis.connection_pool
    for name in _FILES:
        path = pool.connection_kwargs.get(name)
        if path and not Path(path).exists():
            raise ConfigError(f"{name}: {path} does not exist", hint="it is named in the frontier's address")
    try:
        pool.make_connection()
    except (TypeError, ValueError, faults.RedisError):
        # Said without its words: they may hold a piece of the address.
        raise ConfigError(
            "the frontier's address has an option that the redis package does not take",
            hint="after the ? may stand what redis.Redis() takes, as in ?ssl_ca_certs=/etc/ssl/our-ca.pem",
        ) from None


def refusal(text: str) -> FrontierError | None:
    """What the words of a server or of a handshake mean, if they are those of a refusal."""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        reason = text.partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or "not trusted"
        return Unavailable(
            f"the certificate of Redis is refused: {reason}",
            hint="name the authority that signed it: rediss://...?ssl_ca_certs=/path/ca.pem, or SSL_CERT_FILE",
        )
    if "[SSL" in text:
        return Unavailable(
            "Redis and we find no common TLS: " + text[text.index("[SSL") :].partition(" (_ssl")[0],
            hint="does it want a certificate of ours? Then add ?ssl_certfile=...&ssl_keyfile=... to the address",
        )
    found = _COMMAND.search(text)
    if found is not None:
        return _may_not(f"run {found[1].upper()}", f"+{found[1]}")
    if _IN_SCRIPT in text:
        # Redis 7.0 does not say which.
        return _may_not("run a command that is needed", "+...")
    if "access one of the keys" in text or "access a key" in text or "access at least one of the keys" in text:
        return _may_not("use the keys gossamer:*", KEYS)
    if "the channel" in text or "access a channel" in text:
        return _may_not(f"use the channels {CHANNELS[1:]}", CHANNELS)
    return None


async def check_rights(redis: Any) -> None:
    """Refuse a user who may not run all that the script needs: it would stop half way, and Redis undoes nothing."""
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
