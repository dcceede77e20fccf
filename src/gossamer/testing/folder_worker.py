"""A worker process of a job in a shared folder, for tests that kill it and for benchmarks.

python -m gossamer.testing.folder_worker folder:/path JOB NAME OUTPUT
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gossamer.clock import SystemClock
from gossamer.engine.commit import FleetStore
from gossamer.engine.links import Linker, RecentKeys
from gossamer.engine.supervision import take_marked_key
from gossamer.frontier.folder.frontier import open_folder
from gossamer.jobs.signals import leaving
from gossamer.jobs.worker import build_worker
from gossamer.model import JobState
from gossamer.settings import Settings
from gossamer.storage.segments import SegmentSink


async def submit(url: str, job: str, settings: Settings, seeds: list[str], *, state: JobState = "running") -> None:
    """Submit a job, without running a worker."""
    frontier = await open_folder(url, job, settings)
    try:
        linker = Linker(settings, frontier.secret, RecentKeys())
        await frontier.add([linker.seed(seed) for seed in seeds])
        await frontier.steer(state)
    finally:
        await frontier.aclose()


async def work(url: str, job: str, name: str, output: Path) -> JobState:
    """Run a worker until the job is finished."""
    frontier = await open_folder(url, job, worker=name)
    marker_path = output / "handling" / name
    try:
        key = take_marked_key(marker_path)
        await frontier.abandon(name, blamed=(key,) if key else ())
        store = FleetStore(frontier, [SegmentSink(output, name)])
        try:
            async with (
                build_worker(
                    frontier,
                    store,
                    settings=frontier.settings,
                    secret=frontier.secret,
                    clock=SystemClock(),
                    marker_path=marker_path,
                ) as engine,
                leaving(lambda _: engine.stop(), interrupt=engine.interrupt),
            ):
                return await engine.run()
        finally:
            await store.aclose()
    finally:
        await frontier.aclose()


if __name__ == "__main__":
    place, name_of_job, name_of_worker, out = sys.argv[1:]
    print(asyncio.run(work(place, name_of_job, name_of_worker, Path(out))))
