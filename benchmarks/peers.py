"""Gossamer beside Scrapy and a hand-written script: the same crawl, CPU milliseconds a page of the whole process tree.

    python benchmarks/peers.py [--runs 3] [--pages 4000] [--hosts 40]

Every page of a simulated web of 40 KB pages on 40 hosts: title and link count to JSON lines, no delay, robots off.
The web server runs in a process of its own and is not counted. Runs alternate; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gossamer.testing.web import SimWeb

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ENVIRONMENTS = ROOT / ".bench"
PEERS = {"scrapy": "scrapy", "script": "aiohttp selectolax uvloop"}


class Run(NamedTuple):
    """What one crawl cost."""

    cpu_seconds: float
    wall_seconds: float
    pages: int


def environment(name: str) -> Path:
    """The Python of a peer's own environment, made on first use."""
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"installing {PEERS[name]} ...", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", *PEERS[name].split()], check=True, stdout=subprocess.DEVNULL
        )
        (folder / "ready").touch()
    return python


def measure(command: list[str], output: Path, **environment_variables: str) -> Run:
    """Run a command to its end; CPU of it and all its children."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, **environment_variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if not output.exists():
        sys.exit(f"{command[0]} failed:\n{done.stderr.decode()[-2000:]}")
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    urls = [json.loads(line)["url"] for line in output.open("rb")]
    if len(set(urls)) != len(urls):
        print(f"  note: {command[1]} stored {len(urls) - len(set(urls))} pages twice", file=sys.stderr)
    return Run(cpu, wall, len(set(urls)))


def gossamer(web: SimWeb, folder: Path, *options: str) -> Run:
    seeds = folder / "seeds.txt"
    seeds.write_text("\n".join(web.seeds))
    command = [
        sys.executable, "-m", "gossamer", "crawl", "--seeds", str(seeds), "--job", str(folder / "job"), "--no-robots",
        "--delay", "0", "--allow-private", "--concurrency", "100", "--quiet", *options,
    ]  # fmt: skip
    return measure(command, folder / "job" / "pages.jsonl")


def peer(name: str, script: str, *arguments: str) -> Callable[[SimWeb, Path], Run]:
    def run(web: SimWeb, folder: Path) -> Run:
        seeds, output = folder / "seeds.txt", folder / "pages.jsonl"
        seeds.write_text("\n".join(web.seeds))
        command = [str(environment(name)), str(HERE / "peers.d" / script), str(seeds), str(output), *arguments]
        return measure(command, output)

    return run


CONTENDERS: dict[str, Callable[[SimWeb, Path], Run]] = {
    "gossamer": gossamer,
    "gossamer --workers 2": lambda web, folder: gossamer(web, folder, "--workers", "2"),
    "script (aiohttp + selectolax)": peer("script", "script.py"),
    "scrapy, own seen set": peer("scrapy", "scrapy_crawl.py", "seen"),
    "scrapy": peer("scrapy", "scrapy_crawl.py"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pages", type=int, default=4000)
    parser.add_argument("--hosts", type=int, default=40)
    parser.add_argument("--only", default="", help="contenders whose name contains this, and gossamer")
    choice = parser.parse_args()
    contenders = {name: run for name, run in CONTENDERS.items() if choice.only in name or name == "gossamer"}
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    costs: dict[str, list[Run]] = {name: [] for name in contenders}
    for number in range(choice.runs):
        for name, contender in contenders.items():
            with (
                SimWeb(
                    sites=choice.hosts,
                    pages_per_site=choice.pages // choice.hosts,
                    page_bytes=40_000,
                    links_per_page=100,
                ) as web,
                tempfile.TemporaryDirectory() as folder,
            ):
                run = contender(web, Path(folder))
            costs[name].append(run)
            print(
                f"  run {number + 1}: {name:32} {run.cpu_seconds / run.pages * 1000:7.2f} ms a page, {run.pages} pages",
                flush=True,
            )
    base = statistics.median(run.cpu_seconds / run.pages for run in costs["gossamer"])
    print(f"\n{'':32} {'CPU ms a page':>14} {'pages/s':>9} {'pages':>7} {'times gossamer':>15}")
    for name, runs in costs.items():
        cpu = statistics.median(run.cpu_seconds / run.pages for run in runs)
        rate = statistics.median(run.pages / run.wall_seconds for run in runs)
        print(f"{name:32} {cpu * 1000:14.2f} {rate:9.0f} {runs[-1].pages:7} {cpu / base:15.1f}")


if __name__ == "__main__":
    main()
