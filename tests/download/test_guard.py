"""The address guard against hostile addresses: H01-H05, H10, and H15 of the faults list."""

from __future__ import annotations

import asyncio
import ipaddress
import random

import pytest

from gossamer.clock import SystemClock
from gossamer.download.client import Host, HttpDownloader
from gossamer.download.connections import Connection, Target
from gossamer.download.dns import ResolvedName
from gossamer.download.guard import check_address, check_url
from gossamer.errors import ConnectFailed, FetchError, Forbidden
from gossamer.model import Request
from gossamer.settings import build

LOCAL = [
    *("http://127.0.0.1/", "http://localhost/", "http://x.localhost/", "http://localhost./", "http://[::1]/"),
    *("http://0.0.0.0/", "http://0/", "http://[::]/"),
    *("http://2130706433/", "http://0177.0.0.1/", "http://0x7f000001/", "http://127.1/", "http://425.510.425.510/"),
    *("http://127。0。0。1/", "http://%31%32%37.0.0.1/", "http://①②⑦.0.0.1/"),
]
PRIVATE = [
    *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1", "0.1.2.3", "240.0.0.1", "224.0.0.1"),
    *("255.255.255.255", "198.18.0.1", "198.19.255.255", "192.0.2.1", "198.51.100.1", "203.0.113.1", "192.0.0.8"),
    *("::ffff:127.0.0.1", "::ffff:7f00:1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::808:808"),
    *("2002:7f00:1::", "2002:808:808::", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "fe80::1", "fe80::1%eth0", "fc00::1"),
    *("fd12:3456::1", "fec0::1", "ff02::1", "2001:db8::1", "3fff::1", "100::1", "5f00::1", "::", "::1", "4000::1"),
]
PUBLIC = [
    "1.1.1.1",
    "64:ff9b::808:808",
    "::ffff:8.8.8.8",
    "93.184.216.34",
    "172.32.0.1",
    "100.128.0.1",
    "192.0.1.1",
    "2606:4700::1111",
    "2a00:1450::1",
]
METADATA = [
    *("169.254.169.254", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd00:0ec2:0::254", "169.254.170.2"),
    *("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::169.254.169.254", "64:ff9b:1::a9fe:a9fe"),
    *("64:ff9b:1:a9fe:a9:fe00::", "fd20:ce::254"),
]


class Recording(HttpDownloader):
    """Opens no connection: what would have been connected to is noted."""

    def __init__(self, *answers: tuple[str, ...], **settings: object) -> None:
        self.answers = list(answers)
        self.pinned: list[tuple[str, tuple[str, ...]]] = []
        super().__init__(build(settings), SystemClock(), self)

    async def resolve(self, host: str) -> ResolvedName:
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return ResolvedName(addresses, 0.0)

    async def aclose(self) -> None: ...

    async def _open(self, target: Target, host: Host) -> Connection:
        self.pinned.append((target.host, host.addresses))
        host.expires_at = -1.0
        raise ConnectFailed("this downloader does not connect")


def ends(downloader: HttpDownloader, url: str) -> type[FetchError]:
    with pytest.raises(FetchError) as raised:
        asyncio.run(downloader.fetch(Request(url=url)))
    return raised.type


@pytest.mark.parametrize("url", LOCAL)
def test_no_spelling_of_localhost_is_connected_to(url: str) -> None:
    downloader = Recording(("127.0.0.1", "::1"))
    assert ends(downloader, url) is Forbidden
    assert downloader.pinned == []


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_global_are_refused(address: str) -> None:
    with pytest.raises(Forbidden):
        check_address(address, allow_private=False)
    check_address(address, allow_private=True)


@pytest.mark.parametrize("address", PUBLIC)
def test_global_addresses_pass(address: str) -> None:
    check_address(address, allow_private=False)


def test_no_address_private_to_python_passes() -> None:
    chance = random.Random(7)
    for _ in range(20_000):
        ip4 = ipaddress.IPv4Address(chance.getrandbits(32))
        ip6 = ipaddress.IPv6Address(chance.choice((chance.getrandbits(128), 0x2001 << 112 | chance.getrandbits(90))))
        for ip in (ip4, ip6):
            if not ip.is_global or ip.is_multicast or ip.is_reserved:
                with pytest.raises(Forbidden):
                    check_address(str(ip), allow_private=False)


@pytest.mark.parametrize("address", METADATA)
def test_metadata_addresses_are_refused_even_when_private_ones_are_allowed(address: str) -> None:
    with pytest.raises(Forbidden):
        check_address(address, allow_private=True)


@pytest.mark.parametrize("host", ["metadata.google.internal", "METADATA.google.internal.", "metadata", "instance-data"])
def test_metadata_names_are_refused_even_when_private_addresses_are_allowed(host: str) -> None:
    downloader = Recording(("1.1.1.1",), allow_private=True)
    assert ends(downloader, f"http://{host}/latest") is Forbidden
    assert downloader.pinned == []


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "0xa9fea9fe", "⑯⑨。②⑤④。⑯⑨。②⑤④"])
def test_metadata_literals_are_never_connected_to(host: str) -> None:
    downloader = Recording(("1.1.1.1",), allow_private=True)
    assert ends(downloader, f"http://{host}/") is Forbidden
    assert downloader.pinned == []


