"""Crawl from an asyncio program, with a spider and its items.

    python examples/crawl_async.py [URL]

Without a URL, the script starts a simulated web and crawls it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import gossamer
from gossamer import Page, Spider
from gossamer.testing.web import SimWeb


class Prices(Spider):
    follows_links = True

    def parse(self, page: Page) -> list[dict[str, float]]:
        return [{"price": float(text)} for text in page.css("div.item .price::text").getall()]


async def total(url: str, **settings: Any) -> float:
    """The sum of all prices on a site."""
    found = 0.0
    async for page in gossamer.crawl(url, spider=Prices, **settings):
        found += sum(item["price"] for item in page.items)
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(f"{asyncio.run(total(sys.argv[1])):,.2f}")
    else:
        with SimWeb(sites=1, pages_per_site=20, names=True) as web:
            cost = asyncio.run(total(web.seeds[0], delay=0, allow_private=True, resolve=["*.sim=127.0.0.1"]))
        print(f"{cost:,.2f}")
