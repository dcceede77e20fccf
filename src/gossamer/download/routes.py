"""Client assignment for HTTP/2: each client serves a generation of hosts, with their checked addresses pinned."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from gossamer.clock import Clock
from gossamer.errors import ConnectFailed

GENERATION_HOSTS = 200
MAX_GENERATIONS = 64
BUILD_GAP_SECONDS = 0.25
IDLE_SECONDS = 30.0
LINGER_SECONDS = 1.0
"""Seconds for which connections kept before may still be open."""

C = TypeVar("C")


class Generation(Generic[C]):
    """A client and the hosts that use it. It closes, with its connections, when nothing refers to it any more."""

    def __init__(self, client: C) -> None:
        self.client = client
        self.hosts: set[str] = set()


class Route(Generic[C]):
    """The client of a host, which connects this name to this address and to no other."""

    __slots__ = (
        *("address", "closes_from", "ended_count", "expires_at", "generation", "has_answered", "host", "spares"),
        "used_at",
    )

    def __init__(self, host: str, address: str, spares: tuple[str, ...], expires_at: float) -> None:
        self.host, self.address, self.spares, self.expires_at = host, address, spares, expires_at
        self.generation: Generation[C] | None = None
        self.used_at = 0.0
        self.has_answered = False
        self.ended_count = 0
        self.closes_from = inf
        """Time since which its connections are not kept alive."""

    @property
    def is_literal(self) -> bool:
        return self.host.strip("[]") == self.address

    def closed_early(self, now: float) -> bool:
        """Record a close before the response; return whether it may be a kept-alive connection that timed out.

        Some servers close connections without notice. After the second time, none is kept alive."""
        is_kept = self.has_answered and now < self.closes_from + LINGER_SECONDS
        self.ended_count += self.has_answered
        if self.ended_count > 1:
            self.closes_from = min(self.closes_from, now)
        return is_kept


class Routes(Generic[C]):
    """The routes of the hosts in use, at most `max_hosts`, so that the number of open sockets is bounded.

    Addresses are pinned when a client is built, which takes milliseconds: hosts that arrive together share a client.
    """

    def __init__(self, build: Callable[[dict[str, str]], C], clock: Clock, *, max_hosts: int) -> None:
        self._build, self._clock, self._max_hosts = build, clock, max_hosts
        self._table: dict[str, Route[C]] = {}
        self._generations: deque[Generation[C]] = deque()
        self._alive: weakref.WeakSet[Generation[C]] = weakref.WeakSet()
        self._waiting: dict[str, tuple[Route[C], asyncio.Future[None]]] = {}
        self._builder: asyncio.Task[None] | None = None
        self._next_build_at = 0.0
        self._all_wait = asyncio.Event()
        self._users = 0

    def __enter__(self) -> None:
        """Count one more fetch in progress."""
        self._users += 1

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        self._check_all_wait()

    def __len__(self) -> int:
        return len(self._table)

    def find(self, host: str) -> Route[C] | None:
        """Return the host's route, if any; the caller checks whether its address is still valid."""
        return self._table.get(host)

    async def open(self, route: Route[C]) -> Route[C]:
        """Give the route a client, replacing its host's old one; concurrent calls for one host share the route."""
        newest = self._generations[-1] if self._generations else None
        if route.is_literal and newest and len(newest.hosts) < GENERATION_HOSTS and len(self._table) < self._max_hosts:
            self._enter(route, newest)
            return route
        waiting = self._waiting.get(route.host)
        if waiting is None:
            waiting = self._waiting[route.host] = (route, asyncio.get_running_loop().create_future())
            if self._builder is None or self._builder.done():
                self._builder = asyncio.create_task(self._build_waiting())
            self._check_all_wait()
        await asyncio.shield(waiting[1])
        return waiting[0]

    def forget(self, route: Route[C]) -> None:
        """Drop a route, so that its host is resolved again; a literal address keeps its route."""
        if not route.is_literal and self._table.get(route.host) is route:
            del self._table[route.host]

    def drop_older(self) -> None:
        """Drop the older half of the generations, and with them their idle connections."""
        for _ in range((len(self._generations) + 1) // 2):
            self._retire()

    def close(self) -> list[C]:
        """Drop all routes; return the clients still alive, to be closed."""
        if self._builder is not None:
            self._builder.cancel()
        for _, future in self._waiting.values():
            _fail(future, ConnectFailed("the downloader was closed"))
        clients = [generation.client for generation in self._alive]
        self._waiting.clear()
        self._table.clear()
        self._generations.clear()
        return clients

    async def _build_waiting(self) -> None:
        while self._waiting:
            await self._gather()
            batch = [self._waiting[host] for host in list(self._waiting)[:GENERATION_HOSTS]]
            routes = [route for route, _ in batch]
            routes += self._make_room(len(routes))
            pins = {route.host: route.address for route in routes if not route.is_literal}
            try:
                client = await asyncio.to_thread(self._build, pins)
            except Exception as error:  # whatever the library raises, pass it on to all waiting callers
                for route, future in batch:
                    self._waiting.pop(route.host, None)
                    _fail(future, error)
                continue
            self._next_build_at = self._clock.monotonic() + BUILD_GAP_SECONDS
            generation = Generation(client)
            self._generations.append(generation)
            self._alive.add(generation)
            for route in routes:
                # A route in use that was reopened meanwhile keeps its new client.
                if route.host in self._waiting or route.host not in self._table:
                    self._enter(route, generation)
            for route, future in batch:
                self._waiting.pop(route.host, None)
                if not future.done():
                    future.set_result(None)

    async def _gather(self) -> None:
        """Wait for more hosts, unless the last client is old enough, or no fetch is left that could add one."""
        wait = self._next_build_at - self._clock.monotonic()
        self._all_wait.clear()
        self._check_all_wait()
        if wait > 0 and not self._all_wait.is_set():
            try:
                async with asyncio.timeout(wait):
                    await self._all_wait.wait()
            except TimeoutError:
                pass

    def _check_all_wait(self) -> None:
        if self._waiting and len(self._waiting) >= min(self._users, GENERATION_HOSTS):
            self._all_wait.set()

    def _enter(self, route: Route[C], generation: Generation[C]) -> None:
        route.generation = generation
        route.used_at = self._clock.monotonic()
        generation.hosts.add(route.host)
        self._table[route.host] = route

    def _make_room(self, count: int) -> list[Route[C]]:
        """Retire idle and oldest routes until `count` hosts fit; return those in use that the new client can take."""
        now = self._clock.monotonic()
        survivors: list[Route[C]] = []
        for generation in list(self._generations):
            if not any(self._in_use(host, generation, now) for host in generation.hosts):
                self._generations.remove(generation)
                self._drop(generation)
        while self._generations and (
            len(self._generations) >= MAX_GENERATIONS or len(self._table) + count > self._max_hosts
        ):
            oldest = self._generations[0]
            survivors += [self._table[host] for host in oldest.hosts if self._in_use(host, oldest, now)]
            self._retire()
        room = min(GENERATION_HOSTS, self._max_hosts - len(self._table)) - count
        return survivors[: max(room, 0)]

    def _in_use(self, host: str, generation: Generation[C], now: float) -> bool:
        route = self._table.get(host)
        return route is not None and route.generation is generation and now - route.used_at < IDLE_SECONDS

    def _retire(self) -> None:
        self._drop(self._generations.popleft())

    def _drop(self, generation: Generation[C]) -> None:
        for host in generation.hosts:
            route = self._table.get(host)
            if route is not None and route.generation is generation:
                del self._table[host]


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # Retrieve the exception, so that asyncio does not log it when no caller waits any more.
        future.exception()
