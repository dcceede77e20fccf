"""A frontier in LMDB, an embedded key-value store: `gossamer crawl URL --frontier lmdb:FOLDER`.

Gossamer's `EmbeddedFrontier` schedules sites, lanes, leases, and delays in memory. This module is its journal: it
writes each `Change` of the frontier as one LMDB transaction. LMDB syncs the file before a commit returns, so an
acknowledged change survives `kill -9` and a power cut, and an unacknowledged change leaves no trace. After a restart,
`LmdbPast` reads everything back.

The journal stores every visit. A crawl that revisits its pages for years needs compaction, which this example lacks."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import msgspec

from gossamer import settings as configuration
from gossamer.clock import Clock
from gossamer.errors import ConfigError, Held, JobMissing, SchemaMismatch, Unavailable
from gossamer.frontier.base import OwnedBackend, OwnedFrontier
from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.frontier.embedded.journal import Change, JournalSite, OutcomeRow, Past, vars_of
from gossamer.job_folder import save_settings, stored_settings
from gossamer.model import JobState, Request
from gossamer.settings import Settings

FORMAT = 1
FILE = "data.mdb"
TABLES = ("meta", "marks", "sites", "notes", "urls", "keys", "outcomes", "lapses", "hints")
MAP_BYTES = 1 << 40
"""The maximum size of the file. It reserves address space; disk space is used only as the file grows."""
Value = TypeVar("Value")
_encode = msgspec.msgpack.Encoder().encode


class UrlRow(msgspec.Struct, array_like=True):
    """One URL: the request, the number of its site, and the number of the page that linked to it (0 for a seed)."""

    request: Request
    site: int
    parent: int


class LmdbBackend(OwnedBackend):
    """Opens jobs, each in its own folder: `lmdb:/data` stores the job `shop` in `/data/shop`."""

    name = "lmdb"
    forms = ("lmdb:FOLDER",)

    def settings(self, url: str, job: str) -> Settings | None:
        stored = stored_settings(_folder(url, job))
        return configuration.build(stored) if stored else None

    async def open(self, url: str, job: str, *, clock: Clock) -> OwnedFrontier:
        if not (_folder(url, job) / FILE).exists():
            raise JobMissing(f"there is no job {job} in {url}", hint="pass a URL to start a new job")
        return await self.create(url, job, self.settings(url, job) or Settings(), clock=clock)

    async def create(self, url: str, job: str, settings: Settings, *, clock: Clock) -> OwnedFrontier:
        folder = _folder(url, job)
        with ExitStack() as undo, _translated(folder):
            lock = _own(folder)
            undo.callback(os.close, lock)
            journal = LmdbJournal(folder, lock)
            undo.pop_all()
            undo.callback(journal.close)
            save_settings(folder, settings)
            frontier = EmbeddedFrontier(journal, journal.past(), settings=settings, clock=clock)
            undo.pop_all()
        return frontier

    async def list_jobs(self, url: str) -> list[str]:
        return sorted(path.parent.name for path in _folder(url, "").glob(f"*/{FILE}"))

    async def remove(self, url: str, job: str) -> bool:
        folder = _folder(url, job)
        if not (folder / FILE).exists():
            return False
        lock = _own(folder)
        try:
            # Delete the data last: after an interruption the job is still listed, and can be removed again. Keep the
            # lock file: without it, two processes could lock two files of the same name.
            for name in ("job.toml", "lock.mdb", FILE):
                (folder / name).unlink(missing_ok=True)
        finally:
            os.close(lock)
        return True


class LmdbJournal:
    """Writes each change in one transaction, in a thread that waits for the disk. Reads use the memory-mapped file."""

    def __init__(self, folder: Path, lock: int) -> None:
        self._folder = folder
        self._lock = lock
        self._env = lmdb.open(str(folder), map_size=MAP_BYTES, max_dbs=len(TABLES))
        self._tables = {name: self._env.open_db(name.encode()) for name in TABLES}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gossamer-lmdb")
        with self._env.begin(write=True) as txn:
            if self._get(txn, "meta", b"format", int) is None:
                self._put(txn, "meta", b"format", FORMAT)
                self._put(txn, "meta", b"secret", secrets.token_bytes(16))
            found = self._get(txn, "meta", b"format", int)
            # Tokens begin with the epoch, so tokens of an earlier run are stale, even after a crash.
            self._put(txn, "meta", b"epoch", (self._get(txn, "meta", b"epoch", int) or 0) + 1)
            self._rows = self._get(txn, "meta", b"rows", int) or 0
        if found != FORMAT:
            self._thread.shutdown()
            self._env.close()
            raise SchemaMismatch(f"{folder} has format {found}, but this version reads format {FORMAT}")

    def past(self) -> Past:
        return LmdbPast(self)

    async def write(self, change: Change) -> Sequence[int]:
        rows = range(self._rows + 1, self._rows + 1 + len(change.outcomes))
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, change, rows)
        self._rows += len(rows)
        return rows

    def _write(self, change: Change, rows: range) -> None:
        # Leaving the block commits and syncs; an exception in it rolls everything back.
        with _translated(self._folder), self._env.begin(write=True) as txn:
            for number, name in change.sites:
                self._put(txn, "sites", _key(number), name)
            for number, request, site, parent in change.urls:
                self._put(txn, "urls", _key(number), UrlRow(request, site, parent))
                self._put(txn, "keys", _key(request.key), number)
            for row, outcome in zip(rows, change.outcomes, strict=True):
                # The visits of a URL are adjacent, in chronological order.
                self._put(txn, "outcomes", _key(outcome.number) + _key(row), outcome)
                txn.delete(_key(outcome.number), db=self._tables["hints"])
            for number, (hint, due_at) in change.hastened.items():
                self._put(txn, "hints", _key(number), (hint, due_at))
            for number, note in change.notes.items():
                self._put(txn, "notes", _key(number), note)
            for number, count in change.lapses.items():
                self._put(txn, "lapses", _key(number), count)
            for name, length in (change.marks or {}).items():
                self._put(txn, "marks", name.encode(), length)
            if change.job is not None:
                self._put(txn, "meta", b"job", change.job)
            if rows:
                self._put(txn, "meta", b"rows", rows[-1])

    def load(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        with _translated(self._folder), self._env.begin() as txn:
            return [self._request(txn, number, visits.get(number)) for number in numbers]

    def _request(self, txn: lmdb.Transaction, number: int, row: int | None) -> Request:
        found = self._url(txn, number)
        visit = None if row is None else self._get(txn, "outcomes", _key(number) + _key(row), OutcomeRow)
        state = None if visit is None else visit.state
        return msgspec.structs.replace(found.request, referrer=self._referrer(txn, found), state=state, tries=0)

    def lookup(self, key: int) -> dict[str, Any] | None:
        with _translated(self._folder), self._env.begin() as txn:
            number = self._get(txn, "keys", _key(key), int)
            if number is None:
                return None
            found = self._url(txn, number)
            visits = [visit for _, visit in self._scan(txn, "outcomes", OutcomeRow, prefix=_key(number))]
            history = {
                "number": number,
                "url": found.request.url,
                "site": found.request.site,
                "depth": found.request.depth,
                "priority": found.request.priority,
                "referrer": self._referrer(txn, found),
                "attempts": [vars_of(visit) for visit in visits],
            }
            state = next((visit.state for visit in reversed(visits) if visit.state), None)
            return history | ({"visit": state} if state else {})

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._env.close()
        os.close(self._lock)

    def _url(self, txn: lmdb.Transaction, number: int) -> UrlRow:
        found = self._get(txn, "urls", _key(number), UrlRow)
        if found is None:
            raise SchemaMismatch(f"{self._folder}: URL number {number} is missing")
        return found

    def _referrer(self, txn: lmdb.Transaction, found: UrlRow) -> str:
        """The referrer of the request, or else the page on which its link was found."""
        if found.request.referrer or not found.parent:
            return found.request.referrer
        return self._url(txn, found.parent).request.url

    def _put(self, txn: lmdb.Transaction, table: str, key: bytes, value: Any) -> None:
        txn.put(key, _encode(value), db=self._tables[table])

    def _get(self, txn: lmdb.Transaction, table: str, key: bytes, kind: type[Value]) -> Value | None:
        found = txn.get(key, db=self._tables[table])
        return None if found is None else msgspec.msgpack.decode(found, type=kind)

    def _scan(
        self, txn: lmdb.Transaction, table: str, kind: type[Value], prefix: bytes = b""
    ) -> Iterator[tuple[bytes, Value]]:
        """The entries of a table whose keys start with `prefix`, in key order."""
        decode = msgspec.msgpack.Decoder(kind).decode
        cursor = txn.cursor(db=self._tables[table])
        if not cursor.set_range(prefix):
            return
        for found, value in cursor:
            if not (key := bytes(found)).startswith(prefix):
                return
            yield key, decode(value)

    def all(self, table: str, kind: type[Value]) -> Iterator[tuple[bytes, Value]]:
        """All entries of a table, in key order."""
        with _translated(self._folder), self._env.begin() as txn:
            yield from self._scan(txn, table, kind)

    def meta(self, name: str, kind: type[Value]) -> Value | None:
        """A value that a job has once, such as its secret."""
        with _translated(self._folder), self._env.begin() as txn:
            return self._get(txn, "meta", name.encode(), kind)


class LmdbPast(Past):
    """The contents of the file at the start; `EmbeddedFrontier` builds its schedule from them."""

    def __init__(self, journal: LmdbJournal) -> None:
        self._all = journal.all
        self.secret = journal.meta("secret", bytes) or b""
        self.epoch = journal.meta("epoch", int) or 1
        self.job: JobState = journal.meta("job", JobState) or "running"  # type: ignore[arg-type]
        self.marks = {name.decode(): length for name, length in self._all("marks", int)}
        self.lapses = {_number(key): count for key, count in self._all("lapses", int) if count}
        self.hastened = {_number(key): pair for key, pair in self._all("hints", tuple[float, float])}

    def sites(self) -> Iterator[tuple[int, str, JournalSite | None]]:
        notes = dict(self._all("notes", JournalSite))
        for key, name in self._all("sites", str):
            yield _number(key), name, notes.get(key)

    def outcomes(self) -> Iterator[tuple[int, int, int, float | None, int]]:
        # By URL, and for each URL in chronological order, which is the order that matters.
        for key, row in self._all("outcomes", OutcomeRow):
            yield _number(key[8:]), row.number, row.status, row.again_at, row.state is not None

    def urls(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        for key, row in self._all("urls", UrlRow):
            request = row.request
            yield _number(key), request.key, row.site, request.priority, request.depth, request.hops


def _key(number: int) -> bytes:
    """The number as bytes that sort in numerical order."""
    return number.to_bytes(8, "big")


def _number(key: bytes) -> int:
    return int.from_bytes(key, "big")


def _folder(url: str, job: str) -> Path:
    place = url.partition(":")[2]
    if not place:
        raise ConfigError("lmdb: the URL contains no folder", hint="write lmdb:/path/to/a/folder")
    return Path(place) / job


def _own(folder: Path) -> int:
    """Lock the job for this process. The lock ends with the process, even after a crash."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "owner", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise Held(f"{folder} is in use by another process", hint="wait for that process to end, or stop it") from None
    return lock


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """Translate errors for the engine: after `Unavailable` it waits and tries again; other errors stop the job."""
    try:
        yield
    except (lmdb.DiskError, lmdb.MapFullError, OSError) as error:
        raise Unavailable(f"{folder}: {error}", hint="free some disk space; the crawl waits and tries again") from error
    except (lmdb.Error, msgspec.DecodeError) as error:
        raise SchemaMismatch(
            f"{folder}: {error}", hint="the files are unchanged; start a new job with --job NAME"
        ) from error


LMDB = LmdbBackend()
