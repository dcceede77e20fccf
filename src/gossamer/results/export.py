"""Exports results in another format: JSON Lines, CSV, URLs, items, or WARC."""

from __future__ import annotations

import csv
import logging
import os
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from gossamer.clock import SystemClock
from gossamer.compression import gunzip, gzip
from gossamer.errors import ConfigError, NotKept
from gossamer.model import PageRow, Record
from gossamer.storage.base import ReadsRejected
from gossamer.storage.csv import cell
from gossamer.storage.jsonl import REJECTED
from gossamer.storage.query import CurrentRecords, Where, visit_of
from gossamer.storage.reader import StoredJob
from gossamer.storage.warc import index
from gossamer.storage.warc.reader import warc_files
from gossamer.storage.warc.records import OPEN, OURS, SUFFIX, next_record, warcinfo

Writes = Callable[["Export"], int]
"""Writes an export; returns the number of pages or items."""


class Format(NamedTuple):
    """An export format: its writer as `module:function`, and its description."""

    code: str
    meaning: str
    is_text: bool = True
    """Whether it may be printed to a terminal."""
    is_folder: bool = False
    """Whether it writes many files; `--out` is then required and names a folder."""


FORMATS: Mapping[str, Format] = {
    "jsonl": Format("gossamer.results.export:write_jsonl", "pages, one JSON object per line"),
    "csv": Format("gossamer.results.export:write_csv", "pages, for spreadsheets"),
    "parquet": Format("gossamer.results.export_parquet:write_parquet", "pages, with typed columns", is_text=False),
    "warc": Format("gossamer.results.export:write_warc", "whole responses, if the job stored them", is_text=False),
    "markdown": Format(
        "gossamer.results.markdown:write_markdown", "main content of pages, one file each", is_folder=True
    ),
    "urls": Format("gossamer.results.export:write_urls", "URLs of pages"),
    "items": Format("gossamer.results.export:write_items", "items, one JSON object per line"),
    "rejected": Format("gossamer.results.export:write_rejected", "rejected items, with the reason"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The source, filter, and target of an export."""

    folder: Path
    """The folder with the results: segments, pages.jsonl, archive/, and so on."""
    place: StoredJob | None = None
    """The results with the settings of a fleet's job, which the folder may lack."""
    where: Where = field(default_factory=Where)
    out: Path | None = None
    """A file, or a folder for some formats; None is standard output."""
    all_visits: bool = False
    """Whether to export every visit of a page, not only the last."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the format, by name."""

    @property
    def source(self) -> StoredJob:
        """The results of the job, with its settings."""
        return self.place or StoredJob.of(self.folder)

    def records(self, *, with_items: bool = False) -> Iterator[Record]:
        """The pages to export."""
        found = self.source.records(all_visits=self.all_visits, items=with_items)
        return (record for record in found if self.where(record.page)) if self.where else found

    @contextmanager
    def output(self) -> Iterator[IO[bytes]]:
        """The output stream. A file is renamed into place when it is complete."""
        if self.out is None:
            yield sys.stdout.buffer
            return
        if self.out.exists() and not self.out.is_file():
            # A pipe or a device, which must not be replaced by a file.
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
    """Write an export in one of the `FORMATS`; returns the number of pages or items."""
    wanted = FORMATS[kind]
    if wanted.is_folder and export.out is None:
        raise ConfigError(
            f"--format {kind} writes a folder, and --out is missing", hint=f"--out {export.folder.name}-{kind}"
        )
    if not wanted.is_text and export.out is None and sys.stdout.isatty():
        raise ConfigError(
            f"--format {kind} is binary and cannot be printed to a terminal", hint="--out FILE, or > FILE"
        )
    module, _, function = wanted.code.partition(":")
    writes: Writes = getattr(import_module(module), function)
    return writes(export)


_COLUMNS = tuple(column.name for column in msgspec.structs.fields(PageRow))
_encode = msgspec.json.Encoder().encode


def write_jsonl(export: Export) -> int:
    """Write pages in the format of pages.jsonl."""
    return _lines(export, (_encode(record.page) for record in export.records()))


def write_urls(export: Export) -> int:
    """Write the URLs of pages, one per line."""
    return _lines(export, (record.page.url.encode("utf-8", "replace") for record in export.records()))


def write_items(export: Export) -> int:
    """Write items in the format of items.jsonl."""
    return _lines(export, _items(export))


def write_csv(export: Export) -> int:
    """Write pages in the format of pages.csv, with formulas escaped."""
    count = 0
    records = export.records()
    # Before the header: without results, nothing is printed.
    first = list(islice(records, 1))
    with export.output() as out:
        rows = csv.writer(_Encoded(out))
        rows.writerow(_COLUMNS)
        for record in chain(first, records):
            rows.writerow([cell(getattr(record.page, name)) for name in _COLUMNS])
            count += 1
    return count


class _Encoded(NamedTuple):
    """A text stream over a binary one, for `csv.writer`."""

    out: IO[bytes]

    def write(self, text: str) -> int:
        return self.out.write(text.encode("utf-8", "replace"))


def _lines(export: Export, lines: Iterator[bytes]) -> int:
    count = 0
    with export.output() as out:
        for line in lines:
            out.write(line + b"\n")
            count += 1
    return count


def _items(export: Export) -> Iterator[bytes]:
    if not export.where and not export.all_visits:
        yield from export.source.need("items").items()
        return
    for record in export.records(with_items=True):
        yield from map(_encode, record.items)


def write_rejected(export: Export) -> int:
    """Write the lines of items-rejected.jsonl, or the items that the workers of a fleet rejected."""
    count = 0
    with export.output() as out:
        for line in _rejected(export):
            out.write(line + b"\n")
            count += 1
    return count


def _rejected(export: Export) -> Iterator[bytes]:
    job = export.source
    readers = job.readers()
    own = next((reader for reader in readers if isinstance(reader, ReadsRejected)), None)
    path = job.folder / REJECTED
    if path.exists() and not (job.is_fleets and own is not None):
        with path.open("rb") as file:
            yield from (line[:-1] for line in file if line.endswith(b"\n"))
    elif own is not None:
        yield from own.rejected()
    elif not readers and not job.folder.is_dir():
        raise job.missing_data("items")


log = logging.getLogger("gossamer.export")
_COPIED_BYTES = 1 << 20
_decode = msgspec.json.Decoder(Record).decode


def write_warc(export: Export) -> int:
    """Write the last visit of every page, or every visit, and the bodies that revisit records among them refer to."""
    paths = _archives(export.source)
    with ExitStack() as stack, export.output() as out:
        files = [stack.enter_context(path.open("rb")) for path in paths]
        visits = _Visits()
        for number, path in enumerate(paths):
            visits.read(path, files[number], number, export)
        name = export.out.name if export.out else "export.warc.gz"
        info = warcinfo(name, at=SystemClock().epoch(), about=[("isPartOf", export.folder.absolute().name)])
        out.write(gzip(info))
        chosen, count = visits.chosen()
        for number in chosen:
            _copy(files[visits.file[number]], visits.start[number], visits.end[number], out)
    return count


class _Visits:
    """The visits in an archive: their position, and the data that decides whether they are exported."""

    def __init__(self) -> None:
        self.file, self.start, self.end = array("Q"), array("Q"), array("Q")
        self._digest = array("q")
        self._has_body, self._meets = bytearray(), bytearray()
        self._words = CurrentRecords()

    def read(self, path: Path, file: IO[bytes], number: int, export: Export) -> None:
        """Add the visits of a file."""
        start: int | None = None
        digest, has_body = 0, False
        for member in _members(path):
            if member is None:
                start, digest, has_body = None, 0, False
                continue
            kind = member.named(b"WARC-Type")
            if kind not in ("response", "revisit") and start is None and member.named(b"WARC-Concurrent-To"):
                # It belongs to a response that cannot be read.
                continue
            start = member.offset if start is None else start
            if kind in ("response", "revisit"):
                digest, has_body = hash(member.named(b"WARC-Payload-Digest")), kind == "response"
            if kind == "metadata":
                record = _record(member, file)
                if record is not None:
                    self.file.append(number)
                    self.start.append(start)
                    self.end.append(member.offset + member.length)
                    self._digest.append(digest)
                    self._has_body.append(has_body)
                    self._meets.append(export.where(record.page))
                    key, token = record.key, record.token
                    self._words.add(
                        visit_of(key, token) if export.all_visits else key, 0 if export.all_visits else token
                    )
            if kind in ("metadata", "warcinfo"):
                start, digest, has_body = None, 0, False

    def chosen(self) -> tuple[Iterator[int], int]:
        """The visits to export, in order, and their number without those that are exported only for their body."""
        wanted = bytearray(meets and last for meets, last in zip(self._meets, self._words.flags(), strict=True))
        count = sum(wanted)
        missing = {self._digest[one] for one, is_wanted in enumerate(wanted) if is_wanted and not self._has_body[one]}
        missing -= {self._digest[one] for one, is_wanted in enumerate(wanted) if is_wanted and self._has_body[one]}
        for one, digest in enumerate(self._digest):
            if digest in missing and self._has_body[one]:
                missing.remove(digest)
                wanted[one] = 1
        return (one for one, is_wanted in enumerate(wanted) if is_wanted), count


def _members(path: Path) -> Iterator[index.Member | None]:
    """The records of a file. A corrupt record is logged and replaced by None, and reading continues at the next one. A
    file that is being written may end in the middle of a record."""
    start: int | None = 0
    while start is not None:
        end = start
        for member in index.scan(path, start):
            yield member
            end = member.offset + member.length
        if path.name.endswith(OPEN) or end >= path.stat().st_size:
            return
        log.warning("skipped: %s, byte %d: corrupt record", path, end)
        yield None
        start = next_record(path, end)


def _archives(place: StoredJob) -> list[Path]:
    if found := [path for path in warc_files(place) if path.name.endswith((SUFFIX, SUFFIX + OPEN))]:
        return found
    raise NotKept(
        f"{place.folder} has no stored response bodies",
        hint="crawl with --sink warc; for --sink warc:/path, export that folder",
    )


def _record(member: index.Member, file: IO[bytes]) -> Record | None:
    """The visit in a metadata record; None if another program wrote the record."""
    text = member.head.partition(OURS)[2]
    if text and not text.endswith(b"\r\n\r\n\r\n"):
        # The record is longer than its head: it contains the text of the page.
        file.seek(member.offset)
        text = gunzip().decompress(file.read(member.length)).partition(OURS)[2]
    return _decode(text.rstrip(b"\r\n")) if text else None


def _copy(file: IO[bytes], start: int, end: int, out: IO[bytes]) -> None:
    file.seek(start)
    while start < end:
        data = file.read(min(_COPIED_BYTES, end - start))
        out.write(data)
        start += len(data)
