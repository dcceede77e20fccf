"""Decode Content-Encoding within an output limit, and keep the intact prefix of broken or truncated bodies.

A compressed body is untrusted: a few kilobytes may decode to gigabytes, and many servers send broken or mislabeled
streams. The decoders here never produce more than the limit in any one step, so memory stays bounded.

Invariants: the output is a prefix of what the server encoded, at most `limit_bytes` long; the number of layers and of
gzip or zstd members is bounded; the reason for a shorter result is always returned.

Failure cases: `TooLarge` past the limit, `ProtocolBroken` for a body that ends early, and `BadEncoding` for corrupt
data, a wrong checksum, or too many layers or members. A body that does not even start like its coding was never
encoded, and is returned as it is. Decoders discard the output of the step in which they find a fault; such a body is
decoded again with smaller steps near the fault, to recover the rest of the prefix."""

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
_RECOVERY_STEPS = (4096, 1)
_ZSTD_OPTIONS: Any = {zstd.DecompressionParameter.window_log_max: 23}
_MAGIC = {"gzip": b"\x1f\x8b", "x-gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}


def encodings(values: list[str]) -> tuple[str, ...]:
    """Return the codings of the Content-Encoding headers in the order they were applied; BadEncoding if too many.

    Unknown names are ignored, as in browsers: most of them are charsets put into the wrong header."""
    names = (name.strip().lower() for value in values for name in value.split(","))
    found = tuple(name for name in names if name in _DECODERS)
    if len(found) > MAX_LAYERS:
        raise BadEncoding(f"{len(found)} layers of Content-Encoding; the limit is {MAX_LAYERS}")
    return found


def decode(body: bytes, codings: tuple[str, ...], limit_bytes: int) -> bytes:
    """Decode a body; TooLarge past the limit, BadEncoding if it is corrupt, ProtocolBroken if it is truncated."""
    found, fault = decode_partly(body, codings, limit_bytes)
    if fault is None:
        return found
    # The traceback of a raised error refers to this frame, which would keep the body alive until the next collection.
    del found
    try:
        raise fault
    finally:
        del fault


def decode_partly(body: bytes, codings: tuple[str, ...], limit_bytes: int) -> tuple[bytes, FetchError | None]:
    """Decode as much of a body as the limit allows; also return the error that explains why that is not all.

    A body that does not start like its coding was never encoded, and is returned unchanged."""
    fault: FetchError | None = None
    for name in reversed(codings):
        if not body:
            break
        output = _Output(name, limit_bytes)
        found = _decode_layer(name, body, output)
        if isinstance(found, BadEncoding) and not output.size and not body.startswith(_MAGIC.get(name, b"")):
            fault = fault or found
            continue
        body, fault = output.value, fault or found
    return body, fault


def _decode_layer(name: str, body: bytes, output: _Output) -> FetchError | None:
    # A decoder discards the output of the step in which it finds a fault: decode again, with smaller steps from the end
    # of the last good one.
    for step in (*_RECOVERY_STEPS, 0):
        try:
            _DECODERS[name](body, output)
        except FetchError as error:
            return error.with_traceback(None)
        except _ERRORS as error:
            if not step:
                return BadEncoding(f"{name}: {error}")
            output.restart(small_steps_from=output.size, small_step=step)
        else:
            return None
    return None


class _Output:
    """Decoded bytes up to a limit, and the output size to request in the next step."""

    def __init__(self, name: str, limit_bytes: int) -> None:
        self._name, self._limit_bytes = name, limit_bytes
        self._small_steps_from = limit_bytes + 1
        self._small_step = _STEP_BYTES
        self.restart()

    def restart(self, *, small_steps_from: int | None = None, small_step: int = 1) -> None:
        # One growing buffer: joining parts would hold them in memory twice.
        self._whole = BytesIO()
        self._members = 0
        self.size = 0
        if small_steps_from is not None:
            self._small_steps_from, self._small_step = small_steps_from, small_step

    def add(self, piece: bytes) -> None:
        room = self._limit_bytes - self.size
        self._whole.write(piece if len(piece) <= room else memoryview(piece)[:room])
        self.size += min(len(piece), room)
        if len(piece) > room:
            raise TooLarge(f"{self._name} body of more than {self._limit_bytes} bytes after decoding")

    @property
    def step(self) -> int:
        # One byte more than the limit leaves room for, to notice when it is exceeded.
        step = min(self._limit_bytes - self.size + 1, _STEP_BYTES)
        if self.size + step <= self._small_steps_from:
            return step
        return min(step, max(self._small_steps_from - self.size, self._small_step))

    @property
    def value(self) -> bytes:
        return self._whole.getvalue()

    @property
    def is_recovering(self) -> bool:
        """Whether the body is known to be broken."""
        return self._small_step < _STEP_BYTES

    def gzip_trailer(self, begin: int) -> bytes:
        """Return the RFC 1952 trailer, checksum and length, of the output since position `begin`."""
        with self._whole.getbuffer() as whole:
            return struct.pack("<II", zlib.crc32(whole[begin:]), self.size - begin & 0xFFFFFFFF)

    def add_member(self) -> None:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise BadEncoding(f"{self._name} body of more than {MAX_MEMBERS} members")

    def finish(self, whole: bool) -> None:
        if not whole:
            raise ProtocolBroken(f"{self._name} body was cut off")


def _inflate(body: memoryview, window_bits: int, output: _Output) -> tuple[bool, int]:
    """Decode one deflate stream; return whether it is complete, and the number of bytes consumed."""
    # For a raw stream, only zlib returns exactly the bytes that follow it.
    stream = (zlib if window_bits < 0 else deflate).decompressobj(window_bits)
    position = 0
    while position < len(body) and not stream.eof:
        piece: bytes | memoryview = body[position : position + _SLICE_BYTES]
        position += len(piece)
        # Data after the end of the stream may stay in `unconsumed_tail` forever.
        while piece and not stream.eof:
            output.add(stream.decompress(piece, output.step))
            piece = stream.unconsumed_tail
    while not stream.eof and (rest := stream.decompress(b"", output.step)):
        output.add(rest)
    return stream.eof, position - len(stream.unused_data)


def _gzip(body: bytes, output: _Output) -> None:
    view, position, whole = memoryview(body), 0, True
    # Members may follow one another; other data after a member is padding.
    while whole and (not position or body.startswith(_MAGIC["gzip"], position)):
        if position:
            output.add_member()
        if not output.is_recovering:
            whole, taken = _inflate(view[position:], 31, output)
            position += taken
            continue
        # The checksum, or data before it, is wrong: a raw stream has no checksum, and yields all its output.
        position += _gzip_head_bytes(body, position)
        begin = output.size
        whole, taken = _inflate(view[position:], -15, output)
        position += taken + 8
        if whole and body[position - 8 : position] != output.gzip_trailer(begin):
            raise BadEncoding("gzip: wrong checksum or length")
    output.finish(whole)


def _gzip_head_bytes(body: bytes, start: int) -> int:
    """Return the length of a gzip member's header (RFC 1952)."""
    head = body[start : start + 10]
    if not _MAGIC["gzip"].startswith(head[:2]) or (len(head) > 2 and head[2] != 8):
        raise BadEncoding("gzip: invalid header")
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
    # The standard requires a zlib stream, but some servers send raw deflate.
    if len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0:
        try:
            if not output.is_recovering:
                return output.finish(_inflate(view, 15, output)[0])
            whole, _ = _inflate(view[2:], -15, output)
        except _ERRORS:
            if output.size:
                raise
            output.restart()
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
        # The decoder may claim that it accepts more input while it still holds back output.
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
            output.add_member()
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
