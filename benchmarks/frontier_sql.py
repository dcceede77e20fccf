"""The frontier in PostgreSQL and MariaDB alone: CPU per page of client and server, parallel clients, bytes per URL.

    python benchmarks/frontier_sql.py [--servers postgresql mariadb] [--urls 1e6] [--memory 2e6] [--clients 1 4]

64 pages per batch, 50 links per page, 15 % of them new; measures lease, complete, and add, but not creating the links.
Three cases: "all" sends every link; "cached" drops those in the worker's cache of keys, like workers, and includes the
cost of that; "new" sends only new links. The cache has `--memory` keys and has seen all URLs in the order in which they
were added, like that of a worker that ran from the start: links repeat at random, so it knows all or only the newer
ones. Each result is the median of `--rounds` rounds of `--pages` pages, after a warm-up round (after a checkpoint,
PostgreSQL writes each page in full once). Parallel clients are processes with the case "new", and different numbers of
them take turns; their throughput is per wall time, including creating the links. Servers run with default durability
and 1 GB of buffers, and get time for maintenance between filling and measuring.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import threading
import time

from _frontier import BATCH, CASES, LINKS, NEW, SITES, Pages, done, machine, request
from gossamer.cli.runner import run
from gossamer.engine.links import RecentKeys
from gossamer.frontier.sql.record import open_sql
from gossamer.lab.bench import cpu_of
from gossamer.settings import Settings
from gossamer.testing.servers import MariaServer, PostgresServer, SqlServer

SETTINGS = Settings(delay=0, robots=False)


def start(kind: str) -> SqlServer:
    if kind == "postgresql":
        return PostgresServer(
            shared_buffers="1GB", max_wal_size="4GB", wal_compression="off", checkpoint_timeout="15min",
            log_lock_waits="on", deadlock_timeout="10ms",
        )  # fmt: skip
    return MariaServer(innodb_buffer_pool_size="1G", innodb_log_file_size="1G")


def size(server: SqlServer) -> int:
    if isinstance(server, PostgresServer):
        return int(server.ask("SELECT pg_database_size('gossamer')")[0][0])
    server.ask("ANALYZE TABLE gossamer_seen, gossamer_queue, gossamer_done")
    rows = server.ask(
        "SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = 'gossamer'"
    )
    return int(rows[0][0])


def settle(server: SqlServer) -> None:
    """Let the server finish its maintenance after filling, so that it is not measured."""
    if isinstance(server, PostgresServer):
        server.ask("VACUUM ANALYZE")
        server.ask("CHECKPOINT")
    else:
        server.ask("ANALYZE TABLE gossamer_seen, gossamer_queue")
        time.sleep(2)


async def measure(server: SqlServer, known: int, choice: argparse.Namespace) -> None:
    recent = RecentKeys(int(choice.memory)) if choice.memory else RecentKeys()
    frontier = await open_sql(server.url, f"benchmark-{known}", SETTINGS, worker="bench")
    pages = Pages(frontier, frontier.secret, lambda: cpu_of(server.pid), recent=recent)
    started, served = time.perf_counter(), cpu_of(server.pid)
    await pages.fill(known)
    filled, served = time.perf_counter() - started, cpu_of(server.pid) - served
    await asyncio.to_thread(settle, server)
    results = []
    for case in choice.cases:
        await pages.run(case, choice.pages)
        results.append(f"{case} {await pages.rounds(case, pages=choice.pages, rounds=choice.rounds)}")
    load = os.getloadavg()[0]
    print(
        f"{known:>10,}  {'  '.join(results)}  conflicts {frontier.conflicts}, load {load:.1f};"
        f" filled in {filled:.0f} s, {served / known * 1e6:.0f} us of the server a URL",
        flush=True,
    )
    await frontier.aclose()


async def client(url: str, job: str, name: int, seconds: float) -> None:
    """One client: prints its pages, its transaction retries, and its CPU seconds."""
    frontier = await open_sql(url, job, worker=f"client-{name}")
    following, count, chance = (name + 1) * 100_000_000, 0, random.Random(name)
    spent, ends_at = time.process_time(), time.monotonic() + seconds
    while time.monotonic() < ends_at:
        grant = await frontier.lease(2, batch=BATCH // 2, seconds=60)
        outcomes = []
        for lease in grant.leases:
            for leased in lease.requests:
                fresh = sum(chance.random() < NEW for _ in range(LINKS))
                links = tuple(request(frontier.secret, number) for number in range(following, following + fresh))
                following += fresh
                outcomes.append(done(lease, leased.key, links))
        await frontier.complete(outcomes)
        count += len(outcomes)
    print(count, frontier.conflicts, time.process_time() - spent)
    await frontier.aclose()


def side_by_side(server: SqlServer, choice: argparse.Namespace, known: int = 200_000, seconds: float = 8.0) -> None:
    """Run each number of clients in turn, several times, so that a busy machine affects all equally."""

    async def make() -> None:
        frontier = await open_sql(server.url, "clients", SETTINGS)
        await Pages(frontier, frontier.secret, float, recent=RecentKeys()).fill(known)
        await frontier.aclose()

    run(make())
    settle(server)
    rates: dict[int, list[float]] = {number: [] for number in choice.clients}
    costs: dict[int, list[float]] = {number: [] for number in choice.clients}
    output = dict.fromkeys(choice.clients, 0), {number: dict[str, int]() for number in choice.clients}
    for turn in range(choice.rounds):
        for number in choice.clients:
            words = [sys.executable, __file__, "--client", server.url, "clients", str(seconds)]
            waits, served = waited(server), cpu_of(server.pid)
            names = [str(100 * (turn + 1) * number + one) for one in range(number)]
            running = [subprocess.Popen([*words, name], stdout=subprocess.PIPE, text=True) for name in names]
            said = [process.communicate()[0].split() for process in running]
            pages = sum(int(each[0]) for each in said)
            rates[number].append(pages / seconds)
            costs[number].append((cpu_of(server.pid) - served + sum(float(each[2]) for each in said)) / pages * 1e6)
            output[0][number] += sum(int(each[1]) for each in said)
            for name, value in waited(server).items():
                output[1][number][name] = output[1][number].get(name, 0) + value - waits[name]
    for number in choice.clients:
        print(
            f"{number} clients: {statistics.median(rates[number]):.0f} pages/s, {statistics.median(costs[number]):.0f}"
            f" us CPU a page; in {choice.rounds} turns {output[0][number]} transactions restarted, {output[1][number]};"
            f" load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def waited(server: SqlServer) -> dict[str, int]:
    """The server's statistics of lock waits."""
    if isinstance(server, PostgresServer):
        rows = server.ask("SELECT 'deadlocks', deadlocks FROM pg_stat_database WHERE datname = 'gossamer'")
        long = (server.folder / "server.log").read_text(errors="replace").count("still waiting for")
        rows = [*rows, ("lock waits over 10 ms", long)]
    else:
        rows = server.ask("SHOW GLOBAL STATUS WHERE variable_name IN ('Innodb_row_lock_waits', 'Innodb_row_lock_time')")
    return {str(name): int(value) for name, value in rows}


