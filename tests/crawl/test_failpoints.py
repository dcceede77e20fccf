"""Kills at critical moments, pauses within a lease, and little memory: the next run repairs everything."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from bisect import bisect_left
from pathlib import Path

import pytest
from processes import children, command, crawl, environment, rows, start, stored, until
from rawweb import RawWeb, page, reply

from gossamer.lab.simweb.log import fetched, gaps
from gossamer.lab.simweb.process import SimWeb

# Runs in every process of a crawl before anything else does. The first process that comes to the failpoint for the
# n-th time leaves a note and dies on the spot, as from kill -9; with the note there, nobody dies any more.
FAILPOINT = """
import functools, os, sqlite3, sys

point, _, times = os.environ["FAILPOINT"].partition(":")
note, left = os.environ["FAILPOINT_NOTE"], int(times)

def here():
    global left
    left -= 1
    if left == 0:
        try:
            os.close(os.open(note, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os._exit(9)

if point == "answered":
    from gossamer.download.client import HttpDownloader
    fetch = HttpDownloader.fetch

    async def fetch_and_die(self, request):
        response = await fetch(self, request)
        if not request.url.endswith("/robots.txt"):
            here()
        return response

    HttpDownloader.fetch = fetch_and_die

if point == "handled":
    from gossamer.engine.parsing import PageProcessor
    process = PageProcessor.process

    async def process_and_die(self, request, response, **known):
        handled = await process(self, request, response, **known)
        here()
        return handled

    PageProcessor.process = process_and_die

if point in ("torn", "written"):
    from gossamer.storage.files import AppendedFiles
    store = AppendedFiles._append

    def store_and_die(self, parts):
        if point == "torn" and left == 1:
            half = parts["pages.jsonl"][: len(parts["pages.jsonl"]) // 2]
            os.pwrite(self._files["pages.jsonl"], half, self.marks["pages.jsonl"])
        else:
            store(self, parts)
        here()
        if point == "torn" and left == 0:
            store(self, parts)

    AppendedFiles._append = store_and_die

if point in ("inserted", "committed"):
    class Connection(sqlite3.Connection):
        outcomes = False

        def executemany(self, sql, rows):
            self.outcomes = self.outcomes or "INTO outcomes" in sql
            return super().executemany(sql, rows)

        def execute(self, sql, *values):
            if sql != "COMMIT" or not self.outcomes:
                return super().execute(sql, *values)
            self.outcomes = False
            if point == "inserted":
                here()
            found = super().execute(sql, *values)
            if point == "committed":
                here()
            return found

    sqlite3.connect = functools.partial(sqlite3.connect, factory=Connection)
"""
SPIDER = """
import gossamer

class Shop(gossamer.Spider):
    def parse(self, page):
        for item in page.css("div.item"):
            yield {"url": page.url, "name": item.css(".name::text").get()}
        yield from page.follow_all()
"""
DELAY = 0.01


def with_failpoint(folder: Path, point: str, times: int) -> dict[str, str]:
    """The environment in which a crawl dies at the n-th passage of a point."""
    hooks = folder / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(FAILPOINT)
    return {
        **environment(),
        "PYTHONPATH": os.pathsep.join([str(hooks), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "FAILPOINT": f"{point}:{times}",
        "FAILPOINT_NOTE": str(folder / "note"),
    }


def settled(folder: Path, copy: Path) -> set[str]:
    """The URLs that the frontier has an outcome for, read from a copy: looking must not repair anything."""
    copy.mkdir()
    for path in folder.glob("frontier.db*"):
        shutil.copy(path, copy / path.name)
    connection = sqlite3.connect(copy / "frontier.db")
    try:
        found = connection.execute("SELECT u.url FROM outcomes o JOIN urls u ON u.number = o.url")
        return {url for (url,) in found}
    finally:
        connection.close()


@pytest.mark.parametrize("workers", [1, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("point", ["answered", "handled", "torn", "written", "inserted", "committed"])
def test_f03_f04_f05_kills_at_critical_moments_leave_the_files_exact(tmp_path: Path, point: str, workers: int) -> None:
    folder, spider = tmp_path / "job", tmp_path / "shop.py"
    spider.write_text(SPIDER)
    options = ("--delay", str(DELAY), "--spider", str(spider), "--workers", str(workers), "--lease-seconds", "5")
    with SimWeb(sites=5, pages_per_site=12, page_bytes=3000) as web:
        died = subprocess.run(
            command(folder, web.seeds, *options),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=with_failpoint(tmp_path, point, 3),
        )
        assert (tmp_path / "note").exists(), died.stderr
        in_a_worker = workers > 1 and point in ("answered", "handled")
        assert died.returncode == (0 if in_a_worker else 9), died.stderr
        before, done_before = set(fetched(web.log())), settled(folder, tmp_path / "copy")
        done = crawl(folder, web, *options)
        assert done.returncode == 0, done.stderr
        log, plan = web.log(), web.plan
        assert not web.judge().missed
    assert set(stored(folder)) == plan.reachable()
    assert set(stored(folder).values()) == {1}
    assert sorted((item["url"], item["name"]) for item in rows(folder / "items.jsonl")) == sorted(
        (plan.url(site, plan.path(site, number)), item["name"])
        for site in range(5)
        for number in range(12)
        for item in plan.items(site, number)
    )
    counts = fetched(log)
    repeated = {url for url, count in counts.items() if count > 1}
    assert max(counts.values()) <= 2
    if not in_a_worker:
        # What was settled is not asked for again; what was fetched but not settled is, once.
        assert not repeated & done_before
        assert repeated >= before - done_before
    assert repeated or point == "committed"
    assert min(gaps(log).values()) >= DELAY


def test_f10_a_pause_of_half_a_lease_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=6, pages_per_site=40, page_bytes=3000, latency_seconds=0.05) as web:
        process = start(folder, web, "--delay", "0.02", "--workers", "3", "--lease-seconds", "8")
        victim = until(lambda: len(found) >= 3 and found if (found := children(process.pid)) else None)[0]
        until(lambda: (folder / "pages.jsonl").exists() and (folder / "pages.jsonl").stat().st_size > 10_000)
        os.kill(victim, signal.SIGSTOP)
        time.sleep(4)
        os.kill(victim, signal.SIGCONT)
        assert process.wait(60) == 0
        assert process.stderr is not None
        process.stderr.close()
        assert not web.judge().missed
        assert set(fetched(web.log()).values()) == {1}
    assert set(stored(folder).values()) == {1}


BIG = "<title>big</title>" + "<i>x</i>" * 950_000
# The memory that a start needs differs between machines: the test uses the largest limit at which the crawl fails.
LIMITS_BYTES = range(500_000_000, 240_000_000, -10_000_000)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of address space is Linux's")
def test_f14_with_little_memory_pages_fail_or_the_process_dies_but_nothing_is_lost(tmp_path: Path) -> None:
    with RawWeb() as web:
        web.answers["/"] = page("/big", "/small")
        web.answers["/big"] = reply(BIG)
        web.answers["/small"] = page(title="small")

        def run(folder: Path, most: int = resource.RLIM_INFINITY) -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(
                command(folder, [web.url()], "--delay", "0", "--no-robots", "--quiet", "--tries", "1"),
                capture_output=True,
                timeout=60,
                check=False,
                env=environment(),
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
            )

        runs: dict[int, subprocess.CompletedProcess[bytes]] = {}

        def fails(most: int) -> bool:
            runs[most] = run(tmp_path / str(most), most)
            return runs[most].returncode != 0

        found_at = bisect_left(LIMITS_BYTES, True, key=fails)
        assert found_at < len(LIMITS_BYTES), "the crawl did not fail at any limit"
        folder, first = tmp_path / str(LIMITS_BYTES[found_at]), runs[LIMITS_BYTES[found_at]]
        second = run(folder)
    # Code in C may not survive that there is no memory for it.
    assert first.returncode in (1, 3, -signal.SIGSEGV)
    assert second.returncode in (0, 3), second.stderr
    found = {row["url"].removeprefix(web.url("")): row for row in rows(folder / "pages.jsonl")}
    assert set(stored(folder).values()) == {1}
    assert set(found) == {"/", "/big", "/small"}
    assert found["/big"]["status"] == 200 or found["/big"]["error"].startswith("memory: ")
    assert (found["/small"]["status"], found["/small"]["title"]) == (200, "small")


def test_a_shortened_output_file_stops_the_crawl_with_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=1, pages_per_site=5, page_bytes=2000) as web:
        assert crawl(folder, web, "--delay", "0", "--max-pages", "3").returncode == 0
        size = (folder / "pages.jsonl").stat().st_size
        os.truncate(folder / "pages.jsonl", size - 10)
        done = crawl(folder, web, "--delay", "0")
    assert done.returncode == 1
    assert f"pages.jsonl has {size - 10} bytes, but {size} were committed" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert (folder / "pages.jsonl").stat().st_size == size - 10
