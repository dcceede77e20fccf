"""Rows per second of sinks on servers, with batches as in a crawl's commits, from one worker and from several."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gossamer.model import PageRow, Record
from gossamer.settings import Settings
from gossamer.storage.registry import fleet_sinks
from gossamer.testing.servers import BucketServer, MariaServer, PostgresServer, RedisServer

BATCH = 512
"""Maximum size of a commit of the engine."""


def records(first: int, count: int, *, items: bool) -> list[Record]:
    """Typical pages, optionally with one item each."""
    return [
        Record(
            key=number * 7_919_717 % (1 << 62),
            token=1,
            page=PageRow(
                url=f"https://www.site{number % 997}.example/articles/{number}/a-title-of-a-length?page={number % 7}",
                status=200,
                depth=number % 9,
                title=f"Page {number} of the benchmark, with a title of the usual length",
                fetched_at=1_700_000_000.0 + number,
                elapsed=0.123,
                bytes=40_000,
                digest="5ba93c9db0cff93f52b521d7420e43f6eda2784f",
                links=100,
                referrer=f"https://www.site{number % 997}.example/",
            ),
            items=({"name": f"Item {number}", "price": 9.99, "tags": ["a", "b"]},) if items else (),
        )
        for number in range(first, first + count)
    ]


async def write(sink_name: str, folder: Path, batches: list[list[Record]]) -> None:
    """Write all of it from one worker."""
    (sink,) = fleet_sinks(Settings(sink=(sink_name,)), folder, secrets.token_hex(3))
    for batch in batches:
        await sink.write(batch)
    await sink.aclose()


def cpu_seconds(pid: int) -> float:
    """CPU of a server and its processes, including exited ones."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    spent = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            # A process that exits now counts for its parent.
            with suppress(FileNotFoundError, ProcessLookupError):
                spent += cpu_seconds(int(child))
    return spent


def rate(name: Callable[[], str], rows: int, workers: int, *, items: bool, server: int) -> tuple[float, float, float]:
    """Rows per second, and CPU microseconds per row of client and server."""
    parts = [
        [records(first, BATCH, items=items) for first in range(part * 10**7, part * 10**7 + rows // workers, BATCH)]
        for part in range(workers)
    ]
    count = sum(len(batch) for part in parts for batch in part)
    place = name()

    async def run() -> None:
        await asyncio.gather(*(write(place, Path(folder), part) for part in parts))

    with tempfile.TemporaryDirectory() as folder:
        began, spent, served = time.perf_counter(), time.process_time(), cpu_seconds(server)
        asyncio.run(run())
        seconds, ours = time.perf_counter() - began, time.process_time() - spent
        return count / seconds, ours / count * 1e6, (cpu_seconds(server) - served) / count * 1e6


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print(f"python {platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()}")
    with PostgresServer() as postgres, MariaServer() as maria, RedisServer() as redis, BucketServer() as buckets:
        os.environ.update(buckets.environment())
        buckets.make("bench")
        places = {
            ("postgresql", postgres.pid): lambda: f"{postgres.url}?table=t{secrets.token_hex(4)}",
            ("mysql (MariaDB)", maria.pid): lambda: f"{maria.url}?table=t{secrets.token_hex(4)}",
            ("redis+stream", redis.pid): lambda: (
                f"{redis.url.replace('redis:', 'redis+stream:')}?stream={secrets.token_hex(4)}"
            ),
            ("s3 (moto), of a fleet", buckets.pid): lambda: f"s3://bench/{secrets.token_hex(4)}",
        }
        for (title, server), name in places.items():
            for workers, items in ((1, False), (1, True), (4, False)):
                found = [rate(name, arguments.rows, workers, items=items, server=server) for _ in range(arguments.runs)]
                rates, ours, theirs = zip(*found, strict=True)
                what = f"{workers} worker{'s' * (workers > 1)}{', an item a page' * items}"
                print(
                    f"{title:22} {what:24} {statistics.median(rates):8,.0f} pages/s"
                    f" ({min(rates):,.0f} to {max(rates):,.0f}), CPU a page: {statistics.median(ours):.0f} us ours,"
                    f" {statistics.median(theirs):.0f} us the server's"
                )
    print(f"load at the end {os.getloadavg()}")


if __name__ == "__main__":
    main()
