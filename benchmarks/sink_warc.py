"""Cost per page of the sink `warc`, compared with `jsonl`: the sinks alone, and whole crawls with and without it."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gossamer.lab.simweb.pages import PageRenderer
from gossamer.lab.simweb.process import SimWeb
from gossamer.lab.simweb.site import WebPlan
from gossamer.model import Exchange, PageRow, Record
from gossamer.settings import Settings
from gossamer.storage.registry import open_sinks

PAGE_BYTES = 40_000
BATCH = 64
REAL = Path(__file__).parents[2] / "shared" / "suites" / "pages-article-benchmark" / "html"
HEADERS = (
    ("content-type", "text/html; charset=utf-8"),
    ("content-encoding", "gzip"),
    ("date", "Tue, 14 Nov 2023 22:13:20 GMT"),
    ("server", "nginx"),
    ("cache-control", "max-age=600"),
    ("etag", '"5f3c-60a1b2c3d4e5f"'),
    ("set-cookie", "session=0123456789abcdef; path=/"),
    ("vary", "Accept-Encoding"),
)


def bodies() -> tuple[str, list[bytes]]:
    """Pages of 40 KB: real ones from the external suites if available, otherwise those of the simulated web."""
    if REAL.is_dir():
        real = [gzip.decompress(path.read_bytes()) for path in sorted(REAL.iterdir())]
        return "real pages", [(body * 3)[:PAGE_BYTES] for body in real if len(body) * 3 >= PAGE_BYTES]
    plan = WebPlan(sites=1, pages_per_site=150, page_bytes=PAGE_BYTES)
    web = PageRenderer(plan)
    return "simulated pages", [web.answer(0, plan.path(0, number)).body for number in range(150)]


def records(count: int, pages: list[bytes]) -> list[Record]:
    """Visits of different pages: no body comes twice."""
    return [
        Record(
            key=number,
            token=1,
            page=PageRow(
                url=f"https://www.site{number % 40}.example/articles/{number}?page={number % 7}",
                status=200,
                title="A page of the benchmark",
                fetched_at=1_700_000_000.0 + number,
                referrer=f"https://www.site{number % 40}.example/",
            ),
            body=f"<!-- {number} -->".encode() + pages[number % len(pages)],
            exchange=Exchange(
                sent=(("user-agent", "Gossamer"), ("accept", "text/html"), ("accept-encoding", "gzip, br, zstd")),
                version="HTTP/2.0",
                address="192.0.2.1",
                headers=HEADERS,
                wire_bytes=11_000,
            ),
        )
        for number in range(count)
    ]


def sink_milliseconds(sink: str, some: list[Record]) -> tuple[float, int]:
    """CPU time per page to write these records in batches, and bytes on disk."""

    async def run(folder: Path) -> float:
        opened = open_sinks(Settings(sink=(sink,)), folder, {})[0]
        began = time.process_time()
        for start in range(0, len(some), BATCH):
            await opened.write(some[start : start + BATCH])
        await opened.aclose()
        return time.process_time() - began

    with tempfile.TemporaryDirectory() as folder:
        spent = asyncio.run(run(Path(folder)))
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return spent / len(some) * 1000, size // len(some)


def crawl_milliseconds(web: SimWeb, pages: int, sinks: list[str]) -> float:
    """CPU time per page of a whole crawl's process tree."""
    with tempfile.TemporaryDirectory() as folder:
        seeds = Path(folder) / "seeds"
        seeds.write_text("\n".join(web.seeds))
        options = [word for sink in sinks for word in ("--sink", sink)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [
                *(sys.executable, "-m", "gossamer", "crawl", "--seeds", seeds, "--job", f"{folder}/job", "--quiet"),
                *("--allow-private", "--delay", "0", "--no-robots", "--concurrency", "100", *options),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) / pages * 1000


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    kind, pages = bodies()
    try:
        deflate = f"isal {version('isal')}"
    except PackageNotFoundError:
        deflate = "zlib"
    print(f"python {platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores, {deflate}; {kind}")
    some = records(arguments.pages, pages)
    spent: dict[str, list[float]] = {"jsonl": [], "warc": []}
    sizes = {}
    for _ in range(arguments.runs):
        for sink, figures in spent.items():
            figure, sizes[sink] = sink_milliseconds(sink, some)
            figures.append(figure)
    for sink, figures in spent.items():
        print(
            f"sink {sink:6} {statistics.median(figures):.3f} ms CPU a page of {PAGE_BYTES // 1000} KB"
            f" ({min(figures):.3f} to {max(figures):.3f}), {sizes[sink]} bytes a page on disk"
        )
    whole: dict[str, list[float]] = {"jsonl": [], "jsonl + warc": []}
    with SimWeb(sites=40, pages_per_site=arguments.pages // 40, page_bytes=PAGE_BYTES) as web:
        for _ in range(arguments.runs):
            for sinks, figures in whole.items():
                figures.append(crawl_milliseconds(web, arguments.pages // 40 * 40, sinks.split(" + ")))
    for sinks, figures in whole.items():
        print(
            f"crawl {sinks:12} {statistics.median(figures):.3f} ms CPU a page"
            f" ({min(figures):.3f} to {max(figures):.3f})"
        )
    added = statistics.median(whole["jsonl + warc"]) - statistics.median(whole["jsonl"])
    print(f"warc adds {added:.3f} ms CPU a page to the crawl; 0.6 is the limit")


if __name__ == "__main__":
    main()
