"""The journal of one shard: each change is appended to the log of its owner, synced, and counts if the claim held."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.errors import Unavailable
from gossamer.frontier.folder_chain import (
    FILE_BITS,
    Chain,
    Growth,
    Index,
    Piece,
    ShardPast,
    put_log,
    put_past,
    read_chain,
    sweep_logs,
)
from gossamer.frontier.folder_log import (
    SIZE_BYTES,
    LoggedRequest,
    column,
    decode_kept,
    decode_state,
    encode,
    pack,
    size_at,
    states_of,
)
from gossamer.frontier.folder_share import explained
from gossamer.frontier.journal import DONE, FAILED, Change, NotAtHand, OutcomeRow, site_view, to_the_end, vars_of
from gossamer.model import Request
from gossamer.settings import Settings

if TYPE_CHECKING:
    from gossamer.frontier.folder_owner import FolderSession

log = logging.getLogger("gossamer.frontier")
_FILE_MASK = (1 << FILE_BITS) - 1


class _File:
    """An open file. Several threads may use it: it is closed when the last of them lets go of it."""

    def __init__(self, path: Path, how: int) -> None:
        self.handle = os.open(path, how)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            with suppress(OSError):
                os.close(self.handle)


class _Next(NamedTuple):
    """A chain to go on with, and what is to be known of it."""

    chain: Chain
    places: Index
    visits: Mapping[int, int]


class FolderJournal:
    """Changes of a shard in the newest file of its chain. Its owner is asked, after each write, whether it counts."""

    def __init__(self, owner: FolderSession, chain: Chain, past: ShardPast, shard: int) -> None:
        self._owner = owner
        self._share = owner.share
        self._shard = shard
        self._names = [name for name, _ in chain.files]
        self._older = chain.files[:-1]
        self._files: dict[int, _File] = {}
        self._at_hand: dict[int, Request] = {}
        self._index = Index(chain)
        self._sites = {number: name for frame in chain for number, name in frame.sites}
        self._end = chain.files[-1][1]
        self._torn = False
        self._growth = chain.growth()
        self._next: _Next | None = None
        self._nexts = 0
        self._reads: set[asyncio.Task[list[Request]]] = set()
        self._at = past.last_at
        self._gone = self._gone_written = past.sent
        self.outgoing = past.unsent
        """Links for other shards that are written down here and have yet to go out."""
        self.staged: list[Request] = []
        """Links for other shards that go with the next change."""
        self.changes = 0
        self.moved: Callable[[Mapping[int, int]], None] = lambda visits: None
        """Called with the new place of each URL's last visit when the log was made short."""

    async def write(self, change: Change) -> Sequence[int]:
        if self.is_long:
            await to_the_end(self._shorten())
        out = [encode(request) for request in self.staged]
        # Time stands still rather than go back: what was due stays due.
        self._at = max(self._at, self._owner.clock.epoch())
        sent = self._gone if self._gone != self._gone_written else 0
        frame, data, start = pack(change, at=self._at, out=out, sent=sent)
        end = self._end
        await self._owner.run(self._append, data, end)
        await self._owner.confirm(self._shard)
        self._end = end + len(data)
        self._gone_written = sent or self._gone_written
        self.outgoing += out
        self.changes += 1
        self._sites.update(change.sites)
        place = ((len(self._names) - 1) << FILE_BITS) | (end + start)
        self._index.take(frame, place)
        self._growth.take(frame)
        self._growth.size += len(data)
        return states_of(frame, place)

    @property
    def is_long(self) -> bool:
        """Whether the next change goes to a new log, behind a shorter past."""
        return self._next is not None or self._growth.is_much(len(self._index.places))

    async def _shorten(self) -> None:
        """Go on in a new log behind a past without what came to nothing.

        The past is written first, then the new log, which counts from then on: whoever finds it needs no older file,
        and whoever does not finds them as they were. So nothing may be written to the old log once the new one may be
        there; if that is not known, the next change begins with another one, whose name is higher still."""
        if self._next is None:
            try:
                self._next = await self._owner.run(self._write_past)
            except Unavailable as error:
                log.warning("the log of shard %d stays long for now: %s", self._shard, error)
                self._growth = Growth()
                return
        chain, index, visits = self._next
        await self._owner.run(self._write_log, chain)
        await self._owner.confirm(self._shard)
        reads, older, self._next = set(self._reads), len(self._names), None
        self._names += [name for name, _ in chain.files]
        self._older, self._end, self._torn = chain.files[:-1], chain.files[-1][1], False
        self._index, self._growth = index, Growth()
        self._growth.size = sum(length for _, length in chain.files)
        # Links that have gone out, and are in the new log since the old one did not say so.
        self._gone, self._gone_written = self._gone - self._gone_written, 0
        self.moved(visits)
        if reads:
            # They were told of places in the old files.
            await asyncio.wait(reads)
        for file in [file for file in self._files if file < older]:
            self._files.pop(file, None)
        try:
            await self._owner.run(sweep_logs, self._share, chain, self._shard)
        except Unavailable as error:
            log.debug("old logs of shard %d are left to its next owner: %s", self._shard, error)

    async def forget_visits(self, unvisited: Set[int], *, written_off: int = 0) -> None:
        """Go on in a new log in which URLs with these numbers were never visited, and so are queued. What is in memory
        does not know: the shard has to be opened anew."""

        def rewrite() -> None:
            name, session, first = self._next_name("past"), self._owner.session, len(self._names)
            made = put_past(
                self._share, self._whole(), name, shard=self._shard, session=session, first=first,
                unvisited=unvisited, written_off=written_off,
            )  # fmt: skip
            self._write_log(made)

        await self._owner.run(rewrite)
        await self._owner.confirm(self._shard)

    def _whole(self) -> Chain:
        """All that was written down, read again."""
        chain = Chain()
        for name, length in [*self._older, (self._names[-1], self._end)]:
            chain.take(name, self._share.read(name), length)
            if chain.files[-1][1] != length:
                raise OSError(errno.EIO, f"{name} cannot be read to its end")
        return chain

    def _write_past(self) -> _Next:
        chain = self._whole()
        name, session, first = self._next_name("past"), self._owner.session, len(self._names)
        made = put_past(self._share, chain, name, shard=self._shard, session=session, first=first)
        return _Next(made, Index(made), ShardPast(made).last_visits)

    def _write_log(self, chain: Chain) -> None:
        put_log(self._share, chain, self._next_name("log"), shard=self._shard, session=self._owner.session)

    def _next_name(self, kind: str) -> str:
        """A name that sorts behind all that this owner has used, and before those of its heirs."""
        self._nexts += 1
        folder, _, first = self._names[-1].rpartition("/")
        return f"{folder}/{kind}-{first.partition('-')[2].partition('.')[0]}.{self._nexts:06}"

    def _append(self, data: bytes, end: int) -> None:
        name = self._names[-1]
        try:
            self._share.touched("append", name)
            log = self._file(len(self._names) - 1)
            if self._torn:
                os.ftruncate(log.handle, end)
            self._torn = True
            view, at = memoryview(data), end
            while view:
                written = os.pwrite(log.handle, view, at)
                view, at = view[written:], at + written
            self._share.touched("fsync", name)
            os.fsync(log.handle)
            self._torn = False
        except OSError as error:
            # A handle that was bad once may stay so, though the file is well again.
            self._files.pop(len(self._names) - 1, None)
            raise explained(error, self._share.root / name) from error

    def _file(self, number: int) -> _File:
        found = self._files.get(number)
        if found is None:
            how = os.O_RDWR if number == len(self._names) - 1 else os.O_RDONLY
            found = self._files[number] = _File(self._share.root / self._names[number], how)
        return found

    def sent(self, count: int) -> None:
        """The first so many of the outgoing links are where they belong. It is written down with the next change."""
        del self.outgoing[:count]
        self._gone += count

    def load(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        if any(number not in self._at_hand for number in numbers):
            raise NotAtHand(numbers, visits)
        found = [self._at_hand[number] for number in numbers]
        self._at_hand.clear()
        return found

    async def fetch(self, numbers: Sequence[int], visits: Mapping[int, int]) -> None:
        """Read requests, so that `load` has them at hand: until the next `load`."""
        self._at_hand.update(zip(numbers, await self.read(numbers, visits), strict=True))

    async def read(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        """Requests as they were written down, read in a thread."""
        reading = asyncio.ensure_future(self._owner.read(self._requests, numbers, visits))
        self._reads.add(reading)
        reading.add_done_callback(self._reads.discard)
        return await reading

    def _requests(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
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
                log = self._file(file)
                data = os.pread(log.handle, size, place & _FILE_MASK)
                if len(data) < size:
                    raise OSError(errno.EIO, "the log is shorter than it was")
                return data
            except OSError as error:
                self._files.pop(file, None)
                if last or error.errno != errno.ESTALE:
                    raise explained(error, self._share.root / self._names[file]) from error
        raise AssertionError

    def lookup(self, key: int) -> dict[str, Any] | None:
        return story(read_chain(self._share, self._shard), key)

    def close(self) -> None:
        self._files.clear()


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


def sites_of(chain: Chain, *, settings: Settings, now: float) -> dict[str, dict[str, Any]]:
    """All that a shard's past says of its sites, by name, with what waits on each; who has it in hand is not there."""
    past = ShardPast(chain)
    found: dict[int, dict[str, Any]] = {}
    for number, name, row in past.sites():
        empty = {"queued": 0, "delayed": 0, "stored": 0}
        found[number] = {**site_view(name, row, settings=settings, now=now), **empty}
    last: dict[int, tuple[int, bool]] = {}
    stored = Counter(past.dropped)
    for _, number, status, again_at, _ in past.outcomes():
        last[number] = status, again_at is not None
        stored[number] += status in (DONE, FAILED)
    for number, _, site_number, *_ in past.urls():
        site, (status, again) = found[site_number], last.get(number, (0, False))
        site["stored"] += stored[number]
        if not site["closed"] and past.lapses.get(number, 0) < settings.max_deliveries:
            site["queued"] += not status
            site["delayed"] += bool(status) and again
    return {site["site"]: site for site in found.values()}


def site_of(chain: Chain, name: str, *, settings: Settings, now: float) -> dict[str, Any] | None:
    """What was noted of one site; None if it is not there. What waits on it is not counted."""
    for _, known, row in ShardPast(chain).sites():
        if known == name:
            return site_view(name, row, settings=settings, now=now)
    return None


def _kept_at(piece: Piece, place: int) -> LoggedRequest:
    sizes = column(piece.frame.sizes, "I")
    start = sum(sizes[:place])
    return decode_kept(piece.blobs[start : start + sizes[place]])


def _url_of(chain: Chain, number: int) -> str:
    for piece in chain.pieces:
        numbers = column(piece.frame.numbers)
        if number and number in numbers:
            return _kept_at(piece, numbers.index(number)).url
    return ""
