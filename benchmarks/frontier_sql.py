"""The frontier in PostgreSQL and MariaDB alone: CPU a page of client and server, clients side by side, bytes a URL.

    python benchmarks/frontier_sql.py [--servers postgresql mariadb] [--urls 1e6] [--clients 1 4] [--weigh 2e5]

64 pages a batch, 50 links a page, 15 % of them new; lease, complete and add are counted, making the links is not.
Three cases: "all" sends every link; "cached" drops those that the worker's memory of recent keys knows, as workers do
(links repeat at random here, which is the worst case for it); "new" sends new links only, which is what a memory of all
keys would do. Clients side by side are processes, each with the case "new"; their throughput is of wall time, with
the making of links in it. Servers run with their default durability and 1 GB of buffers, and are
given time to tidy up between the filling and the measuring.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import subprocess
import sys
import time
from pathlib import Path

from gossamer import urls
from gossamer.engine.recent import Recent
from gossamer.frontier.sql import SqlFrontier, open_sql
from gossamer.model import Outcome, Request
from gossamer.settings import Settings
from gossamer.testing.sqlservers import MariaServer, PostgresServer, SqlServer

PAGES, LINKS, NEW, BATCH, SITES = 6_400, 50, 0.15, 64, 1000
SETTINGS = Settings(delay=0, robots=False)
TICKS = os.sysconf("SC_CLK_TCK")


def request(secret: bytes, number: int, site: int | None = None) -> Request:
    host = f"www.site-{number % SITES if site is None else site:04d}.example"
    url = f"https://{host}/articles/{number:09d}/title-words"
    return Request(url, urls.fingerprint(secret, url), host, depth=1)


def server_cpu(server: SqlServer) -> float:
    """CPU seconds of all processes of a server."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if server.pid in (int(path.parts[2]), int(fields[1])):
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


def start(kind: str) -> SqlServer:
    if kind == "postgresql":
        return PostgresServer(
            shared_buffers="1GB", max_wal_size="4GB", wal_compression="off", checkpoint_timeout="15min"
        )
    return MariaServer(innodb_buffer_pool_size="1G", innodb_log_file_size="1G")


def size(server: SqlServer) -> int:
    if isinstance(server, PostgresServer):
        return int(server.ask("SELECT pg_database_size('gossamer')")[0][0])
    server.ask("ANALYZE TABLE gossamer_seen, gossamer_queue, gossamer_done")
    rows = server.ask(
        "SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = 'gossamer'"
    )
    return int(rows[0][0])


def _done(site: str, lane: int, token: int, key: int, links: tuple[Request, ...] = ()) -> Outcome:
    return Outcome(site=site, lane=lane, token=token, key=key, status="done", code=200, links=links)


async def fill(frontier: SqlFrontier, known: int) -> None:
    for first in range(0, known, 10_000):
        await frontier.add([request(frontier.secret, number) for number in range(first, min(first + 10_000, known))])


def settle(server: SqlServer) -> None:
    """Have the server do what the filling has left to do, so that it is not counted as of the pages."""
    if isinstance(server, PostgresServer):
        server.ask("VACUUM ANALYZE")
        server.ask("CHECKPOINT")
    else:
        server.ask("ANALYZE TABLE gossamer_seen, gossamer_queue")
        time.sleep(2)


async def measure(server: SqlServer, known: int) -> None:
    frontier = await open_sql(server.url, f"benchmark-{known}", SETTINGS, worker="bench")
    await fill(frontier, known)
    await asyncio.to_thread(settle, server)
    results = []
    following = known
    for case in ("all", "cached", "new"):
        client, served, wall, following = await pages(frontier, server, known, following, case)
        results.append(f"{case} {client + served:.0f} ({client:.0f} + {served:.0f}, wall {wall:.0f})")
    print(f"{known:>10,}  {'  '.join(results)}  conflicts {frontier.conflicts}", flush=True)
    await frontier.aclose()


