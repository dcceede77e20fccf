"""What keeps a continuous crawl's file from growing for ever: visits that later ones have replaced are dropped."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

VISITS_KEPT = 3
"""Of each URL, for people to read; a crawl needs the last one."""
_SPARE = 10_000
_FOUND_AT_ONCE = 200_000
_STEP = 1_000
# Tries since the last visit are counted when the file is opened, so they stay whatever their number.
_DEAD = f"""
SELECT row, url, status IN (1, 2) FROM (
    SELECT row, url, status, row_number() OVER (PARTITION BY url ORDER BY row DESC) AS back,
        max(CASE WHEN status <> 3 THEN row END) OVER (PARTITION BY url) AS last
    FROM outcomes WHERE row <= ?)
WHERE back > {VISITS_KEPT} AND row < last ORDER BY row LIMIT {_FOUND_AT_ONCE}
"""  # noqa: S608
_COUNT = "INSERT INTO dropped VALUES (?, ?) ON CONFLICT (url) DO UPDATE SET stored = stored + excluded.stored"


class Compaction:
    """Drops rows of outcomes, some with each change that is written, once they are many more than are needed.

    A thread of its own looks for them. Each is dropped in the transaction that counts it, so a kill leaves a whole
    file; and what gets free in the file is used again, so that it stays about as long as it is."""

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
        """Rows to drop with the next change: row, number of the URL, whether its page was stored."""
        if self._search is not None and self._search.done():
            search, self._search = self._search, None
            with suppress(sqlite3.Error):
                # Those that go first stand last.
                self._dead = search.result()[::-1]
            self._look_at = self._rows - len(self._dead) + max(self._spare, self._rows // 4)
        return self._dead[-_STEP:]

    def drop(self, writer: sqlite3.Connection, rows: Sequence[tuple[int, int, int]]) -> None:
        """Drop them, in the writer's transaction."""
        writer.executemany("DELETE FROM outcomes WHERE row = ?", ((row,) for row, _, _ in rows))
        stored = Counter(url for _, url, is_stored in rows if is_stored)
        writer.executemany(_COUNT, stored.items())

    def written(self, *, last: int, outcomes: int, urls: int, dropped: int) -> None:
        """A change is in the file; `last` is its last row."""
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
        """Look no further."""
        with self._guard:
            if self._connection is not None:
                self._connection.interrupt()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
