"""Reads pages from WARC archives: joins the response, request, and metadata records of a visit.

A page is spread over records: the response (or a revisit that refers to an earlier equal body), the request, and the
crawl's own metadata record. Files of other tools have no such metadata; what is unknown stays empty.

Invariants: a page is returned only if its visit is complete, and each visit once; no file is held open between calls.

Failure cases: a file that ends in `.open` is being written: an incomplete record at its end is skipped, and after it is
finished and renamed, it is found under its new name. A damaged record is reported, and reading continues at the next
one. A revisit whose original is missing is reported with the file to add."""

from __future__ import annotations

import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager, suppress
from heapq import merge
from itertools import groupby, islice
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import msgspec

from gossamer.errors import ArchiveError, BadEncoding, FetchError
from gossamer.model import REDIRECTS, Headers, PageRow, Record
from gossamer.storage import duckdb_views, query
from gossamer.storage.base import (
    MAX_BODY_BYTES,
    Keeps,
    OnFault,
    Reader,
    SqlSource,
    StoredPage,
    Version,
    Which,
    name_digest,
)
from gossamer.storage.query import Cursor, GoOn, Search, TimeCursor
from gossamer.storage.warc.index import Captures
from gossamer.storage.warc.records import (
    FOLDER,
    OPEN,
    OURS,
    SUFFIX,
    WarcRecord,
    current,
    digest_of_hex,
    epoch,
    read_records,
    target_uri,
)

if TYPE_CHECKING:
    from gossamer.storage.reader import StoredJob

