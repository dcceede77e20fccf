"""Reads a frontier file without owning it.

For commands that look at a job that is not running, and for the service. Nothing is locked, restored, or written, so
reading never blocks an owner. If there is no write-ahead log to read, the file is opened as immutable, and SQLite
creates no files next to it. Only committed data can be read: leases and the state of the queues are in the memory of a
running owner, which answers over its socket (`engine/coordinator.py`)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from gossamer import urls
from gossamer.clock import Clock
from gossamer.errors import FrontierError, SchemaMismatch, Unavailable
from gossamer.frontier.embedded.journal import STATUS, JournalSite, site_view, standing
from gossamer.frontier.packing import Extra
from gossamer.model import Counts
from gossamer.settings import Settings

_WORDS = {number: word for word, number in STATUS.items()}
_decode_extra = msgspec.json.Decoder(Extra).decode
decode_robots = msgspec.json.Decoder(dict[str, bytes]).decode
decode_memo = msgspec.json.Decoder(dict[str, Any]).decode


class SqliteLookup:
    """Looks up URLs and sites in a frontier file, as its owner would, as far as the data are stored."""

    def __init__(self, path: Path, settings: Settings, *, clock: Clock) -> None:
        self._path = path
        self._settings = settings
        self._clock = clock

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        return await asyncio.to_thread(self._read, partial(self._lookup, key_of=key_of), url)

    async def site(self, name: str) -> Mapping[str, Any] | None:
        return await asyncio.to_thread(self._read, self._site, name)

    def _read(self, work: Any, text: str) -> Any:
        """Run `work` over a new connection: an owner may replace or remove the file at any time."""
        log = self._path.with_name(self._path.name + "-wal")
        # Without a log to read, do not let SQLite create files there.
        how = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
        try:
            connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?{how}", uri=True)
            try:
                return work(connection, text)
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def _lookup(self, connection: sqlite3.Connection, url: str, *, key_of: urls.KeyOf) -> dict[str, Any] | None:
        (secret,) = connection.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
        key = key_of(secret, url)
        found = url_history(connection, key)
        if found is None:
            return None
        site = self._site(connection, found["site"]) or {}
        lapses = connection.execute("SELECT count FROM lapses WHERE url = ?", (found["number"],)).fetchone()
        is_parked = lapses is not None and lapses[0] >= self._settings.max_deliveries
        closed, now = site.get("closed", ""), self._clock.epoch()
        return {"key": key, **found, **standing(found["attempts"], closed=closed, is_parked=is_parked, now=now)}

    def _site(self, connection: sqlite3.Connection, name: str) -> dict[str, Any] | None:
        row = connection.execute(
            "SELECT delay, hold_until, robots, memo, closed FROM sites WHERE name = ?", (name,)
        ).fetchone()
        if row is None:
            return None
        delay, hold, robots, memo, closed = row
        kept = None
        if delay is not None:
            kept = JournalSite(delay, hold or 0.0, decode_robots(robots), decode_memo(memo), closed or "")
        return site_view(name, kept, settings=self._settings, now=self._clock.epoch())


def stored_pages(connection: sqlite3.Connection) -> int:
    """Return the number of pages that the job has stored, including visits that were compacted away."""
    found: int = connection.execute("SELECT count(*) FROM outcomes WHERE status IN (1, 2)").fetchone()[0]
    with suppress(sqlite3.OperationalError):
        # Files of earlier versions have no such table.
        found += connection.execute("SELECT coalesce(sum(stored), 0) FROM dropped").fetchone()[0]
    return found


def url_history(connection: sqlite3.Connection, key: int) -> dict[str, Any] | None:
    """Return the stored history of one URL; None if it is unknown."""
    row = connection.execute(
        "SELECT u.number, u.url, s.name, u.depth, u.priority, p.url, u.extra FROM urls u"
        " JOIN sites s ON s.number = u.site LEFT JOIN urls p ON p.number = u.parent WHERE u.key = ?",
        (key,),
    ).fetchone()
    if row is None:
        return None
    attempts = connection.execute(
        "SELECT at, status, code, again_at, reason, state FROM outcomes WHERE url = ? ORDER BY row", (row[0],)
    ).fetchall()
    found = {
        "number": row[0],
        "url": row[1],
        "site": row[2],
        "depth": row[3],
        "priority": row[4],
        "referrer": (_decode_extra(row[6]).referrer if row[6] else "") or row[5] or "",
        "attempts": [
            {"at": at, "status": _WORDS[status], "code": code, "again_at": again_at, "reason": reason or ""}
            for at, status, code, again_at, reason, _ in attempts
        ],
    }
    left = next((state for *_, state in reversed(attempts) if state), None)
    return found | ({"visit": decode_memo(left)} if left else {})


def translated(error: sqlite3.Error, path: Path) -> FrontierError:
    """Translate an SQLite error: Unavailable if waiting may help, else an error that ends the run."""
    code = getattr(error, "sqlite_errorname", "")
    if code.startswith(
        ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_READONLY", "SQLITE_CANTOPEN")
    ):
        return Unavailable(f"{path}: {error}", hint="the crawl waits and tries again; free some disk space")
    return SchemaMismatch(f"{path}: {error}", hint="the file was not changed")


_MOST_SITES = 10_000
_DONE, _FAILED, _SKIPPED = 1, 2, 4


class SqliteCounts:
    """Counts and sites of one file, read once and kept until the file changes. Leased requests count as queued."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._stamp = _stamp(path)
        self._counts: Counts | None = None
        self._sites: list[dict[str, Any]] | None = None

    @property
    def is_old(self) -> bool:
        """Return whether the file has changed since this object was made."""
        return _stamp(self._path) != self._stamp

    def counts(self, settings: Settings) -> Counts:
        """Return the counts, without leased requests and sites that are ready or on hold, which only a running owner
        has."""
        with self._lock:
            if self._counts is None:
                self._counts = self._read(_count)
            found = self._counts
        is_full = settings.max_pages is not None and found.stored >= settings.max_pages
        # A continuous crawl waits for revisits, which exist wherever there are pages.
        is_done = is_full or not (found.queued + found.delayed or settings.recrawl)
        return msgspec.structs.replace(found, job="finished" if is_done else "running", finished=is_done)

    def sites(self, limit: int, settings: Settings) -> list[Mapping[str, Any]]:
        """The sites with the most queued requests."""
        with self._lock:
            if self._sites is None:
                self._sites = self._read(_list_sites)
            found = self._sites
        return [_with_delay(site, settings) for site in found[:limit]]

    def every_site(self, cursor: str, limit: int, settings: Settings) -> tuple[list[Mapping[str, Any]], str]:
        """Return sites by number, and the cursor for the next call.

        Queues are not counted: that would read every URL."""
        rows = self._read(lambda connection: _some_sites(connection, int(cursor or 0), limit))
        found = [_with_delay(site, settings) for _, site in rows]
        return found, str(rows[-1][0]) if len(rows) == limit else ""

    def _read(self, work: Any) -> Any:
        log = self._path.with_name(self._path.name + "-wal")
        how = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
        try:
            connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?{how}", uri=True)
            try:
                return work(connection)
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise translated(error, self._path) from error


