"""A Redis Cluster as a set of plain servers: which of them has a key, and what to do when that changes."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.crc import key_slot

from gossamer.frontier.redis_job import client, connect, faults

Place = tuple[str, int]


class Cluster:
    """The nodes of a cluster. Every call is one script on one slot, so it needs no more than a table of slots.

    The cluster client of the library drops all connections when a slot moves, also those that others wait on."""

    def __init__(self, url: str, places: list[Place]) -> None:
        self._url = url
        self._places = places
        self._nodes: dict[Place, client.Redis] = {}
        self._slots: dict[int, Place] = {}
        self._refreshing = asyncio.Lock()

    async def at(self, key: str) -> client.Redis:
        """The node that has this key."""
        slot = key_slot(key.encode())
        if slot not in self._slots:
            await self.refresh()
        if slot not in self._slots:
            raise faults.ClusterDownError(f"no node of the cluster has slot {slot}")
        return self._node(self._slots[slot])

    def name_of(self, key: str) -> str:
        """The address of that node, as far as is known; empty where nothing is."""
        host, port = self._slots.get(key_slot(key.encode()), ("", 0))
        return f"{host}:{port}" if host else ""

    async def any(self) -> client.Redis:
        """A node that answers."""
        if not self._slots:
            await self.refresh()
        return self._node(next(iter(self._slots.values())))

    async def every(self) -> list[client.Redis]:
        """All nodes that have slots."""
        await self.refresh()
        return [self._node(place) for place in dict.fromkeys(self._slots.values())]

    def moved(self, error: faults.MovedError) -> None:
        """Heed what a node says about a slot."""
        self._slots[error.slot_id] = (error.host, error.port)

    async def refresh(self) -> None:
        """Ask the first node that answers for all slots."""
        async with self._refreshing:
            known = [*dict.fromkeys([*self._slots.values(), *self._places])]
            for place in known:
                try:
                    # Two words: the library has a reader of its own for one, which changed between its versions.
                    node: Any = self._node(place)
                    found = await node.execute_command("CLUSTER", "SLOTS")
                except (faults.ConnectionError, faults.TimeoutError):
                    continue
                for first, last, primary, *_ in found:
                    owner = (primary[0].decode() or place[0], int(primary[1]))
                    self._slots.update(dict.fromkeys(range(first, last + 1), owner))
                return
        raise faults.ConnectionError(f"none of {len(known)} nodes of the cluster answers")

    def _node(self, place: Place) -> client.Redis:
        if place not in self._nodes:
            self._nodes[place] = connect(self._url, host=place[0], port=place[1])
        return self._nodes[place]

    async def aclose(self) -> None:
        """Close the connections."""
        for node in self._nodes.values():
            await node.aclose()
