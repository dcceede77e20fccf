"""A fleet of real processes under kills, suspensions, wrong clocks, and a failing Redis: results are exact."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gossamer.frontier.backends import open_fleet
from gossamer.lab.simweb.log import SimRequest, fetched, gaps
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import Counts
from gossamer.testing.network import FaultyProxy
from gossamer.testing.servers import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "crawl"))
from processes import children, environment, kill_tree, start, stored, until, wrong_clock

JOB = "storm"
CONCURRENCY = 8
LEASE_SECONDS = 3.0
MOST_SLEEPS = 6
pytestmark = pytest.mark.skipif(
    not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
)


class Machines:
    """Workers as on many machines: each is started again when it has died, some of them with a clock that is wrong."""

    def __init__(self, url: str, folder: Path, *, count: int, clocks: Mapping[int, Mapping[str, str]]) -> None:
        self._url = url
        self._folder = folder
        self._clocks = clocks
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._left: set[int] = set()
        self._logs = [(folder / f"worker-{number}.err").open("ab") for number in range(count)]

    def __enter__(self) -> Machines:
        self.tend()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        for log in self._logs:
            log.close()

    def tend(self) -> bool:
        """Start what is not running; whether somebody is still at work, which ends when the job is over."""
        for number, log in enumerate(self._logs):
            process = self._running.get(number)
            code = process.poll() if process else None
            if code == 0:
                self._left.add(number)
            if number not in self._left and (process is None or code is not None):
                self._running[number] = subprocess.Popen(
                    [sys.executable, "-m", "gossamer", "worker", "--job", JOB, "--name", f"w{number}"],
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env={**environment(), "GOSSAMER_FRONTIER": self._url, **self._clocks.get(number, {})},
                )
        return len(self._left) < len(self._logs)

    def alive(self) -> list[int]:
        """The workers that can be killed or put to sleep."""
        return [number for number, process in self._running.items() if process.poll() is None]

    def busiest(self) -> int:
        """The worker that has stored something last."""
        last = max((self._folder / "shared/segments").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return int(last.name.partition("-")[0].removeprefix("w"))

    def send(self, number: int, what: int) -> None:
        """A signal for a worker."""
        self._running[number].send_signal(what)

    def said(self) -> str:
        """What the workers had to say."""
        return "\n".join(path.read_text("utf-8", "replace") for path in sorted(self._folder.glob("worker-*.err")))


def submit(url: str, web: SimWeb, folder: Path, *, delay: float) -> None:
    (folder / "seeds").write_text("\n".join(web.seeds))
    subprocess.run(
        [
            sys.executable, "-m", "gossamer", "submit", "--seeds", str(folder / "seeds"), "--job", JOB,
            "--sink", f"jsonl:{folder}/shared", "--delay", str(delay), "--lease-seconds", str(LEASE_SECONDS),
            "--allow-private", "--concurrency", str(CONCURRENCY), "--batch", "5", "--commit-seconds", "0.05",
            "--fetch-seconds", "5",
        ],
        check=True, capture_output=True, timeout=60, env={**environment(), "GOSSAMER_FRONTIER": url},
    )  # fmt: skip


def counts(url: str) -> Counts:
    async def ask() -> Counts:
        frontier = await open_fleet(url, JOB)
        try:
            return await frontier.counts()
        finally:
            await frontier.aclose()

    return asyncio.run(ask())


class Storm:
    """What happened to the fleet, and when."""

    def __init__(self) -> None:
        self.kills = 0
        self.sleeps = 0
        self.outages: list[tuple[float, float]] = []
        """When Redis died, and when it was back."""
        self.events: list[tuple[float, str]] = []
        self.late = 0
        """Outcomes that were refused because their worker had slept past its lease."""

    def may_repeat(self, log: list[SimRequest]) -> int:
        """How many fetches may have been in vain.

        Of each worker that was killed or asleep, what it had under way or not yet committed. Of each outage, what the
        fleet fetched in the second that Redis lost, a commit before it, and until the leases that it forgot are missed.
        """
        forgotten = sum(went - 2 <= entry.arrived_at <= came + 2 for entry in log for went, came in self.outages)
        return (self.kills + self.sleeps) * 2 * CONCURRENCY + forgotten


def storm(
    server: RedisServer,
    machines: Machines,
    *,
    seconds: float,
    kill_every: float,
    sleeps_at: Sequence[float],
    outages_at: Sequence[float],
) -> Storm:
    """Kill a worker every so many seconds; at the given times another sleeps past its lease, or Redis dies."""
    chance, past = random.Random(11), Storm()
    began = time.monotonic()
    sleeps, outages = list(sleeps_at), list(outages_at)
    next_kill, asleep, wakes, late = kill_every, -1, 0.0, 0
    while (now := time.monotonic() - began) < seconds or asleep >= 0 or sleeps:
        machines.tend()
        if outages and now >= outages[0]:
            outages.pop(0)
            past.outages.append(outage(server))
            past.events += [(past.outages[-1][0], "Redis killed"), (past.outages[-1][1], "Redis back")]
        if sleeps and now >= sleeps[0]:
            sleeps.pop(0)
            late = counts(server.url).stale
            asleep, wakes = machines.busiest(), now + 2 * LEASE_SECONDS
            machines.send(asleep, signal.SIGSTOP)
            past.events.append((time.time(), f"w{asleep} asleep"))
        if asleep >= 0 and now >= wakes:
            machines.send(asleep, signal.SIGCONT)
            past.events.append((time.time(), f"w{asleep} awake"))
            asleep = -1
            past.sleeps += 1
            time.sleep(1)
            refused = counts(server.url).stale - late
            past.late += refused
            if not refused and past.sleeps < MOST_SLEEPS:
                # It had nothing under way when it fell asleep.
                sleeps.insert(0, now + 2)
        if now >= next_kill:
            victim = chance.choice([number for number in machines.alive() if number != asleep])
            machines.send(victim, signal.SIGKILL)
            past.events.append((time.time(), f"w{victim} killed"))
            past.kills += 1
            next_kill = now + kill_every
        time.sleep(0.05)
    return past


def outage(server: RedisServer) -> tuple[float, float]:
    """A cut of the power: kill -9 of Redis, which comes back without what it wrote in its last second."""
    file = max((server.folder / "appendonlydir").glob("*.incr.aof"))
    size = file.stat().st_size
    time.sleep(1)
    went = time.time()
    server.kill()
    assert file.stat().st_size > size, "nothing is lost"
    os.truncate(file, size)
    server.start()
    return went, time.time()


def is_exact(web: SimWeb, folder: Path, past: Storm, *, delay: float) -> None:
    """Everything is exported once, no site was asked too soon, and nothing was fetched in vain without a cause."""
    log = web.log()
    exported = subprocess.run(
        [sys.executable, "-m", "gossamer", "export", f"{folder}/shared", "--format", "urls"],
        capture_output=True, text=True, check=True, timeout=120, env=environment(),
    ).stdout.split()  # fmt: skip
    assert Counter(exported) == Counter(web.plan.reachable())
    assert not web.judge().missed
    repeats = sum(fetched(log).values()) - len(exported)
    print(
        f"{len(exported)} pages, {past.kills} kills, {past.sleeps} sleeps, {len(past.outages)} outages of Redis, "
        f"{repeats} repeats (at most {past.may_repeat(log)}), {past.late} outcomes refused after sleep, "
        f"least gap {min(gaps(log).values()):.4f} s"
    )
    assert repeats <= past.may_repeat(log)
    assert not too_soon(log, past, delay=delay)


def too_soon(log: list[SimRequest], past: Storm, *, delay: float) -> list[str]:
    """The requests that came before their time, each with what had happened shortly before.

    A worker that is stopped between its look at the clock and the write of a request writes it when it wakes: nobody
    can take back what is on its way to the kernel. Such a request, at the moment of waking, is not counted."""
    awake = [at for at, what in past.events if what.endswith("awake")]
    found: list[str] = []
    last: dict[str, SimRequest] = {}
    for entry in log:
        before = last.get(entry.site, entry)
        gap = entry.arrived_at - before.headers_at
        woken = any(0 <= max(before.arrived_at, entry.arrived_at) - at < 0.3 for at in awake)
        if before is not entry and gap < delay and not woken:
            ago = [(entry.arrived_at - at, what) for at, what in past.events]
            near = ", ".join(f"{what} {seconds:.3f} s ago" for seconds, what in ago if 0 <= seconds < 8)
            ports = f"ports {before.port} and {entry.port}"
            found.append(f"{entry.site}: {gap:.4f} s after {before.target} came {entry.target} ({ports}); {near}")
        last[entry.site] = max(before, entry, key=lambda one: one.headers_at)
    return found


def weather(
    folder: Path, *, count: int, sites: int, pages: int, delay: float, clocks: Sequence[str], **what: Any
) -> None:
    with (
        RedisServer(appendonly="yes", appendfsync="everysec", auto_aof_rewrite_percentage="0") as server,
        SimWeb(sites=sites, pages_per_site=pages, page_bytes=2000, latency_seconds=0.1) as web,
    ):
        submit(server.url, web, folder, delay=delay)
        wrong = {number: wrong_clock(shift) for number, shift in enumerate(clocks)}
        with Machines(server.url, folder, count=count, clocks=wrong) as machines:
            until(lambda: counts(server.url).stored > sites, 90)
            past = storm(server, machines, **what)
            assert machines.tend(), "it was over before the storm was"
            until(lambda: not machines.tend(), 240)
        found = counts(server.url)
        assert (found.finished, found.parked, found.failed) == (True, 0, 0), machines.said()
        assert past.late > 0
        assert found.stale >= past.late
        assert "Traceback" not in machines.said()
        is_exact(web, folder, past, delay=delay)


def test_workers_that_die_while_redis_is_away_are_replaced_when_it_is_back(tmp_path: Path) -> None:
    """Their successors wait: a supervisor that saw them die again and again would give up."""
    folder = tmp_path / "job"
    with (
        RedisServer() as server,
        FaultyProxy(server.port) as proxy,
        SimWeb(sites=6, pages_per_site=40, page_bytes=2000, latency_seconds=0.05) as web,
    ):
        options = ("--delay", "0.05", "--workers", "2", "--lease-seconds", "2")
        process = start(folder, web, "--frontier", server.url_at(proxy.port), *options)
        until(lambda: len(web.log()) > 30)
        proxy.fail("reset")
        for worker in children(process.pid):
            os.kill(worker, signal.SIGKILL)
        tries = proxy.faults
        until(lambda: proxy.faults > tries + 20)
        proxy.fail("")
        assert process.wait(60) == 0
        said = process.stderr.read() if process.stderr else ""
        kill_tree(process)
        assert said.count("ended with code") == 2, said
        assert set(stored(folder)) == web.plan.reachable()


def test_a_fleet_in_a_short_storm_is_exact(tmp_path: Path) -> None:
    """F06, F09, F18, F19, F25."""
    weather(
        tmp_path, count=4, sites=10, pages=90, delay=0.05, clocks=("+1h", "-1h"),
        seconds=12, kill_every=2, sleeps_at=(1.0,), outages_at=(9.0,),
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_fleet_of_eight_in_a_storm_of_two_minutes_is_exact(tmp_path: Path) -> None:
    """F06, F09, F18, F19, F25."""
    weather(
        tmp_path, count=8, sites=40, pages=650, delay=0.1, clocks=("+1h", "-1h"),
        seconds=120, kill_every=2, sleeps_at=(15.0, 55.0, 95.0), outages_at=(35.0, 75.0),
    )  # fmt: skip