async def weigh(server: SqlServer, known: int) -> None:
    """Bytes per queued URL with a referrer on its own site, per done URL, and per compacted URL."""
    frontier = await open_sql(server.url, "weigh", SETTINGS, worker="bench")
    empty = size_of(server)
    await frontier.add([request(frontier.secret, SITES * 100_000 + site, site) for site in range(SITES)])
    made = 0
    while made < known:
        outcomes = []
        for lease in (await frontier.lease(100, batch=1, seconds=60)).leases:
            site = int(lease.site.split("-")[1][:4])
            links = tuple(request(frontier.secret, number, site) for number in range(made, made + 50))
            outcomes.append(done(lease, lease.requests[0].key, links))
            made += 50
        await frontier.complete(outcomes)
    counts = await frontier.counts()
    waiting = (size_of(server) - empty) / counts.queued
    while (grant := await frontier.lease(64, batch=100, seconds=60)).leases:
        await frontier.complete([done(lease, one.key) for lease in grant.leases for one in lease.requests])
    finished = (size_of(server, tidy=True) - empty) / counts.known
    await frontier.compact()
    compacted = (size_of(server, tidy=True) - empty) / counts.known
    await frontier.aclose()
    print(f"{known:>10,}  bytes: {waiting:.0f} a queued URL, {finished:.0f} a finished one, {compacted:.0f} compacted")


def size_of(server: SqlServer, *, tidy: bool = False) -> int:
    """Query from a thread, because the measuring client has its own event loop."""
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
    parser.add_argument("--cases", nargs="*", default=CASES)
    parser.add_argument("--memory", type=float, help="keys in a worker's cache (default: as in workers)")
    parser.add_argument("--pages", type=int, default=6_400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--weigh", type=float, default=1e5)
    parser.add_argument("--client", nargs=4)
    choice = parser.parse_args()
    if choice.client:
        url, job, seconds, name = choice.client
        run(client(url, job, int(name), float(seconds)))
        return
    print(machine())
    for kind in choice.servers:
        with start(kind) as server:
            print(str(server.ask("SELECT version()")[0][0])[:60])
            if choice.weigh:
                run(weigh(server, int(choice.weigh)))
            if choice.urls:
                print("known URLs, CPU us a page (client + server) for each case")
            for known in choice.urls:
                run(measure(server, int(known), choice))
            if choice.clients:
                side_by_side(server, choice)


if __name__ == "__main__":
    main()
