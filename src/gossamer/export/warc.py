"""The export as one WARC file: the visits of some pages, copied as they are in the archive."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec

from gossamer.clock import SystemClock
from gossamer.compression import gunzip, gzip
from gossamer.errors import NotKept
from gossamer.export import Export
from gossamer.model import Record
from gossamer.storage.query import LastWords, visit_of
from gossamer.storage.reader import StoredJob
from gossamer.storage.warc import index
from gossamer.storage.warc.reader import warc_files
from gossamer.storage.warc.records import OPEN, OURS, SUFFIX, next_record, warcinfo

log = logging.getLogger("gossamer.export")
_COPIED_BYTES = 1 << 20
_decode = msgspec.json.Decoder(Record).decode


def write_warc(export: Export) -> int:
    """The last visit of every page, or each; and bodies of others that revisit records among them refer to."""
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
    """Where each visit of an archive is, and what decides whether it is exported."""

    def __init__(self) -> None:
        self.file, self.start, self.end = array("Q"), array("Q"), array("Q")
        self._digest = array("q")
        self._has_body, self._meets = bytearray(), bytearray()
        self._words = LastWords()

    def read(self, path: Path, file: IO[bytes], number: int, export: Export) -> None:
        """Add those of a file."""
        start: int | None = None
        digest, has_body = 0, False
        for member in _members(path):
            if member is None:
                start, digest, has_body = None, 0, False
                continue
            kind = member.named(b"WARC-Type")
            if kind not in ("response", "revisit") and start is None and member.named(b"WARC-Concurrent-To"):
                # What belongs to an answer that could not be read.
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
        """The visits that are exported, in their order, and how many of them are there for their own sake."""
        wanted = bytearray(meets and last for meets, last in zip(self._meets, self._words.settled(), strict=True))
        count = sum(wanted)
        missing = {self._digest[one] for one, is_wanted in enumerate(wanted) if is_wanted and not self._has_body[one]}
        missing -= {self._digest[one] for one, is_wanted in enumerate(wanted) if is_wanted and self._has_body[one]}
        for one, digest in enumerate(self._digest):
            if digest in missing and self._has_body[one]:
                missing.remove(digest)
                wanted[one] = 1
        return (one for one, is_wanted in enumerate(wanted) if is_wanted), count


def _members(path: Path) -> Iterator[index.Member | None]:
    """The records of a file. One that is broken is told, None takes its place, and the next one is looked for; a file
    that is being written may end in the middle of one."""
    start: int | None = 0
    while start is not None:
        end = start
        for member in index.scan(path, start):
            yield member
            end = member.offset + member.length
        if path.name.endswith(OPEN) or end >= path.stat().st_size:
            return
        log.warning("not exported: %s, byte %d: the record is broken", path, end)
        yield None
        start = next_record(path, end)


def _archives(place: StoredJob) -> list[Path]:
    if found := [path for path in warc_files(place) if path.name.endswith((SUFFIX, SUFFIX + OPEN))]:
        return found
    raise NotKept(
        f"no page was kept whole in {place.folder}",
        hint="crawl with --sink warc; for warc:/path, name that folder as the job",
    )


def _record(member: index.Member, file: IO[bytes]) -> Record | None:
    """The visit that a metadata record of ours tells of; None if another program wrote it."""
    said = member.head.partition(OURS)[2]
    if said and not said.endswith(b"\r\n\r\n\r\n"):
        # With the text of its page it may be longer than what was read of it.
        file.seek(member.offset)
        said = gunzip().decompress(file.read(member.length)).partition(OURS)[2]
    return _decode(said.rstrip(b"\r\n")) if said else None


def _copy(file: IO[bytes], start: int, end: int, out: IO[bytes]) -> None:
    file.seek(start)
    while start < end:
        piece = file.read(min(_COPIED_BYTES, end - start))
        out.write(piece)
        start += len(piece)
