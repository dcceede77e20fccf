"""Live events of a job, as a stream for the dashboard."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from gossamer.service.routing import Refused

MOST_CLIENTS = 500
_WAITING = 32
"""Events that wait for one client; then the oldest make way."""
_BEAT_SECONDS = 15.0
_encode = msgspec.json.Encoder().encode


class Client:
    """One who listens."""

    def __init__(self, job: str | None) -> None:
        self.job = job
        self.events: deque[bytes] = deque(maxlen=_WAITING)
        self.missed = 0
        self.news = asyncio.Event()

    def put(self, event: bytes) -> None:
        """Have an event wait for this client, in the place of an old one if there are too many."""
        self.missed += len(self.events) == _WAITING
        self.events.append(event)
        self.news.set()


class Hub:
    """Where events come in and go out."""

    def __init__(self) -> None:
        self._clients: set[Client] = set()
        self._is_closed = False
        self._number = 0
        self.missed = 0

    @property
    def clients(self) -> int:
        """How many listen."""
        return len(self._clients)

    def publish(self, kind: str, job: str, value: Any) -> None:
        """Tell all who listen to this job, without waiting for any of them."""
        self._number += 1
        if not self._clients:
            return
        # JSON has no line ends, so that an event is one line whatever is in it.
        event = b"id: %d\nevent: %s\ndata: %s\n\n" % (self._number, kind.encode(), _encode(value))
        for client in self._clients:
            if client.job is None or client.job == job:
                client.put(event)

    def check(self) -> None:
        """Refuse one more who wants to listen, where there are too many."""
        if len(self._clients) >= MOST_CLIENTS:
            raise Refused(503, f"{MOST_CLIENTS} clients listen already", headers={"retry-after": "30"})

    @contextmanager
    def _listening(self, client: Client) -> Iterator[None]:
        self._clients.add(client)
        try:
            yield
        finally:
            self._clients.discard(client)
            self.missed += client.missed

    async def listen(self, job: str | None) -> AsyncIterator[bytes]:
        """The events for one client, as they come; a comment now and then, by which it is seen whether it is there."""
        client = Client(job)
        with self._listening(client):
            yield b"retry: 3000\n\n"
            while not self._is_closed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_BEAT_SECONDS):
                        await client.news.wait()
                client.news.clear()
                if client.missed:
                    yield b"event: missed\ndata: %d\n\n" % client.missed
                    self.missed += client.missed
                    client.missed = 0
                events = b"".join(client.events)
                client.events.clear()
                yield events or b": still here\n\n"

    def close(self) -> None:
        """Let all who listen go."""
        self._is_closed = True
        for client in self._clients:
            client.news.set()
