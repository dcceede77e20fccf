"""The chain of redirects that a request came by: it tells a loop from a wall that opens to those who have a cookie."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from gossamer import urls
from gossamer.model import Request, Response

CHAIN, COOKIES = ":chain", ":cookies"
"""Their places in a request's meta, which no spider sees: the URLs that it came by, and what a sister site set."""
_SET = "+"
"""In front of the mark of a URL whose answer set a cookie."""
_ALIKE = "~"
"""In front of the mark of a URL as its key has it, where that is spelled otherwise."""


def mark(url: str) -> str:
    """A short sign for a URL of a chain."""
    return blake2b(url.encode(), digest_size=6).hexdigest()


def times_met(request: Request, target: str) -> int:
    """How often the chain of a request has been at `target`, this request not counted."""
    sign = mark(target)
    return sum(met.removeprefix(_SET) == sign for met in _chain(request))


def is_alike(request: Request, target: str) -> bool:
    """Whether the chain of a request has been at `target`, or at another spelling of it, which has the same key."""
    signs = {mark(target), mark(urls.equivalent(target))}
    return any(met.lstrip(_SET + _ALIKE) in signs for met in _chain(request))


def apart(request: Request, target: str) -> bytes:
    """What goes into the key of the next hop, so that a redirect to where its chain has been does not count as done."""
    if times_met(request, target):
        return b"again"
    is_spelling = request.url != target and urls.equivalent(request.url) == urls.equivalent(target)
    return b"spelled " + target.encode() if is_spelling or is_alike(request, target) else b""


def sets_cookies(request: Request, response: Response) -> bool:
    """Whether this answer, or one before it in the chain, has set a cookie: only then can asking again help."""
    return bool(response.header("set-cookie")) or any(met.startswith(_SET) for met in _chain(request))


def longer(request: Request, response: Response) -> dict[str, Any]:
    """The meta of the next hop: the chain with this request's own URL."""
    own = [(_SET if response.header("set-cookie") else "") + mark(request.url)]
    if (alike := urls.equivalent(request.url)) != request.url:
        own.append(_ALIKE + mark(alike))
    kept = {name: value for name, value in (request.meta or {}).items() if name != COOKIES}
    return {**kept, CHAIN: [*_chain(request), *own]}


def _chain(request: Request) -> list[str]:
    found = (request.meta or {}).get(CHAIN)
    return [str(met) for met in found] if isinstance(found, list | tuple) else []
