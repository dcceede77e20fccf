"""The sinks of a proof: made its own, read back row by row, and taken away again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossamer.errors import ConfigError
from gossamer.model import Record
from gossamer.redact import masked_address
from gossamer.settings import expand
from gossamer.storage.base import Reader
from gossamer.storage.reader import StoredJob
from gossamer.storage.registry import FORMATS, load, parted
from gossamer.storage.tables import ask
from gossamer.verify.verdict import StoredRow

_FILES = ("jsonl", "csv", "sqlite", "warc", "parquet")
_TABLES = ("postgresql", "postgres", "mysql", "mariadb")


def made_its_own(sinks: Sequence[str], table: str) -> list[str]:
    """Sinks as the proof uses them: files in its own folder, tables of its own; ConfigError for what is neither."""
    found = []
    for name in sinks:
        kind = parted(name)[0]
        if kind in _TABLES and "table=" not in name:
            found.append(f"{name}{'&' if '?' in name else '?'}table={table}")
        elif kind in _TABLES or (kind in FORMATS and (kind not in _FILES or ":/" in name)):
            raise ConfigError(
                f"sink {masked_address(name)}: verify would write beside what is there, or could not read it back",
                hint=f"it makes files and tables of its own: name {', '.join(_FILES)}, postgresql:// or mysql://",
            )
        else:
            found.append(name)
    return found


async def read_back(name: str, folder: Path, *, is_fleet: bool) -> list[StoredRow]:
    """The rows that a sink holds. A fleet's workers may have kept a visit that did not count: the last word counts."""
    kind = parted(name)[0]
    # The reader of tables expands the address itself, as the sink does.
    job = StoredJob(folder, [name if kind in _TABLES else expand(name, source="sink")])
    reader = await asyncio.to_thread(_reader_of, job, kind)
    if reader is None:
        return []
    return await asyncio.to_thread(lambda: [_row(one) for one in reader.records(all_visits=not is_fleet)])


def _reader_of(job: StoredJob, kind: str) -> Reader | None:
    """That of a format; of a sink of another package, whatever it left that can be read."""
    if kind in FORMATS:
        return next(load(FORMATS[kind].reader)(job), None)
    return job.need("rows")


def _row(record: Record) -> StoredRow:
    return StoredRow(record.page.url, record.page.status or 0)


async def take_away(name: str) -> None:
    """Drop the tables of a sink; its files go with their folder."""
    if parted(name)[0] in _TABLES:
        for ending in ("", "_items", "_items_rejected"):
            await _ask(name, f"DROP TABLE IF EXISTS {{}}{ending}")


async def _ask(name: str, statement: str) -> list[Any]:
    """A statement about the table that a sink's name ends with; none of its words are anybody's but ours."""
    url, _, table = expand(name, source="sink").rpartition("table=")
    return await ask(url[:-1], statement.format(table))
