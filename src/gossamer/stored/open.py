"""Finds what a job folder, or a list of files, holds, and reads it as one."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from urllib.parse import quote

from gossamer.errors import ArchiveError
from gossamer.masks import masked_address
from gossamer.sink.segments import FOLDER as SEGMENTS
from gossamer.sink.warc import FOLDER
from gossamer.stored import rows
from gossamer.stored.places import elsewhere, sinks_of
from gossamer.stored.whole import WARC, Stored


def open_stored(*places: str | Path) -> Stored:
    """What a job (its name or folder), folders of WARC files, or single files hold; an ArchiveError says what lacks."""
    # A process of a replay reads parts only, and need not load what a job is.
    from gossamer.job import folder_of

    warcs: list[Path] = []
    trees: list[tuple[Path, Path]] = []
    only: dict[str, set[int]] = {}
    for place in places:
        path = Path(place)
        if path.is_file():
            if path.name.endswith(rows.SUFFIX):
                for file, offsets in rows.places(path).items():
                    only.setdefault(str(file), set()).update(offsets)
                continue
            if not path.name.endswith(WARC):
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
        found, kept = _in_folder(folder)
        if not found and not kept:
            raise _bodiless(folder)
        warcs += found
        trees += kept
    # The same file may have been named twice.
    for whole in map(str, warcs):
        only.pop(whole, None)
    return Stored(list(dict.fromkeys([*warcs, *map(Path, only)])), list(dict.fromkeys(trees)), only=only)


def _bodiless(folder: Path) -> ArchiveError:
    """What to say of a job that has no bodies here."""
    if away := [name for name in elsewhere(sinks_of(folder)) if name.startswith("warc+")]:
        return ArchiveError(
            f"the pages of {folder} are in {', '.join(away)}", hint="fetch its objects into a folder, and name that"
        )
    return ArchiveError(
        f"{folder} has no page with its body: no sink stored them",
        hint="crawl with --sink warc (beside --sink jsonl); of a fleet with --sink warc:/path, name that path",
    )


def archives_of(folder: Path) -> list[Path]:
    """The WARC files of a job."""
    return _in_folder(folder)[0] if folder.is_dir() else []


def _in_folder(folder: Path) -> tuple[list[Path], list[tuple[Path, Path]]]:
    """The WARC files of a folder, which is a job's or holds nothing else, and its trees of bodies."""
    from gossamer.job import SETTINGS

    is_job = (folder / SETTINGS).is_file() or (folder / SEGMENTS).is_dir() or (folder / FOLDER).is_dir()
    if not is_job:
        return _warcs(folder), []
    warcs, trees = _warcs(folder / FOLDER), []
    for name in sinks_of(folder):
        kind, _, target = name.partition(":")
        if kind == "warc" and target:
            # Others write there too: the names of a job's files begin with its name and a digest of its folder.
            prefix = quote(folder.absolute().name, safe="")
            tag = blake2b(os.fsencode(folder.absolute()), digest_size=4).hexdigest()
            warcs += [path for path in _warcs(Path(target)) if path.name.startswith(prefix) and tag in path.name]
        elif kind == "folder" and target.startswith("/"):
            trees.append((Path(target), folder))
    # What a WARC file has is not read a second time from a tree.
    return warcs, [] if warcs else trees


def _warcs(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(WARC) and path.is_file())
    except OSError:
        return []
