"""The results folder of a fleet's job: its marker, and the comparison of its records with the frontier.

A job that `submit` or `crawl` creates has a random id in its settings (`results_id`), and its results folder has the
same id in the file `results.id`. A worker that finds no marker, or the marker of another job, sees a different folder
than the rest of the fleet: a mount is missing, or the folder was never shared. It refuses to start, because its results
would be missing from every export. A job without an id, from an older version, is not checked.

A record is on disk before its outcome is committed. So the frontier never counts a stored page that has no record, and
fewer records than stored pages mean that records are lost. There may be more: a worker that was killed in between
leaves records without an outcome."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from array import array
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import NamedTuple, Protocol

import msgspec

from gossamer.engine.heartbeat import is_live
from gossamer.errors import ConfigError, JobMissing
from gossamer.frontier.backends import backend_of, open_fleet
from gossamer.model import Counts, Heartbeat
from gossamer.redact import masked_address
from gossamer.settings import Settings
from gossamer.storage.query import CurrentRecords, visit_of
from gossamer.storage.registry import shared_folder, wants_segments
from gossamer.storage.segments import has_records, has_segments, segment_bytes, stamps

MARKER = "results.id"
CHEAP_BYTES = 64 * 1024 * 1024
"""Segments up to this size are counted for every status, which takes less than a second."""
_BUCKET_BITS = 8
_KEY_BITS = 63


class Marker(msgspec.Struct, frozen=True):
    """The content of `results.id`."""

    job: str
    """The job of the folder; shown in messages, and used by `export DIR --frontier URL`."""
    id: str


def read_marker(folder: Path) -> Marker | None:
    """The marker of a folder; None if it is missing or unreadable."""
    try:
        return msgspec.json.decode((folder / MARKER).read_bytes(), type=Marker)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None


def mark(folder: Path, job: str, *, parents: bool = True) -> str:
    """Write a marker into a folder, unless it has one; returns the id in the marker. Raises OSError on failure."""
    return put_marker(folder, Marker(job, secrets.token_hex(16)), parents=parents).id


def put_marker(folder: Path, marker: Marker, *, parents: bool = True) -> Marker:
    """Write a marker, unless there is one; returns the marker that is then in place.

    Two machines may do this at the same time: the complete file is linked into place, and one of them wins."""
    folder.mkdir(parents=parents, exist_ok=True)
    draft = folder / f".{MARKER}.{secrets.token_hex(4)}"
    try:
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(marker) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, folder / MARKER)
        except FileExistsError:
            pass
        except OSError:
            # Some shared folders have no hard links.
            if not (folder / MARKER).exists():
                draft.replace(folder / MARKER)
    finally:
        draft.unlink(missing_ok=True)
    return read_marker(folder) or replace_marker(folder, marker)


def replace_marker(folder: Path, marker: Marker) -> Marker:
    """Write a marker, replacing any other."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{MARKER}.{secrets.token_hex(4)}"
    draft.write_bytes(msgspec.json.encode(marker) + b"\n")
    draft.replace(folder / MARKER)
    return marker


def is_results(folder: Path, settings: Settings) -> bool:
    """Whether this is the job's results folder. For a job without an id, every folder is."""
    if not settings.results_id:
        return True
    marker = read_marker(folder)
    return marker is not None and marker.id == settings.results_id


def check_results(folder: Path, job: str, settings: Settings, frontier: str) -> None:
    """Raise ConfigError if the folder that this machine sees is not the job's results folder."""
    if not wants_segments(settings.sink) or is_results(folder, settings):
        return
    marker = read_marker(folder)
    if marker is not None:
        what = f"{folder} is the results folder of another job (its {MARKER} names {marker.job!r})"
    elif (folder / MARKER).exists():
        what = f"{folder / MARKER} is damaged"
    else:
        what = f"{folder} is not the results folder of job {job!r}: it has no {MARKER}"
    raise ConfigError(
        f"{what}; results stored there would be missing from every export",
        hint="mount the folder that the other machines share, or submit the job with a shared sink"
        " (--sink jsonl:/mnt/shared/NAME, --sink s3://...). If this is the right folder, and only its marker is lost:"
        f" {repair_command(job, frontier)} --adopt-folder. To store results here anyway: --own-results",
    )


def repair_command(job: str, frontier: str) -> str:
    """The command that requeues lost pages."""
    return f"gossamer repair {quote(job)} --frontier {quote(masked_address(frontier))}"


class ResultsWatch(Protocol):
    """The part of a fleet's frontier that a comparison needs."""

    settings: Settings

    async def counts(self) -> Counts: ...

    async def workers(self) -> list[Heartbeat]: ...


class Comparison(NamedTuple):
    """The number of pages that the frontier counts as stored, and of pages that have a record."""

    stored: int
    recorded: int
    is_live: bool
    """Whether the job has live workers."""
    is_finished: bool
    """Whether the job is finished: every page that counts as stored was recorded before."""

    @property
    def is_final(self) -> bool:
        """Whether records that are missing now stay missing. While workers run, they may not be visible yet."""
        return self.is_finished or not self.is_live

    @property
    def missing(self) -> int:
        """Pages, or visits of pages that are fetched again, that have no record."""
        return max(0, self.stored - self.recorded)

    @property
    def forgotten(self) -> int:
        """Pages that have a record but do not count as stored."""
        return max(0, self.recorded - self.stored)