@pytest.mark.parametrize(
    "addresses", [("10.0.0.1",), ("1.1.1.1", "10.0.0.1"), ("1.1.1.1", "::ffff:10.0.0.1"), ("1.1.1.1", "fe80::1%eth0")]
)
def test_a_public_name_with_a_private_address_is_refused(addresses: tuple[str, ...]) -> None:
    """H06."""
    downloader = Recording(addresses)
    assert ends(downloader, "http://public.example/") is Forbidden
    assert downloader.pinned == []


def test_dns_rebinding_is_refused() -> None:
    """H07."""
    downloader = Recording(("1.1.1.1",), ("127.0.0.1",))
    assert ends(downloader, "http://rebind.example/") is ConnectFailed
    assert ends(downloader, "http://rebind.example/") is Forbidden
    assert downloader.pinned == [("rebind.example", ("1.1.1.1",))]


def test_names_are_checked_behind_a_proxy_too() -> None:
    downloader = Recording(("10.0.0.1",), proxy=["http://127.0.0.1:8"])
    assert ends(downloader, "http://inside.example/") is Forbidden
    assert ends(downloader, "http://10.0.0.1/") is Forbidden
    assert downloader.pinned == []


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://127.0.0.1:6670\\@1.1.1.1/", "127.0.0.1"),
        ("http://a@b@c.example/", "c.example"),
        ("http://1.1.1.1&@127.0.0.1/", "127.0.0.1"),
        ("http://exa\tmp\nle.com/", "example.com"),
        ("http://1.1.1.1#@127.0.0.1/", "1.1.1.1"),
        ("http://1.1.1.1?@127.0.0.1/", "1.1.1.1"),
        ("http://Example.COM./", "example.com."),
    ],
)
def test_the_host_that_is_checked_is_the_host_of_the_url_that_is_fetched(url: str, host: str) -> None:
    target = check_url(url)
    assert target.host == host == target.url.host_str


@pytest.mark.parametrize("port", [1, 22, 25, 6379, 6667, 10080, 11211, 0])
def test_ports_of_other_services_are_refused(port: int) -> None:
    downloader = Recording(("1.1.1.1",), allow_private=True)
    assert ends(downloader, f"http://public.example:{port}/") is Forbidden
    assert downloader.pinned == []


@pytest.mark.parametrize(
    "url",
    [
        *(
            "file:///etc/passwd",
            "ftp://a.example/",
            "gopher://a.example/",
            "data:text/html,x",
            "javascript:1",
            "jar:x!/",
        ),
        *(
            "http://[fe80::1%25eth0]/",
            "http://a b/",
            "http://ex%00ample/",
            "http:///",
            "//a.example/",
            "",
            "http://x:99999/",
        ),
    ],
)
def test_only_http_urls_are_fetched(url: str) -> None:
    downloader = Recording(("1.1.1.1",), allow_private=True)
    assert ends(downloader, url) is Forbidden
    assert downloader.pinned == []
