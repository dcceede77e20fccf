"""A worker process: joins a running job by its folder, and leaves when the job is over or its owner is gone."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gossamer.assemble import worker
from gossamer.clock import SystemClock
from gossamer.engine.machine import Machine
from gossamer.engine.remote import RemoteFrontier, RemoteStore, connect
from gossamer.errors import OwnerGone
from gossamer.model import JobState
from gossamer.settings import build
from gossamer.sink.trail import Trail


def die_with(parent: int) -> None:
    """Have the kernel end this process with its parent: an orphan would go on fetching beside its successor."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        # It may have died before the kernel was told. In a container the parent may well be process 1.
        if os.getppid() != parent:
            os._exit(1)


def dies_with_us() -> Callable[[], None]:
    """The `preexec_fn` of a process that ends with this one."""
    return partial(die_with, os.getpid())


def leave_on_signals(stop: Callable[[], None], *, ctrl_c: bool = True) -> None:
    """Drain on the first signal, leave at once on the second; without `ctrl_c` that one is for the supervisor."""
    presses = 0

    def leave() -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            os._exit(130)
        stop()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, leave)
    loop.add_signal_handler(signal.SIGINT, leave if ctrl_c else (lambda: None))


async def join(folder: Path, *, name: str, supervised: int = 0) -> JobState:
    """Work for the job in `folder` until it is over, as one of `supervised` workers: Ctrl-C is their supervisor's."""
    connection, welcome = await connect(folder, worker=name)
    frontier, settings = RemoteFrontier(connection), build(welcome.settings)
    refused: Counter[str] = Counter()
    marker_path = Path(welcome.folder) / "handling" / name
    try:
        async with worker(
            frontier,
            RemoteStore(connection, refused),
            settings=settings,
            secret=welcome.secret,
            clock=SystemClock(),
            marker_path=marker_path,
            refused=refused,
            trail=Trail(Path(welcome.folder), name, most_bytes=settings.trail_bytes),
            machine=Machine(workers=supervised or 1),
        ) as engine:
            leave_on_signals(engine.stop, ctrl_c=not supervised)
            running = asyncio.create_task(engine.run())
            gone = asyncio.create_task(connection.gone.wait())
            await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if not running.done():
                # What this worker holds is void now: nothing more may be sent on its account.
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                raise OwnerGone("the crawl that this worker belongs to has ended")
            return running.result()
    finally:
        await frontier.aclose()
