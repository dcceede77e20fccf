"""Moves shards between Redis servers so that a power cut of either side loses nothing.

A server may come back from a failure without what it acknowledged in its last `forget_seconds`. So for a while two
servers have all data of a shard, and each may have forgotten what was agreed with the other. These rules keep one of
them, and never two, in use, and lose neither the shard nor a link:

1. Announce. The source notes `leaving` = target, and goes on. The next step waits until the source has lived for
   `forget_seconds` on one run: from then on it cannot forget that it may have moved. A source that was started again
   since (its run is another one) serves nothing before somebody has asked the target: SHARDLEFT.
2. Copy. `depart` stops the calls at the source for as long as the mover renews it (`moving`, TRYAGAIN); if the mover
   dies, they go on there after some seconds. All data go to the target, which keeps them closed (`arriving`,
   SHARDARRIVING), and the record comes last, with the `generation` one higher. Then `leave` writes `moved` at the
   source. It passes only if this attempt, named by its `nonce`, has stopped the calls all the time, and the source was
   not started again. Then `settle` opens the copy at the target; if the mover is dead, the first client does it, once
   it has seen `moved` at the source. The source keeps everything.
3. Wait until the target has lived for `forget_seconds` on one run since, and has a record of that generation.
4. Bury. Only then the source deletes the data; the record that stays names the target.

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

Lanes rest for one lease where the source is confirmed or reclaimed, as after every restart. Links that a forgotten copy
had acknowledged are in outboxes under its run, and are delivered again. Without the right to ask INFO no run is known,
and a source that forgets is not noticed: `spread` then refuses to begin.

The protocol is that of `redis_move`. Every step is a script that looks for itself, so that any number of clients may
take them at once, and any of them may be killed in between."""

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


log = logging.getLogger("gossamer.frontier")
_STEP = 500
_STEP_BYTES = 8_000_000
_MOVING_SECONDS = 15
"""A source whose mover has not renewed its claim for this long goes on by itself."""
_RENEW_SECONDS = 3.0
_RETRY_SECONDS = 0.5
_PATIENCE_SECONDS = 60.0
"""How long servers that do not answer are asked again."""
_Answer = TypeVar("_Answer")


class RedisShardMove(NamedTuple):
    """A shard that is on its server now, and how many keys had to be brought there."""

    shard: int
    source: str
    target: str
    keys: int


async def spread(url: str, job: str, *, forget_seconds: float | None = None) -> AsyncIterator[RedisShardMove]:
    """Bring every shard of a job to its server among these, and say where each is.

    It ends when no server can forget any more that they have moved. What was interrupted is finished first."""
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
    def __init__(self, links: RedisConnections, root: RedisJobRecord, job: str, forget_seconds: float) -> None:
        self._links = links
        self._root = root
        self._job = job
        self._forget_seconds = forget_seconds

    async def announce(self, places: list[str]) -> None:
        """Have every source know that its shards may leave, for good."""
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
        """Have a shard on the server that it belongs to."""
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
                    # Somebody else has moved it since the announcement was made.
                    await self._call(shard, "announce", target=wanted)
                    await self._outlive({place: None})
                    end = clock() + _PATIENCE_SECONDS
                keys += await self._move(place, wanted, shard)
                continue
            except (faults.RedisError, FrontierError) as error:
                # What was begun is given up; after a restart of the source it has to be confirmed first.
                self._check_patience(error, end)
            await asyncio.sleep(_RETRY_SECONDS)

    async def finish(self, places: list[str]) -> None:
        """Wait until no target can forget a shard, then delete what the sources have kept."""
        while True:
            kept = [copy for shard in range(len(places)) for copy in await self._kept(shard)]
            await self._outlive(dict.fromkeys(copy.moved for _, copy in kept))
            for shard, copy in kept:
                there = await look(self._links, copy.moved, self._job, shard)
                # A target may have come back with a part of the copy, under a record that says of which generation.
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
        """The copies of a shard on servers that it has left."""
        place, found = await self._find(shard), []
        for name in await all_servers(self._links, self._job):
            copy = await look(self._links, name, self._job, shard)
            if copy is not None and copy.is_live and name != place:
                # It has forgotten that it was left, and nobody has called it since.
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
        """Call again while a server is away, or another mover is at work."""
        clock = asyncio.get_running_loop().time
        end = clock() + _PATIENCE_SECONDS
        while True:
            try:
                return await call()
            except (faults.RedisError, FrontierError) as error:
                self._check_patience(error, end)
            await asyncio.sleep(_RETRY_SECONDS)

    def _check_patience(self, error: faults.RedisError | FrontierError, end: float) -> None:
        """Raise what does not pass by itself, or has not in time."""
        told = translate(error, self._job) if isinstance(error, faults.RedisError) else error
        if not isinstance(told, Unavailable) or asyncio.get_running_loop().time() > end:
            raise told from error
        log.debug("the move waits: %s", told)

    async def _move(self, source: str, target: str, shard: int) -> int:
        """One attempt; how many keys it has brought there, or 0 if it has to be made again."""
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
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                await self._at(source, shard, "renew", **claim)
            except (faults.RedisError, FrontierError) as error:
                log.debug("the claim on shard %d was not renewed: %s", shard, error)

    async def _give_up(self, source: str, target: str, shard: int, claim: dict[str, Any]) -> None:
        for server, operation in ((target, "kill"), (source, "stay")):
            try:
                await self._at(server, shard, operation, **claim)
            except (faults.RedisError, FrontierError) as error:
                log.debug("shard %d goes on at %s by itself: %s", shard, source, error)

    async def _copy(self, source: str, target: str, shard: int, nonce: str, generation: int) -> int:
        """Bring all keys to the target, which does not serve them yet; how many, or 0 if it was started again."""
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
        """Tell all servers where the shards are: those that join later need not ask around."""
        values = {"placement": msgspec.json.encode(places), "made": 1}
        for server in await all_servers(self._links, self._job):
            link = await self._links.link(server)
            await write_root(link.redis, self._job, self._root.settings, places, self._root.secret)
            await link.redis.hset(root_key(self._job), mapping=values)


def _texts(names: list[bytes]) -> list[str]:
    return [name.decode("utf-8", "surrogateescape") for name in names]


def _portions(dumped: list[tuple[bytes, bytes]]) -> list[tuple[list[str], list[bytes]]]:
    """Keys with their data in parts that one script takes at once."""
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
    """All keys of a shard but its record."""
    some: list[bytes] = []
    async for key in link.redis.scan_iter(f"{no_pattern(prefix)}*", count=_STEP):
        if key != record.encode():
            some.append(key)
        if len(some) >= _STEP:
            yield some
            some = []
    if some:
        yield some
