"""Threads, processes, and asyncio: 2,941 slow sites, one page each, 16 workers of each kind, and a plain script.

    python benchmarks/threads_processes_asyncio.py [--sites 2941] [--scale 1.0] [--only asyncio] [--plot]

Sites take 0.05 to 5 s, and some never respond: see _slow_web.py. The plain script uses requests and html5lib with a
timeout of 5 s. Gossamer crawls the same list in each of its modes, with the same timeout, one try, no robots.txt, and
no delay. `--scale 0.1` makes latencies and timeouts ten times shorter, but not the CPU time, which then weighs more.
CPU is that of the process tree; the web is a separate process, which is not measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from _fleet import urls
from _peers import NotInstalled, environment
from _plot import Bar, bars
from _slow_web import SlowWeb, answering
from _tally import Running

SECONDS = 5.0
SCRIPT = Path(__file__).with_name("peers") / "classic.py"
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "threads-processes-asyncio.svg"


class Mode(NamedTuple):
    """One way to crawl the list."""

    name: str
    options: tuple[str, ...]
    at_once: int
    is_classic: bool = False


MODES = (
    Mode("classic, 16 threads", (), 16, is_classic=True),
    Mode("classic, 16 processes", ("--processes",), 16, is_classic=True),
    Mode("gossamer, 16 threads", ("--downloader", "threads", "--concurrency", "16"), 16),
    Mode("gossamer, 16 processes", ("--workers", "16", "--concurrency", "1"), 16),
    Mode("gossamer, asyncio, 16 at once", ("--concurrency", "16"), 16),
    Mode("gossamer, 4 processes x asyncio, 4", ("--workers", "4", "--concurrency", "4"), 16),
    Mode("gossamer, asyncio, 256 at once", ("--concurrency", "256"), 256),
    Mode("gossamer, 2 processes x asyncio, 256", ("--workers", "2", "--concurrency", "256"), 512),
)


class Result(NamedTuple):
    """Result of one mode."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    pages: int


def run(mode: Mode, sites: int, scale: float) -> Result:
    with SlowWeb(sites, scale) as web, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seeds, seconds = folder / "seeds.txt", str(SECONDS * scale)
        seeds.write_text("\n".join(web.seeds))
        output = folder / "pages.jsonl" if mode.is_classic else folder / "job" / "pages.jsonl"
        if mode.is_classic:
            command = [str(environment("requests")), str(SCRIPT), str(seeds), str(output), *mode.options]
        else:
            command = [
                sys.executable, "-m", "gossamer", "crawl", "--seeds", str(seeds), "--job", str(folder / "job"),
                "--no-robots", "--delay", "0", "--allow-private", "--quiet", "--max-depth", "0", "--tries", "1",
                "--fetch-seconds", seconds, "--connect-seconds", seconds, *mode.options,
            ]  # fmt: skip
        cost = Running(command, folder / "cost.json", TIMEOUT=seconds).cost(3600)
        if cost is None:
            sys.exit(f"{mode.name}: not done after an hour")
        return Result(cost.wall_seconds, cost.cpu_seconds, cost.peak_bytes, len(urls(output)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=2941)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", default=[""], help="modes whose name contains one of these")
    parser.add_argument("--plot", action="store_true", help="write the chart for docs/explanation")
    choice = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{choice.sites:,} sites, of which {answering(choice.sites):,} answer; latencies times {choice.scale:g}")
    print(
        f"{'':38} {'at once':>8} {'seconds':>9} {'CPU s':>8} {'CPU ms a page':>14} {'peak MB':>8} {'pages':>7} "
        f"{'load':>6}"
    )
    chart = []
    for mode in MODES:
        if not any(part in mode.name for part in choice.only):
            continue
        try:
            found = run(mode, choice.sites, choice.scale)
        except NotInstalled as error:
            print(f"!!! {mode.name} COULD NOT BE RUN: {error}", flush=True)
            continue
        chart.append(Bar(mode.name, found.wall_seconds, not mode.is_classic, f"{found.cpu_seconds:.0f} s CPU"))
        print(
            f"{mode.name:38} {mode.at_once:>8} {found.wall_seconds:>9.1f} {found.cpu_seconds:>8.1f} "
            f"{found.cpu_seconds / max(1, found.pages) * 1000:>14.2f} {found.peak_bytes / 2**20:>8.0f} "
            f"{found.pages:>7} {os.getloadavg()[0]:>6.1f}",
            flush=True,
        )
    if choice.plot:
        title = f"{choice.sites:,} slow sites, one page each: seconds"
        PICTURE.write_text(bars(chart, title=title, unit="s,"))


if __name__ == "__main__":
    main()
