"""The journal in a SQLite file: writer, compaction, and the lock of its owner.

The file has one owner process, which locks `frontier.db-owner` for its lifetime (`claim`). The kernel drops the lock
however the process ends, so there is no stale lock to clean up. The lock's file stays when the job is removed: if it
were deleted, two processes could each lock a file of that name. On a network file system, where neither this lock nor
SQLite's own is safe, the job is refused.

Each change is one transaction in write-ahead-log mode with `synchronous=FULL`: SQLite syncs the log before COMMIT
returns. So what `write` has acknowledged survives a kill and a power cut (P7), and a change that was cut short is not
there at all (P3). Writing happens in one thread, in the order of the calls; reading a batch happens in the event loop,
over a connection of its own, which a writer does not block in this mode.

Failure cases. A full disk, an I/O error or a lock that SQLite reports becomes `Unavailable` after a rollback: the
caller waits and tries the same change again. Anything else is a `SchemaMismatch`, and the file is left as it is. A file
that is not a whole frontier of this version is refused, and never replaced by a new one. A new file gets its name only
when it is complete, by a rename.

Outcomes are appended and never changed, so a continuous crawl would grow without end. `Compaction` deletes old visits,
a few with each change, in the same transaction. There is no index on keys and none on sites: both live in memory, and
a start reads the tables from end to end."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib import resources
from pathlib import Path
from typing import Any, cast

import msgspec

from gossamer.clock import Clock
from gossamer.errors import FrontierError, Held, SchemaMismatch, Unavailable
from gossamer.frontier.embedded.frontier import EmbeddedFrontier
from gossamer.frontier.embedded.journal import Change, JournalSite, Past
from gossamer.frontier.embedded.sqlite_reader import decode_robots, translated, url_history
from gossamer.frontier.packing import Extra
from gossamer.model import JobState, Request
from gossamer.settings import Settings

VISITS_KEPT = 3
"""Visits of each URL that compaction keeps, for people to read; a crawl needs the last one only."""
_SPARE = 10_000
_FOUND_AT_ONCE = 200_000
_STEP = 1_000
# Tries since the last visit stay, whatever their number: a start counts them.
_DEAD = f"""
SELECT row, url, status IN (1, 2) FROM (
    SELECT row, url, status, row_number() OVER (PARTITION BY url ORDER BY row DESC) AS back,
        max(CASE WHEN status <> 3 THEN row END) OVER (PARTITION BY url) AS last
    FROM outcomes WHERE row <= ?)
WHERE back > {VISITS_KEPT} AND row < last ORDER BY row LIMIT {_FOUND_AT_ONCE}
"""
_COUNT = "INSERT INTO dropped VALUES (?, ?) ON CONFLICT (url) DO UPDATE SET stored = stored + excluded.stored"


class Compaction:
    """Deletes old outcomes once there are many more than a crawl needs, some with each change.

    A thread searches for them over a connection of its own, which `close` interrupts. Stored visits that are deleted
    are counted in `dropped` by the same transaction, since `max_pages` goes by that number: a kill at any point leaves
    a file that counts right. SQLite uses the freed pages again, so the file stops growing but does not shrink.

    A row that the search has found stays dead whatever is written meanwhile: newer visits only make it older. A failed
    transaction keeps its rows in `_dead` for the next one."""

    def __init__(self, path: Path, rows: int, urls: int, *, spare: int = _SPARE) -> None:
        self._path = path
        self._rows = rows
        self._urls = urls
        self._spare = spare
        self._look_at = 0
        self._dead: list[tuple[int, int, int]] = []
        self._search: Future[list[tuple[int, int, int]]] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._guard = threading.Lock()

    def take(self) -> Sequence[tuple[int, int, int]]:
        """Rows to delete with the next change: row, number of the URL, whether its page was stored."""
        if self._search is not None and self._search.done():
            search, self._search = self._search, None
            with suppress(sqlite3.Error):
                # The oldest last: they are cut off the end.
                self._dead = search.result()[::-1]
            self._look_at = self._rows - len(self._dead) + max(self._spare, self._rows // 4)
        return self._dead[-_STEP:]

    def drop(self, writer: sqlite3.Connection, rows: Sequence[tuple[int, int, int]]) -> None:
        """Delete these rows and count their stored visits, within the writer's transaction."""
        writer.executemany("DELETE FROM outcomes WHERE row = ?", ((row,) for row, _, _ in rows))
        stored = Counter(url for _, url, is_stored in rows if is_stored)
        writer.executemany(_COUNT, stored.items())

    def written(self, *, last: int, outcomes: int, urls: int, dropped: int) -> None:
        """Note a committed change whose last row is `last`, and start a search if it is time for one."""
        if dropped:
            del self._dead[-dropped:]
        self._rows += outcomes - dropped
        self._urls += urls
        needed = 2 * VISITS_KEPT * self._urls + self._spare
        if not self._dead and self._search is None and self._rows > max(needed, self._look_at):
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="gossamer-compaction")
            self._search = self._thread.submit(self._find, last)

    def _find(self, last: int) -> list[tuple[int, int, int]]:
        connection = sqlite3.connect(self._path, check_same_thread=False)
        with self._guard:
            self._connection = connection
        try:
            return connection.execute(_DEAD, (last,)).fetchall()
        finally:
            with self._guard:
                self._connection = None
            connection.close()

    def close(self) -> None:
        """Stop the search, and wait for its thread."""
        with self._guard:
            if self._connection is not None:
                self._connection.interrupt()
        if self._thread is not None:
            self._thread.shutdown(wait=True)


