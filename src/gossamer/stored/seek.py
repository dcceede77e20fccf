"""Where the next record of a WARC file is, when one of them cannot be read."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from gossamer.errors import ArchiveError

_SEEK_BYTES = 1 << 20
_TRIED_BYTES = 1 << 12
_GZIP = b"\x1f\x8b"
_MEMBER, _RECORD = re.compile(re.escape(_GZIP) + b"\x08"), re.compile(rb"(?<=[\n\0])WARC/\d")


def next_record(path: Path, after: int) -> int | None:
    """The first place behind `after` where a record begins; None if there is none.

    In a compressed file that is a member which begins as records do, in a plain one a line that does. What a broken
    record holds may look like that too: nobody can tell then."""
    try:
        with path.open("rb", buffering=0) as file:
            is_gzip = file.read(2) == _GZIP
            pattern = _MEMBER if is_gzip else _RECORD
            file.seek(after)
            start, data = after, b""
            while True:
                more = file.read(_SEEK_BYTES)
                data += more
                for found in pattern.finditer(data, 1 if start == after else 0):
                    if more and len(data) - found.start() < _TRIED_BYTES:
                        break
                    if not is_gzip or _holds_a_record(data[found.start() : found.start() + _TRIED_BYTES]):
                        return start + found.start()
                if not more:
                    return None
                # What may be cut is looked at once more, with what follows it.
                start, data = start + max(0, len(data) - _TRIED_BYTES), data[-_TRIED_BYTES:]
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror}", hint="is the file still there, and may it be read?") from error


def _holds_a_record(member: bytes) -> bool:
    try:
        return zlib.decompressobj(31).decompress(member, 16).lstrip(b"\r\n").startswith(b"WARC/")
    except zlib.error:
        return False
