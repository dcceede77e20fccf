"""Cost per page of the sink `parquet`, compared with `jsonl`: the sinks alone, and whole crawls with and without it."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from importlib.metadata import version

from gossamer.lab.simweb.process import SimWeb
from sink_warc import PAGE_BYTES, bodies, crawl_milliseconds, records, sink_milliseconds

SINKS = ("jsonl", "parquet", "parquet?by=day,site")
CRAWLS = ("jsonl", "jsonl + parquet", "jsonl + warc", "jsonl + warc + parquet")


def said(figures: list[float]) -> str:
    """The median, with the range of the runs."""
    return f"{statistics.median(figures):.3f} ms CPU a page ({min(figures):.3f} to {max(figures):.3f})"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=20_000, help="pages for the sinks alone")
    parser.add_argument("--crawled", type=int, default=2000, help="pages for whole crawls")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    kind, pages = bodies()
    print(
        f"python {platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores, pyarrow"
        f" {version('pyarrow')}; {kind} of {PAGE_BYTES // 1000} KB; load {os.getloadavg()[0]:.1f}"
    )
    some = records(arguments.pages, [page[:1000] for page in pages])
    alone: dict[str, list[float]] = {sink: [] for sink in SINKS}
    sizes = {}
    for _ in range(arguments.runs):
        for sink, figures in alone.items():
            figure, sizes[sink] = sink_milliseconds(sink, some)
            figures.append(figure)
    for sink, figures in alone.items():
        print(f"sink {sink:20} {said(figures)}, {sizes[sink]} bytes a page on disk")
    whole: dict[str, list[float]] = {sinks: [] for sinks in CRAWLS}
    with SimWeb(sites=40, pages_per_site=arguments.crawled // 40, page_bytes=PAGE_BYTES) as web:
        for _ in range(max(1, arguments.runs)):
            for sinks, figures in whole.items():
                figures.append(crawl_milliseconds(web, arguments.crawled // 40 * 40, sinks.split(" + ")))
    for sinks, figures in whole.items():
        print(f"crawl {sinks:24} {said(figures)}")
    for without, added in (CRAWLS[:2], CRAWLS[2:]):
        more = statistics.median(b - a for a, b in zip(whole[without], whole[added], strict=True))
        print(f"parquet adds {more:.3f} ms CPU a page to {without}; 0.15 is the limit")


if __name__ == "__main__":
    main()
