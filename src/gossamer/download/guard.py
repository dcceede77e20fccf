"""The address guard against SSRF: decides which schemes, ports, names, and addresses may be connected to.

A page may link to any URL, and a name may resolve to any address, also to one inside your network. The guard checks
twice: `check_url` the URL before a fetch, and `check_address` each resolved address right before connecting to it. The
connection goes to the checked address, so a second DNS answer cannot replace it (DNS rebinding).

Invariants: only http and https; no port of another protocol; only globally routable addresses unless
`--allow-private` is set; never a cloud metadata service, even then. An IPv6 address is checked together with every
IPv4 address that NAT64, 6to4, Teredo, or an IPv4-mapped form could turn it into; one forbidden form forbids it.

Failure case: every refusal raises `Forbidden`, which is final for the request."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

from pyreqwest.http import Url

from gossamer.errors import Forbidden

# The bad ports of the Fetch standard, and ports of databases that would parse a request line as a command.
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
# The IANA special-purpose registries, written out: `ipaddress` differs between Python versions.
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


class CheckedUrl(NamedTuple):
    """A checked URL in parsed form: the check, the connection, and the request use this one value."""

    url: Url
    host: str
    port: int
    address: str
    """The host if it is a literal address, else empty."""

    @property
    def is_tls(self) -> bool:
        return self.url.scheme == "https"

    @property
    def authority(self) -> str:
        """Host, with the port unless it is the scheme's default."""
        return self.host if self.url.port is None else f"{self.host}:{self.port}"

    @property
    def path(self) -> str:
        """Path and query, as in the request line."""
        query = self.url.query_string
        return self.url.path if query is None else f"{self.url.path}?{query}"


def check_url(url: str) -> CheckedUrl:
    """Parse and check a URL; Forbidden for a scheme other than http(s), a bad port, or a metadata service's name."""
    try:
        parsed = Url(url)
    except ValueError as error:
        raise Forbidden(f"invalid URL: {error}") from None
    host, port = parsed.host_str, parsed.port_or_known_default
    if parsed.scheme not in ("http", "https") or not host or port is None:
        raise Forbidden(f"only http and https are fetched, not {parsed.scheme}")
    if port in BAD_PORTS:
        raise Forbidden(f"port {port} is blocked: it is reserved for another protocol")
    if parsed.domain is None:
        return CheckedUrl(parsed, host, port, host.strip("[]"))
    if host.rstrip(".") in METADATA_NAMES:
        raise Forbidden(f"{host} is a metadata service")
    return CheckedUrl(parsed, host, port, "")


def check_address(address: str, allow_private: bool) -> None:
    """Raise Forbidden unless the address is globally routable or `allow_private`; metadata services always are."""
    try:
        ip = ip_address(address)
    except ValueError:
        raise Forbidden(f"{address} is not an IP address") from None
    if any(form in _METADATA for form in _embedded_addresses(ip)):
        raise Forbidden(f"{address} is a metadata service")
    if not allow_private and not _is_global(ip):
        raise Forbidden(f"{address} is not globally routable", hint="allow it with --allow-private")


@lru_cache(maxsize=16_384)
def is_global(address: str) -> bool:
    """Whether an address is globally routable."""
    return _is_global(ip_address(address))


def _is_global(ip: IPv4Address | IPv6Address) -> bool:
    if isinstance(ip, IPv4Address):
        return not any(ip in network for network in _SPECIAL_V4)
    if ip.scope_id is not None:
        return False
    if ip in _NAT64 or ip in _MAPPED:
        return _is_global(_last_v4(ip))
    return ip in _GLOBAL_V6 and not any(ip in network for network in _SPECIAL_V6)


def _embedded_addresses(ip: IPv4Address | IPv6Address) -> tuple[IPv4Address | IPv6Address, ...]:
    """Return the address and every IPv4 address that a translator or tunnel might derive from it."""
    if isinstance(ip, IPv4Address):
        return (ip,)
    plain = IPv6Address(int(ip))
    if plain in _NAT64 or plain in _MAPPED or plain in _COMPATIBLE:
        return (plain, _last_v4(plain))
    if plain in _NAT64_LOCAL:
        # RFC 6052: with a /48 prefix the four bytes surround the reserved eighth byte.
        raw = plain.packed
        return (plain, _last_v4(plain), IPv4Address(raw[6:8] + raw[9:11]))
    if plain.sixtofour is not None:
        return (plain, plain.sixtofour)
    if plain.teredo is not None:
        return (plain, *plain.teredo)
    return (plain,)


def _last_v4(ip: IPv6Address) -> IPv4Address:
    return IPv4Address(int(ip) & 0xFFFFFFFF)
