"""What is behind a Redis that refuses us: options of the address, certificates, and the rights of the user."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from redis import exceptions as faults

from gossamer.errors import ConfigError, FrontierError, Unavailable

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
