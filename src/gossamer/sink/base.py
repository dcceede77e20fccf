"""The interface of a sink, and what a sink is told when it is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import msgspec

from gossamer.model import Record
from gossamer.settings import Settings

SPOOL = "spool"
TABLES = "parquet"
"""Folders of files on their way to a bucket, and of Parquet files; named here, because their own modules need a
package that may be missing."""


class Sink(Protocol):
    """Keeps records. What `write` has returned for is durable."""

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        """Store all of them; the marks (file -> length) up to which the output is good, of the files that changed.

        If it raises, nothing of the call counts: what it wrote is cut off again, and the call may be repeated."""
        ...

    async def rewind(self, marks: Mapping[str, int]) -> None:
        """Go back to marks of an earlier moment, because what was written since then did not come to count."""
        ...

    async def aclose(self) -> None:
        """Let go of files and connections."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a sink is told when it is opened."""

    kind: str = ""
    """What stands before the colon of its name."""
    target: str
    """What stands behind the colon of its name: /path in warc:/path, //host/db in mysql://host/db."""
    folder: Path
    """Of the job; in a fleet, where its workers put their segments."""
    settings: Settings
    marks: Mapping[str, int] | None = None
    """Lengths of files that the frontier vouches for; None in a fleet, where nobody does."""
    worker: str = ""
    """The worker that opens it, in a fleet: others write to their own."""
    types: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The types of items that the job declares: name -> field -> what it holds, as `str`, `int` or `json`."""
    job: str = ""
    """The name of the job, in a fleet: the folders of its workers may be called otherwise."""

    @property
    def home(self) -> Path:
        """The folder, from the root."""
        return self.folder.absolute()

    @property
    def name(self) -> str:
        """What the job is called in the names of files."""
        return self.job or self.home.name

    def prefix(self, *, elsewhere: bool) -> str:
        """What the names of files begin with that nobody else writes.

        `elsewhere` than in the job's folder others may write too, and a job of the same name among them."""
        own = f"{self.name}-{self.worker}" if self.worker else self.name
        return f"{own}-{name_digest(self.home)}" if elsewhere else own


def name_digest(home: Path) -> str:
    """What tells jobs of one name apart in the names of files: a digest of the folder, from the root."""
    return blake2b(os.fsencode(home), digest_size=4).hexdigest()


class Opens(Protocol):
    """Makes a sink: a class whose `__init__` takes an `Opening`, or a function."""

    def __call__(self, opening: Opening) -> Sink: ...


def without_page(record: Record) -> Record:
    """The record without what only sinks want that keep pages whole."""
    if record.body or record.found is not None or record.exchange is not None:
        return msgspec.structs.replace(record, body=b"", found=None, exchange=None)
    return record
