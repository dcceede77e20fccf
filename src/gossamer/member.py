"""A worker process: joins a running job by its folder, and leaves when the job is over or its owner is gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from gossamer.assemble import build_worker
from gossamer.clock import SystemClock
from gossamer.engine.concurrency import Machine
from gossamer.engine.remote import OwnerConnection, RemoteFrontier, RemoteStore, connect
from gossamer.engine.run import Engine
from gossamer.errors import OwnerGone
from gossamer.leaving import leaving
from gossamer.model import JobState
from gossamer.settings import build
from gossamer.storage.request_log import RequestLog


async def join(folder: Path, *, name: str, supervised: int = 0) -> JobState:
    """Work for the job in `folder` until it is over, as one of `supervised` workers: Ctrl-C is their supervisor's."""
    connection, welcome = await connect(folder, worker=name)
    frontier, settings = RemoteFrontier(connection), build(welcome.settings)
    refused: Counter[str] = Counter()
    marker_path = Path(welcome.folder) / "handling" / name
    try:
        async with (
            build_worker(
                frontier,
                RemoteStore(connection, refused),
                settings=settings,
                secret=welcome.secret,
                clock=SystemClock(),
                marker_path=marker_path,
                refused=refused,
                trail=RequestLog(Path(welcome.folder), name, most_bytes=settings.trail_bytes),
                machine=Machine(workers=supervised or 1),
            ) as engine,
            leaving(lambda _: engine.stop(), interrupt=engine.interrupt, settings=settings, ctrl_c=not supervised),
        ):
            return await _until_gone(engine, connection)
    finally:
        await frontier.aclose()


async def _until_gone(engine: Engine, connection: OwnerConnection) -> JobState:
    """Run to the end, or until the owner is gone."""
    running = asyncio.create_task(engine.run())
    gone = asyncio.create_task(connection.gone.wait())
    try:
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise OwnerGone("the crawl that this worker belongs to has ended")
        return running.result()
    finally:
        # What this worker holds is void now: nothing more may be sent on its account.
        gone.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
