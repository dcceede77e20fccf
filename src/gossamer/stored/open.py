"""Finds what a job folder, or a list of files, holds, and reads it as one."""

from __future__ import annotations

from pathlib import Path

from gossamer.errors import ArchiveError, NotKept
from gossamer.job_folder import folder_of
from gossamer.redact import masked_address
from gossamer.storage.reader import StoredJob
from gossamer.storage.warc_reader import ENDINGS, warc_files
from gossamer.stored import rows
from gossamer.stored.whole import Stored


def open_stored(*places: str | Path | StoredJob) -> Stored:
    """What a job (its name, folder or place), folders of WARC files, or single files hold; an ArchiveError says what
    lacks."""
    warcs: list[Path] = []
    trees: list[tuple[Path, Path]] = []
    jobs: dict[Path, StoredJob] = {}
    only: dict[str, set[int]] = {}
    for place in places:
        if isinstance(place, StoredJob):
            _take(place, warcs, trees, jobs)
            continue
        path = Path(place)
        if tables := _tables(path):
            for table in tables:
                for file, offsets in rows.places(table).items():
                    only.setdefault(str(file), set()).update(offsets)
            continue
        if path.is_file():
            if not path.name.endswith(ENDINGS):
                raise ArchiveError(
                    f"{path} is no WARC file", hint="name a job, or files that end in .warc.gz, .warc or .parquet"
                )
            warcs.append(path)
            continue
        folder = path if path.is_dir() else folder_of(str(place), ())
        if not folder.is_dir():
            away = "://" in str(place)
            hint = "fetch its objects into a folder, and name that" if away else "see crawls/ for the names of jobs"
            raise ArchiveError(f"{masked_address(str(place))}: no such job, folder or file", hint=hint)
        _take(StoredJob.of(folder), warcs, trees, jobs)
    # The same file may have been named twice.
    for whole in map(str, warcs):
        only.pop(whole, None)
    return Stored(list(dict.fromkeys([*warcs, *map(Path, only)])), list(dict.fromkeys(trees)), only=only, jobs=jobs)


def _tables(path: Path) -> list[Path]:
    """A Parquet file of pages, or those in a folder of the sink `parquet`, or below one of its parts."""
    if path.is_file():
        return [path] if path.name.endswith(rows.PARQUET_SUFFIX) else []
    if not path.is_dir() or (place := StoredJob.of(path)).is_job or warc_files(place):
        return []
    below = path / "pages" if (path / "pages").is_dir() else path
    return sorted(below.rglob(f"*{rows.PARQUET_SUFFIX}"))


def _take(place: StoredJob, warcs: list[Path], trees: list[tuple[Path, Path]], jobs: dict[Path, StoredJob]) -> None:
    """Add what a place holds. What a WARC file has is not read a second time from a tree."""
    found = warc_files(place)
    kept = [(tree, place.folder) for tree in place.targets("folder")] if place.is_job and not found else []
    if not found and not kept:
        raise _bodiless(place)
    warcs += found
    trees += kept
    jobs[place.folder] = place


def _bodiless(place: StoredJob) -> NotKept:
    """What to say of a job that has no bodies here."""
    if away := [name for name in place.elsewhere if name.startswith("warc+")]:
        return NotKept(
            f"the pages of {place.folder} are in {', '.join(away)}",
            hint="fetch its objects into a folder, and name that",
        )
    return NotKept(
        f"{place.folder} has no page with its body: no sink stored them",
        hint="crawl with --sink warc (beside --sink jsonl); of a fleet, --frontier URL says where they are",
    )
