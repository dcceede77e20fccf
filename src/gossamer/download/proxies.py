"""Which proxy a request goes by: rotation, pinning, health, and whose fault it is when nothing comes through."""

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
TURNS = 3
"""So many proxies at most are tried for one request."""
REST_SECONDS = 10.0
LONGEST_REST_SECONDS = 600.0
DOUBTFUL_HOSTS = 5
"""Faults with so many hosts in a row, and no answer in between, are the proxy's."""
GIVE_UP_SECONDS = 86_400.0
"""After this time without any proxy the sites are to blame all the same, so that crawls end."""
PROBE_SECONDS = 3.0
_GATEWAY = frozenset((502, 503, 504))
_LINE = re.compile(r"[^\s#]\S*")


class Proxy:
    """A forward proxy and how it has been; `name` is its address without the credentials."""

    __slots__ = (
        *("_address", "_doubts", "credentials", "failures", "host", "name", "on_trial", "port", "ready_at", "scheme"),
        "speaks_http",
    )

    def __init__(self, address: str) -> None:
        url = _url(address)
        self.host, self.port = (url.host_str or "").strip("[]"), url.port or _default_port(url.scheme)
        self.scheme = url.scheme
        self.credentials = (unquote(url.username), unquote(url.password or "")) if url.username else ()
        self.name = f"{url.scheme}://{url.host_str}:{self.port}"
        # The proxy looks names up: a client that does so for SOCKS would block, and ask servers that are not ours.
        self._address = re.sub("^socks5:", "socks5h:", str(url))
        self.builder()
        self.speaks_http = url.scheme in ("http", "https")
        self.failures = 0
        self.ready_at = -inf
        self.on_trial = False
        self._doubts: set[str] = set()

    def builder(self) -> ProxyBuilder:
        """For one client: the library takes it away from us with the first."""
        return ProxyBuilder.all(self._address)

    def doubt(self, host: str) -> bool:
        """Note a fault that may be the host's; True once they are too many for that."""
        self._doubts.add(host)
        return len(self._doubts) >= DOUBTFUL_HOSTS

    def rest(self, now: float) -> bool:
        """Leave it alone for a while, longer with each fault in a row; False if it rests already."""
        if self.ready_at > now and self.failures and not self.on_trial:
            # Requests that were under way together are one fault.
            return False
        self.failures += 1
        self.on_trial = False
        self.ready_at = now + min(REST_SECONDS * 2 ** (self.failures - 1), LONGEST_REST_SECONDS)
        self._doubts.clear()
        return True

    def healed(self) -> None:
        """Something came through."""
        self.failures, self.ready_at, self.on_trial = 0, -inf, False
        self._doubts.clear()


class Proxies:
    """The proxies of a job. A site stays with one while that is well, or each request takes the next."""

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
        """The proxies to try in turn; none for a request that goes directly; ProxyFailed while none is well.

        `via` is the name of a session, which has one proxy or none: it does not live on behind another."""
        among = self._pinned.get(site, self._all)
        if not among:
            return ()
        now = self._clock.monotonic()
        ready = [proxy for proxy in among if proxy.ready_at <= now]
        if not ready:
            # How a trial under way ends is known sooner than its time is over.
            wait = min(min(proxy.ready_at - now, REST_SECONDS if proxy.on_trial else inf) for proxy in among)
            if now - self._well_at > GIVE_UP_SECONDS:
                raise ConnectFailed("no proxy has answered for a day")
            raise ProxyFailed(f"none of {len(among)} proxies answers", wait_seconds=wait)
        if self._in_turn and not via:
            self._turn += 1
            chosen = [ready[(self._turn + step) % len(ready)] for step in range(min(TURNS, len(ready)))]
        else:
            key = via or site
            turns = 1 if via else TURNS
            chosen = nlargest(turns, ready, key=lambda proxy: _rank(key, proxy.name))
        if chosen[0].failures:
            # One request sees whether it is well again; the others do without it meanwhile.
            chosen[0].ready_at, chosen[0].on_trial = now + self._trial_seconds, True
        return tuple(chosen)

    def answered(self, proxy: Proxy, host: str, status: int, *, is_tls: bool) -> ProxyFailed | None:
        """An answer came through, unless it is one that the proxy itself has made up."""
        if status == 407:
            return self._failed(proxy, "it wants other credentials")
        if status in _GATEWAY and not is_tls and proxy.speaks_http:
            # Nobody can say whose words these are, until too many hosts seem to say them.
            return self._failed(proxy, f"it answers {status} for every host") if proxy.doubt(host) else None
        self._well_at = self._clock.monotonic()
        proxy.healed()
        return None

    async def fault(self, proxy: Proxy, host: str, blame: Blame, error: FetchError) -> FetchError:
        """What a fault on the way to `host` is: the proxy's, which then rests, or the host's."""
        if blame == "unknown":
            blame = "either" if await self._is_there(proxy) else "proxy"
        if blame == "either" and proxy.doubt(host):
            blame = "proxy"
        if blame == "proxy":
            return self._failed(proxy, str(error))
        if proxy.on_trial:
            # It at least listens: let the next request see whether it is well.
            proxy.ready_at = -inf
        return error

    def _failed(self, proxy: Proxy, why: str) -> ProxyFailed:
        now = self._clock.monotonic()
        if proxy.rest(now):
            log.warning("proxy %s rests for %.0f s: %s", proxy.name, proxy.ready_at - now, why)
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
    """The addresses; `@FILE` stands for those in a file, one a line, where # begins a comment."""
    found: list[str] = []
    for entry in entries:
        if not entry.startswith("@"):
            found.append(entry)
            continue
        try:
            lines = Path(entry[1:]).expanduser().read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            said = getattr(error, "strerror", "") or "is not text"
            raise ConfigError(f"proxy: {entry[1:]}: {said}", hint="@FILE has one address a line") from None
        listed = [match[0] for line in lines if (match := _LINE.match(line.strip()))]
        if not listed:
            raise ConfigError(f"proxy: {entry[1:]}: no address in it", hint="@FILE has one address a line")
        found += listed
    return found


def _open(known: dict[str, Proxy], source: str, text: str) -> Proxy:
    """The proxy of an address; an error does not repeat it, because of the password that may be in it."""
    address = expand(text, source=source)
    try:
        if address not in known:
            known[address] = Proxy(address)
        return known[address]
    except ValueError:
        hint = "for example http://user:${PROXY_PASSWORD}@host:port, or socks5://host:port"
        raise ConfigError(f"{source}: one of the addresses is not that of a proxy", hint=hint) from None


def _url(address: str) -> Url:
    url = Url(address if "://" in address else f"http://{address}")
    if url.scheme not in SCHEMES or not url.host_str:
        raise ValueError("not a proxy")
    return url


def _default_port(scheme: str) -> int:
    return {"http": 80, "https": 443}.get(scheme, 1080)
