"""The part of max_pages that one shard of many may store, and the account of it that the first shard keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gossamer.frontier.sql.call import Transaction


class SqlLedger:
    """What a job of several shards needs of each; nobody leases from the shard meanwhile."""

    _call: Callable[..., Awaitable[Any]]

    async def set_limit(self, pages: int | None, *, reserved: int | None = None) -> int:
        """Begin, or end, to have a part of what the job may store; how many pages that part is."""

        async def work(call: Transaction) -> int:
            await call.open(totals=True)
            ((allowance, kept),) = await call.db.fetch("ledger")
            if pages is None:
                await call.db.fetch("set_ledger", None, None)
                return 0
            if allowance is None:
                allowance = call.total("kept") + call.total("leased")
            await call.db.fetch("set_ledger", allowance, reserved if kept is None else kept)
            return int(allowance)

        return int(await self._call(work, lock="shard", opens=False))

    async def reserve(self, pages: int, *, limit: int) -> tuple[int, int]:
        """Take pages from what is left of the job's limit, or give them back; how many, and what is left then."""

        async def work(call: Transaction) -> tuple[int, int]:
            ((allowance, reserved),) = await call.db.fetch("ledger")
            if reserved is None:
                return 0, 0
            left = limit - reserved
            # Where the limit was lowered, less than nothing may be left: none of that is taken back here.
            taken = max(0, min(pages, left)) if pages > 0 else max(pages, -reserved)
            if taken:
                await call.db.fetch("set_ledger", allowance, reserved + taken)
            return taken, left - taken

        found: tuple[int, int] = await self._call(work, lock="shard")
        return found

    async def allow(self, pages: int) -> tuple[int, int]:
        """Let this shard store more, or less; only what is not used can be taken away. How many, and what is left."""

        async def work(call: Transaction) -> tuple[int, int]:
            await call.open(totals=True)
            ((allowance, reserved),) = await call.db.fetch("ledger")
            if allowance is None:
                return 0, call.room
            call.most = int(allowance)
            moved = max(pages, -max(0, call.room))
            if moved:
                await call.db.fetch("set_ledger", call.most + moved, reserved)
                call.most += moved
                call.count("news", int(moved > 0))
                await call.flush()
            return moved, call.room

        found: tuple[int, int] = await self._call(work, lock="shard", opens=False, rings=True)
        return found
