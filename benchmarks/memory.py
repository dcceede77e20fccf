"""Memory of a worker over a long crawl: its resident set size must stay flat.

    python benchmarks/memory.py [--pages 100000]

A separate worker (`--workers 2`, so that the frontier's memory is in another process) crawls small pages; the first
10 % are warm-up.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gossamer.lab.simweb.process import SimWeb


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=100_000)
    choice = parser.parse_args()
    sites = 200
    with (
        SimWeb(sites=sites, pages_per_site=choice.pages // sites + 50, page_bytes=6000, links_per_page=20) as web,
        tempfile.TemporaryDirectory() as folder,
    ):
        seeds, pages = Path(folder) / "seeds.txt", Path(folder) / "job" / "pages.jsonl"
        seeds.write_text("\n".join(web.seeds))
        command = [
            sys.executable, "-m", "gossamer", "crawl", "--seeds", str(seeds), "--job", f"{folder}/job", "--delay", "0",
            "--allow-private", "--quiet", "--workers", "2", "--max-pages", str(choice.pages),
        ]  # fmt: skip
        process = subprocess.Popen(command)
        samples: list[tuple[int, int, int]] = []
        while process.poll() is None:
            time.sleep(2)
            stored = pages.read_bytes().count(b"\n") if pages.exists() else 0
            workers = [resident_bytes(pid) for pid in children(process.pid)] if process.poll() is None else []
            if workers:
                samples.append((stored, max(workers), resident_bytes(process.pid)))
                print(
                    f"{stored:>8} pages: worker {max(workers) / 2**20:6.1f} MB, owner {samples[-1][2] / 2**20:6.1f} MB",
                    flush=True,
                )
    warm = [sample for sample in samples if sample[0] > choice.pages * 0.1]
    first, last = warm[0], warm[-1]
    slope = (last[1] - first[1]) / max(1, last[0] - first[0]) * 10_000
    print(f"worker: {first[1] / 2**20:.1f} MB at {first[0]} pages, {last[1] / 2**20:.1f} MB at {last[0]}")
    print(
        f"slope: {slope / 2**20:+.2f} MB per 10,000 pages; most {max(sample[1] for sample in samples) / 2**20:.1f} MB"
    )


if __name__ == "__main__":
    main()
