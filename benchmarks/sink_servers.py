"""Rows a second that sinks on servers take: batches of a crawl's commits, from one worker and from several."""

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
from pathlib import Path

from gossamer.model import PageRow, Record
from gossamer.settings import Settings
from gossamer.sink import fleet_sinks
from gossamer.testing.buckets import BucketServer
from gossamer.testing.servers import RedisServer
from gossamer.testing.sqlservers import MariaServer, PostgresServer

BATCH = 512
"""What the engine commits at once, at most."""


def records(first: int, count: int, *, items: bool) -> list[Record]:
    """Pages as crawls have them, with one item each if asked for."""
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


def rate(name: Callable[[], str], rows: int, workers: int, *, items: bool) -> tuple[float, float]:
    """Rows a second, and microseconds of our CPU a row."""
    parts = [
        [records(first, BATCH, items=items) for first in range(part * 10**7, part * 10**7 + rows // workers, BATCH)]
        for part in range(workers)
    ]
    count = sum(len(batch) for part in parts for batch in part)
    place = name()

    async def run() -> None:
        await asyncio.gather(*(write(place, Path(folder), part) for part in parts))

    with tempfile.TemporaryDirectory() as folder:
        began, spent = time.perf_counter(), time.process_time()
        asyncio.run(run())
        return count / (time.perf_counter() - began), (time.process_time() - spent) / count * 1e6


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
            "postgresql": lambda: f"{postgres.url}?table=t{secrets.token_hex(4)}",
            "mysql (MariaDB)": lambda: f"{maria.url}?table=t{secrets.token_hex(4)}",
            "redis+stream": lambda: f"{redis.url.replace('redis:', 'redis+stream:')}?stream={secrets.token_hex(4)}",
            "s3 (moto), of a fleet": lambda: f"s3://bench/{secrets.token_hex(4)}",
        }
        for title, name in places.items():
            for workers, items in ((1, False), (1, True), (4, False)):
                found = [rate(name, arguments.rows, workers, items=items) for _ in range(arguments.runs)]
                rates, costs = zip(*found, strict=True)
                what = f"{workers} worker{'s' * (workers > 1)}{', an item a page' * items}"
                print(
                    f"{title:22} {what:24} {statistics.median(rates):8,.0f} pages/s"
                    f" ({min(rates):,.0f} to {max(rates):,.0f}), {statistics.median(costs):.0f} us of our CPU a page"
                )
    print(f"load at the end {os.getloadavg()}")


if __name__ == "__main__":
    main()
