"""Visits of the same lane take turns: a new one waits until the earlier one has its last answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gossamer.engine.visit import Visit


class Turns:
    """The newest visit of each lane in this process.

    A lane is leased again while a visit of it is under way only if the earlier lease expired: the process was stopped,
    for example. A request that had passed all checks by then is sent when the process goes on, and the delay of the
    site counts from the answer to that one, which the frontier knows nothing of."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], tuple[Visit, asyncio.Event]] = {}

    @asynccontextmanager
    async def take(self, visit: Visit) -> AsyncIterator[Visit | None]:
        """Wait for the earlier visit of the lane, if there is one, and give it."""
        place = visit.lease.site, visit.lease.lane
        earlier, found = self._newest.get(place), (visit, asyncio.Event())
        self._newest[place] = found
        try:
            if earlier is not None:
                earlier[0].lost = True
                await earlier[1].wait()
            yield None if earlier is None else earlier[0]
        finally:
            found[1].set()
            if self._newest.get(place) is found:
                del self._newest[place]
