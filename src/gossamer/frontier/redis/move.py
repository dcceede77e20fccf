"""Moves shards between Redis servers so that a power cut of either side loses nothing.

A server may come back from a failure without what it acknowledged in its last `forget_seconds`. No transaction spans
two servers, so for a while both have all data of a shard, and each may have forgotten what was agreed with the other.
The rules below keep exactly one of them in use (P1, P2), and lose neither the shard nor a link (P7):

1. Announce. The source stores `leaving` = target and keeps serving. The next step waits until the source has lived for
   `forget_seconds` on one run: from then on it cannot forget that the shard may have moved. If it restarts after that,
   its run differs, and it serves nothing until a client has asked the target (SHARDLEFT).
2. Copy. `depart` stops the calls at the source for as long as the mover renews the claim (`moving`, TRYAGAIN). If the
   mover dies, calls go on there after 15 s. All data go to the target, which does not serve them yet (`arriving`,
   SHARDARRIVING). The record goes last, with a `generation` one higher. Then `leave` writes `moved` at the source. It
   passes only if this attempt, named by its `nonce`, has stopped the calls all the time, and the source has not
   restarted. Then `settle` opens the copy at the target; if the mover is dead, the first client that finds `moved` at
   the source does it. The source keeps everything.
3. Wait until the target has lived for `forget_seconds` on one run since, and has a record of that generation.
4. Bury. Only now does the source delete the data. Its remaining record names the target.

The order matters at three points. The announcement is durable before anything is copied, or a source that forgets
`moved` would serve the shard again beside the target. The record arrives after the data, so a target that forgets has
all of the shard or no record. The source deletes after the target can no longer forget, so one complete copy exists at
any time.

The record at the target decides who has the shard. What a crash does:

| who | when | what follows |
|---|---|---|
| mover dies | before `leave` | calls go on at the source; the copy is never opened, and the next mover replaces it |
| mover dies | after `leave` | the shard is at the target; the next mover buries the source |
| source forgets | before `leave` | this attempt fails; clients find no open copy at the target and confirm the source |
| source forgets | `leave` | clients find the copy open, and follow it; or closed: they kill it and confirm the source |
| target forgets | before `leave` | another run: `land` and `arrive` are refused, and the mover begins again |
| target forgets | the shard, or a part | clients find it kept at the source, under `moved` = target, and reclaim it |
| both forget | the move | no open copy at the target: the source is confirmed, as if nobody had moved it |

Where the source is confirmed or reclaimed, lanes rest for the longest lease, as after every restart: workers may still
hold leases from the other copy (P5). Links that a forgotten copy had acknowledged are in outboxes under its run, and
are delivered again. Without the right to run INFO no run is known, and a source that forgets goes unnoticed: `spread`
then refuses to start.

Every step is a script of `lua/move.lua` that checks its own preconditions, so any number of movers and clients may take
steps at the same time, and any of them may be killed between two steps."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from gossamer.errors import ConfigError, FrontierError, JobMissing, Unavailable
from gossamer.frontier.outbox import outlive
from gossamer.frontier.placement import placement
from gossamer.frontier.redis.connection import RedisConnection, RedisConnections, addresses, find_root
from gossamer.frontier.redis.server import (
    UNKNOWN_RUN,
    RedisJobRecord,
    explain,
    faults,
    job_key,
    no_pattern,
    root_key,
    server_run,
    translate,
    write_root,
)

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
    """This server has a copy that is not open: open it if the source has left with the same nonce.

    Otherwise the source still has the shard, or takes it back from a target that has forgotten the newer attempt."""
    there = await look(links, source, job, shard)
    if there is not None and there.moved == server and there.nonce == nonce:
        is_open = await step(links, server, job, shard, "settle", nonce=nonce)
        # Not opened, though the source has left: this server lost the copy or a part of it, so the source reclaims.
        if is_open or not there.is_kept:
            return server
    if there is None:
        raise Unavailable(f"Redis: shard {shard} is on its way from {source} to {server}")
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
        hint="was this Redis emptied, or restarted without its data? Begin anew under another name",
    )


log = logging.getLogger("gossamer.frontier")
_STEP = 500
_STEP_BYTES = 8_000_000
_MOVING_SECONDS = 15
"""Seconds after which a source serves again when the mover has stopped renewing its claim."""
_RENEW_SECONDS = 3.0
_RETRY_SECONDS = 0.5
_PATIENCE_SECONDS = 60.0
"""Seconds for which a server that does not answer is asked again."""
_Answer = TypeVar("_Answer")


class RedisShardMove(NamedTuple):
    """A shard that is on its server now, and the number of keys copied for that."""

    shard: int
    source: str
    target: str
    keys: int


async def spread(url: str, job: str, *, forget_seconds: float | None = None) -> AsyncIterator[RedisShardMove]:
    """Move every shard of a job to its server among these, and yield where each is.

    Ends when no server can forget the moves any more. Finishes moves that were interrupted earlier. Interrupting it at
    any point is safe: run it again."""
    links = RedisConnections(addresses(url))
    try:
        root = await find_root(links, job)
        if links.is_cluster:
            raise ConfigError("a Redis Cluster moves its slots by itself", hint="use redis-cli --cluster rebalance")
        mover = _Mover(links, root, job, root.settings.forget_seconds if forget_seconds is None else forget_seconds)
        places = placement(len(root.placement), links.names)
        await mover.announce(places)
        for shard, wanted in enumerate(places):
            yield await mover.settle(shard, wanted)
        await mover.finish(places)
    except faults.RedisError as error:
        raise translate(error, job) from error
    finally:
        await links.aclose()


class _Mover:
    """One run of `spread`. It keeps no state that matters: everything that was decided is in the records."""

    def __init__(self, links: RedisConnections, root: RedisJobRecord, job: str, forget_seconds: float) -> None:
        self._links = links
        self._root = root
        self._job = job
        self._forget_seconds = forget_seconds

    async def announce(self, places: list[str]) -> None:
        """Announce all moves, then wait once until no source can forget its announcement.

        Shards that stay lose an old announcement. All sources wait at the same time, so the wait does not grow with
        the number of shards."""
        sources: dict[str, None] = {}
        for shard, wanted in enumerate(places):
            found = await self._find(shard)
            here = await look(self._links, found, self._job, shard)
            target = wanted if wanted != found else ""
            if target:
                sources[found] = None
                await self._links.link(target)
            if here is not None and here.leaving != target:
                await self._patiently(lambda s=shard, t=target: self._call(s, "announce", target=t))  # type: ignore[misc]
        await self._outlive(sources)

    async def settle(self, shard: int, wanted: str) -> RedisShardMove:
        """Move a shard to the server where it belongs, with as many attempts as it takes.

        After each attempt the loop looks again where the shard is, and believes only that: an attempt that failed here
        may have succeeded at the servers, or another mover may have moved the shard."""
        start, keys, clock = "", 0, asyncio.get_running_loop().time
        end = clock() + _PATIENCE_SECONDS
        while True:
            place = await self._find(shard)
            start = start or place
            if place == wanted:
                return RedisShardMove(shard, start, wanted, keys)
            try:
                there = await self._links.link(wanted)
                await write_root(there.redis, self._job, self._root.settings, self._root.placement, self._root.secret)
                here = await look(self._links, place, self._job, shard)
                if here is None or here.leaving != wanted:
                    # Another mover has moved it since the announcement: announce at its new place, and wait again.
                    await self._call(shard, "announce", target=wanted)
                    await self._outlive({place: None})
                    end = clock() + _PATIENCE_SECONDS
                keys += await self._move(place, wanted, shard)
                continue
            except (faults.RedisError, FrontierError) as error:
                # `_move` has given up its attempt. After a restart of the source, `_find` confirms it first.
                self._check_patience(error, end)
            await asyncio.sleep(_RETRY_SECONDS)

    async def finish(self, places: list[str]) -> None:
        """Wait until no target can forget a shard, then delete what the sources have kept.

        A target that forgot during the wait no longer has a live record of the generation; its source keeps the data,
        `_find` makes the source reclaim the shard, and it is moved again. The placement is written last, as a hint for
        workers that join later."""
        while True:
            kept = [copy for shard in range(len(places)) for copy in await self._kept(shard)]
            await self._outlive(dict.fromkeys(copy.moved for _, copy in kept))
            for shard, copy in kept:
                there = await look(self._links, copy.moved, self._job, shard)
                # The generation tells this copy from an older stay of the shard at the target.
                if there is not None and there.is_live and there.generation > copy.generation:
                    await self._bury(shard, copy)
            again = [shard for shard in range(len(places)) if await self._find(shard) != places[shard]]
            for shard in again:
                log.warning("%s has forgotten shard %d: it is moved again", places[shard], shard)
                await self.settle(shard, places[shard])
            if not again and not [None for shard in range(len(places)) for _ in await self._kept(shard)]:
                break
        await self._announce_places(places)

    async def _find(self, shard: int) -> str:
        place = self._root.placement[shard] or self._links.names[0]
        if await self._patiently(lambda: look(self._links, place, self._job, shard)) is None:
            for name in await all_servers(self._links, self._job):
                if await look(self._links, name, self._job, shard) is not None:
                    place = name
                    break
            else:
                raise gone(self._job, shard, place)
        return await self._patiently(lambda: find_shard(self._links, place, self._job, shard))

    async def _kept(self, shard: int) -> list[tuple[int, Copy]]:
        """The copies of a shard that are kept on servers that it has left."""
        place, found = await self._find(shard), []
        for name in await all_servers(self._links, self._job):
            copy = await look(self._links, name, self._job, shard)
            if copy is not None and copy.is_live and name != place:
                # It forgot that the shard left, and nobody has called it since: a call makes it follow.
                await find_shard(self._links, name, self._job, shard)
                copy = await look(self._links, name, self._job, shard)
            if copy is not None and copy.is_kept and copy.moved:
                found.append((shard, copy))
        return found

    async def _call(self, shard: int, operation: str, **given: Any) -> Any:
        place = self._root.placement[shard]
        return (await call_shard(self._links, place, self._job, shard, operation, given))[1]

    async def _outlive(self, servers: dict[str, None]) -> None:
        if servers:
            log.info("waiting until %s cannot forget it: %.0f s", ", ".join(servers), self._forget_seconds)
        await asyncio.gather(*(outlive(self._run_of(server), self._forget_seconds) for server in servers))

    def _run_of(self, server: str) -> Callable[[], Awaitable[str]]:
        async def run() -> str:
            try:
                found = await server_run((await self._links.link(server)).redis)
            except faults.RedisError as error:
                raise translate(error, self._job) from error
            if found == UNKNOWN_RUN:
                raise ConfigError(
                    f"this user may not ask {server} for INFO: nobody would notice that it has forgotten a move",
                    hint="ACL SETUSER name +info",
                )
            return found

        return run

    async def _patiently(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Repeat the call while a server is unreachable or another mover is at work."""
        clock = asyncio.get_running_loop().time
        end = clock() + _PATIENCE_SECONDS
        while True:
            try:
                return await call()
            except (faults.RedisError, FrontierError) as error:
                self._check_patience(error, end)
            await asyncio.sleep(_RETRY_SECONDS)

    def _check_patience(self, error: faults.RedisError | FrontierError, end: float) -> None:
        """Raise errors that do not pass by themselves, and all errors once the patience is over."""
        told = translate(error, self._job) if isinstance(error, faults.RedisError) else error
        if not isinstance(told, Unavailable) or asyncio.get_running_loop().time() > end:
            raise told from error
        log.debug("the move waits: %s", told)

    async def _move(self, source: str, target: str, shard: int) -> int:
        """Make one attempt; return the number of keys copied. Raises `Unavailable` if it must be made again.

        Order: `depart` stops the calls, `_copy` brings the data, `leave` makes the decision, `settle` opens the copy.
        Before `leave` everything can be given up. If the answer to `leave` is lost, the attempt is given up although it
        may have succeeded: the source has then left, the killed copy is missing at the target, and the next call
        makes the source reclaim the shard, which still has all data."""
        nonce = secrets.token_hex(8)
        claim = {"target": target, "nonce": nonce, "seconds": _MOVING_SECONDS}
        departed = await self._at(source, shard, "depart", **claim)
        if not departed:
            raise Unavailable(f"Redis: shard {shard} is moved by somebody else, or its server was started again")
        source_run, generation = departed[0].decode(), int(departed[1])
        renewing = asyncio.create_task(self._renew(source, shard, claim))
        left = False
        try:
            copied = await self._copy(source, target, shard, nonce, generation + 1)
            left = bool(copied and await self._at(source, shard, "leave", **claim, run=source_run))
        finally:
            renewing.cancel()
            await asyncio.wait((renewing,))
            if not left:
                await self._give_up(source, target, shard, claim)
        if not left:
            raise Unavailable(f"Redis: a server was started again while shard {shard} was copied")
        await self._at(target, shard, "settle", nonce=nonce)
        return copied

    async def _renew(self, source: str, shard: int, claim: dict[str, Any]) -> None:
        """Renew the claim while the copy is made. If that fails for too long, the source goes on and `leave` fails."""
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                await self._at(source, shard, "renew", **claim)
            except (faults.RedisError, FrontierError) as error:
                log.debug("the claim on shard %d was not renewed: %s", shard, error)

    async def _give_up(self, source: str, target: str, shard: int, claim: dict[str, Any]) -> None:
        # First the copy, so that nobody can open it, then the source. If a server does not answer, the claim expires.
        for server, operation in ((target, "kill"), (source, "stay")):
            try:
                await self._at(server, shard, operation, **claim)
            except (faults.RedisError, FrontierError) as error:
                log.debug("shard %d goes on at %s by itself: %s", shard, source, error)

    async def _copy(self, source: str, target: str, shard: int, nonce: str, generation: int) -> int:
        """Copy all keys to the target, which does not serve them yet; how many, or 0 if the target has restarted.

        Every step carries the nonce and the run of the target: after a restart some keys may be missing, and only a
        new attempt is complete. Keys of an older attempt or stay are deleted first, and the record is copied last."""
        key = job_key(self._job, shard)
        prefix = key.removesuffix("job")
        here, there = await self._links.link(source), await self._links.link(target)
        run = await self._at(target, shard, "prepare", source=source, nonce=nonce, generation=generation)
        if run is None:
            raise Unavailable(f"Redis: {target} has shard {shard} already")
        attempt = {"nonce": nonce, "run": run.decode()}
        async for some in _batches(there, prefix, key):
            if not await there.run(key, "clear", {**attempt, "names": _texts(some)}):
                return 0
        copied = 0
        async for some in _batches(here, prefix, key):
            reading = here.redis.pipeline(transaction=False)
            for name in some:
                reading.dump(name)
            dumped = [(name, data) for name, data in zip(some, await reading.execute()) if data is not None]
            for names, entries in _portions(dumped):
                ends = [sum(map(len, entries[: at + 1])) for at in range(len(entries))]
                if not await there.run(key, "land", {**attempt, "names": names, "ends": ends}, entries):
                    return 0
            copied += len(dumped)
        record = await here.redis.dump(key)
        if record is None or not await there.run(key, "arrive", attempt, [record]):
            return 0
        return copied + 1

    async def _bury(self, shard: int, copy: Copy) -> None:
        # The record first: a shard without its state is never served or reclaimed, however many keys are left.
        given = {"target": copy.moved, "nonce": copy.nonce}
        if not await self._at(copy.server, shard, "bury", **given):
            return
        key = job_key(self._job, shard)
        link = await self._links.link(copy.server)
        async for some in _batches(link, key.removesuffix("job"), key):
            await link.run(key, "clear", {**given, "names": _texts(some)})

    async def _at(self, server: str, shard: int, operation: str, **given: Any) -> Any:
        return await step(self._links, server, self._job, shard, operation, **given)

    async def _announce_places(self, places: list[str]) -> None:
        """Write the placement to all servers, so that workers that join later find the shards at once."""
        values = {"placement": msgspec.json.encode(places), "made": 1}
        for server in await all_servers(self._links, self._job):
            link = await self._links.link(server)
            await write_root(link.redis, self._job, self._root.settings, places, self._root.secret)
            await link.redis.hset(root_key(self._job), mapping=values)


def _texts(names: list[bytes]) -> list[str]:
    return [name.decode("utf-8", "surrogateescape") for name in names]


def _portions(dumped: list[tuple[bytes, bytes]]) -> list[tuple[list[str], list[bytes]]]:
    """Group keys and their data into parts of a size that one script takes."""
    found: list[tuple[list[str], list[bytes]]] = []
    size = _STEP_BYTES
    for name, data in dumped:
        if size + len(data) > _STEP_BYTES:
            found.append(([], []))
            size = 0
        found[-1][0].append(_texts([name])[0])
        found[-1][1].append(data)
        size += len(data)
    return found


async def _batches(link: RedisConnection, prefix: str, record: str) -> AsyncIterator[list[bytes]]:
    """All keys of a shard except its record, in batches. SCAN does not block the server for others."""
    some: list[bytes] = []
    async for key in link.redis.scan_iter(f"{no_pattern(prefix)}*", count=_STEP):
        if key != record.encode():
            some.append(key)
        if len(some) >= _STEP:
            yield some
            some = []
    if some:
        yield some
