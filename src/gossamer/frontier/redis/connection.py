"""Connections to the servers of a shard: runs its scripts on one server or on a Cluster, with retries.

A script is the concatenation of some files of `lua/`: the record, the core that every operation needs, the files of the
operation (`_OWN`), and the answer. Each operation has a script of its own size, because defining the functions of a
script takes time on every call. The client sends the SHA-1 digest; the server holds the compiled script. Only when it
answers NOSCRIPT (a new server, a restart, SCRIPT FLUSH) does the client send the text, once for each script. The text
is sent as it is in the files, comments included: they cost some kilobytes after a restart and nothing on a call.

Calls may be repeated, since the client cannot know whether a script ran before its connection broke:

- A broken connection is retried on a new one, twice, with back-off. Operations are written
  to tolerate that: a repeat finds known keys, spent tokens, or the nonce of an attempt; a repeated lease takes other
  lanes.
- Two calls cannot tolerate it: those that give pages of the page limit to a shard, or back to the account. With
  `repeats=False` a broken connection becomes `Unavailable`, and the call may have run or not.
- A timeout is not retried here. It becomes `Unavailable`, and the worker asks again with back-off.
- In a cluster, MOVED updates the table of slots and the call goes to the node named there. ASK and TRYAGAIN mean that a
  slot is on its way, with half of its keys on either node; the caller waits until it has arrived. `key:never`, a key
  that never exists, is passed with each call: it makes a node refuse a half-moved slot, although all keys that the
  script names up front may still be there.

Idle workers share one subscription to the news of all shards of a server. It only makes them ask sooner: the number in
the record decides whether there is news, and `idle` has a time limit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
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
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.crc import key_slot
except ImportError as missing:
    raise unusable("redis", "the frontier in Redis", missing) from missing


Place = tuple[str, int]


class Cluster:
    """The nodes of a cluster. Every call is one script on one slot, so a table of slots is all it needs.

    The library's own cluster client is not used: it drops all connections when a slot moves, including those on which
    other calls wait for their answers."""

    def __init__(self, url: str, places: list[Place]) -> None:
        self._url = url
        self._places = places
        self._nodes: dict[Place, client.Redis] = {}
        self._slots: dict[int, Place] = {}
        self._refreshing = asyncio.Lock()

    async def at(self, key: str) -> client.Redis:
        """The client of the node that has this key; asks the cluster for its slots if that is not known yet."""
        slot = key_slot(key.encode())
        if slot not in self._slots:
            await self.refresh()
        if slot not in self._slots:
            raise faults.ClusterDownError(f"no node of the cluster has slot {slot}")
        return self._node(self._slots[slot])

    def name_of(self, key: str) -> str:
        """The address of the node that has this key, as far as it is known; else empty."""
        host, port = self._slots.get(key_slot(key.encode()), ("", 0))
        return f"{host}:{port}" if host else ""

    async def any(self) -> client.Redis:
        """Some node, for what does not depend on a key."""
        if not self._slots:
            await self.refresh()
        return self._node(next(iter(self._slots.values())))

    async def every(self) -> list[client.Redis]:
        """All nodes that have slots."""
        await self.refresh()
        return [self._node(place) for place in dict.fromkeys(self._slots.values())]

    def moved(self, error: faults.MovedError) -> None:
        """Record the node that a MOVED answer names for a slot."""
        self._slots[error.slot_id] = (error.host, error.port)

    async def refresh(self) -> None:
        """Read the table of slots from the first node that answers.

        Tries the nodes known now before those of the address: after a fail-over the given node may be the dead one."""
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
"""Concurrent calls of one worker, each on its own connection: a job may have hundreds of shards."""
_MOST_MOVES = 8
_encode = msgspec.msgpack.Encoder().encode


class RedisConnection:
    """One server, or one cluster. Each call is one atomic script, and is repeated if its connection broke."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis
        """The server itself, or a `Cluster`, whose `at` finds the node of a key."""
        self._cluster = redis if isinstance(redis, Cluster) else None
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)
        self._waiting: dict[str, list[tuple[int, asyncio.Future[None]]]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()

    async def run(
        self, key: str, operation: str, given: Any, entries: Sequence[bytes] = (), *, repeats: bool = True
    ) -> Any:
        """Run one operation on the shard with this record, and return its answer; at most once without `repeats`.

        `given` are its arguments. `entries` travel beside them as one byte string with offsets in `given`: unpacking
        them in Lua would make a string of each, even of the links that are known already."""
        arguments: list[Any] = [2, key, f"{key}:never", operation, _encode(given)]
        if entries:
            arguments.append(b"".join(entries))
        async with self._turns:
            return await self._run(key, operation, arguments, _evaluate if repeats else _evaluate_once)

    async def _run(
        self, key: str, operation: str, arguments: list[Any], evaluate: Callable[[Any, str, list[Any]], Awaitable[Any]]
    ) -> Any:
        if self._cluster is None:
            return await evaluate(self.redis, operation, arguments)
        for _ in range(_MOST_MOVES):
            try:
                return await evaluate(await self._cluster.at(key), operation, arguments)
            except faults.MovedError as error:
                self._cluster.moved(error)
            except (faults.ConnectionError, faults.TimeoutError):
                # A replica may have been promoted. Learn the new table for the next call, and let the caller decide
                # about this one: whether the script has run is unknown.
                await self._cluster.refresh()
                raise
            except faults.AskError as error:
                raise faults.TryAgainError(f"slot {error.slot_id} is being moved to another node") from error
        raise faults.TryAgainError(f"{key} moves from node to node")

    async def at(self, key: str) -> Any:
        """The server, or the node of the cluster, that has this key."""
        return self.redis if self._cluster is None else await self._cluster.at(key)

    def node_of(self, key: str) -> str:
        """The name of the cluster node that has this key, as far as it is known; empty without a cluster."""
        return "" if self._cluster is None else self._cluster.name_of(key)

    async def nodes(self) -> list[Any]:
        """The server, or all nodes of the cluster that have keys."""
        return [self.redis] if self._cluster is None else list(await self._cluster.every())

    async def news_after(self, key: str, seen: int) -> None:
        """Return once the news number of the shard with this record is above `seen`.

        The order avoids a lost wake-up: register the waiter, subscribe, and only then read the number from the record.
        News before the subscription shows in the number, later news comes as a message. All waiters share one
        listener; if its connection fails, each of them gets the error and the next waiter starts a new listener."""
        notified: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(key, [])
        waiting.append((seen, notified))
        if self._listening is None:
            self._subscribed.clear()
            self._listening = asyncio.create_task(self._listen())
        try:
            subscribed = asyncio.ensure_future(self._subscribed.wait())
            await asyncio.wait((subscribed, notified), return_when=asyncio.FIRST_COMPLETED)
            subscribed.cancel()
            # News from before the subscription was not delivered: read the number.
            if not notified.done():
                # Shielded, because this wait is cancelled often (its time limit), and a cancelled call of the library
                # may swallow the cancellation or leave an answer unread on the connection.
                server = await self.at(key)
                reply = asyncio.ensure_future(server.hget(key, "news"))
                reply.add_done_callback(_passed_over)
                if int(await asyncio.shield(reply) or 0) > seen:
                    return
            await notified
        finally:
            waiting.remove((seen, notified))
            if notified.done():
                _passed_over(notified)

    async def _listen(self) -> None:
        listener: Any = None
        try:
            # A cluster forwards published messages to all nodes, so any node will do.
            server = self.redis if self._cluster is None else await self._cluster.any()
            listener = server.pubsub(ignore_subscribe_messages=True)
            await listener.psubscribe("gossamer:{*}:news")
            while not listener.subscribed:
                await listener.get_message(timeout=1.0)
            self._subscribed.set()
            while True:
                message = await listener.get_message(timeout=60.0)
                if message is not None:
                    self._on_message(message["channel"].decode(), int(message["data"]))
        except faults.RedisError as error:
            self._fail(error)
        finally:
            self._listening = None
            with suppress(faults.RedisError):
                if listener is not None:
                    await listener.aclose()

    def _on_message(self, channel: str, news: int) -> None:
        key = channel.removesuffix("news") + "job"
        for seen, notified in self._waiting.get(key, ()):
            if news > seen and not notified.done():
                notified.set_result(None)

    def _fail(self, error: faults.RedisError) -> None:
        for waiting in self._waiting.values():
            for _, notified in waiting:
                if not notified.done():
                    notified.set_exception(type(error)(str(error)))

    async def aclose(self) -> None:
        """Close the connections."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait((self._listening,))
        await self.redis.aclose()


def _passed_over(done: asyncio.Future[Any]) -> None:
    """Retrieve the result, so that asyncio does not log a failure whose waiter has gone."""
    if not done.cancelled():
        done.exception()


class RedisConnections:
    """The servers of a job, by name, opened when they are first needed.

    A shard may have moved to a server whose address was not given. It is reached with the scheme, credentials, and
    options of the first address."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = {server_name(url): url for url in urls}
        self._open: dict[str, RedisConnection] = {}
        self.is_cluster = False

    @property
    def names(self) -> list[str]:
        """The names of the servers given, sorted: clients that create a job at once must ask the same server first."""
        return sorted(self._urls)

    async def link(self, name: str) -> RedisConnection:
        """The connection to the server of this name, or without a name to the first one given.

        Opening checks the version, the memory policy, and the rights of the user. A script that lacks a right would
        stop half-way, and Redis does not undo what it has written until then."""
        if self.is_cluster:
            name = next(iter(self._open))
        # A job on one server is stored without a name: machines may reach that server under different names.
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
        """The name of the server, or of the cluster node, that has this key, as far as it is known."""
        return next(iter(self._open.values())).node_of(key) if self.is_cluster else server

    async def aclose(self) -> None:
        """Close them all."""
        for link in self._open.values():
            await link.aclose()


async def find_root(links: RedisConnections, job: str) -> RedisJobRecord:
    """Read a job's record from the first server that has it; JobMissing if all answer and none has it.

    A server may be down, or may have joined a moment ago without a record, so one silent or empty server does not end
    the search. While a server is unreachable the job cannot be called missing: its error is raised instead."""
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
    """Split the addresses of a frontier on several servers, which are separated by commas."""
    return re.split(r",(?=[a-z+]+://)", text)


def server_name(url: str) -> str:
    """The name of a server: its address without credentials and options. Names are stored, secrets must not be."""
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
    """Build the address of a named server with the scheme, credentials, and options of a known one."""
    parts = urlsplit(url)
    if name.startswith("unix:") or parts.scheme == "unix":
        raise ConfigError(f"a shard is on {name}, which was not named", hint="pass the addresses of all servers")
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


async def _evaluate_once(redis: Any, operation: str, arguments: list[Any]) -> Any:
    """The same, but not again after a broken connection. The library retries by connection, so this takes one of its
    own."""
    async with redis.client() as alone:
        connection = alone.connection
        retry, connection.retry = connection.retry, Retry(NoBackoff(), 0)
        try:
            return await _evaluate(alone, operation, arguments)
        finally:
            connection.retry = retry


@cache
def _script(own: tuple[str, ...]) -> tuple[str, str]:
    """The script of some operations, and its digest."""
    folder = resources.files("gossamer.frontier.redis").joinpath("lua")
    record, *rest = (folder.joinpath(f"{part}.lua").read_text("utf-8") for part in (*_CORE, *own, "answer"))
    # Everything after the record is one nested function. A function definition resolves each upvalue that is not in the
    # next enclosing function by searching all open variables; without the nesting that took a fifth of a small call.
    script = f"{record}return (function()\n{''.join(rest)}end)()\n"
    return script, sha1(script.encode(), usedforsecurity=False).hexdigest()
