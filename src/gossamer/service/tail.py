"""The trail of a job, read while it is written: each look gives the lines that are new, and costs the crawl nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gossamer.history import Sent
from gossamer.sink.trail import FOLDER, SUFFIX, SentRequest, worker_of

_FIRST_BYTES = 32 * 1024 * 1024
"""How far back a first look goes, in all files together: some 250,000 requests."""
_LOOK_BYTES = 8 * 1024 * 1024
"""What one look reads, at most; the next one goes on there."""
_LONGEST_LINE = 1024 * 1024
_decoder = msgspec.json.Decoder(SentRequest)


@dataclass(slots=True)
class _File:
    path: Path
    worker: str
    position: int = 0
    is_torn: bool = False
    """Whether it was entered in the middle of a line."""


class Tail:
    """The ends of a trail's files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._files: dict[str, _File] = {}
        self._is_first = True

    def look(self) -> list[Sent]:
        """The steps that are new since the last look, in the order of time."""
        self._find()
        found: list[Sent] = []
        left = _FIRST_BYTES if self._is_first else _LOOK_BYTES
        self._is_first = False
        for file in self._files.values():
            data = _read(file, left)
            left -= len(data)
            found += [Sent(step, file.worker) for step in _decoded(data)]
        found.sort(key=lambda sent: sent.step.at)
        return found

    def _find(self) -> None:
        try:
            paths = [path for path in self._folder.iterdir() if path.name.endswith(SUFFIX)]
        except OSError:
            return
        if len(self._files) > len(paths):
            # The oldest files of a long trail are dropped.
            left_over = {path.name for path in paths}
            self._files = {name: file for name, file in self._files.items() if name in left_over}
        new = [path for path in paths if path.name not in self._files]
        if not new:
            return
        weights: dict[Path, tuple[float, int]] = {}
        for path in new:
            with suppress(OSError):
                about = path.stat()
                weights[path] = (about.st_mtime, about.st_size)
        left = _FIRST_BYTES
        for path in sorted(weights, key=lambda path: -weights[path][0]):
            size = weights[path][1]
            # A file that came up since the last look is new from its beginning; before that only the end matters.
            begin = max(0, size - max(0, left)) if self._is_first else 0
            left -= size - begin
            self._files[path.name] = _File(path, worker_of(path), begin, is_torn=begin > 0)


def _read(file: _File, most: int) -> bytes:
    """Whole lines that are new in a file."""
    if most <= 0:
        return b""
    try:
        with file.path.open("rb") as source:
            if source.seek(0, 2) < file.position:
                # Another file by the same name: it is read from its beginning.
                file.position, file.is_torn = 0, False
            source.seek(file.position)
            data = source.read(most)
    except OSError:
        return b""
    end = data.rfind(b"\n") + 1
    if not end:
        if len(data) >= _LONGEST_LINE:
            file.position += len(data)
            file.is_torn = True
        return b""
    file.position += end
    if file.is_torn:
        file.is_torn = False
        return data[data.find(b"\n") + 1 : end]
    return data[:end]


def _decoded(data: bytes) -> list[SentRequest]:
    try:
        return _decoder.decode_lines(data)
    except msgspec.DecodeError:
        # A worker was killed in the middle of a line.
        found = []
        for line in data.splitlines():
            with suppress(msgspec.DecodeError):
                found.append(_decoder.decode(line))
        return found
