"""Live events of a job, as a stream for the dashboard."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from gossamer.service.routing import ApiError

MOST_CLIENTS = 500
_WAITING = 32
"""Events queued per client; when the queue is full, the oldest event is dropped."""
_KEEPALIVE_SECONDS = 15.0
_encode = msgspec.json.Encoder().encode


class Client:
    """A connected client and its queue of events."""

    def __init__(self, job: str | None) -> None:
        self.job = job
        self.events: deque[bytes] = deque(maxlen=_WAITING)
        self.missed = 0
        self.wakeup = asyncio.Event()

    def put(self, event: bytes) -> None:
        """Queue an event; drops the oldest one if the queue is full."""
        self.missed += len(self.events) == _WAITING
        self.events.append(event)
        self.wakeup.set()


class EventHub:
    """Distributes events to the connected clients (server-sent events)."""

    def __init__(self) -> None:
        self._clients: set[Client] = set()
        self._is_closed = False
        self._number = 0
        self.missed = 0

    @property
    def clients(self) -> int:
        """Number of connected clients."""
        return len(self._clients)

    def publish(self, kind: str, job: str, value: Any) -> None:
        """Queue an event for all clients of this job, without waiting for them."""
        self._number += 1
        if not self._clients:
            return
        # Encoded JSON contains no line breaks, so the data of an event is always one line.
        event = b"id: %d\nevent: %s\ndata: %s\n\n" % (self._number, kind.encode(), _encode(value))
        for client in self._clients:
            if client.job is None or client.job == job:
                client.put(event)

    def check(self) -> None:
        """Raise ApiError 503 if the maximum number of clients is connected."""
        if len(self._clients) >= MOST_CLIENTS:
            raise ApiError(
                503, f"the maximum of {MOST_CLIENTS} event clients is connected", headers={"retry-after": "30"}
            )

    @contextmanager
    def _listening(self, client: Client) -> Iterator[None]:
        self._clients.add(client)
        try:
            yield
        finally:
            self._clients.discard(client)
            self.missed += client.missed

    async def listen(self, job: str | None) -> AsyncIterator[bytes]:
        """Stream events to one client, with a keep-alive comment every 15 seconds that detects a closed connection."""
        client = Client(job)
        with self._listening(client):
            yield b"retry: 3000\n\n"
            while not self._is_closed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_KEEPALIVE_SECONDS):
                        await client.wakeup.wait()
                client.wakeup.clear()
                if client.missed:
                    yield b"event: missed\ndata: %d\n\n" % client.missed
                    self.missed += client.missed
                    client.missed = 0
                events = b"".join(client.events)
                client.events.clear()
                yield events or b": keep-alive\n\n"

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for client in self._clients:
            client.wakeup.set()
