"""The log of a shard: checksummed frames, and the chain of logs that its owners wrote one after another.

Each owner writes a log of its own, named by its claim, and never appends to those of others. The first frame of a log
names the files before it and how much of each was read (`LogHeader.base`): together they are the chain, the shard's
whole past. Whatever a former owner appends afterwards lies beyond the named lengths and is not part of the chain. This,
with the order of claim and read in `owner`, is what makes late writers harmless.

A frame is one `Change`, with a checksum over head and contents. What a crash cut short, and zeros that a file system
left at the end, do not pass for a frame; reading stops before the first that is not whole. So a change is there whole
or not at all (P3). URLs stand in columns, and their requests behind the head: a start reads keys, sites and ranks
without decoding each request, and `Index` finds a request by its number later.

A past grows. When there is much in it that no longer matters, its owner writes a shorter one (`shortened`): all URLs,
of each the last visit and the tries since then, the last state of each site, and the links that have not gone out. The
order is fixed: first the past, which nothing refers to yet, then a log whose base is that past. From the moment when
the log has its name, it is the newest, and the old files can go. A crash before leaves a file that is in nobody's way;
a crash after leaves old files, which the next owner deletes (`sweep_logs`).

A reader without a claim may find that files vanish under it, because their owner has just shortened them: `read_chain`
begins again. A base that is shorter than its log says is an error, and nothing is repaired: the file was cut or
restored from an older copy, and acknowledged work is missing."""

from __future__ import annotations

import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Set
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from gossamer.errors import SchemaMismatch
from gossamer.frontier.embedded import journal
from gossamer.frontier.embedded.journal import Change, JournalSite, OutcomeRow, Past
from gossamer.frontier.folder.files import SharedFolder
from gossamer.model import Request

MAGIC = b"gossamer-shard1\n"
_HEAD = Struct("<III")
_SIZE = Struct("<I")
_LONG = ("url", "key", "place", "priority", "depth", "hops", "referrer", "label", "meta", "method", "headers", "body")
_SHORT = "ukspdnrlmvhb"

Row = tuple[int, int, int, float, float | None, str, int]
"""Number, status, code, when, when again, reason, length of the state that follows the URLs (0: none)."""
Note = tuple[float, float, dict[str, bytes], dict[str, Any], str]


class LogHeader(msgspec.Struct, array_like=True):
    """The first frame of a log; `base` are the files to read before it, and how much of each."""

    session: str
    shard: int
    base: list[tuple[str, int]]


class LogFrame(msgspec.Struct, array_like=True):
    """One change. URLs stand in columns of equal length, which a start reads without a loop over requests."""

    at: float = 0.0
    sites: list[tuple[int, str]] = []
    numbers: bytes = b""
    keys: bytes = b""
    places: bytes = b""
    parents: bytes = b""
    ranks: list[tuple[int, int, int]] = []
    """Priority, depth, hops; one for all URLs if they agree."""
    sizes: bytes = b""
    """Lengths of the requests, which follow the frame's head; the states of the outcomes follow these."""
    outcomes: list[Row] = []
    notes: dict[int, Note] = {}
    lapses: dict[int, int] = {}
    out: list[bytes] = []
    """Links for other shards, sent once this frame is durable."""
    sent: int = 0
    """Links of this shard that have been sent since the log's past began; 0: as many as the last frame says."""
    stored: int = 0
    """Stored visits that an earlier version left out of a shortened past without naming their URLs."""
    hastened: dict[int, tuple[float, float]] = {}
    dropped: dict[int, int] = {}
    """Number -> stored visits that a shortened past leaves out."""


class LoggedRequest(msgspec.Struct, omit_defaults=True, rename=dict(zip(_LONG, _SHORT, strict=True))):
    """A request in a log; `place` is the number of its site."""

    url: str
    key: int
    place: int
    priority: int = 0
    depth: int = 0
    hops: int = 0
    referrer: str = ""
    label: str = ""
    meta: dict[str, Any] | None = None
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes = b""


