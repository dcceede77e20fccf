"""The CDXJ index of a WARC file: written, repaired after a crash, and searched by bisection.

Each line has a sort key (SURT: reversed host, path, sorted parameters), a time stamp, and JSON with the offset of the
record. While a WARC file is open, its lines are in the order of its records; when the file is finished, they are
sorted.

Invariants: every line points to a complete record below the file's valid length; the index can always be rebuilt from
the WARC file, so it is never synced.

Failure cases: missing, incomplete, or excess lines after a crash are dropped and rebuilt from the file. A line that
cannot be parsed in a finished index is an `ArchiveError`: delete the index, and it is rebuilt."""

from __future__ import annotations

import logging
import mmap
import os
import re
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_from_bytes

import msgspec

from gossamer import urls
from gossamer.compression import GZIP_ERRORS, gunzip
from gossamer.errors import ArchiveError
from gossamer.storage import files
from gossamer.storage.base import Version
from gossamer.storage.warc.records import INDEX, OPEN, SUFFIX, epoch, next_record, read_records, target_uri

_READ_BYTES = 1 << 18
_HEAD_BYTES = 1 << 19
_ESCAPED_ALIKE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in "%#")
_PLAIN = re.compile(r"[!-\"$&-~]*")
_HOST_END, _PORT, _NO_DIGIT = re.compile(r"[/?]"), re.compile(r":(\d*)$"), re.compile(r"\D")
_WWW = re.compile(r"^www\d*\.")
_STATUS = re.compile(rb"HTTP\S*[ \t]+(\d{1,3})(?!\S)")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_SLASHES = re.compile(rb"/{2,}")
_SESSIONS = tuple(
    re.compile(pattern)
    for pattern in (
        r"jsessionid=[0-9a-z]{32}(?:&|$)",
        r"phpsessid=[0-9a-z]{32}(?:&|$)",
        r"sid=[0-9a-z]{32}(?:&|$)",
        r"aspsessionid[a-z]{8}=[a-z]{24}(?:&|$)",
    )
)
"""Session parameters dropped from a query: the last one of each kind, one kind after the other."""
_ASPX = re.compile(r"/\((?:[0-9a-z]{24}|(?:[a-z]\([0-9a-z]{24}\))+)\)(?=/)")
_encode = msgspec.json.Encoder().encode


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of an index line, with pywb's field names; numbers are strings there."""

    url: str
    mime: str = "unk"
    status: str = "-"
    digest: str = ""
    length: str = "0"
    offset: str
    filename: str


class Member(NamedTuple):
    """A complete record of a WARC file: its location, and its first bytes."""

    offset: int
    length: int
    head: bytes

    def named(self, name: bytes) -> str:
        """Return a header of the record; empty if missing."""
        found = re.search(rb"^" + name + rb":[ \t]*(.*?)\r?$", self.head.partition(b"\r\n\r\n")[0], re.M | re.I)
        return found[1].decode("utf-8", "replace") if found else ""


def line_of(capture: Capture, date: str, key: str = "") -> bytes:
    """Encode an index line; empty for a 304, since a lookup at that time should find the page before it.

    `date` is the record's; `key` is the URL's sort key, if known."""
    if capture.status == "304":
        return b""
    stamp = _NO_DIGIT.sub("", date)[:14]
    return f"{key or surt(capture.url)} {stamp} ".encode() + _encode(capture) + b"\n"


def surt(url: str) -> str:
    """Return the URL's sort key (SURT): reversed host, lower case, sorted parameters, no session, no www."""
    rest = url.partition("://")[2].partition("#")[0]
    end = found.start() if (found := _HOST_END.search(rest)) else len(rest)
    host, path_query = rest[:end].rpartition("@")[2].lower(), rest[end:]
    port = ""
    if found := _PORT.search(host):
        host = host[: found.start()]
        default = "443" if url[:6].lower() == "https:" else "80"
        port = f":{found[1]}" if found[1] not in ("", default) else ""
    labels = [host.strip("[]")] if host.startswith("[") else _WWW.sub("", host.rstrip(".")).split(".")
    name = ",".join(reversed(labels))
    path, mark, query = path_query.partition("?")
    query = _without_sessions(_escaped(query).lower()) if mark else ""
    # By name, then by value: `c1=2` comes before `c15=`, though `=` comes after `5`.
    query = "&".join(sorted(query.split("&"), key=lambda part: part.split("=", 1)))
    return f"{name}{port}){_path(path)}{'?' + query if query else ''}"


def keys(url: str) -> list[str]:
    """Return the sort keys that an index may use for a URL: earlier versions sorted parameters by characters."""
    key = surt(url)
    base, mark, query = key.partition("?")
    return list(dict.fromkeys([key, f"{base}?{'&'.join(sorted(query.split('&')))}" if mark else key]))


