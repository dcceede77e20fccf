"""What people and services ask of a shard: counts, state, sites, one URL, workers, and old rows thrown away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from gossamer import urls
from gossamer.frontier.freshness import share_of
from gossamer.frontier.sql.call import Transaction
from gossamer.frontier.sql.database import Database, Dialect, digest
from gossamer.frontier.sql.inbox import site_of
from gossamer.frontier.sql.outbox import SqlOutbox
from gossamer.frontier.sql.rows import SUSPECT, WORDS, QueueRow, request_of
from gossamer.frontier.sql.settling import Admission
from gossamer.frontier.sql.site import MICRO, SqlSite
from gossamer.model import Counts, Heartbeat, JobState, RegionView, ShardView
from gossamer.redact import masked_memo
from gossamer.settings import Settings

_COMPACT_ROWS = 10_000
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_robots = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_WAITING = {1: "done", 2: "failed", 3: "skipped"}


_LOWEST = -(1 << 63)


class SqlSteering(SqlOutbox):
    """The part of a frontier that is not on the way of a page."""

    settings: Settings
    secret: bytes
    region: str
    shard: int
    _database: Database
    _admission: Admission
    _call: Callable[..., Awaitable[Any]]
    _state: Callable[[Transaction], Awaitable[str]]
    _is_over: Callable[[Transaction], Awaitable[bool]]

    async def counts(self) -> Counts:
        async def work(call: Transaction) -> Counts:
            await call.open(totals=True, writes=False)
            totals = call.totals
            state = await self._state(call)
            over = await self._is_over(call)
            places = await call.db.fetch("ready_sites", call.now)
            (held,) = await call.db.fetch("held_sites", call.now)
            mine = {self.region, ""}
            # A site without requests is struck off when a worker comes to it: no more are ready than wait.
            waiting = totals["queued"] + totals["delayed"]
            (sums,) = await call.db.fetch("freshness") if call.settings.recrawl else ((0, 0),)
            return Counts(
                queued=totals["queued"],
                delayed=totals["delayed"] - totals["revisits"],
                leased=totals["leased"],
                done=totals["done"],
                failed=totals["failed"],
                skipped=totals["skipped"],
                parked=totals["parked"],
                stale=totals["stale"],
                stored=totals["kept"],
                revisits=totals["revisits"],
                freshness=share_of(*map(int, sums)),
                known=totals["known"],
                sites=totals["sites"],
                ready_sites=min(waiting, sum(int(row[1]) for row in places if row[0] in mine)),
                held_sites=int(held[0]),
                active_sites=totals["held"],
                job=state,  # type: ignore[arg-type]
                finished=over,
                changes=totals["news"],
                outbox=await self._waiting(call),
            )

        found: Counts = await self._call(work, opens=False)
        return found

    async def steer(self, job: JobState) -> None:
        async def work(call: Transaction) -> None:
            await call.db.fetch("steer", job)
            call.count("news")
            await call.flush()

        await self._call(work, rings=True)

    async def lookup(self, url: str, key_of: urls.KeyOf = urls.fingerprint) -> Mapping[str, Any] | None:
        normal = urls.normal(url) or url
        key, site_name = key_of(self.secret, normal), site_of(normal, self.settings)
        number = self._admission.site_id(site_name)

        async def work(call: Transaction) -> Mapping[str, Any] | None:
            sites = [SqlSite(row, call.settings) for row in await call.db.fetch("site", number)]
            about = {"url": normal, "key": key, "site": site_name, "shard": self.shard}
            for held in await call.load("leases_of_sites", [number]):
                if key in held.batch:
                    about |= {
                        "worker": held.worker,
                        "token": held.token,
                        "lease_ends_in": (held.until_at - call.now) / MICRO,
                    }
            if sites:
                about |= _site_view(sites[0], call.now)
            for found in await call.db.fetch("row_of", number, key):
                return about | _queue_view(QueueRow(*found), call.now, site_name, working="token" in about)
            for status, code, depth, priority, tries, finished_at in await call.db.fetch("done_of", key):
                word = WORDS[status]
                return about | {
                    "state": word, "code": code, "depth": depth, "priority": priority, "tries": tries,
                    "finished_at": finished_at / MICRO,
                }  # fmt: skip
            (seen,) = await call.db.fetch("is_seen", key)
            return about | {"state": "known"} if seen[0] else None

        found: Mapping[str, Any] | None = await self._call(work)
        return found

    async def site(self, name: str) -> Mapping[str, Any] | None:
        number = self._admission.site_id(name)

        async def work(call: Transaction) -> Mapping[str, Any] | None:
            await call.open(totals=True, writes=False)
            for row in await call.db.fetch("site", number):
                found = SqlSite(row, call.settings)
                robots: dict[str, bytes] = {}
                memo: dict[str, Any] = {}
                for _, packed_robots, packed_memo in await call.db.fetch("notes", [number]):
                    robots, memo = _decode_robots(packed_robots), _decode(packed_memo)
                held = await call.load("leases_of_sites", [number])
                waiting = await call.db.fetch("waiting_of", number)
                return {
                    "site": name, "queued": int(waiting[0][0]), **_site_view(found, call.now),
                    "workers": [one.worker for one in held], "share_left": found.share_left(call.half),
                    "ready_in": max(0.0, (found.wake_at - call.now) / MICRO), "robots": robots,
                    "memo": masked_memo(memo),
                }  # fmt: skip
            return None

        site: Mapping[str, Any] | None = await self._call(work, opens=False)
        return site

    async def sites(self, limit: int = 100) -> list[Mapping[str, Any]]:
        async def work(call: Transaction) -> list[Mapping[str, Any]]:
            found: list[Mapping[str, Any]] = []
            for name, region, hold_at, ready_at, closed, lanes, waiting in await call.db.fetch("sites", limit):
                site = SqlSite((0, name, region, ready_at, hold_at, closed, lanes), call.settings)
                found.append({"site": name, "queued": int(waiting)} | _site_view(site, call.now))
            return found

        sites: list[Mapping[str, Any]] = await self._call(work)
        return sites

    async def every_site(self, cursor: str = "", limit: int = 100) -> tuple[list[Mapping[str, Any]], str]:
        async def work(call: Transaction) -> tuple[list[Mapping[str, Any]], str]:
            found: list[Mapping[str, Any]] = []
            rows = await call.db.fetch("every_site", max(_LOWEST, min(int(cursor or _LOWEST), ~_LOWEST)), limit)
            for _, name, region, hold_at, ready_at, closed, lanes, waiting in rows:
                site = SqlSite((0, name, region, ready_at, hold_at, closed, lanes), call.settings)
                found.append({"site": name, "queued": int(waiting)} | _site_view(site, call.now))
            return found, str(rows[-1][0]) if len(rows) == limit else ""

        page: tuple[list[Mapping[str, Any]], str] = await self._call(work)
        return page

    async def beat(self, pulse: Heartbeat) -> None:
        packed = msgspec.msgpack.encode(pulse)

        async def work(dialect: Dialect) -> None:
            await dialect.fetch("beat", digest(pulse.worker), packed)
            await dialect.fetch("forget_workers")

        await self._database.run(work, whole=False)

    async def workers(self) -> list[Heartbeat]:
        async def work(dialect: Dialect) -> Sequence[Any]:
            return await dialect.fetch("workers")

        found = []
        for packed, silent in await self._database.run(work, whole=False):
            pulse = msgspec.msgpack.decode(packed, type=Heartbeat)
            found.append(msgspec.structs.replace(pulse, silent=max(0.0, int(silent) / MICRO)))
        return sorted(found, key=lambda pulse: pulse.worker)

    async def shards(self) -> list[ShardView]:
        async def work(call: Transaction) -> dict[str, RegionView]:
            return {
                region: RegionView(ready=int(ready), later=int(later))
                for region, ready, later in await call.db.fetch("ready_sites", call.now)
            }

        regions, counts = await self._call(work), await self.counts()
        if not counts.queued + counts.delayed + counts.revisits:
            regions = {name: msgspec.structs.replace(view, ready=0) for name, view in regions.items()}
        return [ShardView(shard=self.shard, server=self._database.dialect.server, counts=counts, regions=regions)]

    async def compact(self, older_than_seconds: float = 0.0) -> int:
        """Throw away the rows of URLs that were finished that long ago; they stay known. How many.

        It may be stopped at any time and run again: it deletes some rows at a time."""
        gone, last = 0, -1

        async def work(call: Transaction) -> list[int]:
            before = call.now - round(older_than_seconds * MICRO) + 1
            return await call.db.compact(before, last, _COMPACT_ROWS)

        while found := await self._call(work):
            gone, last = gone + len(found), max(found)
        return gone


def _site_view(site: SqlSite, now: int) -> dict[str, Any]:
    leased = sum(1 for lane in site.lanes if lane.token)
    return {
        "region": site.region,
        "delay": site.delay,
        "lanes": len(site.lanes),
        "leased_lanes": leased,
        "leased": site.kept.leased,
        "stored": site.kept.kept,
        "budget": site.kept.budget,
        "hold": max(0.0, (site.hold_at - now) / MICRO),
        "ready_in": None if site.ready_at is None else max(0.0, (site.ready_at - now) / MICRO),
        "closed": site.closed,
    }


def _queue_view(row: QueueRow, now: int, site: str, *, working: bool) -> dict[str, Any]:
    request = request_of(row, site)
    due = row.standing - now if row.place == 1 else 0
    state = "leased" if working else "suspect" if row.place == SUSPECT else "delayed" if due > 0 else "queued"
    about = {
        "state": _WAITING.get(row.again, state), "depth": row.depth, "priority": row.priority, "tries": row.tries,
        "lapses": row.lapses, "referrer": request.referrer, "due_in": max(0.0, due / MICRO),
    }  # fmt: skip
    return about | {"state": "leased"} if working else about | ({"visit": request.state} if request.state else {})