encode = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder(LogFrame).decode
decode_opening = msgspec.msgpack.Decoder(LogHeader).decode
decode_kept = msgspec.msgpack.Decoder(LoggedRequest).decode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_state = msgspec.msgpack.Decoder(dict[str, Any]).decode


def framed(head: bytes, blobs: bytes = b"") -> bytes:
    """A frame with checksum and lengths: a part of one does not pass for a frame."""
    return _HEAD.pack(zlib.crc32(blobs, zlib.crc32(head)), len(head), len(blobs)) + head + blobs


def frames(data: memoryview, start: int = 0) -> Iterator[tuple[int, memoryview, int]]:
    """For each whole frame its end, its head, and where its contents begin; stops before a torn one."""
    while start + _HEAD.size <= len(data):
        checksum, head_length, blob_length = _HEAD.unpack_from(data, start)
        begin = start + _HEAD.size
        end = begin + head_length + blob_length
        # A head is never empty, so zeros at the end of a file are no frames.
        if not head_length or end > len(data) or zlib.crc32(data[begin:end]) != checksum:
            return
        yield end, data[begin : begin + head_length], begin + head_length
        start = end


def opening(session: str, shard: int, base: list[tuple[str, int]]) -> bytes:
    """The beginning of a log."""
    return MAGIC + framed(encode(LogHeader(session, shard, base)))


def pack(change: Change, *, at: float, out: list[bytes], sent: int) -> tuple[LogFrame, bytes, int]:
    """A change as a frame, the bytes to append, and where in them its requests begin."""
    numbers, keys, places, parents = array("q"), array("q"), array("q"), array("q")
    ranks: list[tuple[int, int, int]] = []
    sizes = array("I")
    blobs: list[bytes] = []
    for number, request, place, parent in change.urls:
        numbers.append(number)
        keys.append(request.key)
        places.append(place)
        parents.append(parent)
        ranks.append((request.priority, request.depth, request.hops))
        blob = encode(kept(request, place))
        sizes.append(len(blob))
        blobs.append(blob)
    rows, states = _rows(change.outcomes)
    frame = LogFrame(
        at, change.sites, numbers.tobytes(), keys.tobytes(), places.tobytes(), parents.tobytes(),
        ranks[:1] if len(set(ranks)) == 1 else ranks, sizes.tobytes(), rows,
        {n: (row.delay, row.hold_until, row.robots, row.memo, row.closed) for n, row in change.notes.items()},
        change.lapses, out, sent, 0, change.hastened,
    )  # fmt: skip
    head = encode(frame)
    return frame, framed(head, b"".join(blobs + states)), _HEAD.size + len(head)


def states_of(frame: LogFrame, place: int) -> list[int]:
    """The place of each outcome's state (0: it has none) in a frame whose first request is at `place`."""
    place += sum(column(frame.sizes, "I"))
    found = []
    for row in frame.outcomes:
        found.append(place if row[6] else 0)
        place += row[6]
    return found


def _rows(outcomes: list[OutcomeRow]) -> tuple[list[Row], list[bytes]]:
    rows: list[Row] = []
    states = []
    for row in outcomes:
        state = b"" if row.state is None else sized(encode(row.state))
        states.append(state)
        rows.append((row.number, row.status, row.code, round(row.at, 3), row.again_at, row.reason, len(state)))
    return rows, states


def sized(state: bytes) -> bytes:
    """A state with its length in front: only its place is remembered."""
    return _SIZE.pack(len(state)) + state


def size_at(data: bytes) -> int:
    """The length of the state that begins here, after `SIZE_BYTES`."""
    return int(_SIZE.unpack_from(data)[0])


SIZE_BYTES = _SIZE.size


def kept(request: Request, place: int) -> LoggedRequest:
    """A request in the form of a log."""
    return LoggedRequest(
        request.url, request.key, place, request.priority, request.depth, request.hops, request.referrer,
        request.label, request.meta, request.method, request.headers, request.body,
    )  # fmt: skip


