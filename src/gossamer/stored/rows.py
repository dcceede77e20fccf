"""Rows of Parquet files, which say where in an archive their pages are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gossamer.errors import ArchiveError
from gossamer.extras import unusable
from gossamer.sink.warc import OPEN

PARQUET_SUFFIX = ".parquet"


def places(path: Path) -> dict[Path, set[int]]:
    """WARC file -> where in it the pages of the rows begin."""
    found: dict[Path, set[int]] = {}
    files: dict[str, Path] = {}
    for name, offset in _pairs(path):
        if name not in files:
            files[name] = _file(path, name)
        found.setdefault(files[name], set()).add(offset)
    if not found:
        raise ArchiveError(
            f"{path} does not say where the bodies of its pages are",
            hint="they are kept by a crawl with --sink parquet --sink warc",
        )
    return found


def _pairs(path: Path) -> Iterator[tuple[str, int]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as missing:
        raise unusable("parquet", "Parquet", missing) from missing
    try:
        with pq.ParquetFile(path) as file:
            if "warc_offset" not in file.schema_arrow.names:
                return
            for batch in file.iter_batches(columns=["warc_file", "warc_offset"]):
                names, offsets = batch.column(0).to_pylist(), batch.column(1).to_pylist()
                yield from ((name, offset) for name, offset in zip(names, offsets, strict=True) if name is not None)
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"{path}: {error}", hint="is it a Parquet file, and is all of it there?") from None


def _file(path: Path, name: str) -> Path:
    """The WARC file of that name: as it is, or in one of the folders that the rows lie in."""
    for folder in path.absolute().parents:
        for candidate in (folder / name, folder / (name + OPEN)):
            if candidate.is_file():
                return candidate
    raise ArchiveError(f"{path} speaks of {name}, which is not there", hint="keep the files of a job together")