def scan(path: Path, start: int = 0) -> Iterator[Member]:
    """Yield the complete records from a record's offset on; stops at the first invalid one, as after a crash."""
    with path.open("rb") as file:
        file.seek(start)
        offset, data = start, b""
        while data or (data := file.read(_READ_BYTES)):
            stream = gunzip()
            head, taken = bytearray(), 0
            try:
                while not stream.eof and data:
                    piece = stream.decompress(data)
                    head += piece[: _HEAD_BYTES - len(head)]
                    taken += len(data) - len(stream.unused_data)
                    data = stream.unused_data if stream.eof else file.read(_READ_BYTES)
            except GZIP_ERRORS:
                return
            if not stream.eof:
                return
            yield Member(offset, taken, bytes(head))
            offset += taken


def whole_bytes(path: Path, start: int = 0) -> int:
    """Return the valid length of a file without marks: the end of its last complete visit."""
    good = start
    for member in scan(path, start):
        # A visit ends with its metadata record.
        if member.named(b"WARC-Type") in ("metadata", "warcinfo"):
            good = member.offset + member.length
    return good


def read_index(path: Path, size: int) -> tuple[list[bytes], int]:
    """Return the lines for records below `size`, and the length of the file that they cover."""
    lines, covered = [], 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            capture = msgspec.json.decode(line.split(b" ", 2)[2], type=Capture)
        except (msgspec.MsgspecError, IndexError):
            break
        end = int(capture.offset) + int(capture.length)
        # They are in the order of the file.
        if end > size or end <= covered or not line.endswith(b"\n"):
            break
        lines.append(line)
        covered = end
    return lines, covered


def finish_index(warc: Path, name: str, unsorted: Path, final: Path) -> None:
    """Write the sorted index of a complete WARC file, from existing lines and from the file."""
    lines, covered = read_index(unsorted, warc.stat().st_size)
    lines += (line for member in scan(warc, covered) if (line := line_of_member(member, name)))
    files.replace(final, b"".join(sorted(lines)))


def line_of_member(member: Member, name: str) -> bytes | None:
    """Return the index line for a record; None if it is not a response."""
    kind = member.named(b"WARC-Type")
    if kind not in ("response", "revisit"):
        return None
    http = member.head.partition(b"\r\n\r\n")[2].partition(b"\r\n\r\n")[0]
    mime = re.search(rb"^content-type:[ \t]*([^;\r\n]*)", http, re.M | re.I)
    mime_text = mime[1].strip().lower().decode("utf-8", "replace") if mime else ""
    status = _STATUS.match(http)
    return line_of(
        Capture(
            url=member.named(b"WARC-Target-URI"),
            mime="warc/revisit" if kind == "revisit" else mime_text or "unk",
            status=status[1].decode() if status else "-",
            digest=member.named(b"WARC-Payload-Digest"),
            length=str(member.length),
            offset=str(member.offset),
            filename=name,
        ),
        member.named(b"WARC-Date"),
    )


def _without_sessions(query: str) -> str:
    for session in _SESSIONS:
        last = max(session.finditer(query), key=re.Match.start, default=None)
        if last is not None:
            query = query[: last.start()] + query[last.end() :]
    if "&cftoken=" not in query:
        return query
    parts = query.split("&")
    for number in range(len(parts) - 2, -1, -1):
        part, token = parts[number : number + 2]
        start = part.rfind("cfid=", 0, len(part) - 1)
        if start >= 0 and token.startswith("cftoken=") and len(token) > 8:
            return "&".join([*parts[:number], part[:start]]) + "&".join(parts[number + 2 :])
    return query


def _without_aspx_session(path: str) -> str:
    """Remove the last session folder from an ASP.NET path in lower case."""
    page, last = path.rfind(".aspx"), None
    for found in _ASPX.finditer(path, 0, page) if page >= 0 else ():
        last = found if found.end() + 1 < page else last
    return path if last is None else path[: last.start()] + path[last.end() :]


