"""A crawl from a plain script or a notebook: pages come out of a `for` loop, and leaving the loop stops the crawl.

    python examples/crawl_sync.py [URL]

Without a URL it crawls a simulated web that it starts itself.
"""

from __future__ import annotations

import sys
from typing import Any

import gossamer
from gossamer.testing.web import SimWeb


def longest(url: str, **settings: Any) -> list[tuple[int, str]]:
    """The pages of a site with the most text, of the first thirty."""
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
