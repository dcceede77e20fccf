"""The WARC files of a job, or of anybody, as one: which page is where, and which of several answers is the last."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from gossamer.errors import ArchiveError
from gossamer.model import PageRow
from gossamer.sink.warc import OPEN
from gossamer.sink.warc_records import digest_of_hex, target_uri
from gossamer.stored.captures import Captures
from gossamer.stored.page import StoredPage, Version
from gossamer.stored.records import WarcRecord, read_records
from gossamer.stored.visits import MAX_BODY_BYTES, Noted, WarcPages, decoded, epoch, noted_in, read_head

Which = Literal["last", "all"]
OnFault = Callable[[ArchiveError], None]
_PART_BYTES = 2 * 1024 * 1024


class ReadPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work for one process: some pages of one source, in their order."""

    source: str
    start: int = 0
    stop: int | None = None
    skip: tuple[int, ...] = ()
    """Records in it that are not the last answer of their page."""


class _Rank(NamedTuple):
    """Of two answers of a page the higher one counts."""

    token: int
    fetched_at: float
    file: int
    offset: int


class WarcArchive:
    """WARC files, plain or compressed record by record. Reads only, and holds no file open between two calls."""

    def __init__(
        self,
        paths: Sequence[Path],
        drafts: Path,
        *,
        shared: bool = False,
        only: Mapping[str, Set[int]] | None = None,
    ) -> None:
        # Of some files only some pages are asked for.
        self._only = only or {}
        self._captures = {str(path): Captures(path, drafts, shared=shared) for path in paths}

    def versions(self, url: str) -> list[Version]:
        """The stored answers of a URL."""
        written = target_uri(url)
        return [version for held in self._captures.values() for version in held.versions(written)]

    def page(self, version: Version) -> StoredPage | None:
        """One page, whole; None if it is none that a spider sees, as a redirect is."""
        visits = WarcPages(Path(version.file), self._original, start=version.offset)
        found = next(iter(visits), None)
        if visits.faults:
            raise visits.faults[0]
        return found if found is not None and found.offset == version.offset else None

    def row(self, version: Version) -> PageRow:
        """The line of an answer: in its metadata record, or what the index says where another tool wrote the file."""
        noted = _noted_behind(version)[1]
        if noted is not None and noted.page is not None:
            return noted.page
        return PageRow(url=version.url, status=version.status, fetched_at=version.fetched_at, digest=version.digest)

    def stream(self, version: Version, size: int) -> Iterator[bytes]:
        """The body of any answer, redirects and errors too, in pieces."""
        with _answer_at(version) as record:
            if record.kind == "revisit":
                yield from self.stream(self._origin(record), size)
                return
            head = read_head(record)
            if head is not None and (head.codings or head.is_chunked):
                body = decoded(record.read(MAX_BODY_BYTES), head, MAX_BODY_BYTES)
                yield from (body[start : start + size] for start in range(0, len(body), size))
            else:
                yield from record.pieces(size)

    def parts(self, which: Which = "last") -> Iterator[ReadPart]:
        """All pages, cut into pieces of about 2 MB of file, in the order of files and records."""
        beaten = self._beaten() if which == "last" else {}
        for name, held in self._captures.items():
            starts, offsets = [0], held.offsets()
            for offset in offsets:
                if offset - starts[-1] >= _PART_BYTES:
                    starts.append(offset)
            wanted = self._only.get(name)
            others = () if wanted is None else (offset for offset in offsets if offset not in wanted)
            skip = sorted({*beaten.get(name, ()), *others})
            for start, stop in zip(starts, [*starts[1:], None], strict=True):
                inside = tuple(one for one in skip if start <= one and (stop is None or one < stop))
                yield ReadPart(source=name, start=start, stop=stop, skip=inside)

    def pages(self, part: ReadPart, on_fault: OnFault | None = None) -> Iterator[StoredPage]:
        """The pages of a part. What cannot be read is told to `on_fault`, and the next record is looked for; without
        it, it is raised."""
        held = self._captures[part.source]
        start = part.start
        while True:
            visits = WarcPages(held.path, self._original, start=start, stop=part.stop, skip=frozenset(part.skip))
            try:
                for page in visits:
                    _tell(visits.faults, on_fault)
                    yield page
                _tell(visits.faults, on_fault)
                return
            except ArchiveError as error:
                if held.path.name.endswith(OPEN):
                    # The last record of a file that is being written is not all there yet.
                    return
                _tell([error], on_fault)
                if error.offset < 0:
                    # It is no record that is broken: the file is not to be read at all.
                    return
                offsets = held.offsets()
                after = bisect_right(offsets, error.offset)
                if after == len(offsets) or (part.stop is not None and offsets[after] >= part.stop):
                    return
                start = offsets[after]

    def _beaten(self) -> dict[str, set[int]]:
        """Of each file, the answers for which there is a later one. Held in memory are only these."""
        beaten: dict[str, set[int]] = {}
        names = list(self._captures)
        for same in _several(merge(*(_numbered(number, held) for number, held in enumerate(self._captures.values())))):
            best: dict[object, _Rank] = {}
            for line, number in same:
                version = self._captures[names[number]].version(line)
                if not 200 <= version.status < 300:
                    continue
                identity, token = self._identity(version)
                rank = _Rank(token, version.fetched_at, number, version.offset)
                other = best.get(identity)
                if other is not None:
                    lower = min(other, rank)
                    beaten.setdefault(names[lower.file], set()).add(lower.offset)
                best[identity] = rank if other is None else max(other, rank)
        return beaten

    def _identity(self, version: Version) -> tuple[object, int]:
        """What makes an answer one of the same page, and the token of its visit."""
        try:
            return self._noted_identity(version)
        except ArchiveError:
            # It is reported when it is read, and is nobody's rival until then.
            return (version.file, version.offset), 0

    def _noted_identity(self, version: Version) -> tuple[object, int]:
        (method, posted), noted = _noted_behind(version)
        return (noted.key, noted.token) if noted is not None else ((version.url, method, posted), 0)

    def _original(self, record: WarcRecord) -> bytes:
        with _answer_at(self._origin(record)) as found:
            head = read_head(found)
            body = found.read(MAX_BODY_BYTES)
            return decoded(body, head, MAX_BODY_BYTES) if head is not None else body

    def _origin(self, record: WarcRecord) -> Version:
        """Where the body is that a revisit record does not repeat: the one it names, or one with the same digest."""
        digest = _plain_digest(record.header("warc-payload-digest", ""))
        at = epoch(record.header("warc-refers-to-date", ""))
        held = [one for one in self.versions(record.original_url) if not one.is_revisit]
        if digest:
            # Tools that do not write digests say nothing against it.
            same = [one for one in held if _plain_digest(one.digest) == digest]
            held = same or [one for one in held if not one.digest]
        if not held:
            raise ArchiveError(
                f"{record.url}: its body is in an earlier record, which is in none of these files",
                hint="name the files of the whole job",
            )
        return min(held, key=lambda one: abs(one.fetched_at - at))


