"""kill -9 of any process at any moment, then the same command again: each page and item once, none missing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from processes import children, crawl, kill_tree, rows, start, stored, until

from gossamer.lab.simweb.log import cut_short, fetched, gaps
from gossamer.lab.simweb.process import SimWeb

SPIDER = """
import gossamer

class Shop(gossamer.Spider):
    def parse(self, page):
        for item in page.css("div.item"):
            yield {"url": page.url, "name": item.css(".name::text").get()}
        yield from page.follow_all()
"""
DELAY = 0.02


def kill_and_resume(tmp_path: Path, *, kills: int, workers: int, seed: int) -> None:
    """A crawl with items under random kills; the files and the server's log must show nothing of them."""
    chance = random.Random(seed)
    spider, folder = tmp_path / "shop.py", tmp_path / "job"
    spider.write_text(SPIDER)
    options = ("--delay", str(DELAY), "--workers", str(workers), "--spider", str(spider), "--lease-seconds", "5")
    with SimWeb(sites=12, pages_per_site=80, page_bytes=4000, latency_seconds=0.02) as web:
        deaths = 0
        moments: list[Any] = []
        while deaths < kills:
            process = start(folder, web, *options)
            seen = sum(stored_lines(folder))
            until(lambda seen=seen, process=process: sum(stored_lines(folder)) > seen or process.poll() is not None)  # type: ignore[misc]
            time.sleep(chance.uniform(0.0, 0.3))
            if process.poll() is not None:
                kill_tree(process)
                break
            deaths += strike(process, chance, workers, moments)
            moments.append(time.time())
            kill_tree(process)
        done = crawl(folder, web, *options)
        assert done.returncode == 0, done.stderr
        log, plan = web.log(), web.plan
        assert not web.judge().missed
    pages = stored(folder)
    assert set(pages.values()) == {1}
    assert set(pages) == plan.reachable()
    items = sorted((item["url"], item["name"]) for item in rows(folder / "items.jsonl"))
    assert items == sorted(
        (plan.url(site, plan.path(site, page)), item["name"])
        for site in range(12)
        for page in range(80)
        for item in plan.items(site, page)
    )
    assert min(gaps(cut_short(log, moments)).values()) >= DELAY
    # A kill costs what twelve sites had fetched since the last commit: a few pages each, not whole batches of 32.
    assert sum(fetched(log).values()) - len(pages) <= (deaths + 1) * 12 * 8


def stored_lines(folder: Path) -> list[int]:
    path = folder / "pages.jsonl"
    return [path.stat().st_size if path.exists() else 0]


def strike(process: subprocess.Popen[str], chance: random.Random, workers: int, moments: list[float]) -> int:
    """Kill a worker or two, the supervisor alone, or leave the whole tree to be killed."""
    target = chance.choice(("worker", "owner", "tree")) if workers > 1 else "tree"
    if target == "worker":
        for pid in chance.sample(found, min(2, len(found))) if (found := children(process.pid)) else ():
            moments.append(time.time())
            os.kill(pid, signal.SIGKILL)
        time.sleep(chance.uniform(0.1, 0.5))
    elif target == "owner":
        moments.append(time.time())
        os.kill(process.pid, signal.SIGKILL)
        time.sleep(chance.uniform(0.0, 0.1))
    return 1


@pytest.mark.parametrize("workers", [1, 4])
def test_kills_leave_the_files_exact(tmp_path: Path, workers: int) -> None:
    kill_and_resume(tmp_path, kills=3, workers=workers, seed=workers)


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 4])
def test_fifty_kills_leave_the_files_exact(tmp_path: Path, workers: int) -> None:
    kill_and_resume(tmp_path, kills=50, workers=workers, seed=100 + workers)


def test_dead_workers_are_replaced_and_their_pages_fetched(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=12, pages_per_site=40, page_bytes=3000, latency_seconds=0.05) as web:
        process = start(folder, web, "--delay", "0.02", "--workers", "4")
        for _ in range(3):
            victims = until(lambda: len(found) >= 4 and found if (found := children(process.pid)) else None)
            os.kill(victims[0], signal.SIGKILL)
            time.sleep(0.4)
        assert process.wait(60) == 0
        assert not web.judge().missed
    assert set(stored(folder).values()) == {1}


def test_a_worker_suspended_past_its_lease_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with SimWeb(sites=6, pages_per_site=60, page_bytes=3000, latency_seconds=0.05) as web:
        process = start(folder, web, "--delay", "0.02", "--workers", "3", "--lease-seconds", "1")
        victim = until(lambda: len(found) >= 3 and found if (found := children(process.pid)) else None)[0]
        until(lambda: sum(stored_lines(folder)) > 20_000)
        os.kill(victim, signal.SIGSTOP)
        time.sleep(3)
        os.kill(victim, signal.SIGCONT)
        assert process.wait(60) == 0
        assert not web.judge().missed
        log = web.log()
    assert set(stored(folder).values()) == {1}
    # The sleeper's request may have been on the wire when it fell asleep; its answer came late, and nobody else's did.
    assert sum(fetched(log).values()) <= 6 * 60 + 12
