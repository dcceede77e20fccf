"""Proxy choice for each request: rotation, pinning, health, and telling faults of a proxy from those of a host."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from hashlib import blake2b
from heapq import nlargest
from math import inf
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from pyreqwest.http import Url
from pyreqwest.proxy import ProxyBuilder

from gossamer.clock import Clock
from gossamer.errors import ConfigError, ConnectFailed, FetchError, ProxyFailed
from gossamer.settings import Settings, expand

log = logging.getLogger("gossamer.download")
Blame = Literal["proxy", "host", "either", "unknown"]
DIRECT = "direct"
SCHEMES = ("http", "https", "socks5", "socks5h")
MAX_TRIES = 3
"""Max proxies tried for one request."""
BACKOFF_SECONDS = 10.0
MAX_BACKOFF_SECONDS = 600.0
MAX_FAULTY_HOSTS = 5
"""Number of consecutive hosts that must fail, with no success in between, before the proxy is blamed."""
GIVE_UP_SECONDS = 86_400.0
"""Seconds without any working proxy after which requests fail, so that the crawl can end."""
PROBE_SECONDS = 3.0
_GATEWAY = frozenset((502, 503, 504))
_LINE = re.compile(r"[^\s#]\S*")


class Proxy:
    """A forward proxy and its health; `name` is its address without the credentials."""

    __slots__ = (
        *(
            "_address",
            "_faulty_hosts",
            "credentials",
            "failures",
            "host",
            "name",
            "on_trial",
            "port",
            "ready_at",
            "scheme",
        ),
        "speaks_http",
    )

    def __init__(self, address: str) -> None:
        url = _url(address)
        self.host, self.port = (url.host_str or "").strip("[]"), url.port or _default_port(url.scheme)
        self.scheme = url.scheme
        self.credentials = (unquote(url.username), unquote(url.password or "")) if url.username else ()
        self.name = f"{url.scheme}://{url.host_str}:{self.port}"
        # The proxy resolves names: a client that does so for SOCKS would block, and use the system's name servers.
        self._address = re.sub("^socks5:", "socks5h:", str(url))
        self.builder()
        self.speaks_http = url.scheme in ("http", "https")
        self.failures = 0
        self.ready_at = -inf
        self.on_trial = False
        self._faulty_hosts: set[str] = set()

    def builder(self) -> ProxyBuilder:
        """Return a builder for one client; the library consumes it, so each client needs its own."""
        return ProxyBuilder.all(self._address)

    def record_host_fault(self, host: str) -> bool:
        """Record a fault that may be the host's; return True once too many hosts failed."""
        self._faulty_hosts.add(host)
        return len(self._faulty_hosts) >= MAX_FAULTY_HOSTS

    def back_off(self, now: float) -> bool:
        """Back off, longer with each consecutive fault; return False if it is backing off already."""
        if self.ready_at > now and self.failures and not self.on_trial:
            # Requests that were in progress together count as one fault.
            return False
        self.failures += 1
        self.on_trial = False
        self.ready_at = now + min(BACKOFF_SECONDS * 2 ** (self.failures - 1), MAX_BACKOFF_SECONDS)
        self._faulty_hosts.clear()
        return True

    def mark_healthy(self) -> None:
        """Mark it healthy: a request succeeded."""
        self.failures, self.ready_at, self.on_trial = 0, -inf, False
        self._faulty_hosts.clear()