def column(data: bytes, kind: str = "q") -> array[int]:
    """A column of a frame."""
    found: array[int] = array(kind)
    found.frombytes(data)
    return found


_MOST_FILES = 6
_URLS_PER_FRAME = 4096
_SPARE_ROWS = 1000
_SPARE_BYTES = 16 << 20
_NOTE_BYTES = 300
FILE_BITS = 40
"""A place is a file's number and an offset in it, in one integer."""


class ChainFrame(NamedTuple):
    """A frame, the place of its first request, and the bytes behind its head."""

    place: int
    frame: LogFrame
    blobs: memoryview


class Chain:
    """The past of a shard: its files with the lengths that count, and the frames in them.

    Files are numbered from `first`, so that places in them stay valid when an owner goes on in new files."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.files: list[tuple[str, int]] = []
        self.pieces: list[ChainFrame] = []

    def __iter__(self) -> Iterator[LogFrame]:
        return (piece.frame for piece in self.pieces)

    def take(self, name: str, data: bytes, limit: int) -> None:
        """Add a file, up to a length or to the first frame that is not whole."""
        view, file, end = memoryview(data)[:limit], self.first + len(self.files), 0
        for number, (at, head, blobs) in enumerate(frames(view, len(MAGIC))):
            end = at
            if number:
                self.pieces.append(ChainFrame((file << FILE_BITS) | blobs, decode_frame(head), view[blobs:at]))
        self.files.append((name, end))

    def is_long(self) -> bool:
        """Whether a start reads much that no longer matters: many files, old outcomes, or links that have gone out."""
        rows = sum(len(frame.outcomes) for frame in self)
        urls = sum(len(frame.numbers) for frame in self) // 8
        return len(self.files) >= _MOST_FILES or rows > 2 * urls + _SPARE_ROWS or self.growth().is_much(urls)

    def growth(self) -> Growth:
        """What was added since the past was last shortened."""
        found = Growth()
        for piece in self.pieces:
            if "/past-" not in self.files[(piece.place >> FILE_BITS) - self.first][0]:
                found.take(piece.frame)
        found.size = sum(length for _, length in self.files)
        return found


class Growth:
    """An estimate of how much of a log no longer matters, kept up without reading it."""

    def __init__(self) -> None:
        self.rows = 0
        self.waste = 0
        self.size = 0

    def take(self, frame: LogFrame) -> None:
        """Count a written frame."""
        self.rows += len(frame.outcomes)
        # Links go out soon, and only the last note of a site counts.
        self.waste += sum(map(len, frame.out))
        for note in frame.notes.values():
            self.waste += _NOTE_BYTES + sum(map(len, note[2].values()))

    def is_much(self, urls: int) -> bool:
        """Whether shortening is worth its cost."""
        return self.rows > urls + _SPARE_ROWS or self.waste > _SPARE_BYTES + self.size // 2


def folder_of(shard: int) -> str:
    """The folder of a shard's logs."""
    return f"shards/{shard:04}"


def log_name(shard: int, claim: int) -> str:
    """The name of the log that the holder of a claim begins; it sorts by claim."""
    return f"{folder_of(shard)}/log-{claim:010}"


def read_chain(share: SharedFolder, shard: int) -> Chain:
    """The chain of a shard: the newest log that has a whole first frame, behind the files that it names.

    The worker with the shard's newest claim reads all that was ever confirmed. Others read a past that may be a moment
    old."""
    for last in (False, False, True):
        try:
            return _read_chain(share, shard)
        except FileNotFoundError:
            # Its owner may have shortened the past while we read.
            if last:
                raise
    raise AssertionError


