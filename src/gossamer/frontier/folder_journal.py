"""The journal of one shard: each change is appended to the log of its owner, synced, and counts if the claim held."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gossamer.clock import Clock
from gossamer.frontier.folder_chain import FILE_BITS, Chain, Index, Piece, ShardPast, read_chain
from gossamer.frontier.folder_log import (
    SIZE_BYTES,
    Kept,
    column,
    decode_kept,
    decode_state,
    encode,
    pack,
    size_at,
    states_of,
)
from gossamer.frontier.folder_share import Share, explained
from gossamer.frontier.journal import Change, OutcomeRow, site_view, vars_of
from gossamer.model import Request
from gossamer.settings import Settings

_FILE_MASK = (1 << FILE_BITS) - 1


class FolderJournal:
    """Changes of a shard in the newest file of its chain. `confirm` is asked, after each write, whether it counts."""

    def __init__(
        self,
        share: Share,
        chain: Chain,
        shard: int,
        *,
        clock: Clock,
        run: Callable[..., Awaitable[Any]],
        confirm: Callable[[int], Awaitable[None]],
    ) -> None:
        self._share = share
        self._shard = shard
        self._clock = clock
        self._run = run
        self._confirm = confirm
        self._names = [name for name, _ in chain.files]
        self._handles: dict[int, int] = {}
        self._index = Index(chain)
        self._sites = {number: name for frame in chain for number, name in frame.sites}
        self._end = chain.files[-1][1]
        self._torn = False
        past = ShardPast(chain)
        self._at = past.last_at
        self._gone = self._gone_written = past.sent
        self.past = past
        self.outgoing = past.unsent
        """Links for other shards that are written down here and have yet to go out."""
        self.staged: list[Request] = []
        """Links for other shards that go with the next change."""
        self.changes = 0

    async def write(self, change: Change) -> Sequence[int]:
        out = [encode(request) for request in self.staged]
        # Time stands still rather than go back: what was due stays due.
        self._at = max(self._at, self._clock.epoch())
        sent = self._gone if self._gone != self._gone_written else 0
        frame, data, start = pack(change, at=self._at, out=out, sent=sent)
        end = self._end
        await self._run(self._append, data, end)
        await self._confirm(self._shard)
        self._end = end + len(data)
        self._gone_written = sent or self._gone_written
        self.outgoing += out
        self.changes += 1
        self._sites.update(change.sites)
        place = ((len(self._names) - 1) << FILE_BITS) | (end + start)
        self._index.take(frame, place)
        return states_of(frame, place)

    def _append(self, data: bytes, end: int) -> None:
        name = self._names[-1]
        try:
            self._share.touched("append", name)
            handle = self._handle(len(self._names) - 1)
            if self._torn:
                os.ftruncate(handle, end)
            self._torn = True
            view, at = memoryview(data), end
            while view:
                written = os.pwrite(handle, view, at)
                view, at = view[written:], at + written
            self._share.touched("fsync", name)
            os.fsync(handle)
            self._torn = False
        except OSError as error:
            self._forget_handle(len(self._names) - 1)
            raise explained(error, self._share.root / name) from error

    def _handle(self, file: int) -> int:
        if file not in self._handles:
            how = os.O_RDWR if file == len(self._names) - 1 else os.O_RDONLY
            self._handles[file] = os.open(self._share.root / self._names[file], how)
        return self._handles[file]

    def _forget_handle(self, file: int) -> None:
        """A handle that was bad once may stay so, though the file is well again."""
        handle = self._handles.pop(file, None)
        if handle is not None:
            try:
                os.close(handle)
            except OSError:
                pass

    def sent(self, count: int) -> None:
        """The first so many of the outgoing links are where they belong. It is written down with the next change."""
        del self.outgoing[:count]
        self._gone += count

    def load(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        found = []
        for number in numbers:
            one = decode_kept(self._read(self._index.places[number], self._index.sizes[number]))
            parent = self._index.parents[number]
            referrer = one.referrer or (self.url(parent) if parent else "")
            found.append(
                Request(
                    one.url, one.key, self._sites[one.place], one.priority, one.depth, one.hops, 0, referrer,
                    one.label, one.meta, one.method, one.headers, one.body, self._state(visits.get(number, 0)),
                )
            )  # fmt: skip
        return found

    def url(self, number: int) -> str:
        """The URL of a number."""
        return decode_kept(self._read(self._index.places[number], self._index.sizes[number])).url

    def _state(self, place: int) -> dict[str, Any] | None:
        if not place:
            return None
        size = size_at(self._read(place, SIZE_BYTES))
        return decode_state(self._read(place + SIZE_BYTES, size))

    def _read(self, place: int, size: int) -> bytes:
        file = place >> FILE_BITS
        for last in (False, True):
            try:
                self._share.touched("load", self._names[file])
                data = os.pread(self._handle(file), size, place & _FILE_MASK)
                if len(data) < size:
                    raise OSError(errno.EIO, "the log is shorter than it was")
                return data
            except OSError as error:
                self._forget_handle(file)
                if last or error.errno != errno.ESTALE:
                    raise explained(error, self._share.root / self._names[file]) from error
        raise AssertionError

    def lookup(self, key: int) -> dict[str, Any] | None:
        try:
            chain = read_chain(self._share, self._shard)
        except OSError as error:
            raise explained(error, self._share.root) from error
        return story(chain, key)

    def close(self) -> None:
        for file in list(self._handles):
            self._forget_handle(file)


def story(chain: Chain, key: int) -> dict[str, Any] | None:
    """All that a shard's past says of one URL; None if it is not there."""
    sites = {number: name for frame in chain for number, name in frame.sites}
    for piece in chain.pieces:
        keys = column(piece.frame.keys)
        if key not in keys:
            continue
        place = keys.index(key)
        number, parent = column(piece.frame.numbers)[place], column(piece.frame.parents)[place]
        one = _kept_at(piece, place)
        rows = [row for frame in chain for row in frame.outcomes if row[0] == number]
        return {
            "number": number,
            "url": one.url,
            "site": sites[one.place],
            "depth": one.depth,
            "priority": one.priority,
            "referrer": one.referrer or _url_of(chain, parent),
            "attempts": [vars_of(OutcomeRow(*row[:6], None)) for row in rows],
        }
    return None


def site_of(chain: Chain, name: str, *, settings: Settings, now: float) -> dict[str, Any] | None:
    """All that a shard's past says of one site; None if it is not there. What waits on it is not counted."""
    for _, known, row in ShardPast(chain).sites():
        if known == name:
            return site_view(name, row, settings=settings, now=now)
    return None


def _kept_at(piece: Piece, place: int) -> Kept:
    sizes = column(piece.frame.sizes, "I")
    start = sum(sizes[:place])
    return decode_kept(piece.blobs[start : start + sizes[place]])


def _url_of(chain: Chain, number: int) -> str:
    for piece in chain.pieces:
        numbers = column(piece.frame.numbers)
        if number and number in numbers:
            return _kept_at(piece, numbers.index(number)).url
    return ""
