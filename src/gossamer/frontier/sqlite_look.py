"""Looking into a frontier in a SQLite file without owning it: the story of one URL, and what is known of a site."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gossamer import urls
from gossamer.clock import Clock
from gossamer.errors import FrontierError, SchemaMismatch, Unavailable
from gossamer.frontier.entries import Extra
from gossamer.frontier.journal import STATUS, JournalSite, site_view, standing
from gossamer.settings import Settings

_WORDS = {number: word for word, number in STATUS.items()}
_decode_extra = msgspec.json.Decoder(Extra).decode
decode_robots = msgspec.json.Decoder(dict[str, bytes]).decode
decode_memo = msgspec.json.Decoder(dict[str, Any]).decode


class SqliteLook:
    """A file that nobody owns at this moment, or that somebody else does: it is only read, and nothing is restored."""

    def __init__(self, path: Path, settings: Settings, *, clock: Clock) -> None:
        self._path = path
        self._settings = settings
        self._clock = clock

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        return await asyncio.to_thread(self._read, partial(self._lookup, key_of=key_of), url)

    async def site(self, name: str) -> Mapping[str, Any] | None:
        return await asyncio.to_thread(self._read, self._site, name)

    def _read(self, work: Any, text: str) -> Any:
        log = self._path.with_name(self._path.name + "-wal")
        # Without a log to read, SQLite need not leave files of its own there.
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
        found = story(connection, key)
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
    """How many pages the job has stored, those of visits that were dropped since among them."""
    found: int = connection.execute("SELECT count(*) FROM outcomes WHERE status IN (1, 2)").fetchone()[0]
    with suppress(sqlite3.OperationalError):
        # A file of an earlier version has dropped none.
        found += connection.execute("SELECT coalesce(sum(stored), 0) FROM dropped").fetchone()[0]
    return found


def story(connection: sqlite3.Connection, key: int) -> dict[str, Any] | None:
    """All that is written down of one URL; None if it is not there."""
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
    code = getattr(error, "sqlite_errorname", "")
    if code.startswith(
        ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_READONLY", "SQLITE_CANTOPEN")
    ):
        return Unavailable(f"{path}: {error}", hint="the crawl waits and tries again; free some disk space")
    return SchemaMismatch(f"{path}: {error}", hint="the file was left as it is")