def _read_chain(share: SharedFolder, shard: int) -> Chain:
    chain = Chain()
    logs = [name for name in share.names(folder_of(shard), fresh=True) if name.startswith("log-")]
    for name in reversed(logs):
        path = f"{folder_of(shard)}/{name}"
        data = share.read(path)
        first = next(frames(memoryview(data), len(MAGIC)), None)
        if not data.startswith(MAGIC[: len(data)]):
            raise SchemaMismatch(f"{share.root / path} is not a log of this version", hint="the file was not changed")
        if first is None:
            # Its owner died before its first frame was whole: nothing was confirmed in it.
            continue
        for older, length in decode_opening(first[1]).base:
            found = share.read(older)
            if len(found) < length:
                raise SchemaMismatch(
                    f"{share.root / older} has {len(found)} bytes, and had {length} when it was last used",
                    hint="was it cut, or restored from an older copy? the crawl cannot go on without it",
                )
            chain.take(older, found, length)
        chain.take(path, data, len(data))
        break
    return chain


def begin_log(share: SharedFolder, chain: Chain, *, shard: int, claim: int, session: str) -> Chain:
    """Begin the log of a new owner, behind a shortened past if the old one is long; the chain with it."""
    if chain.is_long():
        chain = put_past(share, chain, f"{folder_of(shard)}/past-{claim:010}", shard=shard, session=session)
    put_log(share, chain, log_name(shard, claim), shard=shard, session=session)
    return chain


def put_past(
    share: SharedFolder,
    chain: Chain,
    name: str,
    *,
    shard: int,
    session: str,
    first: int = 0,
    unvisited: Set[int] = frozenset(),
    written_off: int = 0,
) -> Chain:
    """Write a shortened past to a file, and return a chain of it alone. Nothing refers to the file yet."""
    data = shortened(chain, session, shard, unvisited=unvisited, written_off=written_off)
    share.put(name, data)
    made = Chain(first)
    made.take(name, data, len(data))
    return made


def put_log(share: SharedFolder, chain: Chain, name: str, *, shard: int, session: str) -> None:
    """Begin a log behind a chain. Once the file has its name, it is the shard's newest log."""
    data = opening(session, shard, chain.files)
    share.put(name, data)
    chain.take(name, data, len(data))


def sweep_logs(share: SharedFolder, chain: Chain, shard: int) -> None:
    """Delete files that are older than the newest of a chain and not part of it. Newer ones may be a successor's."""
    needed = {name for name, _ in chain.files}
    newest = chain.files[-1][0].rpartition("-")[2]
    for name in share.names(folder_of(shard)):
        path = f"{folder_of(shard)}/{name}"
        kind, _, number = name.partition("-")
        if kind in ("log", "past") and path not in needed and number[:1].isdigit() and number < newest:
            share.remove(path)


def shortened(
    chain: Chain, session: str, shard: int, *, unvisited: Set[int] = frozenset(), written_off: int = 0
) -> bytes:
    """A chain's past without what no longer matters, as the bytes of one file.

    Of each URL it has the last visit and the tries since then; stored visits before that are counted in `dropped`.
    URLs in `unvisited` lose their outcomes, so that they are queued. `written_off` stored visits are not counted any
    more. Requests are copied as they are, without decoding."""
    rows: dict[int, list[tuple[Row, bytes]]] = {}
    past = ShardPast(chain)
    dropped = Counter(past.dropped)
    for piece in chain.pieces:
        for row, state in _with_states(piece):
            if row[0] in unvisited:
                continue
            before = rows.setdefault(row[0], [])
            if row[1] != journal.RETRY:
                if stored := sum(old[1] in (journal.DONE, journal.FAILED) for old, _ in before):
                    dropped[row[0]] += stored
                before.clear()
            before.append((row, state))
    first = LogFrame(
        at=past.last_at,
        sites=[site for frame in chain for site in frame.sites],
        notes=past.notes,
        lapses=dict(past.lapses),
        out=past.unsent,
        stored=past.stored - written_off,
        dropped={number: count for number, count in dropped.items() if number not in unvisited},
    )
    written = [opening(session, shard, []), framed(encode(first))]
    for piece in chain.pieces:
        frame = piece.frame
        if frame.numbers:
            # Requests are copied with the columns of their frame.
            length = sum(column(frame.sizes, "I"))
            urls = LogFrame(0.0, [], frame.numbers, frame.keys, frame.places, frame.parents, frame.ranks, frame.sizes)
            written.append(framed(encode(urls), bytes(piece.blobs[:length])))
    left = [pair for pairs in rows.values() for pair in pairs]
    for start in range(0, len(left), _URLS_PER_FRAME):
        some = left[start : start + _URLS_PER_FRAME]
        written.append(
            framed(encode(LogFrame(outcomes=[row for row, _ in some])), b"".join(state for _, state in some))
        )
    hastened = {number: hint for number, hint in past.hastened.items() if number not in unvisited}
    if hastened:
        written.append(framed(encode(LogFrame(hastened=hastened))))
    return b"".join(written)


