"""Compare Gossamer with other crawlers on the same crawls: CPU per page of the process tree, lost and repeated pages.

    python benchmarks/peers.py [--runs 7] [--shape 40kb tls ...] [--only scrapy crawlee ...] [--scale 0.25] [--kills 3]

Each crawler fetches every page of a simulated web, follows the links on its own host, and stores URL and title, without
delay and robots.txt. CPU includes a Redis server, but not the web server, which is a separate process. Crawlers take
turns; the ratio of each is the median of paired runs. Pages per second are measured from the first request to the last
response in the web server's log, which also shows missing and repeated pages. `--kills` kills all processes of a crawl
with SIGKILL half-way, runs the same command again, and counts the pages that are missing at the end, for crawlers that
support resuming. Other crawlers are installed into `.bench/` on first use; failures are listed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from _contenders import CONTENDERS, Contender, Scene
from _fleet import process_seconds, requests, urls
from _fleet import rate as pages_a_second
from _peers import NotInstalled, environment, version
from _plot import Bar, bars
from _shapes import AIMS, LEVEL, SHAPES, Shape
from _tally import Cost, Running
from gossamer.lab.simweb.log import fetched
from gossamer.testing.servers import RedisServer

DEADLINE_SECONDS = 900.0
KILLED_PAGES = 4000
"""Pages for the share of repeated fetches, which depend on the speed of a crawl and not on its length."""
PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"


class Crawl(NamedTuple):
    """CPU, lost and repeated pages, and rate of one crawl."""

    cpu_seconds: float
    """CPU seconds of all processes, including a store's."""
    peak_bytes: int
    pages: int
    """Number of distinct pages of the web that were stored."""
    missing: int
    repeated: int
    """Repeated requests for pages, from the web server's log."""
    rate: float

    @property
    def cost(self) -> float:
        """CPU milliseconds per page."""
        return self.cpu_seconds / max(1, self.pages) * 1000


class Failed(Exception):
    """A crawler that failed, with its last output."""


def crawl(contender: Contender, shape: Shape, *, kill: bool = False) -> Crawl:
    """One crawl of a new web; with `kill`, all processes are killed half-way and started again."""
    with ExitStack() as stack:
        web: Any = stack.enter_context(shape.web(shape.plan))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        log: dict[str, Any] = {"appendonly": "yes"} if shape.is_durable else {}
        server = stack.enter_context(RedisServer(**log)) if contender.needs_redis else None
        scene = Scene(web, folder, shape, environment(contender.environment) if contender.environment else Path())
        scene.seeds.write_text("\n".join(web.seeds))
        served = process_seconds(server.pid) if server else 0.0
        command = contender.command(scene, server.url if server else "")
        costs = []
        if kill:
            first = Running(command, folder / "first.json")
            while requests(web) < shape.pages // 2 and not first.is_over():
                time.sleep(0.02)
            first.kill()
            costs.append(first.cost(DEADLINE_SECONDS))
        last = Running(command, folder / "last.json")
        costs.append(last.cost(DEADLINE_SECONDS))
        whole = [cost for cost in costs if cost is not None]
        if len(whole) < len(costs):
            raise Failed(f"not done after {DEADLINE_SECONDS:.0f} s")
        return judge(scene, contender, whole, last, server, served)


def judge(
    scene: Scene, contender: Contender, costs: list[Cost], last: Running, server: RedisServer | None, served: float
) -> Crawl:
    """Evaluate the web server's log and the output."""
    log, wanted = scene.web.log(), scene.web.reachable()
    counts = fetched(log)
    good = {entry.url for entry in log if entry.status == 200}
    stored = good if contender.stores_files else {url for path in scene.outputs() for url in urls(path)}
    if not stored & wanted or (costs[-1].code and not contender.may_fail):
        raise Failed(f"exit code {costs[-1].code}: {last.errors.read_text(errors='replace')[-600:].strip()}")
    return Crawl(
        cpu_seconds=sum(cost.cpu_seconds for cost in costs) + (process_seconds(server.pid) - served if server else 0.0),
        peak_bytes=max(cost.peak_bytes for cost in costs) + (_most_bytes(server.pid) if server else 0),
        pages=len(stored & wanted),
        missing=len(wanted - stored),
        repeated=sum(counts.values()) - len(counts),
        rate=pages_a_second(log),
    )


def _most_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


