"""The condition of a fleet's store, before a job is put into it: reachable, in step with our clock, and how durable."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from gossamer.clock import Clock
from gossamer.errors import GossamerError
from gossamer.frontier.clocks import skew
from gossamer.model import Finding
from gossamer.settings import Settings


async def condition(
    url: str, *, clock: Clock, forget_seconds: float = Settings().forget_seconds
) -> AsyncIterator[Finding]:
    """What is good, weak or bad about the stores at this address; nothing is written but a probe on a folder."""
    if url.startswith("folder:/"):
        async for found in _folder(url, clock):
            yield found
    elif url.startswith(("postgresql://", "postgres://", "mysql://", "mariadb://")):
        from gossamer.frontier.sql.places import addresses as databases

        several = databases(url)
        for one in several:
            async for found in _database(one, clock, several=len(several) > 1, forget_seconds=forget_seconds):
                yield found
    else:
        from gossamer.frontier.redis_condition import condition as of_redis

        async for found in of_redis(url, clock=clock, forget_seconds=forget_seconds):
            yield found


async def _database(url: str, clock: Clock, *, several: bool, forget_seconds: float) -> AsyncIterator[Finding]:
    from gossamer.frontier.sql.job import dialect_of

    try:
        database = dialect_of(url)
    except GossamerError as error:
        yield Finding("frontier", "bad", str(error), error.hint)
        return
    try:
        await asyncio.wait_for(database.connect(), 15.0)
        ((version,),) = await database.ask("SELECT version()")
        yield Finding("frontier", "good", f"{database.server}, {str(version).partition(' (')[0]}")
        is_postgresql = database.server.startswith("postgresql")
        now = "EXTRACT(EPOCH FROM clock_timestamp())::float8" if is_postgresql else "UNIX_TIMESTAMP(NOW(6))"

        async def time() -> float:
            return float((await database.ask(f"SELECT {now}"))[0][0])

        yield await skew(clock, time)
        whose = f"{database.server}: " if several else ""
        weaknesses = await database.weaknesses()
        for what, mend in weaknesses:
            yield Finding("durability", "weak", whose + what, mend)
        if not weaknesses:
            yield Finding("durability", "good", f"{whose}what was acknowledged survives a kill and a power cut")
        if count := await database.standbys():
            what = "its asynchronous standby" if count == 1 else f"one of its {count} asynchronous standbys"
            most = f" if that lacks at most {forget_seconds:g} s (forget_seconds)" if several else ""
            says = f"{whose}a fail-over to {what} repeats the pages that are missing there, and loses none{most}"
            yield Finding("standbys", "good", says)
    except TimeoutError:
        yield Finding("frontier", "bad", "the database does not answer", "is it started, and its address right?")
    except Exception as error:
        explained = error if isinstance(error, GossamerError) else database.explain(error)
        if explained is None:
            raise
        yield Finding("frontier", "bad", str(explained), explained.hint)
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
            yield await skew(clock, lambda: asyncio.to_thread(share.time))
    except OSError as error:
        told = explained(error, place)
        yield Finding("frontier", "bad", str(told), told.hint)
