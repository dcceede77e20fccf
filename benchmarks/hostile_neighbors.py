"""The interval between requests to one normal site, alone and together with ten sites on which the spider never ends.

python benchmarks/hostile_neighbors.py [--seconds 60] [--delay 0.5]

Measured by the web server's log: the time between two requests to the normal site, which may be 10 % longer with the
others. The first pages of each hostile site use their time slice in the worker; later ones go to another process."""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from gossamer.lab.simweb.process import SimWeb
from gossamer.settings import VERSION

SPIDER = """
import gossamer

class Loops(gossamer.Spider):
    follows_links = True

    def parse(self, page):
        while {hostile} and not page.url.startswith({honest!r}):
            pass
"""


def gaps(hostile: bool, seconds: float, delay: float) -> list[float]:
    """Seconds between requests to the normal site."""
    with tempfile.TemporaryDirectory() as place, SimWeb(sites=11, pages_per_site=400, page_bytes=20_000) as web:
        spider = Path(place) / "loops.py"
        spider.write_text(SPIDER.format(hostile=hostile, honest=web.seeds[0]))
        words = ["--spider", str(spider), "--delay", str(delay), "--max-seconds", str(seconds), "--allow-private"]
        command = [sys.executable, "-m", "gossamer", "crawl", *web.seeds, "--job", f"{place}/job", "--quiet", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        # Only pages, without robots.txt, which the first page waits for.
        pages = [one for one in web.log() if one.url.startswith(web.seeds[0]) and one.target != "/robots.txt"]
        sent = sorted(one.arrived_at for one in pages)
    return [after - before for before, after in pairwise(sent)]


def main() -> None:
    options = argparse.ArgumentParser(description="One honest site beside ten hostile ones.")
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--delay", type=float, default=0.5)
    chosen = options.parse_args()
    print(f"gossamer {VERSION}, Python {platform.python_version()}, {platform.machine()}, {chosen.seconds:g} s each")
    means = []
    for words, hostile in (("eleven honest sites", False), ("beside ten hostile ones", True)):
        found = gaps(hostile, chosen.seconds, chosen.delay)
        means.append(statistics.mean(found))
        rest = f"median {statistics.median(found):.3f} s, longest {max(found):.3f} s, {len(found) + 1} requests"
        print(f"{words:<24} mean {means[-1]:.3f} s, {rest}")
    print(f"the mean is {means[1] / means[0]:.3f} times as long")


if __name__ == "__main__":
    main()
