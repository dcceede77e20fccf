"""The search of the documentation's site leads from the words that people type to the page that answers them.

The words are from the indexes of the documentation of Scrapy, Crawlee, Nutch, and StormCrawler, and from titles of
their issues."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
LOOKED_AT = 3
"""Results that a reader looks at."""
TIMEOUT = 20_000
PAGES = {
    "rate limit": "howto/rate-limiting",
    "throttling": "howto/rate-limiting",
    "autothrottle": "howto/rate-limiting",
    "download delay": "howto/rate-limiting",
    "crawl-delay": "howto/rate-limiting",
    "concurrency": "howto/rate-limiting",
    "429 too many requests": "howto/rate-limiting",
    "robots.txt": "howto/rate-limiting",
    "per-site settings": "howto/per-site-settings",
    "user agent": "howto/rate-limiting",
    "pause and resume": "howto/pause-and-resume",
    "stop": "howto/pause-and-resume",
    "retry": "howto/retry-failures",
    "cron": "howto/schedule-crawls",
    "troubleshooting": "howto/troubleshooting",
    "delete job": "howto/delete-jobs",
    "upgrade": "howto/upgrade",
    "spider arguments": "howto/write-a-spider",
    "excel": "howto/jsonl-csv-sqlite",
    "max pages": "howto/rate-limiting",
    "depth limit": "howto/rate-limiting",
    "spider": "howto/write-a-spider",
    "start urls": "howto/write-a-spider",
    "css selectors": "howto/write-a-spider",
    "xpath": "howto/write-a-spider",
    "item pipeline": "howto/item-pipelines",
    "validate items": "howto/item-pipelines",
    "middleware": "howto/middleware",
    "proxy": "howto/proxies",
    "proxy rotation": "howto/proxies",
    "login": "howto/login-headers-cookies",
    "cookies": "howto/login-headers-cookies",
    "headers": "howto/login-headers-cookies",
    "javascript": "howto/use-a-browser",
    "playwright": "howto/use-a-browser",
    "headless browser": "howto/use-a-browser",
    "screenshot": "howto/use-a-browser",
    "pagination": "howto/pagination-and-apis",
    "infinite scroll": "howto/pagination-and-apis",
    "json api": "howto/pagination-and-apis",
    "download files": "howto/pagination-and-apis",
    "sitemap": "howto/use-sitemaps",
    "deduplication": "howto/near-duplicates",
    "near duplicates": "howto/near-duplicates",
    "export csv": "howto/jsonl-csv-sqlite",
    "sqlite": "howto/jsonl-csv-sqlite",
    "output formats": "howto/output-formats",
    "parquet": "howto/parquet-and-sql",
    "warc": "howto/warc",
    "s3": "howto/object-stores",
    "postgresql": "howto/store-in-postgresql-or-mysql",
    "markdown": "howto/markdown-and-text",
    "main text": "howto/markdown-and-text",
    "redis": "howto/fleet-on-redis",
    "distributed crawling": "howto/fleet-on-redis",
    "kubernetes": "howto/kubernetes",
    "autoscaling": "howto/kubernetes",
    "docker": "howto/docker",
    "systemd": "howto/run-with-systemd",
    "recrawl": "howto/recrawl",
    "scrapy": "howto/migrate-from-scrapy",
    "scrapy-redis": "howto/migrate-from-scrapy-redis",
    "logging": "howto/logs-and-notifications",
    "prometheus": "howto/serve",
    "dashboard": "howto/dashboard",
    "opentelemetry": "howto/opentelemetry",
    "jupyter notebook": "howto/crawl-from-python",
    "pandas": "howto/crawl-from-python",
    "install": "howto/install",
    "broad crawl": "cookbook/country",
    "why was a page not crawled": "howto/why-and-audit",
    "self-signed certificate": "howto/tls-and-dns",
    "command line options": "reference/cli",
    "settings": "reference/settings",
}
pytestmark = pytest.mark.timeout(300)


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def results(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The first page of the site, as a browser shows it, with its search open."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, timeout=280, check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            page.set_default_timeout(TIMEOUT)
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            page.locator("[data-md-component=search-query]").click()
            yield page
            browser.close()
        server.shutdown()


def found(page: Page, words: str) -> list[str]:
    """The pages that the search shows for these words, best first."""
    field, count = page.locator("[data-md-component=search-query]"), page.locator(".md-search-result__meta")
    field.fill("")
    field.press("End")  # the page listens to keys
    expect(count).to_have_text("Type to start searching", timeout=TIMEOUT)
    field.fill(words)
    field.press("End")
    expect(count).not_to_have_text("Type to start searching", timeout=TIMEOUT)
    links = page.locator(".md-search-result__item > a.md-search-result__link")
    paths = [str(link).split("?")[0].split("#")[0] for link in links.evaluate_all("all => all.map(a => a.pathname)")]
    return [path.removeprefix("/").removesuffix(".html") for path in paths]


@pytest.mark.parametrize("words", PAGES)
def test_the_search_finds_the_page(results: Page, words: str) -> None:
    assert PAGES[words] in found(results, words)[:LOOKED_AT]
