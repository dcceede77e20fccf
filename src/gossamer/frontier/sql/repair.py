"""Queues stored pages again whose records are lost, by the rows of finished URLs.

Each transaction handles some rows under the `whole` lock: it deletes the row and the key of a page, then admits the
request like a new link. So at any moment a page is either finished or queued, and repair may be stopped and run
again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gossamer import urls
from gossamer.frontier.packing import expand
from gossamer.frontier.repair import HasRecord, Requeued
from gossamer.frontier.sql.completion import Admission
from gossamer.frontier.sql.transaction import WORDS, QueueRow, Transaction, with_state
from gossamer.model import Request

_MOST = 2000
_LOWEST = -(1 << 63)


class SqlRepair:
    """The part of a frontier that queues finished URLs again.

    The row of a finished URL has no referrer, label, or meta, so the new request has none either."""

    secret: bytes
    _admission: Admission
    _call: Callable[..., Awaitable[Any]]

    async def requeue_lost(self, has_record: HasRecord) -> Requeued:
        """Queue every page again that counts as stored and has no record.

        It may be stopped at any time and run again: a page that is queued is no longer among the finished ones."""
        total, last = Requeued(), -1
        while True:
            found, seen, last = await self._requeue_done(has_record, last)
            total = total.plus(found)
            if seen < _MOST:
                break
        after = _LOWEST
        while True:
            found, seen, after = await self._hasten_revisits(has_record, after)
            total = total.plus(found)
            if not seen:
                return total

    async def _requeue_done(self, has_record: HasRecord, after: int) -> tuple[Requeued, int, int]:
        async def work(call: Transaction) -> tuple[Requeued, int, int]:
            rows = await call.db.fetch("stored_rows", after, _MOST)
            requests, statuses, unnamed = self._requests([row for row in rows if not has_record(int(row[0]))])
            closed = 0
            if requests:
                keys = sorted(statuses)
                await call.lock({self._admission.site_id(request.site) for request in requests})
                await call.db.fetch("drop_done", keys)
                await call.db.fetch("drop_seen", keys)
                for request in requests:
                    site = call.sites[self._admission.site_id(request.site)]
                    if site.closed == "budget":
                        # There is room again.
                        site.closed = ""
                    closed += bool(site.closed)
                    site.kept.kept -= 1
                    call.touched.add(site.id)
                    call.count(WORDS[statuses[request.key]], -1)
                call.count("kept", -len(requests))
                call.count("known", -len(requests))
                await self._admission.admit(call, [(request, "", 0) for request in requests])
                await call.flush()
            last = int(rows[-1][0]) if rows else after
            return Requeued(len(requests) - closed, closed, unnamed), len(rows), last

        found: tuple[Requeued, int, int] = await self._call(work, lock="whole", rings=True)
        return found

    def _requests(self, rows: Sequence[Sequence[Any]]) -> tuple[list[Request], dict[int, int], int]:
        """The requests of rows, the status of each by key, and the number of rows that do not determine their request.

        A request is only accepted if its URL gives its key: a POST, for example, has a body that is not stored."""
        requests: list[Request] = []
        statuses: dict[int, int] = {}
        for key, name, short, depth, priority, status in rows:
            try:
                url = expand(short, name)
            except ValueError:
                continue
            if urls.fingerprint(self.secret, url) == key:
                requests.append(Request(url, key, name, priority, depth))
                statuses[key] = int(status)
        return requests, statuses, len(rows) - len(requests)

    async def _hasten_revisits(self, has_record: HasRecord, after: int) -> tuple[Requeued, int, int]:
        """Make pages without a record that wait for their next visit due now, on the next sites."""

        async def work(call: Transaction) -> tuple[Requeued, int, int]:
            sites = [int(row[0]) for row in await call.db.fetch("site_numbers", after, _MOST)]
            queued = closed = 0
            for number in sites:
                rows = [QueueRow._make(row) for row in await call.db.fetch("revisit_rows", number)]
                lost = [row for row in rows if not has_record(row.id)]
                if not lost:
                    continue
                await call.lock({number})
                site = call.sites[number]
                if site.closed:
                    closed += len(lost)
                    continue
                await call.db.bulk("drop_rows", [row[:5] for row in lost])
                # Drop the visit state: a conditional request could be answered "not modified", without a body.
                due = [row._replace(standing=call.now, extra=with_state(row.extra, None)) for row in lost]
                await call.db.insert_rows(due)
                site.kept.kept -= len(lost)
                call.count("kept", -len(lost))
                call.touched.add(number)
                queued += len(lost)
            await call.flush()
            return Requeued(queued, closed), len(sites), sites[-1] if sites else after

        found: tuple[Requeued, int, int] = await self._call(work, lock="whole", rings=True)
        return found

    async def write_off(self, pages: int) -> None:
        """Lower the count of stored pages."""

        async def work(call: Transaction) -> None:
            call.count("kept", -pages)
            call.count("news")
            await call.flush()

        await self._call(work, rings=True)
