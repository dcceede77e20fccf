"""Long queues in Redis as compressed blocks.

A job may queue many times more requests than it fetches soon, and Redis holds all of them in memory. So a queue keeps
the next requests as plain entries and the rest as blocks: elements that hold many entries, compressed with zstd. The
key of an entry is left out when it follows from the address, since its random bits do not compress.

Lua has no zstd, so a client does the work between two scripts:

1. A call that makes a list long (`complete`, `add`, `requeue`) names it in its answer.
2. `fold` without blocks returns a run of entries, the number of entries per block, and the count of random picks.
3. The client packs the run, and `fold` with blocks replaces it. The script checks that the last entry of the run is
   still at its position, and that no pick has happened. Only the ends of a list change otherwise, so the whole run
   is then unchanged.
4. `lease` returns the next block of a queue that is about to run out of plain entries; the client unpacks it, and
   `unfold` puts its entries in the place of the block, if the block is still the next one.

Order within a list is preserved, and an entry is always in exactly one element (P1). A client that dies between two
scripts has changed nothing; two clients that do the same work are distinguished by the checks, and the second changes
nothing. A block that cannot be read (another program wrote to it, or a bug) is taken out, and the number of requests in
its header counts as parked, so that the job can end (P6)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from gossamer import urls
from gossamer.compression import ZSTD_LEVEL, zstd
from gossamer.errors import FrontierError
from gossamer.frontier.packing import address, as_text, as_texts
from gossamer.frontier.redis.encoding import text

BLOCK_MARK = b"\xff"
"""First byte of a block. An entry starts with a key of 63 bits, so its first byte is below 0x80."""
_ID = 12
_MOST_LISTS = 8
_MOST_ROUNDS = 64
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[dict[int, bytes], list[bytes]]).decode
log = logging.getLogger("gossamer.frontier")

Call = Callable[..., Awaitable[Any]]


def fold(entries: Sequence[bytes], site: str, secret: bytes, *, compressor: Any = None) -> bytes:
    """Pack entries into a block, in their order, without the keys that follow from the address.

    Layout: the mark, the number of entries (3 bytes), a digest (8 bytes), and the compressed content."""
    rests, keys = [entry[8:] for entry in entries], [entry[:8] for entry in entries]
    found = _keys(rests, site, secret)
    kept = {} if found == keys else {place: key for place, key in enumerate(keys) if key != found[place]}
    compressor = compressor or zstd.ZstdCompressor(ZSTD_LEVEL)
    packed: bytes = compressor.compress(_encode((kept, rests)), mode=compressor.FLUSH_FRAME)
    return BLOCK_MARK + len(entries).to_bytes(3, "big") + _digest(packed, secret) + packed


def unfold(element: bytes, site: str, secret: bytes) -> list[bytes]:
    """The entries in an element of a queue, which is an entry or a block; ValueError for a block that is unreadable."""
    if not element.startswith(BLOCK_MARK):
        return [element]
    packed = element[_ID:]
    if element[4:_ID] != _digest(packed, secret):
        raise ValueError("its digest is another")
    try:
        kept, rests = _decode(zstd.decompress(packed))
    except (zstd.ZstdError, msgspec.DecodeError) as error:
        raise ValueError(str(error)) from None
    if len(rests) != int.from_bytes(element[1:4], "big"):
        raise ValueError("its number of requests is another")
    entries = []
    for place, (rest, found) in enumerate(zip(rests, _keys(rests, site, secret))):
        key = kept.get(place, found)
        if key is None:
            raise ValueError("a request has no address")
        entries.append(key + rest)
    return entries


def _keys(rests: Iterable[bytes], site: str, secret: bytes) -> list[bytes | None]:
    """The key that follows from the address of each entry; None where it has no valid address."""
    fingerprint, found = urls.fingerprint, list[bytes | None]()
    for rest in rests:
        try:
            found.append(fingerprint(secret, address(rest, site)).to_bytes(8, "big"))
        except ValueError:
            found.append(None)
    return found


def _digest(packed: bytes, secret: bytes) -> bytes:
    # Keyed with the secret of the job: nobody else can make a block that decompresses to more than memory holds.
    return blake2b(packed, digest_size=_ID - 4, key=secret).digest()


def block_id(element: bytes) -> bytes:
    """The header of a block (mark, count, digest), by which scripts recognize it."""
    return element[:_ID]


async def fold_lists(call: Call, lists_to_fold: Sequence[Any], secret: bytes) -> None:
    """Pack the lists that a script has named. Failure costs memory only: a later script names them again."""
    try:
        for first in range(0, len(lists_to_fold), _MOST_LISTS):
            await _fold_some(
                call, [(text(site), text(rank)) for site, rank in lists_to_fold[first : first + _MOST_LISTS]], secret
            )
    except FrontierError as error:
        # The next call of the frontier reports the error if it lasts.
        log.debug("could not pack queues: %s", error)


async def _fold_some(call: Call, lists: Sequence[tuple[str, str]], secret: bytes) -> None:
    # One call both stores the blocks of the last round and fetches the next run, until no list has anything to pack.
    compressor = zstd.ZstdCompressor(ZSTD_LEVEL)
    wanted: list[dict[str, Any]] = [{"site": site, "rank": rank} for site, rank in lists]
    for _ in range(_MOST_ROUNDS):
        runs = await call("fold", lists=wanted)
        folded = []
        for lists_to_fold, found in zip(wanted, runs):
            if found:
                site, (run, size, picks) = lists_to_fold["site"], found
                parts = (run[first : first + size] for first in range(0, len(run), size))
                folded.append(
                    {
                        "site": site,
                        "rank": lists_to_fold["rank"],
                        "blocks": [as_text(fold(some, site, secret, compressor=compressor)) for some in parts],
                        "last": as_text(run[-1]),
                        "length": len(run),
                        "picks": picks,
                    }
                )
        if not folded:
            return
        wanted = folded


async def unfold_blocks(call: Call, found: Sequence[Any], secret: bytes) -> None:
    """Replace blocks that are next in their queues with their entries; park blocks that cannot be read.

    An empty list of entries makes the script remove the block and count its requests as parked."""
    blocks = []
    for name, rank, at, block in found:
        site = text(name)
        try:
            entries = unfold(block, site, secret)
        except ValueError as error:
            size = int.from_bytes(block[1:4], "big")
            log.error("%d requests of %s cannot be read and are parked: %s: %.200r", size, site, error, block)
            entries = []
        blocks.append(
            {
                "site": site,
                "rank": text(rank),
                "at": at,
                "id": as_text(block[:_ID]),
                "entries": msgspec.Raw(as_texts(entries)),
            }
        )
    await call("unfold", blocks=blocks)
