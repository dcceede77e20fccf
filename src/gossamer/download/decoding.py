"""Content-Encoding undone, never past a limit of output; of a body that is broken or cut off, all that comes first."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import brotli

from gossamer.compression import GZIP_ERRORS, deflate, zstd
from gossamer.errors import BadEncoding, FetchError, ProtocolBroken, TooLarge

_ERRORS: Any = (*GZIP_ERRORS, brotli.error, zstd.ZstdError)
MAX_LAYERS = 5
MAX_MEMBERS = 1000
_SLICE_BYTES = 65_536
_STEP_BYTES = 1024 * 1024
_CAREFUL_STEPS = (4096, 1)
_ZSTD_OPTIONS: Any = {zstd.DecompressionParameter.window_log_max: 23}
_MAGIC = {"gzip": b"\x1f\x8b", "x-gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}


def encodings(values: list[str]) -> tuple[str, ...]:
    """The codings of the Content-Encoding headers, in the order they were applied; BadEncoding if they are too many.

    Names that are not known count for nothing, as in browsers: most of them are charsets put into the wrong header."""
    names = (name.strip().lower() for value in values for name in value.split(","))
    found = tuple(name for name in names if name in _DECODERS)
    if len(found) > MAX_LAYERS:
        raise BadEncoding(f"{len(found)} layers of Content-Encoding, {MAX_LAYERS} are the limit")
    return found


def decode(body: bytes, codings: tuple[str, ...], limit_bytes: int) -> bytes:
    """The body behind the codings; TooLarge past the limit, BadEncoding if it is broken, ProtocolBroken if cut off."""
    found, fault = decode_partly(body, codings, limit_bytes)
    if fault is None:
        return found
    # An error that is referred to by the frame that raised it would keep the body until the next collection.
    del found
    try:
        raise fault
    finally:
        del fault


def decode_partly(body: bytes, codings: tuple[str, ...], limit_bytes: int) -> tuple[bytes, FetchError | None]:
    """As much of the body behind the codings as there is within the limit, and why that is not all.

    One that does not even begin as its coding does was never encoded, and stays as it is."""
    fault: FetchError | None = None
    for name in reversed(codings):
        if not body:
            break
        output = _Output(name, limit_bytes)
        found = _undo(name, body, output)
        if isinstance(found, BadEncoding) and not output.size and not body.startswith(_MAGIC.get(name, b"")):
            fault = fault or found
            continue
        body, fault = output.value, fault or found
    return body, fault


def _undo(name: str, body: bytes, output: _Output) -> FetchError | None:
    # A decoder that finds a fault keeps back what it had decoded in that step: so the way there is gone again, in
    # shorter steps from the last one that was good.
    for step in (*_CAREFUL_STEPS, 0):
        try:
            _DECODERS[name](body, output)
        except FetchError as error:
            return error.with_traceback(None)
        except _ERRORS as error:
            if not step:
                return BadEncoding(f"{name}: {error}")
            output.begin_again(careful_from=output.size, careful_step=step)
        else:
            return None
    return None


class _Output:
    """Decoded bytes up to a limit, and how much more to ask for in one step."""

    def __init__(self, name: str, limit_bytes: int) -> None:
        self._name, self._limit_bytes = name, limit_bytes
        self._careful_from = limit_bytes + 1
        self._careful_step = _STEP_BYTES
        self.begin_again()

    def begin_again(self, *, careful_from: int | None = None, careful_step: int = 1) -> None:
        # It grows in place and hands out what it holds: pieces that are joined would be in memory twice.
        self._whole = BytesIO()
        self._members = 0
        self.size = 0
        if careful_from is not None:
            self._careful_from, self._careful_step = careful_from, careful_step

    def add(self, piece: bytes) -> None:
        room = self._limit_bytes - self.size
        self._whole.write(piece if len(piece) <= room else memoryview(piece)[:room])
        self.size += min(len(piece), room)
        if len(piece) > room:
            raise TooLarge(f"{self._name} body of more than {self._limit_bytes} bytes after decoding")

    @property
    def step(self) -> int:
        # One byte more than there is room for, so that the limit is noticed.
        step = min(self._limit_bytes - self.size + 1, _STEP_BYTES)
        if self.size + step <= self._careful_from:
            return step
        return min(step, max(self._careful_from - self.size, self._careful_step))

    @property
    def value(self) -> bytes:
        return self._whole.getvalue()

    @property
    def is_careful(self) -> bool:
        """Whether the body is known to be broken."""
        return self._careful_step < _STEP_BYTES

    def gzip_trailer(self, begin: int) -> bytes:
        """RFC 1952: checksum and length of what came since the size was `begin`."""
        with self._whole.getbuffer() as whole:
            return struct.pack("<II", zlib.crc32(whole[begin:]), self.size - begin & 0xFFFFFFFF)

    def count_member(self) -> None:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise BadEncoding(f"{self._name} body of more than {MAX_MEMBERS} members")

    def finish(self, whole: bool) -> None:
        if not whole:
            raise ProtocolBroken(f"{self._name} body was cut off")


def _inflate(body: memoryview, window_bits: int, output: _Output) -> tuple[bool, int]:
    """Decode one deflate stream; whether it came to its end, and how much of the body it took."""
    # What comes behind a raw stream only zlib gives back to the byte.
    stream = (zlib if window_bits < 0 else deflate).decompressobj(window_bits)
    position = 0
    while position < len(body) and not stream.eof:
        piece: bytes | memoryview = body[position : position + _SLICE_BYTES]
        position += len(piece)
        # What follows the end of the stream may stand in `unconsumed_tail` for ever.
        while piece and not stream.eof:
            output.add(stream.decompress(piece, output.step))
            piece = stream.unconsumed_tail
    while not stream.eof and (rest := stream.decompress(b"", output.step)):
        output.add(rest)
    return stream.eof, position - len(stream.unused_data)


def _gzip(body: bytes, output: _Output) -> None:
    view, position, whole = memoryview(body), 0, True
    # Members may follow one another; anything else after a member is padding.
    while whole and (not position or body.startswith(_MAGIC["gzip"], position)):
        if position:
            output.count_member()
        if not output.is_careful:
            whole, taken = _inflate(view[position:], 31, output)
            position += taken
            continue
        # Its checksum is wrong, or something before that: a raw stream knows none, and gives all that it has.
        position += _gzip_head_bytes(body, position)
        begin = output.size
        whole, taken = _inflate(view[position:], -15, output)
        position += taken + 8
        if whole and body[position - 8 : position] != output.gzip_trailer(begin):
            raise BadEncoding("gzip: wrong checksum or length")
    output.finish(whole)


def _gzip_head_bytes(body: bytes, start: int) -> int:
    """RFC 1952: how long the header of a member is."""
    head = body[start : start + 10]
    if not _MAGIC["gzip"].startswith(head[:2]) or (len(head) > 2 and head[2] != 8):
        raise BadEncoding("gzip: not its header")
    if len(head) < 10:
        raise ProtocolBroken("gzip body was cut off")
    flags, end = head[3], start + 10
    if flags & 4:
        end += 2 + int.from_bytes(body[end : end + 2], "little")
    for flag in (8, 16):
        if flags & flag:
            end = body.find(b"\0", end) + 1 or len(body) + 1
    if flags & 2:
        end += 2
    if end > len(body):
        raise ProtocolBroken("gzip body was cut off")
    return end - start


def _deflate(body: bytes, output: _Output) -> None:
    view = memoryview(body)
    # The standard says zlib, but some servers send the raw stream.
    if len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0:
        try:
            if not output.is_careful:
                return output.finish(_inflate(view, 15, output)[0])
            whole, _ = _inflate(view[2:], -15, output)
        except _ERRORS:
            if output.size:
                raise
            output.begin_again()
        else:
            output.finish(whole)
            raise BadEncoding("deflate: wrong checksum")
    return output.finish(_inflate(view, -15, output)[0])


def _brotli(body: bytes, output: _Output) -> None:
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
    output.finish(stream.is_finished())


def _zstd(body: bytes, output: _Output) -> None:
    stream = zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
    view = memoryview(body)
    position = 0
    while position < len(view):
        if stream.eof:
            output.count_member()
            stream = zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
        piece = view[position : position + _SLICE_BYTES]
        position += len(piece)
        output.add(stream.decompress(piece, output.step))
        while not stream.eof and not stream.needs_input:
            output.add(stream.decompress(b"", output.step))
        position -= len(stream.unused_data)
    output.finish(stream.eof)


_DECODERS: dict[str, Callable[[bytes, _Output], None]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
