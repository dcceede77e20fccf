"""Broad crawls, one page per host: CPU per page that TLS adds to a whole crawl, compared with Scrapy.

    python benchmarks/tls.py [--hosts 2000] [--runs 3] [--no-scrapy]

The same web by HTTP and HTTPS in turn: 40 KB pages, names that are resolved with `--resolve`, and certificates of an
authority created for the run. The web server runs in its own process, which is not measured. Scrapy fetches the same
pages by HTTPS; by default it does not verify certificates, and it needs no DNS lookups here: both are in its favor.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from _peers import SCRIPTS, Run, environment, measure
from gossamer.lab.simweb.process import SimWeb

Crawl = Callable[[SimWeb, Path, Path], Run]


def gossamer(web: SimWeb, seeds: Path, folder: Path) -> Run:
    command = [
        sys.executable, "-m", "gossamer", "crawl", "--seeds", str(seeds), "--job", f"{folder}/job", "--no-robots",
        "--allow-private", "--concurrency", "100", "--quiet", "--resolve", "*.sim=127.0.0.1",
        *(("--ca-file", str(web.ca_file)) if seeds.read_text().startswith("https") else ()),
    ]  # fmt: skip
    return measure(command, folder / "job" / "pages.jsonl")


def scrapy(web: SimWeb, seeds: Path, folder: Path) -> Run:
    output = folder / "pages.jsonl"
    command = [str(environment("scrapy")), str(SCRIPTS / "scrapy_broad.py"), str(seeds), str(output)]
    return measure(command, output)


def crawl(contender: Crawl, hosts: int, *, tls: bool) -> Run:
    with (
        SimWeb(sites=hosts, pages_per_site=1, page_bytes=40_000, links_per_page=50, names=True, tls=tls) as web,
        tempfile.TemporaryDirectory() as folder,
    ):
        seeds = Path(folder) / "seeds.txt"
        seeds.write_text("\n".join(web.seeds))
        return contender(web, seeds, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-scrapy", action="store_true")
    choice = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    contenders: dict[str, tuple[Crawl, bool]] = {
        "gossamer, http": (gossamer, False),
        "gossamer, https": (gossamer, True),
        "scrapy, https": (scrapy, True),
    }
    if choice.no_scrapy:
        del contenders["scrapy, https"]
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(choice.runs):
        for name, (contender, tls) in contenders.items():
            run = crawl(contender, choice.hosts, tls=tls)
            costs[name].append(run.cpu_seconds / run.pages * 1000)
            load = os.getloadavg()[0]
            print(f"  {name:16} {costs[name][-1]:6.2f} ms a page, {run.pages} pages, load {load:.1f}", flush=True)
    plain, secure, *other = (statistics.median(found) for found in costs.values())
    print(f"\nhttp {plain:.2f}, https {secure:.2f}: TLS adds {secure - plain:.2f} ms of CPU a page")
    if other:
        print(f"scrapy {other[0]:.2f}: {other[0] / secure:.1f} times as much by https")


if __name__ == "__main__":
    main()
