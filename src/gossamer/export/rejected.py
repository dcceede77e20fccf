"""The export of items that fit no type."""

from __future__ import annotations

from collections.abc import Iterator

from gossamer.export import Export
from gossamer.storage.base import KeepsRejected
from gossamer.storage.jsonl import REJECTED


def write_rejected(export: Export) -> int:
    """The lines of items-rejected.jsonl; of a fleet's job, what its workers kept aside."""
    count = 0
    with export.output() as out:
        for line in _rejected(export):
            out.write(line + b"\n")
            count += 1
    return count


def _rejected(export: Export) -> Iterator[bytes]:
    job = export.source
    readers = job.readers()
    own = next((reader for reader in readers if isinstance(reader, KeepsRejected)), None)
    path = job.folder / REJECTED
    if path.exists() and not (job.is_fleets and own is not None):
        with path.open("rb") as file:
            yield from (line[:-1] for line in file if line.endswith(b"\n"))
    elif own is not None:
        yield from own.rejected()
    elif not readers and not job.folder.is_dir():
        raise job.lacks("items")
