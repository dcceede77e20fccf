"""Content-Encoding undone, never past a limit of output."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from io import BytesIO

import brotli
import zstandard

from gossamer.errors import BadEncoding, ProtocolBroken, TooLarge

MAX_LAYERS = 5
MAX_MEMBERS = 1000
_SLICE_BYTES = 65_536
_STEP_BYTES = 1024 * 1024
# A zstd block of four bytes can stand for 128 KiB, and its decoder has no limit of output: so it is fed in morsels.
_ZSTD_SLICE_BYTES = 256
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024


def encodings(values: list[str]) -> tuple[str, ...]:
    """The codings of the Content-Encoding headers, in the order they were applied; BadEncoding if they are too many.

    Names that are not known count for nothing, as in browsers: most of them are charsets put into the wrong header."""
    names = (name.strip().lower() for value in values for name in value.split(","))
    found = tuple(name for name in names if name in _DECODERS)
    if len(found) > MAX_LAYERS:
        raise BadEncoding(f"{len(found)} layers of Content-Encoding, {MAX_LAYERS} are the limit")
    return found


class _Enough(Exception):
    """As much is decoded as the limit lets, of a body that may be cut."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.body = body


def decode(body: bytes, codings: tuple[str, ...], limit_bytes: int, *, may_be_cut: bool = False) -> bytes:
    """The body behind the codings; TooLarge past the limit, BadEncoding if it is broken, ProtocolBroken if cut off.

    Of one that `may_be_cut`, what there is of it within the limit."""
    for name in reversed(codings):
        if not body:
            break
        output = _Output(name, limit_bytes, may_be_cut=may_be_cut)
        try:
            body = _DECODERS[name](body, output)
        except _Enough as enough:
            body = enough.body
        except (zlib.error, brotli.error, zstandard.ZstdError) as error:
            raise BadEncoding(f"{name}: {error}") from None
    return body


class _Output:
    """Decoded bytes up to a limit, and how much more to ask for in one step."""

    def __init__(self, name: str, limit_bytes: int, *, may_be_cut: bool) -> None:
        self._name, self._limit_bytes, self._may_be_cut = name, limit_bytes, may_be_cut
        # It grows in place and hands out what it holds: pieces that are joined would be in memory twice.
        self._whole = BytesIO()
        self._members = 0
        self._room = limit_bytes

    def add(self, piece: bytes) -> None:
        self._room -= len(piece)
        if self._room < 0 and self._may_be_cut:
            self._whole.write(piece[: self._room])
            raise _Enough(self._whole.getvalue())
        if self._room < 0:
            raise TooLarge(f"{self._name} body of more than {self._limit_bytes} bytes after decoding")
        self._whole.write(piece)

    @property
    def step(self) -> int:
        # One byte more than there is room for, so that the limit is noticed.
        return min(self._room + 1, _STEP_BYTES)

    def again(self) -> _Output:
        """An empty one with the same limit."""
        return _Output(self._name, self._limit_bytes, may_be_cut=self._may_be_cut)

    def count_member(self) -> None:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise BadEncoding(f"{self._name} body of more than {MAX_MEMBERS} members")

    def finish(self, whole: bool) -> bytes:
        if not whole and not self._may_be_cut:
            raise ProtocolBroken(f"{self._name} body was cut off")
        return self._whole.getvalue()


def _inflate(body: bytes | memoryview, window_bits: int, output: _Output) -> tuple[bool, int]:
    """Decode one deflate stream; whether it came to its end, and how much of the body it took."""
    stream = zlib.decompressobj(window_bits)
    view = memoryview(body)
    position = 0
    while position < len(view) and not stream.eof:
        piece: bytes | memoryview = view[position : position + _SLICE_BYTES]
        position += len(piece)
        # What follows the end of the stream may stand in `unconsumed_tail` for ever.
        while piece and not stream.eof:
            output.add(stream.decompress(piece, output.step))
            piece = stream.unconsumed_tail
    while not stream.eof and (rest := stream.decompress(b"", output.step)):
        output.add(rest)
    return stream.eof, position - len(stream.unused_data)


def _gzip(body: bytes, output: _Output) -> bytes:
    whole, position = _inflate(body, 31, output)
    # Members may follow one another; anything else after a member is padding.
    while whole and body.startswith(b"\x1f\x8b", position):
        output.count_member()
        whole, taken = _inflate(memoryview(body)[position:], 31, output)
        position += taken
    return output.finish(whole)


def _deflate(body: bytes, output: _Output) -> bytes:
    # The standard says zlib, but some servers send the raw stream.
    if len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0:
        try:
            return output.finish(_inflate(body, 15, output)[0])
        except zlib.error:
            output = output.again()
    return output.finish(_inflate(body, -15, output)[0])


def _brotli(body: bytes, output: _Output) -> bytes:
    stream = brotli.Decompressor()
    view = memoryview(body)
    for start in range(0, len(body), _SLICE_BYTES):
        if stream.is_finished():
            break
        piece = stream.process(bytes(view[start : start + _SLICE_BYTES]), output_buffer_limit=output.step)
        output.add(piece)
        # It may say that it takes more though it holds some back still.
        while not stream.is_finished() and (piece or not stream.can_accept_more_data()):
            piece = stream.process(b"", output_buffer_limit=output.step)
            output.add(piece)
    return output.finish(stream.is_finished())


def _zstd(body: bytes, output: _Output) -> bytes:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    view = memoryview(body)
    stream = decompressor.decompressobj()
    position = 0
    while position < len(view):
        if stream.eof:
            output.count_member()
            stream = decompressor.decompressobj()
        piece = view[position : position + _ZSTD_SLICE_BYTES]
        output.add(stream.decompress(piece))
        position += len(piece) - len(stream.unused_data)
    return output.finish(stream.eof)


_DECODERS: dict[str, Callable[[bytes, _Output], bytes]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
