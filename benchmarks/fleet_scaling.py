"""Scaling of a latency-bound crawl over 1, 2, 4, and 8 workers on Redis, each in its own network namespace.

    python benchmarks/fleet_scaling.py [--workers 1 2 4 8] [--pages 2400] [--rounds 1]      (as root)

See `_scaling.py` for the setup and the results. Redis runs on the host side of the bridge.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import redis

from _fleet import machine, until
from _scaling import Speed, compare, stage
from gossamer.testing.servers import RedisServer

PASSWORD = "bench"


def crawl(workers: int, pages: int) -> Speed:
    with (
        stage(workers, pages) as scene,
        RedisServer(password=PASSWORD, bind=f"127.0.0.1 {scene.namespaces.address}") as server,
        tempfile.TemporaryDirectory() as folder,
        redis.Redis.from_url(server.url) as store,
    ):
        scene.submit(server.url, Path(folder))
        running = scene.hire(f"redis://:{PASSWORD}@{scene.namespaces.address}:{server.port}/0")
        wanted = {scene.namespaces.inside(number) for number in range(workers)}
        until(lambda: wanted <= {client["addr"].rpartition(":")[0] for client in store.client_list()}, *running)
        time.sleep(2)
        return scene.run(server.url, running, store=[server.pid])


def server_machine() -> str:
    with RedisServer() as server:
        return machine(server)


if __name__ == "__main__":
    compare(__doc__.splitlines()[0], crawl, server_machine, [1, 2, 4, 8])
