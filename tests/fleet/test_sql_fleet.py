"""Workers in separate processes on one database: kills lose nothing, and no two fetch the same page."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gossamer.frontier.sql.record import open_sql
from gossamer.settings import Settings
from gossamer.testing.harness import page
from gossamer.testing.servers import TABLES, SqlServer

SITES, PAGES = 12, 25
DELAY, LATENCY, LEASE = 0.02, 0.004, 2.0

WORKER = """
import asyncio, json, sys, time
from gossamer.errors import Unavailable
from gossamer.frontier.sql import open_sql
from gossamer.model import Outcome, Request

def links(key, pages):
    site, number = divmod(key, 1000)
    if number + 1 < pages:
        yield Request(f"http://{site}.example/{key + 1}", key + 1, f"{site}.example")

async def fetch(lease, frontier, log, pages, delay, latency):
    for request in lease.requests:
        arrived = time.time()
        await asyncio.sleep(latency)
        log.write(json.dumps([lease.site, request.key, arrived, time.time()]) + "\\n")
        log.flush()
        await asyncio.sleep(delay)
        await frontier.complete([Outcome(
            site=lease.site, lane=lease.lane, token=lease.token, key=request.key, status="done",
            links=tuple(links(request.key, pages)),
        )])

async def main(url, name, path, pages, delay, latency, seconds):
    frontier = await open_sql(url, "job", worker=name)
    await frontier.abandon(name)
    with open(path, "a") as log:
        while (grant := await frontier.lease(4, batch=4, seconds=seconds)).job != "finished":
            await asyncio.gather(*(fetch(lease, frontier, log, pages, delay, latency) for lease in grant.leases))
            if not grant.leases:
                await frontier.idle(grant)
    await frontier.aclose()

url, name, path, pages, *numbers = sys.argv[1:]
asyncio.run(main(url, name, path, int(pages), *map(float, numbers)))
"""


@pytest.fixture(scope="session", params=["postgres_server", "maria_server"])
def fleet_server(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def server(fleet_server: SqlServer) -> SqlServer:
    async def make() -> None:
        frontier = await open_sql(fleet_server.url, "job", Settings(delay=DELAY, max_deliveries=100))
        for table in reversed(TABLES):
            await frontier._database.run(
                lambda db, table=table: db.ask(f"DELETE FROM gossamer_{table}"),  # type: ignore[misc]
                whole=False,
            )
        await frontier.aclose()
        frontier = await open_sql(fleet_server.url, "job", Settings(delay=DELAY, max_deliveries=100))
        await frontier.add([page(site * 1000, f"{site}.example") for site in range(SITES)])
        await frontier.aclose()

    asyncio.run(make())
    return fleet_server


def hire(server: SqlServer, folder: Path, name: str) -> subprocess.Popen[bytes]:
    words = (server.url, name, str(folder / f"{name}.log"), str(PAGES), str(DELAY), str(LATENCY), str(LEASE))
    return subprocess.Popen([sys.executable, "-c", WORKER, *words])


def fetched(folder: Path) -> list[tuple[str, int, float, float]]:
    found = []
    for path in folder.glob("*.log"):
        for line in path.read_text().splitlines():
            try:
                found.append(tuple(json.loads(line)))
            except ValueError:
                # The last words of one that was killed.
                continue
    return found


def were_polite(folder: Path) -> None:
    """No site was fetched twice within its delay by any workers."""
    last: dict[str, float] = {}
    for site, _, arrived, left in sorted(fetched(folder), key=lambda entry: entry[2]):
        assert arrived >= last.get(site, 0.0) + DELAY * 0.99, site
        last[site] = left


def is_finished(server: SqlServer) -> None:
    async def look() -> None:
        frontier = await open_sql(server.url, "job")
        counts = await frontier.counts()
        assert (counts.done, counts.known, counts.queued, counts.leased) == (SITES * PAGES, SITES * PAGES, 0, 0)
        assert counts.finished
        assert counts.ready_sites == 0
        assert not any(view.ready for shard in await frontier.shards() for view in shard.regions.values())
        await frontier.aclose()

    asyncio.run(look())


def test_a_fleet_on_a_database_fetches_every_page_once_and_politely(server: SqlServer, tmp_path: Path) -> None:
    workers = [hire(server, tmp_path, f"w{number}") for number in range(4)]
    assert [worker.wait(100) for worker in workers] == [0] * 4
    pages = Counter(key for _, key, _, _ in fetched(tmp_path))
    assert set(pages.values()) == {1}
    assert len(pages) == SITES * PAGES
    were_polite(tmp_path)
    is_finished(server)


def test_killed_workers_on_a_database_lose_nothing(server: SqlServer, tmp_path: Path) -> None:
    chance = random.Random(5)
    workers = {f"w{number}": hire(server, tmp_path, f"w{number}") for number in range(3)}
    for _ in range(6):
        try:
            next(iter(workers.values())).wait(chance.uniform(0.3, 1.0))
        except subprocess.TimeoutExpired:
            pass
        name = chance.choice(sorted(workers))
        workers[name].kill()
        workers[name].wait()
        workers[name] = hire(server, tmp_path, name)
    assert [worker.wait(100) for worker in workers.values()] == [0] * 3
    pages = Counter(key for _, key, _, _ in fetched(tmp_path))
    assert len(pages) == SITES * PAGES
    were_polite(tmp_path)
    is_finished(server)
