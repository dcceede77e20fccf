"""Items as dataclasses: a field that is missing or misspelt is found when the item is made, not when it is read.

    gossamer crawl http://127.0.0.1:8000/ --spider examples/dataclass_items.py --allow-private

An attrs class, a pydantic model or a msgspec Struct does as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gossamer import Page, Spider


@dataclass
class Thing:
    name: str
    price: float
    url: str
    depth: int


class Things(Spider):
    # An own parse says itself where to go on; this line leaves that to the engine: every link in scope.
    follows_links = True

    def parse(self, page: Page) -> Iterator[Thing]:
        for thing in page.css("div.item"):
            name, price = thing.css(".name::text").get(""), thing.css(".price::text").get("0")
            yield Thing(name=name, price=float(price), url=page.url, depth=page.depth)
