"""The log of a shard: checksummed frames, and the chain of logs that its owners wrote one after another."""

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
    """The first frame of a log: the files, and how much of each, that must be read before it."""

    session: str
    shard: int
    base: list[tuple[str, int]]


class LogFrame(msgspec.Struct, array_like=True):
    """One change. URLs stand in columns of equal length, so that a start need not look at each of them."""

    at: float = 0.0
    sites: list[tuple[int, str]] = []
    numbers: bytes = b""
    keys: bytes = b""
    places: bytes = b""
    parents: bytes = b""
    ranks: list[tuple[int, int, int]] = []
    """Priority, depth, hops; one for all URLs if they agree."""
    sizes: bytes = b""
    """Lengths of the URLs, which follow the frame's head, and then those of the states."""
    outcomes: list[Row] = []
    notes: dict[int, Note] = {}
    lapses: dict[int, int] = {}
    out: list[bytes] = []
    """Links for other shards, which go out once this is written down."""
    sent: int = 0
    """How many links of this shard have gone out so far; 0: as many as before."""
    stored: int = 0
    """Visits that were left out when this log was made shorter by a former version, which did not say of which URLs."""
    hastened: dict[int, tuple[float, float]] = {}
    dropped: dict[int, int] = {}
    """Number -> stored visits that were left out when this log was made shorter."""


class LoggedRequest(msgspec.Struct, omit_defaults=True, rename=dict(zip(_LONG, _SHORT, strict=True))):
    """A request as it stands in a log; `place` is the number of its site."""

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
    """A frame as it is written: what is cut off, or was never written, does not pass for one."""
    return _HEAD.pack(zlib.crc32(blobs, zlib.crc32(head)), len(head), len(blobs)) + head + blobs


def frames(data: memoryview, start: int = 0) -> Iterator[tuple[int, memoryview, int]]:
    """Where each whole frame ends, its head, and where what follows its head begins; ends before a torn one."""
    while start + _HEAD.size <= len(data):
        checksum, head_length, blob_length = _HEAD.unpack_from(data, start)
        begin = start + _HEAD.size
        end = begin + head_length + blob_length
        # A head is never empty: zeros at the end of a file are no frames.
        if not head_length or end > len(data) or zlib.crc32(data[begin:end]) != checksum:
            return
        yield end, data[begin : begin + head_length], begin + head_length
        start = end


def opening(session: str, shard: int, base: list[tuple[str, int]]) -> bytes:
    """The beginning of a log."""
    return MAGIC + framed(encode(LogHeader(session, shard, base)))


def pack(change: Change, *, at: float, out: list[bytes], sent: int) -> tuple[LogFrame, bytes, int]:
    """A change as a frame, the bytes to write, and where in them its URLs begin."""
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
    """Where the state of each outcome of a frame is (0: it left none), if the first URL is at `place`."""
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
    """A state with its length before it, since only its place is remembered."""
    return _SIZE.pack(len(state)) + state


def size_at(data: bytes) -> int:
    """How long the state is that begins here, and how far from here it begins."""
    return int(_SIZE.unpack_from(data)[0])


SIZE_BYTES = _SIZE.size


def kept(request: Request, place: int) -> LoggedRequest:
    """A request as it is written down."""
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


class Piece(NamedTuple):
    """A frame, where its URLs begin, and its bytes."""

    place: int
    frame: LogFrame
    blobs: memoryview


