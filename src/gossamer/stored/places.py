"""Where a job's sinks put what they stored, as its settings have it: those in its folder, or those of its fleet."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from gossamer.errors import ArchiveError
from gossamer.folders import stored_settings
from gossamer.masks import masked_address
from gossamer.sink.base import TABLES
from gossamer.sink.segments import FOLDER as SEGMENTS
from gossamer.sink.sqlite import FILE
from gossamer.sink.warc import FOLDER, OPEN, SUFFIX
from gossamer.stored.records import read_records

WARC = (SUFFIX, SUFFIX + OPEN, ".warc")
"""How the names of WARC files end."""
_SQLITE, _PARQUET = "sqlite:/", "parquet:/"
_INFO_BYTES = 1 << 20


class Place(NamedTuple):
    """A job's folder, and its settings, which say what is elsewhere."""

    folder: Path
    settings: Mapping[str, Any]
    job: str = ""
    """The name that a fleet knows it by."""

    @classmethod
    def of(cls, found: Path | Place) -> Self | Place:
        """A folder with the settings that are in it; none if it is no job's."""
        if isinstance(found, Place):
            return found
        return cls(found, stored_settings(found))

    @property
    def sinks(self) -> Sequence[str]:
        """The sinks that the job was started with."""
        named = self.settings.get("sink", ())
        return [name for name in named if isinstance(name, str)] if isinstance(named, list | tuple) else ()

    @property
    def elsewhere(self) -> list[str]:
        """Those of them that write to a place outside of the job's folder, as they may be shown."""
        return elsewhere(self.sinks)

    @property
    def sqlite_file(self) -> Path | None:
        """The file of the sink `sqlite`, in the folder or where `sqlite:/path` says; None if there is none."""
        named = [Path(name.removeprefix("sqlite:")) for name in self.sinks if name.startswith(_SQLITE)]
        return next((path for path in (self.folder / FILE, *named) if path.exists()), None)

    @property
    def parquet(self) -> Path | None:
        """The folder of Parquet files: with the job, or where `parquet:/path` says; None if there is none."""
        named = [Path(name.removeprefix("parquet:").partition("?")[0]) for name in self.sinks if _PARQUET in name]
        return next((path for path in (self.folder / TABLES, *named) if path.is_dir()), None)

    @property
    def is_job(self) -> bool:
        """Whether the folder is a job's, and not one that holds WARC files and nothing else."""
        parts = (self.folder / SEGMENTS, self.folder / FOLDER)
        return bool(self.settings) or any(path.is_dir() for path in parts)

    @property
    def warcs(self) -> list[Path]:
        """The WARC files of the job, or of the folder."""
        if not self.is_job:
            return _warcs(self.folder)
        return [*_warcs(self.folder / FOLDER), *self._shared_warcs()]

    @property
    def trees(self) -> list[Path]:
        """Trees of bodies."""
        return [Path(name.removeprefix("folder:")) for name in self.sinks if name.startswith("folder:/")]

    def _shared_warcs(self) -> Iterator[Path]:
        """Of folders that other jobs may write to as well, the files of this one.

        Names begin with the job's and have a digest of its folder in them. A fleet's workers may have different ones:
        their files say what they are part of."""
        home = self.folder.absolute()
        prefix, tag = quote(home.name, safe=""), blake2b(os.fsencode(home), digest_size=4).hexdigest()
        in_fleet = bool(self.job) or (self.folder / SEGMENTS).is_dir()
        for name in self.sinks:
            if name.startswith("warc:/"):
                for path in _warcs(Path(name.removeprefix("warc:"))):
                    is_ours = path.name.startswith(prefix) and tag in path.name
                    if is_ours or (in_fleet and _part_of(path) == (self.job or home.name)):
                        yield path


def elsewhere(sinks: Sequence[str]) -> list[str]:
    """Of these sinks those that write to a place outside of the job's folder, as they may be shown."""
    return [masked_address(name) for name in sinks if ":/" in name]


def _warcs(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(WARC) and path.is_file())
    except OSError:
        return []


def _part_of(path: Path) -> str:
    """The job that a file says it is part of; empty if it says nothing."""
    try:
        with closing(read_records(path)) as records:
            first = next(records, None)
            block = first.read(_INFO_BYTES) if first is not None and first.kind == "warcinfo" else b""
    except ArchiveError:
        return ""
    named = (line.partition(b":") for line in block.splitlines())
    return next((value.strip().decode("utf-8", "replace") for key, _, value in named if key == b"isPartOf"), "")
