"""CPU profile of a crawl: functions of the main thread by their own time, in microseconds per page.

    python benchmarks/attribution.py [--shape links] [--scale 3] [--top 25] [--lines] [--under gossamer/extract]

A timer interrupts the crawl 500 times per second. Each sample adds the thread's CPU time since the previous sample to
the running Python function; time in C libraries counts for their caller. "Whole" is a function including its callees.
Other threads, such as the HTTP client's, are only in the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import runpy
import signal
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

from _contenders import Scene, gossamer
from _fleet import urls
from _shapes import SHAPES
from _tally import Running
from gossamer.lab.simweb.process import SimWeb
from real_sites import REAL, Nginx, install

INTERVAL_SECONDS = 0.002
DEADLINE_SECONDS = 1800.0
_IN_CRAWL = "ATTRIBUTION_OUTPUT"


class Sampler:
    """Sums the CPU time of the main thread by stack."""

    def __init__(self) -> None:
        self._own: dict[tuple[str, str, int], float] = defaultdict(float)
        self._whole: dict[tuple[str, str], float] = defaultdict(float)
        self._seen = time.thread_time()
        signal.signal(signal.SIGALRM, self._sample)
        signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS, INTERVAL_SECONDS)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        now = time.thread_time()
        used, self._seen = now - self._seen, now
        # Ignore a sample that interrupts another one.
        if frame is None or frame.f_code is Sampler._sample.__code__:
            return
        self._own[_file(frame), frame.f_code.co_qualname, frame.f_lineno] += used
        callers = set()
        up: FrameType | None = frame
        while up is not None:
            callers.add((_file(up), up.f_code.co_qualname))
            up = up.f_back
        for caller in callers:
            self._whole[caller] += used
        # Exclude the time of the sampling itself.
        self._seen = time.thread_time()

    def write(self, path: Path) -> None:
        """Stop, and write the result."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        used = resource.getrusage(resource.RUSAGE_SELF)
        found = {
            "own": [[*place, seconds] for place, seconds in self._own.items()],
            "whole": [[*place, seconds] for place, seconds in self._whole.items()],
            "thread": time.thread_time(),
            "process": used.ru_utime + used.ru_stime,
        }
        path.write_text(json.dumps(found))


def _file(frame: FrameType) -> str:
    return "/".join(frame.f_code.co_filename.split("/")[-3:])


def sampled() -> None:
    """Run the command `gossamer` in this process and sample it."""
    output, leave = Path(os.environ.pop(_IN_CRAWL)), os._exit
    sampler = Sampler()

    def write_and_leave(code: int) -> NoReturn:
        sampler.write(output)
        leave(code)

    # The command may leave by os._exit, which runs no `finally`.
    os._exit = write_and_leave  # type: ignore[assignment]
    try:
        runpy.run_module("gossamer", run_name="__main__", alter_sys=True)
    finally:
        sampler.write(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="links", choices=[*SHAPES, "real"], help="real: the web of real_sites.py")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the shape's pages")
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--lines", action="store_true", help="each line on its own, not each function")
    parser.add_argument("--under", default="", help="only functions of files with this in their path")
    choice = parser.parse_args()
    shape = REAL if choice.shape == "real" else SHAPES[choice.shape].scaled(choice.scale)
    if shape is REAL:
        install()
    with ExitStack() as stack:
        web: Any = stack.enter_context(cast(SimWeb, Nginx()) if shape is REAL else shape.web(shape.plan))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attribution-")))
        scene = Scene(web, folder, shape, Path())
        scene.seeds.write_text("\n".join(web.seeds))
        _, _, _, *arguments = gossamer(scene, "")
        command = [sys.executable, __file__, *arguments]
        running = Running(command, folder / "cost.json", **{_IN_CRAWL: str(folder / "samples.json")})
        cost = running.cost(DEADLINE_SECONDS)
        pages = len({url for path in scene.outputs() for url in urls(path)})
        if cost is None or not pages:
            sys.exit(f"the crawl failed: {running.errors.read_text()[-2000:]}")
        found = json.loads((folder / "samples.json").read_text())
    report(found, pages, choice)


def report(found: dict[str, Any], pages: int, choice: argparse.Namespace) -> None:
    whole = {(file, name): seconds for file, name, seconds in found["whole"]}
    own: dict[tuple[object, ...], float] = defaultdict(float)
    rooms: dict[str, float] = defaultdict(float)
    total = 0.0
    for file, name, line, seconds in found["own"]:
        total += seconds
        room = "/".join(file.split("/")[:-1]) if "gossamer" in file else "other"
        rooms[room] += seconds
        if choice.under in file:
            own[(file, name, line) if choice.lines else (file, name)] += seconds
    share = 1e6 / pages
    print(f"{platform.machine()}, Python {platform.python_version()}, {pages:,} pages; us a page")
    print(f"{'own':>8} {'whole':>8}  of {total * share:.0f} in the main thread, the start included")
    for place, seconds in sorted(own.items(), key=lambda one: -one[1])[: choice.top]:
        where = f"{place[0]}:{place[2]}" if choice.lines else str(place[0])
        print(f"{seconds * share:8.1f} {whole[place[0], place[1]] * share:8.1f}  {place[1]}  ({where})")
    print(
        "by folder: "
        + ", ".join(
            f"{room} {seconds * share:.0f}"
            for room, seconds in sorted(rooms.items(), key=lambda one: -one[1])
            if seconds * share >= 1
        )
    )
    print(f"other threads: {(found['process'] - found['thread']) * share:.0f}")


if __name__ == "__main__":
    if _IN_CRAWL in os.environ:
        sampled()
    else:
        main()
