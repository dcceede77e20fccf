"""Requests as rows of the queue, and back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from gossamer.frontier import policy
from gossamer.frontier.entries import expand, squeeze
from gossamer.model import Request

SUSPECT, TIMED, WAITING = 0, 1, 2
"""Places: what goes alone, what has a time, and the rest."""
DONE, FAILED, SKIPPED, PARKED, RETRY = 1, 2, 3, 4, 5
REVISITS = (DONE, FAILED, SKIPPED)
"""What a request was, while its next visit has not come."""
STATUS = {"done": DONE, "failed": FAILED, "skipped": SKIPPED, "parked": PARKED}
WORDS = {number: word for word, number in STATUS.items()}


class Row(NamedTuple):
    """One row of the queue. `again` says what it is counted as while its time has not come."""

    site: int
    place: int
    standing: int
    age: int
    id: int
    url: str
    depth: int
    priority: int
    tries: int
    lapses: int
    again: int
    extra: bytes | None


class _Extra(msgspec.Struct, array_like=True, frozen=True, gc=False):
    referrer: str = ""
    hops: int = 0
    state: dict[str, Any] | None = None
    label: str = ""
    meta: dict[str, Any] | None = None
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes = b""
    url: str = ""
    """The URL, where the database cannot hold it as text."""


_NONE = _Extra()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Extra).decode


class RowWriter:
    """Makes rows of requests that nobody knew, as they wait."""

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy
        self._ranks: dict[tuple[int, int, int], int] = {}
        self._foreign: dict[str, bytes] = {}
        """Pages that were linked from, as the requests of other sites have them."""

    def row(self, request: Request, site: int, age: int, referrer: str) -> tuple[Any, ...]:
        """The fields of a `Row`, of one request that was found on the page `referrer` at the moment `age`."""
        url, name, priority, depth, hops = request.url, request.site, request.priority, request.depth, request.hops
        end = len(name) + 8
        # The usual case of `squeeze`, which is half as fast.
        short = url[end:] if url[end : end + 1] == "/" and url[:end] == "https://" + name else squeeze(url, name)
        hidden = ""
        if "\0" in short:
            short, hidden = "=" + url.replace("\0", "\ufffd"), url
        place, standing = WAITING, self._ranks.get((priority, depth, hops))
        if standing is None:
            standing = policy.rank(self._strategy, priority=priority, depth=depth, hops=hops)
            self._ranks[priority, depth, hops] = standing
        if standing == policy.HEAD:
            place, standing = TIMED, 0
        elif self._strategy == "dfs":
            age = -age
        elif self._strategy == "random":
            age = random.getrandbits(62)
        extra = self._extra(request, referrer, hidden)
        return (site, place, standing, age, request.key, short, depth, priority, request.tries, 0, 0, extra)

    def _extra(self, request: Request, referrer: str, url: str) -> bytes | None:
        """What most requests have little of; None for nothing."""
        site, referrer = request.site, request.referrer or referrer
        special = request.label or request.meta or request.method != "GET" or request.headers or request.body or url
        if special or request.hops or request.state is not None:
            origin = squeeze(referrer, site) if referrer else ""
            if special:
                return _encode(
                    (origin, request.hops, request.state, request.label, request.meta, request.method, request.headers,
                     request.body, url)
                )  # fmt: skip
            return _encode((origin, request.hops, request.state))
        if not referrer:
            return None
        if referrer.find(site, 7, len(site) + 8) >= 0:
            return _encode((squeeze(referrer, site),))
        found = self._foreign.get(referrer)
        if found is None:
            found = self._foreign[referrer] = _encode(("=" + referrer,))
        return found


def request_of(row: Sequence[Any], site: str) -> Request:
    """The request again; ValueError if it is none."""
    _, _, _, _, key, url, depth, priority, tries, _, _, packed = row
    try:
        extra = _decode(packed) if packed is not None else _NONE
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    return Request(
        extra.url or expand(url, site), key, site, priority, depth, extra.hops, tries,
        expand(extra.referrer, site) if extra.referrer else "", extra.label, extra.meta, extra.method, extra.headers,
        extra.body, extra.state,
    )  # fmt: skip


def state_of(packed: bytes | None) -> dict[str, Any] | None:
    """What the last visit left, of the extra part."""
    return _decode(packed).state if packed is not None else None


def with_state(packed: bytes | None, state: dict[str, Any] | None) -> bytes | None:
    """The extra part with what a visit left."""
    extra = _decode(packed) if packed is not None else _NONE
    if extra.state == state:
        return packed
    return _encode(msgspec.structs.replace(extra, state=state))
