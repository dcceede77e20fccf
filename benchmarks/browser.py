"""Memory and processes of a worker with a browser, over 1,000 pages with content from scripts.

    python benchmarks/browser.py [--pages 1000] [--tabs 4] [--hostile 50]

Every page loads a shared script and its own data, creates 200 elements with links, and leaves timers and 5 MB of
garbage. One page in `--hostile` runs forever, or allocates memory forever; half-way, a browser is killed externally.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import time
from pathlib import Path

from gossamer.clock import SystemClock
from gossamer.download.browser import BrowserDownloader
from gossamer.download.chromium import find_chromium
from gossamer.errors import RenderFailed
from gossamer.model import Request
from gossamer.settings import build

PAGE = """<!doctype html><title>Page</title><div id=app>loading</div><script src=/app.js></script>"""
SCRIPT = """
window.kept = []; for (let i = 0; i < 50; i++) window.kept.push(new Array(12500).fill(Math.random()));
setInterval(() => window.kept.push(new Date()), 10);
fetch('/data.json' + location.search).then(r => r.json()).then(data => {
  const items = data.map(n => `<p><a href=/page?${n}>Item ${n}</a> and its words</p>`);
  document.getElementById('app').innerHTML = items.join('');
});
"""
ENDLESS = """<!doctype html><p>x<script>while (1) {}</script>"""
GREEDY = """<!doctype html><p>x<script>
const all = []; setInterval(() => all.push(new Uint8Array(5e7).fill(1)), 20)</script><script src=/silent></script>"""


def is_hostile(number: int, hostile: int) -> bool:
    return bool(hostile) and number % hostile == hostile - 1


def kind(target: str, hostile: int) -> tuple[str, bytes]:
    if target == "/app.js":
        return "text/javascript\r\nCache-Control: max-age=600", SCRIPT.encode()
    number = int(target.partition("?")[2] or 0)
    if target.startswith("/data.json"):
        return "application/json", str([number * 1000 + n for n in range(200)]).encode()
    if is_hostile(number, hostile):
        return "text/html", (ENDLESS if number // hostile % 2 else GREEDY).encode()
    return "text/html", PAGE.encode()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hostile: int) -> None:
    try:
        while True:
            target = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            if target == "/silent":
                await asyncio.sleep(3600)
            content_type, body = kind(target, hostile)
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def drivers_bytes() -> int:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return sum(resident_bytes(int(pid)) for pid in children)


async def run(pages: int, tabs: int, hostile: int) -> None:
    server = await asyncio.start_server(lambda r, w: serve(r, w, hostile), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    values = {"allow_private": True, "resolve": ["*.test=127.0.0.1"], "fetch_seconds": 30, "browser_tabs": tabs}
    downloader = BrowserDownloader(build(values), SystemClock())
    numbers = iter(range(pages))
    done = whole = failed = good_failed = most_processes = 0
    most_bytes = 0
    began = time.monotonic()

    async def weigh() -> None:
        nonlocal most_processes, most_bytes
        processes, size = await asyncio.to_thread(downloader.browsers.memory_usage)
        most_processes, most_bytes = max(most_processes, processes), max(most_bytes, size)
        own = resident_bytes(os.getpid())
        print(
            f"{done:>5} pages, {time.monotonic() - began:5.0f} s: browser {size / 2**20:5.0f} MB in {processes:>2} "
            f"processes, driver {drivers_bytes() / 2**20:4.0f} MB, Python {own / 2**20:4.0f} MB; {failed} failed",
            flush=True,
        )

    async def tab() -> None:
        nonlocal done, whole, failed, good_failed
        for number in numbers:
            try:
                url = f"http://site{number % 20}.test:{port}/page?{number}"
                response = await downloader.fetch(Request(url))
                whole += response.body.count(b"and its words") == 200
            except RenderFailed:
                failed += 1
                good_failed += not is_hostile(number, hostile)
            done += 1
            if done == pages // 2:
                for chromium in list(downloader.browsers._all):
                    chromium.kill()
            if done % 20 == 0:
                await weigh()

    await asyncio.gather(*(tab() for _ in range(tabs * 2)))
    await downloader.aclose()
    browsers, seconds = downloader.browsers, time.monotonic() - began
    bad = pages // hostile if hostile else 0
    left = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    print(f"{whole} of {pages - bad} good pages whole, {good_failed} failed")
    print(f"{failed - good_failed} of {bad} hostile pages failed")
    print(f"most: {most_processes} processes, {most_bytes / 2**20:.0f} MB; {browsers.started} browsers started")
    print(f"replaced because: {', '.join(browsers.replaced)}")
    print(f"child processes left: {len(left)}; {pages / seconds:.2f} pages a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--tabs", type=int, default=4)
    parser.add_argument("--hostile", type=int, default=50, help="Every Nth page is hostile; 0: none.")
    choice = parser.parse_args()
    version = subprocess.run(
        [find_chromium(), "--version", "--no-sandbox"], capture_output=True, text=True, check=False
    )
    print(f"{version.stdout.strip()}; Python {platform.python_version()}; {os.cpu_count()} cores, {platform.machine()}")
    asyncio.run(run(choice.pages, choice.tabs, choice.hostile))


if __name__ == "__main__":
    main()
