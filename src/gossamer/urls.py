"""URLs: one WHATWG parser for everything, and the fingerprint, site, and registered domain of a URL."""

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
    """Return the normalized URL without fragment; None unless it is http(s) without credentials."""
    try:
        return _crawlable(ada_url.normalize_url(url))
    except ValueError:
        whole = _scalars(url)
        return normal(whole) if whole != url else None


def join(base: str, reference: str) -> str | None:
    """Resolve `reference` against `base` as a browser does, then normalize it as `normal` does."""
    try:
        return _crawlable(ada_url.join_url(base, reference))
    except ValueError:
        whole = _scalars(reference)
        return join(base, whole) if whole != reference else None


def resolve(base: str, reference: str) -> str | None:
    """Resolve `reference` against `base`, whatever its scheme, fragment, and credentials; None if it is invalid."""
    try:
        return str(ada_url.join_url(base, reference))
    except ValueError:
        whole = _scalars(reference)
        return resolve(base, whole) if whole != reference else None


def _scalars(text: str) -> str:
    """Replace lone surrogates with U+FFFD, as the standard requires."""
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
    """Sort the query of a URL, and remove tracking parameters.

    The result is fetched, so the other parameters stay as the page wrote them."""
    base, mark, query = url.partition("?")
    if not mark:
        return url
    kept = [part for part in query.split("&") if part and not _tracks(part)]
    return f"{base}?{'&'.join(sorted(kept))}" if kept else base


def _tracks(parameter: str) -> bool:
    return unquote(parameter.partition("=")[0]).lower() in TRACKING_PARAMETERS


KeyOf = Callable[[bytes, str], int]
"""Computes the key of a URL from a job's secret and that URL."""


def key_of(secret: bytes, url: str, method: str = "GET", body: bytes = b"") -> int:
    """Return the key of a request: the fingerprint of its URL with equivalent escapes, so `/%7eu` and `/~u` are one
    page."""
    return fingerprint(secret, equivalent(url), method, body)


def keys_of(secret: bytes, found: Iterable[str]) -> list[int]:
    """Return the keys of plain requests for many URLs, in one call because a page has a hundred of them."""
    return [siphash(secret, equivalent(url) if "%" in url else url) >> 1 for url in found]


def equivalent(url: str) -> str:
    """Normalize the escapes of a URL by RFC 3986: in upper case, and none for letters, digits, and `-._~`.

    The result identifies a page and is never requested: a few servers distinguish the spellings, so a page is fetched
    under the URL that was found."""
    return _ODD_ESCAPE.sub(_normal_escape, url) if "%" in url else url


def _normal_escape(found: re.Match[str]) -> str:
    letter = chr(int(found[0][1:], 16))
    return letter if letter in _UNRESERVED else found[0].upper()


def fingerprint(secret: bytes, url: str, method: str = "GET", body: bytes = b"") -> int:
    """Return a 63-bit fingerprint of a request, which is sensitive to every character.

    `secret` belongs to the job, so that nobody can construct a page whose URLs collide. The key of a request in a job
    is `key_of`."""
    if method == "GET" and not body:
        return int(siphash(secret, url)) >> 1
    return int(siphash(secret, b"\0".join((method.encode(), url.encode(), body)))) >> 1


def host_port(url: str) -> str:
    """Return the authority of a normalized URL: the host, with its port if that is not the default."""
    return url.split("/", 3)[2]


def origin(url: str) -> str:
    """Return scheme, host, and port of a normalized URL: the scope of one robots.txt."""
    return "/".join(url.split("/", 3)[:3])


def path_query(url: str) -> str:
    """Return the path and query of a normalized URL."""
    return "/" + url.split("/", 3)[3]


def host(authority: str) -> str:
    """Return the host of an authority, without port; an IPv6 address keeps its brackets."""
    if authority.endswith("]"):
        return authority
    head, colon, _ = authority.rpartition(":")
    return head if colon else authority


def is_address(name: str) -> bool:
    """Return whether a host is an IP address literal."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


@lru_cache(maxsize=65_536)
def registered_domain(authority: str) -> str:
    """Return the registered domain (`a.b.co.uk` -> `b.co.uk`); an IP address or a bare suffix is returned as it is."""
    name = host(authority)
    if is_address(name):
        return authority
    return str(_suffixes().privatesuffix(name) or name)


def site(url: str, *, by: str = "host") -> str:
    """Return the site of a normalized URL: its authority, or its registered domain."""
    authority = host_port(url)
    return registered_domain(authority) if by == "domain" else authority


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    """Load the public suffix list on first use: reading it takes a tenth of a second, and most crawls do not need
    it."""
    return PublicSuffixList()