async def pages(
    frontier: SqlFrontier, server: SqlServer, known: int, following: int, case: str
) -> tuple[float, float, float, int]:
    """Microseconds a page of the client and of the server."""
    chance = random.Random(7)
    recent = Recent()
    count, cpu, wall = 0, 0.0, 0.0
    before = server_cpu(server)
    while count < PAGES:
        started, began = time.process_time(), time.perf_counter()
        grant = await frontier.lease(2, batch=BATCH // 2, seconds=60)
        cpu, wall = cpu + time.process_time() - started, wall + time.perf_counter() - began
        outcomes = []
        for lease in grant.leases:
            for leased in lease.requests:
                fresh = sum(chance.random() < NEW for _ in range(LINKS))
                numbers = [*range(following, following + fresh)]
                if case != "new":
                    numbers += [chance.randrange(known) for _ in range(LINKS - fresh)]
                following += fresh
                links = tuple(request(frontier.secret, number) for number in numbers)
                if case == "cached":
                    links = tuple(link for link in links if link.key not in recent)
                    recent.update(link.key for link in links)
                outcomes.append(_done(lease.site, lease.lane, lease.token, leased.key, links))
        started, began = time.process_time(), time.perf_counter()
        await frontier.complete(outcomes)
        cpu, wall = cpu + time.process_time() - started, wall + time.perf_counter() - began
        count += len(outcomes)
    served = server_cpu(server) - before
    return cpu / count * 1e6, served / count * 1e6, wall / count * 1e6, following


async def client(url: str, job: str, name: int, seconds: float) -> None:
    """One client: prints its pages, and how often it had to begin a transaction anew."""
    frontier = await open_sql(url, job, worker=f"client-{name}")
    following, count, chance = (name + 1) * 100_000_000, 0, random.Random(name)
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        grant = await frontier.lease(2, batch=BATCH // 2, seconds=60)
        outcomes = []
        for lease in grant.leases:
            for leased in lease.requests:
                fresh = sum(chance.random() < NEW for _ in range(LINKS))
                links = tuple(request(frontier.secret, number) for number in range(following, following + fresh))
                following += fresh
                outcomes.append(_done(lease.site, lease.lane, lease.token, leased.key, links))
        await frontier.complete(outcomes)
        count += len(outcomes)
    print(count, frontier.conflicts)
    await frontier.aclose()


def side_by_side(server: SqlServer, numbers: list[int], known: int, seconds: float = 8.0) -> None:
    for number in numbers:
        job = f"clients-{number}"

        async def make(job: str = job) -> None:
            frontier = await open_sql(server.url, job, SETTINGS)
            await fill(frontier, known)
            await frontier.aclose()

        asyncio.run(make())
        words = [sys.executable, __file__, "--client", server.url, job, str(seconds)]
        waits = waited(server)
        running = [subprocess.Popen([*words, str(name)], stdout=subprocess.PIPE, text=True) for name in range(number)]
        said = [process.communicate()[0].split() for process in running]
        total, conflicts = sum(int(each[0]) for each in said), sum(int(each[1]) for each in said)
        print(
            f"{number} clients: {total / seconds:.0f} pages/s, {conflicts} transactions begun anew,"
            f" lock waits {waited(server, waits)}",
            flush=True,
        )


def waited(server: SqlServer, before: dict[str, int] | None = None) -> dict[str, int]:
    """What the server says of waiting for locks since then."""
    if isinstance(server, PostgresServer):
        rows = server.ask("SELECT 'deadlocks', deadlocks FROM pg_stat_database WHERE datname = 'gossamer'")
    else:
        rows = server.ask("SHOW GLOBAL STATUS WHERE variable_name IN ('Innodb_row_lock_waits', 'Innodb_row_lock_time')")
    found = {str(name): int(value) for name, value in rows}
    return {name: value - (before or {}).get(name, 0) for name, value in found.items()}


async def weigh(server: SqlServer, known: int) -> None:
    """Bytes a URL that waits with a referrer of its own site, one that is done, and one that was compacted."""
    frontier = await open_sql(server.url, "weigh", SETTINGS, worker="bench")
    empty = size_of(server)
    await frontier.add([request(frontier.secret, SITES * 100_000 + site, site) for site in range(SITES)])
    made = 0
    while made < known:
        outcomes = []
        for lease in (await frontier.lease(100, batch=1, seconds=60)).leases:
            site = int(lease.site.split("-")[1][:4])
            links = tuple(request(frontier.secret, number, site) for number in range(made, made + 50))
            outcomes.append(_done(lease.site, lease.lane, lease.token, lease.requests[0].key, links))
            made += 50
        await frontier.complete(outcomes)
    counts = await frontier.counts()
    waiting = (size_of(server) - empty) / counts.queued
    while (grant := await frontier.lease(64, batch=100, seconds=60)).leases:
        await frontier.complete(
            [_done(lease.site, lease.lane, lease.token, one.key) for lease in grant.leases for one in lease.requests]
        )
    done = (size_of(server, tidy=True) - empty) / counts.known
    await frontier.compact()
    compacted = (size_of(server, tidy=True) - empty) / counts.known
    await frontier.aclose()
    print(f"{known:>10,}  bytes: {waiting:.0f} a queued URL, {done:.0f} a finished one, {compacted:.0f} once compacted")


def size_of(server: SqlServer, *, tidy: bool = False) -> int:
    """Asked from a thread: the measuring client has a loop of its own."""
    import threading

    found: list[int] = []

    def ask() -> None:
        if tidy:
            for table in ("queue", "done", "sites", "leases"):
                vacuum = "VACUUM FULL" if isinstance(server, PostgresServer) else "OPTIMIZE TABLE"
                server.ask(f"{vacuum} gossamer_{table}")
        found.append(size(server))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", nargs="*", default=["postgresql", "mariadb"])
    parser.add_argument("--urls", type=float, nargs="*", default=[2e5])
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--weigh", type=float, default=1e5)
    parser.add_argument("--client", nargs=4)
    choice = parser.parse_args()
    if choice.client:
        url, job, seconds, name = choice.client
        asyncio.run(client(url, job, int(name), float(seconds)))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for kind in choice.servers:
        with start(kind) as server:
            print(str(server.ask("SELECT version()")[0][0])[:60])
            if choice.weigh:
                asyncio.run(weigh(server, int(choice.weigh)))
            print("known URLs, CPU us a page (client + server) for each case")
            for known in choice.urls:
                asyncio.run(measure(server, int(known)))
            if choice.clients:
                side_by_side(server, choice.clients, 200_000)


if __name__ == "__main__":
    main()