def _noted_behind(version: Version) -> tuple[tuple[str, bytes], Noted | None]:
    """Method and body of the request that an answer is of, and what our metadata record says; None without one."""
    method, posted, answer_id = "GET", b"", ""
    with closing(read_records(Path(version.file), start=version.offset)) as records:
        for record in records:
            if record.kind in ("response", "revisit"):
                if record.offset != version.offset:
                    break
                answer_id = record.header("warc-record-id", "")
            elif record.header("warc-concurrent-to", answer_id) != answer_id:
                break
            elif record.kind == "request":
                method = record.head().partition(b" ")[0].decode("latin-1")
                posted = record.read(MAX_BODY_BYTES)
            elif record.kind == "metadata" and (noted := noted_in(record)) is not None:
                return (method, posted), noted
    return (method, posted), None


@contextmanager
def _answer_at(version: Version) -> Iterator[WarcRecord]:
    with closing(read_records(Path(version.file), start=version.offset)) as records:
        record = next(records, None)
        if record is None or record.kind not in ("response", "revisit"):
            raise ArchiveError(
                f"{version.file}, byte {version.offset}: the index speaks of an answer that is not there",
                hint="is the .cdxj beside the file the one that was made for it?",
            )
        yield record


def _plain_digest(text: str) -> str:
    """A digest in one form: tools write SHA-1 in base 32 or in hexadecimal, and names of algorithms in either case."""
    label, _, value = text.strip().lower().rpartition(":")
    if label == "sha1" and len(value) == 40:
        value = (digest_of_hex(value) or value).removeprefix("sha1:").lower()
    return f"{label}:{value}" if value else ""


def _numbered(number: int, held: Captures) -> Iterator[tuple[bytes, int]]:
    for line in held.lines():
        yield line, number


def _several(lines: Iterable[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    """The groups of lines that are about one URL, as far as they have more than one line."""
    for _, group in groupby(lines, key=lambda line: line[0].partition(b" ")[0]):
        same = list(group)
        if len(same) > 1:
            yield same


def _tell(faults: list[ArchiveError], on_fault: OnFault | None) -> None:
    for fault in faults:
        if on_fault is None:
            raise fault
        on_fault(fault)
    faults.clear()
