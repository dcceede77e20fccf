"""`gossamer init --template`: each spider, with its selectors adapted, crawls a site."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from commands import gossamer

from gossamer.cli.templates import TEMPLATES
from gossamer.extract.spider import load
from gossamer.lab.simweb.process import SimWeb

FAST = ("--allow-private", "--delay", "0.01", "--commit-seconds", "0.01", "--max-seconds", "30", "--job", "x")
ADAPTED = {
    "list": (
        "/news/",
        {"div.quote": "article", ".text::text": "h2 a::text", ".author": "time", "li.next a": "a[rel=next]"},
    ),
    "site": ("/", {}),
    "shop": ("/goods/", {".product_pod h3 a": ".card a", ".price_color": ".price", '"li.next a"': ""}),
    "news": ("/news/", {}),
    "sitemap": ("/", {}),
}
"""Template -> the start path on the simulated web, and the selectors to replace."""


def crawled(project: Path, template: str, start: str, changes: dict[str, str]) -> list[dict[str, Any]]:
    """The items of a template's spider."""
    assert gossamer("init", str(project), "--template", template, cwd=project.parent).returncode == 0
    file = project / "spider.py"
    source = file.read_text()
    for old, new in {load(str(file)).start[0]: start, **changes}.items():
        assert old in source
        source = source.replace(old, new)
    file.write_text(source)
    done = gossamer("crawl", *FAST, cwd=project)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (project / "crawls/x/items.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def web() -> Iterator[SimWeb]:
    kinds = ("news+shop+robots-sitemap",)
    with SimWeb(sites=1, pages_per_site=8, page_bytes=3000, kinds=kinds, links_per_page=4) as one:
        yield one


@pytest.mark.parametrize("template", ADAPTED)
def test_each_template_crawls_the_simulated_web(template: str, web: SimWeb, tmp_path: Path) -> None:
    path, changes = ADAPTED[template]
    items = crawled(tmp_path / "project", template, f"{web.url(0).rstrip('/')}{path}", changes)
    assert len(items) > 5
    complete = [item for item in items if all(value for name, value in item.items() if name != "lastmod")]
    assert complete or template == "site"
    if template == "shop":
        assert len(complete) == 15
        assert all(float(item["price"]) > 0 for item in items)


class _Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        number = int(self.path.rpartition("=")[2]) if "page=" in self.path else 0
        quote = {"text": f"quote {number}", "author": {"name": "Ada"}}
        body = json.dumps({"page": number, "has_next": number < 3, "quotes": [quote]}).encode()
        self.send_response(200 if number else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_the_api_template_reads_all_pages_of_an_api(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        items = crawled(tmp_path / "project", "api", f"http://127.0.0.1:{server.server_port}/api/quotes?page=1", {})
    finally:
        server.shutdown()
        server.server_close()
    assert sorted(item["text"] for item in items) == ["quote 1", "quote 2", "quote 3"]


def test_every_template_is_tested() -> None:
    assert set(TEMPLATES) == {*ADAPTED, "api"}
