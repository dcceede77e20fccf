"""Pages and items as JSON lines, plain or compressed, exact after any kill."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import zstandard

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
    """The lines of `pages.jsonl` or `items.jsonl`, in whichever form they are there; FileNotFoundError if in none."""
    if (path := folder / f"{name}.zst").exists():
        yield from _zstd_lines(path)
    elif (path := folder / f"{name}.gz").exists():
        with gzip.open(path) as lines:
            yield from lines
    else:
        with (folder / name).open("rb") as file:
            yield from file


def _zstd_lines(path: Path) -> Iterator[bytes]:
    rest = b""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
        while piece := reader.read(_READ_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line + b"\n"
    if rest:
        yield rest


def _line(buffer: bytearray, value: object) -> None:
    _encode_into(value, buffer, len(buffer))
    buffer += b"\n"


def _zstd(data: bytearray) -> bytes:
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data) if data else b""


def _gzip(data: bytearray) -> bytes:
    return zlib.compress(data, 6, wbits=31) if data else b""


_CODINGS: Mapping[str, Callable[[bytearray], bytes | bytearray]] = {"": lambda data: data, "zstd": _zstd, "gzip": _gzip}