TRUNCATED = "truncated:?"
"""Value for pages that a file of another tool marks as truncated."""
_METADATA_BYTES = 64 * 1024 * 1024
_RENAMED = "x-crawler-"
_STATUS = re.compile(rb"\d{1,3}")
_CHUNK = re.compile(rb"\s*([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
Original = Callable[[WarcRecord], bytes]
"""Returns the body that a revisit record refers to."""


class VisitMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata that the crawl wrote about a page."""

    key: int = 0
    token: int = 0
    page: PageRow | None = None
    label: str = ""
    meta: dict[str, Any] | None = None
    items: list[msgspec.Raw] = []


_decode_metadata = msgspec.json.Decoder(VisitMetadata).decode


class Head(msgspec.Struct, frozen=True):
    """Status and headers of a response; `codings` are those still applied to the body."""

    status: int
    headers: Headers
    codings: tuple[str, ...]
    is_chunked: bool

    @property
    def is_page(self) -> bool:
        """Whether a spider handles this response."""
        if self.status in REDIRECTS:
            return not any(name == "location" for name, _ in self.headers)
        return 200 <= self.status < 400 and self.status != 304


class WarcPages:
    """The pages in a part of a file, in order."""

    def __init__(
        self,
        path: Path,
        original: Original,
        *,
        start: int = 0,
        stop: int | None = None,
        skip: frozenset[int] = frozenset(),
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._path = path
        self._original = original
        self._start, self._stop = start, stop
        self._skip = skip
        self._max_body_bytes = max_body_bytes
        self._held: StoredPage | None = None
        self.faults: list[ArchiveError] = []
        """Pages that are unavailable although the file is intact: the body is too long, or in a missing file."""

    def __iter__(self) -> Iterator[StoredPage]:
        self._held = None
        try:
            yield from self._visits()
        except ArchiveError as error:
            # The damaged record comes after the page.
            if self._held is not None and self._held.offset < error.offset:
                yield self._held
            raise
        if self._held is not None:
            yield self._held

    def _visits(self) -> Iterator[StoredPage]:
        """Yield the pages; the last one is held back until the record after it shows that it is complete."""
        answer_id = date = ""
        for record in read_records(self._path, start=self._start, stop=self._stop):
            page = self._held
            if record.kind in ("response", "revisit"):
                self._held = None
                if page is not None:
                    yield page
                answer_id, date = record.header("warc-record-id"), record.header("warc-date")
                if record.offset not in self._skip and (found := self._answer(record)) is not None:
                    self._held = _dated(found, date)
            elif page is None or record.header("warc-concurrent-to", answer_id) != answer_id:
                continue
            elif record.kind == "request":
                self._held = _with_request(page, record)
            elif record.kind == "metadata" and (metadata := read_metadata(record)) is not None:
                self._held = None
                yield _known(page, metadata, date)

    def _answer(self, record: WarcRecord) -> StoredPage | None:
        url = record.url
        if url[:4].lower() != "http" or "http" not in record.header("content-type", "http").lower():
            return None
        head = read_head(record)
        if head is None or not head.is_page:
            if head is None and record.kind == "response":
                self._add_fault(record, "its block is not an HTTP response")
            return None
        if record.header("warc-segment-number"):
            self._add_fault(record, "segmented records are not supported")
            return None
        try:
            if record.kind == "revisit":
                body = self._original(record)
            else:
                body = decoded(record.read(self._max_body_bytes), head, self._max_body_bytes)
        except FetchError as error:
            self._add_fault(record, str(error))
            return None
        except ArchiveError as error:
            if error.offset == record.offset and record.kind == "response":
                raise
            self._add_fault(record, str(error))
            return None
        return StoredPage(
            url=url,
            status=head.status,
            headers=head.headers,
            body=body,
            cut=TRUNCATED if record.header("warc-truncated", "") else "",
            file=str(self._path),
            offset=record.offset,
        )

    def _add_fault(self, record: WarcRecord, why: str) -> None:
        self.faults.append(ArchiveError(f"{record.url} ({self._path}, byte {record.offset}): {why}"))


def read_head(record: WarcRecord) -> Head | None:
    """Parse the HTTP head of a response; the body is next. None if it is not HTTP.

    Headers that the sink renamed, because it stores the body decoded, get their names back."""
    status_line, _, lines = record.head().partition(b"\n")
    parts = status_line.split(None, 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP") or not _STATUS.fullmatch(parts[1]):
        return None
    headers = _fields(lines)
    aside = {name.removeprefix(_RENAMED) for name, _ in headers if name.startswith(_RENAMED)}
    wire = tuple((name, value) for name, value in headers if name not in aside)
    codings = tuple(value for name, value in wire if name == "content-encoding")
    is_chunked = any(name == "transfer-encoding" and "chunked" in value.lower() for name, value in wire)
    shown = tuple((name.removeprefix(_RENAMED), value) for name, value in wire) if aside else wire
    return Head(int(parts[1]), shown, codings, is_chunked)


def _fields(lines: bytes) -> list[tuple[str, str]]:
    """Parse header lines; names in lower case."""
    if lines.isascii() and b"\n " not in lines and b"\n\t" not in lines and lines.count(b"\r") == lines.count(b"\r\n"):
        # Fast path for common heads.
        parts = (line.partition(":") for line in lines.decode("ascii").replace("\r\n", "\n").split("\n"))
        return [(field.strip().lower(), value.strip()) for field, colon, value in parts if colon]
    headers: list[tuple[str, str]] = []
    for line in re.sub(rb"\r?\n[ \t]+", b" ", lines).splitlines():
        name, colon, content = line.partition(b":")
        if colon:
            headers.append((name.strip().decode("latin-1").lower(), _text(content.strip())))
    return headers


def decoded(body: bytes, head: Head, limit: int) -> bytes:
    """Decode a body that another tool stored as transferred: chunked, and with a Content-Encoding."""
    if head.is_chunked:
        body = _joined(body)
    if head.codings:
        # Files of the crawl need no decoding, and importing the downloader is slow.
        from gossamer.download import decoding

        try:
            body = decoding.decode(body, decoding.encodings(list(head.codings)), limit)
        except BadEncoding:
            # Some tools store the body decoded, and leave the header as it was.
            return body
    return body


def read_metadata(record: WarcRecord) -> VisitMetadata | None:
    """Return the content of the crawl's metadata record; None in one of another tool."""
    block = record.read(_METADATA_BYTES)
    found = block.find(OURS) if block.startswith(OURS) else block.find(b"\n" + OURS) + 1
    if not block.startswith(OURS, found):
        return None
    try:
        return _decode_metadata(block[found + len(OURS) :])
    except msgspec.DecodeError:
        return None


def _with_request(page: StoredPage, record: WarcRecord) -> StoredPage:
    method = record.head().partition(b" ")[0].decode("latin-1")
    if method in ("GET", ""):
        return page
    return msgspec.structs.replace(page, method=method, posted=record.read(MAX_BODY_BYTES))


def _dated(page: StoredPage, date: str) -> StoredPage:
    return msgspec.structs.replace(page, fetched_at=epoch(date))


def _known(page: StoredPage, metadata: VisitMetadata, date: str) -> StoredPage:
    row = metadata.page
    return msgspec.structs.replace(
        page,
        url=row.url if row is not None else page.url,
        fetched_at=row.fetched_at if row is not None and row.fetched_at else epoch(date),
        label=metadata.label,
        meta=metadata.meta,
        row=row,
        key=metadata.key,
        token=metadata.token,
        items=len(metadata.items),
    )


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _joined(body: bytes) -> bytes:
    """Join the chunks of a body; one that is not actually chunked is returned unchanged."""
    chunks: list[bytes] = []
    position = 0
    while (found := _CHUNK.match(body, position)) is not None:
        size = int(found[1], 16)
        if not size:
            return b"".join(chunks)
        position = found.end() + size
        chunks.append(body[found.end() : position])
    return b"".join(chunks) if chunks and not body[position:].strip() else body


_PART_BYTES = 2 * 1024 * 1024


class ReadPart(msgspec.Struct, frozen=True, kw_only=True):
    """Some pages of one source, in order: a unit of work for one process."""

    source: str
    start: int = 0
    stop: int | None = None
    skip: tuple[int, ...] = ()
    """Records in it that are not the current response of their page."""


class _Rank(NamedTuple):
    """Of two responses of a page, the one with the higher rank is current."""

    token: int
    fetched_at: float
    file: int
    offset: int


class WarcArchive:
    """WARC files, plain or compressed record by record. Read-only; holds no file open between calls."""

    def __init__(
        self,
        paths: Sequence[Path],
        index_folder: Path,
        *,
        shared: bool = False,
        only: Mapping[str, Set[int]] | None = None,
    ) -> None:
        # Of some files only some pages are requested.
        self._only = only or {}
        self._captures = {str(path): Captures(path, index_folder, shared=shared) for path in paths}

    def versions(self, url: str) -> list[Version]:
        """Return the stored responses of a URL."""
        written = target_uri(url)
        return [version for held in self._captures.values() for version in held.versions(written)]

    def page(self, version: Version) -> StoredPage | None:
        """Return one page with its body; None for responses that a spider does not see, such as a redirect."""
        visits = WarcPages(Path(version.file), self._original, start=version.offset)
        found = next(iter(visits), None)
        if visits.faults:
            raise visits.faults[0]
        return found if found is not None and found.offset == version.offset else None

    def row(self, version: Version) -> PageRow:
        """Return the row of a response: from its metadata record, or from the index for a file of another tool."""
        metadata = _metadata_after(version)[1]
        if metadata is not None and metadata.page is not None:
            return metadata.page
        return PageRow(url=version.url, status=version.status, fetched_at=version.fetched_at, digest=version.digest)

    def stream(self, version: Version, size: int) -> Iterator[bytes]:
        """Yield the body of any response, also of redirects and errors, in chunks."""
        with _answer_at(version) as record:
            if record.kind == "revisit":
                yield from self.stream(self._origin(record), size)
                return
            head = read_head(record)
            if head is not None and (head.codings or head.is_chunked):
                body = decoded(record.read(MAX_BODY_BYTES), head, MAX_BODY_BYTES)
                yield from (body[start : start + size] for start in range(0, len(body), size))
            else:
                yield from record.chunks(size)

    def parts(self, which: Which = "last") -> Iterator[ReadPart]:
        """Split all pages into parts of about 2 MB of file, in the order of files and records."""
        superseded = self._superseded() if which == "last" else {}
        for name, held in self._captures.items():
            starts, offsets = [0], held.offsets()
            for offset in offsets:
                if offset - starts[-1] >= _PART_BYTES:
                    starts.append(offset)
            wanted = self._only.get(name)
            others = () if wanted is None else (offset for offset in offsets if offset not in wanted)
            skip = sorted({*superseded.get(name, ()), *others})
            for start, stop in zip(starts, [*starts[1:], None], strict=True):
                inside = tuple(one for one in skip if start <= one and (stop is None or one < stop))
                yield ReadPart(source=name, start=start, stop=stop, skip=inside)

    def pages(self, part: ReadPart, on_fault: OnFault | None = None) -> Iterator[StoredPage]:
        """Yield the pages of a part. A fault is passed to `on_fault`, and reading continues at the next record; without
        it, the fault is raised."""
        held = self._captures[part.source]
        start = part.start
        while True:
            visits = WarcPages(held.path, self._original, start=start, stop=part.stop, skip=frozenset(part.skip))
            try:
                for page in visits:
                    _report(visits.faults, on_fault)
                    yield page
                _report(visits.faults, on_fault)
                return
            except ArchiveError as error:
                if held.path.name.endswith(OPEN):
                    # The last record of an open file may be incomplete.
                    return
                _report([error], on_fault)
                if error.offset < 0:
                    # The file itself, not a record, cannot be read.
                    return
                offsets = held.offsets()
                after = bisect_right(offsets, error.offset)
                if after == len(offsets) or (part.stop is not None and offsets[after] >= part.stop):
                    return
                start = offsets[after]

    def _superseded(self) -> dict[str, set[int]]:
        """Return for each file the responses that are not current. Only these are held in memory."""
        superseded: dict[str, set[int]] = {}
        names = list(self._captures)
        for same in _groups_by_url(
            merge(*(_numbered(number, held) for number, held in enumerate(self._captures.values())))
        ):
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
                    superseded.setdefault(names[lower.file], set()).add(lower.offset)
                best[identity] = rank if other is None else max(other, rank)
        return superseded

    def _identity(self, version: Version) -> tuple[object, int]:
        """Return the identity of the page, and the token of the visit."""
        try:
            return self._identity_from_metadata(version)
        except ArchiveError:
            # The fault is reported when the record is read; until then it has no rivals.
            return (version.file, version.offset), 0

    def _identity_from_metadata(self, version: Version) -> tuple[object, int]:
        (method, posted), metadata = _metadata_after(version)
        return (metadata.key, metadata.token) if metadata is not None else ((version.url, method, posted), 0)

    def _original(self, record: WarcRecord) -> bytes:
        with _answer_at(self._origin(record)) as found:
            head = read_head(found)
            body = found.read(MAX_BODY_BYTES)
            return decoded(body, head, MAX_BODY_BYTES) if head is not None else body

    def _origin(self, record: WarcRecord) -> Version:
        """Find the body that a revisit record omits: in the record that it names, or in one with the same digest."""
        digest = _plain_digest(record.header("warc-payload-digest", ""))
        at = epoch(record.header("warc-refers-to-date", ""))
        held = [one for one in self.versions(record.original_url) if not one.is_revisit]
        if digest:
            # Some tools write no digests, which excludes nothing.
            same = [one for one in held if _plain_digest(one.digest) == digest]
            held = same or [one for one in held if not one.digest]
        if not held:
            raise ArchiveError(
                f"{record.url}: its body is in an earlier record, which is in none of these files",
                hint="name all files of the job",
            )
        return min(held, key=lambda one: abs(one.fetched_at - at))


def _metadata_after(version: Version) -> tuple[tuple[str, bytes], VisitMetadata | None]:
    """Return method and body of the request, and the crawl's metadata; None without one."""
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
            elif record.kind == "metadata" and (metadata := read_metadata(record)) is not None:
                return (method, posted), metadata
    return (method, posted), None


@contextmanager
def _answer_at(version: Version) -> Iterator[WarcRecord]:
    with closing(read_records(Path(version.file), start=version.offset)) as records:
        record = next(records, None)
        if record is None or record.kind not in ("response", "revisit"):
            raise ArchiveError(
                f"{version.file}, byte {version.offset}: the index points to a response that is not there",
                hint="delete the .cdxj file beside it: it is rebuilt",
            )
        yield record


def _plain_digest(text: str) -> str:
    """Normalize a digest: SHA-1 in base 32 or hexadecimal, and algorithm names in either case."""
    label, _, value = text.strip().lower().rpartition(":")
    if label == "sha1" and len(value) == 40:
        value = (digest_of_hex(value) or value).removeprefix("sha1:").lower()
    return f"{label}:{value}" if value else ""


def _numbered(number: int, held: Captures) -> Iterator[tuple[bytes, int]]:
    for line in held.lines():
        yield line, number


def _groups_by_url(lines: Iterable[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    """Yield groups of lines for one URL that have more than one line."""
    for _, group in groupby(lines, key=lambda line: line[0].partition(b" ")[0]):
        same = list(group)
        if len(same) > 1:
            yield same


def _report(faults: list[ArchiveError], on_fault: OnFault | None) -> None:
    for fault in faults:
        if on_fault is None:
            raise fault
        on_fault(fault)
    faults.clear()


ENDINGS = (SUFFIX, SUFFIX + OPEN, ".warc")
"""Suffixes of WARC files."""
_INFO_BYTES = 1 << 20


def warc_readers(job: StoredJob) -> Iterator[Reader]:
    """Yield the reader of the WARC files of a job, or of a folder with some."""
    if paths := warc_files(job):
        yield WarcReader(paths)


def warc_files(job: StoredJob) -> list[Path]:
    """Return the WARC files of a job: in its folder, and its own in the folder of `warc:/path`."""
    if not job.is_job:
        return _listed(job.folder)
    return [*_listed(job.folder / FOLDER), *_shared(job)]


def _shared(job: StoredJob) -> Iterator[Path]:
    """Yield the files of this job in folders that other jobs may write to.

    File names start with the job's name and a digest of its folder. A fleet's workers may have different ones: their
    files name the job that they are part of."""
    home = job.folder.absolute()
    prefix, digest = quote(home.name, safe=""), name_digest(home)
    for folder in job.targets("warc"):
        for path in _listed(folder):
            is_ours = path.name.startswith(prefix) and digest in path.name
            if is_ours or (job.is_fleets and _part_of(path) == (job.job or home.name)):
                yield path


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(ENDINGS) and path.is_file())
    except OSError:
        return []


def _part_of(path: Path) -> str:
    """Return the job that a file names in its warcinfo record; empty if none."""
    try:
        with closing(read_records(path)) as records:
            first = next(records, None)
            block = first.read(_INFO_BYTES) if first is not None and first.kind == "warcinfo" else b""
    except ArchiveError:
        return ""
    named = (line.partition(b":") for line in block.splitlines())
    return next((value.strip().decode("utf-8", "replace") for key, _, value in named if key == b"isPartOf"), "")


class WarcReader:
    """Reads rows from WARC files, through the metadata records that a crawl writes after its responses."""

    cursor: type[Cursor] = TimeCursor
    keeps: frozenset[Keeps] = frozenset(("rows", "items", "items by page", "keys", "visits", "bodies"))

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        folders = dict.fromkeys(str(path.parent) for path in paths)
        self.place = ", ".join(folders)

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        counts: list[int] = []
        stamps = self._stamps(counts)
        wanted = iter(query.find_current(stamps, all_visits=all_visits))
        for path, count in zip(self.paths, counts, strict=True):
            # If the file has grown since, only the first records are read.
            for record, is_wanted in zip(islice(_visits_in(path, items=items), count), wanted, strict=False):
                if is_wanted:
                    yield record

    def _stamps(self, counts: list[int]) -> Iterator[tuple[int, int]]:
        """Yield key and token of all visits; append the number of visits in each file to `counts`."""
        for path in self.paths:
            counts.append(0)
            for record in _visits_in(path):
                counts[-1] += 1
                yield record.key, record.token

    def rows(self, terms: Search) -> Iterator[PageRow]:
        if not terms.url:
            rows = (record.page for path in self.paths for record in _visits_in(path))
            yield from filter(terms.fits, rows)
            return
        with self._archive() as archive:
            for version in archive.versions(terms.url):
                with suppress(ArchiveError):
                    yield archive.row(version)

    def search(
        self, terms: Search, *, after: Cursor | None, limit: int, go_on: GoOn
    ) -> tuple[list[PageRow], Cursor | None]:
        rows = self._newest(terms, after if isinstance(after, TimeCursor) else None, limit + 1)
        return query.newest(rows, terms, after=after, limit=limit, go_on=go_on)

    def _newest(self, terms: Search, before: TimeCursor | None, limit: int) -> Iterator[PageRow | None]:
        """Search the indexes, which have times in whole seconds; rows of the newest are read from the files."""
        found: list[Version] = []
        edge = floor(before.fetched_at) if before is not None else None
        needles = tuple(msgspec.json.encode(text)[:-1] for text in terms.prefixes)
        rough = Search(url=terms.url, site=terms.site, site_by=terms.site_by, status=terms.status, prefix=terms.prefix)
        with tempfile.TemporaryDirectory(prefix="gossamer-index-") as index_folder:
            for path in map(current, self.paths):
                held = Captures(path, Path(index_folder))
                for line in held.lines():
                    yield None
                    if needles and not any(needle in line for needle in needles):
                        continue
                    version = held.version(line)
                    at = version.fetched_at
                    in_time = (terms.since is None or at + 1 > terms.since) and (
                        terms.until is None or at < terms.until
                    )
                    if in_time and (edge is None or at <= edge) and rough.fits(version):
                        found.append(version)
                        if len(found) > 8 * limit:
                            found = _latest(found, limit, edge)
            archive = WarcArchive([current(path) for path in self.paths], Path(index_folder))
            for version in _latest(found, limit, edge):
                with suppress(ArchiveError):
                    yield archive.row(version)

    def items(self) -> Iterator[bytes]:
        for record in self.records(items=True):
            yield from map(msgspec.json.encode, record.items)

    def sql_sources(self, spill: Path) -> Mapping[str, Sequence[SqlSource]]:
        return duckdb_views.spilled(self.records(all_visits=True, items=True), spill)

    @contextmanager
    def _archive(self) -> Iterator[WarcArchive]:
        # The stored data may be read-only, or another user's: rebuilt indexes go elsewhere.
        with tempfile.TemporaryDirectory(prefix="gossamer-index-") as index_folder:
            yield WarcArchive([current(path) for path in self.paths], Path(index_folder))


def _visits_in(path: Path, *, items: bool = False) -> Iterator[Record]:
    """Yield the visits in the metadata records of a file."""
    try:
        for record in read_records(path):
            metadata = read_metadata(record) if record.kind == "metadata" else None
            if metadata is not None and metadata.page is not None:
                of_page = tuple(msgspec.json.decode(item) for item in metadata.items) if items else ()
                yield Record(key=metadata.key, token=metadata.token, page=metadata.page, items=of_page)
    except ArchiveError:
        # The end of a file that is being written.
        if not path.name.endswith(OPEN):
            raise


def _latest(found: list[Version], limit: int, edge: float | None) -> list[Version]:
    """Return the newest versions, with all of the last second and of the second in which the search continues: only
    the files have the order within a second."""
    found = sorted(found, key=lambda version: -version.fetched_at)
    sure = [version for version in found if version.fetched_at != edge]
    if len(sure) <= limit:
        return found
    last = sure[limit - 1].fetched_at
    return [version for version in found if version.fetched_at >= last]
