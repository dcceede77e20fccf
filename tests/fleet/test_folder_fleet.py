"""Workers that share only a folder, in separate mount and network namespaces, under kills."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gossamer.lab.simweb.log import fetched, gaps, max_overlap
from gossamer.lab.simweb.process import SimWeb
from gossamer.settings import Settings
from gossamer.storage.segments import current_records
from gossamer.testing.folder_worker import submit

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _namespaces import Namespaces, Relay, are_allowed

DELAY = 0.05
JOB = "job"
LEASE = 3.0


class Fleet:
    """A web, a folder, and workers that can reach these two only."""

    def __init__(self, folder: Path, web: SimWeb, machines: Namespaces, *, lease: float = LEASE) -> None:
        self.url = f"folder:{folder / 'share'}"
        self.output = folder / "out"
        self.web = web
        self._machines = machines
        self._lease = lease
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "share").mkdir()

    def submit(self) -> None:
        settings = Settings(
            delay=DELAY,
            allow_private=True,
            lease_seconds=self._lease,
            connect_seconds=0.5,
            concurrency=16,
            batch=8,
            commit_seconds=0.05,
            backoff_seconds=0.3,
            resolve=(f"*.sim={self._machines.address}",),
        )
        asyncio.run(submit(self.url, JOB, settings, list(self.web.seeds)))

    def start(self, number: int) -> subprocess.Popen[bytes]:
        name = f"w{number}"
        module = [sys.executable, "-m", "gossamer.testing.folder_worker"]
        self.running[name] = self._machines.start(number, [*module, self.url, JOB, name, str(self.output)])
        return self.running[name]

    def wait(self, seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        for process in self.running.values():
            assert process.wait(max(0.1, end - time.monotonic())) == 0

    def requests(self) -> int:
        path = self.web.log_path
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def until(self, requests: int) -> None:
        end = time.monotonic() + 60
        while self.requests() < requests:
            assert time.monotonic() < end, "nothing is fetched"
            time.sleep(0.02)

    def is_whole_and_polite(self, *, repeats: int) -> None:
        """Judged by the web's own log and by what was stored."""
        verdict, log = self.web.judge(), self.web.log()
        reachable = self.web.plan.reachable()
        assert not verdict.missed
        assert min(gaps(log).values()) >= DELAY
        assert max(max_overlap(log).values()) == 1
        stored = [record.page.url for record in current_records(self.output)]
        assert len(stored) == len(set(stored))
        assert set(stored) >= reachable
        assert sum(fetched(log).values()) - len(fetched(log)) <= repeats


@pytest.fixture
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    if not are_allowed():
        pytest.skip("this user may not make network namespaces: workers on machines of their own are not checked")
    with ExitStack() as stack:
        machines = stack.enter_context(Namespaces(4))
        size = {"sites": 12, "latency_seconds": 0.0, **getattr(request, "param", {})}
        lease = size.pop("lease", LEASE)
        web = stack.enter_context(SimWeb(pages_per_site=40, page_bytes=3000, links_per_page=8, names=True, **size))
        stack.enter_context(Relay(machines.address, web.plan.port))
        fleet = Fleet(tmp_path, web, machines, lease=lease)
        fleet.submit()
        yield fleet


# Nobody dies: a worker that a busy machine holds up for some seconds must not be taken for dead.
@pytest.mark.parametrize("fleet", [{"lease": 30.0}], indirect=True)
def test_workers_that_share_only_a_folder_fetch_every_page_once_and_politely(fleet: Fleet) -> None:
    for number in range(4):
        fleet.start(number)
    fleet.wait()
    fleet.is_whole_and_polite(repeats=0)


