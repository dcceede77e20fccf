"""A shard's past: the chain of its owners' logs, read up to where each ceased to count, and made short again."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Set
from typing import NamedTuple

from gossamer.errors import SchemaMismatch
from gossamer.frontier import journal
from gossamer.frontier.folder_log import (
    MAGIC,
    LogFrame,
    Note,
    Row,
    column,
    decode_frame,
    decode_opening,
    encode,
    framed,
    frames,
    opening,
    states_of,
)
from gossamer.frontier.folder_share import SharedFolder
from gossamer.frontier.journal import JournalSite, Past

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