class Proxies:
    """The proxies of a job. A site keeps one proxy while it is healthy, or each request takes the next."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._in_turn = settings.proxy_rotation == "request"
        self._trial_seconds = 2 * settings.connect_seconds
        self._probe_seconds = min(PROBE_SECONDS, settings.connect_seconds)
        known: dict[str, Proxy] = {}
        self._all = tuple(dict.fromkeys(_open(known, "proxy", line) for line in _lines(settings.proxy)))
        self._pinned = {
            site: () if own.proxy == DIRECT else (_open(known, f'sites."{site}".proxy', own.proxy),)
            for site, own in settings.sites.items()
            if own.proxy
        }
        self._turn = 0
        self._well_at = clock.monotonic()

    def __bool__(self) -> bool:
        return bool(self._all or self._pinned)

    def choose(self, site: str, via: str = "") -> tuple[Proxy, ...]:
        """Return the proxies to try in order; none for a direct request. ProxyFailed while none is healthy.

        `via` is the name of a session, which has one proxy or none and never moves to another."""
        among = self._pinned.get(site, self._all)
        if not among:
            return ()
        now = self._clock.monotonic()
        ready = [proxy for proxy in among if proxy.ready_at <= now]
        if not ready:
            # A trial in progress ends sooner than its timeout.
            wait = min(min(proxy.ready_at - now, BACKOFF_SECONDS if proxy.on_trial else inf) for proxy in among)
            if now - self._well_at > GIVE_UP_SECONDS:
                raise ConnectFailed("no proxy has answered for a day")
            raise ProxyFailed(f"none of {len(among)} proxies works", wait_seconds=wait)
        if self._in_turn and not via:
            self._turn += 1
            chosen = [ready[(self._turn + step) % len(ready)] for step in range(min(MAX_TRIES, len(ready)))]
        else:
            key = via or site
            turns = 1 if via else MAX_TRIES
            chosen = nlargest(turns, ready, key=lambda proxy: _rank(key, proxy.name))
        if chosen[0].failures:
            # One request tests whether it is healthy again; the others skip it meanwhile.
            chosen[0].ready_at, chosen[0].on_trial = now + self._trial_seconds, True
        return tuple(chosen)

    def answered(self, proxy: Proxy, host: str, status: int, *, is_tls: bool) -> ProxyFailed | None:
        """Record a response, unless the proxy itself generated it: then return the failure."""
        if status == 407:
            return self._failed(proxy, "wrong proxy credentials")
        if status in _GATEWAY and not is_tls and proxy.speaks_http:
            # The proxy or the host may have sent it; many hosts in a row point to the proxy.
            return self._failed(proxy, f"status {status} for every host") if proxy.record_host_fault(host) else None
        self._well_at = self._clock.monotonic()
        proxy.mark_healthy()
        return None

    async def fault(self, proxy: Proxy, host: str, blame: Blame, error: FetchError) -> FetchError:
        """Attribute a fault on the way to `host` to the proxy, which then backs off, or to the host."""
        if blame == "unknown":
            blame = "either" if await self._is_there(proxy) else "proxy"
        if blame == "either" and proxy.record_host_fault(host):
            blame = "proxy"
        if blame == "proxy":
            return self._failed(proxy, str(error))
        if proxy.on_trial:
            # Its port accepts connections: let the next request test whether it is healthy.
            proxy.ready_at = -inf
        return error

    def _failed(self, proxy: Proxy, why: str) -> ProxyFailed:
        now = self._clock.monotonic()
        if proxy.back_off(now):
            log.warning("proxy %s is skipped for %.0f s: %s", proxy.name, proxy.ready_at - now, why)
        return ProxyFailed(f"proxy {proxy.name}: {why}", wait_seconds=proxy.ready_at - now)

    async def _is_there(self, proxy: Proxy) -> bool:
        try:
            async with asyncio.timeout(self._probe_seconds):
                _, writer = await asyncio.open_connection(proxy.host, proxy.port)
        except OSError:  # TimeoutError is one
            return False
        writer.close()
        return True


def _rank(key: str, name: str) -> bytes:
    return blake2b(f"{key} {name}".encode(), digest_size=8).digest()


def _lines(entries: Iterable[str]) -> list[str]:
    """Expand `@FILE` entries to the addresses in the file, one a line; # starts a comment."""
    found: list[str] = []
    for entry in entries:
        if not entry.startswith("@"):
            found.append(entry)
            continue
        try:
            lines = Path(entry[1:]).expanduser().read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            message = getattr(error, "strerror", "") or "not a text file"
            raise ConfigError(f"proxy: {entry[1:]}: {message}", hint="@FILE has one address a line") from None
        listed = [match[0] for line in lines if (match := _LINE.match(line.strip()))]
        if not listed:
            raise ConfigError(f"proxy: {entry[1:]}: no address in the file", hint="@FILE has one address a line")
        found += listed
    return found


def _open(known: dict[str, Proxy], source: str, text: str) -> Proxy:
    """Parse a proxy address; the error does not repeat it, since it may contain a password."""
    address = expand(text, source=source)
    try:
        if address not in known:
            known[address] = Proxy(address)
        return known[address]
    except ValueError:
        hint = "for example http://user:${PROXY_PASSWORD}@host:port, or socks5://host:port"
        raise ConfigError(f"{source}: invalid proxy address", hint=hint) from None


def _url(address: str) -> Url:
    url = Url(address if "://" in address else f"http://{address}")
    if url.scheme not in SCHEMES or not url.host_str:
        raise ValueError("not a proxy")
    return url


def _default_port(scheme: str) -> int:
    return {"http": 80, "https": 443}.get(scheme, 1080)
