"""The outbox of a shard in a database: boxes of parcels, put in with their pages. See frontier/outbox.py.

The parcels of a page are inserted in the transaction that completes the page (P3): at any moment, a link for another
server is in the outbox, or its page is not done. Workers write to boxes of their own stripe, as they do to counters, so
that they do not wait for each other.

A box numbers its parcels while its row is locked, so they become visible in the order of their numbers. A sweep marks
how far the present count reaches; without that order, a parcel that commits late could have a number below the mark,
and would be dropped before its server has lived long enough.

A sweep and the delivery that follows are separate transactions, and other workers sweep too. So `parcels` and `replace`
check that the box still begins at the number that the sweep returned, and that this store has not restarted since: a
store that forgot its last seconds may have given the same numbers to other parcels. If either has changed, they do
nothing, and the next sweep sees the boxes as they are. A worker that dies between delivery and `replace` leaves the
parcels, which are delivered twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from gossamer.errors import FrontierError
from gossamer.frontier.outbox import Aging, Box, Parcel, pack_links, unpack_links
from gossamer.frontier.policy import MOST_LINKS
from gossamer.frontier.sql.completion import Link
from gossamer.frontier.sql.database import Database, Dialect, digest
from gossamer.frontier.sql.transaction import MICRO, Transaction
from gossamer.model import Request

_STRIPE_BITS = 56
_MOST_BYTES = 1_000_000
_KEPT_EMPTY_MICRO = 3600 * MICRO
_NUMBERS = (1 << _STRIPE_BITS) - 1
T = TypeVar("T")


class _Row(NamedTuple):
    box: int
    stripe: int
    server: str
    run: str
    taken: int
    added: int
    marked: int
    lived: int
    swept_at: int

    @property
    def aging(self) -> Aging:
        """The state of its aging in seconds, as the rule of all backends has it."""
        return Aging(self.marked, self.lived / MICRO, self.swept_at / MICRO)


class SqlOutbox:
    """The part of a shard that keeps copies of links for other servers."""

    _database: Database
    _alone: bool
    _call: Callable[..., Awaitable[Any]]
    _admit: Callable[[Sequence[Link]], Awaitable[tuple[int, str]]]
    _swept_run = 0

    @property
    def server(self) -> str:
        """The database that has the shard, as far as it is known."""
        return self._database.dialect.server

    async def run(self) -> str:
        """The run of the server that has the shard."""

        async def ask(dialect: Dialect) -> str:
            await dialect.learn()
            return dialect.server_run

        return await self._database.run(ask, whole=False)

    async def deliver(self, requests: Sequence[Request]) -> tuple[int, str]:
        """Queue requests with unknown keys; how many were new, and the run of the server that acknowledged them."""
        added, run = await self._admit([(request, "", 0) for request in requests])
        return added, run or await self.run()

    async def sweep(self, runs: Mapping[str, str], *, seconds: float) -> list[Box]:
        """Age the boxes of these present runs, drop parcels that are durable at their server, and return what is left.

        The rows of all boxes are locked, in one order, so two sweeps follow one another: time is not counted twice.
        An empty box of an earlier run is deleted once it has not been swept for an hour."""

        async def work(call: Transaction) -> tuple[int, list[Box]]:
            left = []
            for row in map(_Row._make, await call.db.fetch("lock_boxes") if call.db.has_outbox else ()):
                box = Box(row.server, row.run, row.taken, row.added - row.taken)
                is_present = runs.get(row.server) == row.run
                if box.size and is_present:
                    aging, count = row.aging.swept(box, call.now / MICRO, seconds)
                    await _take(call, row, count, aging)
                    box = box._replace(first=box.first + count, size=box.size - count)
                elif not box.size and not is_present and row.swept_at < call.now - _KEPT_EMPTY_MICRO:
                    await call.db.fetch("drop_box", row.box, row.stripe)
                if box.size:
                    left.append(box._replace(first=row.stripe << _STRIPE_BITS | box.first))
            await call.flush()
            return call.run, left

        found: tuple[int, list[Box]] = await self._call(work, rings=True)
        self._swept_run = found[0]
        return found[1]

    async def parcels(self, box: Box, limit: int) -> list[bytes]:
        """The links of up to `limit` parcels of a box, oldest first; none if the box has changed since the sweep."""

        async def work(call: Transaction) -> list[bytes]:
            if await self._row_of(call, box) is None:
                return []
            number, stripe = _key(box), box.first >> _STRIPE_BITS
            return [bytes(row[0]) for row in await call.db.fetch("read_parcels", number, stripe, limit)]

        found: list[bytes] = await self._call(work)
        return found

    async def replace(self, box: Box, count: int, parcels: Sequence[Parcel]) -> None:
        """Remove the first parcels of a box and file new ones in the same transaction, if the box has not changed."""

        async def work(call: Transaction) -> None:
            row = await self._row_of(call, box)
            if row is not None:
                await _take(call, row, count, row.aging)
                await put(call, parcels)
                await call.flush()

        await self._call(work, rings=True)

    async def _row_of(self, call: Transaction, box: Box) -> _Row | None:
        """The locked row of a box, if it still begins where the last sweep of this worker saw it begin."""
        # Another run of this store may have given the same numbers to other parcels.
        if call.run != self._swept_run:
            return None
        for row in map(_Row._make, await call.db.fetch("lock_box", _key(box), box.first >> _STRIPE_BITS)):
            if row.taken == box.first & _NUMBERS:
                return row
        return None

    async def _waiting(self, call: Transaction) -> int:
        """Number of parcels in the outbox, for which the job is not finished (P6); a shard that is alone has none."""
        if self._alone or not await is_there(call):
            return 0
        ((count,),) = await call.db.fetch("count_parcels")
        return int(count)


async def is_there(call: Transaction) -> bool:
    """Whether the tables of the outbox exist: another worker may have created them since this one connected."""
    if not call.db.has_outbox:
        ((there,),) = await call.db.fetch("is_outbox")
        call.db.has_outbox = bool(there)
    return call.db.has_outbox


async def put(call: Transaction, parcels: Sequence[Parcel]) -> None:
    """File parcels in the transaction of the call.

    `put_box` adds to the number of parcels of the box, which locks its row until the commit; the numbers below the
    new end are those of these parcels."""
    if not parcels:
        return
    if not await is_there(call):
        raise FrontierError(
            f"{call.db.server}: the tables of the outbox are missing, which a job in several databases needs",
            hint="let this user CREATE there, and start one worker again",
        )
    boxes: dict[int, list[Parcel]] = {}
    for parcel in parcels:
        boxes.setdefault(_key(parcel), []).append(parcel)
    # In the order of the boxes, so that two such calls wait for each other and do not deadlock.
    for number, some in sorted(boxes.items()):
        packed = [part for parcel in some for part in _parts(parcel.links)]
        place = (number, call.stripe, some[0].server, some[0].run)
        await call.db.fetch("put_box", *place, call.now, call.now + len(packed), len(packed))
        ((end,),) = await call.db.fetch("box_end", number, call.stripe)
        for place_in_box, links in enumerate(packed, int(end) - len(packed)):
            await call.db.fetch("put_parcel", number, call.stripe, place_in_box, links)
        call.parcels += len(packed)


async def _take(call: Transaction, row: _Row, count: int, aging: Aging) -> None:
    """Delete the first parcels of a box whose row is locked, and store how it ages."""
    taken = row.taken + count
    if count:
        await call.db.fetch("drop_parcels", row.box, row.stripe, taken)
        # The outbox may have been all that the job waited for: wake the workers.
        call.count("news")
    lived, swept_at = round(aging.lived * MICRO), round(aging.at * MICRO)
    await call.db.fetch("save_box", row.box, row.stripe, taken, aging.marked, lived, swept_at)


def _key(box: Box | Parcel) -> int:
    return digest(f"{box.server} {box.run}")


def _parts(links: bytes) -> list[bytes]:
    """Split links into parts that fit into a statement."""
    if len(links) <= _MOST_BYTES:
        return [links]
    requests = unpack_links(links)
    step = min(MOST_LINKS, max(1, len(requests) * _MOST_BYTES // len(links)))
    return [pack_links(requests[first : first + step]) for first in range(0, len(requests), step)]