def forgotten_words(found: Comparison, counts: Counts, settings: Settings, job: str) -> str:
    """A warning if the records of a finished job show that the frontier has lost pages; empty otherwise."""
    # Under a limit other pages take the place of forgotten ones, and these keep their records. So does a page
    # whose worker was killed before its outcome was committed, and that came to nothing when it was fetched again.
    if (
        found.forgotten <= counts.skipped + counts.parked
        or found.is_live
        or not counts.finished
        or settings.max_pages is not None
    ):
        return ""
    return (
        f"{found.forgotten:,} recorded pages are not known to the frontier any more: a server has lost more than"
        f" forget_seconds ({settings.forget_seconds:g} s), and pages that they link to may be missing. Have them"
        f" fetched again: gossamer export {quote(job)} --format urls | xargs gossamer add {quote(job)}"
    )


def counts_visits(settings: Settings, counts: Counts) -> bool:
    """Whether `stored` counts visits, of which a page may have several."""
    return bool(settings.recrawl or counts.revisits or counts.freshness is not None)


async def compare(fleet: ResultsWatch, folder: Path, *, but: str = "") -> Comparison:
    """Compare the frontier with the segments in a folder; reads all segments. `but` is a worker to ignore."""
    # In this order: a record is there before its outcome is.
    live = any(is_live(worker) for worker in await fleet.workers() if worker.worker != but)
    counts = await fleet.counts()
    visits = counts_visits(fleet.settings, counts)
    found = await asyncio.to_thread(count_records, folder, visits=visits)
    if found < counts.stored:
        # A network file system may not show yet what another machine has written.
        await asyncio.to_thread(_look_afresh, folder)
        found = await asyncio.to_thread(count_records, folder, visits=visits)
    return Comparison(counts.stored, found, live, counts.finished)


def is_cheap(folder: Path) -> bool:
    """Whether the records of a folder can be counted quickly."""
    return segment_bytes(folder) <= CHEAP_BYTES


def count_records(folder: Path, *, visits: bool = False) -> int:
    """Count the pages, or visits, that have a record in the segments of a folder."""
    words = CurrentRecords()
    for stamp in stamps(folder):
        words.add(visit_of(stamp.key, stamp.token) if visits else stamp.key, 0)
    return sum(words.flags())


def _look_afresh(folder: Path) -> None:
    """Invalidate the cached directory of segments on a network file system, by changing the directory."""
    if has_segments(folder):
        draft = folder / "segments" / f".look-{secrets.token_hex(4)}"
        with suppress(OSError):
            draft.touch()
            draft.unlink()


class RecordedKeys:
    """The keys of all pages that have a record in a folder's segments: 8 bytes each."""

    def __init__(self, folder: Path) -> None:
        self._buckets = [array("Q") for _ in range(1 << _BUCKET_BITS)]
        for stamp in stamps(folder):
            self._buckets[stamp.key >> (_KEY_BITS - _BUCKET_BITS)].append(stamp.key)
        self._buckets = [array("Q", sorted(set(bucket))) for bucket in self._buckets]

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def __contains__(self, key: int) -> bool:
        bucket = self._buckets[key >> (_KEY_BITS - _BUCKET_BITS)]
        place = bisect_left(bucket, key)
        return place < len(bucket) and bucket[place] == key


log = logging.getLogger("gossamer.fleet")


def results_folder(url: str, job: str, settings: Settings, folder: Path) -> Path:
    """The folder for the segments of a job: from its sink, from its shared frontier folder, or else `folder`."""
    return shared_folder(settings.sink) or backend_of(url).results_folder(url, job) or folder


async def claim_results(url: str, job: str, settings: Settings, folder: Path, *, parents: bool = True) -> Settings:
    """Mark the results folder of a job that is about to be created; returns the settings with the id of the marker.

    An existing job keeps its id; one from an older version gets none, unless nothing was stored yet. A new job gets an
    id even if the folder cannot be marked from this machine: its workers then refuse to start until it is marked. A new
    job must not use a folder with the pages of another job: its results would contain both. If two machines create one
    job at the same time, each with its own folder, the one that writes the settings last has the marked folder, and
    the other is refused."""
    try:
        fleet = await open_fleet(url, job)
    except JobMissing:
        return await asyncio.to_thread(_marked, job, settings, folder, parents=parents)
    try:
        known = fleet.settings.results_id
        is_new = not known and not (await fleet.counts()).stored
    finally:
        await fleet.aclose()
    if is_new and not await asyncio.to_thread(has_records, folder):
        return await asyncio.to_thread(_marked, job, settings, folder, parents=parents)
    return msgspec.structs.replace(settings, results_id=known)


def _marked(job: str, settings: Settings, folder: Path, *, parents: bool) -> Settings:
    if not wants_segments(settings.sink):
        return settings
    if has_records(folder):
        raise ConfigError(
            f"{folder} contains pages of another job", hint="choose another name with --job, or move the folder away"
        )
    try:
        return msgspec.structs.replace(settings, results_id=mark(folder, job, parents=parents))
    except OSError as error:
        if parents:
            raise
        log.warning("%s cannot be marked as the results folder of %s: %s", folder, job, error.strerror)
        return msgspec.structs.replace(settings, results_id=secrets.token_hex(16))
