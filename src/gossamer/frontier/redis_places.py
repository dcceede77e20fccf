"""Where a shard is: how a client finds its way where a server says that it is elsewhere, or no longer knows.

The protocol is that of `redis_move`. Every step is a script that looks for itself, so that any number of clients may
take them at once, and any of them may be killed in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gossamer.errors import FrontierError, JobMissing, Unavailable
from gossamer.frontier.redis_job import explain, faults, job_key, translate
from gossamer.frontier.redis_link import RedisConnections, find_root

MOST_STEPS = 12
"""Servers that a call is sent to, one after the other: a shard moves seldom."""


class Copy(NamedTuple):
    """What one server has of a shard."""

    server: str
    moved: str
    moving: str
    leaving: str
    arriving: str
    nonce: str
    generation: int
    is_kept: bool
    """Whether all its data are there, and not only the name of the server that it has moved to."""

    @property
    def is_live(self) -> bool:
        """Whether this is the shard, if the server has not forgotten that it has moved."""
        return self.is_kept and not self.moved and not self.arriving


async def look(links: RedisConnections, server: str, job: str, shard: int) -> Copy | None:
    """What a server has of a shard, whether or not it would serve it."""
    key = job_key(job, shard)
    link = await links.link(server)
    redis = await link.at(key)
    format_, state, generation, *names = await redis.hmget(
        key, "format", "state", "generation", "moved", "moving", "leaving", "arriving", "nonce"
    )
    if format_ is None:
        return None
    moved, moving, leaving, arriving, nonce = ((name or b"").decode() for name in names)
    return Copy(server, moved, moving, leaving, arriving, nonce, int(generation or 0), state is not None)


async def step(links: RedisConnections, server: str, job: str, shard: int, operation: str, **given: Any) -> Any:
    """One step of a move, on this server."""
    return await (await links.link(server)).run(job_key(job, shard), operation, given)


async def call_shard(
    links: RedisConnections,
    server: str,
    job: str,
    shard: int,
    operation: str,
    given: Mapping[str, Any],
    *entries: bytes,
) -> tuple[str, Any]:
    """Call a shard, wherever it is: the server that has it, and its answer."""
    key = job_key(job, shard)
    visited: list[str] = []
    for _ in range(MOST_STEPS):
        redis: Any = None
        try:
            link = await links.link(server)
            redis = await link.at(key)
            return server, await link.run(key, operation, given, entries)
        except faults.RedisError as error:
            found = await next_server(links, server, job, shard, error, visited=visited)
            if found is None:
                raise await explain(error, redis, job, key) from error
            visited.append(server or links.names[0])
            server = found
    raise Unavailable(f"Redis: shard {shard} moves too often")


async def next_server(
    links: RedisConnections, server: str, job: str, shard: int, error: faults.RedisError, *, visited: Sequence[str] = ()
) -> str | None:
    """Where to send a call to that this server has refused, once what is in the way is settled; None if nothing was."""
    reason, *words = _refusal(str(error))
    try:
        server = server or links.names[0]
        if reason == "SHARDMOVED":
            if words[0] in visited:
                await _return(links, words[0], job, shard, server)
            return words[0]
        if reason == "SHARDARRIVING":
            return await _arriving(links, server, job, shard, *words)
        if reason == "SHARDLEFT":
            return await _left(links, server, job, shard, *words)
        if reason == "JOBMISSING" and not links.is_cluster:
            return await _missing(links, server, job, shard)
    except faults.RedisError as fault:
        # The one that was to be asked does not answer, or was asked at the wrong moment.
        told = translate(fault, job)
        raise told if isinstance(told, Unavailable) else Unavailable(str(told)) from fault
    return None


def _refusal(text: str) -> list[str]:
    for reason in ("SHARDMOVED", "SHARDARRIVING", "SHARDLEFT", "JOBMISSING"):
        _, found, rest = text.partition(reason)
        if found:
            # Redis adds the name of the script.
            return [reason, *rest.partition(" script: ")[0].rstrip(",").split()]
    return [""]


async def _arriving(links: RedisConnections, server: str, job: str, shard: int, source: str, nonce: str = "") -> str:
    """This server has a copy that was not served yet: it is the shard if its source has said so."""
    there = await look(links, source, job, shard)
    if there is not None and there.moved == server and there.nonce == nonce:
        is_open = await step(links, server, job, shard, "settle", nonce=nonce)
        # Otherwise this server has come back with a part of the copy, and the source takes the shard back.
        if is_open or not there.is_kept:
            return server
    if there is None:
        raise Unavailable(f"Redis: shard {shard} is on its way from {source} to {server}")
    if there.moved == server and there.is_kept:
        # What came here was forgotten, or a part of it.
        await step(links, source, job, shard, "reclaim", target=server, nonce=there.nonce)
    return source


async def _return(links: RedisConnections, server: str, job: str, shard: int, target: str) -> None:
    """Two servers name one another: the target has forgotten that the shard came to it, but not an earlier stay."""
    here, there = await look(links, server, job, shard), await look(links, target, job, shard)
    if here is None or there is None or not here.is_kept or here.moved != target:
        return
    if there.generation <= here.generation:
        await step(links, server, job, shard, "reclaim", target=target, nonce=here.nonce)


async def _left(links: RedisConnections, server: str, job: str, shard: int, target: str, run: str) -> str:
    """This server was started again, and may have forgotten that the shard has moved to the target."""
    here, there = await look(links, server, job, shard), await look(links, target, job, shard)
    if here is None:
        return server
    if there is not None and there.generation > here.generation:
        if not there.arriving:
            news = {"nonce": there.nonce, "generation": there.generation}
            await step(links, server, job, shard, "follow", target=target, run=run, **news)
            return server
        if not await step(links, target, job, shard, "kill", nonce=there.nonce):
            return server
    await step(links, server, job, shard, "confirm", target=target, run=run)
    return server


async def _missing(links: RedisConnections, server: str, job: str, shard: int) -> str | None:
    """This server does not have the shard: it may have forgotten that it came here."""
    fault: Exception | None = None
    copies: list[Copy] = []
    for name in await all_servers(links, job):
        try:
            copy = await look(links, name, job, shard)
        except faults.RedisError as error:
            fault = error
        else:
            copies += [copy] if copy is not None else []
    live = [copy for copy in copies if copy.is_live]
    if live:
        return max(live, key=lambda copy: copy.generation).server
    for copy in copies:
        if copy.is_kept and copy.moved == server:
            await step(links, copy.server, job, shard, "reclaim", target=server, nonce=copy.nonce)
            return copy.server
    if fault is not None:
        raise Unavailable(f"Redis: shard {shard} is on none of the servers that answer ({translate(fault, job)})")
    return None


async def all_servers(links: RedisConnections, job: str) -> list[str]:
    """The names of all servers that may have something of a job."""
    try:
        placement = (await find_root(links, job)).placement
    except (faults.RedisError, FrontierError):
        placement = ()
    return list(dict.fromkeys([*links.names, *filter(None, placement)]))


async def find_shard(links: RedisConnections, server: str, job: str, shard: int) -> str:
    """The server that has a shard and serves it."""
    found, _ = await call_shard(links, server, job, shard, "where", {})
    return found or links.names[0]


def gone(job: str, shard: int, server: str) -> JobMissing:
    """The error of a shard that its server has lost for good."""
    return JobMissing(
        f"shard {shard} of job {job!r} is not on {server} any more",
        hint="was this Redis emptied, or restarted without its data? Begin anew under another name",
    )
