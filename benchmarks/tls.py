"""Broad crawls, one page a host: what TLS adds to the CPU of a page, with the whole crawl counted.

    python benchmarks/tls.py [--hosts 2000] [--runs 3]

The same web by http and by https in turn: 40 KB pages, names that only `--resolve` knows, certificates of an authority
made for the run. The web server runs in a process of its own and is not counted.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

from gossamer.testing.web import SimWeb
from peers import Run, measure


def crawl(hosts: int, *, tls: bool) -> Run:
    with (
        SimWeb(sites=hosts, pages_per_site=1, page_bytes=40_000, links_per_page=50, names=True, tls=tls) as web,
        tempfile.TemporaryDirectory() as folder,
    ):
        seeds = Path(folder) / "seeds.txt"
        seeds.write_text("\n".join(web.seeds))
        command = [
            sys.executable, "-m", "gossamer", "crawl", "--seeds", str(seeds), "--job", f"{folder}/job", "--no-robots",
            "--allow-private", "--concurrency", "100", "--quiet", "--resolve", "*.sim=127.0.0.1",
            *(("--ca-file", str(web.ca_file)) if tls else ()),
        ]  # fmt: skip
        return measure(command, Path(folder) / "job" / "pages.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    choice = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    costs: dict[str, list[float]] = {"http": [], "https": []}
    for _ in range(choice.runs):
        for scheme, found in costs.items():
            run = crawl(choice.hosts, tls=scheme == "https")
            found.append(run.cpu_seconds / run.pages * 1000)
            print(f"  {scheme:6} {found[-1]:6.2f} ms a page, {run.pages} pages", flush=True)
    plain, secure = (statistics.median(found) for found in costs.values())
    print(f"\nhttp {plain:.2f}, https {secure:.2f}: TLS adds {secure - plain:.2f} ms of CPU a page")


if __name__ == "__main__":
    main()