class Chain:
    """The files of a shard, of which the first has the number `first`, and the frames in them that count."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.files: list[tuple[str, int]] = []
        self.pieces: list[Piece] = []

    def __iter__(self) -> Iterator[LogFrame]:
        return (piece.frame for piece in self.pieces)

    def take(self, name: str, data: bytes, limit: int) -> None:
        """Read a file up to a length, or to the first frame that is not whole."""
        view, file, end = memoryview(data)[:limit], self.first + len(self.files), 0
        for number, (at, head, blobs) in enumerate(frames(view, len(MAGIC))):
            end = at
            if number:
                self.pieces.append(Piece((file << FILE_BITS) | blobs, decode_frame(head), view[blobs:at]))
        self.files.append((name, end))

    def is_long(self) -> bool:
        """Whether a start reads much that no longer matters."""
        rows = sum(len(frame.outcomes) for frame in self)
        urls = sum(len(frame.numbers) for frame in self) // 8
        return len(self.files) >= _MOST_FILES or rows > 2 * urls + _SPARE_ROWS or self.growth().is_much(urls)

    def growth(self) -> Growth:
        """What was added since it was last made short."""
        found = Growth()
        for piece in self.pieces:
            if "/past-" not in self.files[(piece.place >> FILE_BITS) - self.first][0]:
                found.take(piece.frame)
        found.size = sum(length for _, length in self.files)
        return found


class Growth:
    """How much of a log does not matter any more, as far as that can be told without reading it."""

    def __init__(self) -> None:
        self.rows = 0
        self.waste = 0
        self.size = 0

    def take(self, frame: LogFrame) -> None:
        """One more change was written."""
        self.rows += len(frame.outcomes)
        # Links have gone out, and of a site the last note counts.
        self.waste += sum(map(len, frame.out))
        for note in frame.notes.values():
            self.waste += _NOTE_BYTES + sum(map(len, note[2].values()))

    def is_much(self, urls: int) -> bool:
        """Whether it is worth while to write all that matters anew."""
        return self.rows > urls + _SPARE_ROWS or self.waste > _SPARE_BYTES + self.size // 2


def folder_of(shard: int) -> str:
    """Where a shard's logs are."""
    return f"shards/{shard:04}"


def log_name(shard: int, claim: int) -> str:
    """The log that the holder of a claim begins."""
    return f"{folder_of(shard)}/log-{claim:010}"


def read_chain(share: SharedFolder, shard: int) -> Chain:
    """All that counts of a shard. Who has the claim reads all; what a former owner adds later is not looked at."""
    for last in (False, False, True):
        try:
            return _read_chain(share, shard)
        except FileNotFoundError:
            # Its owner may just have made a shorter past of the files that we were about to read.
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
            raise SchemaMismatch(f"{share.root / path} is not a log of this version", hint="it was left as it is")
        if first is None:
            # Its owner died before it had written anything.
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
    """Begin the log of a new owner, with a shorter past if the old one has grown long; the chain with it."""
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
    """Write all that matters of a chain to a file; the chain that has it alone. Nothing refers to the file yet."""
    data = shortened(chain, session, shard, unvisited=unvisited, written_off=written_off)
    share.put(name, data)
    made = Chain(first)
    made.take(name, data, len(data))
    return made


def put_log(share: SharedFolder, chain: Chain, name: str, *, shard: int, session: str) -> None:
    """Begin a log behind a chain. From the moment that it is there, it and not an older one is the shard's newest."""
    data = opening(session, shard, chain.files)
    share.put(name, data)
    chain.take(name, data, len(data))


def sweep_logs(share: SharedFolder, chain: Chain, shard: int) -> None:
    """Delete files that are older than the newest of a chain, and that nothing refers to any more."""
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
    """The same past without what came to nothing: of each URL its last visit, and the tries since then.

    URLs with these numbers are as if they were `unvisited`: queued. So many stored visits are `written_off`."""
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
            # URLs stay as they are, with their frame's columns.
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


def _with_states(piece: Piece) -> Iterator[tuple[Row, bytes]]:
    frame = piece.frame
    start = sum(column(frame.sizes, "I"))
    for row in frame.outcomes:
        yield row, bytes(piece.blobs[start : start + row[6]])
        start += row[6]


class ShardPast(Past):
    """What the frames of a chain say, for `restore`."""

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
        """Links that nobody knows to have gone out."""
        return self.out[self.sent :]

    @property
    def last_visits(self) -> dict[int, int]:
        """Number -> where the state is that a URL goes out with when it comes again."""
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
    """Where each URL is, by its number: 20 bytes each."""

    def __init__(self, chain: Chain) -> None:
        self.places, self.sizes, self.parents = array("q", (0,)), array("I", (0,)), array("q", (0,))
        for piece in chain.pieces:
            self.take(piece.frame, piece.place)

    def take(self, frame: LogFrame, place: int) -> None:
        """Remember the URLs of a frame, of which the first is at this place."""
        numbers = column(frame.numbers)
        missing = max(numbers, default=0) + 1 - len(self.places)
        if missing > 0:
            # A number whose change could not be written is never used.
            self.places.frombytes(bytes(8 * missing))
            self.sizes.frombytes(bytes(4 * missing))
            self.parents.frombytes(bytes(8 * missing))
        for number, parent, size in zip(numbers, column(frame.parents), column(frame.sizes, "I"), strict=True):
            self.places[number], self.sizes[number], self.parents[number] = place, size, parent
            place += size
