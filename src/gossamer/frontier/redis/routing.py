"""Sends each call to the server that has the shard, and follows shards that have moved between Redis servers.

A server refuses calls on a shard that it does not serve, and says why. The client then takes the step that the refusal
calls for: it follows the shard, opens the copy at the target, or confirms the source. `move.py` has the protocol, and
the reasons for its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gossamer.errors import FrontierError, JobMissing, Unavailable
from gossamer.frontier.redis.connection import RedisConnections, find_root
from gossamer.frontier.redis.server import explain, faults, job_key, translate

MOST_STEPS = 12
"""Servers that one call tries in turn before it gives up; shards move seldom."""


class Copy(NamedTuple):
    """What one server stores of a shard."""

    server: str
    moved: str
    moving: str
    leaving: str
    arriving: str
    nonce: str
    generation: int
    is_kept: bool
    """Whether the data are there, not only a record that names the next server."""

    @property
    def is_live(self) -> bool:
        """Whether this copy would be served, unless the server has forgotten that the shard has moved."""
        return self.is_kept and not self.moved and not self.arriving


async def look(links: RedisConnections, server: str, job: str, shard: int) -> Copy | None:
    """Read what a server stores of a shard, whether or not it would serve it; None if nothing."""
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
    """Run one step of a move on this server."""
    return await (await links.link(server)).run(job_key(job, shard), operation, given)


async def call_shard(
    links: RedisConnections,
    server: str,
    job: str,
    shard: int,
    operation: str,
    given: Mapping[str, Any],
    *entries: bytes,
    repeats: bool = True,
) -> tuple[str, Any]:
    """Call a shard wherever it is; return the server that has it and its answer.

    A refusal by the script has changed nothing, so the call may go to the next server. `visited` detects two servers
    that name each other."""
    key = job_key(job, shard)
    visited: list[str] = []
    for _ in range(MOST_STEPS):
        redis: Any = None
        try:
            link = await links.link(server)
            redis = await link.at(key)
            return server, await link.run(key, operation, given, entries, repeats=repeats)
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
    """The server to send a refused call to, after taking the step that the refusal calls for; None for other errors.

    An error on the way (the other server is down, or somebody else took the step) means that nobody may decide now:
    it becomes `Unavailable`, and the caller retries. Deciding without the other side could put two copies in use."""
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
        # The other server does not answer, or its state changed between two steps.
        translated = translate(fault, job)
        raise translated if isinstance(translated, Unavailable) else Unavailable(str(translated)) from fault
    return None


def _refusal(text: str) -> list[str]:
    for reason in ("SHARDMOVED", "SHARDARRIVING", "SHARDLEFT", "JOBMISSING"):
        _, found, rest = text.partition(reason)
        if found:
            # Redis adds the name of the script.
            return [reason, *rest.partition(" script: ")[0].rstrip(",").split()]
    return [""]


async def _arriving(links: RedisConnections, server: str, job: str, shard: int, source: str, nonce: str = "") -> str:
    """This server has a copy that is not open: open it if the source has left with the same nonce.

    Otherwise the source still has the shard, or takes it back from a target that has forgotten the newer attempt."""
    there = await look(links, source, job, shard)
    if there is not None and there.moved == server and there.nonce == nonce:
        is_open = await step(links, server, job, shard, "settle", nonce=nonce)
        # Not opened, though the source has left: this server lost the copy or a part of it, so the source reclaims.
        if is_open or not there.is_kept:
            return server
    if there is None:
        raise Unavailable(f"Redis: shard {shard} is being moved from {source} to {server}")
    if there.moved == server and there.is_kept:
        # The copy that the source left for is not here, or not whole: this server has forgotten it.
        await step(links, source, job, shard, "reclaim", target=server, nonce=there.nonce)
    return source


async def _return(links: RedisConnections, server: str, job: str, shard: int, target: str) -> None:
    """Two servers name each other: the target forgot that the shard came back, but not that it left long ago.

    The lower generation at the target proves that. The source still has all data, and reclaims the shard."""
    here, there = await look(links, server, job, shard), await look(links, target, job, shard)
    if here is None or there is None or not here.is_kept or here.moved != target:
        return
    if there.generation <= here.generation:
        await step(links, server, job, shard, "reclaim", target=target, nonce=here.nonce)


async def _left(links: RedisConnections, server: str, job: str, shard: int, target: str, run: str) -> str:
    """This server restarted after the announcement, and may have forgotten that the shard left: ask the target.

    An open copy of a higher generation there has the shard, and this server follows it. A closed copy is killed first,
    so that nobody can open it later, and only then this server is confirmed. If the kill comes too late, somebody has
    opened the copy: the call is sent here again, and the next round follows it."""
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
    """This server has no record of the shard: look on all others.

    A live copy wins, the highest generation first. Without one, a server that left the shard for this one reclaims it:
    this server has forgotten the arrival. None only if every server answered, since a silent one may have the shard."""
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
    """The servers that may store something of a job: those given, and those of the last known placement."""
    try:
        placement = (await find_root(links, job)).placement
    except (faults.RedisError, FrontierError):
        placement = ()
    return list(dict.fromkeys([*links.names, *filter(None, placement)]))


async def find_shard(links: RedisConnections, server: str, job: str, shard: int) -> str:
    """The server that serves a shard, after settling whatever is in the way."""
    found, _ = await call_shard(links, server, job, shard, "where", {})
    return found or links.names[0]


def gone(job: str, shard: int, server: str) -> JobMissing:
    """The error for a shard that no server has any more."""
    return JobMissing(
        f"shard {shard} of job {job!r} is not on {server} any more",
        hint="was this Redis emptied, or restarted without its data? Start a new job under another name",
    )
