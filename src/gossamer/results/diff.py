"""Compares the pages of two jobs in bounded memory: new, gone, or changed."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from itertools import islice
from operator import attrgetter
from typing import IO, Literal

import msgspec

from gossamer.cut import drops_text, parse_cut
from gossamer.model import PageRow, Record

Kind = Literal["new", "gone", "changed"]
KINDS: tuple[Kind, ...] = ("new", "gone", "changed")
_SORTED_AT_ONCE = 200_000
_url = attrgetter("url")


class Side(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The compared fields of a page in one of the jobs."""

    url: str
    status: int = 0
    digest: str = ""
    """Digest of the body, or of the text if texts are compared."""
    location: str = ""
    error: str = ""
    cut: str = ""
    """What a limit cut from the page, if that affects its digest."""

    @property
    def is_there(self) -> bool:
        """Whether it is a successful page or a redirect."""
        return 200 <= self.status < 400 and not self.error


class Difference(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A page that only one of the jobs has, or that differs between them."""

    kind: Kind
    url: str
    why: str = ""
    """For `changed`: body, text, status, or location, with `(cut: ...)` if one of the two was cut. For `gone`: the
    status, the error, or `not fetched`."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Side).decode


def differences(before: Iterable[Record], after: Iterable[Record], *, by_text: bool = False) -> Iterator[Difference]:
    """The differences, in the order of URLs. Failed pages count as absent.

    `by_text` compares the visible text of pages, if both jobs have stored it."""
    with ExitStack() as stack:
        old, new = (_in_order((_side(one.page, by_text) for one in side), stack) for side in (before, after))
        for one, other in _paired(old, new):
            was, is_there = one is not None and one.is_there, other is not None and other.is_there
            if one is not None and was and not is_there:
                yield Difference("gone", one.url, _loss(other))
            elif other is not None and is_there and not was:
                yield Difference("new", other.url)
            elif one is not None and other is not None and was and is_there and (why := _change(one, other, by_text)):
                yield Difference("changed", one.url, why)


def _side(page: PageRow, by_text: bool) -> Side:
    digest = page.digest
    if by_text:
        digest = (
            f"text {blake2b(page.text.encode('utf-8', 'replace'), digest_size=16).hexdigest()}" if page.text else ""
        )
    cut = page.cut or ""
    return Side(page.url, page.status, digest, page.location, page.error, cut if drops_text(parse_cut(cut)) else "")


def _loss(other: Side | None) -> str:
    if other is None:
        return "not fetched"
    return other.error or str(other.status)


def _change(one: Side, other: Side, by_text: bool) -> str:
    if one.status != other.status and 304 not in (one.status, other.status):
        return f"status {one.status} -> {other.status}"
    if one.location != other.location:
        return "location"
    # A page that was not sent again (304) has no body to compare.
    if not one.digest or not other.digest or one.digest == other.digest:
        return ""
    cut = other.cut or one.cut
    return f"{'text' if by_text else 'body'}{f' (cut: {cut})' if cut else ''}"


def _paired(old: Iterator[Side], new: Iterator[Side]) -> Iterator[tuple[Side | None, Side | None]]:
    """Merge both, in the order of their URLs, into pairs with the same URL."""
    one, other = next(old, None), next(new, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.url < other.url):
            yield one, None
            one = next(old, None)
        elif one is None or other.url < one.url:
            yield None, other
            other = next(new, None)
        else:
            yield one, other
            one, other = next(old, None), next(new, None)


def _in_order(sides: Iterator[Side], stack: ExitStack) -> Iterator[Side]:
    """Sort by URL; what does not fit into memory is sorted in temporary files."""
    runs: list[Iterator[Side]] = []
    while some := sorted(islice(sides, _SORTED_AT_ONCE), key=_url):
        if len(some) < _SORTED_AT_ONCE:
            runs.append(iter(some))
            break
        file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        for one in some:
            packed = _encode(one)
            file.write(len(packed).to_bytes(4, "big") + packed)
        file.seek(0)
        runs.append(_unpacked(file))
    return heapq.merge(*runs, key=_url)


def _unpacked(file: IO[bytes]) -> Iterator[Side]:
    while head := file.read(4):
        yield _decode(file.read(int.from_bytes(head, "big")))
