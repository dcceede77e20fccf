"""The records of a shard's log: checksummed frames of one change each, and how they are found in a chain of files."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator
from struct import Struct
from typing import Any

import msgspec

from gossamer.frontier.journal import Change, OutcomeRow
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
