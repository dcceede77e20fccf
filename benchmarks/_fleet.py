"""Fleet crawls on Redis for the benchmarks: real processes, their CPU, and checks of their output."""

from __future__ import annotations

import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import redis

from _tally import environment
from gossamer.engine.supervision import dies_with_us
from gossamer.lab.simweb.log import SimRequest, fetched
from gossamer.lab.simweb.process import SimWeb
from gossamer.testing.servers import RedisServer

TICKS = os.sysconf("SC_CLK_TCK")
DEADLINE_SECONDS = 1800.0


class Crawl(NamedTuple):
    """CPU, lost and repeated pages, and rate of one crawl."""

    cpu_seconds: float
    """CPU seconds of all processes without Redis."""
    redis_seconds: float
    pages: int
    """Number of distinct stored pages."""
    lost: int
    """Pages of the web that are in no output."""
    unanswered: int
    """Lost pages for which the web never sent a response."""
    repeated: int
    """Repeated fetches of pages."""
    rate: float
    """Pages per second from the first request to the last."""

    @property
    def cost(self) -> float:
        """CPU milliseconds per page, including Redis."""
        return (self.cpu_seconds + self.redis_seconds) / max(1, self.pages) * 1000


def machine(server: RedisServer) -> str:
    """Description of the machine and the versions."""
    with redis.Redis.from_url(server.url) as store:
        version = store.info("server")["redis_version"]
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, Redis {version}"


def process_seconds(pid: int, *, ended: bool = False) -> float:
    """CPU seconds of a process so far, optionally with its `ended` children; 0 once it has exited."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if ended else 13])) / TICKS


def children(pid: int) -> list[int]:
    """The running children of a process."""
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(word) for word in words]


def requests(web: SimWeb) -> int:
    """Number of requests in the web's log."""
    return web.log_path.read_bytes().count(b"\n") if web.log_path.exists() else 0


def until(condition: Callable[[], object], *running: subprocess.Popen[bytes]) -> None:
    """Wait for a condition; fails if a process exits before, or without progress for long."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > end or any(process.poll() is not None for process in running):
            sys.exit("the crawl came to its end too early, or to none")
        time.sleep(0.05)


class Account:
    """Measures the CPU of a block: children that exit in it, and a running Redis server."""

    def __init__(self, server: RedisServer) -> None:
        self._pid = server.pid
        self._redis = process_seconds(server.pid)
        self._children = resource.getrusage(resource.RUSAGE_CHILDREN)

    def crawl(self, web: SimWeb, outputs: Iterable[Path]) -> Crawl:
        """Stop measuring, and check the crawl against its output and the web's log."""
        now, served = resource.getrusage(resource.RUSAGE_CHILDREN), process_seconds(self._pid)
        cpu = now.ru_utime - self._children.ru_utime + now.ru_stime - self._children.ru_stime
        stored = {url for path in outputs for url in urls(path)}
        log = web.log()
        counts, reachable = fetched(log), web.plan.reachable()
        lost = reachable - stored
        good = {entry.url for entry in log if entry.status == 200}
        return Crawl(
            cpu_seconds=cpu,
            redis_seconds=served - self._redis,
            pages=len(stored & reachable),
            lost=len(lost),
            unanswered=len(lost - good),
            repeated=sum(counts.values()) - len(counts),
            rate=rate(log),
        )


def urls(path: Path) -> Counter[str]:
    """The fetched pages in a JSON Lines file, without a truncated last line."""
    found: Counter[str] = Counter()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.get("status", 200) == 200:
            found[row["url"]] += 1
    return found


def rate(log: list[SimRequest]) -> float:
    """Pages per second from the first request to the last response."""
    if len(log) < 2:
        return 0.0
    return len(log) / (max(entry.finished_at for entry in log) - log[0].arrived_at)


def start(web: SimWeb, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """The command of a Gossamer crawl of the whole web."""
    seeds = folder / "seeds.txt"
    seeds.write_text("\n".join(web.seeds))
    command = [
        sys.executable, "-m", "gossamer", "crawl", "--seeds", str(seeds), "--job", str(folder / "job"),
        "--allow-private", "--quiet", *options,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment(), preexec_fn=dies_with_us())  # noqa: PLW1509


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a crawl to end; a failure ends the benchmark, and an interrupt stops the crawl first."""
    try:
        code = process.wait(DEADLINE_SECONDS)
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        raise
    if code != 0:
        sys.exit(f"the crawl failed with code {code}")
