"""Workers on a shared folder that are all suspended past their leases, repeatedly."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gossamer.lab.simweb.log import SimRequest, fetched, gaps, max_overlap
from gossamer.lab.simweb.process import SimWeb
from gossamer.settings import Settings
from gossamer.storage.segments import current_records
from gossamer.testing.folder_worker import submit

JOB = "job"
LEASE = 2.0
DELAY = 0.3
WORKERS = 4


class Fleet:
    """A web, a folder, and workers as processes of this machine."""

    def __init__(self, folder: Path, web: SimWeb) -> None:
        self.url = f"folder:{folder / 'share'}?shards=16"
        self.output = folder / "out"
        self.web = web
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self) -> None:
        settings = Settings(
            delay=DELAY,
            allow_private=True,
            lease_seconds=LEASE,
            connect_seconds=0.5,
            concurrency=16,
            batch=8,
            commit_seconds=0.05,
            backoff_seconds=0.3,
            resolve=("*.sim=127.0.0.1",),
        )
        asyncio.run(submit(self.url, JOB, settings, self.web.seeds))

    def start(self) -> None:
        for name in (f"w{number}" for number in range(WORKERS)):
            module = [sys.executable, "-m", "gossamer.testing.folder_worker"]
            self.running[name] = subprocess.Popen([*module, self.url, JOB, name, str(self.output)])

    def signal(self, number: int) -> None:
        """Send a signal to all workers, as the kernel does: those that have left do not mind."""
        for process in self.running.values():
            if process.poll() is None:
                os.kill(process.pid, number)

    @property
    def is_running(self) -> bool:
        return any(process.poll() is None for process in self.running.values())

    def until(self, requests: int, seconds: float = 60.0) -> None:
        """Wait until the web has had so many requests, or the workers have left."""
        end = time.monotonic() + seconds
        while self.is_running and len(self.web.log()) < requests:
            assert time.monotonic() < end, "nothing is fetched"
            time.sleep(0.01)

    def wait(self, seconds: float = 120.0) -> None:
        """Until all workers have left, each saying that the job is finished."""
        end = time.monotonic() + seconds
        for process in self.running.values():
            assert process.wait(max(0.1, end - time.monotonic())) == 0

    def kill(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def counts(self) -> Mapping[str, object]:
        """What `gossamer status` says, a process of its own."""
        url, _, _ = self.url.partition("?")
        command = [sys.executable, "-m", "gossamer", "status", JOB, "--frontier", url, "--json"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        return dict(json.loads(said)["counts"])


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with SimWeb(sites=200, pages_per_site=4, page_bytes=2000, latency_seconds=0.02, names=True) as web:
        fleet = Fleet(tmp_path, web)
        fleet.submit()
        fleet.start()
        try:
            yield fleet
        finally:
            fleet.kill()


def too_close(log: list[SimRequest]) -> list[str]:
    """Requests that came before the delay of their site was over, with those before them."""
    last: dict[str, SimRequest] = {}
    found = []
    for entry in log:
        before = last.get(entry.site)
        if before is not None and entry.arrived_at - before.headers_at < DELAY:
            found.append(f"{entry.arrived_at - before.headers_at:.3f} s: {before.url} -> {entry.url}")
        last[entry.site] = entry
    return found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_fleet_that_was_paused_past_its_leases_finishes_politely(fleet: Fleet, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(1, 6):
        fleet.until(number * 120)
        time.sleep(chance.random() * DELAY)
        fleet.signal(signal.SIGSTOP)
        time.sleep(1.5 * LEASE)
        fleet.signal(signal.SIGCONT)
    fleet.wait()
    log, reachable = fleet.web.log(), fleet.web.plan.reachable()
    assert too_close(log) == []
    assert min(gaps(log).values()) >= DELAY
    assert max(max_overlap(log).values()) == 1
    assert set(fetched(log)) == reachable
    exported = [record.page.url for record in current_records(fleet.output)]
    assert len(exported) == len(set(exported))
    assert set(exported) == reachable
    counts = fleet.counts()
    assert (counts["finished"], counts["queued"], counts["parked"]) == (True, 0, 0)
