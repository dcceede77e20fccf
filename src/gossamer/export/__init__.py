"""Exports: what a job has stored, in another form; each form is named here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple

from gossamer.errors import ConfigError
from gossamer.model import Record
from gossamer.storage.query import Where
from gossamer.storage.reader import StoredJob

Writes = Callable[["Export"], int]
"""Writes an export, and says how many pages or items it wrote."""


class Format(NamedTuple):
    """A form that a job can be exported in: where its code is, as `module:function`, and what it takes."""

    code: str
    meaning: str
    is_text: bool = True
    """Whether it may go to a terminal."""
    is_folder: bool = False
    """Whether it makes many files: then `--out` names a folder, and must be given."""


FORMATS: Mapping[str, Format] = {
    "jsonl": Format("gossamer.export.lines:write_jsonl", "pages, a JSON object a line"),
    "csv": Format("gossamer.export.lines:write_csv", "pages, for spreadsheets"),
    "parquet": Format("gossamer.export.parquet:write_parquet", "pages, with typed columns", is_text=False),
    "warc": Format("gossamer.export.warc:write_warc", "pages whole, if the job kept them", is_text=False),
    "markdown": Format(
        "gossamer.export.markdown:write_markdown", "the main part of pages, a file each", is_folder=True
    ),
    "urls": Format("gossamer.export.lines:write_urls", "URLs of pages"),
    "items": Format("gossamer.export.lines:write_items", "items, a JSON object a line"),
    "rejected": Format("gossamer.export.rejected:write_rejected", "items that fit no type, and why"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is to be exported, and to where."""

    folder: Path
    """Where what the job stored is: segments, pages.jsonl, archive/ and so on."""
    place: StoredJob | None = None
    """The same with the settings of a fleet's job, which may not be there."""
    where: Where = field(default_factory=Where)
    out: Path | None = None
    """A file, or for some formats a folder; None is standard output."""
    all_visits: bool = False
    """Every visit of a page, not only the last."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What a format is told besides, by the name of the option."""

    @property
    def source(self) -> StoredJob:
        """The folder and the job's settings."""
        return self.place or StoredJob.of(self.folder)

    def records(self, *, with_items: bool = False) -> Iterator[Record]:
        """The pages that are to be exported, one after another."""
        found = self.source.records(all_visits=self.all_visits, items=with_items)
        return (record for record in found if self.where(record.page)) if self.where else found

    @contextmanager
    def output(self) -> Iterator[IO[bytes]]:
        """Where the bytes go; a file is there when it is whole, and only then."""
        if self.out is None:
            yield sys.stdout.buffer
            return
        if self.out.exists() and not self.out.is_file():
            # A pipe or a device, which a file must not take the place of.
            with self.out.open("wb") as file:
                yield file
            return
        draft = self.out.with_name(f".{self.out.name}.draft")
        try:
            with draft.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.out)
        finally:
            draft.unlink(missing_ok=True)


def write(kind: str, export: Export) -> int:
    """Write an export in one of the `FORMATS`; how many pages or items that were."""
    wanted = FORMATS[kind]
    if wanted.is_folder and export.out is None:
        raise ConfigError(f"--format {kind} makes a folder", hint=f"--out {export.folder.name}-{kind}")
    if not wanted.is_text and export.out is None and sys.stdout.isatty():
        raise ConfigError(f"--format {kind} is not for a terminal", hint="--out FILE, or > FILE")
    module, _, function = wanted.code.partition(":")
    writes: Writes = getattr(import_module(module), function)
    return writes(export)
