"""Crawl from a plain script or a notebook: iterate over pages in a `for` loop; leaving the loop stops the crawl.

    python examples/crawl_sync.py [URL]

Without a URL, the script starts a simulated web and crawls it.
"""

from __future__ import annotations

import sys
from typing import Any

import gossamer
from gossamer.testing.web import SimWeb


def longest(url: str, **settings: Any) -> list[tuple[int, str]]:
    """The five pages with the most text, among the first thirty of a site."""
    pages = gossamer.crawl(url, max_pages=30, **settings)
    return sorted(((len(page.text), page.title) for page in pages), reverse=True)[:5]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        found = longest(sys.argv[1])
    else:
        with SimWeb(sites=1, pages_per_site=30, names=True) as web:
            found = longest(web.seeds[0], delay=0, allow_private=True, resolve=["*.sim=127.0.0.1"])
    for characters, title in found:
        print(f"{characters:8,}  {title}")
