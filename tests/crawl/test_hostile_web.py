"""All hostile answers in one crawl with good pages, verified by its files and its resource usage."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from processes import command, environment, kill_tree, rows
from wildweb import hostile_web

from gossamer.errors import FetchError
from gossamer.lab.simweb.process import SimWeb
from gossamer.settings import MIB

SITES, PAGES = 20, 25


class Crawl(NamedTuple):
    """How a crawl ended: its exit code and complaints, and the most memory that its process had."""

    code: int
    said: str
    peak_bytes: int


def watched(folder: Path, seeds: list[str], *options: str, seconds: float) -> Crawl:
    """A crawl from its start to its end, with an eye on its memory."""
    line = command(folder, seeds, *options, "--max-seconds", str(seconds))
    with (folder.parent / f"{folder.name}.stderr").open("w+") as errors:
        process = subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=errors, text=True, start_new_session=True, env=environment()
        )
        peak = 0
        try:
            while process.poll() is None:
                peak = max(peak, peak_bytes(process.pid))
                time.sleep(0.05)
        finally:
            kill_tree(process)
        errors.seek(0)
        return Crawl(process.returncode, errors.read(), peak)


def peak_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def kinds() -> set[str]:
    """The words for all errors of a fetch."""
    found, left = set(), [FetchError]
    while left:
        one = left.pop()
        left += one.__subclasses__()
        found.add(one.kind)
    return found


def why(folder: Path, url: str) -> tuple[str, str]:
    """What became of a URL, and the reason."""
    line = [sys.executable, "-m", "gossamer", "why", url, "--job", str(folder), "--json"]
    story = json.loads(subprocess.run(line, capture_output=True, check=True, env=environment()).stdout)
    return story["state"], story["reason"]


def crawl_the_wild(
    folder: Path, shared: Path, *more: str, body_bytes: int, fetch_seconds: float, tries: int, late_seconds: float = inf
) -> Crawl:
    """One crawl of good and hostile pages; all that must hold of its files does.

    Where the time of a fetch is short, a busy machine may be too slow for a good page: then it is tried again."""
    limits = ("--max-body-bytes", str(body_bytes), "--max-decoded-bytes", str(2 * body_bytes))
    patience = ("--fetch-seconds", f"{fetch_seconds:g}", "--connect-seconds", "2", "--tries", str(tries))
    back_off = ("--backoff-seconds", "0.05", "--backoff-max-seconds", "0.1", "--site-failures", "4")
    reading = ("--cookies", "--delay", "0", "--resolve", "*.wild=127.0.0.1")
    with (
        SimWeb(sites=SITES, pages_per_site=PAGES, page_bytes=8000) as web,
        hostile_web(shared / "tools", folder.parent / "tls", size=2 * body_bytes - 1000) as wild,
    ):
        options = (*limits, *patience, *back_off, *reading, "--ca-file", str(wild.authority), *more)
        done = watched(folder, [*web.seeds, *wild.urls], *options, seconds=400)
        good = web.reachable()
        assert not web.judge().missed
    assert "Traceback" not in done.said
    assert done.code == 3, done.said
    records: dict[str, list[dict[str, Any]]] = {}
    for row in rows(folder / "pages.jsonl"):
        records.setdefault(row["url"], []).append(row)
    assert len(good) == SITES * PAGES
    assert {url for url in good if [row["status"] for row in records.get(url, ())] != [200]} == set()
    # What nobody may ask for was not asked for, and the frontier knows why.
    unasked = {url for url in wild.urls if url not in records}
    assert unasked <= wild.dark
    assert {why(folder, url) for url in unasked} == {("failed", "robots-unreachable")}
    assert {url: len(records[url]) for url in wild.urls if url in records and len(records[url]) != 1} == {}
    ends = {url: records[url][0] for url in wild.urls if url in records}
    typed = kinds() | {"redirects", "redirect-refused"}
    assert [row for row in ends.values() if not row["status"] and row["error"].partition(":")[0] not in typed] == []
    assert {url for url in wild.broken - unasked if ends[url]["status"] == 200 and not ends[url].get("cut")} == set()
    # Most of what was recorded is sound, only odd: it must not be refused with the rest.
    assert Counter(bool(row["status"]) for row in ends.values())[True] > 400
    late = {
        step["url"]: step.get("latency", 0.0)
        for path in (folder / "trail").glob("*.jsonl")
        for step in rows(path)
        if step.get("latency", 0.0) > fetch_seconds + late_seconds
    }
    assert late == {}
    assert {url: row["elapsed"] for url, row in ends.items() if row["elapsed"] > fetch_seconds + late_seconds} == {}
    return done


def test_h27_all_hostile_answers_leave_five_hundred_good_pages_unharmed(tmp_path: Path, shared: Path) -> None:
    """H01 to H47 as far as one crawl can meet them; with small limits, so that they are met soon."""
    options = ("--sitemaps", "--text")
    crawl_the_wild(tmp_path / "job", shared, *options, body_bytes=MIB, fetch_seconds=2, tries=4)


@pytest.mark.long
def test_h27_no_hostile_answer_takes_longer_than_its_time(tmp_path: Path, shared: Path) -> None:
    """H19, H20: limits as they are by default; pages are read in another process, so that the clock is not held up."""
    options = ("--sitemaps", "--text", "--parse-processes", "1")
    crawl_the_wild(tmp_path / "job", shared, *options, body_bytes=10 * MIB, fetch_seconds=10, tries=2, late_seconds=1)


WEIGHED = """
import os, sys
from gossamer.engine.allocator import give_back_freed_memory
from gossamer.cli import run_command
give_back_freed_memory()
code = run_command()
with open("/proc/self/status") as status:
    found = {line.split(":")[0]: int(line.split()[1]) for line in status if line.startswith(("VmHWM", "VmRSS"))}
