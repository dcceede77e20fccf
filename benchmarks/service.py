"""Cost of the service: response times for a job of a million URLs on 50,000 sites, and a crawl with 200 slow clients.

python benchmarks/service.py size       response times, and the cost of polling for the crawl
python benchmarks/service.py clients    the same crawl without a service, with one, and with slow clients
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request as Ask
from urllib.request import urlopen

import msgspec

from gossamer.clock import SystemClock
from gossamer.engine.links import Linker, RecentKeys
from gossamer.frontier.embedded.sqlite import open_sqlite
from gossamer.job_folder import save_settings
from gossamer.lab.simweb.process import SimWeb
from gossamer.model import PageRow
from gossamer.settings import build
from gossamer.storage.request_log import SentRequest

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def service(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a service for the crawls in a folder; yields its address and its process."""
    command = [sys.executable, "-m", "gossamer", "serve", "--port", "0", "--crawls", str(folder), "--rate", "100000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        yield line.split()[-1], process.pid
    finally:
        process.terminate()
        print(process.stderr.read(), end="")
        process.wait(20)
        process.stderr.close()


def ask(address: str, path: str, **parameters: Any) -> tuple[float, bytes]:
    query = f"?{urlencode(parameters)}" if parameters else ""
    began = time.perf_counter()
    with urlopen(Ask(f"{address}{path}{query}"), timeout=60) as answer:
        data = answer.read()
    return time.perf_counter() - began, data


async def fill(folder: Path, *, sites: int, urls: int) -> None:
    """Create a job with this many known URLs and sites, with a request log and stored pages for a third of them."""
    settings = build({"allow_private": True, "resolve": ["*=127.0.0.1"], "scope": "any", "robots": False})
    save_settings(folder, settings)
    frontier = open_sqlite(folder / "frontier.db", settings, clock=SystemClock())
    linker = Linker(settings, frontier.secret, RecentKeys())
    for first in range(0, urls, 20_000):
        names = (f"http://s{n % sites}.example:9/page-{n}" for n in range(first, min(urls, first + 20_000)))
        await frontier.add([linker.seed(name) for name in names])
    await frontier.aclose()
    now = time.time()
    (folder / "trail").mkdir()
    with (folder / "trail" / "owner.jsonl").open("wb") as trail, (folder / "pages.jsonl").open("wb") as pages:
        for n in range(urls // 3):
            url, at, status = f"http://s{n % sites}.example:9/page-{n}", now - 3600 + n * 3600 * 3 / urls, 200
            if n % 50 == 0:
                status = 404
            step = SentRequest(url=url, at=at, status=status, latency=0.1, bytes=20_000, delay=1.0)
            trail.write(msgspec.json.encode(step) + b"\n")
            row = PageRow(url=url, status=status, title=f"Page {n}", fetched_at=at, bytes=20_000, digest="0" * 40)
            pages.write(msgspec.json.encode(row) + b"\n")


def size(sites: int, urls: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        root = Path(place)
        folder = root / "big"
        folder.mkdir()
        asyncio.run(fill(folder, sites=sites, urls=urls))
        command = [sys.executable, "-m", "gossamer", "crawl", "--job", str(folder), "--quiet"]
        crawl = subprocess.Popen([*command, "--sink", "folder:" + str(root / "out")], stderr=subprocess.DEVNULL)
        stack.callback(crawl.wait)
        stack.callback(crawl.kill)
        while not (folder / "socket").exists():
            assert crawl.poll() is None, "the crawl ended"
            time.sleep(0.2)
        subprocess.run([sys.executable, "-m", "gossamer", "pause", str(folder)], check=True, stderr=subprocess.DEVNULL)
        time.sleep(15)
        before = cpu_seconds(crawl.pid)
        time.sleep(10)
        alone = cpu_seconds(crawl.pid) - before
        address, own = stack.enter_context(service(root))
        first, _ = ask(address, "api/jobs/big")
        print(f"first look at the job, with the end of its trail: {first:.2f} s")
        time.sleep(3)
        before, before_own = cpu_seconds(crawl.pid), cpu_seconds(own)
        time.sleep(10)
        looked = cpu_seconds(crawl.pid) - before
        print(f"CPU of the paused crawl in 10 s: {alone:.2f} s alone, {looked:.2f} s looked at")
        print(f"CPU of the service in 10 s: {cpu_seconds(own) - before_own:.2f} s\n")
        some = "http://s7.example:9/page-7"
        questions: dict[str, tuple[str, dict[str, Any]]] = {
            "jobs": ("api/jobs", {}),
            "job": ("api/jobs/big", {}),
            "sites, the longest queues": ("api/jobs/big/sites", {}),
            "sites, the slowest": ("api/jobs/big/sites", {"sort": "latency"}),
            "sites, a name": ("api/jobs/big/sites", {"find": "s4711.example"}),
            "map of the sites": ("api/jobs/big/map", {}),
            "one site": ("api/jobs/big/site", {"site": "s7.example:9"}),
            "history": ("api/jobs/big/history", {}),
            "errors": ("api/jobs/big/errors", {}),
            "politeness": ("api/jobs/big/politeness", {}),
            "workers": ("api/jobs/big/workers", {}),
            "scale": ("api/jobs/big/scale", {}),
            "metrics": ("metrics", {}),
            "pages, the newest": ("api/jobs/big/pages", {}),
            "pages of a site": ("api/jobs/big/pages", {"site": "s7.example:9"}),
            "versions of a page": ("api/jobs/big/versions", {"url": some}),
            "why a URL": ("api/jobs/big/why", {"url": some}),
            "audit of a site": ("api/jobs/big/audit", {"site": "s7.example:9"}),
            "dashboard": ("", {}),
        }
        print("| question | median | slowest | CPU of service and crawl | bytes |\n|---|---|---|---|---|")
        for words, (path, parameters) in questions.items():
            times, data = [], b""
            before = cpu_seconds(crawl.pid) + cpu_seconds(own)
            for _ in range(repeats):
                seconds, data = ask(address, path, **parameters)
                times.append(seconds)
            cpu = (cpu_seconds(crawl.pid) + cpu_seconds(own) - before) / repeats
            figures = f"{statistics.median(times):.3f} s | {max(times):.3f} s | {cpu:.3f} s"
            print(f"| {words} | {figures} | {len(data):,} |", flush=True)
        loads(address, repeats)


VIEWS = {
    "overview": ("", ".chart svg, .map svg a, .grid2 table td"),
    "sites": ("/sites", "table[aria-label=sites] td a"),
    "one site": ("/site/s7.example%3A9", "main .facts"),
    "errors": ("/errors", ".card h2"),
    "politeness": ("/politeness", ".chart svg"),
    "workers": ("/fleet", "table[aria-label=workers] td.number"),
    "pages": ("/pages", "table[aria-label=pages] td a"),
    "why": ("/url?u=http%3A%2F%2Fs7.example%3A9%2Fpage-7", ".rules li"),
}
"""Views of the dashboard: address, and an element that exists once the view is complete."""


def loads(address: str, repeats: int) -> None:
    """Seconds until a view of the dashboard is complete, in a browser without cache."""
    from playwright.sync_api import sync_playwright

    from gossamer.download.chromium import find_chromium

    print("\n| page of the dashboard | median | slowest |\n|---|---|---|")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for words, (place, shown) in VIEWS.items():
            drawn = " && ".join(f"document.querySelector('{one.strip()}')" for one in shown.split(","))
            times = []
            for _ in range(repeats):
                context = browser.new_context(viewport={"width": 1280, "height": 860})
                page = context.new_page()
                began = time.perf_counter()
                page.goto(f"{address}#/job/big{place}")
                page.wait_for_function(f"() => Boolean({drawn})")
                times.append(time.perf_counter() - began)
                context.close()
            print(f"| {words} | {statistics.median(times):.3f} s | {max(times):.3f} s |", flush=True)
        browser.close()


def slow_clients(address: str, count: int) -> list[socket.socket]:
    """Clients that request events, and one that requests metrics repeatedly, without reading the responses."""
    host, port = address.split("/")[2].split(":")
    found = []
    for number in range(count + 1):
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.connect((host, int(port)))
        path = "/api/events" if number else "/metrics"
        ask_once = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        own.sendall(ask_once * (1 if number else 500))
        found.append(own)
    return found


def crawled(root: Path, name: str, web: SimWeb, pages: int) -> tuple[float, float]:
    """Wall and CPU milliseconds per page of one crawl."""
    seeds = root / f"{name}.seeds"
    seeds.write_text("\n".join(web.seeds))
    command = [sys.executable, "-m", "gossamer", "crawl", "--seeds", str(seeds), "--job", str(root / name), "--json"]
    command += ["--quiet", "--allow-private", "--delay", "0", "--max-pages", str(pages), "--user-agent", "bench"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    process.stdout.close()
    found = json.loads(said)
    return found["seconds"] / found["pages"] * 1000, (usage.ru_utime + usage.ru_stime) / found["pages"] * 1000


def clients(pages: int, rounds: int, count: int) -> None:
    measured: dict[str, list[tuple[float, float]]] = {"no service": [], "service": [], f"{count} slow clients": []}
    with tempfile.TemporaryDirectory() as place, SimWeb(sites=40, pages_per_site=500, page_bytes=8000) as web:
        for number in range(rounds):
            for kind, results in measured.items():
                root = Path(place) / f"{number}-{kind.replace(' ', '-')}"
                root.mkdir()
                with ExitStack() as stack:
                    if kind != "no service":
                        address, own = stack.enter_context(service(root))
                        if "slow" in kind:
                            for one in slow_clients(address, count):
                                stack.callback(one.close)
                        before = cpu_seconds(own)
                    results.append(crawled(root, "crawl", web, pages))
                    if kind != "no service":
                        own_cpu = f", service {cpu_seconds(own) - before:.2f} s CPU"
                        _, text = ask(address, "metrics")
                        listening = next(
                            x for x in text.decode().splitlines() if x.startswith("gossamer_event_clients")
                        )
                    else:
                        own_cpu = listening = ""
                    wall, cpu = results[-1]
                    print(f"{kind}: {wall:.2f} ms wall, {cpu:.2f} ms CPU a page{own_cpu} {listening}", flush=True)
                shutil.rmtree(root)
    base = {column: statistics.median(one[column] for one in measured["service"]) for column in (0, 1)}
    print("\n| | ms a page | of that with a service alone | CPU ms a page | of that |\n|---|---|---|---|---|")
    for kind, results in measured.items():
        wall, cpu = (statistics.median(one[column] for one in results) for column in (0, 1))
        print(f"| {kind} | {wall:.3f} | {wall / base[0]:.3f} | {cpu:.3f} | {cpu / base[1]:.3f} |")


def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("size", "clients"))
    parser.add_argument("--sites", type=int, default=50_000)
    parser.add_argument("--urls", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=200)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n", flush=True)
    if options.part == "size":
        size(options.sites, options.urls, options.repeats)
    else:
        clients(options.pages, options.rounds, options.clients)


if __name__ == "__main__":
    main()
