"""The rows that a job has stored, wherever a report can find them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from gossamer.errors import ConfigError, SinkError
from gossamer.model import PageRow
from gossamer.sink.jsonl import PAGES, SUFFIXES, lines_of
from gossamer.sink.segments import FOLDER, gather

REPORT = "report.html"
"""The name of the file, beside the others of a job."""
_decode = msgspec.json.Decoder(PageRow).decode


def has_rows(folder: Path) -> bool:
    """Whether there is something to report on."""
    return (folder / FOLDER).is_dir() or any((folder / f"{PAGES}{suffix}").exists() for suffix in SUFFIXES.values())


def stored_rows(folder: Path) -> Iterator[PageRow]:
    """One row a page: of a fleet's segments, or of pages.jsonl. A line that is being written is left out."""
    if (folder / FOLDER).is_dir():
        yield from (record.page for record in gather(folder))
        return
    if not has_rows(folder):
        raise ConfigError(
            f"there is no {PAGES} in {folder}",
            hint="a report is made of what the sink jsonl stored; see crawls/ for jobs",
        )
    for number, line in enumerate(lines_of(folder, PAGES), 1):
        if not line.endswith(b"\n"):
            return
        try:
            yield _decode(line)
        except msgspec.DecodeError as error:
            raise SinkError(f"{folder / PAGES}, line {number}: {error}", hint="was the file changed?") from None
