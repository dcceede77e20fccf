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
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from gossamer.errors import ConfigError, FrontierError, Unavailable
from gossamer.frontier.outbox import wait_for_stable_run
from gossamer.frontier.placement import placement
from gossamer.frontier.redis.connection import RedisConnection, RedisConnections, addresses, find_root
from gossamer.frontier.redis.routing import Copy, all_servers, call_shard, find_shard, gone, look, step
from gossamer.frontier.redis.server import (
    UNKNOWN_RUN,
    RedisJobRecord,
    faults,
    job_key,
    no_pattern,
    root_key,
    server_run,
    translate,
    write_root,
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
                await self._with_retries(lambda s=shard, t=target: self._call(s, "announce", target=t))  # type: ignore[misc]
        await self._wait_for_stable_run(sources)

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
                    await self._wait_for_stable_run({place: None})
                    end = clock() + _PATIENCE_SECONDS
                keys += await self._move(place, wanted, shard)
                continue
            except (faults.RedisError, FrontierError) as error:
                # `_move` has given up its attempt. After a restart of the source, `_find` confirms it first.
                self._check_timeout(error, end)
            await asyncio.sleep(_RETRY_SECONDS)

    async def finish(self, places: list[str]) -> None:
        """Wait until no target can forget a shard, then delete what the sources have kept.

        A target that forgot during the wait no longer has a live record of the generation; its source keeps the data,
        `_find` makes the source reclaim the shard, and it is moved again. The placement is written last, as a hint for
        workers that join later."""
        while True:
            kept = [copy for shard in range(len(places)) for copy in await self._kept(shard)]
            await self._wait_for_stable_run(dict.fromkeys(copy.moved for _, copy in kept))
            for shard, copy in kept:
                there = await look(self._links, copy.moved, self._job, shard)
                # The generation distinguishes this copy from an older stay of the shard at the target.
                if there is not None and there.is_live and there.generation > copy.generation:
                    await self._delete_source(shard, copy)
            again = [shard for shard in range(len(places)) if await self._find(shard) != places[shard]]
            for shard in again:
                log.warning("%s has lost shard %d: moving it again", places[shard], shard)
                await self.settle(shard, places[shard])
            if not again and not [None for shard in range(len(places)) for _ in await self._kept(shard)]:
                break
        await self._announce_places(places)

    async def _find(self, shard: int) -> str:
        place = self._root.placement[shard] or self._links.names[0]
        if await self._with_retries(lambda: look(self._links, place, self._job, shard)) is None:
            for name in await all_servers(self._links, self._job):
                if await look(self._links, name, self._job, shard) is not None:
                    place = name
                    break
            else:
                raise gone(self._job, shard, place)
        return await self._with_retries(lambda: find_shard(self._links, place, self._job, shard))

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

    async def _wait_for_stable_run(self, servers: dict[str, None]) -> None:
        if servers:
            log.info("waiting until %s cannot lose it: %.0f s", ", ".join(servers), self._forget_seconds)
        await asyncio.gather(*(wait_for_stable_run(self._run_of(server), self._forget_seconds) for server in servers))

    def _run_of(self, server: str) -> Callable[[], Awaitable[str]]:
        async def run() -> str:
            try:
                found = await server_run((await self._links.link(server)).redis)
            except faults.RedisError as error:
                raise translate(error, self._job) from error
            if found == UNKNOWN_RUN:
                raise ConfigError(
                    f"this user may not ask {server} for INFO: a lost move would go unnoticed",
                    hint="ACL SETUSER name +info",
                )
            return found

        return run

    async def _with_retries(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Repeat the call while a server is unreachable or another mover is at work."""
        clock = asyncio.get_running_loop().time
        end = clock() + _PATIENCE_SECONDS
        while True:
            try:
                return await call()
            except (faults.RedisError, FrontierError) as error:
                self._check_timeout(error, end)
            await asyncio.sleep(_RETRY_SECONDS)

    def _check_timeout(self, error: faults.RedisError | FrontierError, end: float) -> None:
        """Raise errors that do not pass by themselves, and all errors once the patience is over."""
        translated = translate(error, self._job) if isinstance(error, faults.RedisError) else error
        if not isinstance(translated, Unavailable) or asyncio.get_running_loop().time() > end:
            raise translated from error
        log.debug("retrying the move: %s", translated)

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
            raise Unavailable(f"Redis: shard {shard} is being moved by another process, or its server was restarted")
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
            raise Unavailable(f"Redis: a server was restarted while shard {shard} was copied")
        await self._at(target, shard, "settle", nonce=nonce)
        return copied

    async def _renew(self, source: str, shard: int, claim: dict[str, Any]) -> None:
        """Renew the claim while the copy is made. If that fails for too long, the source goes on and `leave` fails."""
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                await self._at(source, shard, "renew", **claim)
            except (faults.RedisError, FrontierError) as error:
                log.debug("could not renew the claim on shard %d: %s", shard, error)

    async def _give_up(self, source: str, target: str, shard: int, claim: dict[str, Any]) -> None:
        # First the copy, so that nobody can open it, then the source. If a server does not answer, the claim expires.
        for server, operation in ((target, "kill"), (source, "stay")):
            try:
                await self._at(server, shard, operation, **claim)
            except (faults.RedisError, FrontierError) as error:
                log.debug("shard %d stays at %s: %s", shard, source, error)

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
            for names, entries in _parts(dumped):
                ends = [sum(map(len, entries[: at + 1])) for at in range(len(entries))]
                if not await there.run(key, "land", {**attempt, "names": names, "ends": ends}, entries):
                    return 0
            copied += len(dumped)
        record = await here.redis.dump(key)
        if record is None or not await there.run(key, "arrive", attempt, [record]):
            return 0
        return copied + 1

    async def _delete_source(self, shard: int, copy: Copy) -> None:
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


def _parts(dumped: list[tuple[bytes, bytes]]) -> list[tuple[list[str], list[bytes]]]:
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
