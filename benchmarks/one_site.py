"""One site at full speed: wall time of `gossamer crawl --delay 0 --per-site 8` compared with wget2.

    python benchmarks/one_site.py [--runs 5] [--pages 2000] [--latency 0.02]

The simulated web is a separate process with one host and pages of 40 KB. wget2 uses eight threads and stores files;
Gossamer stores records with a durable frontier. Gossamer's time includes its start, which matters in short crawls.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from _fleet import urls
from _peers import NotInstalled, environment, version
from _tally import Cost, Running
from gossamer.lab.simweb.log import fetched
from gossamer.lab.simweb.process import SimWeb

DEADLINE_SECONDS = 900.0
AT_ONCE = 8


def crawl(name: str, pages: int, latency: float) -> Cost:
    fields: dict[str, Any] = {"sites": 1, "pages_per_site": pages, "page_bytes": 40_000, "links_per_page": 100}
    with (
        SimWeb(**fields, latency_seconds=latency) as web,
        tempfile.TemporaryDirectory(prefix="one-site-") as place,
    ):
        folder = Path(place)
        commands = {
            "gossamer": [
                sys.executable, "-m", "gossamer", "crawl", web.seeds[0], "--job", str(folder / "job"), "--no-robots",
                "--delay", "0", "--per-site", str(AT_ONCE), "--allow-private", "--quiet",
            ],
            "wget2": [
                str(environment("wget2")), "--recursive", "--level=0", f"--max-threads={AT_ONCE}", "--robots=off",
                "--quiet", "--tries=1", f"--directory-prefix={folder / 'files'}", web.seeds[0],
            ],
        }  # fmt: skip
        running = Running(commands[name], folder / "cost.json")
        cost = running.cost(DEADLINE_SECONDS)
        counts = fetched(web.log())
        missing = len(web.reachable() - set(counts))
        stored = pages if name == "wget2" else sum(len(urls(path)) for path in (folder / "job").glob("pages*.jsonl"))
        if cost is None or missing or stored != pages:
            sys.exit(f"{name}: {missing} pages missing, {stored} stored: {running.errors.read_text()[-600:]}")
        return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--latency", type=float, default=0.02, help="response time of the server in seconds")
    choice = parser.parse_args()
    try:
        peer = version("wget2")
    except NotInstalled as error:
        sys.exit(f"!!! NOT RUN: {error}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, wget2 {peer}")
    costs: dict[str, list[Cost]] = {"gossamer": [], "wget2": []}
    for number in range(choice.runs):
        for name in sorted(costs, reverse=bool(number % 2)):
            cost = crawl(name, choice.pages, choice.latency)
            costs[name].append(cost)
            print(
                f"  run {number + 1}: {name:10} {cost.wall_seconds:6.2f} s, "
                f"{cost.cpu_seconds / choice.pages * 1000:5.2f} CPU ms a page, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    times = [ours.wall_seconds / its.wall_seconds for ours, its in zip(costs["gossamer"], costs["wget2"])]
    print(
        f"wall time beside wget2's: {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f}), the aim 1.5"
    )


if __name__ == "__main__":
    main()