def _with_states(piece: ChainFrame) -> Iterator[tuple[Row, bytes]]:
    frame = piece.frame
    start = sum(column(frame.sizes, "I"))
    for row in frame.outcomes:
        yield row, bytes(piece.blobs[start : start + row[6]])
        start += row[6]


class ShardPast(Past):
    """The past of a chain, as `state.restore` reads it."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.stored = sum(frame.stored for frame in chain)
        self.dropped = {number: count for frame in chain for number, count in frame.dropped.items()}
        self.out: list[bytes] = []
        self.sent = 0
        self.last_at = 0.0
        self.notes: dict[int, Note] = {}
        lapses: dict[int, int] = {}
        hastened: dict[int, tuple[float, float]] = {}
        for frame in chain:
            self.out += frame.out
            self.sent = frame.sent or self.sent
            self.last_at = max(self.last_at, frame.at)
            self.notes.update(frame.notes)
            lapses.update(frame.lapses)
            for row in frame.outcomes if hastened else ():
                hastened.pop(row[0], None)
            hastened.update(frame.hastened)
        self.hastened = hastened
        self.lapses = {number: count for number, count in lapses.items() if count > 0}

    @property
    def unsent(self) -> list[bytes]:
        """Links that may not have been sent: sent again after a start, which does no harm."""
        return self.out[self.sent :]

    @property
    def last_visits(self) -> dict[int, int]:
        """Number -> the place of the state with which a URL goes out when it comes again."""
        return {number: at for at, number, status, _, left in self.outcomes() if status != journal.RETRY or left}

    def sites(self) -> Iterator[tuple[int, str, JournalSite | None]]:
        for frame in self._chain:
            for number, name in frame.sites:
                note = self.notes.get(number)
                yield number, name, None if note is None else JournalSite(*note)

    def outcomes(self) -> Iterator[tuple[int, int, int, float | None, int]]:
        for piece in self._chain.pieces:
            for row, state in zip(piece.frame.outcomes, states_of(piece.frame, piece.place), strict=True):
                yield state, row[0], row[1], row[4], bool(row[6])

    def urls(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        for frame in self._chain:
            if frame.numbers:
                numbers, keys, places = column(frame.numbers), column(frame.keys), column(frame.places)
                ranks = frame.ranks * len(numbers) if len(frame.ranks) == 1 else frame.ranks
                for number, key, place, rank in zip(numbers, keys, places, ranks, strict=True):
                    yield number, key, place, *rank


class Index:
    """The place, size and parent of each request by its number: 20 bytes each."""

    def __init__(self, chain: Chain) -> None:
        self.places, self.sizes, self.parents = array("q", (0,)), array("I", (0,)), array("q", (0,))
        for piece in chain.pieces:
            self.take(piece.frame, piece.place)

    def take(self, frame: LogFrame, place: int) -> None:
        """Add the requests of a frame whose first is at this place."""
        numbers = column(frame.numbers)
        missing = max(numbers, default=0) + 1 - len(self.places)
        if missing > 0:
            # Numbers whose change could not be written leave gaps.
            self.places.frombytes(bytes(8 * missing))
            self.sizes.frombytes(bytes(4 * missing))
            self.parents.frombytes(bytes(8 * missing))
        for number, parent, size in zip(numbers, column(frame.parents), column(frame.sizes, "I"), strict=True):
            self.places[number], self.sizes[number], self.parents[number] = place, size, parent
            place += size
