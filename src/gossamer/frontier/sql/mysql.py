"""MariaDB and MySQL as the frontier uses them: many statements at once, and their errors in our words."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from gossamer.errors import FrontierError
from gossamer.frontier.sql.database import ROWS, schema
from gossamer.frontier.sql.mysql_faults import explain, is_conflict, is_forbidden, is_loss
from gossamer.frontier.sql.mysql_session import LOCKS, PACKET, MySqlConnection, faults
from gossamer.frontier.sql.mysql_text import PARTS, beyond, literal, moment, new_rows, stretch, whole_rows, written
from gossamer.frontier.sql.rows import is_changed

_SLOWEST_POLL_SECONDS = 1.0
_NEW = itemgetter(0, 1, 2, 3, 4, 5, 6, 11)
_SITE = itemgetter(0)
_NEW_MARKS = ",".join("?" * 8)
_IN_LIST = 900
_KEYS = 50_000
# Up to here statements of their own are cheaper than one with a table made of JSON.
_FEW = 8
_AGAIN = 1020
_MOMENTS = ("moment", "brief_moment")
_YOUNG_MICRO = 10_000_000
_WEAK_VARIABLES = (
    "SHOW GLOBAL VARIABLES WHERE variable_name IN"
    " ('innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', 'sync_binlog')"
)
_LARGE = ("seen", "queue", "done", "sites", "notes")
_SIZE = (
    "SELECT SUM(data_length + index_length) FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name LIKE 'gossamer\\_%'"
)
_STANDBY_COUNTS = "SHOW GLOBAL STATUS WHERE variable_name IN ('Slaves_connected', 'Rpl_semi_sync_master_clients')"


class MySqlDialect(MySqlConnection):
    """What the frontier asks of one connection."""

    kind = "MySQL"
    always_whole = True

    async def make_tables(self) -> None:
        """Make the tables, if they are not there. Two who do so at once would trip over each other."""
        await self._run("SELECT GET_LOCK('gossamer', 20)")
        try:
            there = {
                row[0]
                for row in await self._run(
                    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
                    " AND table_name IN ('gossamer_tasks', 'tasks', 'inbox')"
                )
            }
            if "gossamer_tasks" in there:
                return
            # Tables of an attempt that was refused half-way are no news.
            await self._run("SET SESSION sql_notes = 0")
            await self._make("mysql_outbox.sql")
            self.has_outbox = True
            await self._make("mysql_schema.sql")
            for short in {"tasks", "inbox"} - there:
                await self._run(f"CREATE VIEW {short} AS SELECT * FROM gossamer_{short}")  # noqa: S608
        finally:
            await self._run("SET SESSION sql_notes = 1")
            await self._run("SELECT RELEASE_LOCK('gossamer')")

    async def make_outbox(self) -> None:
        await self._run("SET SESSION sql_notes = 0")
        try:
            await self._make("mysql_outbox.sql")
        finally:
            await self._run("SET SESSION sql_notes = 1")
        self.has_outbox = True

    async def _make(self, name: str) -> None:
        for statement in schema(name).split(";\n"):
            if statement.strip():
                await self._run(statement)

    async def weaknesses(self) -> list[tuple[str, str]]:
        found = []
        rows = await self._run(_WEAK_VARIABLES)
        values = {str(name).lower(): str(value) for name, value in rows}
        if values.get("innodb_flush_log_at_trx_commit", "1") != "1":
            found.append((
                "a crash may lose the last seconds of what was acknowledged (innodb_flush_log_at_trx_commit is not 1)",
                "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
            ))  # fmt: skip
        if values.get("innodb_doublewrite", "ON").upper() in ("OFF", "0", "DETECT_ONLY"):
            found.append(
                ("a power cut may damage the database (innodb_doublewrite is off)", "turn innodb_doublewrite on")
            )
        if values.get("log_bin", "OFF").upper() in ("ON", "1") and values.get("sync_binlog", "1") == "0":
            found.append((
                "after a power cut a replica may lack what was acknowledged (sync_binlog is 0)",
                "SET GLOBAL sync_binlog = 1",
            ))  # fmt: skip
        return found

    async def time(self) -> float:
        return float((await self._run("SELECT UNIX_TIMESTAMP(NOW(6))"))[0][0])

    async def size(self) -> float:
        # Without this the sizes are those of some time ago.
        await self._run(f"ANALYZE TABLE {', '.join(f'gossamer_{name}' for name in _LARGE)}")
        return float((await self._run(_SIZE))[0][0] or 0)

    async def standbys(self) -> int:
        # MySQL counts only those that are semi-synchronous.
        rows = await self._run(_STANDBY_COUNTS)
        counts = {str(name).lower(): int(value) for name, value in rows}
        return max(0, counts.get("slaves_connected", 0) - counts.get("rpl_semi_sync_master_clients", 0))

    async def begin(self, lock: str = "", stripe: int = 0) -> None:
        # A transaction begins by itself with the first statement after the last one.
        self._forget()
        if lock == "shard":
            self._later("lock_shard")
        if lock in ("stripe", "shard"):
            self._later("lock_stripe", stripe)
        else:
            self._lock = lock

    async def commit(self, *, rings: bool = False) -> None:
        # Those who wait ask by themselves.
        await self._run("COMMIT")

    async def rollback(self) -> None:
        self._forget()
        await self._run("ROLLBACK")

    async def ask(self, text: str, *given: Any) -> list[Sequence[Any]]:
        """Run a statement that is not in the file."""
        return list(await self._run(written(PARTS.split(text), (None, *given))))

    async def fetch(self, name: str, *given: Any) -> list[Sequence[Any]]:
        if self._answers:
            ask, rows = self._answers.pop(0)
            if ask == (name, *given):
                return rows
        text = written(self._statements[name], (self.shard, *given))
        if name == "moment":
            for before in ("forget_moment", "set_moment", "set_now"):
                self._later(before)
        elif name == "brief_moment":
            # The lock comes with it.
            text, self._lock = text + LOCKS[self._lock], ""
        rows = list(await self._run(text))
        return [moment(row[0]) for row in rows if row[0] is not None] if name in _MOMENTS else rows

    async def bulk(self, name: str, rows: Sequence[Sequence[Any]], *given: Any) -> list[Sequence[Any]]:
        if not rows:
            return []
        parts, values = self._statements[name], (self.shard, *given)
        if "a" in parts[1::2]:
            text = "\nUNION ALL\n".join(written(parts, values, row=row) for row in rows)
            return list(await self._run(text))
        return list(await self._run(written(parts, values, rows=rows)))

    async def insert_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        if is_changed(rows):
            await self._put("insert_rows", whole_rows(self.shard, rows))
            return
        # What is left out need not be read by the server, which costs it as much as storing it.
        # In the order of their sites they come to the same pages of the index one after another.
        many = sorted(map(_NEW, rows), key=_SITE)
        if not await self._put_many("insert_new", _NEW_MARKS, many):
            await self._put("insert_new", new_rows(self.shard, many))

    async def write(
        self,
        counters: Sequence[int],
        *,
        ended: Sequence[int],
        given: Sequence[Sequence[Any]],
        changed: Sequence[Sequence[Any]],
        sites: Sequence[Sequence[Any]],
    ) -> None:
        if ended:
            self._later("delete_leases", ended)
        if given:
            self._pending.append(written(self._statements["insert_leases"], (self.shard,), rows=given))
        if len(changed) > _FEW:
            self._pending.append(written(self._statements["save_leases"], (self.shard,), rows=changed))
        else:
            for row in changed:
                self._later("save_lease", *row)
        if sites:
            name, numbers = "save_sites" if len(sites) > _FEW else "save_few_sites", [row[0] for row in sites]
            self._pending.append(written(self._statements[name], (self.shard, numbers), rows=sites))
        self._later("count", *counters)

    async def put_seen(self, ids: Sequence[int], sites: Sequence[int]) -> tuple[set[int], list[Sequence[Any]]]:
        states = [("site_states", sites)] if sites else []
        known: set[int] = set()
        if self._many_known:
            known = {row[0] for row in await self.fetch("known", ids)}
        for first in range(0, len(ids), _KEYS):
            known |= await self._insert_seen([key for key in ids[first : first + _KEYS] if key not in known], states)
        self._many_known = len(known) > len(ids) // 2
        return known, await self.fetch(*states[0]) if states else []

    async def _insert_seen(self, keys: Sequence[int], states: Sequence[tuple[Any, ...]]) -> set[int]:
        """Add keys; those that were there already, each of which is a warning."""
        if not keys:
            return set()
        added = await self._put_many("insert_seen", "?", [(key,) for key in keys])
        if added is None:
            self.ahead(("duplicates",), *states)
            head = f"({self.shard},"
            await self._run(self._statements["insert_seen"][0] + ",".join([f"{head}{key})" for key in keys]))
            added = self._affected
        elif added == len(keys):
            return set()
        else:
            self.ahead(*states)
        missing = len(keys) - added
        texts = [str(row[2]) for row in await self.fetch("duplicates")]
        # In every language the entry stands as 'shard-key'.
        found = {int(match[1]) for text in texts if (match := re.search(rf"'{self.shard}-(\d+)'", text))}
        if len(found & set(keys)) != missing:
            self._many_known = True
            raise faults.OperationalError(_AGAIN, "which keys were known was not said")
        return found

    async def insert_sites(self, rows: Sequence[Sequence[Any]]) -> int:
        # A site that another transaction adds at the same time is a conflict too.
        self._pending.append(written(self._statements["insert_sites"], (self.shard,), rows=rows))
        return len(rows)

    async def finish(self, rows: Sequence[Sequence[Any]], now: int) -> None:
        alike: dict[tuple[int, int], list[int]] = {}
        stretches: dict[tuple[int, ...], list[int]] = {}
        for site, place, standing, age, key, status, code in rows:
            alike.setdefault((status, code), []).append(key)
            stretches.setdefault((site, place, standing, status, code), []).append(age)
        if len(stretches) > _FEW:
            for name, given in (("keep_done", (self.shard, now)), ("drop_rows", (self.shard,))):
                self._pending.append(written(self._statements[name], given, rows=rows))
            return
        # Between those of the last seconds may be rows that others are adding now, and they would be waited for.
        where = {each: stretch(each[:3], ages, young=now - _YOUNG_MICRO) for each, ages in stretches.items()}
        for fate, keys in alike.items():
            some = " OR ".join([each for (*_, status, code), each in where.items() if (status, code) == fate])
            self._pending.append(written(self._statements["keep_alike"], (self.shard, keys, *fate, now), where=some))
        keys = [row[4] for row in rows]
        some = " OR ".join(where.values())
        self._pending.append(written(self._statements["drop_alike"], (self.shard, keys), where=some))

    async def refuse(self, rows: Sequence[Sequence[Any]], now: int) -> None:
        await self.bulk("refuse_rows", [(*row, now, 0, 0) for row in rows])

    async def close_site(self, site: int, keep: Sequence[int], status: int, now: int) -> list[Sequence[Any]]:
        found = await self.fetch("count_site", site, keep)
        if found:
            await self.fetch("keep_site", site, keep, status, now)
            await self.fetch("drop_site", site, keep)
        return found

    async def take_inbox(self, most: int) -> list[Sequence[Any]]:
        ((name,),) = await self.fetch("job_name")
        return await self.fetch("take_inbox", name, most)

    async def empty_inbox(self, entries: Sequence[int]) -> None:
        await self.fetch("empty_inbox", entries)

    async def refuse_inbox(self, entry: int, error: str) -> None:
        await self.fetch("refuse_inbox", entry, error)

    async def compact(self, before: int, last: int, most: int) -> list[int]:
        found = [row[0] for row in await self.fetch("old_done", before, last, most)]
        for first in range(0, len(found), _IN_LIST):
            await self.fetch("drop_done", found[first : first + _IN_LIST])
        return found

    async def page(self, table: str, after: Sequence[Any], most: int, *, last: bool = False) -> list[Sequence[Any]]:
        width, columns = ROWS[table]
        key, way = columns[:width], " DESC" if last else ""
        where = f" AND {beyond(key, after)}" if after else ""
        return list(
            await self._run(
                f"SELECT {', '.join(columns)} FROM gossamer_{table} FORCE INDEX (PRIMARY)"  # noqa: S608
                f" WHERE shard = {self.shard}{where} ORDER BY {', '.join(name + way for name in key)} LIMIT {int(most)}"
            )
        )

    async def put(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        _, columns = ROWS[table]
        head = f"INSERT INTO gossamer_{table} (shard, {', '.join(columns)}) VALUES "  # noqa: S608
        tail = f" ON DUPLICATE KEY UPDATE shard = gossamer_{table}.shard"
        part: list[str] = []
        size = 0
        for row in rows:
            part.append(f"({self.shard},{','.join(map(literal, row))})")
            size += len(part[-1])
            if size > PACKET:
                await self._run(head + ",".join(part) + tail)
                part, size = [], 0
        if part:
            await self._run(head + ",".join(part) + tail)

    async def drop(self, table: str, most: int) -> None:
        await self._run(f"DELETE FROM gossamer_{table} WHERE shard = {self.shard} LIMIT {int(most)}")  # noqa: S608

    async def watch(self, seen: int) -> bool:
        ((news, inbox),) = await self.fetch("news")
        return bool(inbox) or int(news or 0) > seen

    async def heard(self, round_number: int, shard: int) -> bool:
        await asyncio.sleep(min(_SLOWEST_POLL_SECONDS, 0.02 * 1.5 ** min(round_number, 20)))
        return False

    def is_conflict(self, error: BaseException) -> bool:
        return is_conflict(error)

    def is_forbidden(self, error: BaseException) -> bool:
        return is_forbidden(error)

    def is_loss(self, error: BaseException) -> bool:
        return is_loss(error)

    def explain(self, error: BaseException) -> FrontierError | None:
        return explain(error, self.server)
