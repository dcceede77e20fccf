"""The record of a job on a shared folder: settings, secret, version, and the layout of its shards.

`job.json` is created once, by one of all workers that create the job at the same time; the others read it. Secret,
number of shards, and region rules never change after that: the keys and shards of known sites depend on them. Settings
are replaced by each `create`. `wish.json` has the wanted state of the job (paused, running, stopping), which each
worker reads every round, and `adopted.json` the imported trees."""

from __future__ import annotations

import secrets
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, quote

import msgspec

from gossamer import settings as configuration
from gossamer.errors import ConfigError, JobMissing, SchemaMismatch
from gossamer.frontier.folder.claims import CLAIMS, TERMS, WORKERS
from gossamer.frontier.folder.files import TEMPORARY, SharedFolder
from gossamer.frontier.folder.log import folder_of
from gossamer.frontier.placement import region_of
from gossamer.model import JobState, Request
from gossamer.redact import has_secrets
from gossamer.settings import Settings

_REMEMBERED = 1 << 16


class Layout:
    """Maps sites to shards: `each` shards for every region, and `each` for sites without a region.

    The region rules are those of the job's creation. Under other rules, known sites would be in shards that do not know
    them, and be fetched twice."""

    def __init__(self, each: int, regions: Mapping[str, Sequence[str]] | None = None) -> None:
        self._each = each
        self._rules = regions or {}
        self._rows = ["", *sorted(self._rules)]
        self.count = each * len(self._rows)
        self.shard_of = lru_cache(_REMEMBERED)(self._shard_of)

    def _shard_of(self, site: str) -> int:
        place = zlib.crc32(site.encode("utf-8", "surrogatepass")) % self._each
        return self._each * self._rows.index(region_of(self._rules, site)) + place

    def region(self, shard: int) -> str:
        """Return the region of a shard's sites; empty if any worker may fetch them."""
        return self._rows[shard // self._each]

    def rows(self, region: str) -> list[tuple[str, range]]:
        """Return the shards that a worker of this region may have, row by row."""
        found = [(name, range(self._each * row, self._each * (row + 1))) for row, name in enumerate(self._rows)]
        return [(name, shards) for name, shards in found if name in ("", region)]

    def by_shard(self, requests: Iterable[Request]) -> dict[int, list[Request]]:
        """Group requests by the shard of their site."""
        sorted_out: dict[int, list[Request]] = defaultdict(list)
        for request in requests:
            sorted_out[self.shard_of(request.site)].append(request)
        return sorted_out

    def may_have(self, shard: int, region: str) -> bool:
        """Return whether workers of this region may own a shard."""
        return self.region(shard) in ("", region)


FORMAT = 1
SHARDS = 64
INBOX, REFUSED, QUOTA = "inbox", "refused", "quota"
_MOST_SHARDS = 8192
_RECORD, _WISH, _ADOPTED = "job.json", "wish.json", "adopted.json"


class FolderJobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a job, the same for all its workers."""

    format: int
    secret: bytes
    shards: int
    """Number of shards for each region, and for the sites without one."""
    settings: dict[str, Any]
    regions: dict[str, list[str]] = {}
    """The rules that map sites to regions, as of the job's creation."""

    @property
    def layout(self) -> Layout:
        """Return the layout of its shards."""
        return Layout(self.shards, self.regions)


def place_of(url: str, job: str) -> tuple[Path, int]:
    """Return the folder of a job, and its number of shards if it is created: folder:/path or
    folder:/path?shards=128."""
    path, _, query = url.partition(":")[2].partition("?")
    if not path.startswith("/"):
        raise ConfigError(f"{url}: not a shared folder address", hint="write folder:/path, with the absolute path")
    options = parse_qs(query)
    shards = options.pop("shards", [str(SHARDS)])[-1]
    if options or not shards.isdigit() or not 1 <= int(shards) <= 4096:
        raise ConfigError(f"{url}: only shards=1 to 4096 can be set", hint="folder:/path?shards=128")
    return Path(path) / "frontier" / quote(job, safe="", errors="surrogatepass"), int(shards)


def results_of(url: str, job: str) -> Path:
    """Return the folder where a job's workers store pages, unless its settings name another."""
    root, _ = place_of(url, job)
    return root.parents[1] / "results" / root.name


def open_job(
    share: SharedFolder, job: str, settings: Settings | None, *, shards: int
) -> tuple[FolderJobRecord, Settings]:
    """Return the record of a job and its settings. With `settings`, create or update the job with them.

    All folders are created before the record, so a job with a record is complete."""
    if settings is not None:
        plain = configuration.dump(settings)
        regions = {name: list(patterns) for name, patterns in settings.regions.items()}
        made = FolderJobRecord(
            format=FORMAT, secret=secrets.token_bytes(16), shards=shards, settings=plain, regions=regions
        )
        _check(settings, made)
        share.make_folders(TEMPORARY, CLAIMS, TERMS, WORKERS, INBOX, REFUSED, QUOTA)
        share.make_folders(*(folder_of(shard) for shard in range(made.layout.count)))
        # Settings with passwords are readable by their user only.
        mode = 0o600 if has_secrets(settings) else 0o644
        if not share.claim(_RECORD, msgspec.json.encode(made), mode=mode):
            found = _read(share, job)
            if found.regions != regions:
                raise ConfigError(
                    "cannot change the regions of a job on a folder",
                    hint="restore the earlier regions, or start a new job: sites do not move between shards",
                )
            share.put(_RECORD, msgspec.json.encode(msgspec.structs.replace(found, settings=plain)), mode=mode)
        if read_wanted_state(share) == "stopping":
            # A stop ends with the run that was stopped.
            write_wanted_state(share, "running")
    record = _read(share, job)
    return record, configuration.build(record.settings, source=f"{share.root / _RECORD}")


def read_settings(share: SharedFolder) -> Settings:
    """Return the job's current settings."""
    return configuration.build(_read(share, share.root.name).settings, source=f"{share.root / _RECORD}")


def _check(settings: Settings, record: FolderJobRecord) -> None:
    if settings.region_by == "auto":
        raise ConfigError(
            "a job on a folder does not support region_by auto",
            hint="omit --region-by auto, or use redis:// or a database",
        )
    if record.layout.count > _MOST_SHARDS:
        raise ConfigError(
            f"{len(record.regions)} regions with {record.shards} shards each are more than {_MOST_SHARDS:,} shards",
            hint="make fewer: folder:/path?shards=16",
        )


def _read(share: SharedFolder, job: str) -> FolderJobRecord:
    try:
        data = share.read(_RECORD)
    except (FileNotFoundError, NotADirectoryError):
        raise JobMissing(
            f"there is no job {job!r} in {share.root.parent.parent}",
            hint="start it with: gossamer crawl --frontier folder:/path --job NAME; is the folder mounted?",
        ) from None
    try:
        record = msgspec.json.decode(data, type=FolderJobRecord)
    except msgspec.MsgspecError as error:
        raise SchemaMismatch(
            f"{share.root / _RECORD} cannot be read: {error}",
            hint="the file was not changed; move it away to start a new job",
        ) from None
    if record.format != FORMAT:
        raise SchemaMismatch(
            f"{share.root} was written by another Gossamer (format {record.format}, this one reads {FORMAT})",
            hint="use the version that wrote it, on all machines",
        )
    return record


def read_wanted_state(share: SharedFolder) -> JobState:
    """The state that people want the job in."""
    try:
        return cast(JobState, msgspec.json.decode(share.read(_WISH), type=str))
    except (FileNotFoundError, msgspec.MsgspecError):
        return "running"


def read_adopted(share: SharedFolder) -> list[str]:
    """The trees of pages that the job has imported to their end."""
    try:
        return msgspec.json.decode(share.read(_ADOPTED), type=list[str])
    except (FileNotFoundError, msgspec.MsgspecError):
        return []


def write_adopted(share: SharedFolder, tree: str) -> None:
    """Add a tree to these."""
    share.put(_ADOPTED, msgspec.json.encode(sorted({*read_adopted(share), tree})))


def write_wanted_state(share: SharedFolder, job: JobState) -> None:
    """Set the state for all workers; each reads it in its next round."""
    share.put(_WISH, msgspec.json.encode(job))
