"""Reads URL lists, sitemaps, CDXJ indexes, and WARC files for import."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gossamer.errors import ArchiveError, ConfigError
from gossamer.extract import sitemap
from gossamer.imports.importer import Finding, ImportedRequest, Unread
from gossamer.storage.warc.reader import read_head
from gossamer.storage.warc.records import next_record, read_records

_NOWHERE = "http://sitemap.invalid/"
"""Base URL of a sitemap in a file, for relative URLs in it."""
_NOT_FETCHED = re.compile(r"^(?:5\d\d|429|408|425)$")
"""Status codes of captures that count as not fetched."""


def read_list(lines: Iterable[str], *, is_done: bool = False) -> Iterator[Finding]:
    """Read one URL per line; empty lines and lines that begin with # are ignored."""
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            yield ImportedRequest(text, is_done=is_done)


def read_sitemap(path: Path) -> Iterator[Finding]:
    """Read the page URLs of a sitemap file, and the URLs of the sitemaps that it lists."""
    found = sitemap.parse(path.read_bytes(), _NOWHERE)
    if not found.kind:
        raise ConfigError(f"{path} is not a sitemap")
    for entry in found.sitemaps:
        yield ImportedRequest(entry.url, is_sitemap=True)
    for entry in found.pages:
        yield Unread(entry.url, "not a whole address") if entry.url.startswith(_NOWHERE) else ImportedRequest(entry.url)
    for problem, count in found.problems.items():
        yield Unread(f"{count} times", sitemap.PROBLEMS.get(problem, problem))


def read_cdxj(path: Path) -> Iterator[Finding]:
    """Read the captures of a CDXJ index."""
    with path.open("rb") as raw:
        file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        for number, line in enumerate(file, 1):
            if not line.strip() or line.startswith(b"!"):
                continue
            try:
                _, stamp, rest = line.split(b" ", 2)
                fields = msgspec.json.decode(rest)
                yield from _capture(str(fields["url"]), str(fields.get("status", "")), stamp.decode("ascii"))
            except (ValueError, KeyError, TypeError, msgspec.DecodeError) as error:
                yield Unread(f"{path.name}, line {number}", f"not CDXJ: {error}")


def read_warc(path: Path) -> Iterator[Finding]:
    """Read the responses of a WARC file, compressed or not. A broken record is reported and skipped."""
    with path.open("rb") as file:
        start = file.read(5)
    if start[:2] != b"\x1f\x8b" and start != b"WARC/":
        raise ConfigError(f"{path} is not a WARC file")
    place: int | None = 0
    while place is not None:
        try:
            yield from _responses(path, place)
            return
        except ArchiveError as error:
            yield Unread(path.name, str(error))
            place = next_record(path, max(place, error.offset))


def _responses(path: Path, start: int) -> Iterator[Finding]:
    held: tuple[str, str, str] | None = None
    at = start
    try:
        for record in read_records(path, start=start):
            # A record is known to be complete when the next one begins.
            if held is not None:
                yield from _capture(*held)
            held, at = None, record.offset
            if record.kind in ("response", "revisit", "resource"):
                head = read_head(record)
                stamp = re.sub(r"\D", "", record.header("warc-date"))[:14]
                held = record.url, str(head.status) if head is not None else "", stamp
    except ArchiveError as error:
        if held is not None and at < error.offset:
            yield from _capture(*held)
        raise
    if held is not None:
        yield from _capture(*held)


def _capture(url: str, status: str, stamp: str) -> Iterator[Finding]:
    if not _NOT_FETCHED.match(status):
        yield ImportedRequest(url, is_done=True, fetched_at=_epoch(stamp))


def _epoch(stamp: str) -> float | None:
    """Parse the time of a capture: fourteen digits, or a prefix of them."""
    try:
        full = stamp[:14] + "00000101000000"[len(stamp[:14]) :]
        return datetime.strptime(full, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
