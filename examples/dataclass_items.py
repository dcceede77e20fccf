"""Items as dataclasses: a missing or misspelled field raises an error when the spider creates the item.

    gossamer crawl http://127.0.0.1:8000/ --spider examples/dataclass_items.py --allow-private

Attrs classes, pydantic models, and msgspec Structs work too. Run `gossamer simweb --port 8000` in another terminal
first: it serves the site of this example.
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
    # A spider with its own parse method follows only the links that it yields. This line follows every link in scope.
    follows_links = True

    def parse(self, page: Page) -> Iterator[Thing]:
        for thing in page.css("div.item"):
            name, price = thing.css(".name::text").get(""), thing.css(".price::text").get("0")
            yield Thing(name=name, price=float(price), url=page.url, depth=page.depth)
