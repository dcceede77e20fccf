"""The address guard: which schemes, ports, names and addresses may be connected to."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

from pyreqwest.http import Url

from gossamer.errors import Forbidden

# What the fetch standard calls bad ports, and those of databases that would take a request line for a command.
_BAD_PORTS = """
0 1 7 9 11 13 15 17 19 20 21 22 23 25 37 42 43 53 69 77 79 87 95 101 102 103 104 109 110 111 113 115 117 119 123 135 137
139 143 161 179 389 427 465 512 513 514 515 526 530 531 532 540 548 554 556 563 587 601 636 989 990 993 995 1719 1720
1723 2049 3659 4045 4190 5060 5061 6000 6566 6665 6666 6667 6668 6669 6679 6697 10080
3306 5432 6379 11211 27017
"""
BAD_PORTS = frozenset(int(port) for port in _BAD_PORTS.split())
METADATA_NAMES = frozenset(
    (
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "metadata.azure.internal",
        "metadata.internal",
        "metadata.tencentyun.com",
        "metadata.platformequinix.com",
        "instance-data",
        "instance-data.ec2.internal",
    )
)
_METADATA: frozenset[IPv4Address | IPv6Address] = frozenset(
    ip_address(text)
    for text in (
        *("169.254.169.254", "169.254.169.253", "169.254.169.123", "169.254.170.2", "169.254.170.23", "169.254.0.23"),
        *("100.100.100.200", "192.0.0.192", "168.63.129.16"),
        *("fd00:ec2::254", "fd00:ec2::253", "fd00:ec2::23", "fd20:ce::254"),
    )
)
# The special-purpose registries, written out: what `ipaddress` calls global differs between Python versions.
_SPECIAL_V4 = tuple(
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
        *("192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
        *("224.0.0.0/4", "240.0.0.0/4"),
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_MAPPED = IPv6Network("::ffff:0:0/96")
_COMPATIBLE = IPv6Network("::/96")


class Goal(NamedTuple):
    """A URL that passed, as the client parsed it: the check, the connection and the request share this one value."""

    url: Url
    host: str
    port: int
    address: str
    """The address if the host is one, else empty."""

    @property
    def is_tls(self) -> bool:
        return self.url.scheme == "https"

    @property
    def authority(self) -> str:
        """The host, with its port unless that is the scheme's own."""
        return self.host if self.url.port is None else f"{self.host}:{self.port}"

    @property
    def path(self) -> str:
        """Path and query, as a request names them."""
        query = self.url.query_string
        return self.url.path if query is None else f"{self.url.path}?{query}"


def check_url(url: str) -> Goal:
    """The parts of an http(s) URL; Forbidden for any other scheme, a bad port, or the name of a metadata service."""
    try:
        parsed = Url(url)
    except ValueError as error:
        raise Forbidden(f"not a URL: {error}") from None
    host, port = parsed.host_str, parsed.port_or_known_default
    if parsed.scheme not in ("http", "https") or not host or port is None:
        raise Forbidden(f"only http and https are fetched, not {parsed.scheme}")
    if port in BAD_PORTS:
        raise Forbidden(f"port {port} is not for web pages")
    if parsed.domain is None:
        return Goal(parsed, host, port, host.strip("[]"))
    if host.rstrip(".") in METADATA_NAMES:
        raise Forbidden(f"{host} is a metadata service")
    return Goal(parsed, host, port, "")


def check_address(address: str, allow_private: bool) -> None:
    """Forbidden unless the address is globally routable, or `allow_private`; a metadata service is always forbidden."""
    try:
        ip = ip_address(address)
    except ValueError:
        raise Forbidden(f"{address} is not an address") from None
    if any(form in _METADATA for form in _forms(ip)):
        raise Forbidden(f"{address} is a metadata service")
    if not allow_private and not _is_global(ip):
        raise Forbidden(f"{address} is not globally routable", hint="--allow-private allows it")


@lru_cache(maxsize=16_384)
def is_global(address: str) -> bool:
    """Whether an address is one of the internet."""
    return _is_global(ip_address(address))


def _is_global(ip: IPv4Address | IPv6Address) -> bool:
    if isinstance(ip, IPv4Address):
        return not any(ip in network for network in _SPECIAL_V4)
    if ip.scope_id is not None:
        return False
    if ip in _NAT64 or ip in _MAPPED:
        return _is_global(_last_v4(ip))
    return ip in _GLOBAL_V6 and not any(ip in network for network in _SPECIAL_V6)


def _forms(ip: IPv4Address | IPv6Address) -> tuple[IPv4Address | IPv6Address, ...]:
    """The address and every IPv4 address that a translator or tunnel on the way might make of it."""
    if isinstance(ip, IPv4Address):
        return (ip,)
    plain = IPv6Address(int(ip))
    if plain in _NAT64 or plain in _MAPPED or plain in _COMPATIBLE:
        return (plain, _last_v4(plain))
    if plain in _NAT64_LOCAL:
        # RFC 6052: behind a /48 prefix the four bytes stand around the reserved eighth one.
        raw = plain.packed
        return (plain, _last_v4(plain), IPv4Address(raw[6:8] + raw[9:11]))
    if plain.sixtofour is not None:
        return (plain, plain.sixtofour)
    if plain.teredo is not None:
        return (plain, *plain.teredo)
    return (plain,)


def _last_v4(ip: IPv6Address) -> IPv4Address:
    return IPv4Address(int(ip) & 0xFFFFFFFF)
