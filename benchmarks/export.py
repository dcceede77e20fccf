"""Memory and time of an export of many pages, from each storage format."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from gossamer.model import PageRow, Record
from gossamer.settings import Settings
from gossamer.storage.registry import open_sinks
from gossamer.storage.segments import SegmentSink

BATCH = 5000
LIMIT_MB = 500
CASES = (("jsonl", "parquet"), ("segments", "parquet"), ("parquet", "parquet"), ("jsonl", "csv"), ("jsonl", "jsonl"))


def record(number: int, token: int = 1) -> Record:
    """A typical visit."""
    url = f"https://www.site{number % 4000}.example/articles/{number}/a-title-of-some-words?page={number % 7}"
    return Record(
        key=number * 7919 % (1 << 62),
        token=token,
        page=PageRow(
            url=url,
            status=200 if number % 20 else 404,
            depth=number % 9,
            title=f"A page about number {number}, and some more words",
            fetched_at=1_767_225_600.0 + number / 10,
            elapsed=0.123,
            bytes=40_000 + number % 1000,
            digest=hashlib.sha1(url.encode()).hexdigest(),
            links=number % 200,
            referrer=f"https://www.site{number % 4000}.example/articles/",
        ),
    )


async def store(folder: Path, kind: str, pages: int) -> None:
    """Store pages; in segments, every tenth page twice, as in a fleet that loses workers."""
    sink = SegmentSink(folder, "w0") if kind == "segments" else open_sinks(Settings(sink=(kind,)), folder, {})[0]
    for start in range(0, pages, BATCH):
        some = [record(number) for number in range(start, min(pages, start + BATCH))]
        if kind == "segments":
            some += [record(number, 2) for number in range(start, start + BATCH, 10)]
        await sink.write(some)
    await sink.aclose()


def exported(folder: Path, kind: str) -> tuple[float, float, int]:
    """Peak memory in MB, CPU seconds, and rows of an export in its own process."""
    out = folder.parent / f"out.{kind}"
    # The peak in `resource` includes the memory of the parent process.
    code = "import os; from gossamer.cli import run_command\ntry: run_command()\n"
    code += "finally:\n spent = sum(os.times()[:2])\n"
    code += " print(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1], spent)"
    words = ["export", str(folder), "--format", kind, "--out", str(out)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    peak, spent = done.stdout.split()
    rows = int(done.stderr.split(": ")[-1].split()[0].replace(",", ""))
    out.unlink()
    return int(peak) / 1024, float(spent), rows


def main() -> None:
    """Print a line for each format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=1_000_000)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"python {platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores, pyarrow"
        f" {version('pyarrow')}; {arguments.pages:,} pages; load {load:.1f}"
    )
    with tempfile.TemporaryDirectory() as place:
        for kind, form in CASES:
            folder = Path(place) / kind
            if not folder.exists():
                folder.mkdir()
                began = time.process_time()
                asyncio.run(store(folder, kind, arguments.pages))
                print(f"  ({kind}: written in {time.process_time() - began:.0f} s CPU,"
                      f" {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB)")  # fmt: skip
            peak, spent, rows = exported(folder, form)
            assert rows == arguments.pages, rows
            print(f"{kind} -> {form}: peak {peak:.0f} MB (limit {LIMIT_MB}), {spent:.1f} s CPU, {rows:,} pages")


if __name__ == "__main__":
    main()
