"""Scaling of a latency-bound crawl over 1 to 10 workers that share only a folder.

    python benchmarks/folder_scaling.py [--workers 1 2 4 8 10] [--pages 2400] [--rounds 1]      (as root)

See `_scaling.py` for the setup and the results. Each worker has its own network and mount namespace. The job is resumed
when every shard has an owner and no owner has changed for three seconds. The folder is in the temporary folder, usually
on a local disk: the results include the syncs of ten workers to one disk, but not the cost of a file server and its
network.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from _scaling import JOB, Speed, compare, stage
from gossamer.frontier.folder.frontier import open_folder

REST_SECONDS, MOST_SECONDS = 3.0, 120.0


async def shared_out(url: str, running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until each worker has shards, and no shard has changed its owner for a while."""
    frontier = await open_folder(url, JOB)
    began_at = since = time.monotonic()
    owners: list[str] = []
    while time.monotonic() < since + REST_SECONDS or "" in owners or len(set(owners)) < len(running):
        if time.monotonic() > began_at + MOST_SECONDS or any(process.poll() is not None for process in running):
            sys.exit(f"a worker failed, or the shards do not come to rest: {owners}")
        before, owners = owners, [view.server for view in await frontier.shards()]
        since = since if owners == before else time.monotonic()
        await asyncio.sleep(0.2)
    await frontier.aclose()


def crawl(workers: int, pages: int) -> Speed:
    with tempfile.TemporaryDirectory() as folder, stage(workers, pages) as scene:
        url = f"folder:{folder}"
        scene.submit(url, Path(folder))
        running = scene.hire(url)
        asyncio.run(shared_out(url, running))
        return scene.run(url, running)


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


if __name__ == "__main__":
    compare(__doc__.splitlines()[0], crawl, machine, [1, 2, 4, 8, 10])