def test_successors_of_killed_workers_lose_nothing_and_keep_the_delay(fleet: Fleet) -> None:
    chance = random.Random(5)
    for number in range(3):
        fleet.start(number)
    for round_number in range(3):
        fleet.until(80 * (round_number + 1))
        victim = chance.randrange(3)
        process = fleet.running[f"w{victim}"]
        process.kill()
        process.wait()
        if round_number < 2:
            # One comes back at once under its name; the last one's shards are taken over by the others.
            fleet.start(victim)
        else:
            del fleet.running[f"w{victim}"]
    fleet.wait()
    fleet.is_whole_and_polite(repeats=3 * 16 * 8)


def test_a_worker_that_was_stopped_past_its_lease_does_no_harm(fleet: Fleet) -> None:
    """P5: it wakes up in the middle of its work, and its sites are long with somebody else."""
    for number in range(2):
        fleet.start(number)
    fleet.until(100)
    stopped = fleet.running["w0"]
    (pid,) = _pythons(stopped.pid)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * LEASE)
    os.kill(pid, signal.SIGCONT)
    fleet.wait()
    fleet.is_whole_and_polite(repeats=16 * 8)


@pytest.mark.parametrize("fleet", [{"sites": 60, "latency_seconds": 0.1}], indirect=True)
def test_a_new_worker_gets_its_part_of_a_running_crawl(fleet: Fleet) -> None:
    fleet.start(0)
    fleet.until(60)
    fleet.start(1)
    fleet.wait()
    fleet.is_whole_and_polite(repeats=0)
    records = {path.name.partition("-")[0]: path.read_bytes().count(b"\n") for path in fleet.output.glob("segments/*")}
    assert records["w1"] > 20


def _pythons(pid: int) -> list[int]:
    """The process itself: `ip netns exec` becomes the command that it was given."""
    assert b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return [pid]


SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
"""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A folder over sshfs from a server of its own."""
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin") or ""
    if not sshd or not shutil.which("sshfs") or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("sshfs cannot be mounted here: a folder over the network is not checked")
    there, here = tmp_path / "there", tmp_path / "here"
    for path in (there, here):
        path.mkdir()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (tmp_path / "config").write_text(SSHD.format(port=port, folder=tmp_path))
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([sshd, "-D", "-e", "-f", str(tmp_path / "config")], stderr=subprocess.DEVNULL)
    options = f"IdentityFile={tmp_path}/user,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,dir_cache=no"
    try:
        for _ in range(50):
            command = ["sshfs", "-p", str(port), "-o", options, f"127.0.0.1:{there}", str(here)]
            mounting = subprocess.run(command, capture_output=True, text=True, check=False)
            if not mounting.returncode:
                break
            time.sleep(0.1)
        else:
            pytest.skip(f"sshfs could not be mounted, a folder over the network is not checked: {mounting.stderr}")
        yield here
        subprocess.run(["fusermount", "-u", "-z", str(here)], check=False)
    finally:
        server.terminate()
        server.wait()


def test_two_workers_over_sshfs_fetch_every_page_once(mounted: Path, tmp_path: Path) -> None:
    with SimWeb(sites=12, pages_per_site=15, page_bytes=3000, links_per_page=8) as web:
        url = f"folder:{mounted}?shards=8"
        settings = Settings(
            delay=DELAY, allow_private=True, lease_seconds=20.0, concurrency=16, resolve=("*.sim=127.0.0.1",)
        )
        asyncio.run(submit(url, JOB, settings, list(web.seeds)))
        module = [sys.executable, "-m", "gossamer.testing.folder_worker"]
        # One through the network, one on the file server itself.
        places = {"near": url.replace("/here", "/there"), "far": url}
        running = [
            subprocess.Popen([*module, place, JOB, name, str(tmp_path / "out")]) for name, place in places.items()
        ]
        try:
            assert [process.wait(90) for process in running] == [0, 0]
        finally:
            for process in running:
                process.kill()
                process.wait()
        verdict, log = web.judge(), web.log()
    assert not verdict.missed
    assert not verdict.repeated
    assert min(gaps(log).values()) >= DELAY
