"""Connections to the servers of a shard: runs its scripts on one server or on a Cluster, with retries."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gossamer.errors import ConfigError
from gossamer.extras import unusable
from gossamer.frontier.redis.server import (
    PROBED,
    RedisJobRecord,
    check_rights,
    check_server,
    client,
    connect,
    faults,
    read_root,
    root_key,
)

try:
    from redis import exceptions as faults
    from redis.crc import key_slot
except ImportError as missing:
    raise unusable("redis", "the frontier in Redis", missing) from missing


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


_CORE = ("record", "sites", "queues", "leases")
_MOVES = (
    "announce", "depart", "renew", "stay", "leave", "follow", "confirm", "reclaim", "bury", "clear", "prepare", "land",
    "arrive", "settle", "kill",
)  # fmt: skip
_OWN = {
    "add": ("seen",),
    "unknown": ("seen",),
    "lease": ("lease",),
    "extend": ("lease",),
    **dict.fromkeys(("complete", "park", "release", "abandon"), ("seen", "outbox", "complete")),
    **dict.fromkeys(("sweep", "parcels", "replace"), ("outbox",)),
    **dict.fromkeys(("fold", "unfold"), ("folds",)),
    **dict.fromkeys(("requeue", "forget", "write_off"), ("seen", "repair")),
    **dict.fromkeys(("waiting", "slot", "hasten"), ("hints",)),
    **dict.fromkeys(_MOVES, ("move",)),
}
_MOST_AT_ONCE = 32
"""Calls of one worker that are under way, each on a connection: a job may have hundreds of shards."""
_MOST_MOVES = 8
_encode = msgspec.msgpack.Encoder().encode


class RedisConnection:
    """One server, or one cluster. Whatever asks it may be asked again: the script makes each call atomic."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis
        """The server itself; of a cluster, `at` knows the node that has a key."""
        self._cluster = redis if isinstance(redis, Cluster) else None
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)
        self._waiting: dict[str, list[tuple[int, asyncio.Future[None]]]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()

    async def run(self, key: str, operation: str, given: Any, entries: Sequence[bytes] = ()) -> Any:
        """One call of the script, for the shard with this record."""
        arguments: list[Any] = [2, key, f"{key}:never", operation, _encode(given)]
        if entries:
            arguments.append(b"".join(entries))
        async with self._turns:
            return await self._run(key, operation, arguments)

    async def _run(self, key: str, operation: str, arguments: list[Any]) -> Any:
        if self._cluster is None:
            return await _evaluate(self.redis, operation, arguments)
        for _ in range(_MOST_MOVES):
            try:
                return await _evaluate(await self._cluster.at(key), operation, arguments)
            except faults.MovedError as error:
                self._cluster.moved(error)
            except (faults.ConnectionError, faults.TimeoutError):
                # Another may have taken its place; whoever asks next asks that one.
                await self._cluster.refresh()
                raise
            except faults.AskError as error:
                raise faults.TryAgainError(f"slot {error.slot_id} is on its way to another node") from error
        raise faults.TryAgainError(f"{key} moves from node to node")

    async def at(self, key: str) -> Any:
        """The server, or the node of the cluster, that has this key."""
        return self.redis if self._cluster is None else await self._cluster.at(key)

    def node_of(self, key: str) -> str:
        """The name of the node of a cluster that has this key, as far as is known; empty where there is no cluster."""
        return "" if self._cluster is None else self._cluster.name_of(key)

    async def nodes(self) -> list[Any]:
        """The server, or all nodes of the cluster that have keys."""
        return [self.redis] if self._cluster is None else list(await self._cluster.every())

    async def news_after(self, key: str, seen: int) -> None:
        """Return once something has happened to the shard with this record since `seen`."""
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(key, [])
        waiting.append((seen, heard))
        if self._listening is None:
            self._subscribed.clear()
            self._listening = asyncio.create_task(self._listen())
        try:
            subscribed = asyncio.ensure_future(self._subscribed.wait())
            await asyncio.wait((subscribed, heard), return_when=asyncio.FIRST_COMPLETED)
            subscribed.cancel()
            # What happened before the subscription has to be asked for.
            if not heard.done():
                # Shielded: whoever waits here is cancelled often, and a call of the library may swallow that.
                server = await self.at(key)
                asked = asyncio.ensure_future(server.hget(key, "news"))
                asked.add_done_callback(_passed_over)
                if int(await asyncio.shield(asked) or 0) > seen:
                    return
            await heard
        finally:
            waiting.remove((seen, heard))
            if heard.done():
                _passed_over(heard)

    async def _listen(self) -> None:
        listener: Any = None
        try:
            # A cluster spreads news over all its nodes: any of them will do.
            server = self.redis if self._cluster is None else await self._cluster.any()
            listener = server.pubsub(ignore_subscribe_messages=True)
            await listener.psubscribe("gossamer:{*}:news")
            while not listener.subscribed:
                await listener.get_message(timeout=1.0)
            self._subscribed.set()
            while True:
                message = await listener.get_message(timeout=60.0)
                if message is not None:
                    self._heard(message["channel"].decode(), int(message["data"]))
        except faults.RedisError as error:
            self._fail(error)
        finally:
            self._listening = None
            with suppress(faults.RedisError):
                if listener is not None:
                    await listener.aclose()

    def _heard(self, channel: str, news: int) -> None:
        key = channel.removesuffix("news") + "job"
        for seen, heard in self._waiting.get(key, ()):
            if news > seen and not heard.done():
                heard.set_result(None)

    def _fail(self, error: faults.RedisError) -> None:
        for waiting in self._waiting.values():
            for _, heard in waiting:
                if not heard.done():
                    heard.set_exception(type(error)(str(error)))

    async def aclose(self) -> None:
        """Close the connections."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait((self._listening,))
        await self.redis.aclose()


def _passed_over(done: asyncio.Future[Any]) -> None:
    """Take note of a failure that nobody may be left to hear of."""
    if not done.cancelled():
        done.exception()


class RedisConnections:
    """The servers of a job, by their names; those that are heard of later are reached with the same credentials."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = {server_name(url): url for url in urls}
        self._open: dict[str, RedisConnection] = {}
        self.is_cluster = False

    @property
    def names(self) -> list[str]:
        """The servers that were given, in an order that all clients share."""
        return sorted(self._urls)

    async def link(self, name: str) -> RedisConnection:
        """The link to the server of this name, open and checked; without a name, to the one that was given."""
        if self.is_cluster:
            name = next(iter(self._open))
        # A job on one server is where it was found: machines may know that server by different names.
        name = name or self.names[0]
        if name not in self._open:
            url = self._urls.get(name) or _as_given(next(iter(self._urls.values())), name)
            redis: Any = connect(url)
            try:
                if await check_server(redis) == "cluster":
                    await redis.aclose()
                    redis = Cluster(url, [_place(given) for given in self._urls.values()])
                    self.is_cluster = True
                await check_rights(await redis.at(PROBED) if self.is_cluster else redis)
            except BaseException:
                await redis.aclose()
                raise
            self._open[name] = RedisConnection(redis)
        return self._open[name]

    def name_of(self, server: str, key: str) -> str:
        """The name of the server, or of the node of the cluster, that has this key, as far as is known."""
        return next(iter(self._open.values())).node_of(key) if self.is_cluster else server

    async def aclose(self) -> None:
        """Close them all."""
        for link in self._open.values():
            await link.aclose()


async def find_root(links: RedisConnections, job: str) -> RedisJobRecord:
    """The record of a job, on the first of the servers that has it: one may be down, or have joined just now."""
    error: faults.RedisError | None = None
    for name in links.names:
        try:
            link = await links.link(name)
            record = await (await link.at(root_key(job))).hgetall(root_key(job))
        except (faults.ConnectionError, faults.TimeoutError) as fault:
            error = fault
            continue
        if record:
            return read_root(record, job)
    if error is not None:
        raise error
    return read_root({}, job)


def addresses(text: str) -> list[str]:
    """The addresses of a frontier on several servers: they are separated by commas."""
    return re.split(r",(?=[a-z+]+://)", text)


def server_name(url: str) -> str:
    """A server's name: its address without credentials and options."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "unix":
            return f"unix:{parts.path}"
        place = parts.netloc.rpartition("@")[2]
        if parts.scheme.endswith("+sentinel"):
            return f"{place}{parts.path}"
        return f"{parts.hostname}:{parts.port or 6379}/{parts.path.strip('/') or 0}"
    except ValueError:
        raise ConfigError("the frontier's address has no valid port", hint="write redis://host:6379/0") from None


def _as_given(url: str, name: str) -> str:
    """The address of a server by its name, with the scheme, credentials and options of another's."""
    parts = urlsplit(url)
    if name.startswith("unix:") or parts.scheme == "unix":
        raise ConfigError(f"a shard is on {name}, which was not named", hint="give the addresses of all servers")
    place, _, database = name.partition("/")
    credentials, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{credentials}{at}{place}", path=f"/{database}").geturl()


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "localhost", parts.port or 6379


async def _evaluate(redis: Any, operation: str, arguments: list[Any]) -> Any:
    script, digest = _script(_OWN.get(operation, ("look",)))
    try:
        return await redis.evalsha(digest, *arguments)
    except faults.NoScriptError:
        return await redis.eval(script, *arguments)


@cache
def _script(own: tuple[str, ...]) -> tuple[str, str]:
    """The script of some operations, and its digest."""
    folder = resources.files("gossamer.frontier.redis").joinpath("lua")
    record, *rest = (folder.joinpath(f"{part}.lua").read_text("utf-8") for part in (*_CORE, *own, "answer"))
    # All but the record is one function inside: Lua looks for each variable of a function around that is not the next
    # one out among all those that are in use, and so defining them all took a fifth of a small call.
    script = f"{record}return (function()\n{''.join(rest)}end)()\n"
    return script, sha1(script.encode(), usedforsecurity=False).hexdigest()
