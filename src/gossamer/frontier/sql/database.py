"""What the frontier needs of a database: named statements, whole transactions, and kinds of errors.

`Dialect` is the port of a kind of server: everything that differs between PostgreSQL and MariaDB or MySQL is behind it.
`Database` runs transactions on one connection, one at a time. A transaction may run several times: it is repeated after
a conflict with another one, and after a lost connection, so its work must not change anything but the database. After a
lost connection nobody knows whether the commit was applied; `add`, `lease`, and `complete` may be applied twice.

A transaction that has begun is finished even if its caller is cancelled. Otherwise a cancelled worker could leave rows
locked, or a connection in the middle of an answer. On every new connection a greeting runs first for each shard: it
notices that the server has restarted, before anything is leased on that connection (P5)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from importlib import resources
from typing import Any, Protocol, TypeVar
from zlib import crc32

from gossamer.errors import FrontierError, Unavailable

T = TypeVar("T")
log = logging.getLogger("gossamer.frontier")
_CONFLICTS, _LOSSES = 12, 3
CARGO = {
    "sites": (1, ("site", "name", "region", "ready_at", "wake_at", "hold_at", "closed", "lanes")),
    "notes": (1, ("site", "robots", "memo")),
    "leases": (1, ("token", "site", "until_at", "lane", "suspect", "worker", "batch")),
    "seen": (1, ("id",)),
    "queue": (5, (
        "site", "place", "standing", "age", "id", "url", "depth", "priority", "tries", "lapses", "again", "extra",
    )),
    "done": (1, ("id", "site", "finished_at", "depth", "priority", "tries", "status", "code", "url")),
    "counters": (1, (
        "stripe", "queued", "later", "leased", "held", "done", "failed", "skipped", "parked", "stale", "kept",
        "revisits", "suspects", "known", "sites", "news", "handed", "pages", "fresh", "token",
        "latest_at",
    )),
}  # fmt: skip
"""Table -> the number of leading columns that are its key, and its columns, both without the shard."""
OUTBOX = {
    "boxes": (2, ("box", "stripe", "server", "run", "taken", "added", "marked", "lived", "swept_at")),
    "parcels": (3, ("box", "stripe", "number", "links")),
}
"""The same for the outbox, which jobs of an earlier version may lack."""
ROWS = CARGO | OUTBOX

TOO_MANY_CLIENTS = "raise max_connections of the server, or use fewer workers: each has one connection to a database"
UNDER_WAY = "wait a moment; if gossamer spread was interrupted, run it again"
FULL = "free disk space on the server"
UNKNOWN = "check the user and the password"
MISSING = "create it first: CREATE DATABASE"
FORBIDDEN = "grant this user SELECT, INSERT, UPDATE, and DELETE; the first job also needs CREATE"
"""Hints for refusals by a server."""


class Dialect(Protocol):
    """One connection to one kind of server. Statements are named as in its .sql file; the first value is the shard."""

    shard: int
    server: str
    """The server's address, without a password."""

    always_whole: bool
    """Whether a statement alone needs a transaction around it too."""

    connections: int
    """Number of times it has connected."""

    server_run: str
    """The run of the server: changes with every start, promotion, and fail-over.

    All clients see the same text. It has no white space."""

    forgets: bool
    """Whether the server's settings let it lose commits that it has acknowledged."""

    has_outbox: bool
    """Whether the tables of the outbox are there."""

    async def connect(self) -> None:
        """Connect to a server that takes writes, and learn which run of it this is."""
        ...

    async def learn(self) -> None:
        """Ask the server again for `server_run`, `forgets` and `has_outbox`."""
        ...

    async def make_tables(self) -> None: ...

    async def make_outbox(self) -> None:
        """Make the tables of the outbox, if they are not there."""
        ...

    async def weaknesses(self) -> list[tuple[str, str]]:
        """Settings with which acknowledged work may be lost: what may be lost, and what to change."""
        ...

    async def time(self) -> float:
        """The server's time, as seconds since 1970."""
        ...

    async def size(self) -> float:
        """Bytes that all jobs take on the server."""
        ...

    async def standbys(self) -> int:
        """How many asynchronous standbys follow this server, as far as this user may see."""
        ...

    async def begin(self, lock: str = "", stripe: int = 0) -> None:
        """Begin a transaction with a lock.

        `share` is held by all calls that add requests, `whole` keeps those out, `stripe` locks the row of a stripe of
        the counters, and `shard` also keeps out others that lock the shard."""
        ...

    async def commit(self, *, rings: bool = False) -> None:
        """Commit; with `rings`, tell those who wait that there is news."""
        ...

    async def rollback(self) -> None: ...

    async def close(self) -> None: ...

    def abort(self) -> None:
        """End the connection at once, without a word."""
        ...

    @property
    def is_open(self) -> bool: ...

    async def ask(self, text: str, *given: Any) -> list[Sequence[Any]]:
        """Run a statement that is not in the file."""
        ...

    async def fetch(self, name: str, *given: Any) -> list[Sequence[Any]]:
        """Run a statement with the shard and these values; its rows."""
        ...

    def ahead(self, *asks: tuple[Any, ...]) -> None:
        """Name statements (with values) that will be fetched after the next one, so that they may travel together."""
        ...

    async def bulk(self, name: str, rows: Sequence[Sequence[Any]], *given: Any) -> list[Sequence[Any]]:
        """Run a statement over many rows at once."""
        ...

    async def insert_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows of the queue."""
        ...

    async def write(
        self,
        counters: Sequence[int],
        *,
        ended: Sequence[int],
        given: Sequence[Sequence[Any]],
        changed: Sequence[Sequence[Any]],
        sites: Sequence[Sequence[Any]],
    ) -> None:
        """Write ended, new, and changed leases, then sites, and last the stripe of the counters."""
        ...

    async def put_seen(self, ids: Sequence[int], sites: Sequence[int]) -> tuple[set[int], list[Sequence[Any]]]:
        """Insert keys; return those that existed. Keys come in order, so that two calls wait and do not deadlock.

        Also returns (site, closed, sleeps) of those `sites` that exist."""
        ...

    async def insert_sites(self, rows: Sequence[Sequence[Any]]) -> int:
        """Add sites (site, name, region, ready_at, wake_at, lanes) that are not there; how many were not."""
        ...

    async def finish(self, rows: Sequence[Sequence[Any]], now: int) -> None:
        """Move rows of the queue (site, place, standing, age, id, status, code) to those that are done."""
        ...

    async def refuse(self, rows: Sequence[Sequence[Any]], now: int) -> None:
        """Keep requests (id, site, depth, priority, status, url) that were never queued as done."""
        ...

    async def close_site(self, site: int, keep: Sequence[int], status: int, now: int) -> list[Sequence[Any]]:
        """Move what waits at a site, but for `keep`, to what is done; numbers by place and again."""
        ...

    async def take_inbox(self, most: int) -> list[Sequence[Any]]:
        """Lock the oldest entries of the inbox: entry, URL, priority, microseconds until it is due."""
        ...

    async def empty_inbox(self, entries: Sequence[int]) -> None: ...

    async def refuse_inbox(self, entry: int, error: str) -> None: ...

    async def compact(self, before: int, last: int, most: int) -> list[int]:
        """Delete rows of what was done before then, with keys above `last`; their keys."""
        ...

    async def watch(self, seen: int) -> bool:
        """Subscribe to news of the shard; return whether there is some already."""
        ...

    async def wait_for_news(self, round_number: int, shard: int) -> bool:
        """Wait, without using the connection; whether there is news of the shard, or only time has passed."""
        ...

    async def page(self, table: str, after: Sequence[Any], most: int, *, last: bool = False) -> list[Sequence[Any]]:
        """The shard's rows of a table of `ROWS` that come after this key, in order, or the `last` ones first."""
        ...

    async def put(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add such rows to the shard; those that are there stay as they are."""
        ...

    async def drop(self, table: str, most: int) -> None:
        """Delete some of the shard's rows."""
        ...

    def explain(self, error: BaseException) -> FrontierError | None:
        """What a driver's error means; None if it is none of a driver."""
        ...

    def is_conflict(self, error: BaseException) -> bool:
        """Whether the transaction was undone because of another one, and may be tried again at once."""
        ...

    def is_loss(self, error: BaseException) -> bool:
        """Whether the connection is gone, or of no use: its server takes no writes any more."""
        ...

    def is_forbidden(self, error: BaseException) -> bool:
        """Whether the user may not do this."""
        ...


class Database:
    """Transactions on one connection, one at a time; each is finished, even if its caller is cancelled."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.shard = 0
        """The row of gossamer_shards to which statements refer."""
        self._greetings: dict[int, Callable[[Dialect], Awaitable[None]]] = {}
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.conflicts = 0
        """Transactions that were repeated, because of a conflict or a lost connection."""

    def at(self, shard: int) -> Database:
        """The same connection, for another shard: they take turns."""
        other = Database(self.dialect)
        other.shard = shard
        other._greetings, other._turn, other._tasks = self._greetings, self._turn, self._tasks
        return other

    def greet(self, greeting: Callable[[Dialect], Awaitable[None]]) -> None:
        """Run this first for the shard on every new connection."""
        self._greetings[self.shard] = greeting

    async def run(
        self,
        work: Callable[[Dialect], Awaitable[T]],
        *,
        lock: str = "",
        stripe: int = 0,
        rings: bool = False,
        whole: bool = True,
        repeats: bool = True,
    ) -> T:
        """Run work in one transaction, and repeat it after a conflict or a lost connection.

        `rings`: other workers may wait for what it changes. Without `whole` each statement is its own transaction.
        Without `repeats` it is committed at most once: a connection that is lost during the commit is `Unavailable`,
        since nobody knows whether the server has committed."""

        whole = whole or self.dialect.always_whole
        is_committing = False

        async def once() -> T:
            nonlocal is_committing
            is_committing = False
            if not self.dialect.is_open:
                await self._connect()
            self.dialect.shard = self.shard
            try:
                if whole:
                    await self.dialect.begin(lock, stripe)
                found = await work(self.dialect)
                if whole:
                    is_committing = True
                    await self.dialect.commit(rings=rings)
            except BaseException as error:
                await self._undo(error)
                raise
            return found

        task = asyncio.ensure_future(self._run(once, lambda: repeats or not is_committing))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def _connect(self) -> None:
        await self.dialect.connect()
        try:
            for shard, greeting in list(self._greetings.items()):
                self.dialect.shard = shard
                await self.dialect.begin()
                try:
                    await greeting(self.dialect)
                    await self.dialect.commit()
                except Exception as error:
                    if not self.dialect.is_forbidden(error):
                        raise
                    # A user who may only read leases nothing, and need not notice restarts.
                    await self.dialect.rollback()
        except BaseException:
            # A connection whose greeting failed must not be used: a restart would go unnoticed.
            self.dialect.abort()
            raise

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Retrieve the error, which nobody else does if the caller was cancelled.
            task.exception()

    async def _run(self, once: Callable[[], Awaitable[T]], may_repeat: Callable[[], bool]) -> T:
        conflicts = losses = 0
        async with self._turn:
            while True:
                try:
                    return await once()
                except Exception as error:
                    if self.dialect.is_conflict(error):
                        conflicts += 1
                    elif self.dialect.is_loss(error) and losses < _LOSSES - 1 and may_repeat():
                        losses += 1
                    else:
                        raise self._explained(error) from error
                if conflicts > _CONFLICTS:
                    raise Unavailable(f"{self.dialect.server}: other transactions came first {conflicts} times")
                self.conflicts += 1
                await asyncio.sleep(random.uniform(0.0, 0.005 * 2 ** min(conflicts + losses, 6)))

    async def _undo(self, error: BaseException) -> None:
        """Roll back, or close a connection whose state is unknown, so that the next transaction starts clean."""
        if not self.dialect.is_loss(error) and not isinstance(error, (asyncio.CancelledError, TimeoutError)):
            try:
                await self.dialect.rollback()
                return
            except Exception as fault:
                log.debug("a transaction could not be rolled back, so its connection is given up: %s", fault)
        self.dialect.abort()

    def _explained(self, error: Exception) -> Exception:
        return self.dialect.explain(error) or error

    async def aclose(self) -> None:
        """Wait for transactions under way, then close the connection."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await asyncio.wait_for(self.dialect.close(), 2.0)
        except Exception:
            self.dialect.abort()


def digest(text: str) -> int:
    """A number for a name. Databases differ in which texts they consider equal; numbers are compared alike."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1


def connection_run(dialect: Dialect) -> int:
    """The life of the store, as in `Grant.run`: changes with every connection and every run of the server."""
    return crc32(f"{dialect.server_run} {dialect.connections}".encode())


def statements(name: str) -> dict[str, str]:
    """The statements of common.sql and of a dialect's .sql file, by name.

    A statement is all text from its name to the next name. A comment inside is sent with it, and one at its end would
    swallow what a dialect appends: write comments before the first name."""
    found = {}
    for part in (*schema("common.sql").split("-- name: ")[1:], *schema(name).split("-- name: ")[1:]):
        title, _, body = part.partition("\n")
        found[title.strip()] = body.strip()
    return found


def schema(name: str) -> str:
    """The text of a .sql file."""
    return resources.files("gossamer.frontier.sql").joinpath(name).read_text("utf-8")
