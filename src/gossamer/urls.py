"""URLs: one WHATWG parser for everything, and the fingerprint, site and registered domain of a URL."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from urllib.parse import unquote

import ada_url
from publicsuffixlist import PublicSuffixList
from siphashc import siphash

_TRACKING = """
    fbclid gclid dclid gbraid wbraid msclkid yclid twclid igshid mc_cid mc_eid _ga _gl _hsenc _hsmi utm_source
    utm_medium utm_campaign utm_term utm_content utm_id utm_name utm_reader sessionid phpsessid jsessionid
"""
TRACKING_PARAMETERS = frozenset(_TRACKING.split())
_ODD_ESCAPE = re.compile(
    r"%(?:[0-9A-Fa-f][a-f]|[a-f][0-9A-F]|2[DE]|3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])",
)
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def normal(url: str) -> str | None:
    """The URL as the standard serialises it, without fragment; None unless it is http(s), without credentials."""
    try:
        return _crawlable(ada_url.normalize_url(url))
    except ValueError:
        whole = _scalars(url)
        return normal(whole) if whole != url else None


def join(base: str, reference: str) -> str | None:
    """`reference` resolved against `base` as a browser would, then as `normal` gives it."""
    try:
        return _crawlable(ada_url.join_url(base, reference))
    except ValueError:
        whole = _scalars(reference)
        return join(base, whole) if whole != reference else None


def resolve(base: str, reference: str) -> str | None:
    """`reference` resolved against `base`, whatever its scheme, fragment and credentials; None if it is no URL."""
    try:
        return str(ada_url.join_url(base, reference))
    except ValueError:
        whole = _scalars(reference)
        return resolve(base, whole) if whole != reference else None


def _scalars(text: str) -> str:
    """The text with U+FFFD for each half of a character, as the standard has it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _crawlable(href: str) -> str | None:
    if not href.startswith(("http://", "https://")):
        return None
    cut = href.find("#")
    if cut >= 0:
        href = href[:cut]
    authority = href.split("/", 3)[2]
    return None if "@" in authority or not authority else href


def clean_query(url: str) -> str:
    """The URL with its query sorted and without parameters that only track the visitor.

    What is left is fetched, so each parameter stays as its page wrote it."""
    base, mark, query = url.partition("?")
    if not mark:
        return url
    kept = [part for part in query.split("&") if part and not _tracks(part)]
    return f"{base}?{'&'.join(sorted(kept))}" if kept else base


def _tracks(parameter: str) -> bool:
    return unquote(parameter.partition("=")[0]).lower() in TRACKING_PARAMETERS


KeyOf = Callable[[bytes, str], int]
"""Makes the key of a URL, of a job's secret and that URL."""


def key_of(secret: bytes, url: str, method: str = "GET", body: bytes = b"") -> int:
    """The key of a request: the fingerprint of its URL with equivalent escapes, so that `/%7eu` and `/~u` are one."""
    return fingerprint(secret, equivalent(url), method, body)


def keys_of(secret: bytes, found: Iterable[str]) -> list[int]:
    """The keys of plain requests for many URLs: a page has a hundred of them, and the calls would cost more."""
    return [siphash(secret, equivalent(url) if "%" in url else url) >> 1 for url in found]


def equivalent(url: str) -> str:
    """The URL with its escapes as RFC 3986 normalizes them: in upper case, and none for letters, digits and `-._~`.

    It names a page and is never requested: a few servers tell the spellings apart, so a page is asked for as it was
    found."""
    return _ODD_ESCAPE.sub(_normal_escape, url) if "%" in url else url


def _normal_escape(found: re.Match[str]) -> str:
    letter = chr(int(found[0][1:], 16))
    return letter if letter in _UNRESERVED else found[0].upper()


def fingerprint(secret: bytes, url: str, method: str = "GET", body: bytes = b"") -> int:
    """63 bits that stand for a request, letter by letter; `secret` belongs to the job, so that no page can be built to
    collide. What names a request in a job is `key_of`."""
    if method == "GET" and not body:
        return int(siphash(secret, url)) >> 1
    return int(siphash(secret, b"\0".join((method.encode(), url.encode(), body)))) >> 1


def host_port(url: str) -> str:
    """The authority of a normal URL: the host, with its port if that is not the scheme's default."""
    return url.split("/", 3)[2]


def origin(url: str) -> str:
    """Scheme, host and port of a normal URL: what one robots.txt speaks for."""
    return "/".join(url.split("/", 3)[:3])


def path_query(url: str) -> str:
    """The path and query of a normal URL."""
    return "/" + url.split("/", 3)[3]


def host(authority: str) -> str:
    """The host of an authority, without port; an IPv6 address keeps its brackets."""
    if authority.endswith("]"):
        return authority
    head, colon, _ = authority.rpartition(":")
    return head if colon else authority


def is_address(name: str) -> bool:
    """Whether a host is an IP address literal."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


@lru_cache(maxsize=65_536)
def registered_domain(authority: str) -> str:
    """The domain that was registered (`a.b.co.uk` -> `b.co.uk`); an address, or a bare suffix, is its own domain."""
    name = host(authority)
    if is_address(name):
        return authority
    return str(_suffixes().privatesuffix(name) or name)


def site(url: str, *, by: str = "host") -> str:
    """The site of a normal URL: its authority, or its registered domain."""
    authority = host_port(url)
    return registered_domain(authority) if by == "domain" else authority


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    """The list of public suffixes; reading it takes a tenth of a second, and most crawls never ask."""
    return PublicSuffixList()