_NETWORK_FILESYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs", "afs", "ceph", "glusterfs")
)


def holder(path: Path) -> str:
    """Return the owner of a frontier file, as `pid N`; empty if there is none."""
    try:
        lock = claim(path)
    except Held:
        return _read_holder(_lock_path(path)) or "another process"
    os.close(lock)
    return ""


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + "-owner")


def _read_holder(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""


def claim(path: Path) -> int:
    """Lock the file against other owners, and return the lock's descriptor; Held if it has one.

    The lock ends with this process, however it ends. The process id in the lock's file is for people only: the lock
    decides, not the text."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_network_folder(path.parent)
    descriptor = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        name = _read_holder(_lock_path(path)) or "another process"
        raise Held(
            f"{path} is in use by {name}",
            hint=f"wait for it, stop it, or join it with: gossamer worker {path.parent}",
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)
    return descriptor


def refuse_network_folder(folder: Path, *, mounts: Path = Path("/proc/mounts")) -> None:
    """Refuse a folder on a network file system, where SQLite's locks and shared memory do not work."""
    kind = _filesystem(folder, mounts)
    if kind in _NETWORK_FILESYSTEMS:
        raise FrontierError(
            f"{folder} is on a network file system ({kind}), where SQLite files can be corrupted",
            hint="put the job on a local disk with --job DIR",
        )


def _filesystem(folder: Path, mounts: Path) -> str:
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    place, best, kind = str(folder.resolve()), "", ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = fields[1].replace("\\040", " ")
        if (place == mount or place.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind


FORMAT = 1
APPLICATION_ID = 0x676F7373
_LOAD = """
SELECT u.number, u.url, u.key, s.name, u.priority, u.depth, u.hops, u.extra, p.url
FROM urls u JOIN sites s ON s.number = u.site LEFT JOIN urls p ON p.number = u.parent WHERE u.number IN (MARKS)
"""
_encode = msgspec.json.Encoder().encode
_decode_extra = msgspec.json.Decoder(Extra).decode
_decode = msgspec.json.Decoder().decode


def open_sqlite(path: Path, settings: Settings, *, clock: Clock) -> EmbeddedFrontier:
    """Open the frontier in this file, created if it does not exist. This process owns it until it is closed.

    The lock comes first: nothing of the file is read or created before this process is certain to be the only owner."""
    with ExitStack() as undo:
        try:
            lock = claim(path)
            undo.callback(os.close, lock)
            journal = SqliteJournal(path, lock)
            undo.pop_all()
            undo.callback(journal.close)
            frontier = EmbeddedFrontier(journal, journal.past(), settings=settings, clock=clock)
        except sqlite3.Error as error:
            raise translated(error, path) from error
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}", hint="choose a folder that can be written to") from error
        undo.pop_all()
        return frontier


class SqliteJournal:
    """A journal in a SQLite file. Reads happen in the event loop, writes in a thread that waits for the disk.

    The numbers of outcome rows are counted here and not by SQLite: the caller needs them to name the last visits."""

    def __init__(self, path: Path, lock: int) -> None:
        self._path = path
        self._lock = lock
        if path.exists():
            check_format(path)
        else:
            _create(path)
        self._writer = self._connect()
        self._reader = self._connect()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gossamer-journal")
        for statement in re.findall(r"CREATE TABLE IF NOT EXISTS .*", _schema()):
            # Files of earlier versions lack some tables.
            self._writer.execute(statement)
        self._rows, rows = self._reader.execute("SELECT coalesce(max(row), 0), count(*) FROM outcomes").fetchone()
        (urls,) = self._reader.execute("SELECT coalesce(max(number), 0) FROM urls").fetchone()
        self._compaction = Compaction(path, rows, urls)
        self._hinted = {number for (number,) in self._reader.execute("SELECT url FROM hints")}

    def _connect(self) -> sqlite3.Connection:
        """A connection in write-ahead-log mode, so that readers and the writer do not block each other."""
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        # FULL: what `write` has acknowledged survives a power cut, not only a kill.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA cache_size=-16000")
        connection.execute("PRAGMA journal_size_limit=67108864")
        return connection

    def past(self) -> Past:
        return _SqlitePast(self._reader, self._writer)

    async def write(self, change: Change) -> Sequence[int]:
        """Write in the journal's thread. The rows of a failed change are given to the next one."""
        first = self._rows + 1
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._write, change, first)
        self._rows += len(change.outcomes)
        return range(first, first + len(change.outcomes))

    def _write(self, change: Change, first: int) -> None:
        """Write a change in one transaction; runs in the writer's thread.

        Sites come before URLs, and hints that a visit has used are deleted before new ones are inserted. What is
        remembered here (`_hinted`, the compaction's counts) changes only after COMMIT."""
        run = self._writer.execute
        dead = self._compaction.take()
        used = [(row.number,) for row in change.outcomes if row.number in self._hinted]
        try:
            run("BEGIN IMMEDIATE")
            many = self._writer.executemany
            if change.sites:
                many("INSERT INTO sites (number, name) VALUES (?, ?)", change.sites)
            if change.urls:
                many("INSERT INTO urls VALUES (?,?,?,?,?,?,?,?,?)", _url_rows(change))
            if change.outcomes:
                many("INSERT INTO outcomes VALUES (?,?,?,?,?,?,?,?)", _outcome_rows(change, first))
            if used:
                many("DELETE FROM hints WHERE url = ?", used)
            if change.hastened:
                rows = [(number, hint, due_at) for number, (hint, due_at) in change.hastened.items()]
                many("INSERT OR REPLACE INTO hints VALUES (?, ?, ?)", rows)
            for number, row in change.notes.items():
                run(
                    "UPDATE sites SET delay=?, hold_until=?, robots=?, memo=?, closed=? WHERE number=?",
                    (row.delay, row.hold_until, _encode(row.robots), _encode(row.memo), row.closed, number),
                )
            if change.lapses:
                many("INSERT OR REPLACE INTO lapses VALUES (?, ?)", change.lapses.items())
            if change.marks:
                many("INSERT OR REPLACE INTO files VALUES (?, ?)", change.marks.items())
            if change.job is not None:
                run("INSERT OR REPLACE INTO meta VALUES ('job', ?)", (change.job,))
            if dead:
                self._compaction.drop(self._writer, dead)
            run("COMMIT")
        except BaseException as error:
            # Also when a value cannot be encoded: a transaction that stays open would block all later ones.
            if self._writer.in_transaction:
                run("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise translated(error, self._path) from error
            raise
        self._hinted.difference_update(number for (number,) in used)
        self._hinted.update(change.hastened)
        outcomes = len(change.outcomes)
        self._compaction.written(last=first + outcomes - 1, outcomes=outcomes, urls=len(change.urls), dropped=len(dead))

    def load(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        try:
            return self._load(numbers, visits)
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def _load(self, numbers: Sequence[int], visits: Mapping[int, int]) -> list[Request]:
        """Read a batch in the order of `numbers`: one query for the requests, and one for each state of a visit."""
        marks = ",".join("?" * len(numbers))
        rows = self._reader.execute(_LOAD.replace("MARKS", marks), numbers)
        found: dict[int, Request] = {}
        for number, url, key, site, priority, depth, hops, extra, referrer in rows:
            if extra is None:
                found[number] = Request(
                    url, key, site, priority, depth, hops, 0, referrer or "", state=self._state(visits, number)
                )
                continue
            more = _decode_extra(extra)
            found[number] = Request(
                url,
                key,
                site,
                priority,
                depth,
                hops,
                0,
                more.referrer or referrer or "",
                more.label,
                more.meta,
                more.method,
                more.headers,
                more.body,
                self._state(visits, number),
            )
        return [found[number] for number in numbers]

    def _state(self, visits: Mapping[int, int], number: int) -> dict[str, Any] | None:
        if number not in visits:
            return None
        row = self._reader.execute("SELECT state FROM outcomes WHERE row = ?", (visits[number],)).fetchone()
        return _decode(row[0]) if row and row[0] else None

    def lookup(self, key: int) -> dict[str, Any] | None:
        # A connection of its own: a scan of the whole table must not delay leases.
        connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            return url_history(connection, key)
        except sqlite3.Error as error:
            raise translated(error, self._path) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Finish the write under way, then release the lock: the next owner must not meet a writer."""
        self._thread.shutdown(wait=True)
        self._compaction.close()
        self._reader.close()
        self._writer.close()
        os.close(self._lock)


def _create(path: Path) -> None:
    """Create an empty frontier. It gets its name last: a crash leaves no half file, which would be refused."""
    temporary = path.with_name(path.name + "-new")
    for leftover in (temporary, temporary.with_name(temporary.name + "-journal")):
        leftover.unlink(missing_ok=True)
    connection = sqlite3.connect(temporary, isolation_level=None)
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {_schema()}")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute("INSERT INTO meta VALUES ('secret', ?)", (secrets.token_bytes(16),))
        connection.execute("COMMIT")
    finally:
        connection.close()
    temporary.replace(path)


def _schema() -> str:
    return resources.files("gossamer.frontier.embedded").joinpath("schema.sql").read_text("utf-8")


def _url_rows(change: Change) -> Iterator[tuple[Any, ...]]:
    for number, request, site, parent in change.urls:
        extra = None
        if (
            request.label
            or request.meta
            or request.method != "GET"
            or request.headers
            or request.body
            or request.referrer
        ):
            extra = _encode(
                Extra(
                    request.label,
                    request.meta,
                    request.method,
                    request.headers,
                    request.body,
                    request.referrer,
                )
            ).decode()
        yield number, request.key, site, request.priority, request.depth, request.hops, parent, request.url, extra


def _outcome_rows(change: Change, first: int) -> Iterator[tuple[Any, ...]]:
    for row, outcome in enumerate(change.outcomes, first):
        state = None if outcome.state is None else _encode(outcome.state).decode()
        yield (
            row,
            outcome.number,
            outcome.status,
            outcome.code,
            round(outcome.at, 3),
            outcome.again_at,
            outcome.reason or None,
            state,
        )


class _SqlitePast(Past):
    """What the file has stored. Creating it raises the epoch in the file durably, before any token is issued."""

    def __init__(self, reader: sqlite3.Connection, writer: sqlite3.Connection) -> None:
        self._reader = reader
        meta = dict(reader.execute("SELECT name, value FROM meta").fetchall())
        self.secret = meta["secret"]
        self.epoch = int(meta.get("epoch", 0)) + 1
        self.job = cast(JobState, meta.get("job", "running"))
        self.marks = dict(reader.execute("SELECT name, bytes FROM files").fetchall())
        self.lapses = dict(reader.execute("SELECT url, count FROM lapses WHERE count > 0").fetchall())
        self.dropped = dict(reader.execute("SELECT url, stored FROM dropped").fetchall())
        self.hastened = {number: (hint, due) for number, hint, due in reader.execute("SELECT * FROM hints")}
        writer.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (self.epoch,))

    def sites(self) -> Iterator[tuple[int, str, JournalSite | None]]:
        for number, name, delay, hold, robots, memo, closed in self._reader.execute(
            "SELECT * FROM sites ORDER BY number"
        ):
            row = None
            if delay is not None:
                row = JournalSite(delay, hold or 0.0, decode_robots(robots), _decode(memo), closed or "")
            yield number, name, row

    def outcomes(self) -> Iterator[tuple[int, int, int, float | None, int]]:
        yield from self._reader.execute(
            "SELECT row, url, status, again_at, state IS NOT NULL FROM outcomes ORDER BY row"
        )

    def urls(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        yield from self._reader.execute("SELECT number, key, site, priority, depth, hops FROM urls ORDER BY number")


def check_format(path: Path) -> None:
    """Refuse a file that is not a whole frontier of this version; it is never overwritten.

    Files of up to 64 MB are checked for damage; larger ones would delay the start."""
    with path.open("rb") as file:
        head = file.read(100)
    keep = "the file was not changed; move it away, or choose another --job"
    if not head.startswith(b"SQLite format 3\0"):
        what = "is empty" if not head else "is not a Gossamer frontier"
        raise SchemaMismatch(f"{path} {what}", hint=keep)
    log = path.with_name(path.name + "-wal")
    # Without a log to read, do not let SQLite create files beside one that may not be ours.
    how = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)
    try:
        identity = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        problems = connection.execute("PRAGMA quick_check(1)").fetchone()[0] if path.stat().st_size < 1 << 26 else "ok"
    except sqlite3.DatabaseError as error:
        raise SchemaMismatch(f"{path} is damaged: {error}", hint=keep) from None
    finally:
        connection.close()
    if identity != APPLICATION_ID:
        raise SchemaMismatch(f"{path} is a SQLite file of another program", hint=keep)
    if version < 1:
        raise SchemaMismatch(f"{path} is not a complete Gossamer frontier (format {version})", hint=keep)
    if version > FORMAT:
        raise SchemaMismatch(
            f"{path} was written by a newer Gossamer (format {version}, this one reads {FORMAT})",
            hint="upgrade Gossamer to go on with this job",
        )
    if problems != "ok":
        raise SchemaMismatch(f"{path} is damaged: {problems}", hint=keep)
