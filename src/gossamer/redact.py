"""Hides passwords, tokens, and other secrets in texts, URLs, and headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.settings import Settings


HIDDEN = "***"
CREDENTIALS = frozenset(
    [
        "authorization",
        "proxy-authorization",
        "cookie",
        "cookie2",
        "set-cookie",
        "x-api-key",
        "api-key",
        "apikey",
        "x-auth-token",
        "x-access-token",
        "x-csrf-token",
        "x-xsrf-token",
        "x-amz-security-token",
    ]
)
"""Headers that carry credentials, in lower case."""
_WORDS = r"token|secret|passw(?:or)?d?|pwd|api[_-]?key|signature|session(?:id)?|credential"
# Bounded, so that no text from the network costs quadratic time.
_NAMED = rf"[\w.-]{{0,64}}(?:{_WORDS})[\w.-]{{0,64}}"
_IN_QUERY = re.compile(rf"(?i)([?&;](?:{_NAMED}|sid|auth|key|sig|code)=)[^&#;\s\"'\\]*")
_HEADERS = "|".join(sorted(CREDENTIALS, key=len, reverse=True))
_IN_TEXT = (
    (re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{0,30}://[^/\s:@]*):[^/\s]*@"), rf"\1:{HIDDEN}@"),
    (re.compile(rf"(?i)((?:[?&;]|\b){_NAMED}=)[^&;\s\"'\\]+"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)\b({_HEADERS})(['\"]?\s*[:=]\s*['\"]?)[^'\"\r\n]+"), rf"\1\2{HIDDEN}"),
)
_LONGEST_URL = 500


def masked(text: str) -> str:
    """Return a text without anything that looks like a password, a token, or a cookie."""
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return _IN_QUERY.sub(rf"\1{HIDDEN}", text) if "=" in text else text


def masked_url(url: str) -> str:
    """Return a URL for display: without secrets in its query, and shortened."""
    shown = _IN_QUERY.sub(rf"\1{HIDDEN}", url) if "=" in url else url
    return shown if len(shown) <= _LONGEST_URL else shown[: _LONGEST_URL - 1] + "…"


def masked_address(url: str) -> str:
    """Return the address of one or several servers without passwords, in any notation."""
    return ",".join(map(_masked_address, re.split(r",(?=[a-z+]+://)", url)))


def _masked_address(url: str) -> str:
    scheme, slashes, rest = url.partition("://")
    head, at, tail = rest.rpartition("@")
    user, colon, _ = head.partition(":")
    shown = f"{scheme}{slashes}{user}{f':{HIDDEN}' if colon else ''}@{tail}" if at else url
    return re.sub(rf"(?i)((?:[?&;]|\b){_NAMED}=)[^&]*", rf"\1{HIDDEN}", shown)


def has_password(url: str) -> bool:
    """Return whether an address contains a password; a reference like ${NAME} does not count."""
    user = url.partition("://")[2].rpartition("@")[0]
    return has_literal(user.partition(":")[2])


def has_literal(value: str) -> bool:
    """Return whether a value contains text of its own besides references like ${NAME}."""
    return bool(re.sub(r"\$\{[\w:]+\}", "", value))


def has_credentials(headers: Iterable[tuple[str, str]]) -> bool:
    """Return whether a credential header has a literal value."""
    return any(name.lower() in CREDENTIALS and has_literal(value) for name, value in headers)


def has_secrets(settings: Settings) -> bool:
    """Return whether the settings may contain a literal password; any header or spider argument may be one."""
    own = settings.sites.values()
    return (
        any(has_literal(value) for some in (settings.spider_args, *header_sets(settings)) for value in some.values())
        or any(has_literal(site.auth.partition(":")[2]) for site in own)
        or any(map(has_password, (*settings.sink, *settings.proxy, *(site.proxy for site in own))))
    )


def header_sets(settings: Settings) -> tuple[Mapping[str, str], ...]:
    """Return all headers that a job sends, for every site."""
    return (settings.headers, *settings.header_sets, *(site.headers for site in settings.sites.values()))


def masked_memo(memo: Mapping[str, Any]) -> dict[str, Any]:
    """Return a site's memo for display: without its cookies, which would give access to its login."""
    return {name: "(kept)" if name.partition(".")[0] == "cookies" else value for name, value in memo.items()}