print("weighed", found["VmHWM"] * 1024, found["VmRSS"] * 1024, file=sys.stderr, flush=True)
os._exit(code)
"""


def weigh(folder: Path, seeds: list[str], *options: str) -> tuple[int, int]:
    """The most memory that a crawl had, and what it had at its end, just before its process left."""
    line = [sys.executable, "-c", WEIGHED, *command(folder, seeds, *options)[3:]]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment())
    assert "Traceback" not in done.stderr
    said = next(words.split() for words in done.stderr.splitlines() if words.startswith("weighed"))
    return int(said[1]), int(said[2])


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the memory of a process")
def test_h16_no_hostile_answer_costs_more_than_twice_its_limit(tmp_path: Path, shared: Path) -> None:
    """H16, H27, H31: each alone in a process, next to one with a small page; then all of them, one after another.

    The limit of a page is `max_decoded_bytes`, that of a sitemap 50 MiB."""
    limit = 20 * MIB
    options = (
        *("--max-decoded-bytes", str(limit), "--sitemaps", "--text", "--cookies", "--delay", "0", "--tries", "1"),
        *("--resolve", "*.wild=127.0.0.1", "--site-failures", "1", "--backoff-seconds", "0.05"),
    )
    with hostile_web(shared / "tools", tmp_path / "tls", size=limit - 1000) as wild:
        # What was recorded is small, and is weighed together.
        small = [url for url in wild.urls if "/curl/" in url or "/asis/" in url or url.startswith("https:")]
        small = [url for url in small if url not in wild.dark]
        large = [url for url in wild.urls if url not in small and "/live/" not in url]
        base, start = weigh(tmp_path / "base", [next(url for url in wild.urls if url.endswith("/H39-title"))], *options)
        costs = {}
        for number, urls in enumerate([*([url] for url in large), small]):
            peak, _ = weigh(tmp_path / f"job{number}", urls, *options)
            costs[urls[0] if len(urls) == 1 else "all that is recorded"] = (peak - base) / MIB
        _, end = weigh(tmp_path / "all", large, *options, "--concurrency", "1")
    for url, cost in sorted(costs.items(), key=lambda item: -item[1]):
        print(f"{cost:6.1f} MiB  {url}")
    print(f"after all of them {(end - start) / MIB:.1f} MiB more than after none")
    most = {url: 2 * (50 * MIB if "//sitemap" in url else limit) / MIB for url in costs}
    assert {url: cost for url, cost in costs.items() if cost > most[url]} == {}
    assert end - start < 2 * limit
