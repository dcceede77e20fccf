"""Two kinds of pages, two handlers: a request with `label="letter"` goes to `parse_letter`.

    gossamer crawl http://127.0.0.1:8000/ --spider examples/labels.py --allow-private

The site of the example is the one of `gossamer simweb --port 8000`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gossamer import Page, Spider


class Letters(Spider):
    def parse(self, page: Page) -> Iterator[Any]:
        """Any page: letters first, the other pages after them."""
        yield from page.follow_all("a[href*='/letters/']", label="letter", priority=1, meta={"found_on": page.title})
        yield from page.follow_all("a:not([href*='/letters/'])")

    def parse_letter(self, page: Page) -> Iterator[Any]:
        """A letter: an item, and the letters that it mentions."""
        yield {
            "letter": page.css("h1::text").get(),
            "found_on": page.meta.get("found_on"),
            "words": len(page.text.split()),
        }
        yield from self.parse(page)
