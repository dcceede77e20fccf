"""Items that fit none of the spider's types, kept aside in a file of their own, whichever sinks a job has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gossamer.model import Record
from gossamer.sink.appended import AppendedFiles

REJECTED = "items-rejected.jsonl"
_encode_into = msgspec.json.Encoder().encode_into


class RejectedSink:
    """`items-rejected.jsonl` in a job's folder, exact after any kill; it is not there before it is needed."""

    def __init__(self, folder: Path, marks: Mapping[str, int]) -> None:
        self._folder = folder
        self._files: AppendedFiles | None = None
        if REJECTED in marks or (folder / REJECTED).exists():
            self._files = AppendedFiles(folder, (REJECTED,), marks)

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        lines = rejected_lines(records)
        if not lines:
            return {}
        if self._files is None:
            self._files = AppendedFiles(self._folder, (REJECTED,), {})
        return await self._files.append({REJECTED: lines})

    async def rewind(self, marks: Mapping[str, int]) -> None:
        if self._files is not None:
            self._files.rewind(marks)

    async def aclose(self) -> None:
        if self._files is not None:
            self._files.close()


def rejected_lines(records: Sequence[Record]) -> bytearray:
    """The lines for what the records keep aside; mostly none."""
    lines = bytearray()
    for record in records:
        for one in record.rejected:
            _encode_into(one, lines, len(lines))
            lines += b"\n"
    return lines


def count_rejected(folder: Path) -> int:
    """How many items a job has kept aside so far."""
    try:
        with (folder / REJECTED).open("rb") as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))
    except FileNotFoundError:
        return 0
