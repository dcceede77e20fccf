"""CPU of whole crawls over the simulated web, as processes of their own; the web's is not counted."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gossamer.errors import GossamerError
from gossamer.plan.figures import LARGE_BYTES, SMALL_BYTES
from gossamer.testing.web import SimWeb

_CRAWL_LINKS = 50
_SITES = 40


class Crawled(NamedTuple):
    """CPU seconds of one page, or what comes on top."""

    small_page: float
    large_page: float
    host: float
    tls: float


def measure_crawls(*, pages: int, hosts: int, runs: int) -> Crawled:
    """Medians of so many runs, each with its start taken off."""
    found = [_once(pages, hosts) for _ in range(runs)]
    return Crawled(*(statistics.median(each) for each in zip(*found, strict=True)))


def _once(pages: int, hosts: int) -> Crawled:
    small, start = _deep(SMALL_BYTES, pages)
    large, _ = _deep(LARGE_BYTES, pages, start=start)
    plain, secure = _broad(hosts, start, tls=False), _broad(hosts, start, tls=True)
    return Crawled(small, large, max(0.0, plain - small), max(0.0, secure - plain))


def _deep(page_bytes: int, pages: int, *, start: float | None = None) -> tuple[float, float]:
    """CPU of a page, and of a start, where hosts have many pages."""
    each = max(2, pages // _SITES)
    with SimWeb(sites=_SITES, pages_per_site=each, page_bytes=page_bytes, links_per_page=_CRAWL_LINKS) as web:
        if start is None:
            # It weighs as much as hundreds of pages, so its own noise must not be taken for theirs.
            start = statistics.median(_crawl(web.seeds[:1], ["--max-pages", "1"]) for _ in range(3))
        return (_crawl(web.seeds, []) - start) / (_SITES * each), start


def _broad(hosts: int, start: float, *, tls: bool) -> float:
    """CPU of a page where every host has one, with its robots.txt."""
    with SimWeb(
        sites=hosts, pages_per_site=1, page_bytes=SMALL_BYTES, links_per_page=_CRAWL_LINKS, names=True, tls=tls
    ) as web:
        words = ["--resolve", "*.sim=127.0.0.1", *(("--ca-file", str(web.ca_file)) if tls else ())]
        return (_crawl(web.seeds, words) - start) / hosts


def _crawl(seeds: Sequence[str], words: Sequence[str]) -> float:
    """CPU seconds of a crawl from its start to its end."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        (Path(folder) / "seeds.txt").write_text("\n".join(seeds), "utf-8")
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gossamer", "crawl", "--seeds", "seeds.txt", "--job", "bench", "--quiet"),
                *("--allow-private", "--delay", "0", "--concurrency", "100", *words),
            ],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise GossamerError(f"a crawl that was measured ended with code {process.returncode}")
        return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    """Ours, without settings, and with bytecode that is kept: what is installed has it."""
    unwanted = ("GOSSAMER_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
