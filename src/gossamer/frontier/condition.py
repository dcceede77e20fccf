"""The condition of a fleet's store, before a job is put into it: reachable, in step with our clock, and how durable."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from gossamer.clock import Clock
from gossamer.errors import GossamerError
from gossamer.model import Finding

SKEW_SECONDS = 1.0
"""Leases go by the store's clock alone; more than this only makes times in records hard to compare."""


async def condition(url: str, *, clock: Clock) -> AsyncIterator[Finding]:
    """What is good, weak or bad about the stores at this address; nothing is written but a probe on a folder."""
    if url.startswith("folder:/"):
        async for found in _folder(url, clock):
            yield found
    elif url.startswith(("postgresql://", "postgres://", "mysql://", "mariadb://")):
        from gossamer.frontier.sql.places import addresses as databases

        for one in databases(url):
            async for found in _database(one, clock):
                yield found
    else:
        from gossamer.frontier.redis_link import addresses as servers

        for one in servers(url):
            async for found in _redis(one, clock):
                yield found


async def _redis(url: str, clock: Clock) -> AsyncIterator[Finding]:
    from gossamer.frontier.redis_job import check_server, connect, faults, translate
    from gossamer.frontier.redis_refusals import check_rights

    server = connect(url)
    try:
        mode = await check_server(server)
        about = await server.info("server") if mode else {}
        version = str(about.get("valkey_version") or about.get("redis_version", ""))
        name = "Valkey" if "valkey_version" in about else "Redis"
        if mode != "cluster":
            await check_rights(server)
        yield Finding("frontier", "good", f"{name} {version or 'of unknown version'}{f', {mode}' if mode else ''}")
        yield await _skew(clock, lambda: _redis_time(server))
        yield _kept_by_redis(await server.info("persistence"), await _option(server, "appendfsync"))
        memory = await server.info("memory")
        yield _room_in_redis(memory)
    except faults.RedisError as error:
        told = translate(error, "")
        yield Finding("frontier", "bad", str(told), told.hint or "is the server started, and its address right?")
    except GossamerError as error:
        yield Finding("frontier", "bad", str(error), error.hint)
    finally:
        await server.aclose()


async def _redis_time(server: Any) -> float:
    seconds, microseconds = await server.time()
    return float(seconds) + float(microseconds) / 1e6


async def _option(server: Any, name: str) -> str:
    from gossamer.frontier.redis_job import faults

    try:
        return str((await server.config_get(name)).get(name, ""))
    except faults.RedisError:
        return ""


def _kept_by_redis(persistence: dict[str, Any], appendfsync: str) -> Finding:
    if not persistence.get("aof_enabled"):
        return Finding(
            "durability",
            "weak",
            "no append-only file: a restart of Redis loses the job, or what came after the last snapshot",
            "CONFIG SET appendonly yes, and in redis.conf",
        )
    if persistence.get("aof_last_write_status", "ok") != "ok":
        return Finding("durability", "bad", "Redis cannot write its append-only file", "free its disk")
    if appendfsync == "always":
        return Finding("durability", "good", "what was acknowledged survives a power cut (appendfsync always)")
    how = f"appendfsync {appendfsync}" if appendfsync else "appendfsync unknown"
    return Finding(
        "durability", "good", f"survives a kill of Redis; a power cut may repeat fetches of the last second ({how})"
    )


def _room_in_redis(memory: dict[str, Any]) -> Finding:
    most, used = int(memory.get("maxmemory", 0)), int(memory.get("used_memory", 0))
    if not most:
        return Finding("memory", "good", f"{used / 1e6:,.0f} MB used, no limit set")
    room = (most - used) / 1e6
    says = f"room for {room:,.0f} MB, about {max(0.0, room) / 100:,.1f} M URLs"
    return Finding("memory", "good" if room > 100 else "weak", says, "" if room > 100 else "raise maxmemory")


async def _database(url: str, clock: Clock) -> AsyncIterator[Finding]:
    from gossamer.frontier.sql.job import dialect_of

    try:
        database = dialect_of(url)
        await asyncio.wait_for(database.connect(), 15.0)
    except GossamerError as error:
        yield Finding("frontier", "bad", str(error), error.hint)
        return
    except TimeoutError:
        yield Finding("frontier", "bad", "the database does not answer", "is it started, and its address right?")
        return
    try:
        ((version,),) = await database.ask("SELECT version()")
        yield Finding("frontier", "good", f"{database.server}, {str(version).partition(' (')[0]}")
        is_postgresql = database.server.startswith("postgresql")
        now = "EXTRACT(EPOCH FROM clock_timestamp())::float8" if is_postgresql else "UNIX_TIMESTAMP(NOW(6))"

        async def time() -> float:
            return float((await database.ask(f"SELECT {now}"))[0][0])

        yield await _skew(clock, time)
        weaknesses = await database.weaknesses()
        for what, mend in weaknesses:
            yield Finding("durability", "weak", what, mend)
        if not weaknesses:
            yield Finding("durability", "good", "what was acknowledged survives a kill and a power cut")
    except GossamerError as error:
        yield Finding("frontier", "bad", str(error), error.hint)
    finally:
        await database.close()


async def _folder(url: str, clock: Clock) -> AsyncIterator[Finding]:
    from gossamer.frontier.folder_share import TEMPORARY, Share, explained

    place = Path(url.removeprefix("folder:"))
    if not place.is_dir():
        yield Finding("frontier", "bad", f"{place} is not a folder", f"mkdir {place}, or mount it")
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".gossamer-doctor-", dir=place) as own:
            share = Share(Path(own))
            await asyncio.to_thread(share.make_folders, TEMPORARY)
            claims = [await asyncio.to_thread(share.claim, "claim", data) for data in (b"one", b"another")]
            if claims != [True, False]:
                mend = "share it by NFS 4 or sshfs; this kind of mount cannot be used"
                yield Finding("frontier", "bad", f"{place} lets two claim the same file", mend)
                return
            yield Finding("frontier", "good", f"{place}: of all who try, one can claim a file")
            yield await _skew(clock, lambda: asyncio.to_thread(share.time))
    except OSError as error:
        told = explained(error, place)
        yield Finding("frontier", "bad", str(told), told.hint)


async def _skew(clock: Clock, ask: Callable[[], Awaitable[float]]) -> Finding:
    before = clock.epoch()
    there = await ask()
    after = clock.epoch()
    # All that is known is that it was asked in between.
    skew = 0.0 if before <= there <= after else there - (before if there < before else after)
    if abs(skew) <= SKEW_SECONDS:
        return Finding(
            "clock", "good", f"in step with the store's ({skew:+.3f} s, asked within {after - before:.3f} s)"
        )
    where = "ahead of" if skew < 0 else "behind"
    says = f"this machine's clock is {abs(skew):,.1f} s {where} the store's"
    return Finding("clock", "weak", says, "run an NTP client on both (chrony, systemd-timesyncd)")
