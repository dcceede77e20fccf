"""Requests as rows of the queue, and back."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
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


class QueueRow(NamedTuple):
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
_CHANGES = itemgetter(7, 8, 9, 10)
_encode_row = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(_Extra).decode


def rows_of(
    links: Iterable[tuple[Request, str, int]], sites: Mapping[str, int], age: int, *, strategy: str
) -> list[tuple[Any, ...]]:
    """The fields of a `Row` for each of these requests that nobody knew, as they wait, one after another.

    Beside each is the page that it was found on. All in one loop: it runs for every new link."""
    found: list[tuple[Any, ...]] = []
    ranks: dict[tuple[int, int, int], int] = {}
    foreign: dict[str, bytes] = {}
    usual = strategy not in ("dfs", "random")
    for request, referrer, _ in links:
        url, name, priority, depth, hops = request.url, request.site, request.priority, request.depth, request.hops
        age += 1
        end = len(name) + 8
        # The usual case of `squeeze`, which is half as fast.
        short = url[end:] if url[end : end + 1] == "/" and url[:end] == "https://" + name else squeeze(url, name)
        hidden = ""
        if "\0" in short:
            short, hidden = "=" + url.replace("\0", "\ufffd"), url
        place, standing = WAITING, ranks.get((priority, depth, hops))
        if standing is None:
            standing = policy.rank(strategy, priority=priority, depth=depth, hops=hops)
            ranks[priority, depth, hops] = standing
        if standing == policy.HEAD:
            place, standing = TIMED, 0
        special = request.label or request.meta or request.method != "GET" or request.headers or request.body
        if special or hidden or hops or request.state is not None or request.referrer:
            extra = _extra(request, request.referrer or referrer, hidden)
        elif not referrer:
            extra = None
        elif referrer.find(name, 7, end) >= 0:
            extra = _encode_row((squeeze(referrer, name),))
        else:
            extra = foreign.get(referrer)
            if extra is None:
                extra = foreign[referrer] = _encode_row(("=" + referrer,))
        turn = age if usual or place == TIMED else -age if strategy == "dfs" else random.getrandbits(62)
        found.append(
            (sites[name], place, standing, turn, request.key, short, depth, priority, request.tries, 0, 0, extra)
        )
    return found


def is_changed(rows: Iterable[Sequence[Any]]) -> bool:
    """Whether one of these has what a request does not have when it is new: a priority, tries, lapses or a time."""
    return any(map(any, map(_CHANGES, rows)))


def _extra(request: Request, referrer: str, url: str) -> bytes | None:
    """What most requests have little of; None for nothing."""
    origin = squeeze(referrer, request.site) if referrer else ""
    short = (origin, request.hops, request.state)
    if request.label or request.meta or request.method != "GET" or request.headers or request.body or url:
        return _encode_row((*short, request.label, request.meta, request.method, request.headers, request.body, url))
    if request.hops or request.state is not None:
        return _encode_row(short)
    return _encode_row((origin,)) if referrer else None


def request_of(row: Sequence[Any], site: str) -> Request:
    """The request again; ValueError if it is none."""
    _, _, _, _, key, url, depth, priority, tries, _, _, packed = row
    try:
        extra = _decode_row(packed) if packed is not None else _NONE
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    return Request(
        extra.url or expand(url, site), key, site, priority, depth, extra.hops, tries,
        expand(extra.referrer, site) if extra.referrer else "", extra.label, extra.meta, extra.method, extra.headers,
        extra.body, extra.state,
    )  # fmt: skip


def state_of(packed: bytes | None) -> dict[str, Any] | None:
    """What the last visit left, of the extra part."""
    return _decode_row(packed).state if packed is not None else None


def with_state(packed: bytes | None, state: dict[str, Any] | None) -> bytes | None:
    """The extra part with what a visit left."""
    extra = _decode_row(packed) if packed is not None else _NONE
    if extra.state == state:
        return packed
    return _encode_row(msgspec.structs.replace(extra, state=state))
