"""The lines of stored pages, found in the files that crawls write: the newest first, some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from gossamer.model import PageRow
from gossamer.sink import segments
from gossamer.sink.jsonl import PAGES
from gossamer.stored.search import Wanted

_CHUNK_BYTES = 1024 * 1024
_LOOK_BYTES = 64 * 1024 * 1024
"""What one search reads at most; the next one goes on there."""
_MOST_VERSIONS = 1000
_LATE_SECONDS = 3600.0
"""Lines are in the order in which pages were stored, which is no longer than this after they were fetched."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a search goes on: before this byte of this file."""

    file: str
    before: int


class _Line(msgspec.Struct):
    """A line of a segment, as far as it is needed here."""

    page: PageRow


_decode_row = msgspec.json.Decoder(PageRow).decode
_decode_line = msgspec.json.Decoder(_Line).decode


def search(folder: Path, wanted: Wanted, place: Place | None, limit: int) -> tuple[list[PageRow], Place | None]:
    """Pages that fit, the newest first, and where to go on; None when all was looked at."""
    files = _files(folder)
    names = [path.name for path in files]
    if place is not None and place.file not in names:
        return [], None
    first = 0 if place is None else names.index(place.file)
    found: list[PageRow] = []
    left, needles = _LOOK_BYTES, wanted.needles()
    for path in files[first:]:
        before = place.before if place is not None and place.file == path.name else path.stat().st_size
        begin = before
        for begin, line in _backwards(path, before, needles):
            if line and (row := _row(line)) is not None:
                if wanted.fits(row):
                    found.append(row)
                elif wanted.since is not None and row.fetched_at < wanted.since - _LATE_SECONDS:
                    break
            if len(found) >= limit or before - begin >= left:
                return found, Place(path.name, begin)
        left -= before - begin
    return found, None


def versions(folder: Path, url: str) -> list[PageRow]:
    """Every stored row of one URL, the newest first."""
    needle = b'{"url":' + msgspec.json.encode(url) + b","
    found: list[PageRow] = []
    for path in _files(folder):
        for _, line in _backwards(path, path.stat().st_size, (needle,)):
            if line and (row := _row(line)) is not None and row.url == url:
                found.append(row)
            if len(found) >= _MOST_VERSIONS:
                break
    # A commit that was repeated leaves two lines of one visit.
    unlike = {(row.fetched_at, row.digest): row for row in found}
    return sorted(unlike.values(), key=lambda row: -row.fetched_at)


def _files(folder: Path) -> list[Path]:
    """The files with lines of pages, the newest first."""
    parts = list((folder / segments.FOLDER).glob(f"*{segments.SUFFIX}"))
    if parts:
        return sorted(parts, key=lambda path: (-path.stat().st_mtime, path.name))
    whole = folder / PAGES
    return [whole] if whole.exists() else []


def _backwards(path: Path, before: int, needles: tuple[bytes, ...]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that end before a byte, the last one first, each with the byte that it begins at.

    Lines without a needle need not be given; where there are many in a row, an empty one stands for them."""
    with path.open("rb") as file:
        rest, end = b"", before
        while end > 0:
            begin = max(0, end - _CHUNK_BYTES)
            file.seek(begin)
            data = file.read(end - begin) + rest
            head = data.find(b"\n")
            if head >= 0 and needles and not any(needle in data for needle in needles):
                rest, end = data[:head], begin
                yield begin + head + 1, b""
                continue
            lines = data.split(b"\n")
            # What comes first may be the end of a line that begins in the chunk before.
            rest = lines[0]
            at = begin + len(data)
            for line in reversed(lines[1:]):
                at -= len(line)
                if line and (not needles or any(needle in line for needle in needles)):
                    yield at, line
                at -= 1
            end = begin
        if rest:
            yield 0, rest


def _row(line: bytes) -> PageRow | None:
    with suppress(msgspec.DecodeError):
        return _decode_row(line) if line.startswith(b'{"url":') else _decode_line(line).page
    return None