def _escaped(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return quote_from_bytes(_unescaped(text), safe=_ESCAPED_ALIKE)


def _unescaped(text: str) -> bytes:
    """Unescape repeatedly in one pass: `%2525...` may be of any length."""
    plain = text.encode("utf-8", "surrogatepass")
    if b"%" not in plain:
        return plain
    found = bytearray()
    for byte in plain:
        found.append(byte)
        while len(found) > 2 and found[-3] == 0x25 and found[-1] in _HEX and found[-2] in _HEX:
            found[-3:] = bytes((int(found[-2:], 16),))
    return bytes(found)


def _path(path: str) -> str:
    if path.startswith("/") and "//" not in path and "/." not in path and _PLAIN.fullmatch(path):
        # Fast path for common paths.
        return _without_aspx_session(path.lower()).rstrip("/") or "/"
    parts: list[bytes] = []
    for part in _SLASHES.sub(b"/", _unescaped(path)).split(b"/")[1:]:
        if part == b"..":
            parts = parts[:-1]
        elif part != b".":
            parts.append(part)
    joined = quote_from_bytes(b"/" + b"/".join(parts), safe=_ESCAPED_ALIKE).lower()
    return _without_aspx_session(joined).rstrip("/") or "/"


log = logging.getLogger("gossamer.stored")
_decode = msgspec.json.Decoder(Capture).decode
_CAPTURE_HEAD_BYTES = 1 << 16
_NUMBER = re.compile(r"[0-9]{1,18}")


class Captures:
    """The captures of one file. `index_folder` is for rebuilt indexes; if `shared`, an index that another
    process rebuilt there is used."""

    def __init__(self, path: Path, index_folder: Path, *, shared: bool = False) -> None:
        self.path = path
        beside = path.with_name(path.name.removesuffix(OPEN).removesuffix(SUFFIX) + INDEX)
        self._beside = beside if beside.is_file() and not path.name.endswith(OPEN) else None
        name = blake2b(os.fsencode(path.absolute()), digest_size=12).hexdigest()
        self._draft = index_folder / f"{name}{INDEX}"
        self._drawn_from = -1
        self._shared = shared

    @property
    def index(self) -> Path:
        """Path of the sorted index, updated for a file that is being written."""
        if self._beside is not None:
            return self._beside
        if self._shared and self._draft.exists():
            return self._draft
        source = self._lines_path() or self.path
        try:
            size = source.stat().st_size
        except OSError as error:
            raise ArchiveError(f"{source}: {error.strerror}", hint="it may have been renamed: try again") from error
        if size != self._drawn_from:
            lines = sorted(self._rebuilt(source))
            new = self._draft.with_name(f"{self._draft.name}.{os.getpid()}")
            new.write_bytes(b"".join(lines))
            new.replace(self._draft)
            self._drawn_from = size
        return self._draft

    def _lines_path(self) -> Path | None:
        """The lines that the writer of an open file appends, in the order of its records."""
        path = self.path.with_name(self.path.name.removesuffix(SUFFIX + OPEN) + INDEX + OPEN)
        return path if self.path.name.endswith(OPEN) and path.is_file() else None

    def _rebuilt(self, source: Path) -> Iterator[bytes]:
        if source != self.path:
            yield from read_index(source, self.path.stat().st_size)[0]
            return
        start: int | None = 0
        while start is not None:
            try:
                yield from self._found(start)
                return
            except ArchiveError as error:
                # Readers of the file reach the same fault and report it.
                log.warning("%s", error)
                start = next_record(self.path, max(start, error.offset))

    def _found(self, start: int) -> Iterator[bytes]:
        name = self.path.name.removesuffix(OPEN)
        for record in read_records(self.path, start=start):
            if record.kind in ("response", "revisit"):
                # An index line needs the record up to the end of its HTTP headers.
                headers = {**record.headers(), "warc-type": record.kind, "warc-target-uri": record.url}
                named = "".join(f"{key}: {value}\r\n" for key, value in headers.items()).encode()
                head = record.head(_CAPTURE_HEAD_BYTES)
                member = Member(record.offset, 0, b"WARC/1.1\r\n" + named + b"\r\n" + head + b"\r\n\r\n")
                if line := line_of_member(member, name):
                    yield line

    def lines(self) -> Iterator[bytes]:
        """Yield all lines, sorted."""
        with self.index.open("rb") as file:
            for line in file:
                if not line.startswith((b"!", b" ")):
                    yield line

    def offsets(self) -> array[int]:
        """Return the offsets of captures, in the order of the file."""
        found = (self._capture(line) for line in self.lines())
        return array("Q", sorted({int(capture.offset) for capture in found}))

    def versions(self, url: str) -> Iterator[Version]:
        """Yield the captures of a URL from the index."""
        with self.index.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                for key in keys(url):
                    for line in _lines_of(view, f"{key} ".encode()):
                        version = self.version(line)
                        if version.url == url or target_uri(urls.normal(version.url) or "") == url:
                            yield version

    def version(self, line: bytes) -> Version:
        """Convert a line to a version."""
        capture = self._capture(line)
        return Version(
            url=capture.url,
            fetched_at=epoch(line.split(b" ", 2)[1].decode("ascii", "replace")),
            status=int(capture.status) if _NUMBER.fullmatch(capture.status) else 0,
            type="" if capture.mime in ("unk", "warc/revisit") else capture.mime,
            digest=capture.digest,
            is_revisit=capture.mime == "warc/revisit",
            file=str(self.path),
            offset=int(capture.offset),
        )

    def _capture(self, line: bytes) -> Capture:
        try:
            capture = _decode(line.split(b" ", 2)[2])
            if not _NUMBER.fullmatch(capture.offset):
                raise ValueError("the offset is not a number")
            return capture
        except (ValueError, IndexError) as error:
            raise ArchiveError(
                f"{self.index}: {line[:80]!r} is not an index line ({error})",
                hint="delete the index file: it is rebuilt",
            ) from None


def _lines_of(view: mmap.mmap, key: bytes) -> Iterator[bytes]:
    position = _first(view, key)
    while view[position : position + len(key)] == key:
        end = view.find(b"\n", position)
        end = end if end >= 0 else len(view)
        yield view[position:end]
        position = end + 1


def _first(view: mmap.mmap, key: bytes) -> int:
    """Return the offset of the first line that is not less than `key`."""
    low, high = 0, len(view)
    while low < high:
        start = view.rfind(b"\n", low, (low + high) // 2) + 1 or low
        if view[start : start + len(key)] < key:
            end = view.find(b"\n", start)
            low = end + 1 if end >= 0 else high
        else:
            high = start
    return low
