"""The stream sink: pages and items as entries of a Redis or Valkey stream (write-only)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from gossamer.errors import ConfigError, SinkError, SinkFull
from gossamer.extras import unusable
from gossamer.model import Record
from gossamer.redact import masked_address
from gossamer.settings import expand
from gossamer.storage.base import Opening

try:
    from redis import asyncio as client
    from redis import exceptions as faults
except ImportError as missing:
    raise unusable("redis", "the sink in a stream", missing) from missing


STREAM = "gossamer"
RECENT = 100_000
"""Number of recent visits that the server remembers, to drop duplicates."""
_PASSING = ("LOADING", "BUSY", "READONLY", "MISCONF", "OOM", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN", "CLUSTERDOWN")
_encode = msgspec.json.Encoder().encode
# One script, so that recording a visit and adding it to the stream is atomic.
_ADD = """
local now = redis.call('TIME')
local at = now[1] * 1000 + math.floor(now[2] / 1000)
local added = 0
for i = 3, #ARGV, 6 do
    if redis.call('ZADD', KEYS[2], 'NX', at, ARGV[i] .. ':' .. ARGV[i + 1]) == 1 then
        redis.call('XADD', KEYS[1], '*', 'key', ARGV[i], 'token', ARGV[i + 1], 'url', ARGV[i + 2],
            'page', ARGV[i + 3], 'items', ARGV[i + 4], 'rejected', ARGV[i + 5])
        added = added + 1
    end
end
if tonumber(ARGV[1]) > 0 then
    redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[1])
end
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1 - tonumber(ARGV[2]))
return added
"""
# Redis serves no other client while a script runs.
_AT_ONCE = 100


class StreamSink:
    """One entry a visit: `key`, `token`, `url`, and as JSON `page`, `items`, and `rejected`.

    Any number of workers may share it. A visit is added once, even if the call is repeated after a broken connection
    or by another process, as long as it is among the last `recent`. Its durability depends on the server's settings
    (appendonly, appendfsync)."""

    def __init__(self, url: str, stream: str, *, longest: int = 0, recent: int = RECENT) -> None:
        self._server = masked_address(url)
        self._keys = (stream, f"{{{stream}}}:recent")
        self._longest, self._recent = longest, recent
        try:
            self._redis = client.Redis.from_url(
                url, socket_timeout=10.0, socket_connect_timeout=5.0, health_check_interval=15
            )
            self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        except (TypeError, ValueError):
            # Without the error's text, which may contain part of the password.
            raise ConfigError(
                "sink: invalid address of a Redis stream",
                hint="write redis+stream://user:password@host:port/number?stream=NAME&maxlen=N",
            ) from None
        self._add = self._redis.register_script(_ADD)

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        try:
            for start in range(0, len(records), _AT_ONCE):
                values: list[Any] = [self._longest, self._recent]
                for record in records[start : start + _AT_ONCE]:
                    page = record.page
                    values += (record.key, record.token, page.url)
                    values += (_encode(page), _encode(record.items), _encode(record.rejected))
                await self._add(keys=self._keys, args=values)
        except faults.RedisError as error:
            raise self._translate_error(error) from error
        except OSError as error:
            raise SinkFull(f"{self._server}: {error}", hint="is the server up?") from error
        return {}

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Do nothing: an uncommitted visit comes again, with a higher token."""

    async def aclose(self) -> None:
        try:
            await self._redis.aclose()
        except (faults.RedisError, OSError):
            # No data is pending on the connection.
            pass

    def _translate_error(self, error: faults.RedisError) -> SinkError:
        text = str(error)[:300]
        passes = isinstance(error, faults.ConnectionError | faults.TimeoutError) or text.startswith(_PASSING)
        if isinstance(error, faults.AuthenticationError | faults.NoPermissionError):
            passes = False
        passes = passes or isinstance(error, faults.OutOfMemoryError | faults.ReadOnlyError)
        return (SinkFull if passes else SinkError)(
            f"{self._server}: {text}", hint="is the server up, with memory left?"
        )


def open_stream(opening: Opening) -> StreamSink:
    """Open the sink `redis+stream://host:port/0?stream=NAME&maxlen=N`."""
    scheme = opening.kind.removesuffix("+stream") or "redis"
    url, _, query = expand(f"{scheme}:{opening.target}", source="sink").partition("?")
    options = dict(parse_qsl(query))
    stream = options.pop("stream", STREAM)
    if not stream or {"{", "}"} & set(stream):
        raise ConfigError(f"sink: {stream!r} is not a valid stream name", hint="use a name without braces")
    try:
        longest, recent = int(options.pop("maxlen", 0)), int(options.pop("recent", RECENT))
    except ValueError:
        raise ConfigError("sink: maxlen and recent are numbers", hint="as in ?stream=pages&maxlen=1000000") from None
    return StreamSink(f"{url}?{urlencode(options)}" if options else url, stream, longest=longest, recent=recent)
