"""Long queues in Redis as compressed blocks."""

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
"""A key has 63 bits: no entry begins with this."""
_ID = 12
_MOST_LISTS = 8
_MOST_ROUNDS = 64
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[dict[int, bytes], list[bytes]]).decode
log = logging.getLogger("gossamer.frontier")

Call = Callable[..., Awaitable[Any]]


def fold(entries: Sequence[bytes], site: str, secret: bytes, *, compressor: Any = None) -> bytes:
    """A block of these entries, in their order. Keys that follow from the address are left out."""
    rests, keys = [entry[8:] for entry in entries], [entry[:8] for entry in entries]
    found = _keys(rests, site, secret)
    kept = {} if found == keys else {place: key for place, key in enumerate(keys) if key != found[place]}
    compressor = compressor or zstd.ZstdCompressor(ZSTD_LEVEL)
    packed: bytes = compressor.compress(_encode((kept, rests)), mode=compressor.FLUSH_FRAME)
    return BLOCK_MARK + len(entries).to_bytes(3, "big") + _digest(packed, secret) + packed


def unfold(element: bytes, site: str, secret: bytes) -> list[bytes]:
    """The entries that an element of a queue stands for, one or many; ValueError if it cannot be read."""
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
    """The keys that follow from the addresses of these, as far as they have any."""
    fingerprint, found = urls.fingerprint, list[bytes | None]()
    for rest in rests:
        try:
            found.append(fingerprint(secret, address(rest, site)).to_bytes(8, "big"))
        except ValueError:
            found.append(None)
    return found


def _digest(packed: bytes, secret: bytes) -> bytes:
    # With the secret, so that nobody can make one that takes up all memory.
    return blake2b(packed, digest_size=_ID - 4, key=secret).digest()


def block_id(element: bytes) -> bytes:
    """What tells a block from all others."""
    return element[:_ID]


async def fold_lists(call: Call, asked: Sequence[Any], secret: bytes) -> None:
    """Fold what waits in these lists, named by the script. Nothing is lost if it fails: it is asked for again."""
    try:
        for first in range(0, len(asked), _MOST_LISTS):
            await _fold_some(
                call, [(text(site), text(rank)) for site, rank in asked[first : first + _MOST_LISTS]], secret
            )
    except FrontierError as error:
        # Whoever asks next will hear what is wrong.
        log.debug("queues stay as they are: %s", error)


async def _fold_some(call: Call, lists: Sequence[tuple[str, str]], secret: bytes) -> None:
    compressor = zstd.ZstdCompressor(ZSTD_LEVEL)
    wanted: list[dict[str, Any]] = [{"site": site, "rank": rank} for site, rank in lists]
    for _ in range(_MOST_ROUNDS):
        runs = await call("fold", lists=wanted)
        folded = []
        for asked, found in zip(wanted, runs):
            if found:
                site, (run, size, picks) = asked["site"], found
                parts = (run[first : first + size] for first in range(0, len(run), size))
                folded.append(
                    {
                        "site": site,
                        "rank": asked["rank"],
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
    """Put the requests of these blocks, which are next in their queues, in their place; park what cannot be read."""
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
