"""A changed spider on stored pages: `gossamer replay` compared with Scrapy from its HTTP cache.

    python benchmarks/replay.py [--runs 3] [--pages 8000] [--hosts 20] [--spider links|items]

Both read the same pages of 40 KB and extract the same items: title and links of every page, or a few fields of the
products on it. Filling the stores is not measured; then both run in turn. CPU is that of the process tree, including
the start; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _peers import SCRIPTS, Run, environment, measure
from gossamer.lab.simweb.process import SimWeb

ITEMS = """
from gossamer import Spider

class Pages(Spider):
    def parse(self, page):
        for item in page.css("div.item"):
            yield {
                "url": page.url,
                "title": page.title,
                "name": item.css(".name::text").get(),
                "price": item.css(".price::text").get(),
            }
"""
LINKS = """
from gossamer import Spider

class Pages(Spider):
    def parse(self, page):
        yield {"url": page.url, "title": page.title, "links": page.links()}
"""
SPIDERS = {"links": LINKS, "items": ITEMS}


def fill(folder: Path, *, pages: int, hosts: int) -> list[str]:
    """Fill a WARC archive and Scrapy's caches with the same pages; returns their URLs."""
    plan: dict[str, Any] = {
        "sites": hosts,
        "pages_per_site": pages // hosts,
        "page_bytes": 40_000,
        "links_per_page": 100,
    }
    with SimWeb(**plan) as web:
        (folder / "seeds.txt").write_text("\n".join(web.seeds))
        subprocess.run(
            [
                sys.executable, "-m", "gossamer", "crawl", "--seeds", str(folder / "seeds.txt"), "--job",
                str(folder / "job"), "--no-robots", "--delay", "0", "--allow-private", "--concurrency", "100",
                "--quiet", "--sink", "jsonl", "--sink", "warc",
            ],
            check=True,
        )  # fmt: skip
        urls = [json.loads(line)["url"] for line in (folder / "job" / "pages.jsonl").open("rb")]
        (folder / "urls.txt").write_text("\n".join(urls))
        for storage in STORAGES:
            scrapy("fill", folder, storage, "items")
    return urls


def scrapy(mode: str, folder: Path, storage: str, spider: str) -> Run:
    output = folder / f"scrapy-{mode}.jsonl"
    output.unlink(missing_ok=True)
    script, cache = SCRIPTS / "scrapy_reparse.py", folder / f"cache-{storage}"
    command = [environment("scrapy"), script, mode, folder / "urls.txt", cache, output, storage, spider]
    return measure(list(map(str, command)), output)


def replay(folder: Path, *options: str) -> Run:
    out = folder / "out"
    command = [
        sys.executable, "-m", "gossamer", "replay", str(folder / "job"), "--spider", str(folder / "spider.py"),
        "--out", str(out), "--quiet", *options,
    ]  # fmt: skip
    return measure(command, out / "items.jsonl")


STORAGES = ("FilesystemCacheStorage", "DbmCacheStorage")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pages", type=int, default=8000)
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--spider", choices=list(SPIDERS), default="links")
    choice = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "spider.py").write_text(SPIDERS[choice.spider])
        count = len(fill(folder, pages=choice.pages, hosts=choice.hosts))
        contenders = {
            "gossamer replay": lambda: replay(folder),
            "gossamer replay --processes 1": lambda: replay(folder, "--processes", "1"),
            "scrapy, cache in files": lambda: scrapy("reparse", folder, STORAGES[0], choice.spider),
            "scrapy, cache in dbm": lambda: scrapy("reparse", folder, STORAGES[1], choice.spider),
        }
        runs: dict[str, list[Run]] = {name: [] for name in contenders}
        for number in range(choice.runs):
            for name, contender in contenders.items():
                run = contender()  # type: ignore[no-untyped-call]
                runs[name].append(run)
                load = os.getloadavg()[0]
                cost = f"{run.cpu_seconds:7.2f} s CPU, {run.wall_seconds:6.2f} s"
                print(f"  run {number + 1}: {name:32} {cost}, load {load:.1f}", flush=True)
        items = {
            name: sorted(path.read_text().splitlines(), key=lambda line: sorted(json.loads(line).items()))
            for name, path in (
                ("gossamer", folder / "out" / "items.jsonl"),
                ("scrapy", folder / "scrapy-reparse.jsonl"),
            )
        }
        same = [json.loads(line) for line in items["gossamer"]] == [json.loads(line) for line in items["scrapy"]]
        print(f"\n{count} pages; the items of both are {'equal' if same else 'NOT equal'} ({len(items['gossamer'])})")
    print(f"{'':32} {'CPU ms a page':>14} {'pages/s':>9} {'CPU':>7} {'time':>7}")
    base = runs["gossamer replay"]
    for name, measured in runs.items():
        cpu = statistics.median(run.cpu_seconds for run in measured)
        wall = statistics.median(run.wall_seconds for run in measured)
        times_cpu = cpu / statistics.median(run.cpu_seconds for run in base)
        times = wall / statistics.median(run.wall_seconds for run in base)
        print(f"{name:32} {cpu / count * 1000:14.2f} {count / wall:9.0f} {times_cpu:6.1f}x {times:6.1f}x")


if __name__ == "__main__":
    main()
