"""DNS resolution: asynchronous, cached, coalesced, with overrides."""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gossamer.clock import Clock
from gossamer.errors import ConfigError, FetchError, NameUnknown, NameUnresolved

if TYPE_CHECKING:
    import aiodns

MIN_TTL_SECONDS = 60.0
MAX_TTL_SECONDS = 3600.0
NXDOMAIN_SECONDS = 60.0
FAILURE_SECONDS = 10.0
MAX_NAMES = 50_000
# c-ares has an unbounded cache of its own: a new channel now and then drops it.
CHANNEL_LOOKUPS = 20_000


class ResolvedName(NamedTuple):
    """The addresses of a name, preferred one first, and when they expire (monotonic clock)."""

    addresses: tuple[str, ...]
    expires_at: float


class NameResolver(Protocol):
    """Resolves host names for a downloader."""

    async def resolve(self, host: str) -> ResolvedName: ...

    async def aclose(self) -> None: ...


class Resolver:
    """A resolver on c-ares: overrides first, then localhost, /etc/hosts, and the name servers; no search domains."""

    def __init__(
        self,
        clock: Clock,
        overrides: Sequence[str] = (),
        *,
        nameservers: Sequence[str] = (),
        try_seconds: float = 3.0,
        tries: int = 3,
    ) -> None:
        self._clock = clock
        self._overrides = [_override(text) for text in overrides]
        self._nameservers = [_server(text) for text in nameservers]
        self._try_seconds, self._tries = try_seconds, tries
        self._cache: OrderedDict[str, tuple[float, ResolvedName | FetchError]] = OrderedDict()
        self._pending: dict[str, asyncio.Task[ResolvedName]] = {}
        self._channel: aiodns.DNSResolver | None = None
        self._lookups = 0

    async def resolve(self, host: str) -> ResolvedName:
        """Resolve `host`; NameUnknown if the name does not exist, NameUnresolved if no server answered."""
        cached = self._cache.get(host)
        if cached is not None and cached[0] > self._clock.monotonic():
            if isinstance(cached[1], FetchError):
                raise type(cached[1])(str(cached[1]))
            return cached[1]
        task = self._pending.get(host)
        if task is None:
            own = self._local_answer(host)
            if own is not None:
                return own
            task = self._pending[host] = asyncio.create_task(self._find(host))
            task.add_done_callback(lambda done: self._found(host, done))
        # Shielded: one caller that is cancelled must not cancel the lookup for the others.
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        for task in list(self._pending.values()):
            task.cancel()
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _local_answer(self, host: str) -> ResolvedName | None:
        """Answer from literals, overrides, and localhost, without a name server."""
        name = host.rstrip(".").lower()
        for pattern, address in self._overrides:
            if fnmatchcase(name, pattern):
                return ResolvedName((address,), self._clock.monotonic() + MAX_TTL_SECONDS)
        if name == "localhost" or name.endswith(".localhost"):
            return ResolvedName(("127.0.0.1", "::1"), self._clock.monotonic() + MAX_TTL_SECONDS)
        return None

    async def _find(self, host: str) -> ResolvedName:
        # Imported by the first name that needs it; a crawl of IP addresses, or through a proxy, never does.
        import aiodns
        import pycares

        errno = pycares.errno
        name, no_such_name = host.rstrip("."), (errno.ARES_ENOTFOUND, errno.ARES_ENODATA, errno.ARES_EBADNAME)
        try:
            found = await self._open_channel().getaddrinfo(name, socket.AF_UNSPEC, type=socket.SOCK_STREAM)
        except (aiodns.error.DNSError, pycares.AresError, OSError) as error:
            kind = NameUnknown if error.args and error.args[0] in no_such_name else NameUnresolved
            raise kind(f"{host}: {error.args[-1] if error.args else error}") from None
        if not found.nodes:
            raise NameUnknown(f"{host}: the name has no address")
        addresses = tuple(dict.fromkeys(node.addr[0].decode() for node in found.nodes))
        seconds = min(max(min(node.ttl for node in found.nodes), MIN_TTL_SECONDS), MAX_TTL_SECONDS)
        return ResolvedName(_interleaved(addresses), self._clock.monotonic() + seconds)

    def _found(self, host: str, task: asyncio.Task[ResolvedName]) -> None:
        self._pending.pop(host, None)
        if task.cancelled():
            return
        self._cache.pop(host, None)
        error = task.exception()
        if error is None:
            answer = task.result()
            self._cache[host] = (answer.expires_at, answer)
        elif isinstance(error, FetchError):
            seconds = NXDOMAIN_SECONDS if isinstance(error, NameUnknown) else FAILURE_SECONDS
            self._cache[host] = (self._clock.monotonic() + seconds, error)
        while len(self._cache) > MAX_NAMES:
            self._cache.popitem(last=False)

    def _open_channel(self) -> aiodns.DNSResolver:
        import aiodns
        import pycares

        self._lookups += 1
        # The old channel is freed when its last lookup ends.
        if self._channel is None or self._lookups % CHANNEL_LOOKUPS == 0:
            self._channel = aiodns.DNSResolver(
                self._nameservers or None,
                timeout=self._try_seconds,
                tries=self._tries,
                flags=pycares.ARES_FLAG_NOSEARCH | pycares.ARES_FLAG_EDNS,
            )
        return self._channel


def _interleaved(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Interleave the two address families and keep the order within each."""
    first = [address for address in addresses if (":" in address) == (":" in addresses[0])]
    second = [address for address in addresses if (":" in address) != (":" in addresses[0])]
    return tuple(address for pair in zip_longest(first, second) for address in pair if address)


def _server(text: str) -> str:
    """Return a name server in the form that c-ares accepts: an address, with a port if it is not 53."""
    bare = text.removeprefix("[").partition("]")[0] if text.startswith("[") else text
    port = ""
    if not text.startswith("[") and text.count(":") == 1:
        bare, _, port = text.partition(":")
    elif text.startswith("["):
        port = text.partition("]")[2].removeprefix(":")
    try:
        ip_address(bare)
        if (port and not 0 < int(port) < 65536) or (text.startswith("[") and "]" not in text):
            raise ValueError(port)
    except ValueError:
        hint = "for example 192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:5353"
        raise ConfigError(f"nameservers: {text!r} is not an address", hint=hint) from None
    return text


def _override(text: str) -> tuple[str, str]:
    pattern, _, address = text.rpartition("=")
    try:
        found = str(ip_address(address.strip("[]")))
    except ValueError:
        found = ""
    if not pattern or not found:
        raise ConfigError(f"resolve: {text!r} is not PATTERN=ADDR", hint="for example *.test=127.0.0.1")
    return pattern.lower(), found
