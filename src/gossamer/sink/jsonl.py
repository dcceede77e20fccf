"""Pages and items as JSON lines, plain or compressed, exact after any kill."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import zstandard

from gossamer.errors import SinkError
from gossamer.model import Record
from gossamer.sink.appended import AppendedFiles
from gossamer.sink.base import Opening

PAGES, ITEMS = "pages.jsonl", "items.jsonl"
SUFFIXES: Mapping[str, str] = {"": "", "zstd": ".zst", "gzip": ".gz"}
_READ_BYTES = 1 << 18
_encode_into = msgspec.json.Encoder().encode_into


class JsonlSink:
    """`pages.jsonl` and `items.jsonl` in a folder; their one writer is the owner of the frontier.

    With a coding, zstd or gzip, each call of `write` adds a frame of its own: tools read them as one."""

    def __init__(self, folder: Path, marks: Mapping[str, int], *, coding: str = "") -> None:
        self._pages, self._items = PAGES + SUFFIXES[coding], ITEMS + SUFFIXES[coding]
        self._coded = _CODINGS[coding]
        self._files = AppendedFiles(folder, (self._pages, self._items), marks)

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        pages, items = bytearray(), bytearray()
        for record in records:
            _line(pages, record.page)
            for item in record.items:
                _line(items, item)
        return await self._files.append({self._pages: self._coded(pages), self._items: self._coded(items)})

    async def rewind(self, marks: Mapping[str, int]) -> None:
        self._files.rewind(marks)

    async def aclose(self) -> None:
        self._files.close()


def open_jsonl(opening: Opening) -> JsonlSink:
    """The sink named `jsonl`, `jsonl:zstd` or `jsonl:gzip`."""
    return JsonlSink(opening.folder, opening.marks or {}, coding=opening.target)


def lines_of(folder: Path, name: str) -> Iterator[bytes]:
    """The whole lines that `pages.jsonl` or `items.jsonl` has now, in whichever form it is there; FileNotFoundError if
    in none. What is behind the last of them is being written, or was when a kill came."""
    suffix = next((one for one in list(SUFFIXES.values())[::-1] if (folder / (name + one)).exists()), "")
    path, rest = folder / (name + suffix), b""
    with path.open("rb") as file:
        for piece in _plain_pieces(file, suffix, path):
            lines = (rest + piece).splitlines(keepends=True)
            rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
            yield from lines


def _plain_pieces(file: IO[bytes], suffix: str, path: Path) -> Iterator[bytes]:
    """What a file has now, decompressed; a frame that is not whole, as far as it goes."""
    left = os.fstat(file.fileno()).st_size
    inflate: Any = None
    while left > 0 and (data := file.read(min(_READ_BYTES, left))):
        left -= len(data)
        while data and suffix:
            if inflate is None or inflate.eof:
                inflate = zlib.decompressobj(31) if suffix == ".gz" else zstandard.ZstdDecompressor().decompressobj()
            try:
                piece = inflate.decompress(data)
            except (zlib.error, zstandard.ZstdError) as error:
                raise SinkError(f"{path}: {error}", hint="was the file changed?") from None
            data = inflate.unused_data if inflate.eof else b""
            yield piece
        if not suffix:
            yield data


def _line(buffer: bytearray, value: object) -> None:
    _encode_into(value, buffer, len(buffer))
    buffer += b"\n"


def _zstd(data: bytearray) -> bytes:
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data) if data else b""


def _gzip(data: bytearray) -> bytes:
    return zlib.compress(data, 6, wbits=31) if data else b""


_CODINGS: Mapping[str, Callable[[bytearray], bytes | bytearray]] = {"": lambda data: data, "zstd": _zstd, "gzip": _gzip}