class Table:
    """The crawls of one shape, and failures."""

    def __init__(self, shape: Shape, contenders: list[Contender]) -> None:
        self.shape = shape
        self.crawls: dict[str, list[Crawl | None]] = {contender.name: [] for contender in contenders}
        self.bases = {contender.name: contender.base for contender in contenders}
        self.failures: dict[str, str] = {}

    def run(self, contender: Contender, number: int) -> None:
        """Add a run; a failure is printed at once, and again under the table."""
        try:
            found = crawl(contender, self.shape)
        except (NotInstalled, Failed) as error:
            self.failures[contender.name] = str(error)
            self.crawls[contender.name].append(None)
            print(f"  {self.shape.name} run {number}: {contender.name:34} FAILED: {error}", flush=True)
            return
        self.crawls[contender.name].append(found)
        print(
            f"  {self.shape.name} run {number}: {contender.name:34} {found.cost:7.2f} ms a page, {found.rate:6.0f} "
            f"pages/s, {found.peak_bytes / 2**20:5.0f} MB, {found.missing} missing, {found.repeated} repeated, load "
            f"{os.getloadavg()[0]:.1f}",
            flush=True,
        )

    def times(self, name: str) -> float | None:
        """Median ratio of its CPU per page to Gossamer's, over paired runs."""
        pairs = zip(self.crawls[name], self.crawls.get(self.bases[name], ()))
        found = [mine.cost / ours.cost for mine, ours in pairs if mine and ours]
        return statistics.median(found) if found else None

    def print(self) -> None:
        columns = ("CPU ms a page", "least", "most", "times", "aim", "pages/s", "peak MB", "missing", "repeated")
        print(f"\n{self.shape.name}: {self.shape.about}\n{'':36}" + "".join(f"{column:>14}" for column in columns))
        for name, some in self.crawls.items():
            runs = [one for one in some if one]
            if not runs:
                print(f"{name:36} NOT RUN: {self.failures.get(name, '')[:120]}")
                continue
            costs = [run.cost for run in runs]
            times = self.times(name)
            cells = (
                f"{statistics.median(costs):.2f}", f"{min(costs):.2f}", f"{max(costs):.2f}",
                f"{times:.1f}" if times else "", self._aim(name, times),
                f"{statistics.median(run.rate for run in runs):.0f}",
                f"{max(run.peak_bytes for run in runs) / 2**20:.0f}",
                str(max(run.missing for run in runs)), str(max(run.repeated for run in runs)),
            )  # fmt: skip
            print(f"{name:36}" + "".join(f"{cell:>14}" for cell in cells))
        print("times: CPU a page beside Gossamer's in the same round, median; missing, repeated, peak: most of any run")

    def _aim(self, name: str, times: float | None) -> str:
        # The targets are for full-size crawls: in shorter ones, the start-up time weighs more.
        aim = AIMS.get((self.shape.name, name)) if self.shape.is_whole else None
        if aim is None:
            return ""
        return f"{aim:g}" if times and times >= aim * LEVEL.get(name, 1.0) else f"{aim:g} MISSED"

    def plot(self) -> None:
        """The picture of docs/benchmarks.md."""
        chart = []
        for name, some in self.crawls.items():
            costs = [one.cost for one in some if one]
            if costs:
                times = self.times(name)
                ours = name.startswith("gossamer")
                chart.append(Bar(name, statistics.median(costs), ours, f"({times:.1f}x)" if times and not ours else ""))
        chart.sort(key=lambda bar: bar.value)
        picture = bars(chart, title=f"CPU a page, {self.shape.about}", unit="ms")
        (PICTURES / f"peers-{self.shape.name}.svg").write_text(picture)


def kills(contenders: list[Contender], shape: Shape, count: int) -> None:
    """Kill each resumable crawler half-way, restart it, and print lost and repeated pages."""
    print(f"\nall processes killed (-9) half-way, the same command again; {shape.about}")
    for number in range(count):
        for contender in contenders:
            if not contender.resumes:
                continue
            try:
                found = crawl(contender, shape, kill=True)
            except (NotInstalled, Failed) as error:
                print(f"  kill {number + 1}: {contender.name:34} FAILED: {error}", flush=True)
                continue
            print(
                f"  kill {number + 1}: {contender.name:34} {found.missing} of {found.missing + found.pages} pages "
                f"lost, {found.repeated} fetched again ({found.repeated / (found.missing + found.pages):.1%})",
                flush=True,
            )
    left = [contender.name for contender in CONTENDERS if not contender.resumes]
    print(f"  do not say that they resume: {', '.join(left)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--shape", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--only", nargs="*", default=[""], help="contenders whose name contains one of these")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the pages of each shape")
    parser.add_argument("--kills", type=int, default=1, help="times that each is killed half-way; 0: none")
    parser.add_argument("--plot", action="store_true", help="write the pictures of docs/benchmarks.md")
    parser.add_argument("--json", type=Path, help="write all runs to this file")
    choice = parser.parse_args()
    wanted = [one for one in CONTENDERS if any(part in one.name for part in choice.only)]
    wanted += [one for one in CONTENDERS if one not in wanted and one.name in {other.base for other in wanted}]
    missing = install(wanted)
    wanted = [one for one in CONTENDERS if one in wanted and one.environment not in missing]
    tables = []
    for name in choice.shape:
        shape = SHAPES[name].scaled(choice.scale)
        contenders = [one for one in wanted if shape.name in one.shapes]
        table = Table(shape, contenders)
        for number in range(choice.runs):
            # Shuffle the order, so that no crawler always runs after a heavy one.
            turn = number % max(1, len(contenders))
            for contender in contenders[turn:] + contenders[:turn]:
                table.run(contender, number + 1)
        if choice.runs:
            table.print()
            tables.append(table)
            if choice.plot:
                table.plot()
    if choice.kills:
        durable = SHAPES["durable"].scaled(KILLED_PAGES / SHAPES["durable"].pages * choice.scale)
        kills([one for one in wanted if durable.name in one.shapes], durable, choice.kills)
    if choice.json:
        choice.json.write_text(json.dumps({table.shape.name: table.crawls for table in tables}))
    for name, reason in missing.items():
        print(f"\n!!! {name} COULD NOT BE INSTALLED HERE AND WAS NOT RUN: {reason}", flush=True)


def install(wanted: list[Contender]) -> dict[str, str]:
    """Create the environments, print the versions, and list those that failed."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    missing: dict[str, str] = {}
    for name in dict.fromkeys(one.environment for one in wanted if one.environment):
        try:
            environment(name)
            print(f"  {name} {version(name)}", flush=True)
        except NotInstalled as error:
            missing[name] = str(error)
            print(f"!!! {name} cannot be installed: {error}", file=sys.stderr, flush=True)
    return missing


if __name__ == "__main__":
    main()
