"""Helpers for Scrapy tests: real `scrapy crawl` processes, and a small site that records requests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent / "project"
TUTORIAL = Path(__file__).parents[2] / "examples" / "scrapy_tutorial"


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GOSSAMER_", "SCRAPY_"))}
    return {**kept, **more}


def scrapy(
    spider: str, frontier: str, *options: str, project: Path = PROJECT, log: Path | None = None, **variables: str
) -> subprocess.Popen[str]:
    """Start `scrapy crawl SPIDER`; its log goes to a file or to stderr."""
    settings = ["-s", f"GOSSAMER_FRONTIER={frontier}"] if frontier else []
    return subprocess.Popen(
        [sys.executable, "-m", "scrapy", "crawl", spider, *settings, *options],
        cwd=project,
        env=environment(**variables),
        stderr=log.open("w") if log is not None else subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = 110) -> str:
    """Wait for its end; returns its output."""
    try:
        _, said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
        raise AssertionError(f"it did not end: {said[-3000:]}") from None
    return said or ""


def shown_settings(guide: str, frontier: str) -> str:
    """The settings from a how-to page, with the test's frontier."""
    text = (Path(__file__).parents[2] / "docs" / "howto" / guide).read_text("utf-8")
    (shown,) = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    settings, count = re.subn(r'^GOSSAMER_FRONTIER = ".*"$', f'GOSSAMER_FRONTIER = "{frontier}"', shown, flags=re.M)
    assert count == 1
    return f"\n{settings}"


def items(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


class Site:
    """A web site that records (method, path, headers, body, time) of all requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[tuple[str, str, dict[str, str], bytes, float]] = []
        self.headers: list[list[tuple[str, str]]] = []

    def count(self, path: str) -> int:
        return sum(asked[1] == path for asked in self.asked)


@contextmanager
def site(host: str = "127.0.0.1") -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found.asked.append((self.command, self.path, dict(self.headers.items()), body, time.monotonic()))
            found.headers.append(self.headers.items())
            status, text, extra = answer(self.command, self.path, body, found)
            data = text.encode("latin-1", "replace") if isinstance(text, str) else text
            self.send_response(status)
            for name, value in {"Content-Type": "text/html", **extra}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _any

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    found = Site(f"http://{host}:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(method: str, path: str, body: bytes, found: Site) -> tuple[int, str, dict[str, str]]:
    if path == "/robots.txt":
        return 200, "User-agent: *\nDisallow: /private\n", {"Content-Type": "text/plain"}
    if path == "/moved":
        return 302, "", {"Location": "/arrived"}
    if path == "/flaky":
        return (500, "", {}) if found.count(path) == 1 else (200, "well at last", {})
    if path == "/broken":
        return 503, "", {}
    if path == "/missing":
        return 404, "nothing", {}
    if path == "/echo":
        return 200, f"{method} {body!r}", {}
    if path.startswith(("/page/", "/author/")) or path == "/":
        return 200, saying_page(path), {}
    return 200, path, {}


def saying_page(path: str) -> str:
    if path.startswith("/author/"):
        author = path.split("/")[2]
        return f"<h1>Author {author}</h1><span class=born>19{author}</span>"
    number = int(path.split("/")[2]) if path != "/" else 1
    shown = "".join(
        f"<div class=saying><span class=text>Saying {number}.{place}</span><small>Author {(number + place) % 7}</small>"
        f'<a class=author href="/author/{(number + place) % 7}/">about</a></div>'
        for place in range(3)
    )
    nobody = "<div class=saying><span class=text>Wind</span></div>"
    more = f'<li class=next><a href="/page/{number + 1}/">next</a></li>' if number < 6 else ""
    return f"<html><body>{shown}{nobody}{more}</body></html>"
