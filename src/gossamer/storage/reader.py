"""What a job, a folder or some files hold: the readers of it, the best first, and what is missing, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from gossamer.errors import NotKept
from gossamer.job_folder import stored_settings
from gossamer.model import Record
from gossamer.redact import masked_address
from gossamer.sink.segments import has_segments
from gossamer.sink.warc import FOLDER as ARCHIVE
from gossamer.storage.base import Keeps, Reader
from gossamer.storage.registry import FORMATS, find_readers, formats_keeping, parted

_LACKS: Mapping[Keeps, str] = {
    "rows": "has no rows of pages",
    "items": "has no items",
    "items by page": "does not say which pages its items are from",
    "keys": "has no keys of pages",
    "visits": "has only the last visit of each page",
    "bodies": "has no page with its body",
    "columns": "has no columns",
}


@dataclass(frozen=True)
class StoredJob:
    """What a job has stored: in its folder, and where its sinks say. A folder of files may stand for a job."""

    folder: Path
    sinks: Sequence[str] = ()
    """Those that it was started with."""
    job: str = ""
    """The name by which a fleet knows it; empty for a job of this machine."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All its settings, where they are known."""

    @classmethod
    def of(cls, found: Path | StoredJob) -> Self | StoredJob:
        """What is in a folder, with the settings that are there; none if it is no job's."""
        return found if isinstance(found, StoredJob) else cls.with_settings(found, stored_settings(found))

    @classmethod
    def with_settings(cls, folder: Path, settings: Mapping[str, Any], job: str = "") -> Self:
        """A job whose settings are at hand."""
        named = settings.get("sink", ())
        sinks = [name for name in named if isinstance(name, str)] if isinstance(named, list | tuple) else []
        return cls(folder, sinks, job, settings)

    @property
    def is_job(self) -> bool:
        """Whether the folder is a job's, and not one that holds files of some format and nothing else."""
        return bool(self.settings or self.sinks) or has_segments(self.folder) or (self.folder / ARCHIVE).is_dir()

    @property
    def is_fleets(self) -> bool:
        """Whether workers without an owner wrote it: then a visit that did not count may be there too."""
        return bool(self.job) or has_segments(self.folder)

    @property
    def elsewhere(self) -> list[str]:
        """Its sinks that write to a place outside of the folder, as they may be shown."""
        return elsewhere(self.sinks)

    def targets(self, *names: str) -> list[Path]:
        """The paths that sinks of these formats name, as `/data` in `warc:/data`."""
        parts = (parted(name) for name in self.sinks)
        return [Path(target.partition("?")[0]) for name, target in parts if name in names and target.startswith("/")]

    def readers(self) -> list[Reader]:
        """The readers of all that is there, the best first."""
        return [reader for find in find_readers(self.sinks) for reader in find(self)]

    def first(self, *what: Keeps, prefer: Keeps | None = None) -> Reader | None:
        """The best reader that keeps all of this; of several rather one that keeps what is preferred."""
        able = [reader for reader in self.readers() if reader.keeps.issuperset(what)]
        return next((reader for reader in able if prefer in reader.keeps), able[0] if able else None)

    def need(self, *what: Keeps, prefer: Keeps | None = None) -> Reader:
        """The same; NotKept says what is missing, where the rest is, and which sink keeps it."""
        if (reader := self.first(*what, prefer=prefer)) is not None:
            return reader
        raise self.lacks(*what)

    def lacks(self, *what: Keeps) -> NotKept:
        """What to say where nothing here keeps all of this."""
        hint = f"crawl with --sink {' or --sink '.join(formats_keeping(*what))}, beside others"
        if not self.folder.is_dir() and not self.sinks:
            return NotKept(f"{self.folder} does not exist", hint="see crawls/ for the names of jobs")
        if readers := self.readers():
            places = ", ".join(dict.fromkeys(reader.place for reader in readers))
            missing = [one for one in what if not any(one in reader.keeps for reader in readers)] or what[-1:]
            return NotKept(f"{places} {_LACKS[missing[0]]}", hint=hint)
        unread = [masked_address(name) for name in self.sinks if parted(name)[0] in FORMATS and not _is_readable(name)]
        if unread:
            return NotKept(f"{', '.join(unread)}: what is stored there cannot be read back", hint=hint)
        if away := self.elsewhere:
            return NotKept(f"nothing is stored in {self.folder}, nor in {', '.join(away)}", hint="has the crawl begun?")
        return NotKept(
            f"nothing is stored in {self.folder}", hint="name its folder, or --frontier URL for a fleet's job"
        )

    def awaits(self, *what: Keeps) -> bool:
        """Whether nothing is stored yet, and a sink of the job will keep this."""
        kept = [form.keeps for name in self.sinks if (form := FORMATS.get(parted(name)[0])) is not None]
        return not self.readers() and any(keeps.issuperset(what) for keeps in kept)

    def records(self, *, all_visits: bool = False, items: bool = False) -> Iterator[Record]:
        """The last record of every page, or with `all_visits` each; NotKept if nothing of it is here."""
        wanted: tuple[Keeps, ...] = ("rows", "items by page") if items else ("rows",)
        return self.need(*wanted).records(all_visits=all_visits, items=items)


def elsewhere(sinks: Sequence[str]) -> list[str]:
    """Of these sinks those that write to a place outside of the job's folder, as they may be shown."""
    return [masked_address(name) for name in sinks if ":/" in name]


def _is_readable(name: str) -> bool:
    return bool(FORMATS[parted(name)[0]].reader)
