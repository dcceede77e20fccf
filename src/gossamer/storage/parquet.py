"""The Parquet sink: appends rows to logs, which are later sealed into Parquet files."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote

from gossamer.clock import Clock, SystemClock
from gossamer.errors import ConfigError, SinkError
from gossamer.model import Record
from gossamer.storage import files, parquet_files
from gossamer.storage.base import TABLES, Opening
from gossamer.storage.parquet_files import ItemColumns, known_columns

log = logging.getLogger("gossamer.sink")
SEAL_BYTES = 32 * 1024 * 1024
"""Limit of a log, about 70,000 pages: sealing loads all of it, and takes about three times its size in memory."""
SEAL_SECONDS = 3600.0
PARTITIONS = ("day", "site")


class Archive(Protocol):
    """A sink that reports where it stored pages."""

    where: str
    """Its folder, as the job's files refer to it."""

    @property
    def placed(self) -> Mapping[tuple[int, int], Any]: ...


class ParquetSink:
    """Parquet files below `pages/` and `items/`; newer rows are in a log, which is durable at once.

    A log is sealed at a size or an age, and at the end: its Parquet files are written beside it, then it is deleted.
    With `marks`, the frontier determines the valid length of a log; without them, in a fleet, all complete lines are
    valid, and an unavailable folder is waited for."""

    def __init__(
        self,
        folder: Path,
        marks: Mapping[str, int] | None,
        *,
        prefix: str,
        by: Sequence[str] = (),
        seal_bytes: int = SEAL_BYTES,
        home: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.archives: Sequence[Archive] = ()
        """Sinks that wrote the same records just before."""
        self._folder, self._home, self._is_shared = folder, home or folder, marks is None
        self._prefix, self._by, self._seal_bytes = quote(prefix, safe=""), by, seal_bytes
        self._clock = clock or SystemClock()
        self._log: _Log | None = None
        self._full: list[_Log] = []
        # A cancelled call leaves its thread writing: later calls wait for it.
        self._lock = threading.Lock()
        self._sealer = ThreadPoolExecutor(1, thread_name_prefix="gossamer-parquet")
        self._sealing: Future[None] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._recover(marks)
            self._columns = known_columns(
                parquet_files.sealed(folder, parquet_files.ITEMS, beginning=f"{self._prefix}-")
            )
            names = [*map(str, marks or ()), *(path.name for path in folder.rglob(f"{self._prefix}-*"))]
        except OSError as error:
            raise files.translate_error(error) from error
        self._number = 1 + max((int(found[1]) for found in map(self._numbered, names) if found), default=-1)

    async def write(self, records: Sequence[Record]) -> Mapping[str, int]:
        return await asyncio.get_running_loop().run_in_executor(None, self._write, records)

    def _write(self, records: Sequence[Record]) -> dict[str, int]:
        lines = bytearray()
        for record in records:
            parquet_files.add_line(lines, record, self._location(record))
        with self._lock:
            try:
                return self._append(lines) if lines else {}
            except OSError as error:
                raise self._write_fault(error) from error

    def _append(self, lines: bytearray) -> dict[str, int]:
        # Seal only now that the last call is known to be committed: a sealed log cannot be truncated.
        if self._log is not None and self._is_due(self._log):
            self._full.append(self._log)
            self._log = None
            if self._sealing is None or self._sealing.done():
                self._sealing = self._sealer.submit(self._seal)
        if self._log is None:
            path = self._folder / f"{self._prefix}-{self._number:05}{parquet_files.LOG}"
            self._number += 1
            self._log = _Log(path, mark=self._mark(path), began_at=self._clock.monotonic())
        try:
            self._log.append(lines)
        except OSError as error:
            # Sealed rows take a tenth of the space of their log.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._seal_now():
                raise
            self._log.append(lines)
        return {self._log.mark: self._log.size}

    def _write_fault(self, error: OSError) -> SinkError:
        """Return the error to raise. On a shared folder, a file handle may stay broken after one fault: the log is left
        as it is, and sealed at the end."""
        if not self._is_shared:
            return files.translate_error(error)
        if self._log is not None and not files.is_full(error):
            self._log.close()
            self._log = None
        return files.translate_folder_error(self._folder, error)

    def _is_due(self, one: _Log) -> bool:
        is_old = self._clock.monotonic() - one.began_at >= SEAL_SECONDS
        return one.size >= self._seal_bytes or (is_old and one.size > 0)

    def _seal_now(self) -> bool:
        """Wait until full logs are sealed; False if none could be."""
        before = len(self._full)
        if self._sealing is not None:
            self._sealing.result()
        self._seal()
        return len(self._full) < before

    def _seal(self) -> None:
        """Seal full logs in the background. A log that cannot be sealed now is retried later."""
        for one in list(self._full):
            try:
                one.seal(self._folder, self._by, self._columns)
            except (OSError, SinkError) as error:
                # Its rows are durable: the next start seals it at the latest.
                log.warning("%s: cannot seal the log into Parquet files yet: %s", one.path, error)
                return
            self._full.remove(one)

    async def rewind(self, marks: Mapping[str, int]) -> None:
        with self._lock:
            if self._log is not None:
                self._log.truncate(marks.get(self._log.mark, 0))

    async def aclose(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        with self._lock:
            if self._log is not None:
                self._full.append(self._log)
                self._log = None
            self._seal_now()
            for one in self._full:
                one.close()
            self._full.clear()
            self._sealer.shutdown()
            if self._is_shared:
                self._seal_abandoned()

    def _seal_abandoned(self) -> None:
        """Seal logs that were abandoned while the folder was unavailable."""
        try:
            self._recover(None)
        except (OSError, SinkError) as error:
            log.warning("%s: cannot seal all logs into Parquet files yet: %s", self._folder, error)

    def _recover(self, marks: Mapping[str, int] | None) -> None:
        """Seal the logs of earlier runs, as far as they are valid."""
        for path in parquet_files.logs(self._folder):
            if not self._numbered(path.name):
                continue
            if marks is None:
                seal_abandoned(path, by=self._by)
                continue
            files.truncate(path, marks.get(self._mark(path), 0))
            parquet_files.seal(path, self._folder, by=self._by)
        for mark in marks or ():
            path = self._home / mark
            if path.parent == self._folder and self._numbered(path.name) and not self._is_sealed(path):
                log.warning("%s is missing, and its rows with it", path)

    def _is_sealed(self, path: Path) -> bool:
        name = path.name.removesuffix(parquet_files.LOG)
        return next((self._folder / parquet_files.PAGES).rglob(f"{name}{parquet_files.SUFFIX}"), None) is not None

    def _location(self, record: Record) -> parquet_files.BodyLocation | None:
        for archive in self.archives:
            found = archive.placed.get((record.key, record.token))
            if found is not None:
                return parquet_files.BodyLocation(
                    f"{archive.where}/{found.file}", found.offset, found.length, found.is_revisit
                )
        return None

    def _mark(self, path: Path) -> str:
        return str(path.relative_to(self._home)) if path.is_relative_to(self._home) else str(path)

    def _numbered(self, name: str) -> re.Match[str] | None:
        return re.search(
            rf"(?:^|/){re.escape(self._prefix)}-(\d+)(?:{parquet_files.LOG}|{parquet_files.SUFFIX})$", name
        )


class _Log:
    """Rows that are durable, but not in a Parquet file yet."""

    def __init__(self, path: Path, *, mark: str, began_at: float) -> None:
        self.path, self.mark, self.began_at = path, mark, began_at
        self.size = 0
        self._tried = False
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        files.lock(self._file)
        try:
            files.sync_folder(path.parent)
        except OSError:
            self.close()
            with suppress(OSError):
                path.unlink()
            raise

    def append(self, lines: bytearray) -> None:
        try:
            files.write_at(self._file, lines, self.size)
            files.sync(self._file)
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        self.size += len(lines)

    def truncate(self, size: int) -> None:
        self.size = size
        os.ftruncate(self._file, size)

    def seal(self, folder: Path, by: Sequence[str], columns: ItemColumns) -> None:
        again, self._tried = self._tried, True
        parquet_files.seal(self.path, folder, by=by, again=again, columns=columns)
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._file)


class ParquetOptions(NamedTuple):
    """The options of the sink's name: a folder, and the columns that partition its files."""

    folder: str
    by: tuple[str, ...]


def read_target(text: str) -> ParquetOptions:
    """Parse `/path?by=day,site`, or parts of it; ConfigError explains what is wrong."""
    folder, _, query = text.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    by = tuple(options.pop("by", "").split(",")) if "by" in options else ()
    if options or not set(by) <= set(PARTITIONS) or len(set(by)) < len(by) or (folder and not folder.startswith("/")):
        raise ConfigError(f"sink parquet:{text}: invalid options", hint="use parquet:/path or parquet?by=day,site")
    return ParquetOptions(folder, by)


def open_parquet(opening: Opening) -> ParquetSink:
    """Open the sink `parquet`, in the job's folder, or `parquet:/path`; `?by=day,site` partitions its files."""
    target = read_target(opening.target)
    home = opening.home
    return ParquetSink(
        Path(target.folder) if target.folder else home / TABLES,
        opening.marks,
        prefix=opening.prefix(elsewhere=bool(target.folder)),
        by=target.by,
        seal_bytes=min(SEAL_BYTES, opening.settings.archive_bytes),
        home=home,
    )


def seal_abandoned(path: Path, *, by: Sequence[str] = ()) -> None:
    """Seal a log that a worker of a fleet left, with all complete visits; not if the worker still holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if files.lock(descriptor):
            os.ftruncate(descriptor, parquet_files.whole_bytes(path))
            parquet_files.seal(path, path.parent, by=by)
    finally:
        os.close(descriptor)


def unfinished(target: str, home: Path) -> Iterator[tuple[Path, Callable[[Path], None]]]:
    """Yield the logs that are open, or that dead writers left, and the function that seals each."""
    options = read_target(target)
    for path in parquet_files.logs(Path(options.folder) if options.folder else home / TABLES):
        yield path, partial(seal_abandoned, by=options.by)
