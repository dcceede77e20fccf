"""How many fetches are under way at one address: thousands of host names may be one small machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gossamer.download.base import Locates
from gossamer.engine.slots import Slots
from gossamer.model import Request


class AddressLimits:
    """The places at each address, of one worker; an address is forgotten when nobody is there."""

    def __init__(self, locates: Locates, most: int) -> None:
        self._locates, self._most = locates, most
        self._places: dict[str, Slots] = {}

    async def locate(self, request: Request) -> str:
        """The address that a request will go to; empty if it is not known."""
        return await self._locates.address_of(request)

    def is_full(self, address: str) -> bool:
        """Whether the next one has to wait."""
        places = self._places.get(address)
        return places is not None and places.used >= places.limit

    @asynccontextmanager
    async def at(self, address: str) -> AsyncIterator[None]:
        """Be one of those at an address; waits for a place."""
        if not address:
            yield
            return
        places = self._places.get(address)
        if places is None:
            places = self._places[address] = Slots(self._most)
        try:
            async with places:
                yield
        finally:
            if places.is_idle:
                self._places.pop(address, None)
