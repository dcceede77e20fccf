"""Extract product names and prices: one item per product. Follows every link of the list.

    gossamer crawl http://127.0.0.1:8000/ --spider examples/market.py --allow-private

Run `gossamer simweb --port 8000` in another terminal first: it serves the site of this example.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gossamer import Page, Spider


class Market(Spider):
    def parse(self, page: Page) -> Iterator[Any]:
        for thing in page.css("div.item"):
            yield {
                "name": thing.css(".name::text").get(),
                "price": float(thing.css(".price::text").re_first(r"[\d.]+", "0")),
                "page": page.url,
            }
        yield from page.follow_all("ul a")