def survey(path: Path) -> SqliteCounts:
    """Return the counts of a file, read on first use."""
    return SqliteCounts(path)


def _stamp(path: Path) -> tuple[float, ...]:
    """Return time and size of the file and of its log: a commit changes one of them."""
    found: list[float] = []
    for one in (path, path.with_name(path.name + "-wal")):
        try:
            about = one.stat()
            found += [about.st_mtime, about.st_size]
        except OSError:
            found += [0.0, 0.0]
    return tuple(found)


def _count(connection: sqlite3.Connection) -> Counts:
    """Count URLs by their last final outcome. A URL without one is queued, unless its site is closed."""
    known = _number(connection, "SELECT max(number) FROM urls")
    sites = _number(connection, "SELECT max(number) FROM sites")
    stored = stored_pages(connection)
    # The last final outcome of each URL.
    rows = connection.execute(
        "SELECT status, count(*) FROM (SELECT status, max(row) FROM outcomes WHERE status IN (1, 2, 4) GROUP BY url)"
        " GROUP BY status"
    )
    ends = dict(rows.fetchall())
    given_up = _number(
        connection,
        "SELECT count(*) FROM urls WHERE site IN (SELECT number FROM sites WHERE closed != '') AND number NOT IN"
        " (SELECT url FROM outcomes WHERE status IN (1, 2, 4))",
    ) if _number(connection, "SELECT count(*) FROM sites WHERE closed != ''") else 0  # fmt: skip
    done, failed, skipped = (int(ends.get(status, 0)) for status in (_DONE, _FAILED, _SKIPPED))
    return Counts(
        known=known,
        sites=sites,
        stored=stored,
        done=done,
        failed=failed + given_up,
        skipped=skipped,
        queued=max(0, known - done - failed - skipped - given_up),
    )


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0] or 0)


def _with_delay(site: dict[str, Any], settings: Settings) -> Mapping[str, Any]:
    return {**site, "delay": max(site["delay"], settings.for_site(site["site"]).delay or 0.0), "hold": 0.0}


def _some_sites(connection: sqlite3.Connection, after: int, limit: int) -> list[tuple[int, dict[str, Any]]]:
    rows = connection.execute(
        "SELECT number, name, delay, closed FROM sites WHERE number > ? ORDER BY number LIMIT ?", (after, limit)
    )
    return [(row[0], {"site": row[1], "delay": row[2] or 0.0, "closed": row[3] or ""}) for row in rows]


def _list_sites(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT s.name, s.delay, s.closed, count(u.number) - count(o.url), count(o.stored) FROM sites s"
        " JOIN urls u ON u.site = s.number LEFT JOIN"
        " (SELECT url, max(CASE WHEN status IN (1, 2) THEN 1 END) AS stored FROM outcomes WHERE status IN (1, 2, 4)"
        " GROUP BY url) o ON o.url = u.number GROUP BY s.number ORDER BY 4 DESC LIMIT ?",
        (_MOST_SITES,),
    )
    return [
        {"site": name, "delay": delay or 0.0, "closed": closed or "", "queued": queued, "stored": stored}
        for name, delay, closed, queued, stored in rows
    ]
