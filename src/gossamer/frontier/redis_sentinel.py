"""A way to Redis by its sentinels: they say which server is the primary at the moment."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ConnectionError, TimeoutError

from gossamer.errors import ConfigError

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
